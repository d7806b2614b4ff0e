"""How fast attempts are made: in containers, in forks of one, on two nodes. Prints Markdown, or with --json one object.

    python benchmarks/replay.py

Everything is a ratio of two things done in turn on this machine, the pair again and again: a row has the median ratio
and the interval that covers the true median with probability 95%, which takes six pairs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import replay_ray
from replay_engines import contained, forked
from tables import rows_table

PARTS: dict[str, Callable[[int, int], Iterator[dict[str, Any]]]] = {
    "container": contained,
    "fork": forked,
    "ray": replay_ray.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of a table")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--attempts", type=int, default=8, help="of each run in containers or on nodes")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    options = parser.parse_args()
    parts = [PARTS[options.only]] if options.only else PARTS.values()
    rows = [row for part in parts for row in part(options.pairs, options.attempts)]
    print(json.dumps({"rows": rows}) if options.json else "\n".join(rows_table(rows)))


if __name__ == "__main__":
    main()
