"""One incident of all ranks, and an end that all come to.

A rank that fails alone leaves the others in a collective that it will never join, and an incident of its own batch is
half of what a replay needs. So a rank that fails calls the others over the `board`. What follows is a round:

1. Each rank answers whether the same step failed in it too. Those whose step ended well, or hangs in a collective,
   have a thread that does this for them.
2. The one that called says who failed first: under DistributedDataParallel the exchange of gradients gives a NaN to
   all, while the loss that it came from is one rank's, so the kind that comes first in causal order tells.
3. That one writes the incident. The others write what is theirs beside it (`parts`), for it to be moved in.
4. It says where the incident is, and only then does anybody stop: with IncidentCaptured, or with its own exception.

Nobody waits for ever. A rank that does not answer in time is left out, and a line in the incident says so. One that is
told and cannot stop, because it sits in a collective of a group that is gone, has its group aborted, and its process
ended if that does not help. A healthy step pays for a lock that nobody wants; the thread looks at the board a few
times a second.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import torch.distributed as dist

from reprokit import failure
from reprokit.capture import claims
from reprokit.capture.begun import Begun
from reprokit.capture.board import Board, Gone, Message
from reprokit.capture.history import History
from reprokit.capture.logs import one_line
from reprokit.capture.snapshot import Company, Saw
from reprokit.capture.watchdog import apart
from reprokit.capture.writer import Writer
from reprokit.failure import Signature

Write = Callable[[Company | None], Path | None]

_LOOK = 0.1  # seconds between looks at the board
_CROWD = 128  # ranks that may look so often: one process answers them all
_ASK = 0.02  # seconds between looks at what is being waited for
_JUDGE = 3.0  # seconds that a rank may take to see that the step fails in it too; one that hangs in it never will
_ANSWER = 20.0  # seconds for a first answer: it comes from a thread that has nothing else to do
_STUCK = 10.0  # seconds for which a process that was told may go on in its step, before its group is aborted

_runs = itertools.count()
log = logging.getLogger("reprokit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """How a round ended."""

    path: Path | None  # of the incident; None where none was written
    signature: Signature | None
    step: int
    rank: int  # that failed first
    stops: bool  # all ranks are to stop
    quiet: bool  # nothing was raised

    def __str__(self) -> str:
        what = f"{self.signature.kind} at {self.signature.where}" if self.signature else "a capture"
        return f"step {self.step}, rank {self.rank}: {what}; captured in {self.path}; next: reprokit show {self.path}"


class Ranks:
    """Of one recorder. With one rank, or none that torch.distributed knows of, it does nothing."""

    def __init__(self, writer: Writer, history: History) -> None:
        self._writer, self._history = writer, history
        self._board: Board | None = None
        self._gone = ""  # why nobody can be asked any more
        self._turn = threading.RLock()  # held by the thread that takes part in a round
        self._round = 0
        self._recent: deque[Begun] = deque(maxlen=2)
        self._in_step = False
        self._judged = 0  # the last step that is known to be healthy here
        self._last: Told | None = None
        self._pending: tuple[Told, float] | None = None  # what the loop has not heard yet, and since when
        self._aborted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, begun: Begun | None) -> None:
        """A step begins."""
        if self._board is None:
            self._join()
        if self._board is not None and begun is not None:
            self._recent.append(begun)
            self._in_step = True

    def end(self) -> None:
        """It is over, however it ended."""
        self._in_step = False

    def healthy(self, step: int) -> None:
        """So it was judged, here."""
        self._judged = step

    def told(self) -> Told | None:
        """What all ranks are to stop for, once. Waits for a round that is under way."""
        if self._board is None:
            return None
        with self._turn:
            pending, self._pending = self._pending, None
        return pending[0] if pending else None

    def ended(self, path: Path) -> Told | None:
        """The round that this incident came of."""
        return self._last if self._last and self._last.path == path else None

    def capture(self, begun: Begun, saw: Saw, error: BaseException | None, write: Write) -> Path | None:
        """The incident of a failure that was seen here, whichever rank writes it. write: does, here."""
        if self._board is None:
            return write(None)
        with self._turn:
            if self._pending:
                return self._pending[0].path  # what comes now is the effect of it
            if self._last and self._covers(self._last, begun, saw):
                return self._last.path
            try:
                return self._call(self._board, begun, saw, error, write)
            except Gone as trouble:
                self._gone = self._gone or f"the other ranks cannot be asked: {trouble}"
                return write(self._alone(self._board))

    def close(self, error: BaseException | None = None) -> None:
        """This rank leaves. error: what it leaves with."""
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is None or self._board is None:
            return
        atexit.unregister(self.close)
        if thread is not threading.current_thread():
            thread.join()
        why = f" with {type(error).__name__}" if error is not None else ""
        with suppress(Gone):
            if error is None:
                self._linger(self._board)
            self._board.post(f"left/{self._board.rank}", {"why": f"it had left its recorder{why}"})

    def _linger(self, board: Board) -> None:
        """The last step may be one that fails in another rank."""
        others = [rank for rank in range(board.size) if rank != board.rank]
        board.post(f"leaves/{board.rank}", {})
        until, pause = monotonic() + _JUDGE, threading.Event()
        while True:
            self._look(board)
            if board.all([f"leaves/{rank}" for rank in others]) or monotonic() >= until or self._pending:
                return
            if any(board.look(f"left/{rank}") for rank in others[:_CROWD]):
                return
            pause.wait(_ASK)

    def _join(self) -> None:
        self._board = Board.of_run(f"reprokit/{next(_runs)}") if dist.is_available() and dist.is_initialized() else None
        if self._board is not None:
            self._thread = threading.Thread(target=self._watch, name="reprokit-ranks", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a thread in a store's connection must not outlive the interpreter

    def _watch(self) -> None:
        assert self._board is not None
        pause = _LOOK * max(1.0, self._board.size / _CROWD)
        try:
            while not self._closed.wait(pause):
                self._look(self._board)
                self._end_if_stuck()
        except Gone as trouble:  # most likely the run is over
            self._gone = f"the other ranks cannot be asked: {trouble}"
            while not self._closed.wait(pause):
                self._end_if_stuck()
        except Exception as trouble:
            self._gone = f"the thread that answers other ranks broke: {one_line(trouble)}"
            log.error("%s", self._gone)

    def _look(self, board: Board) -> None:
        """Take part in a round that another rank called, unless the loop of this one comes to do so itself."""
        call = board.look(f"{self._round}/call")
        if call is None:
            return
        until = monotonic() + _JUDGE
        while call["quiet"] and self._judged < call["step"] and monotonic() < until and not self._closed.wait(_ASK):
            pass
        if self._turn.acquire(blocking=False):
            try:
                if board.look(f"{self._round}/call") == call:  # else the loop was faster
                    self._answer(board)
            finally:
                self._turn.release()

    def _answer(self, board: Board) -> None:
        board.post(f"{self._round}/answer/{board.rank}", {"claim": None})
        origin = self._await(board, "origin", _JUDGE + _ANSWER + _ANSWER)
        if origin is None:
            raise Gone("one of them called and said no more")
        with apart():
            self._take_part(board, origin)
        if self._last and self._last.stops and self._last.path:
            self._pending = self._last, monotonic()

    def _call(
        self, board: Board, begun: Begun, saw: Saw, error: BaseException | None, write: Write
    ) -> Path | None:
        if self._gone:
            raise Gone(self._gone)
        claim = claims.claim_of(board.rank, begun.step, saw, error)
        board.post(f"{self._round}/answer/{board.rank}", {"claim": claim})
        call = board.first(f"{self._round}/call", claim)
        mine = call["rank"] == board.rank
        origin = self._decide(board, claim) if mine else self._await(board, "origin", _JUDGE + _ANSWER + _ANSWER)
        if origin is None:
            raise Gone(f"rank {call['rank']} called them and said no more")
        if origin["rank"] == board.rank:
            return self._lead(board, origin, saw, write)
        self._take_part(board, origin)
        return self._last.path if self._last else None

    def _decide(self, board: Board, claim: Message) -> Message:
        """Who failed first, from the answers that come in time."""
        until, found, absent = monotonic() + _JUDGE + _ANSWER, [claim], dict[str, str]()
        for rank in range(board.size):
            if rank == board.rank:
                continue
            answer = self._await(board, f"answer/{rank}", until - monotonic(), leaves=rank)
            if answer is None or "why" in answer:
                absent[str(rank)] = answer["why"] if answer else f"it did not answer within {_JUDGE + _ANSWER:g} s"
            elif answer["claim"] and answer["claim"]["step"] == claim["step"]:
                found.append(answer["claim"])
        first = min(found, key=claims.order)
        said = {str(one["rank"]): f"{one['kind']} at {one['where']}" for one in found if one["kind"]}
        origin = {**claim, **first, "absent": absent, "claims": said}
        board.post(f"{self._round}/origin", origin)
        return origin

    def _lead(self, board: Board, origin: Message, saw: Saw, write: Write) -> Path | None:
        """Write the incident, with what the others have written; tell them where it is."""
        within = self._writer.within
        left_out = [f"ranks/{int(rank):02}: {why}" for rank, why in origin["absent"].items()]
        others = [rank for rank in range(board.size) if rank != board.rank and str(rank) not in origin["absent"]]
        parts, until = [], monotonic() + within
        for rank in others:
            part = self._await(board, f"part/{rank}", until - monotonic())
            if part is None or part["path"] is None:
                why = part["why"] if part else f"not written within {within:g} s"
                left_out.append(f"ranks/{rank:02}: {why}")
            else:
                parts.append(Path(part["path"]))
        evidence = claims.evidence_of(origin, board.size)
        path = write(replace(self._alone(board), parts=parts, left_out=left_out, evidence=evidence))
        signature = saw.signature or failure.first(saw.symptoms)
        with suppress(Gone):
            end = {"path": str(path) if path else None, "signature": signature.to_json() if signature else None}
            board.post(f"{self._round}/end", end)
            self._conclude(origin, end)
            until = monotonic() + _ANSWER
            for rank in others:  # the store may end with this process
                self._await(board, f"heard/{rank}", until - monotonic(), of=self._round - 1)
        return path

    def _take_part(self, board: Board, origin: Message) -> None:
        with ExitStack() as stack:
            try:
                message: Message = {"path": str(stack.enter_context(self._part(board, origin)))}
            except Exception as trouble:
                message = {"path": None, "why": one_line(trouble)}
            board.post(f"{self._round}/part/{board.rank}", message)
            end = self._await(board, "end", 2 * self._writer.within + _ANSWER)
        self._conclude(origin, end or {"path": None, "signature": None})
        board.post(f"{self._round - 1}/heard/{board.rank}", {})
        if self._last and self._last.path:
            self._writer.incidents.append(self._last.path)

    def _part(self, board: Board, origin: Message) -> AbstractContextManager[Path]:
        step = origin["step"]
        until, pause = monotonic() + _JUDGE, threading.Event()
        while (self._recent[-1].step if self._recent else 0) < step and monotonic() < until:
            pause.wait(_ASK)  # it is about to begin
        begun = next((one for one in tuple(self._recent) if one.step == step), None)
        if begun is None:
            at = self._recent[-1].step if self._recent else 0
            raise LookupError(f"it was in step {at}, and what it had in step {step} is not held")
        shown = origin["claims"].get(str(board.rank), "")
        company = replace(self._alone(board), group={**self._alone(board).group, "shows": shown})
        return self._writer.part(replace(begun.part(), past=self._history.part(step), company=company))

    def _conclude(self, origin: Message, end: Message) -> None:
        self._round += 1
        self._last = Told(
            path=Path(end["path"]) if end["path"] else None,
            signature=Signature.from_json(end["signature"]) if end["signature"] else None,
            step=origin["step"],
            rank=origin["rank"],
            stops=origin["stops"],
            quiet=origin["quiet"],
        )

    def _await(
        self, board: Board, what: str, seconds: float, *, leaves: int | None = None, of: int | None = None
    ) -> Message | None:
        """A message of this round, or that the rank that would write it has left; None where neither comes in time."""
        key, until, pause = f"{self._round if of is None else of}/{what}", monotonic() + seconds, threading.Event()
        while True:
            if (found := board.look(key)) is not None:
                return found
            if leaves is not None and (left := board.look(f"left/{leaves}")) is not None:
                return left
            if monotonic() >= until:
                return None
            pause.wait(_ASK)

    def _alone(self, board: Board) -> Company:
        """This rank, without any other."""
        group = {"rank": board.rank, "size": board.size, "backend": board.backend}
        left_out = [f"all other ranks: {self._gone}"] if self._gone else []
        return Company(
            rank=board.rank, size=board.size, group=group, parts=[], evidence={"origin": board.rank}, left_out=left_out
        )

    @staticmethod
    def _covers(last: Told, begun: Begun, saw: Saw) -> bool:
        """Whether a round that is over was about this already: the ranks see one failure at their own time."""
        return begun.step <= last.step and (last.signature is not None or not saw.symptoms)

    def _end_if_stuck(self) -> None:
        pending = self._pending
        if pending is None or monotonic() - pending[1] < _STUCK:
            return
        told = pending[0]
        if not self._aborted:
            if not self._turn.acquire(blocking=False):
                return  # the loop is not stuck: it has come to hear of it
            try:
                if self._pending is not pending:
                    return
                self._aborted, self._pending = True, (told, monotonic())
            finally:
                self._turn.release()
            with suppress(Exception):
                from torch.distributed.distributed_c10d import _abort_process_group

                _abort_process_group()
        elif self._in_step:
            print(f"reprokit: {told}; this rank hangs in what it waits for, so its process ends", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
