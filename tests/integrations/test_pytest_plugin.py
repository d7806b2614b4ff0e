"""A failing test is run again and judged by the rule of replays, and stays failed; whatever passes costs nothing."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reprokit.replay.verdict import Tally, Verdict, judge

pytest_plugins = "pytester"

DOC = Path(__file__).parents[2] / "docs" / "checks.md"

PLUGIN = ["-p", "no:reprokit", "-p", "reprokit.integrations.pytest_plugin", "-p", "no:cacheprovider"]
COUNT = """
from pathlib import Path

def count(name):
    with Path(__file__).with_name(name + ".log").open("a+") as file:  # a process that dies keeps it
        file.write("x")
        file.seek(0)
        return len(file.read())
"""


@pytest.fixture
def ran(pytester):
    """ran(source, *options): what pytest said of a test file, which can count its runs."""

    def run(source, *options, process=False):
        pytester.makepyfile(counting=COUNT)
        path = pytester.makepyfile(test_it="import pytest\nfrom counting import count\n" + source)
        go = pytester.runpytest_subprocess if process else pytester.runpytest_inprocess
        pytester.syspathinsert(path.parent)
        sys.modules.pop("counting", None)
        return go(*PLUGIN, *options)

    return run


def told(result):
    """Verdicts and what follows, by test, from the summary."""
    lines = iter(result.outlines)
    for line in lines:
        if re.fullmatch("=+ reprokit =+", line):
            break
    found, name = {}, ""
    for line in lines:
        if line.startswith("="):
            break
        if line.startswith("  "):
            found[name].append(line.strip())
        else:
            name = line
            found[name] = []
    return found


def runs_of(pytester, name):
    path = pytester.path / f"{name}.log"
    return len(path.read_text()) if path.exists() else 0


def test_a_deterministic_failure_is_reproducible(ran, pytester):
    result = ran("def test_a():\n    count('a')\n    assert [1, 2] == [1, 3]\n", "--reprokit-replays", "14")
    result.assert_outcomes(failed=1)
    [verdict, advice] = told(result)["test_it.py::test_a"]
    assert verdict == "REPRODUCIBLE  14/14 failed: fails in at least 81% of attempts (95% confidence)"
    assert advice.startswith("next: ")
    assert runs_of(pytester, "a") == 15


@pytest.mark.parametrize("every", [2, 3, 7])
def test_a_failure_that_comes_and_goes_is_flaky(ran, every):
    result = ran(f"def test_a():\n    assert count('a') % {every} != 1\n", "--reprokit-replays", "14")
    result.assert_outcomes(failed=1)
    fails = sum(n % every == 1 for n in range(2, 16))
    [verdict, _] = told(result)["test_it.py::test_a"]
    assert re.fullmatch(
        rf"FLAKY  {fails}/14 failed as captured, {14 - fails} passed: fails in \d+% to \d+% of attempts .*", verdict
    )


def test_a_failure_that_never_comes_again_is_not_reproduced(ran):
    result = ran("def test_a():\n    assert count('a') != 1\n", "--reprokit-replays", "5")
    result.assert_outcomes(failed=1)
    [verdict, advice] = told(result)["test_it.py::test_a"]
    assert verdict.startswith("NOT_REPRODUCED  0/5 failed as captured, 5 passed: fails in fewer than 45% of attempts")
    assert "the tests that ran before it" in advice


def test_the_summary_is_as_in_the_docs(ran, pytester):
    source = "from counting import count\ndef test_order():\n    n = count('a')\n    assert n > 1 and n % 3 != 0\n"
    pytester.makepyfile(test_loader=source.replace("assert ", "healthy = ") + "    assert healthy\n")
    result = ran("", "--reprokit-replays", "14")
    [summary] = re.findall(r"^```\n(test_loader.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)
    name, *lines = summary.splitlines()
    assert told(result) == {name: [line.strip() for line in lines]}


OTHERWISE = """
def test_a():
    if count('a') % 2:
        raise ValueError("first")
    raise {other}
"""


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ("TypeError('first')", "FLAKY"),
        ("ValueError('second')", "FLAKY"),
        ("ValueError('first')", "REPRODUCIBLE"),
    ],
)
def test_another_failure_is_not_this_one(ran, other, verdict):
    [said, _] = told(ran(OTHERWISE.format(other=other), "--reprokit-replays", "4"))["test_it.py::test_a"]
    assert said.startswith(verdict)
    assert ("2 in another way" in said) == (verdict == "FLAKY")


def test_the_same_message_from_another_place_is_another_failure(ran):
    source = """
def one(): raise ValueError("x")
def two(): raise ValueError("x")
def test_a():
    one() if count('a') % 2 else two()
"""
    [said, _] = told(ran(source, "--reprokit-replays", "4"))["test_it.py::test_a"]
    assert said.startswith("FLAKY  2/4 failed as captured, 2 in another way")


def test_the_same_exception_in_another_phase_is_another_failure(ran):
    source = """
def fail(): raise ValueError("x")
@pytest.fixture
def sometimes():
    even = count("a") % 2 == 0
    if even: fail()
def test_a(sometimes): fail()
"""
    [said, _] = told(ran(source, "--reprokit-replays", "4"))["test_it.py::test_a"]
    assert said.startswith("FLAKY  2/4 failed as captured, 2 in another way (ValueError at setup")


def test_the_first_phase_that_fails_is_the_failure(ran):
    source = """
@pytest.fixture
def own():
    yield
    if count("a") == 1: raise RuntimeError("once")
def test_a(own): raise ValueError("always")
"""
    [said, _] = told(ran(source, "--reprokit-replays", "3"))["test_it.py::test_a"]
    assert said.startswith("REPRODUCIBLE  3/3 failed")


def test_numbers_and_addresses_in_a_message_do_not_make_it_another(ran):
    source = "def test_a():\n    raise ValueError(f'step {count(chr(97))} of {object()}')\n"
    [said, _] = told(ran(source, "--reprokit-replays", "3"))["test_it.py::test_a"]
    assert said.startswith("REPRODUCIBLE  3/3")


@pytest.mark.parametrize("period", range(1, 7))
def test_the_verdict_is_that_of_the_rule(ran, period):
    source = f"def test_a():\n    n = count('a')\n    healthy = n > 1 and n % {period} != 0\n    assert healthy\n"
    fail = sum(n % period == 0 for n in range(2, 8))
    [said, _] = told(ran(source, "--reprokit-replays", "6"))["test_it.py::test_a"]
    verdict = judge(Tally(fail=fail, other=6 - fail, asked=6))
    assert said.startswith(f"{verdict}  {fail}/6 failed")


FIXTURES = """
log = []

@pytest.fixture(scope="session")
def whole():
    log.append("session up"); yield [count("session")]; log.append("session down")

@pytest.fixture(scope="module")
def module(whole):
    log.append("module up"); yield []; log.append("module down")

@pytest.fixture
def own(module):
    log.append("up"); yield; log.append("down")

def test_before(module):
    module.append("dirt")

def test_a(own, module):
    if module == []:
        count("fresh")
    module.append("dirt")
    assert 0

def test_after(module, whole):
    assert module == [] and log.count("module up") == log.count("module down") + 1

def test_last():
    assert log[:6] == ["session up", "module up", "up", "down", "module down", "session down"]
    for what in ("up", "module up", "session up"):
        assert log.count(what) == (4 if what == "up" else 5), log
"""


def test_fixtures_of_every_scope_are_made_anew(ran, pytester):
    result = ran(FIXTURES, "--reprokit-replays", "3")
    result.assert_outcomes(passed=3, failed=1)
    assert runs_of(pytester, "fresh") == 3
    assert told(result)["test_it.py::test_a"][0].startswith("REPRODUCIBLE  3/3")


def test_a_failure_that_needs_what_the_test_before_left_is_not_reproduced(ran):
    source = """
@pytest.fixture(scope="module")
def shared(): return []
def test_before(shared): shared.append(1)
def test_a(shared): assert not shared
"""
    [said, advice] = told(ran(source, "--reprokit-replays", "3"))["test_it.py::test_a"]
    assert said.startswith("NOT_REPRODUCED") and "what they leave" in advice


CLASSES = """
import unittest

class TestPlain:
    def setup_method(self):
        self.made = getattr(self, "made", 0) + 1

    def test_a(self):
        self.seen = getattr(self, "seen", 0) + 1
        assert self.seen != 1 or self.made != 1

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_b(self, n):
        assert n != 2

class TestUnit(unittest.TestCase):
    def setUp(self):
        self.made = getattr(self, "made", 0) + 1

    def test_c(self):
        self.assertNotEqual(self.made, 1)
"""


def test_each_attempt_has_a_fresh_instance(ran):
    result = ran(CLASSES, "--reprokit-replays", "3")
    result.assert_outcomes(passed=2, failed=3)
    verdicts = {name: said[0][:17] for name, said in told(result).items()}
    names = ["TestPlain::test_a", "TestPlain::test_b[2]", "TestUnit::test_c"]
    assert verdicts == {f"test_it.py::{name}": "REPRODUCIBLE  3/3" for name in names}


UNTROUBLED = """
def test_pass(): count("pass")

@pytest.mark.skip
def test_skip(): count("skip")

def test_skips_itself():
    count("skips")
    pytest.skip("not here")

@pytest.mark.xfail
def test_xfail():
    count("xfail")
    assert 0

@pytest.mark.xfail(strict=False)
def test_xpass(): count("xpass")
"""


def test_what_does_not_fail_runs_once(ran, pytester):
    result = ran(UNTROUBLED, "--reprokit-replays", "3")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1, xpassed=1)
    assert told(result) == {}
    assert {name: runs_of(pytester, name) for name in ("pass", "skip", "skips", "xfail", "xpass")} == {
        "pass": 1, "skip": 0, "skips": 1, "xfail": 1, "xpass": 1,
    }  # fmt: skip


def test_an_unexpected_pass_is_judged_as_the_failure_that_it_is(ran):
    source = "@pytest.mark.xfail(strict=True)\ndef test_a():\n    assert count('a') % 2\n"
    result = ran(source, "--reprokit-replays", "4")
    result.assert_outcomes(failed=1)
    assert told(result)["test_it.py::test_a"][0].startswith("FLAKY  2/4 failed as captured, 2 passed")


def test_failures_of_fixtures_are_judged_too(ran):
    source = """
@pytest.fixture
def bad(): raise RuntimeError("up")
@pytest.fixture
def worse():
    yield
    raise RuntimeError("down")
def test_up(bad): pass
def test_down(worse): pass
"""
    result = ran(source, "--reprokit-replays", "3")
    result.assert_outcomes(passed=1, errors=2)
    assert all(said[0].startswith("REPRODUCIBLE  3/3") for said in told(result).values())
    assert len(told(result)) == 2


def test_an_attempt_that_skips_is_not_counted(ran):
    source = "def test_a():\n    if count('a') > 3: pytest.skip('gone')\n    assert 0\n"
    result = ran(source, "--reprokit-replays", "4")
    result.assert_outcomes(failed=1)
    said = told(result)["test_it.py::test_a"][0]
    assert said.startswith("INCONCLUSIVE  2 of 4 attempts usable, 2/2 failed") and "gone" in said


def test_subtests_are_left_alone(ran, pytester):
    source = """
def test_a(subtests):
    count("a")
    with subtests.test("one"):
        assert 0
"""
    result = ran(source, "--reprokit-replays", "3")
    assert runs_of(pytester, "a") == 1
    assert told(result)["test_it.py::test_a"] == [
        "not replayed: its subtests report for themselves; parametrize it instead"
    ]


INTERRUPTED = """
def test_a():
    if count("a") == 4:
        raise KeyboardInterrupt
    assert 0

def test_b(): count("b")
"""


@pytest.mark.slow
def test_who_interrupts_learns_what_is_known(ran, pytester):
    result = ran(INTERRUPTED, "--reprokit-replays", "14", process=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(failed=1)
    [said, _] = told(result)["test_it.py::test_a"]
    assert said == (
        "INCONCLUSIVE  interrupted after 2 of 14 attempts, 2/2 failed: fails in at least 22% of attempts "
        "(95% confidence)"
    )
    assert runs_of(pytester, "b") == 0


@pytest.mark.slow
def test_who_interrupts_between_the_run_and_its_replays_is_heard(ran):
    source = """
@pytest.fixture(scope="module")
def shared():
    yield
    raise KeyboardInterrupt
def test_a(shared): assert 0
def test_b(): pass
"""
    result = ran(source, "--reprokit-replays", "3", process=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(failed=1)
    assert told(result)["test_it.py::test_a"][0] == "INCONCLUSIVE  interrupted after 0 of 3 attempts"


@pytest.mark.slow
def test_interrupted_in_the_first_run_it_ends_as_always(ran):
    result = ran("def test_a():\n    raise KeyboardInterrupt\n", "--reprokit-replays", "3", process=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.slow
def test_it_works_with_xdist(ran):
    source = CLASSES + "def test_flaky():\n    assert count('f') % 2 == 0\n" + UNTROUBLED
    result = ran(source, "--reprokit-replays", "4", "-n", "2", process=True)
    result.assert_outcomes(passed=3, failed=4, skipped=2, xfailed=1, xpassed=1)
    found = told(result)
    assert found["test_it.py::test_flaky"][0].startswith("FLAKY  2/4")
    assert len(found) == 4


def test_the_report_carries_the_verdict(ran, pytester):
    ran("def test_a():\n    assert 0\ndef test_b(): pass\n", "--reprokit-replays", "3", "--junitxml", "j.xml")
    of = {case.get("name"): case for case in ElementTree.parse(pytester.path / "j.xml").iter("testcase")}
    properties = {one.get("name"): one.get("value") for one in of["test_a"].iter("property")}
    assert properties["reprokit.verdict"].startswith("REPRODUCIBLE  3/3")
    assert len(list(of["test_a"].iter("failure"))) == 1
    assert not list(of["test_b"].iter("property"))


def test_attempts_leave_nothing_on_the_report(ran, pytester):
    source = """
def test_a(record_property):
    record_property("run", count("a"))
    print("printed", count("b"))
    assert 0
"""
    result = ran(source, "--reprokit-replays", "3", "--junitxml", "j.xml")
    runs = [one for one in ElementTree.parse(pytester.path / "j.xml").iter("property") if one.get("name") == "run"]
    assert [one.get("value") for one in runs] == ["1"]
    assert [line for line in result.outlines if line.startswith("printed")] == ["printed 1"]


def test_other_plugins_are_around_each_attempt_by_itself(ran, pytester):
    """As that of timeouts is: time for one run is not shared by fifteen."""
    pytester.makeconftest("""
import pytest
depth, log = 0, []
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    global depth
    depth += 1
    assert depth == 1
    log.append(item.name)
    try:
        return (yield)
    finally:
        depth -= 1
def pytest_sessionfinish():
    print("protocols", len(log))
""")
    result = ran("def test_a():\n    assert 0\n", "--reprokit-replays", "5", "-s")
    assert any("protocols 6" in line for line in result.outlines)


def test_what_another_plugin_runs_is_left_to_it(ran, pytester):
    pytester.makeconftest("""
import pytest
from _pytest.runner import runtestprotocol
class First:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        runtestprotocol(item, nextitem=nextitem)
        return True
def pytest_sessionstart(session):
    session.config.pluginmanager.register(First())
""")
    result = ran("def test_a():\n    count('a')\n    assert 0\n", "--reprokit-replays", "3")
    result.assert_outcomes(failed=1)
    assert runs_of(pytester, "a") == 1 and told(result) == {}


def test_the_first_failure_ends_the_session_where_that_is_asked_for(ran, pytester):
    source = "def test_a():\n    assert 0\ndef test_b(): count('b')\n"
    result = ran(source, "--reprokit-replays", "3", "-x")
    result.assert_outcomes(failed=1)
    assert runs_of(pytester, "b") == 0 and "REPRODUCIBLE" in result.stdout.str()


def test_without_the_option_nothing_is_run_again(ran, pytester):
    result = ran("def test_a():\n    count('a')\n    assert 0\n")
    result.assert_outcomes(failed=1)
    assert runs_of(pytester, "a") == 1 and told(result) == {}


def test_nor_is_it_where_no_replays_are_asked_for(ran, pytester):
    result = ran("def test_a():\n    count('a')\n    assert 0\n", "--reprokit-replays", "0")
    assert runs_of(pytester, "a") == 1 and told(result) == {}


def test_that_it_failed_is_said_before_it_runs_again(ran):
    """An attempt may hang or die, and nothing else was reported yet."""
    source = "def test_a():\n    print('run', count('a'))\n    assert [1, 2] == [1, 3]\n"
    lines = ran(source, "--reprokit-replays", "2", "-s").outlines
    said = "test_it.py::test_a failed at call (assert [1, 2] == [1, 3]); running it 2 times more"
    places = [next(i for i, line in enumerate(lines) if one in line) for one in ("run 1", said, "run 2", "run 3")]
    assert places == sorted(places)


@pytest.mark.parametrize("options", [[], ["-v"], ["-q"], ["-qq"]])
def test_and_on_a_line_of_its_own(ran, options):
    source = "def test_a(): pass\ndef test_b(): assert 0\ndef test_c(): assert 0\n"
    lines = ran(source, "--reprokit-replays", "1", *options).outlines
    for name in "bc":
        assert f"test_it.py::test_{name} failed at call (assert 0); running it once more" in lines


LEAVES = """
import os, threading, time
def test_a():
    if count("a") > 1:
        {leave}
    assert 0
def test_b(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 7])
def test_an_attempt_that_ends_the_process_is_another_failure(ran, status):
    result = ran(LEAVES.format(leave=f"os._exit({status})"), "--reprokit-replays", "3", process=True)
    result.assert_outcomes(failed=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    [said, _] = told(result)["test_it.py::test_a"]
    assert said.startswith("NOT_REPRODUCED  0/3 failed as captured, 3 in another way (SystemExit at call")


@pytest.mark.slow
def test_a_thread_that_ends_the_process_makes_no_success_of_it(ran):
    leave = "threading.Thread(target=os._exit, args=[0]).start(); time.sleep(60)"
    result = ran(LEAVES.format(leave=leave), "--reprokit-replays", "3", process=True)
    assert result.ret == 1 and "test_it.py::test_a failed at call (assert 0)" in result.stdout.str()


@pytest.mark.slow
def test_a_process_that_a_test_forks_leaves_as_it_likes(ran):
    leave = "child = os.fork() or os._exit(5); assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5"
    result = ran(LEAVES.format(leave=leave), "--reprokit-replays", "3", process=True)
    assert told(result)["test_it.py::test_a"][0].startswith("REPRODUCIBLE  3/3")


@pytest.mark.slow
def test_an_attempt_that_hangs_is_ended_by_its_timeout(ran):
    source = LEAVES.format(leave="time.sleep(600)")
    result = ran(source, "--reprokit-replays", "1", "--timeout", "10", process=True)  # the first run has its time, too
    result.assert_outcomes(failed=1, passed=1)
    assert "1 in another way" in told(result)["test_it.py::test_a"][0]


DOCTEST = '''
def even():
    """
    >>> even()
    True
    """
    return count("doctest") % 2 == 0
'''


def test_a_doctest_knows_its_names_again(ran, pytester):
    result = ran(DOCTEST, "--reprokit-replays", "4", "--doctest-modules")
    assert told(result)["test_it.py::test_it.even"][0].startswith("FLAKY  2/4 failed as captured, 2 passed")
    assert runs_of(pytester, "doctest") == 5


UNIT = """
import unittest

class TestUnit(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.made = count("class")
    @classmethod
    def tearDownClass(cls): del cls.made
    def test_a(self): self.assertEqual(self.made, 0)

class TestBroken(unittest.TestCase):
    def setUp(self): raise RuntimeError("up")
    def test_b(self): pass

class TestLate(unittest.TestCase):
    def tearDown(self): raise RuntimeError("down")
    def test_c(self): pass

class TestWhole(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class")
    def test_d(self): pass

class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def test_e(self): self.assertTrue(False)

async def test_f(): pass
"""


def test_unit_tests_are_judged_as_all_others(ran, pytester):
    result = ran(UNIT, "--reprokit-replays", "3")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    verdicts = {name.rpartition("::")[2]: said[0][:17] for name, said in told(result).items()}
    assert verdicts == {f"test_{letter}": "REPRODUCIBLE  3/3" for letter in "abcdef"}
    assert runs_of(pytester, "class") == 4


def test_fixtures_of_a_class_are_made_anew(ran, pytester):
    source = """
class TestA:
    @pytest.fixture(scope="class", autouse=True)
    def made(self, request):
        request.cls.number = count("made")
        yield
        del request.cls.number
    @pytest.mark.parametrize("n", [0, -1])
    def test_a(self, n): assert self.number == n
"""
    result = ran(source, "--reprokit-replays", "2")
    result.assert_outcomes(failed=2)
    assert all(said[0].startswith("REPRODUCIBLE  2/2") for said in told(result).values())
    assert runs_of(pytester, "made") == 1 + 2 + 1 + 2


@pytest.mark.slow
def test_a_failure_is_the_last_one_for_pytest_too(ran, pytester):
    source = "def test_a(): count('a')\ndef test_b():\n    count('b')\n    assert 0\n"
    kept = ["-p", "cacheprovider", "--reprokit-replays", "2"]
    ran(source, *kept, process=True).assert_outcomes(passed=1, failed=1)
    ran(source, *kept, "--lf", process=True).assert_outcomes(failed=1)
    assert (runs_of(pytester, "a"), runs_of(pytester, "b")) == (1, 6)


@pytest.mark.slow
def test_what_a_node_of_xdist_found_is_in_junit(ran, pytester):
    source = "import os\ndef test_a(): assert 0\ndef test_b():\n    os._exit(0)\n"
    ran(source, "--reprokit-replays", "3", "-n", "2", "--junitxml", "j.xml", process=True)
    of = {case.get("name"): case for case in ElementTree.parse(pytester.path / "j.xml").iter("testcase")}
    properties = {one.get("name"): one.get("value") for one in of["test_a"].iter("property")}
    assert properties["reprokit.verdict"].startswith("REPRODUCIBLE  3/3")
    assert "crashed" in ElementTree.tostring(of["test_b"], "unicode")


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--reprokit-replays", "3"]])
def test_where_torch_does_not_import_tests_are_run_and_judged(ran, pytester, options):
    pytester.makepyfile(torch="raise ImportError('libcudart.so is missing')")
    result = ran("def test_a():\n    assert 0\n", *options, process=True)
    result.assert_outcomes(failed=1)
    assert ("REPRODUCIBLE  3/3" in result.stdout.str()) == bool(options)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["-1", "many", "1.5"])
def test_a_number_of_replays_is_a_number(ran, given):
    result = ran("def test_a(): pass\n", f"--reprokit-replays={given}", process=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "is no number of replays" in result.stderr.str()


@pytest.mark.slow
@pytest.mark.parametrize("debugger", ["--pdb", "--trace"])
def test_replays_and_a_debugger_do_not_go_together(ran, debugger):
    result = ran("def test_a(): pass\n", "--reprokit-replays=3", debugger, process=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and f"{debugger}: each replay" in result.stderr.str()


CHECKED = """
from reprokit import checks
ABOUT = checks.About(dataset="clips", seed=7, version="v1")

@pytest.fixture
def looked():
    checks.check(checks.exact("shape", (1, 2), (1, 2)), ABOUT)

def test_a(looked):
    checks.check(checks.at_least("accuracy", 0.95, 0.9, n=40), ABOUT)

def test_b():
    checks.check(checks.at_least("accuracy", 0.85, 0.9, n=40), ABOUT)

def test_c(): pass
"""


@pytest.mark.parametrize("options", [[], ["--reprokit-replays", "3"]])
def test_what_checks_observed_is_in_junit_on_success_too(ran, pytester, options):
    import json

    result = ran(CHECKED, *options, "--junitxml", "j.xml")
    result.assert_outcomes(passed=2, failed=1)
    of = {
        case.get("name"): [json.loads(one.get("value")) for one in case.iter("property") if "check" in one.get("name")]
        for case in ElementTree.parse(pytester.path / "j.xml").iter("testcase")
    }
    assert [(one["check"], one["answer"]) for one in of["test_a"]] == [("shape", "PASSED"), ("accuracy", "PASSED")]
    assert of["test_a"][1]["measured"]["accuracy"] == 0.95 and of["test_a"][1]["n"] == 40
    assert [(one["check"], one["answer"]) for one in of["test_b"]] == [("accuracy", "FAILED")]
    assert of["test_c"] == []
    assert any("accuracy >= 0.9" in line for line in result.outlines)  # the message, in the failure


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--reprokit-replays", "3"]])
def test_the_plugin_imports_no_library(ran, monkeypatch, options):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' do as they like
    source = """
import sys
BEFORE = {"torch", "numpy", "scipy", "safetensors", "yaml", "docker", "rich"} & set(sys.modules)
def test_a():
    assert not BEFORE
    assert 0
"""
    result = ran(source, *options, process=True)
    assert "assert 0" in result.stdout.str()
    after = (
        "import sys, reprokit.integrations.pytest_plugin\n"
        "sys.exit(' '.join({'torch', 'numpy', 'reprokit.checks.equal', 'reprokit.replay'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", after], check=True, timeout=60)


def test_pytest_finds_it_by_itself():
    [point] = [one for one in entry_points(group="pytest11") if one.value.startswith("reprokit.")]
    assert (point.name, point.value) == ("reprokit", "reprokit.integrations.pytest_plugin")


TRAINS = """
import torch
import reprokit

def build(config):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    step = lambda batch: {"loss": net(batch["x"]).pow(2).sum()}
    return reprokit.Harness(
        modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), 0.1), step=step, layout={"x": "b d"}
    )

def test_trains(reprokit_recorder):
    recorder = reprokit_recorder(build({}), build=build, config={})
    for x in (torch.ones(3, 2), torch.full((3, 2), float("nan"))):
        recorder.step({"x": x})

def test_expects_it(reprokit_recorder):
    recorder = reprokit_recorder(build({}), build=build, config={})
    with pytest.raises(reprokit.IncidentCaptured):
        recorder.step({"x": torch.full((3, 2), float("nan"))})
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", [[], ["--reprokit-out", "kept"]])
def test_a_step_that_fails_in_a_test_leaves_an_incident_that_replays(ran, pytester, place):
    from reprokit.incident import Incident
    from reprokit.step.case import Case
    from reprokit.step.outcome import Status
    from reprokit.step.worker import Worker

    result = ran(TRAINS, *place, "--reprokit-replays", "3", "--basetemp", str(pytester.path / "base"), process=True)
    result.assert_outcomes(failed=1, passed=1)
    found = told(result)
    said = {line.partition(" ")[0]: line for line in found.pop("test_it.py::test_trains")}
    assert not found and len(said) == 3
    path = Path(said["incident:"].partition(" ")[2])
    assert said["next:"] == f"next: reprokit replay {path}"
    assert said["REPRODUCIBLE"].startswith("REPRODUCIBLE  3/3 failed")
    kept = pytester.path / ("kept" if place else "base")
    assert path.is_relative_to(kept)
    assert len(list(kept.rglob("incident.json"))) == 2  # of the failure and of what the other test expects; no replay's
    with Worker(Incident.open(path)) as worker:
        assert worker.evaluate(Case(incident=path), "process", timeout=120).status is Status.FAIL


def test_the_rule_has_the_verdicts_that_are_tested_here():
    assert {"REPRODUCIBLE", "FLAKY", "NOT_REPRODUCED", "INCONCLUSIVE"} == set(Verdict)
