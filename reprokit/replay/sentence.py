"""What attempts came to, for people: counts first, then what they support, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from reprokit.failure import Signature
from reprokit.replay.draws import NAMES
from reprokit.replay.result import Replay, bits
from reprokit.replay.strata import HOST
from reprokit.replay.verdict import Verdict, at_most, attempts_for, percent, rate_at_least, rate_below
from reprokit.step.outcome import Outcome, Status

_SAID = NAMES | {HOST: "host", "rng": "RNG"}


def sentence(replay: Replay) -> str:
    """In one line. The verdict itself stands before it."""
    if replay.stopped == "interrupted" and replay.n < replay.asked:
        return f"interrupted after {replay.n} of {replay.asked} attempts{_so_far(replay)}"
    match replay.verdict:
        case Verdict.REPRODUCIBLE:
            return f"{_counts(replay)}: {_supported(replay)}"
        case Verdict.FLAKY:
            return f"{_counts(replay)}: {_sometimes(replay)}"
        case Verdict.NOT_REPRODUCED:
            return f"{_counts(replay)}: {_gone(replay)}{_supported(replay)}"
    if replay.n >= replay.asked:
        rate = replay.min_rate
        more = f"; that takes {attempts_for(rate, replay.alpha)} attempts" if rate < 1 else ""
        return f"{_counts(replay)}: {_supported(replay)}, not the {percent(rate)} asked for{more}"
    spoiled = next((attempt.outcome.detail for attempt in replay.attempts if not attempt.counts), "")
    few = f"{replay.n} of {replay.asked} attempts usable"
    without = f"{replay.infra} without an answer, the first: {last_line(spoiled)}"
    return f"{few}, {_counts(replay)}: {_supported(replay)}; {without}"


def last_line(detail: str) -> str:
    """Of a traceback or an explanation: it says what happened."""
    lines = [line for line in detail.splitlines() if line.strip()]
    said = "".join(character for character in lines[-1] if character.isprintable()).strip() if lines else ""
    return said[:300] or "it did not say why"


def named(factors: Iterable[str]) -> str:
    """Factors, as people say them."""
    *rest, last = (_SAID.get(name, name) for name in factors)
    return f"{', '.join(rest)} or {last}" if rest else last


def _so_far(replay: Replay) -> str:
    if not replay.n:
        return ""
    said = _sometimes(replay) if 0 < replay.fail < replay.n else _supported(replay)
    return f", {_counts(replay)}: {said}"


def _sometimes(replay: Replay) -> str:
    low, high = percent(replay.interval[0]), at_most(replay.interval[1])
    return f"{_depends(replay)}fails in {low} to {high} of attempts {_sure(replay)}{_decides(replay)}"


def _sure(replay: Replay) -> str:
    return f"({100 * (1 - replay.alpha):g}% confidence)"


def _supported(replay: Replay) -> str:
    """What equal answers support."""
    if replay.fail:
        return f"fails in at least {percent(rate_at_least(replay.n, replay.alpha))} of attempts {_sure(replay)}"
    return f"fails in fewer than {at_most(rate_below(replay.n, replay.alpha))} of attempts {_sure(replay)}"


def _gone(replay: Replay) -> str:
    """Where it may not be reproduced for want of the captured versions."""
    if replay.gone_after_upgrade is not None:
        return ""
    newer = ", ".join(str(change) for change in replay.changes if change.newer)
    return f"gone after an upgrade to {newer}, or seldom: only the captured versions can tell; "


def _depends(replay: Replay) -> str:
    """What of unlike inputs decides, as far as that is shown."""
    found = replay.strata
    if not found:
        return ""
    if any(one.mixed for one in found):
        drawn = [name for name in dict.fromkeys(name for one in found for name in one.inputs)]
        return f"the same {named(drawn).replace(' or ', ' and ')} gave both answers, so something else decides; "
    repeats = sum(one.n - 1 for one in found)
    if names := replay.depends_on:
        upgrade = ", gone after an upgrade" if replay.gone_after_upgrade else ""
        return f"depends on {named(names)} (all {repeats} repeats agree){upgrade}; "
    every = named(dict.fromkeys(name for one in found for name in one.inputs))
    return f"may depend on {every}, or on chance: {repeats} repeats are too few to tell; "


def _counts(replay: Replay) -> str:
    parts = [f"{replay.fail}/{replay.n} failed"]
    if replay.fail < replay.n:
        parts[0] += " as captured"
    if replay.passed:
        parts.append(f"{replay.passed} passed")
    if others := [outcome.signature for outcome in replay.usable if outcome.status is Status.OTHER]:
        parts.append(f"{len(others)} in another way ({_signature(Counter(others).most_common(1)[0][0])})")
    prints, equal = replay.fingerprints, replay.verdict is not Verdict.FLAKY
    if len(prints) == 1 and prints.total() > 1 and equal:
        parts.append(f"bitwise-stable {prints.total()}/{prints.total()}")
    elif len(prints) > 1 and equal and (name := _first_difference(replay.usable)):
        parts.append(f"{len(prints)} fingerprints that differ first in {name}")
    return ", ".join(parts)


def _signature(signature: Signature | None) -> str:
    if signature is None:
        return "not known"
    function = f" in {signature.function}" if signature.function else ""
    return f"{signature.exception or signature.kind} at {signature.where}{function}"


def _decides(replay: Replay) -> str:
    """Where a flaky failure comes from, as far as fingerprints tell. Those of unlike inputs differ by themselves."""
    if replay.strata:
        return ""
    fails = [outcome for outcome in replay.usable if outcome.fingerprint and outcome.status is Status.FAIL]
    others = [outcome for outcome in replay.usable if outcome.fingerprint and outcome.status is not Status.FAIL]
    if not fails or not others:
        return ""
    if {bits(outcome) for outcome in fails} & {bits(outcome) for outcome in others}:
        return "; same fingerprint, another outcome: state outside the tensors decides"
    name = _first_difference([fails[0], others[0]])
    return f"; fingerprints differ first in {name}" if name else ""


def _first_difference(outcomes: Sequence[Outcome]) -> str:
    """The first part that two fingerprints both have and do not agree on, in the order in which a step makes them."""
    prints = [outcome.fingerprint for outcome in outcomes if outcome.fingerprint]
    differ = (part for part in prints[0] if len({one[part] for one in prints if part in one}) > 1)
    return next(differ, "")
