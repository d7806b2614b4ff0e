"""An incident in memory, and an evaluator that interprets its cases through the layout and a predicate on batches."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reprokit.failure import Kind, Signature
from reprokit.layout import Layout
from reprokit.reduce import search
from reprokit.reduce.reducer import reduce
from reprokit.step import smooth
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.step.values import simplified

NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
LAYOUT = {"global": "b t h", "local": "b v t h"}


def raised(error):
    """The signature of an exception in the forward pass."""
    name = type(error).__name__
    return Signature(kind=Kind.EXCEPTION, where="forward", exception=name, function="train.py:step", message=str(error))


@dataclass
class Bench:
    """`look(batch)` returns None where the step passes, or the signature of its failure, or raises."""

    batch: object
    donor: object
    look: object
    layout: object = field(default_factory=lambda: dict(LAYOUT))
    signature: Signature = NAN
    fingerprint: object = staticmethod(lambda batch: {"losses": "same"})
    asked: list = field(default_factory=list)
    path: Path = Path("incident")

    @property
    def incident(self):
        manifest = SimpleNamespace(signature=self.signature, layout=self.layout)
        contents = {"batch": lambda: self.batch, "donor": lambda: self.donor, "rewindable": lambda: 0}
        return SimpleNamespace(path=self.path, manifest=manifest, **contents)

    def content(self, case: Case):
        layout = Layout.parse(self.layout)
        donor = smooth.generated(self.batch, layout) if self.donor is None else self.donor
        if case.content == "donor":
            return donor
        healed = layout.heal(self.batch, donor, case.heal) if case.heal else self.batch
        return layout.select(simplified(healed, layout, case.values), case.keep)

    def evaluate(self, case: Case, isolation: str) -> Outcome:
        self.asked.append((case, isolation))
        batch = self.content(case)
        try:
            seen = self.look(batch)
        except Exception as error:
            seen = raised(error)
        status = Status.PASS if seen is None else Status.FAIL if seen == self.signature else Status.OTHER
        return Outcome(status=status, signature=seen, fingerprint=self.fingerprint(batch))

    def reduce(self, **options):
        return reduce(self.incident, self.evaluate, **options)

    def status(self, case: Case) -> Status:
        return self.evaluate(replace(case, thorough=False), "restore").status


def clips(b=4, v=4, t=8, h=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "global": torch.rand(b, t, 2 * h, generator=generator) + 0.1,
        "local": torch.rand(b, v, t, h, generator=generator) + 0.1,
    }


@pytest.fixture
def make():
    """make(damage, look, **sizes): a healthy batch that `damage` changes in place, and a healthy donor."""

    def bench(damage, look, *, donor=None, options=None, **sizes):
        batch = clips(**sizes)
        damage(batch)
        donor = clips(**sizes, seed=1) if donor is None else donor
        return Bench(batch=batch, donor=donor, look=look, **(options or {}))

    return bench


@pytest.fixture
def healthy():
    return clips


@pytest.fixture(scope="session")
def answered():
    """answered(asking, status) -> what it comes to when `status(case)` answers, and the cases that it asked for."""

    def drive(asking, status):
        asked = []

        def answer(case):
            asked.append(case)
            told = status(case)
            return told if isinstance(told, Outcome) else Outcome(status=told)

        return search.drive(asking, answer), asked

    return drive
