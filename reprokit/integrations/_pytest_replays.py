"""A failing test, run again and judged.

The first run defines the failure: its phase (setup, call, teardown), and the type, place and message of the exception,
without what varies (`failure.normalise`). It is no attempt itself, since a test is replayed because it failed. Each
attempt is a whole protocol of pytest's, with every fixture made anew, those of module and session too, and with a fresh
instance of its class: what the first run or the tests before it left in fixtures is gone. What they left in modules and
in global generators is not; pytest has no fresh process to offer. An attempt that skips says nothing and is left out.

Reports are held back until the verdict is there, so that they carry it as properties; attempts themselves are not
reported. That a test failed is said before it is run again: an attempt may hang, or end the process. A test that
passes, is skipped or fails as expected (xfail) is run as always.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from reprokit.failure import Signature
    from reprokit.replay.result import Replay
    from reprokit.replay.strata import Attempt

VERDICT, INCIDENT, NEXT = "reprokit.verdict", "reprokit.incident", "reprokit.next"
REPLAYING = pytest.StashKey[bool]()


@dataclass(kw_only=True, slots=True)
class Run:
    """What one run of a test came to."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    signature: Signature | None = None  # of the first phase that failed
    subtests: bool = False
    names: dict[str, object] = field(default_factory=dict)  # that a doctest knows: one that passes clears them


class Instead:
    """Runs a test in place of pytest's own runner, and keeps the reports."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        from _pytest.runner import runtestprotocol  # not public, and what every plugin uses that runs tests again

        if not item.stash.get(REPLAYING, False):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._replays.run.reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return True


class Replays:
    """Around the whole protocol of a test: other plugins' timeouts and wrappers hold for each attempt by itself."""

    def __init__(self, asked: int) -> None:
        self._asked = asked
        self.run = Run()  # the one that is under way

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.stash.get(REPLAYING, False):
            return (yield)
        self.run = first = Run(names=_names(item))
        handled = yield
        if not first.reports:
            return handled  # another plugin ran and reported it
        try:
            if first.signature is not None:
                self._judge(item, first, first.signature)
        finally:  # Ctrl-C in an attempt hides no failure
            for report in first.reports:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return handled

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self.run.signature is None:
            self.run.signature = _signature(item, call, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Subtests report at once, in attempts as well: those would be counted as more failures."""
        if type(report).__name__.lower() == "subtestreport":
            self.run.subtests = True

    def _judge(self, item: pytest.Item, first: Run, failure: Signature) -> None:
        if first.subtests:
            return _say(first, VERDICT, "not replayed: its subtests report for themselves; parametrize it instead")
        self._announce(item, first, failure)
        attempts: list[Attempt] = []
        interrupted = True
        try:
            with _aside(item), _no_way_out():
                _tear_down(item, first)
                for index in range(self._asked):
                    attempts.append(self._attempt(item, index, first, failure))
            interrupted = False
        finally:
            _tell(item, first, self._replay(attempts, interrupted=interrupted))

    def _announce(self, item: pytest.Item, first: Run, failure: Signature) -> None:
        """On a terminal; a node of xdist has none, and its end is told by the one that has."""
        if (terminal := item.config.pluginmanager.get_plugin("terminalreporter")) is None:
            return
        [failed, *_] = [report for report in first.reports if report.failed]
        crash = getattr(failed.longrepr, "reprcrash", None)
        said = (crash.message if crash else failure.message).partition("\n")[0]
        times = "once" if self._asked == 1 else f"{self._asked} times"
        after_dots = "" if terminal.showfspath else "\n"  # with -q pytest does not know that its line has begun
        terminal.write_line(f"{after_dots}{item.nodeid} failed at {failed.when} ({said}); running it {times} more")

    def _attempt(self, item: pytest.Item, index: int, first: Run, failure: Signature) -> Attempt:
        from reprokit.replay.strata import Attempt
        from reprokit.step.outcome import Outcome, Status

        self.run = run = Run()
        _renew(item, first.names)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if run.signature is not None:
            status = Status.FAIL if _same(run.signature, failure) else Status.OTHER
            return Attempt(index=index, outcome=Outcome(status=status, signature=run.signature))
        skipped = [report for report in run.reports if report.skipped and not hasattr(report, "wasxfail")]
        if skipped or not run.reports:
            why = skipped[0].longreprtext if skipped else "another plugin ran it"
            return Attempt(index=index, outcome=Outcome(status=Status.INVALID, detail=f"skipped: {why}"))
        return Attempt(index=index, outcome=Outcome(status=Status.PASS))

    def _replay(self, attempts: list[Attempt], *, interrupted: bool) -> Replay:
        from reprokit.replay.result import Replay

        return Replay(
            engine="pytest",
            asked=self._asked,
            min_rate=0.0,
            stopped="interrupted" if interrupted else "asked",
            attempts=tuple(attempts),
        )


def _signature(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> Signature:
    """Of a failure of the test's code, wherever it is; strict xfail fails without an exception."""
    from reprokit.failure import Kind, Signature, exception_signature, normalise

    if call.excinfo is None:
        return Signature(kind=Kind.EXCEPTION, where=report.when, message=normalise(report.longreprtext))
    roots = [item.config.rootpath, *({item.path.parent} if hasattr(item, "path") else set[Path]())]
    found = exception_signature(call.excinfo.value, phase="forward", roots=roots)  # as of code that is not torch's
    return replace(found, where=report.when)


def _same(one: Signature, other: Signature) -> bool:
    from reprokit.failure import same

    return same(one, other)


@contextmanager
def _aside(item: pytest.Item) -> Generator[None]:
    """Meanwhile what a run leaves on its item is an attempt's, and is forgotten."""
    properties, sections = list(item.user_properties), list(item._report_sections)
    item.stash[REPLAYING] = True
    try:
        yield
    finally:
        item.stash[REPLAYING] = False
        item.user_properties[:], item._report_sections[:] = properties, sections


@contextmanager
def _no_way_out() -> Generator[None]:
    """Meanwhile os._exit fails an attempt: it would end the process with the failure unreported, and status 0 if it is
    asked for that. Of another thread, such as a timeout's, it ends the process, but not as a success; processes that a
    test forks leave as they like."""
    here, leave = os.getpid(), os._exit

    def stay(status: int) -> NoReturn:
        if os.getpid() != here:
            leave(status)
        if threading.current_thread() is not threading.main_thread():
            leave(status or 1)
        raise SystemExit(f"os._exit({status})")

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


def _tear_down(item: pytest.Item, first: Run) -> None:
    """The fixtures of class, module and session, which the first run left to the next test. That one makes its own."""
    end = lambda: item.session._setupstate.teardown_exact(None)
    call = pytest.CallInfo.from_call(end, when="teardown", reraise=(KeyboardInterrupt, pytest.exit.Exception))
    if call.excinfo is not None:
        first.reports.append(item.ihook.pytest_runtest_makereport(item=item, call=call))


def _renew(item: pytest.Item, names: dict[str, object]) -> None:
    """What pytest keeps with its item: the instance of a test class, the names of a doctest."""
    if isinstance(item, pytest.DoctestItem):
        item.dtest.globs = dict(names)
    if isinstance(item, pytest.Function) and item.__dict__.pop("_instance", None) is not None:
        item.obj = getattr(item.instance, item.originalname)


def _names(item: pytest.Item) -> dict[str, object]:
    return dict(item.dtest.globs) if isinstance(item, pytest.DoctestItem) else {}


def _tell(item: pytest.Item, first: Run, replay: Replay) -> None:
    from reprokit.replay.sentence import sentence

    _say(first, VERDICT, f"{replay.verdict}  {sentence(replay)}")
    incidents = [str(value) for name, value in item.user_properties if name == INCIDENT]
    _say(first, NEXT, _next(replay, incidents))


def _next(replay: Replay, incidents: list[str]) -> str:
    if incidents:
        return f"reprokit replay {incidents[-1]}"
    from reprokit.replay.verdict import Verdict

    return {
        Verdict.REPRODUCIBLE: "debug it: it fails again when you look",
        Verdict.FLAKY: "seed what the test draws, then run it again; what still differs is time, order or threads",
        Verdict.NOT_REPRODUCED: "run it after the tests that ran before it; it may need what they leave",
        Verdict.INCONCLUSIVE: "mend what ended the replays, or ask for as many as can be run",
    }[replay.verdict]


def _say(first: Run, name: str, value: str) -> None:
    """As a property of all reports: JUnit reads that of the teardown."""
    for report in first.reports:
        report.user_properties.append((name, value))
