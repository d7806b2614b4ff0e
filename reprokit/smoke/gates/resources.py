"""What a step costs: memory, time, tokens, and whether the loader keeps up.

Numbers are measured and shown; they fail only where something is wrong whatever the machine: memory that ran out or
that grows with every step, a loader that gives no batch. A loader that is slower than the step is no fault of the
model, and a busy machine makes one out of any: it is said, and passes.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from reprokit.capture.logs import one_line
from reprokit.failure import Kind, exception_signature
from reprokit.harness import Harness
from reprokit.smoke import loaders, meters
from reprokit.smoke.bench import eager, update
from reprokit.smoke.clips import tokens_in
from reprokit.smoke.clock import Overdue, standing
from reprokit.smoke.encoders import encoders, no_encoder
from reprokit.smoke.gate import OPENING, Finding, Gate, Subject
from reprokit.smoke.laps import copied
from reprokit.smoke.words import counted
from reprokit.step.probe import Probe
from reprokit.step.run import run

STEPS = 5  # that are timed, after one that warms up
BATCHES = 6  # that are fetched, the first of which starts the workers
PATIENCE = 20.0  # seconds for all of them, once two have come
WAITS, WORTH = 1.25, 0.005  # a batch takes so many times a step, and seconds more, before training is said to wait
WATCHED = 6  # steps in which memory may grow
SETTLED = 2  # of them, in which optimizer, caches and history buffers find their size
# a scalar that is kept takes 512 bytes on CUDA, and is no leak; from a kilobyte on, 100,000 steps take 100 MB. Python's
# own objects move by some kilobytes whatever one does; a batch, a frame, a log of arrays are above this
LEAK = {"tensors": 1024, "objects": 32 * 1024}

_LONGEST = 120  # characters of an error that are shown
_CHANGED = "this changes the experiment"


class Resources(Gate):
    """Memory, time and tokens of a step, and the loader's time for a batch. Catches memory that runs out or leaks, and
    a loader that is stuck. Costs some fifteen steps and six batches."""

    name = "resources"

    def look(self, subject: Subject) -> Iterator[Finding]:
        seconds: float | None = None
        if subject.batches:
            harness, batch = subject.harness(), subject.batches[0]
            try:
                with meters.Peak(harness.device) as peak:
                    update(harness, batch)  # compiles, allocates, and makes the optimizer's state
                    update(harness, batch)
                seconds = _seconds(harness, batch)
                grown = meters.kept(lambda: update(harness, batch), harness.device, WATCHED)
                tokens = _tokens(harness, batch)
            except Exception as error:
                if exception_signature(error, phase="", roots=[]).kind is not Kind.OOM:
                    raise
                yield self._no_memory(harness, error)
            else:
                yield self._peak(harness, peak)
                yield self._growth(grown)
                yield self.passed("time of a step", "measured", f"{_time(seconds)}, median of {STEPS}", seconds=seconds)
                yield from self._token_counts(tokens, no_encoder(harness))
        else:
            yield self.not_applicable("memory, time and tokens of a step", subject.no_batches or "there are no batches")
        yield self._loader(subject, seconds)

    def _peak(self, harness: Harness, peak: meters.Peak) -> Finding:
        free = _free(harness.device)
        above = _size(peak.most - peak.before, least=peak.fine)
        observed = f"{_size(peak.most, least=peak.fine)} on {peak.where}, {above} above before the step"
        told = f"{observed}; {_size(free, least=peak.fine)} are free now" if free else observed
        numbers: dict[str, Any] = {"peak_bytes": peak.most, "before_bytes": peak.before, "free_bytes": free}
        return self.passed("memory of a step", "measured, and enough", told, **numbers)

    def _no_memory(self, harness: Harness, error: Exception) -> Finding:
        observed = f"out of memory: {one_line(error)[:_LONGEST]}"
        return self.failed("memory of a step", "measured, and enough", observed, smaller(harness))

    def _growth(self, kept: Sequence[Mapping[str, int]]) -> Finding:
        check, expected = "memory from step to step", f"no growth in {WATCHED - SETTLED} steps, after {SETTLED}"
        settled = kept[SETTLED - 1 :]
        least = {kind: min(after[kind] - before[kind] for before, after in pairwise(settled)) for kind in LEAK}
        numbers: dict[str, Any] = {f"{kind}_per_step": growth for kind, growth in least.items()}
        leaks = [f"{kind} by {_size(least[kind])}" for kind in LEAK if least[kind] >= LEAK[kind]]
        if not leaks:
            return self.passed(check, expected, "none that lasts", **numbers)
        advice = "keep numbers, not tensors or batches: loss.item(), .detach().cpu(), and a bound on every list"
        return self.failed(check, expected, f"each step leaves more: {', '.join(leaks)} at least", advice, **numbers)

    def _token_counts(self, tokens: Mapping[str, Sequence[tuple[int, int]]], because: str) -> Iterator[Finding]:
        if not tokens:
            yield self.not_applicable("tokens of the encoder", because)
        for name, calls in tokens.items():
            if calls:
                observed = _called(calls)
                numbers: dict[str, Any] = {f"call_{place}": count for place, (_, count) in enumerate(calls)}
                yield self.passed(f"tokens of {name}", "measured", observed, **numbers)
            else:
                yield self.not_applicable(f"tokens of {name}", "no call of it in a step gives [B, tokens, width]")

    def _loader(self, subject: Subject, seconds: float | None) -> Finding:
        check = "time of a batch"
        loader = subject.harness().loader
        if subject.opening:
            return self.not_applicable(check, f"the loader fails: see {OPENING}")
        if loader is None:
            return self.not_applicable(check, "the harness has no loader")
        seconds_each = subject.clock.patience
        expected = f"a batch in under {seconds_each:g} s"
        with subject.clock.longer(BATCHES * seconds_each):  # it waits in a way of its own, for a thread
            fetched = fetch(loader, seconds_each)
        which = f"batch {len(fetched.seconds) + 1}"
        if (error := fetched.error) is not None:
            late = f"has not come in {seconds_each:g} s"
            said = late if isinstance(error, Overdue) else one_line(error)[:_LONGEST]
            observed = f"{which}: {said}{loaders.where(error, subject.roots)}"
            found = self.failed(check, expected, observed, loaders.advice(error))
            return replace(found, trace="".join(traceback.format_exception(error)))
        if not fetched.seconds:
            return self.failed(check, expected, "the loader ends before its first batch", "check what it reads from")
        first, usual = fetched.seconds[0], median(fetched.seconds[1:] or fetched.seconds)
        observed = f"{_time(usual)}, median of {len(fetched.seconds[1:]) or 1}; the first {_time(first)}"
        found = self.passed(check, expected, observed, seconds=usual, first_seconds=first)
        if seconds is None or usual < max(WAITS * seconds, seconds + WORTH):
            return found
        waits = f"{observed}; a step takes {_time(seconds)}, so training waits for the loader"
        advice = f"more workers, or less to decode; a smaller crop or fewer local views help too, but {_CHANGED}"
        return replace(found, observed=waits, advice=advice)


def smaller(harness: Harness) -> str:
    """What to do about memory that ran out."""
    knobs = f"; the harness lets these be lowered: {', '.join(harness.knobs)}" if harness.knobs else ""
    return f"a smaller batch, fewer or smaller local crops, or a smaller model ({_CHANGED}){knobs}"


@dataclass(kw_only=True, slots=True)
class Fetched:
    """What a loader gave."""

    seconds: list[float]  # for each batch
    error: BaseException | None = None  # Overdue: the next one did not come in time


def fetch(loader: Iterable[Any], stuck_after: float) -> Fetched:
    """Some batches, with a deadline for each. In a thread, since nothing else ends a wait for a worker that is stuck:
    such a thread stays behind, and ends with the process. No other does: what it draws from the generators would be
    drawn in the middle of what comes next."""
    come: queue.SimpleQueue[tuple[float, BaseException | None] | None] = queue.SimpleQueue()
    enough = threading.Event()
    thread = threading.Thread(target=_iterate, args=(loader, come, enough), daemon=True)
    thread.start()
    fetched, began = Fetched(seconds=[]), perf_counter()
    try:
        while len(fetched.seconds) < BATCHES:
            if len(fetched.seconds) > 1 and perf_counter() - began > PATIENCE:
                break
            one = come.get(timeout=stuck_after)
            if one is None:
                break
            seconds, fetched.error = one
            if fetched.error is not None:
                break
            fetched.seconds.append(seconds)
    except queue.Empty:
        assert thread.ident is not None
        fetched.error = standing(thread.ident, stuck_after)
    enough.set()
    if fetched.error is None:
        thread.join(stuck_after)  # it may be in a batch that nobody waits for
    return fetched


def _iterate(loader: Iterable[Any], come: Any, enough: threading.Event) -> None:
    try:
        batches = iter(loader)
        for _ in range(BATCHES):
            if enough.is_set():
                return
            began = perf_counter()
            next(batches)
            come.put((perf_counter() - began, None))
    except StopIteration:
        come.put(None)
    except (Exception, SystemExit) as error:  # a thread that exits says nothing
        come.put((0.0, error))


def _seconds(harness: Harness, batch: Any) -> float:
    """Of a step as it is configured: compiled where it is."""
    found = []
    for _ in range(STEPS + 1):
        given = copied(batch)
        meters.synchronize(harness.device)
        began = perf_counter()
        for micro in range(harness.accumulate):
            with Probe(harness) as probe:
                run(harness, given, probe, micro=micro)
        meters.synchronize(harness.device)
        found.append(perf_counter() - began)
    return median(found[1:])


def _tokens(harness: Harness, batch: Any) -> dict[str, list[tuple[int, int]]]:
    """Clips and tokens of each call of each encoder, in one step."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in encoders(harness)}

    def count(name: str, output: Any) -> None:
        if (tokens := tokens_in(output)) is not None:
            found[name].append((tokens.shape[0], tokens.shape[1]))

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: count(name, output))
        for name, module in encoders(harness).items()
    ]
    try:
        with eager():
            update(harness, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _free(device: torch.device) -> int:
    """Bytes; 0 where nobody knows."""
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    module = getattr(torch, device.type, None)
    return int(module.mem_get_info(device)[0]) if module and hasattr(module, "mem_get_info") else 0


def _called(calls: Sequence[tuple[int, int]]) -> str:
    """Tokens and clips of calls in a row that are alike, once."""
    alike = [(*call, len(list(group))) for call, group in groupby(calls)]
    tokens = " and ".join(f"{count} ({times} times)" if times > 1 else f"{count}" for _, count, times in alike)
    several = len({clips for clips, _ in calls}) > 1
    clips = ", ".join(str(clips) for clips, _, _ in alike) + " clips" if several else counted(calls[0][0], "clip")
    return f"{tokens} with [CLS], of {clips}" + (" each" if len(calls) > 1 and not several else "")


def _size(count: float, least: int = 1) -> str:
    """least: what is told apart."""
    if abs(count) < least > 1:
        return f"under {_size(least)}"
    count = round(count / least) * least
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _time(seconds: float) -> str:
    if seconds < 1e-5:
        return "under 0.01 ms"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
