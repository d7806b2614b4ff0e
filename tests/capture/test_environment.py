"""What the machine and the process were, for a replay and for a reader; nothing private, nothing superfluous."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from jupyter_client.kernelspec import KernelSpecManager
from packaging.requirements import Requirement

from reprokit.capture import environment, packages


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages of this test's own: `site(name, version, ...)` installs one."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])

    def install(name, version="1.0", requires=(), modules=(), origin=None, record=True):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n")
        for module in modules:
            path = folder / module
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        if record:
            (info / "RECORD").write_text("".join(f"{module},sha256=x,1\n" for module in modules))
        else:
            tops = (module.split("/")[0].removesuffix(".py") for module in modules)
            (info / "top_level.txt").write_text("\n".join(tops))
        if origin:
            (info / "direct_url.json").write_text(json.dumps(origin))
        return folder

    yield install
    packages._installed.cache_clear()
    packages._owners.cache_clear()


class Module:
    def __init__(self, file):
        self.__file__ = str(file)


def pinned(folder, *files):
    """Requirements of a process that has imported these files."""
    return packages.requirements({str(file): Module(folder / file) for file in files}).splitlines()


def test_this_process():
    text = environment.requirements()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = {Requirement(line).name for line in lines}
    assert {"torch", "numpy", "safetensors", "PyYAML", "pytest", "sympy"} <= names
    assert not names & {"reprokit", "pip"}
    assert all(str(Requirement(line).specifier).startswith("==") for line in lines if "@" not in line)
    assert f"torch=={torch.__version__}" in lines
    assert lines == sorted(lines, key=lambda line: packages.canonicalize_name(Requirement(line).name))
    assert environment.requirements() == text


def test_only_what_is_imported_and_what_it_needs(site):
    site("torch", "2.0+cu130", requires=["needed>=1", "extra; extra == 'more'", "other; sys_platform == 'nowhere'"])
    site("needed", "1.5", requires=["deep[fast]", "missing", "not a requirement ==="])
    site("deep", requires=["quick; extra == 'fast'", "slow; extra == 'slow'", "needed"])
    for name in ("quick", "slow", "extra", "other", "numpy", "safetensors", "PyYAML", "reprokit", "pip"):
        site(name)
    folder = site("Used-Package", "3.1", modules=["used/__init__.py"])
    site("unused", modules=["unused.py"])
    site("setuptools", modules=["setuptools/__init__.py"])
    found = pinned(folder, "used/__init__.py", "setuptools/__init__.py", "nobody.py")
    pins = ["deep==1.0", "needed==1.5", "numpy==1.0", "PyYAML==1.0", "quick==1.0", "safetensors==1.0"]
    index = "https://download.pytorch.org/whl/cu130"
    torch_lines = [f"# torch: needs the index of the +cu130 builds, {index}", "torch==2.0+cu130"]
    assert found == [*pins, *torch_lines, "Used-Package==3.1"]


def test_a_build_tool_that_is_required_stays(site):
    folder = site("user", requires=["setuptools"], modules=["user.py"])
    site("setuptools", modules=["setuptools/__init__.py"])
    assert pinned(folder, "user.py") == ["setuptools==1.0", "user==1.0"]


def test_a_shared_namespace_belongs_to_the_one_that_is_used(site):
    folder = site("space-one", modules=["space/one/__init__.py"])
    site("space-two", modules=["space/two.py"])
    site("old-style", modules=["old/__init__.py"], record=False)
    site("old-single", modules=["single.py"], record=False)
    assert pinned(folder, "space/one/__init__.py") == ["space-one==1.0"]
    assert pinned(folder, "old/__init__.py", "old/inner/x.py", "single.py") == ["old-single==1.0", "old-style==1.0"]


def test_origins_are_kept_without_credentials(site, tmp_path):
    vcs = {"url": "https://me:secret@host.example/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    folder = site("from-git", origin=vcs | {"subdirectory": "py"}, modules=["a.py"])
    site("from-address", origin={"url": "https://host.example/x-1.whl", "archive_info": {}}, modules=["b.py"])
    site("from-file", origin={"url": "file:///tmp/some%20where/x-1.whl", "archive_info": {}}, modules=["c.py"])
    site("from-conda", origin={"url": "file:///home/build/nowhere", "dir_info": {}}, modules=["d.py"])
    local = tmp_path / "local"
    (local / "src").mkdir(parents=True)
    site("from-folder", origin={"url": f"file://{local}", "dir_info": {"editable": True}})
    site("broken", origin={"nothing": 1}, modules=["e.py"])
    found = pinned(folder, "a.py", "b.py", "c.py", "d.py", "e.py", local / "src/f.py")
    assert found == [
        "broken==1.0",
        "from-address @ https://host.example/x-1.whl",
        "# from-conda: installed from a file, nowhere",
        "from-conda==1.0",
        "# from-file: installed from a file, x-1.whl",
        "from-file==1.0",
        "# from-folder==1.0: from a folder (editable), so no index has it",
        "from-git @ git+https://host.example/x.git@abc#subdirectory=py",
    ]
    shown = {name: package.to_json() for name, package in packages.installed().items()}
    assert shown["from-git"]["origin"]["url"] == "https://host.example/x.git" and shown["from-folder"]["editable"]
    assert "origin" not in shown["broken"]


def test_the_description_is_plain_and_says_what_numbers_depend_on(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOME_ADDRESS", "private")
    monkeypatch.setenv("NCCL_SECRET", "very private")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "/home/someone/lib", "."]))
    found = environment.describe()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["python"].startswith(".".join(map(str, sys.version_info[:3]))) and found["torch"] == torch.__version__
    assert found["cpu"]["capability"] == torch.backends.cpu.get_cpu_capability() and found["cpu"]["usable"] >= 1
    assert found["memory"] > 0 and found["os"] and found["build"]["threads"] == torch.get_num_threads()
    assert found["packages"]["torch"] == {"name": "torch", "version": torch.__version__}
    assert found["packages"]["reprokit"]["version"]
    assert found["variables"]["OMP_NUM_THREADS"] == "1" and found["variables"]["PYTHONPATH"] == f"src{os.pathsep}."
    assert found["variables"]["NCCL_SECRET"].startswith("REDA") and found["redacted"]
    text = json.dumps(found)
    assert "private" not in text and "/home/someone" not in text and os.uname().nodename not in found["system"].values()


def test_what_breaks_says_nothing(monkeypatch):
    def broken():
        raise RuntimeError

    monkeypatch.setattr(torch.__config__, "show", broken)
    monkeypatch.setattr(environment, "_cpu_model", broken)
    found = environment.describe()
    assert found["build"] is None and found["cpu"] is None and found["python"]


def test_the_driver_is_asked_without_starting_cuda(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, SXM, 143771, 9.0, 570.1'\necho 'Old, [N/A], 3.5, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert environment.describe()["gpus"] == [
        {"name": "NVIDIA H200, SXM", "memory": 143771 << 20, "capability": "9.0", "driver": "570.1"},
        {"name": "Old", "memory": None, "capability": "3.5", "driver": "570.1"},
    ]
    assert not torch.cuda.is_initialized()
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert environment.describe()["gpus"] == []


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods/pod1"}, {}, "kubernetes"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": "1:name=systemd:/lxc/x"}, {}, "other"),
    ],
)
def test_the_kind_of_container(tmp_path, files, variables, kind):
    for name, text in {**files, "sys/fs/cgroup/memory.max": "1073741824\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = environment._container({**variables, "REPROKIT_IMAGE": "https://a:b@host.example/x@sha256:1"}, tmp_path)
    assert found["kind"] == kind and found["memory_limit"] == "1073741824" and found["cpu_limit"] is None
    assert found["image"] == "https://host.example/x@sha256:1"


def started(arguments, cwd, **variables):
    """command.json of a process of its own, whose root is the folder `project` of its script."""
    ordinary = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, env={**ordinary, **variables}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    script = f"""if True:
        import json, sys
        from pathlib import Path
        from reprokit.capture import environment
        print(json.dumps(environment.command(Path({str(root)!r}))))
    """
    for name in ("train.py", "pkg/__init__.py", "pkg/run.py", "hooked/lib/__init__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    for name in ("train.py", "pkg/run.py"):
        (root / name).write_text(script)
    return root


def test_a_script(project):
    data = project / "data"
    found = started(["-W", "ignore", "-X", "dev", "train.py", "--token", "abcdefgh", f"--data={data}"], project)
    assert found["argv"] == ["train.py", "--token", "REDACTED", "--data=data"] and "abcdefgh" not in json.dumps(found)
    assert found["interpreter_argv"][:5] == ["-W", "ignore", "-X", "dev", "train.py"]
    assert (found["cwd"], found["launcher"], found["module"], found["path"]) == (".", "python", None, [""])
    assert found["xoptions"] == {"dev": True} and "ignore" in found["warnoptions"] and found["flags"]["dev_mode"]


def test_a_script_from_elsewhere(project, tmp_path):
    found = started([project / "train.py", tmp_path / "other"], tmp_path)
    assert found["argv"] == ["train.py", str(tmp_path / "other")]
    assert found["cwd"] == "." and found["cwd_outside"] and found["path"] == [""]
    below = started([project / "train.py"], project / "pkg")
    assert below["cwd"] == "pkg" and not below["cwd_outside"] and below["argv"] == ["../train.py"]


def test_a_module_and_its_launchers(project):
    found = started(["-m", "pkg.run"], project)
    assert (found["launcher"], found["module"], found["path"]) == ("python -m", "pkg.run", [""])
    assert found["argv"] == ["pkg/run.py"]
    assert started(["train.py"], project, TORCHELASTIC_RUN_ID="1")["launcher"] == "torchrun"
    assert environment.command(Path.cwd())["launcher"] == "pytest"


def test_a_notebook_is_where_a_kernel_runs_and_not_where_somebody_has_looked_for_one(monkeypatch):
    KernelSpecManager().get_kernel_spec("python3")
    assert {"ipykernel", "IPython"} <= set(sys.modules) and environment.command(Path.cwd())["launcher"] == "pytest"
    for runs, launcher in (False, "pytest"), (True, "notebook"):
        app = SimpleNamespace(IPKernelApp=SimpleNamespace(initialized=lambda runs=runs: runs))
        monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", app)
        assert environment.command(Path.cwd())["launcher"] == launcher


def test_folders_for_imports_below_the_root(project, monkeypatch):
    entries = [project / "src", project, project / "env/lib/site-packages", "/usr"]
    monkeypatch.setattr(sys, "path", list(map(str, entries)))
    monkeypatch.setattr(sys, "prefix", str(project / "env"))
    lib = Module(project / "hooked/lib/__init__.py")  # by the hook of an editable install: in no entry of sys.path
    lib.__path__ = []
    monkeypatch.setitem(sys.modules, "lib", lib)
    assert environment.command(project)["path"] == ["src", "", "hooked"]


def test_a_process_that_is_not_like_others_is_described_all_the_same(project, tmp_path, monkeypatch):
    """Its folder was removed, it has no command line, and its modules and their places are no such things."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.delattr(sys, "argv")
    monkeypatch.setattr(sys, "path", [*sys.path, 7, Path("/x"), "a\0b", ""])
    monkeypatch.setitem(sys.modules, "odd", type("Odd", (), {"__getattr__": lambda self, name: 1 / 0})())
    described = environment.command(tmp_path)
    assert (described["argv"], described["cwd"], described["cwd_outside"]) == ([], ".", True)
    assert environment.describe()["python"] and "torch" in environment.requirements()
