"""The machine and the process that trained: what a number can depend on, and nothing that is a person's.

Variables are kept by an allow-list, since anything may be in the environment of a training job; the host is a hash,
enough to tell whether two incidents met on the same machine. Nothing is started up in order to be described: where
training has not touched CUDA, its driver is asked by `nvidia-smi`, for a context would take memory and forbid forks.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import psutil
import torch

from reprokit.capture import packages, redact
from reprokit.step.flags import DETERMINING

VARIABLES = (  # kept; one that ends in an underscore is a prefix
    *DETERMINING,
    *("LANG", "LC_ALL", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONUTF8"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", "GLOO_", "TORCHELASTIC_"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_CPUS_PER_TASK"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ACCELERATE_MIXED_PRECISION", "TOKENIZERS_PARALLELISM"),
    *("TF_ENABLE_ONEDNN_OPTS", "MALLOC_ARENA_MAX", "LD_PRELOAD", "XLA_FLAGS"),
)
IMAGE_VARIABLES = ("REPROKIT_IMAGE", "IMAGE_DIGEST", "CONTAINER_IMAGE")  # where a job may say which image it runs in
T = TypeVar("T")
_QUERY = ("name", "memory.total", "compute_cap", "driver_version")


def describe() -> dict[str, Any]:
    """environment.json. Plain data; what cannot be found out is absent or None."""
    variables, redacted = redact.environment(_variables(os.environ))
    return {
        "os": _tried(_os_name),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "torch": torch.__version__,
        "cpu": _tried(_cpu),
        "memory": _tried(lambda: psutil.virtual_memory().total),
        "gpus": _tried(_gpus) or [],
        "build": _tried(_build),
        "system": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
            "executable": Path(sys.executable or "python").name,
            "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        },
        "container": _tried(lambda: _container(os.environ)),
        "packages": _tried(lambda: {package.name: package.to_json() for package in packages.installed().values()}),
        "variables": variables,
        "redacted": redacted,
    }


def requirements(archived: Collection[str] = ()) -> str:
    """requirements.txt: what this process has in use, pinned; but for distributions whose code is in the incident."""
    return packages.requirements(archived=archived)


def command(root: Path) -> dict[str, Any]:
    """command.json: how this process was started. `cwd` and `path` (for imports) are relative to the source root."""
    root, folder = root.resolve(), _tried(Path.cwd)  # it may have been removed
    inside = folder is not None and (folder == root or root in folder.parents)
    start = folder if folder is not None and inside else root
    left_out: list[str] = []
    try:
        arguments, redacted = redact.argv([_relative(word, root, start) for word in arguments_of_process()])
        original, _ = redact.argv([_relative(word, root, start) for word in sys.orig_argv[1:]])
    except redact.Unscanned as reason:
        arguments, redacted, original, left_out = [], [], [], [f"argv: {reason}"]
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {
        "argv": arguments,
        "interpreter_argv": original,
        "cwd": start.relative_to(root).as_posix(),
        "cwd_outside": not inside,
        "launcher": _launcher(os.environ),
        "module": main.name if main is not None else None,
        "path": _path(root),
        "flags": {name: getattr(sys.flags, name) for name in _FLAGS if getattr(sys.flags, name)},
        "xoptions": {name: value for name, value in sys._xoptions.items() if name != "frozen_modules"},
        "warnoptions": list(sys.warnoptions),
        "redacted": redacted,
        "left_out": left_out,
    }


def arguments_of_process() -> list[str]:
    """A program that holds Python inside may set none."""
    return [word for word in getattr(sys, "argv", []) if isinstance(word, str)]


_FLAGS = (  # of the interpreter: those that change what a program computes or finds
    *("debug", "optimize", "isolated", "ignore_environment", "no_user_site", "no_site", "safe_path", "dev_mode"),
    *("utf8_mode", "bytes_warning", "inspect"),
)


def _tried(ask: Callable[[], T]) -> T | None:
    """A description is never worth an incident: what breaks here is a field that says nothing."""
    try:
        return ask()
    except Exception:
        return None


def _variables(everything: Mapping[str, str]) -> dict[str, str]:
    prefixes = tuple(name for name in VARIABLES if name.endswith("_"))
    kept = {k: v for k, v in sorted(everything.items()) if k in VARIABLES or k.startswith(prefixes)}
    folders = kept.pop("PYTHONPATH", "").split(os.pathsep)
    relative = os.pathsep.join(folder for folder in folders if folder and not os.path.isabs(folder))
    return kept | ({"PYTHONPATH": relative} if relative else {})  # the others are this machine's alone


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.platform(terse=True)
    return release.get("PRETTY_NAME") or release.get("NAME", "Linux")


def _cpu() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    capability = _tried(torch.backends.cpu.get_cpu_capability)
    return {"model": _cpu_model(), "count": os.cpu_count(), "usable": usable, "capability": capability}


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _build() -> dict[str, Any]:
    """Of torch: what it was built with, and what runs its loops."""
    shown = [line.strip(" -") for line in torch.__config__.show().splitlines()[1:] if "Build settings" not in line]
    parallel = re.search(r"parallel backend: *(.+)", torch.__config__.parallel_info())
    cudnn = torch.backends.cudnn
    return {
        "git": torch.version.git_version,
        "debug": bool(torch.version.debug),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn.version() if torch.version.cuda and cudnn.is_available() else None,
        "config": "; ".join(filter(None, shown)),
        "parallel": parallel[1] if parallel else None,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _gpus() -> list[dict[str, Any]]:
    """Those that training sees if it uses CUDA, else those of the machine; with the driver's version."""
    known = _nvidia_smi()
    if not torch.cuda.is_initialized():
        return known
    driver = known[0]["driver"] if known else None
    seen = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {"name": gpu.name, "memory": gpu.total_memory, "capability": f"{gpu.major}.{gpu.minor}", "driver": driver}
        for gpu in seen
    ]


def _nvidia_smi() -> list[dict[str, Any]]:
    query = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    if shutil.which(query[0]) is None:
        return []
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, memory, capability, driver = (word.strip() for word in line.rsplit(",", len(_QUERY) - 1))
        size = int(memory) << 20 if memory.isdigit() else None  # it counts in MiB
        found.append({"name": name, "memory": size, "capability": capability, "driver": driver})
    return found


def _container(variables: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """Which kind we are in, if any, the image where the job says so, and the limits of the control group."""
    groups = _read(root / "proc/1/cgroup") + _read(root / "proc/self/cgroup")
    signs = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in variables or "kubepods" in groups,
        "podman": (root / "run/.containerenv").exists() or "libpod" in groups,
        "docker": (root / ".dockerenv").exists() or "docker" in groups,
        "other": any(word in groups for word in ("containerd", "lxc", "garden")),
    }
    image = next((variables[name] for name in IMAGE_VARIABLES if variables.get(name)), None)
    return {
        "kind": next((kind for kind, sign in signs.items() if sign), None),
        "image": redact.url(image)[0] if image else None,
        "memory_limit": _read(root / "sys/fs/cgroup/memory.max").strip() or None,
        "cpu_limit": _read(root / "sys/fs/cgroup/cpu.max").strip() or None,
    }


def _launcher(variables: Mapping[str, str]) -> str:
    program = Path(next(iter(arguments_of_process()), "")).name
    main = sys.modules.get("__main__")
    kernel = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if kernel is not None and kernel.initialized():  # who only looks for kernels has imported much of that, too
        return "notebook"
    if "TORCHELASTIC_RUN_ID" in variables:
        return "torchrun"
    if "PYTEST_CURRENT_TEST" in variables or program in ("pytest", "py.test"):
        return "pytest"
    if getattr(main, "__spec__", None) is not None:
        return "python -m"
    return {"-c": "python -c", "": "interactive"}.get(program, "python")


def _relative(word: str, root: Path, start: Path) -> str:
    """A path below the root, also after an equals sign, as the folder where the command runs sees it."""
    option, equals, value = word.rpartition("=")
    if os.path.isabs(value) and root in Path(value).parents:
        return f"{option}{equals}{os.path.relpath(value, start)}"
    return word


def _path(root: Path) -> list[str]:
    """Where imports below the root are found: entries of `sys.path`, and what import hooks added beside it."""
    folders = list(map(Path, packages.search_path()))
    for name, module in sys.modules.copy().items():
        file = packages.file_of(module)
        if "." not in name and file is not None and not name.startswith("__"):  # of `__main__` the folder is there
            folders.append(Path(file).parent.parent if _is_package(module) else Path(file).parent)
    found: dict[str, None] = {}
    for folder in folders:
        resolved = _tried(folder.resolve)
        if resolved is None:
            continue
        if (resolved == root or root in resolved.parents) and not _is_environment(resolved, root):
            found["" if resolved == root else resolved.relative_to(root).as_posix()] = None
    return list(found)


def _is_package(module: ModuleType) -> bool:
    return getattr(module, "__path__", None) is not None


def _is_environment(folder: Path, root: Path) -> bool:
    """Whether a folder below the root is of an installed Python: its packages are pinned, not archived."""
    prefixes = [prefix for prefix in map(Path, (sys.prefix, sys.base_prefix)) if root in prefix.parents]
    return any(prefix == folder or prefix in folder.parents for prefix in prefixes) or "site-packages" in folder.parts


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
