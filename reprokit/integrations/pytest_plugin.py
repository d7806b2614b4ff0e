"""Of a failing test: whether it is reproducible or flaky, and an incident where it trains.

    pytest --reprokit-replays 14

runs a test that failed 14 times more and judges it by the rule of `reprokit replay`; see `_pytest_replays`. Its outcome
stays failed. The fixture `reprokit_recorder` makes recorders, so that a step that fails in a test leaves an incident.
And what `reprokit.checks` observed becomes properties of the test, on success too, which JUnit shows.

pytest loads this wherever reprokit is installed, so it imports no library, and without its option it only listens.
"""

from __future__ import annotations

import shutil
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reprokit.checks import told
from reprokit.integrations._pytest_replays import INCIDENT, NEXT, REPLAYING, VERDICT, Instead, Replays

if TYPE_CHECKING:
    from reprokit.capture.recorder import Recorder
    from reprokit.harness import Harness

CHECK = "reprokit.check"
DEBUGGERS = {"--pdb": "usepdb", "--trace": "trace"}  # options of pytest, and their names there


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reprokit", "reprokit")
    group.addoption(
        "--reprokit-replays",
        type=_count,
        default=0,
        metavar="N",
        help="run a failing test N times more, with fixtures made anew, and say whether it is reproducible or flaky",
    )
    group.addoption(
        "--reprokit-out",
        type=Path,
        metavar="DIR",
        help="where the fixture reprokit_recorder writes incidents, a folder a test; by default below tmp_path",
    )


def _count(given: str) -> int:
    if not given.isdecimal():
        raise ArgumentTypeError(f"{given!r} is no number of replays; 14, all failing, support a rate of 80%")
    return int(given)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Summary(), "reprokit-summary")
    if asked := config.getoption("reprokit_replays"):
        if debugger := next((option for option, on in DEBUGGERS.items() if config.getoption(on, False)), None):
            raise pytest.UsageError(f"--reprokit-replays and {debugger}: each replay would stop there; choose one")
        replays = Replays(asked)
        config.pluginmanager.register(Instead(replays), "reprokit-instead")
        config.pluginmanager.register(replays, "reprokit-replays")  # the last is around all others


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What is checked meanwhile, in fixtures too, is a property of this test."""
    with told.listening(lambda fields: item.user_properties.append((CHECK, told.line(fields)))):
        return (yield)


@pytest.fixture
def reprokit_recorder(request: pytest.FixtureRequest) -> Iterator[Callable[..., Recorder]]:
    """reprokit_recorder(harness, build=build, config=config, ...) -> a `reprokit.Recorder`, closed when the test ends.

    Options are those of `reprokit.Recorder`, but for two defaults: incidents go to --reprokit-out or tmp_path, and no
    step is rehearsed, since that takes a fresh process. Incidents of a test that failed are named in pytest's summary.
    """
    made: list[Recorder] = []
    try:
        with ExitStack() as until_the_end:

            def make(harness: Harness, *, build: Callable[[Any], Harness], config: Any, **options: Any) -> Recorder:
                from reprokit.capture.recorder import Recorder

                options = {"rehearse": False, "entrypoint": _entrypoint(build, request.path)} | options
                if "out" not in options:
                    options["out"] = _out(request, until_the_end)
                recorder = Recorder(harness, build=build, config=config, **options)
                made.append(until_the_end.enter_context(recorder))
                return recorder

            yield make
    finally:
        for path in (path for recorder in made for path in recorder.incidents):
            request.node.user_properties.append((INCIDENT, str(path)))


def _entrypoint(build: Callable[..., Any], test: Path) -> str | None:
    """Of a build function in the test's own file, whose module has a name that only pytest imports it by."""
    from reprokit.capture.source import find_root

    file = Path(getattr(getattr(build, "__code__", None), "co_filename", ""))
    name = getattr(build, "__qualname__", "<")
    if file != test or "<" in name:
        return None
    return f"{file.resolve().relative_to(find_root(file)).as_posix()}:{name}"


def _out(request: pytest.FixtureRequest, until_the_end: ExitStack) -> Path:
    """A folder of this test's. A replay's goes with it: the incident of the failure itself is there."""
    if request.node.stash.get(REPLAYING, False):
        scratch = tempfile.mkdtemp(prefix="reprokit-replay-")
        until_the_end.callback(shutil.rmtree, scratch, ignore_errors=True)
        return Path(scratch)
    if (given := request.config.getoption("reprokit_out")) is None:
        return Path(request.getfixturevalue("tmp_path")) / "incidents"
    folder = "".join(one if one.isalnum() or one in "-_." else "-" for one in request.node.nodeid)
    return Path(given).absolute() / folder[-200:].strip("-.")


class Summary:
    """Verdicts and incidents of tests that failed, after pytest's own list of them; from reports, so with xdist too."""

    def __init__(self) -> None:
        self._failed: dict[str, list[tuple[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, [])
        if report.nodeid in self._failed:
            told_of = [
                (name, str(value)) for name, value in report.user_properties if name in (VERDICT, INCIDENT, NEXT)
            ]
            self._failed[report.nodeid] = list(dict.fromkeys(self._failed[report.nodeid] + told_of))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        known = {nodeid: properties for nodeid, properties in self._failed.items() if properties}
        if known:
            terminalreporter.section("reprokit")
        for nodeid, properties in known.items():
            terminalreporter.line(nodeid)
            for name, value in properties:
                word = "" if name == VERDICT else f"{name.removeprefix('reprokit.')}: "
                terminalreporter.line(f"  {word}{value}")
