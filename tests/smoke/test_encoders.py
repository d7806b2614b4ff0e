"""An encoder whose attributes are odd is no encoder, and the row says which attribute it is."""

import pytest
from torch import nn

from reprokit.smoke.encoders import encoders, no_encoder
from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.leakage import Leakage
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.resources import Resources
from reprokit.smoke.gates.shapes import Shapes
from reprokit.smoke.smoke import smoke


class Unprintable:
    def __repr__(self):
        raise ValueError("no")


def raising(kind):
    def value(self):
        raise kind("not yet")

    return property(value)


SOUND = {"patch_size": 8, "tubelet_size": 1, "num_patches": 4}
ODD = {
    "a pair": ({"patch_size": (8, 8)}, "net.patch_size is (8, 8)"),
    "None": ({"tubelet_size": None}, "net.tubelet_size is None"),
    "zero": ({"patch_size": 0}, "net.patch_size is 0"),
    "a bool": ({"num_patches": True}, "net.num_patches is True"),
    "a fraction": ({"num_patches": 4.0}, "net.num_patches is 4.0"),
    "raises": ({"num_patches": raising(RuntimeError)}, "net.num_patches raises RuntimeError: not yet"),
    "raises as if missing": ({"patch_size": raising(AttributeError)}, "net.patch_size raises AttributeError"),
    "unprintable": ({"patch_size": Unprintable()}, "net.patch_size is a Unprintable"),
}


def with_attributes(**attributes):
    return type("Encoder", (nn.Conv2d,), SOUND | attributes)(3, 4, 3)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_attribute_is_named_and_no_step_is_blamed(plain, kind):
    attributes, says = ODD[kind]
    subject = plain.subject(lambda: plain.harness(net=with_attributes(**attributes)))
    report = smoke(subject, [Shapes(), Numbers(), Leakage(), Resources()])
    assert not report.failed_gates
    told = [one for one in report.findings if says in one.observed]
    assert {one.gate for one in told} == {"shapes", "leakage", "resources"}
    assert {one.verdict for one in told} == {Verdict.NOT_APPLICABLE}


def test_a_module_with_some_of_the_attributes_is_no_odd_encoder(plain):
    embedding = type("Embedding", (nn.Conv2d,), {"patch_size": (8, 8)})(3, 4, 3)
    harness = plain.harness(net=embedding)
    assert not encoders(harness)
    assert no_encoder(harness).startswith("no module has patch_size, tubelet_size and num_patches")


@pytest.mark.parametrize("rate", ["a lot", 2.0, raising(RuntimeError), float("nan")])
def test_an_odd_drop_rate_is_named(plain, rate):
    class Encoder(nn.Module):
        patch_size, tubelet_size, num_patches = 4, 1, 8

        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 4)

        def forward(self, clip):
            return self.embed(clip.mean((-1, -2)).transpose(1, 2))

    Encoder.token_drop_rate = rate
    step = lambda net, batch: net(batch["clip"].float().div(255).transpose(1, 2)).square().mean()
    report = smoke(plain.subject(lambda: plain.harness(step, Encoder())), [Shapes()])
    (told,) = [one for one in report.findings if "token_drop_rate" in one.observed]
    assert told.verdict is Verdict.NOT_APPLICABLE
    assert told.observed.startswith("not applicable, because net.token_drop_rate")
    assert "raise" not in told.check
