from itertools import chain, cycle, repeat
from pathlib import Path
from threading import Event

import pytest

from reprokit.errors import Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.layout import Layout
from reprokit.reduce.isolation import settle
from reprokit.reduce.journal import Journal
from reprokit.reduce.moves import Part, weigher
from reprokit.reduce.oracle import FORWARD, Limits, Oracle, Spent
from reprokit.reduce.rules import Rules
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
GRAD = Signature(kind=Kind.NONFINITE_GRAD, where="backward")
ERROR = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", message="one sample")
WHOLE = Part.of(Path("incident"), {"b": tuple(range(4)), "t": tuple(range(8))})
FAIL, PASS = Outcome(status=Status.FAIL, signature=NAN), Outcome(status=Status.PASS)


def oracle(evaluate, captured=NAN, **options):
    return Oracle([evaluate], captured, lambda case: 0.5 if case.keep else 1.0, **options)


def answered(asking, oracle):
    """The value of a generator of questions."""
    try:
        case = next(asking)
        while True:
            case = asking.send(oracle.ask(case))
    except StopIteration as found:
        return found.value


def rules(twins=False):
    found = Rules(Kind.NONFINITE_LOSS, lambda keep: 0)
    found.twins = twins
    return found


def by_content(batch, twin):
    """The batch's content comes to one outcome, the donor's to another, whatever the shape."""
    return lambda case, isolation: twin if case.heal == ({},) or case.content == "donor" else batch


def test_equal_parts_are_equal_cases_and_cost_one_evaluation():
    asked = oracle(by_content(FAIL, PASS))
    part = WHOLE.drop_all_but("b", (2,))
    assert part.case() == WHOLE.drop_all_but("b", (1, 2)).drop_all_but("b", (2,)).heal("t", ()).case()
    assert answered(rules().fails(part), asked) and answered(rules().fails(part), asked) and asked.calls == 1


@pytest.mark.parametrize(
    ("batch", "twin", "verdict"),
    [
        (FAIL, PASS, Status.FAIL),
        (FAIL, FAIL, Status.INVALID),
        (Outcome(status=Status.OTHER, signature=ERROR), Outcome(status=Status.OTHER, signature=ERROR), Status.INVALID),
        (Outcome(status=Status.OTHER, signature=ERROR), PASS, Status.OTHER),
        (Outcome(status=Status.OTHER, signature=GRAD), Outcome(status=Status.OTHER, signature=GRAD), Status.OTHER),
        (Outcome(status=Status.INVALID), PASS, Status.INVALID),
        (PASS, FAIL, Status.PASS),
    ],
)
def test_what_the_twin_does_as_well_is_the_shape_s_doing(batch, twin, verdict):
    part = WHOLE.drop_all_but("b", (2,))
    assert answered(rules(twins=True).verdict(part), oracle(by_content(batch, twin))) is verdict


def test_healing_all_along_an_axis_of_every_entry_is_the_twin():
    whole = Part.of(Path("incident"), WHOLE.whole, frozenset("b")).drop_all_but("b", (1, 2))
    assert whole.heal("b", (1, 2)).case() == whole.twin() != whole.heal("b", (1,)).case()
    assert whole.heal("t", tuple(range(8))).case() != whole.twin()


def test_without_an_admitted_donor_no_twin_is_asked():
    asked = oracle(by_content(FAIL, FAIL))
    part = WHOLE.drop_all_but("b", (2,))
    assert answered(rules().verdict(part), asked) is Status.FAIL and asked.calls == 1


def test_cost_is_elements_times_how_far_the_step_ran():
    reached = Outcome(status=Status.PASS, fingerprint={"losses": "a", "gradients/model": "b"})
    part = WHOLE.drop_all_but("b", (2,))
    for captured, outcome, steps in [(NAN, PASS, 0.5 * FORWARD), (NAN, reached, 0.5), (GRAD, PASS, 0.5)]:
        asked = oracle(lambda case, isolation, outcome=outcome: outcome, captured)
        asked.ask(part.case())
        assert asked.cost == steps and asked.spent["isolation"].elements == 0.5


def test_an_accident_of_the_machinery_is_tried_again_and_a_fault_is_raised():
    broken = Outcome(status=Status.INFRA, detail="worker died\nof old age")
    answers = iter([broken, FAIL])
    assert oracle(lambda case, isolation: next(answers)).ask(WHOLE.case()) is FAIL
    with pytest.raises(Infrastructure, match="broke 2 times: worker died of old age") as error:
        oracle(lambda case, isolation: broken).ask(WHOLE.case())
    assert error.value.exit_code == 3


def test_a_budget_stops_questions_and_never_known_answers():
    asked = oracle(by_content(FAIL, PASS), limits=Limits(calls=1))
    assert asked.ask(WHOLE.case()) is asked.ask(WHOLE.case()) is FAIL
    with pytest.raises(Spent):
        asked.ask(WHOLE.drop_all_but("b", (2,)).case())


def test_a_donor_that_passes_only_in_a_fresh_process_decides_there():
    def run(case, isolation):
        return PASS if case.content == "donor" and isolation == "process" else FAIL

    case = WHOLE.case()
    found = settle(case, Case(incident=case.incident, content="donor"), run, NAN)
    assert found.level == "process" and found.batch_guilty is True and len(found.runs) == 2 + 2 + 3


def test_numbers_that_differ_between_fresh_processes_are_said_to():
    counter = iter(range(100))

    def run(case, isolation):
        if case.content == "donor":
            return PASS
        return Outcome(status=Status.FAIL, signature=NAN, fingerprint={"losses": str(next(counter))})

    case = WHOLE.case()
    found = settle(case, Case(incident=case.incident, content="donor"), run, NAN)
    assert found.level == "process" and not found.stable


@pytest.mark.parametrize("first", [[], [PASS, PASS]], ids=["seen to come and go", "not seen to come"])
@pytest.mark.parametrize(("third", "level"), [(PASS, "restore"), (FAIL, "process")])
def test_two_processes_that_agree_by_chance_do_not_make_each_question_cost_one(first, third, level):
    lightly, fresh = chain(first, cycle([FAIL, PASS])), chain([FAIL, FAIL, third], repeat(FAIL))

    def run(case, isolation):
        if case.content == "donor":
            return PASS
        return next(fresh if isolation == "process" else lightly)

    case = WHOLE.case()
    found = settle(case, Case(incident=case.incident, content="donor"), run, NAN)
    assert found.level == level and found.flaky == (level == "restore")


def test_weights_follow_each_tensor_s_own_axes():
    layout = Layout.parse({"global": "b t h", "local": "b v t h", "path": "b"})
    sizes = {"b": 2, "t": 4, "global.h": 10, "v": 3, "local.h": 5}
    weigh = weigher(layout, {axis: tuple(range(size)) for axis, size in sizes.items()}, {**sizes, "t": 2})
    total = 2 * 4 * 10 + 2 * 3 * 4 * 5 + 2
    case = lambda **keep: Case(incident=Path("incident"), keep=keep)
    assert weigh(case()) == 1
    assert weigh(case(v=(0,))) == (2 * 4 * 10 + 2 * 1 * 4 * 5 + 2) / total
    assert weigh(Case(incident=Path("incident"), content="donor")) == (2 * 2 * 10 + 2 * 3 * 2 * 5 + 2) / total


def interrupted(answer, **options):
    """What an evaluation comes to that ends after whoever asked was interrupted; and the cases that were tried."""
    began, ended, tries, futures = Event(), Event(), [], []

    def evaluate(case, isolation):
        tries.append(case)
        began.set()
        ended.wait()
        return answer

    def ask(asked):
        with asked:
            futures.append(asked._submit(asked._trial(WHOLE.case(), 0)))
            began.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(oracle(evaluate, **options))
    ended.set()
    return futures[0].result(), tries


def test_what_is_ended_is_not_tried_again():
    outcome, tries = interrupted(Outcome(status=Status.INFRA))  # as of a process that was killed
    assert outcome.status is Status.INFRA and len(tries) == 1


def test_who_is_interrupted_waits_for_no_evaluation_and_what_it_comes_to_is_no_answer(tmp_path):
    with Journal.open(tmp_path / "journal", {}) as journal:
        outcome, _ = interrupted(PASS, journal=journal)
        assert outcome is PASS and not journal.answers and journal.unanswered.total() == 1
