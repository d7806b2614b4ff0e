"""A loader that fails between two steps: which worker, at which batch, on which sample, as far as that can be known.

torch tells where the exception was raised and not for what. What its traceback still holds does: without workers the
frame that fetches has the index of the sample. With workers that frame is in another process; what is here is the
number of the batch that was waited for, and where samples come in their order, those of that batch. A worker that was
killed says nothing at all: it died on one of the batches that it had not returned. torch hears of that by a signal, and
may raise it in the middle of a step, which is not to blame.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

from reprokit import tree
from reprokit.capture.logs import one_line
from reprokit.capture.seen import Seen
from reprokit.failure import Symptom, exception_signature, said
from reprokit.tree import Packed

PHASE = "loader"

_LONGEST = 2000  # characters of a message that are kept as evidence
_WORKER = re.compile(r"DataLoader worker process (\d+)")
_GONE = re.compile(r"DataLoader worker \(pids?(?:\(s\))? ([\d, ]+)\)")


def seen(error: BaseException, roots: Sequence[Path]) -> Seen | None:
    """An exception of a torch DataLoader as what an incident is made of; None for any other."""
    if (evidence := blame(error)) is None:
        return None
    signature = exception_signature(error, phase=PHASE, roots=roots)
    about = {"type": type(error).__name__, "message": said(error)[:_LONGEST], **evidence}
    return Seen(signature=signature, symptoms=(Symptom(kind=signature.kind, where=PHASE, evidence=about),))


def blame(error: BaseException) -> dict[str, Any] | None:
    """What is known of an exception of a torch DataLoader, for people; None for any other."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if "/torch/utils/data/" in _file(frame)]
    iterating = next((frame.f_locals.get("self") for frame in frames if _file(frame).endswith("/dataloader.py")), None)
    if iterating is None:
        return {"workers": _told_of(error)} if interrupts(error) else None
    found: dict[str, Any] = {}
    if workers := list(_workers(error, iterating)):
        found["workers"] = workers
    batches = _batches(iterating, [worker["worker"] for worker in workers if "died_of" in worker])
    if batches:
        found["batches"] = batches  # it is one of these; counted from 0, in this pass over the data
    if samples := _fetching(frames) or _in_order(iterating, batches):
        found["samples"] = samples
    return found


def where(loader: Any) -> tuple[Packed | None, list[str]]:
    """Where in its data a loader is, once the batch was fetched, for one that can say (as a `StatefulDataLoader`); and
    a line where it should, and does not."""
    if not hasattr(loader, "state_dict"):
        return None, []
    try:
        return tree.pack(loader.state_dict(), name="loader"), []
    except Exception as trouble:
        return None, [f"where the loader was: {one_line(trouble)}"]


def interrupts(error: BaseException) -> bool:
    """Whether torch raised this in a signal's handler, wherever the process was."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and _file(frames[-1]).endswith("/torch/utils/data/_utils/signal_handling.py")


def _told_of(error: BaseException) -> list[dict[str, Any]]:
    """Workers that are gone, where all that is known of them is the message."""
    how = said(error).partition("signal: ")[2].partition(".")[0]
    return [{"pid": int(pid), "died_of": how or "not known"} for pid in _gone(said(error))]


def _gone(message: str) -> list[str]:
    return [pid for pids in _GONE.findall(message) for pid in re.findall(r"\d+", pids)]


def _workers(error: BaseException, iterating: Any) -> Iterator[dict[str, Any]]:
    """Those that raised or are gone, with what they died of."""
    processes = list(getattr(iterating, "_workers", []))
    messages = "\n".join(said(one) for one in (error, error.__cause__, error.__context__) if one is not None)
    raised = {int(number) for number in _WORKER.findall(messages)}
    gone = {int(pid) for pid in _gone(messages)}
    for number, process in enumerate(processes):
        code = process.exitcode
        if number in raised:
            yield {"worker": number}
        elif process.pid in gone or code not in (None, 0):
            yield {"worker": number, "died_of": _ended(code)}


def _ended(code: int | None) -> str:
    if code is None:
        return "not known"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _batches(iterating: Any, gone: list[int]) -> list[int]:
    """The batch whose exception this is; of workers that are gone all that they had not returned."""
    tasks: Mapping[int, Any] = getattr(iterating, "_task_info", {})
    if gone:
        return sorted(number for number, info in tasks.items() if len(info) == 1 and info[0] in gone)
    received = getattr(iterating, "_rcvd_idx", None)
    return [received - 1] if isinstance(received, int) and received else []  # it was counted before it was raised


def _fetching(frames: list[FrameType]) -> list[Any] | None:
    """Of the frame that fetches, where it is in this process: the sample, else those of the batch."""
    for frame in reversed(frames):
        if _file(frame).endswith("/_utils/fetch.py"):
            if "idx" in frame.f_locals:
                return _plain([frame.f_locals["idx"]])
            indices = frame.f_locals.get("possibly_batched_index")
            return _plain(indices if isinstance(indices, list) else [indices])
    return None


def _in_order(iterating: Any, batches: list[int]) -> list[Any] | None:
    """The samples of these batches, where nothing shuffles them."""
    sampler = getattr(iterating, "_index_sampler", None)
    inner, size = getattr(sampler, "sampler", None), getattr(sampler, "batch_size", None)
    if inner is None or type(inner).__name__ != "SequentialSampler" or not isinstance(size, int):
        return None
    return [i for batch in batches for i in range(batch * size, min((batch + 1) * size, len(inner)))]


def _plain(indices: list[Any]) -> list[Any]:
    return [one if isinstance(one, int | str) else str(one) for one in indices]


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")
