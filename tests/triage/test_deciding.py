"""What a round of attempts makes of factors and of changed experiments; the engines here are laws, not processes."""

import random
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.replay.engines.base import Engine
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status
from reprokit.triage.changes import Change
from reprokit.triage.deciding import decide
from reprokit.triage.difference import difference
from reprokit.triage.factors import Factor, Seen, known
from reprokit.triage.table import tabulate
from reprokit.triage.trials import Setting, Tally, Trials

HERE = Case(incident=Path("here"))
SIGNATURE = Signature(kind=Kind.NONFINITE_LOSS, where="loss")


class Law(Engine):
    """Answers with what a function says of a case: a status, or how likely it fails."""

    name, capacity = "law", 3

    def __init__(self, law, seed=0):
        self.law, self.asked, self.random = law, [], random.Random(seed)

    def submit(self, case):
        self.asked.append(case)
        answer = self.law(case)
        if not isinstance(answer, str):
            answer = Status.FAIL if self.random.random() < answer else Status.PASS
        future = Future()
        detail = "why\nthe last line" if answer in ("INVALID", "INFRA") else ""
        signature = SIGNATURE if answer in ("FAIL", "OTHER") else None
        future.set_result(Outcome(status=Status(answer), signature=signature, detail=detail))
        return future


def setting(label, **env):
    return Setting(label=label, case=Case(incident=HERE.incident, variant=Variant(name=label, env=env)))


def factor(name, values="abc"):
    return Factor(name=name, what=name, settings=tuple(setting(f"{name} {one}", **{name: one}) for one in values))


def rate(by):
    """How likely a case fails, by its variables."""
    return lambda case: next((by[one] for one in case.variant.env.items() if one in by), by[None])


def found(law, *factors, n=6, steady=False, seed=0):
    return decide(Trials(Law(law, seed)), factors, n, steady=steady)


def test_the_factor_that_decides_is_found_among_others_with_its_values():
    law = rate({("y", "a"): 1.0, ("y", "b"): 0.0, ("y", "c"): 0.0, None: 0.5})
    for seed in range(20):
        none, decides, other = found(law, factor("x"), factor("y"), factor("z"), seed=seed)
        assert decides.decides and decides.contrast.controls and not none.decides and not other.decides
        contrast = decides.contrast
        assert contrast.most.label == "y a" and contrast.least.label in ("y b", "y c")
        assert (contrast.fails.fail, contrast.stays_away.fail) == (6, 0)


def test_a_factor_that_changes_the_rate_is_no_control():
    law = rate({("x", "a"): 0.97, ("x", "b"): 0.03, None: 0.5})
    contrasts = [found(law, factor("x", "ab"), n=14, seed=seed)[0].contrast for seed in range(20)]
    decided = [contrast for contrast in contrasts if contrast and contrast.decides]
    assert len(decided) > 15 and any(not contrast.controls for contrast in decided)


def test_where_nothing_decides_something_is_named_in_at_most_one_of_twenty():
    wrong = 0
    for seed in range(300):
        law = rate({None: random.Random(seed).choice([0.3, 0.5, 2 / 3, 0.9])})
        wrong += any(one.decides for one in found(law, *(factor(f"f{i}") for i in range(8)), seed=seed))
    assert wrong / 300 <= 0.05


def test_a_case_that_always_fails_costs_one_attempt_a_value():
    engine = Law(lambda case: "FAIL")
    [finding] = decide(Trials(engine), [factor("x", "abcd")], 6, steady=True)
    assert len(engine.asked) == 4 and finding.contrast is None


def test_settings_take_turns():
    engine = Law(lambda case: "FAIL")
    Trials(engine).ask(factor("x", "abc").settings, 2)
    assert [case.variant.env["x"] for case in engine.asked] == ["a", "b", "c", "a", "b", "c"]


def test_what_cannot_run_says_why_and_is_left_out():
    law = lambda case: "INVALID" if case.variant.env["x"] != "a" else "FAIL"
    [finding] = found(law, factor("x"))
    assert finding.why_not == "the last line" and not finding.decides
    [finding] = found(lambda case: "INVALID" if case.variant.env["x"] == "c" else "FAIL", factor("x"))
    assert not finding.why_not and [tally.n for tally in finding.tallies] == [3, 3, 0]


def test_what_the_machinery_spoils_is_made_up_for_and_capped():
    spoiled = iter(["INFRA"] * 2)
    [tally] = Trials(Law(lambda case: next(spoiled, "FAIL"))).ask([setting("x")], 3)
    assert (tally.n, len(tally.spoiled)) == (3, 2)
    engine = Law(lambda case: "INFRA")
    with pytest.raises(Infrastructure, match="the last line"):
        Trials(engine).ask([setting("x")], 3)
    assert len(engine.asked) < 8


def test_an_error_that_the_user_can_mend_is_theirs():
    class Refuses(Law):
        def submit(self, case):
            raise BadInput("mend this")

    with pytest.raises(BadInput, match="mend this"):
        Trials(Refuses(None)).ask([setting("x")], 3)


def test_a_quiet_host_has_one_attempt_at_a_time():
    running, most = [], []

    class Slow(Law):
        def submit(self, case):
            running.append(case)
            most.append(len(running))
            future = super().submit(case)
            running.remove(case)
            return future

    Trials(Slow(lambda case: "FAIL")).ask([Setting(label="x", case=HERE, host="alone")], 3)
    assert most == [1, 1, 1]


def change(changed, **fields):
    case = Case(incident=HERE.incident, variant=Variant(name=changed, env={"x": changed}))
    return Change(changed=changed, case=case, passes="passes", fails="fails", suggests="try it", **fields)


def base(fail=6, n=6):
    return Tally(outcomes=[Outcome(status=Status.FAIL)] * fail + [Outcome(status=Status.PASS)] * (n - fail))


def test_a_suggestion_needs_replays_that_support_it():
    law = rate({("x", "cures"): 0.0, ("x", "not"): 1.0, ("x", "sometimes"): 0.5, None: 1.0})
    for seed in range(20):
        cures, fails, sometimes = tabulate(
            Trials(Law(law, seed)), [change("cures"), change("not"), change("sometimes")], 6, base()
        )
        assert (cures.outcome, cures.follows, cures.suggestion) == ("passes 6/6", "passes", "try it")
        assert (fails.outcome, fails.follows, fails.suggestion) == ("fails 1/1", "fails", "")
        assert sometimes.cured == (sometimes.tally.passed == sometimes.tally.n == 6)


def test_what_only_brings_another_failure_is_no_cure():
    [row] = tabulate(Trials(Law(lambda case: "OTHER")), [change("x")], 6, base())
    assert row.outcome == "fails in another way 6/6" and "another: nonfinite_loss at loss" in row.follows
    assert not row.suggestion and row.supported


def test_too_few_attempts_say_nothing():
    [row] = tabulate(Trials(Law(lambda case: "PASS")), [change("x")], 3, base(3, 3))
    assert row.follows.startswith("nothing: too few") and not row.suggestion


def test_a_change_over_earlier_steps_is_compared_with_those():
    over = Case(incident=HERE.incident, rewind=2)
    engine = Law(lambda case: "PASS")
    [row] = tabulate(Trials(engine), [change("x", beside=over)], 6, base())
    assert "does not lead to the failure" in row.why_not and len(engine.asked) == 6
    engine = Law(lambda case: "FAIL" if case == over else "PASS")
    rows = tabulate(Trials(engine), [change("x", beside=over), change("y", beside=over)], 6, base())
    assert all(row.cured for row in rows) and engine.asked.count(over) == 6


def outcome(*operations):
    return Outcome(status=Status.PASS, operations=operations)


def test_two_attempts_part_where_the_first_value_or_the_way_differs():
    one, other = outcome(("a", "1"), ("b", "2"), ("c", "3")), outcome(("a", "1"), ("b", "9"), ("c", "9"))
    parted = difference(one, other, ("here", "there"))
    assert (parted.operation, parted.index, parted.same_way) == ("b", 1, True)
    assert "here and there part after 1 operation with equal values: b makes another value" in parted.sentence()
    parted = difference(one, outcome(("a", "1"), ("d", "2")), ("here", "there"))
    assert (parted.operation, parted.index, parted.same_way) == ("b", 1, False)
    assert difference(one, outcome(("a", "1")), ("here", "there")).operation == "b"
    same = difference(one, one, ("here", "there"))
    assert same.operation is None and "outside of tensors" in same.sentence()
    assert difference(one, outcome(), ("here", "there")) is None


def incident(flags=(), variables=()):
    described = {"threads": 2, "device": "cpu", "harness_autocast": None, **dict(flags)}
    return SimpleNamespace(flags=lambda: described, variables=lambda: dict(variables))


SEEN = Seen(random=True, compiled=False, engine="process")


def test_every_factor_has_two_values_or_a_reason():
    gpu = incident({"device": "cuda:0", "harness_autocast": "bf16"})
    for seen in (SEEN, Seen(random=False, compiled=True, engine="inline", forks="no forks")):
        for factors in (known(incident(), HERE, seen), known(gpu, HERE, seen)):
            assert [one.name for one in factors] == [
                "rng", "hashseed", "threads", "deterministic", "tf32", "cudnn-benchmark", "autocast", "compile",
                "workers", "process", "load", "clock",
            ]  # fmt: skip
            assert all(one.why_not or len(one.settings) > 1 for one in factors)
            for one in factors:
                places = [(str(at.case.to_json()), at.host, at.forked) for at in one.settings]
                assert len(set(places)) == len(places), one.name


def test_what_needs_a_gpu_or_a_process_of_its_own_says_so():
    reasons = {one.name: one.why_not for one in known(incident(), HERE, Seen(random=False, compiled=True,
                                                                             engine="inline"))}  # fmt: skip
    assert "CPU" in reasons["tf32"] and "CPU" in reasons["cudnn-benchmark"] and "draws nothing" in reasons["rng"]
    assert "inline" in reasons["hashseed"] and "inline" in reasons["compile"] and "loader" in reasons["workers"]
    settings = {one.name: one.settings for one in known(incident(variables={"PYTHONHASHSEED": "7"}), HERE, SEEN)}
    assert settings["hashseed"][0].case.variant.env == {"PYTHONHASHSEED": "7"}
