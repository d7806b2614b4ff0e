"""What may decide whether a step fails, and the values at which each of these factors can be held.

A factor is controlled by holding it at one value and provoked by taking another one. If it decides, attempts at one
value agree, and attempts at different values differ. Every value is a case with a variant, or a place where it runs;
a factor that cannot be asked here says why. Pure: nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome
from reprokit.triage.trials import Setting

SEEDS = (1, 2, 3, 4)  # beside the captured state: a failure of a rate of one half shows and stays away in 15 of 16
HASH_SEEDS = ("0", "1", "2", "3", "4", "5")
TICKS = {"10 us": 1e-5, "1 ms": 1e-3, "0.1 s": 0.1}  # below, at and above what a step's own clocks resolve
_THREADS = (1, 2, 4)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_ELSEWHERE = ("ray", "slurm")  # engines whose attempts run on other machines


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the first attempts tell about which factors there can be."""

    random: bool  # the step draws from a global generator, or nobody knows
    compiled: bool  # torch.compile was at work
    engine: str
    forks: str = ""  # why attempts cannot be forked; empty where they can

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], engine: str, forks: str) -> Seen:
        told = [outcome for outcome in outcomes if outcome.fingerprint or outcome.losses]
        drew = any(outcome.random for outcome in outcomes) or not told  # a process that died tells nothing
        return cls(random=drew, compiled=any(one.compiled for one in outcomes), engine=engine, forks=forks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One thing that may decide."""

    name: str
    what: str
    settings: tuple[Setting, ...] = ()
    why_not: str = ""  # it cannot be asked here, because
    follows: str = ""  # what to do where it decides


def known(incident: Incident, base: Case, seen: Seen) -> list[Factor]:
    """All factors, in the order in which they are asked."""
    flags, variables = incident.flags(), incident.variables()
    return [make(base, seen, flags, variables) for make in _MAKERS]


def pinned(factors: Sequence[Factor]) -> list[tuple[str, Setting]]:
    """Values of what a process begins with, each by the name of its factor: whether a failure that comes each time from
    the captured ones comes from others as well."""
    return [(one.name, setting) for one in factors if one.name in ("rng", "hashseed") for setting in one.settings[1:]]


Flags = Mapping[str, Any]
Variables = Mapping[str, str]
_Maker = Callable[[Case, Seen, Flags, Variables], Factor]


def _changed(base: Case, label: str, **change: Any) -> Setting:
    return Setting(label=label, case=replace(base, variant=replace(base.variant, name=label, **change)))


def _with_environment(base: Case, label: str, env: Mapping[str, str], **change: Any) -> Setting:
    return _changed(base, label, env={**base.variant.env, **env}, **change)


def _with_flags(base: Case, label: str, **flags: Any) -> Setting:
    return _changed(base, label, flags={**base.variant.flags, **flags})


def _rng(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    why = "" if seen.random else "the step draws nothing from the generators of Python, NumPy and torch"
    captured = Setting(label="the captured state" if base.rng == "captured" else f"seed {base.rng}", case=base)
    seeds = tuple(Setting(label=f"seed {seed}", case=replace(base, rng=seed)) for seed in SEEDS if seed != base.rng)
    return Factor(
        name="rng",
        what="random numbers (RNG)",
        settings=(captured, *seeds),
        why_not=why,
        follows="what the step draws decides: `reprokit reduce` asks over several seeds; look at masking, dropout and "
        "augmentation, and at what they may leave empty",
    )


def _hashseed(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    captured = str(variables.get("PYTHONHASHSEED", ""))
    values = [*([captured] if captured.isdigit() else []), *(one for one in HASH_SEEDS if one != captured)]
    return Factor(
        name="hashseed",
        what="Python's hash seed",
        settings=tuple(_with_environment(base, f"hash seed {one}", {"PYTHONHASHSEED": one}) for one in values),
        why_not=_one_process(seen),
        follows="the order of a set, or a hash of text, decides: sort before you iterate, or seed from something "
        "stable; until then start training with PYTHONHASHSEED set to a value that passes",
    )


def _threads(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    captured = flags.get("threads")
    counts = sorted({*_THREADS, *([captured] if type(captured) is int else [])})

    def setting(count: int) -> Setting:
        env = {} if seen.engine == "inline" else dict.fromkeys(_THREAD_VARIABLES, str(count))
        label = f"{count} thread{'s' * (count != 1)}"
        return _with_environment(base, label, env, flags={**base.variant.flags, "threads": count})

    return Factor(
        name="threads",
        what="number of threads",
        settings=tuple(map(setting, counts)),
        follows="the order of sums, or a race between threads, decides: look for differences of large numbers and for "
        "code that shares memory between threads",
    )


def _deterministic(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    env = {} if seen.engine == "inline" else {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    on = {"deterministic_algorithms": True, "deterministic_warn_only": True, "cudnn_deterministic": True}
    off = dict.fromkeys(on, False)
    return Factor(
        name="deterministic",
        what="deterministic algorithms",
        settings=(
            _with_flags(base, "deterministic off", **off),
            _with_environment(base, "deterministic on", env, flags={**base.variant.flags, **on}),
        ),
        follows="an operation whose order of sums is not fixed, or memory that nobody initialised, decides: train with "
        "torch.use_deterministic_algorithms(True) until it is found",
    )


def _tf32(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    names = ("cuda_matmul_tf32", "cudnn_tf32")
    return Factor(
        name="tf32",
        what="TF32",
        settings=tuple(_with_flags(base, f"TF32 {word}", **dict.fromkeys(names, word == "on")) for word in _SWITCH),
        why_not=_no_gpu(flags),
        follows="10 bits of mantissa are too few for a product here: torch.set_float32_matmul_precision('highest')",
    )


def _cudnn_benchmark(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    return Factor(
        name="cudnn-benchmark",
        what="cuDNN's choice of kernels",
        settings=tuple(_with_flags(base, f"cuDNN benchmark {word}", cudnn_benchmark=word == "on") for word in _SWITCH),
        why_not=_no_gpu(flags),
        follows="which kernel cuDNN takes decides: torch.backends.cudnn.benchmark = False, and look at what that layer "
        "is given",
    )


def _autocast(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    others = {"autocast off": None} | ({} if flags.get("harness_autocast") == "bf16" else {"autocast bf16": "bf16"})
    return Factor(
        name="autocast",
        what="autocast's dtype",
        settings=(
            Setting(label="autocast as captured", case=base),
            *(
                _changed(base, label, harness={**base.variant.harness, "autocast": value})
                for label, value in others.items()
            ),
        ),
        follows="low precision decides: keep the operation that `reprokit locate` names out of autocast",
    )


def _compile(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    return Factor(
        name="compile",
        what="torch.compile",
        settings=(
            Setting(label="compiled", case=base),
            _with_environment(base, "eager", {"TORCHDYNAMO_DISABLE": "1"}),
        ),
        why_not=_one_process(seen) or ("" if seen.compiled else "the step compiles nothing"),
        follows="compiled code decides: compare it with eager code (TORCHDYNAMO_DISABLE=1), and report it to torch",
    )


def _workers(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    why = "the batch was captured after it was loaded, so no loader runs in a replay"
    return Factor(name="workers", what="workers of the loader", why_not=why)


def _process(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    return Factor(
        name="process",
        what="fork against fresh process",
        settings=(
            Setting(label="fresh process", case=base),
            Setting(label="forked process", case=base, forked=True),
        ),
        why_not=seen.forks,
        follows="what a process inherits decides: state of a library that does not survive a fork, or threads that do "
        "not; start workers with the method `spawn`",
    )


def _load(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    elsewhere = f"attempts of engine {seen.engine} run on machines that cannot be kept busy from here"
    return Factor(
        name="load",
        what="load on the host",
        settings=(
            Setting(label="host quiet", case=base, host="alone"),
            Setting(label="host busy", case=base, host="busy"),
        ),
        why_not=elsewhere if seen.engine in _ELSEWHERE else "",
        follows="timing decides: look for a race between threads or streams, a missing synchronisation, a time limit",
    )


def _clock(base: Case, seen: Seen, flags: Flags, variables: Variables) -> Factor:
    return Factor(
        name="clock",
        what="the clock",
        settings=tuple(_changed(base, f"clock: {label} a look", clock=tick) for label, tick in TICKS.items()),
        follows="the step computes with the time: guard against differences of zero, and take times out of what is "
        "learned from",
    )


_SWITCH = ("off", "on")
_MAKERS: tuple[_Maker, ...] = (
    _rng,
    _hashseed,
    _threads,
    _deterministic,
    _tf32,
    _cudnn_benchmark,
    _autocast,
    _compile,
    _workers,
    _process,
    _load,
    _clock,
)
NAMES = tuple(make.__name__.strip("_").replace("_", "-") for make in _MAKERS)


def _one_process(seen: Seen) -> str:
    return "engine inline is one process, which has it already; use process or docker" * (seen.engine == "inline")


def _no_gpu(flags: Flags) -> str:
    return "" if str(flags.get("device", "")).startswith("cuda") else "the step runs on the CPU"
