"""What a rank adds to an incident that another rank writes.

It is written into a hidden folder of its own, in the folder of incidents, and moved from there into the incident. So
nobody writes into what somebody else is about to publish, and a rank that is too late leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from reprokit import tree
from reprokit.capture.black_box import Run
from reprokit.capture.snapshot import Snapshot, cleaned, write_batches
from reprokit.incident import GROUP, Draft


@contextmanager
def written(run: Run, start: Snapshot, without: Collection[str]) -> Iterator[Path]:
    """The folder, called as the incident will call it; removed at the end of the context where nobody took it.

    start: its state and that of its past are what only this rank has. without: parts to leave out.
    """
    with Draft(run.out) as draft:
        redacted = write_batches(draft, start, run.layout, without)
        draft.write_tree(start.folder, "rng", start.rng)
        if "state" not in without and start.state is not None:
            state = tree.refer(start.state, name="state")
            draft.write_tree(start.folder, "state", cleaned(state, f"{start.folder}/state", redacted))
        if not {"state", "history"} & set(without) and start.past is not None:
            anchor = tree.refer(start.past.anchor, name="anchor")
            draft.write_tree(start.folder, "anchor", cleaned(anchor, f"{start.folder}/anchor", redacted))
        group = start.company.group if start.company else {}
        draft.write_json(f"{start.folder}/{GROUP}", {**group, "left_out": [*start.left_out, *redacted]})
        yield draft.path / start.folder
