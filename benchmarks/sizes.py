"""What an incident takes on disk, part by part and mode by mode. Prints Markdown, or with --json one object.

    python benchmarks/sizes.py

The batch has 96 samples of 16 frames in uint8: one global view of 224 x 224 and ten local ones of 96 x 96. The state is
that of the reference model at this size (ViT-tiny) with AdamW's moments, after a step. Bytes are counted as they would
be written; nothing of that size is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import torch
from recorder_write import state_of

from reprokit import tree, works
from reprokit.capture import pointers
from reprokit.capture.history import BYTES, STEPS

SAMPLES, VIEWS, FRAMES = 96, 10, 16
FILES = {"state": "state/state.json", "batch": "ranks/00/batch.json", "names": "ranks/00/pointers.json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of tables")
    options = parser.parse_args()
    found = parts()
    rows = [*rows_of("part", found), *rows_of("mode", {name: total for name, (total, _) in modes(found).items()})]
    print(json.dumps({"rows": rows}) if options.json else "\n".join(tables(found)))


def parts() -> dict[str, int]:
    """Bytes of each."""
    batch = tree.refer(
        {
            "global": torch.empty(SAMPLES, FRAMES, 3, 224, 224, dtype=torch.uint8),
            "local": torch.empty(SAMPLES, VIEWS, FRAMES, 3, 96, 96, dtype=torch.uint8),
            "source": [f"clips/{i:05}.mp4" for i in range(SAMPLES)],
        }
    )
    state = tree.refer(state_of(FRAMES))
    steps = min(STEPS, BYTES // batch.nbytes)  # the last of them is the donor
    names = pointers.of(batch)
    return {
        "batch": batch.nbytes,
        "donor": batch.nbytes,
        "state": state.nbytes,
        "history: anchor": state.nbytes,
        "history: earlier batches": max(0, steps - 1) * batch.nbytes,
        "names of samples": names.nbytes + len(json.dumps(names.data)),
    }


def modes(found: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Bytes, and what does not work."""
    past = found["history: anchor"] + found["history: earlier batches"]
    pixels = found["batch"] + found["donor"]
    both = [FILES["state"], FILES["batch"]]
    return {
        "all (the default)": (pixels + found["state"] + past, works.lacks(both)),
        "history=0": (pixels + found["state"], works.lacks(both)),
        'state="checkpoint", which holds all of it': (pixels, works.lacks(both)),
        'state="none"': (pixels, works.lacks([FILES["batch"]])),
        'batch="pointers"': (found["state"] + found["names of samples"], works.lacks([FILES["state"], FILES["names"]])),
        'state="none", batch="pointers"': (found["names of samples"], works.lacks([FILES["names"]])),
    }


def tables(found: dict[str, int]) -> Iterator[str]:
    yield "| part | bytes | |"
    yield "|---|---:|---:|"
    for name, count in found.items():
        yield f"| {name} | {count:,} | {_shown(count)} |"
    yield ""
    yield "| mode | on disk | replay, reduce, locate |"
    yield "|---|---:|---|"
    for name, (count, reason) in modes(found).items():
        yield f"| `{name}` | {_shown(count)} | {f'no: {reason}' if reason else 'yes'} |"


def rows_of(kind: str, found: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name, count in found.items():
        yield {"name": f"{kind}: {name}", "value": count, "low": count, "high": count, "unit": "bytes"}


def _shown(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


if __name__ == "__main__":
    main()
