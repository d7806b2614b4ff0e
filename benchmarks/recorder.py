"""What the flight recorder costs, and what writing an incident costs. Prints Markdown, or with --json one object.

    OMP_NUM_THREADS=1 python benchmarks/recorder.py

Everything is a ratio of two things done in turn on this machine, the pair again and again: a row has the median ratio
and the interval that covers the true median with probability 95%.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from recorder_steps import paths, stepped
from recorder_write import written
from tables import rows_table

PARTS: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {"step": stepped, "paths": paths, "write": written}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of a table")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    options = parser.parse_args()
    parts = [PARTS[options.only]] if options.only else PARTS.values()
    rows = [row for part in parts for row in part(options.pairs)]
    print(json.dumps({"rows": rows}) if options.json else "\n".join(rows_table(rows)))


if __name__ == "__main__":
    main()
