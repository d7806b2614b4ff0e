"""What decides a failure: factors where it comes and goes, changed experiments where it comes each time.

A few attempts at the captured step say which. Where all of them fail, a few more begin with other random numbers and
other hash seeds, if the step uses them: a failure that one captured seed brings each time still comes and goes in
training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine
from reprokit.replay.verdict import Tally as Counts
from reprokit.replay.verdict import Verdict, judge
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome
from reprokit.triage import counterfactuals, factors
from reprokit.triage.changes import Subject
from reprokit.triage.deciding import Finding, decide
from reprokit.triage.difference import Difference, difference
from reprokit.triage.factors import Factor, Seen
from reprokit.triage.table import Row, tabulate
from reprokit.triage.trials import Setting, Tally, Trials

N = 6  # attempts at each value that decide: 6 beside 0 of 6 has p = 0.002, which stands among 20 factors
LEAST = 4  # below it not even all beside none stands out
Part = Literal["factors", "counterfactuals"]
GROUPS = tuple(map(counterfactuals.group_of, counterfactuals.MAKERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Triage:
    """What was asked, and what came of it."""

    engine: str
    part: Part
    n: int
    base: Tally  # attempts at the captured step
    findings: tuple[Finding, ...] = ()
    rows: tuple[Row, ...] = ()
    difference: Difference | None = None

    @property
    def verdict(self) -> Verdict:
        """Of the attempts at the captured step, as `replay` judges."""
        base = self.base
        return judge(Counts(fail=base.fail, other=base.n - base.fail, asked=self.n))

    @property
    def decides(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.decides)

    @property
    def suggestions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.suggestion for row in self.rows if row.suggestion))

    def answer(self) -> str:
        """In one sentence."""
        if self.part == "counterfactuals":
            return self._of_changes()
        if not self.decides:
            tried = any(not finding.why_not for finding in self.findings)
            return "no factor tried controls it" if tried else "no factor could be tried"
        return "; ".join(map(_sentence, self.decides))

    def _of_changes(self) -> str:
        asked = [row for row in self.rows if row.tally is not None and row.tally.n]
        if not asked:
            return "no change could be tried"
        if cured := [row.change.changed for row in asked if row.cured]:
            return f"it passes with {'; '.join(cured)}"
        if doubtful := [row for row in asked if row.adjusted is not None and not row.supported]:
            what = f"{len(doubtful)} of {len(asked)} changes may help"
            return f"{what}, and {self.n} attempts at each cannot tell that from luck: give more (-n)"
        return f"it fails in spite of all {len(asked)} changes"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "engine": self.engine,
            "part": self.part,
            "base": self.base.to_json(),
            "answer": self.answer(),
            "decides": [finding.factor.name for finding in self.decides],
            "factors": [finding.to_json() for finding in self.findings],
            "difference": self.difference.to_json() if self.difference else None,
            "changes": [row.to_json() for row in self.rows],
            "suggestions": list(self.suggestions),
        }


def triage(
    incident: Incident,
    base: Case,
    engine: Engine,
    *,
    n: int = N,
    part: Part | None = None,
    only: Collection[str] = (),
    forked: Engine | None = None,
    forks: str = "there is no engine for it",
    on_attempt: Callable[[int, str], None] = lambda count, what: None,
) -> Triage:
    """Find what decides. n: attempts at each value that decides. part: None: the names say which, or else the first
    attempts. only: names of factors, or groups of changes. forked, forks: an engine whose attempts are forked, or why
    there is none. on_attempt: hears how many attempts have ended, and what is being asked.

    Raises BadInput for what cannot be asked, and BadInput and Infrastructure as the engine does.
    """
    check(only, n, part)
    told = _Progress(on_attempt)
    trials = Trials(engine, forked, told.ended)
    told.now("as captured")
    [tally] = trials.ask([Setting(label="as captured", case=base)], n)
    if not tally.n:
        raise BadInput(f"{incident.path}: cannot be rebuilt here: {tally.why_not}")
    seen = Seen.of(tally.outcomes, engine.name, "" if forked else forks)
    known = [one for one in factors.known(incident, base, seen) if not only or one.name in only]
    steady = tally.fail in (0, tally.n)
    found = Triage(engine=engine.name, part=_kind(only, part) or _part(trials, known, tally, told), n=n, base=tally)
    if found.part == "factors":
        findings = decide(trials, known, n, steady=steady, on_factor=told.now)
        found = replace(found, findings=tuple(findings))
        told.now("the first operation that differs")
        return replace(found, difference=_difference(trials, found, base))
    changes = counterfactuals.known(Subject.of(incident, base, seen))
    wanted = [change for change in changes if not only or change.group in only]
    return replace(found, rows=tuple(tabulate(trials, wanted, n, tally, on_change=told.now)))


def check(only: Collection[str], n: int, part: Part | None = None) -> None:
    """Raises BadInput where there is nothing of that name, or nothing could come of it."""
    names = (*factors.NAMES, *GROUPS)
    if unknown := [name for name in only if name not in names]:
        raise BadInput(f"--only {unknown[0]}: unknown; one of {', '.join(names)}")
    if n < LEAST:
        raise BadInput(f"-n {n}: give at least {LEAST}: with fewer attempts at a value nothing can be told from luck")
    if part and only and _kind(only, None) not in (None, part):
        raise BadInput(f"--only {', '.join(only)}: nothing of --part {part}; leave out one of them")


def _kind(only: Collection[str], part: Part | None) -> Part | None:
    """The part that is asked for, also by names that are all of one."""
    kinds: set[Part] = {"factors" if name in factors.NAMES else "counterfactuals" for name in only}
    return part or (kinds.pop() if len(kinds) == 1 else None)


class _Progress:
    """Counts attempts, and remembers what they are for."""

    def __init__(self, on_attempt: Callable[[int, str], None]) -> None:
        self._on_attempt = on_attempt
        self._count, self._what = 0, ""

    def now(self, what: str) -> None:
        self._what = what
        self._on_attempt(self._count, what)

    def ended(self, label: str) -> None:
        self._count += 1
        self._on_attempt(self._count, self._what)


def _part(trials: Trials, known: Sequence[Factor], tally: Tally, told: _Progress) -> Part:
    """Factors where outcomes differ, or differ once it begins with other seeds than the captured ones."""
    if tally.fail < tally.n:
        return "factors"
    told.now("other seeds")
    others = trials.ask([setting for _, setting in factors.pinned(known)], 1)
    return "factors" if any(other.n and not other.fail for other in others) else "counterfactuals"


def _difference(trials: Trials, found: Triage, base: Case) -> Difference | None:
    """Between an attempt that fails and one that does not: at the two values of what decides, else among attempts at
    the captured step."""
    contrasts = [finding.contrast for finding in found.decides if finding.contrast]
    if contrasts:
        pair = (contrasts[0].most, contrasts[0].least)
        one, other = trials.ask(list(map(_looked, pair)), 1)
        return _parts(one.outcomes[:1], other.outcomes[:1], (pair[0].label, pair[1].label))
    if found.base.fail in (0, found.base.n):
        return None
    [tally] = trials.ask([_looked(Setting(label="as captured", case=base))], found.n)
    fails = [outcome for outcome in tally.outcomes if outcome.status == "FAIL"]
    others = [outcome for outcome in tally.outcomes if outcome.status != "FAIL"]
    return _parts(fails[:1], others[:1], ("an attempt that fails", "one that does not"))


def _looked(setting: Setting) -> Setting:
    return replace(setting, case=replace(setting.case, operations=True))


def _parts(one: Sequence[Outcome], other: Sequence[Outcome], between: tuple[str, str]) -> Difference | None:
    return difference(one[0], other[0], between) if one and other else None


def _sentence(finding: Finding) -> str:
    contrast = finding.contrast
    assert contrast is not None
    most, least = (
        f"{tally.fail}/{tally.n} failed with {setting.label}"
        for setting, tally in ((contrast.most, contrast.fails), (contrast.least, contrast.stays_away))
    )
    what = "whether it fails is decided by" if contrast.controls else "how often it fails depends on"
    return f"{what} {finding.factor.what}: {most}, {least}"
