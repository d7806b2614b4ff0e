"""Several checks as one.

Whatever cannot be answered makes the whole UNANSWERED, also where another part would decide: what was not asked is no
pass. Of statistical tests alpha is the chance that one of them fails although nothing is wrong; of k of them at once
some fails with up to k times that. `all_of` therefore corrects their p-values (Holm 1979, which assumes nothing of how
they hang together): the chance that a sound model fails as a whole stays below alpha. `any_of` needs no correction: it
fails only where each part does, and its p-value is the largest (the intersection-union test, Berger 1982). What is
checked in separate tests, or again with each commit, is not corrected: that is many looks, each with its own alpha.

`not_` passes on evidence: negated, alpha is the chance of a pass by luck. Such a part is not corrected, since all of
several must hold anyway, and each by itself is seldom luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reprokit.checks.result import Answer, Result, checked_result
from reprokit.errors import BadInput
from reprokit.triage.exact import holm

_NOT = {
    Answer.PASSED: Answer.FAILED,
    Answer.FAILED: Answer.PASSED,
    Answer.UNANSWERED: Answer.UNANSWERED,
}
_ALL, _ANY = "all of", "any of"


def all_of(*results: Result) -> Result:
    """Passes where each part does; statistical tests among them are corrected for their number (Holm 1979).

    n: of the smallest part. Raises BadInput for no parts, for what is no result, and for tests of unlike alpha.
    """
    parts = _flat(_ALL, results)
    alpha, tests = _common_alpha(_ALL, parts), _p_values(parts)
    parts = _corrected(parts)
    if any(part.p_value is None and part.answer is Answer.FAILED for part in parts):
        tests = []  # decided, whatever they say
    failed = any(part.answer is Answer.FAILED for part in parts)
    return _combined(
        _ALL,
        parts,
        Answer.FAILED if failed else Answer.PASSED,
        p_value=min(1.0, len(tests) * min(tests)) if tests else None,
        least_p=min([len(tests) * part.least_p for part in parts if part.p_value is not None], default=0.0),
        alpha=alpha,
    )


def any_of(*results: Result) -> Result:
    """Passes where one part does, if all could be answered; the p-value is the largest (Berger 1982). Raises BadInput
    as `all_of` does."""
    parts = _flat(_ANY, results)
    alpha, tests = _common_alpha(_ANY, parts), _p_values(parts)
    if any(part.p_value is None and part.answer is Answer.PASSED for part in parts):
        tests = []
    passed = any(part.answer is Answer.PASSED for part in parts)
    return _combined(
        _ANY,
        parts,
        Answer.PASSED if passed else Answer.FAILED,
        p_value=max(tests, default=None),
        least_p=max([part.least_p for part in parts if part.p_value is not None], default=0.0),
        alpha=alpha,
    )


def not_(result: Result) -> Result:
    """Passes where the result failed. What could not be answered stays so. Raises BadInput for what is no result."""
    answer = _NOT[checked_result("not", result).answer]
    turned = f"what should not hold does; see whether {result.name} is what it was, then why it no longer fails"
    return Result(
        name=f"not {result.name}",
        condition=f"not ({result.condition})",
        expected=f"not ({result.expected})",
        observed=result.observed,
        n=result.n,
        unit=result.unit,
        answer=answer,
        next_step=result.next_step if answer is Answer.UNANSWERED else turned,
        limits=f"passes by luck with a probability of {result.alpha:g}" if result.alpha is not None else "",
        measured=result.measured,
        parts=result.parts,
    )


def _flat(kind: str, results: Sequence[Result]) -> list[Result]:
    """Of a combination of this kind its parts, which are then corrected for all of them."""
    if not results:
        raise BadInput(f"{kind}: no checks were given, and nothing passes by itself")
    checked = [checked_result(kind, one) for one in results]
    return [part for one in checked for part in (one.parts if one.kind == kind else [one])]


def _p_values(parts: Sequence[Result]) -> list[float]:
    return [part.p_value for part in parts if part.p_value is not None]


def _common_alpha(kind: str, parts: Sequence[Result]) -> float | None:
    """Of the tests among them. Raises BadInput where they do not agree on one."""
    alphas = {part.alpha for part in parts if part.p_value is not None}
    if len(alphas) > 1:
        said = ", ".join(f"{alpha:g}" for alpha in sorted(alpha for alpha in alphas if alpha is not None))
        raise BadInput(f"{kind}: its tests have alpha {said}; give them one, which is then that of the whole")
    return next(iter(alphas), None)


def _corrected(parts: Sequence[Result]) -> list[Result]:
    """Their p-values adjusted for how many they are; a test that can no longer fail is UNANSWERED."""
    tests = _p_values(parts)
    if len(tests) < 2:
        return list(parts)
    adjusted, done = iter(holm(tests)), []
    for part in parts:
        if part.p_value is None or part.alpha is None:
            done.append(part)
            continue
        p_value = next(adjusted)
        answer = Answer.FAILED if p_value < part.alpha else Answer.PASSED
        if answer is Answer.PASSED and len(tests) * part.least_p >= part.alpha:
            answer = Answer.UNANSWERED
        done.append(replace(part, corrected_p=p_value, answer=answer))
    return done


def _combined(
    kind: str, parts: Sequence[Result], answer: Answer, *, p_value: float | None, least_p: float, alpha: float | None
) -> Result:
    unanswered = [part for part in parts if part.answer is Answer.UNANSWERED]
    if unanswered:
        answer, p_value, least_p = Answer.UNANSWERED, None, 0.0
    smallest = min(parts, key=lambda part: part.n)
    blame = unanswered or [part for part in parts if part.answer is Answer.FAILED] or parts
    names = ", ".join(part.name for part in parts)
    return Result(
        name=f"{kind} {names}",
        condition=f"{'each' if kind == _ALL else 'one'} of {len(parts)} checks passes: {names}",
        expected=f"{'each' if kind == _ALL else 'one'} PASSED",
        observed=", ".join(f"{part.name} {part.answer}" for part in parts),
        n=smallest.n,
        unit=smallest.unit,
        answer=answer,
        next_step=f"{blame[0].name}: {blame[0].next_step}",
        p_value=p_value,
        least_p=least_p if p_value is not None else 0.0,
        alpha=alpha if p_value is not None else None,
        parts=tuple(parts),
        kind=kind,
    )
