"""What attempts vary on purpose: values drawn for each, balanced, and made again from one number.

A factor has a few levels, or a new value each time. Levels come in rounds that are shuffled: after each round all were
equally often there, whatever the number of attempts that fit into it. The values of attempt number k depend on the
base and on k alone, so a run that goes on draws what it would have drawn. Pure: nothing here runs a case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from reprokit.errors import BadInput
from reprokit.step.case import Case

Value = int | bool | str
Inputs = Mapping[str, Value]
"""What of an attempt's inputs is not as captured, by factor: `{"rng": 1234, "threads": 2}`."""

RNG = "rng"
NAMES = {  # as `--vary` spells them -> as people say them; in the order of docs/replay.md
    "hashseed": "hash seed",
    "threads": "thread count",
    "deterministic": "deterministic algorithms",
    "memory": "what fresh memory holds",
    "matmul": "matmul precision",
    "tf32": "TF32",
    "cudnn_benchmark": "cuDNN benchmark",
}
BEFORE_START = {"hashseed": "PYTHONHASHSEED", "memory": "MALLOC_PERTURB_"}  # fixed once an interpreter runs
_GPU = ("tf32", "cudnn_benchmark")  # switches that a CPU does not look at
_SEEDS = 2**32  # what PYTHONHASHSEED and NumPy's seed take
_BYTES = (1, 85, 128, 255)  # glibc fills fresh memory with 255 minus this: as floats -1.7e38, -3e-13, 3.4e38 and 0

DETERMINISTIC = {"deterministic_algorithms": True, "cudnn_deterministic": True, "cudnn_benchmark": False}
_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # without it cuBLAS refuses, where algorithms must be deterministic


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """What is drawn for each attempt."""

    names: tuple[str, ...] = ()  # of factors
    base: int = 0  # all values come from it
    cores: int = 1  # thread counts that are worth a try end there
    captured: Mapping[str, Any] | None = None  # flags of the incident

    def inputs(self, number: int) -> Inputs:
        """Of attempt `number`, from 0."""
        return {name: self._value(name, number) for name in self.names}

    def _value(self, name: str, number: int) -> Value:
        levels = self._levels(name)
        if not levels:
            return self._random(name, number).randrange(_SEEDS)
        around = list(levels)
        self._random(name, number // len(levels)).shuffle(around)
        return around[number % len(levels)]

    def _random(self, *of: str | int) -> Random:
        return Random(f"{self.base} {of}")  # noqa: S311  # that it can be made again is the point

    def _levels(self, name: str) -> tuple[Value, ...]:
        """Empty: a new value each time."""
        if name == "threads":
            captured = int((self.captured or {}).get("threads", 1))
            return tuple(sorted({1, 2, captured, self.cores}))
        fixed: dict[str, tuple[Value, ...]] = {"memory": _BYTES, "matmul": ("highest", "high", "medium")}
        return () if name in (RNG, "hashseed") else fixed.get(name, (False, True))


def varied(case: Case, inputs: Inputs) -> Case:
    """The case with these inputs in place of the captured ones."""
    flags, env = dict(case.variant.flags), dict(case.variant.env)
    for name, value in inputs.items():
        if name in BEFORE_START:
            env[BEFORE_START[name]] = str(value)
        elif name == "deterministic":
            flags |= DETERMINISTIC if value else {"deterministic_algorithms": False, "cudnn_deterministic": False}
            env |= _CUBLAS
        elif name == "threads":
            flags["threads"] = value
        elif name == "matmul":
            flags["matmul_precision"] = value
        elif name == "tf32":
            flags |= {"cuda_matmul_tf32": value, "cudnn_tf32": value}
        elif name == "cudnn_benchmark":
            flags[name] = value
    rng = int(inputs[RNG]) if RNG in inputs else case.rng
    return replace(case, rng=rng, variant=replace(case.variant, flags=flags, env=env))


def deterministic(case: Case) -> Case:
    """The case under torch's deterministic algorithms; an operation that has none raises."""
    variant = case.variant
    strict = DETERMINISTIC | {"deterministic_warn_only": False}
    return replace(
        case, variant=replace(variant, flags={**variant.flags, **strict}, env={**variant.env, **_CUBLAS})
    )


def check(names: tuple[str, ...], *, engine: str, device: str, deterministic: bool = False) -> None:
    """Raises BadInput for what cannot be varied, or not there."""
    for name in names:
        if name not in NAMES:
            raise BadInput(f"--vary {name}: unknown; one of {', '.join(NAMES)}")
        if name in BEFORE_START and engine == "inline":
            raise BadInput(
                f"--vary {name}: is fixed before an interpreter starts, and inline runs in this one; use --engine "
                "process or docker"
            )
        if name in _GPU and not device.startswith("cuda"):
            raise BadInput(f"--vary {name}: a switch of GPUs, and this incident ran on {device}; leave it out")
    if deterministic and "deterministic" in names:
        raise BadInput("--vary deterministic: --deterministic fixes it; leave one of them out")
