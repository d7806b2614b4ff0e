"""What a reduction asks and costs, beside other reducers. Prints Markdown, or with --json one object.

    OMP_NUM_THREADS=1 python benchmarks/reduction.py

Three parts. Calls: the same counted predicate for every tool (see `reduction_peers`), with culprits placed at random
from a fixed seed. Noise: the failure comes and goes, and healthy content fails at times. Steps: a real incident of the
reference model, reduced from end to end.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from random import Random
from statistics import median
from typing import Any

from reduction_noise import noise
from reduction_noise import table as noise_table
from reduction_peers import TOOLS, Counted, Fails
from reduction_steps import steps
from tables import rows_table

from reprokit.reduce.search import crop, drive, minimal

PLACEMENTS = 50
SIZES = (16, 64, 1024, 16384)
RANGE = {16: 4, 64: 4, 1024: 16, 16384: 256}  # n / 64, and 4 at least
AXES = {"b": 8, "v": 6, "t": 16, "h": 224, "w": 224}  # channels stay: a model takes all three
PATCH = {"h": 16, "w": 16}

Place = Callable[[Random, int], Collection[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of tables")
    parser.add_argument("--placements", type=int, default=PLACEMENTS)
    options = parser.parse_args()
    scenarios = [*lists(options.placements), *tensors(options.placements)]
    noisy, rows = list(noise(options.placements)), [*crops(options.placements), *steps()]
    if options.json:
        print(json.dumps({"scenarios": scenarios, "rows": [*rows, *chain.from_iterable(one.rows() for one in noisy)]}))
    else:
        print("\n".join([*calls_table(scenarios), "", *noise_table(noisy), "", *rows_table(rows)]))


def lists(placements: int) -> Iterator[dict[str, Any]]:
    """Culprits among n items."""
    for n in SIZES:
        kinds: dict[str, Place] = {
            "one": partial(_scattered, k=1),
            "two": partial(_scattered, k=2),
            "eight scattered": partial(_scattered, k=8),
            f"a range of {RANGE[n]}": partial(_range, k=RANGE[n]),
        }
        for kind, place in kinds.items():
            random = Random(f"{n} {kind}")
            placed = [place(random, n) for _ in range(placements)]
            calls = {tool: [_calls(run, n, at) for at in placed] for tool, run in TOOLS.items()}
            yield scenario(f"n = {n}: {kind}", calls)


def tensors(placements: int) -> Iterator[dict[str, Any]]:
    """One culprit in a tensor of 8 x 6 x 16 x 3 x 224 x 224. Ours asks axis by axis, the others get a list of cells."""
    for name, axes in ("cells of b v t", ("b", "v", "t")), ("patches of b v t h w", tuple(AXES)):
        sizes = [AXES[axis] // PATCH.get(axis, 1) for axis in axes]
        random = Random(name)
        placed = [tuple(random.randrange(size) for size in sizes) for _ in range(placements)]
        calls = {
            tool: [_calls(run, math.prod(sizes), {_flat(at, sizes)}) for at in placed]
            for tool, run in TOOLS.items()
            if tool != "reprokit"
        }
        ours = [sum(_along(axis, index) for axis, index in zip(axes, at)) for at in placed]
        yield scenario(f"8x6x16x3x224x224, {name}", {"reprokit": ours} | calls)


def _along(axis: str, index: int) -> int:
    """Calls for one axis, which is cut in whole patches."""
    patch = PATCH.get(axis, 1)
    fails = Counted(AXES[axis], range(index * patch, (index + 1) * patch))
    drive(minimal(range(AXES[axis]), ordered=axis not in "bv", multiple=patch), fails)
    return fails.calls


def _flat(place: Sequence[int], sizes: Sequence[int]) -> int:
    cell = 0
    for index, size in zip(place, sizes):
        cell = cell * size + index
    return cell


def crops(placements: int) -> Iterator[dict[str, Any]]:
    n, random, calls = SIZES[-1], Random("crops"), []
    for _ in range(placements):
        fails = Counted(n, _range(random, n, RANGE[n]))
        drive(crop(range(n)), fails)
        calls.append(fails.calls)
    yield row(f"crop alone, n = {n}: a range of {RANGE[n]}", calls, "calls")


def _scattered(random: Random, n: int, k: int) -> Collection[int]:
    return random.sample(range(n), k)


def _range(random: Random, n: int, k: int) -> Collection[int]:
    start = random.randrange(n - k + 1)
    return range(start, start + k)


def _calls(run: Callable[[int, Fails], Any], n: int, culprits: Collection[int]) -> int:
    fails = Counted(n, culprits)
    found = list(run(n, fails))
    assert found == sorted(culprits), f"{run.__name__} found {found}, not {culprits}"
    return fails.calls


def scenario(name: str, calls: dict[str, list[int]]) -> dict[str, Any]:
    return {"name": name, "calls": {tool: {"median": median(n), "p95": p95(n)} for tool, n in calls.items()}}


def row(name: str, values: Sequence[float], unit: str) -> dict[str, Any]:
    """Median, least and most."""
    return {"name": name, "value": median(values), "low": min(values), "high": max(values), "unit": unit}


def p95(values: Sequence[float]) -> float:
    """The smallest that at least 95% do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def calls_table(scenarios: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| predicate calls, median / 95th percentile | " + " | ".join(TOOLS) + " |"
    yield "|---|" + "---|" * len(TOOLS)
    for one in scenarios:
        cells = [f"{one['calls'][tool]['median']:g} / {one['calls'][tool]['p95']:g}" for tool in TOOLS]
        yield f"| {one['name']} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
