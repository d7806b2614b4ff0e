"""A twin of an incident that fails in the same way and holds none of its data, for people who may not share theirs.

Batch and donor are made from recipes, from the coarsest level to the finest, until the step fails with the captured
signature and the donor does what the captured donor does: the least that still fails tells most about the cause. Each
try is an incident of its own, evaluated as any other. What is published is then checked to hold no content of either
batch. It is written from a list of what goes in: whatever else an incident holds, now or later, may quote the data.

Nothing is promised beyond that: weights and optimizer state are the originals, and a model can have memorised what it
was trained on; the config and the source are the user's own. The manifest says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit._scratch import Scratch
from reprokit.incident import Draft, Incident
from reprokit.layout import Layout
from reprokit.reduce.generate import generate
from reprokit.reduce.isolation import NotReproduced, name
from reprokit.reduce.leaks import leaks
from reprokit.reduce.recipe import LEVELS, Recipe, at_level, describe, kept, levels
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

__all__ = ["Synthetic", "describe", "generate", "leaks", "levels", "publish_synthetic", "synthesise"]

RECIPE = "synthetic.json"  # in the incident: level, seeds and recipes; what the script is rendered from
SEEDS = 3  # of noise, at each level: a failure that one draw in two brings is missed by one level in eight

_KEPT = ("config.yaml", "command.json", "environment.json", "flags.json", "requirements.txt")
_KEPT_BELOW = ("source/", "state/", "ranks/00/rng.")

Evaluate = Callable[[Incident, Case], Outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """One level with one seed, and what came of it."""

    level: str
    seed: int
    status: str  # of the batch; "LEAKS" where it failed as it should, and held content
    donor: str | None = None  # status of the donor; None: not asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Synthetic:
    """The twin, and how it was found."""

    incident: Incident
    level: str  # what had to be kept beside shapes, dtypes and structure: one of LEVELS
    seed: int
    kept: tuple[str, ...]  # entries that are as they were
    tries: tuple[Try, ...]
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.incident.path),
            "id": self.incident.manifest.id,
            "level": self.level,
            "holds": list(LEVELS[self.level]),
            "seed": self.seed,
            "kept": list(self.kept),
            "tries": [{field: getattr(one, field) for field in Try.__slots__} for one in self.tries],
        }


def synthesise(incident: Incident, out: Path, evaluate: Evaluate, *, seeds: int = SEEDS) -> Synthetic:
    """Write the twin below `out`. evaluate: runs a case of any incident that is handed to it.

    Raises NotReproduced, and writes nothing, where the incident does not fail here or no level fails as it does;
    BadInput where an entry of the batch cannot be made from noise.
    """
    seen = evaluate(incident, Case(incident=incident.path))
    if seen.status is not Status.FAIL:
        raise NotReproduced(f"{incident.path}: does not fail here ({seen.status}), so there is nothing to be like")
    search = _Search(incident, evaluate)
    with Scratch("synthetic") as scratch:
        for recipe, donor, seed in _attempts(incident, seeds):
            if (outcome := search.fails(recipe, donor, seed, Path(scratch))) is not None:
                break
        else:
            raise NotReproduced(_refusal(incident, search.tries))
    return Synthetic(
        incident=publish_synthetic(incident, recipe, seed, out, donor=donor, outcome=outcome),
        level=recipe["level"],
        seed=seed,
        kept=_kept(recipe, donor),
        tries=tuple(search.tries),
        outcome=outcome,
    )


def publish_synthetic(
    incident: Incident,
    recipe: Recipe,
    seed: int,
    out: Path,
    *,
    donor: Recipe | None = None,
    outcome: Outcome | None = None,
) -> Incident:
    """A copy of an incident with batch and donor made from recipes. outcome: of the twin, once that is known."""
    manifest = incident.manifest
    left_out = [path for path in manifest.files if path not in _KEPT and not path.startswith(_KEPT_BELOW)]
    with Draft(out) as draft:
        incident.copy_into(draft, except_=left_out)
        draft.write_tree("ranks/00", "batch", generate(recipe, seed))
        if donor is not None:
            draft.write_tree("ranks/00", "donor", generate(donor, donor_seed(seed)))
        draft.write_json(RECIPE, {"seed": seed, "donor_seed": donor_seed(seed), "batch": recipe, "donor": donor})
        return draft.publish(
            f"{incident.name}-synthetic",
            parent=manifest.id,
            signature=manifest.signature,
            symptoms=outcome.symptoms if outcome else (),
            step=manifest.step,
            world_size=manifest.world_size,
            entrypoint=manifest.entrypoint,
            layout=manifest.layout,
            commit=manifest.commit,
            fingerprint=dict(outcome.fingerprint) if outcome else {},
            redacted=manifest.redacted,
            left_out=(*manifest.left_out, *_notes(recipe, donor)),
        )


def donor_seed(seed: int) -> int:
    """Another one: with equal noise in both, healing a part of the batch could change nothing."""
    return seed + SEEDS


def _attempts(incident: Incident, seeds: int) -> Iterator[tuple[Recipe, Recipe | None, int]]:
    layout, donor = Layout.parse(incident.manifest.layout), incident.donor()
    whole = None if donor is None else describe(donor, layout)
    for recipe in levels(incident.batch(), layout):
        for seed in range(seeds):
            yield recipe, None if whole is None else at_level(whole, recipe["level"]), seed


class _Search:
    """Tries, and what became of them."""

    def __init__(self, incident: Incident, evaluate: Evaluate) -> None:
        self._incident, self._evaluate = incident, evaluate
        self.tries: list[Try] = []
        self._wanted: Status | None = None  # of a donor: what the captured one comes to

    def fails(self, recipe: Recipe, donor: Recipe | None, seed: int, scratch: Path) -> Outcome | None:
        """The outcome of a twin that fails as it should beside a donor that does as it should; None for any other."""
        twin = publish_synthetic(self._incident, recipe, seed, scratch, donor=donor)
        outcome = self._evaluate(twin, Case(incident=twin.path))
        healthy = self._donor(twin) if outcome.status is Status.FAIL and donor is not None else None
        right = outcome.status is Status.FAIL and healthy in (None, self._wanted)
        leaking = right and _leaks(self._incident, twin)
        self._note(recipe, seed, "LEAKS" if leaking else outcome.status, healthy)
        return outcome if right and not leaking else None

    def _donor(self, twin: Incident) -> Status:
        if self._wanted is None:
            self._wanted = self._evaluate(self._incident, Case(incident=self._incident.path, content="donor")).status
        return self._evaluate(twin, Case(incident=twin.path, content="donor")).status

    def _note(self, recipe: Recipe, seed: int, status: str, donor: str | None = None) -> None:
        said = None if donor is None else str(donor)
        self.tries.append(Try(level=recipe["level"], seed=seed, status=str(status), donor=said))


def _leaks(incident: Incident, twin: Incident) -> list[str]:
    """From either batch of the original into either of the twin."""
    layout = Layout.parse(incident.manifest.layout)
    originals, made = ([one.batch(), one.donor()] for one in (incident, twin))
    pairs = [(old, new) for old in originals for new in made if old is not None and new is not None]
    return [line for old, new in pairs for line in leaks(old, new, layout)]


def _refusal(incident: Incident, tries: list[Try]) -> str:
    statuses = {level: "/".join(one.status for one in tries if one.level == level) for level in LEVELS}
    counts = ", ".join(f"{level} {status}" for level, status in statuses.items() if status)
    return (
        f"{incident.path}: no twin made from noise fails as {name(incident.manifest.signature)} beside a healthy donor "
        f"({counts}); its content matters: reduce the incident first, so that less of it has to be made"
    )


def _kept(recipe: Recipe, donor: Recipe | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*kept(recipe), *(kept(donor) if donor else ()))))


def _notes(recipe: Recipe, donor: Recipe | None) -> tuple[str, ...]:
    """For the manifest: what this incident is, what it lacks, and what it still holds of the original."""
    entries = ", ".join(_kept(recipe, donor)) or "nothing"
    return (
        f"the data: batch and donor were made from noise, level {recipe['level']!r}; {RECIPE} says all that is left of "
        f"them: ranges and means with three digits, places of special values, values of flat areas; whole: {entries}",
        "logs, telemetry, history: they may quote the data",
        "NOT left out: state/ has the original weights and optimizer state; a model can memorise training data",
        "NOT left out: config.yaml, command.json and source/ are the originals",
    )
