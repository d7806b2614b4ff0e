"""Hydra's configs and dataclasses as plain data, and back."""

from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Dict, Optional, Tuple  # noqa: UP035  # as older configs say it

import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from torch import nn

import reprokit
from reprokit import _yaml
from reprokit.errors import BadInput
from reprokit.integrations.configs import configured, fitted, plain


class Kind(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Optim:
    lr: float
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Training:
    optim: Optim
    steps: int = 3
    kind: Kind = Kind.SMALL
    out: Path = Path("runs")
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    parts: list[Optim] = field(default_factory=list)
    warmup: Optim | None = None


def of_dataclass(config: Training):
    return config


def of_omegaconf(config: DictConfig):
    return config


def of_perhaps(config: Training | None = None):
    return config


def of_perhaps_by_name(config: Optional["Training"], more=()):
    return config


def of_perhaps_omegaconf(config: DictConfig | None):
    return config


class Builder:
    def build(self, config: Training | None):
        return config


def of_anything(config):
    return config


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=3), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=4))
def test_a_config_of_omegaconf_comes_back_equal(data):
    assert plain(OmegaConf.create(data)) == data
    back = fitted(of_omegaconf, data)
    assert isinstance(back, DictConfig) and plain(back) == data


@given(st.builds(Training, optim=st.builds(Optim, lr=st.floats(0, 1)), kind=st.sampled_from(Kind), steps=st.integers()))
def test_a_dataclass_comes_back_equal_through_yaml(config):
    data = plain(config)
    assert _yaml.read(_yaml_of(data)) == data
    assert fitted(of_dataclass, data) == config


def _yaml_of(data):
    import yaml

    return yaml.safe_dump(data)


def test_nested_parts_come_back_as_what_they_are():
    config = Training(optim=Optim(lr=0.1), parts=[Optim(lr=1.0)], warmup=Optim(lr=2.0, betas=(0.1, 0.2)))
    assert fitted(of_dataclass, plain(config)) == config


@pytest.mark.parametrize("function", [of_perhaps, of_perhaps_by_name, Builder().build])
def test_a_config_that_may_be_none_comes_back_as_what_it_is(function):
    config = Training(optim=Optim(lr=0.1), kind=Kind.LARGE)
    assert fitted(function, plain(config)) == config
    assert fitted(function, config) is config and fitted(function, None) is None


def test_a_config_of_omegaconf_that_may_be_none_comes_back_as_what_it_is():
    assert isinstance(fitted(of_perhaps_omegaconf, {"a": 1}), DictConfig)
    assert fitted(of_perhaps_omegaconf, None) is None


@dataclass
class Derived:
    width: int
    double: int = field(init=False)

    def __post_init__(self):
        self.double = 2 * self.width


def of_derived(config: Derived):
    return config


def test_a_field_that_a_dataclass_makes_itself_is_told_and_made_again():
    assert plain(Derived(2)) == {"width": 2, "double": 4}
    assert fitted(of_derived, plain(Derived(2))) == Derived(2)


def test_a_dataclass_in_plain_data_is_plain_too_and_what_stands_there_twice_may():
    shared = Optim(lr=1.0)
    told = {"lr": 1.0, "betas": [0.9, 0.99]}
    assert plain({"a": [shared, shared], "b": shared, "empty": ((), ())}) == {
        "a": [told, told],
        "b": told,
        "empty": [[], []],
    }


@dataclass
class Containers:
    by_name: dict[str, Optim] = field(default_factory=dict)
    pair: tuple[Path, Kind] = (Path("a"), Kind.SMALL)
    some: tuple[Kind, ...] = ()
    maybe: list[Optim] | None = None


def of_containers(config: Containers):
    return config


def test_containers_of_parts_come_back_as_what_they_are():
    config = Containers(
        by_name={"a": Optim(lr=1.0)}, some=(Kind.LARGE,) * 2, maybe=[Optim(lr=2.0)], pair=(Path("b"), Kind.LARGE)
    )
    assert fitted(of_containers, plain(config)) == config


def test_what_refers_to_another_value_is_resolved(tmp_path):
    (tmp_path / "train.yaml").write_text("seed: 3\nmodel:\n  width: 8\n  hidden: ${model.width}\nname: run-${seed}\n")
    with initialize_config_dir(str(tmp_path), version_base=None):
        config = compose("train", overrides=["seed=7"])
    assert plain(config) == {"seed": 7, "model": {"width": 8, "hidden": 8}, "name": "run-7"}


def test_a_function_that_says_nothing_is_given_what_came():
    data = {"a": 1}
    assert fitted(of_anything, data) is data
    config = OmegaConf.create(data)
    assert fitted(of_omegaconf, config) is config


@configured
def build(config: DictConfig):
    net = nn.Linear(config.width, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=config.optim.lr)
    step = lambda batch: {"loss": net(batch["x"]).square().mean()}
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"})


def test_a_run_is_recorded_with_a_config_of_omegaconf_and_built_again_from_plain_data(tmp_path):
    config = OmegaConf.create({"width": 4, "optim": {"lr": "${rate}"}, "rate": 0.5})
    recorder = reprokit.Recorder(build(config), build=build, config=plain(config), out=tmp_path, rehearse=False)
    with pytest.raises(reprokit.IncidentCaptured) as captured, recorder:
        recorder.step({"x": torch.full((2, 4), float("nan"))})
    stored = reprokit.Incident.open(captured.value.path).config()
    assert stored == {"width": 4, "optim": {"lr": 0.5}, "rate": 0.5}
    assert build(stored).optimizer.param_groups[0]["lr"] == 0.5


def around(*keys):
    """A dict that contains itself, under these keys."""
    inner = found = {}
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = [found]
    return found


def of_itself():
    config = Training(optim=Optim(lr=1.0))
    config.parts.append(config)
    return config


class Method:
    def build(self, config: Training):
        return config


REFUSED = {
    "a missing value": (lambda: plain(OmegaConf.create({"a": "???", "b": {"c": "???"}})), "a, b.c missing"),
    "an interpolation": (lambda: plain(OmegaConf.create({"a": "${nowhere}"})), "nowhere"),
    "missing in a part": (lambda: plain({"a": OmegaConf.create({"b": "???"})}), "b missing"),
    "a resolver": (lambda: plain(OmegaConf.create({"a": "${oc.env:NO_SUCH_VARIABLE_HERE}"})), "NO_SUCH_VARIABLE_HERE"),
    "an unknown field": (lambda: fitted(of_dataclass, {"optim": {"lr": 1.0}, "stepz": 1}), "no field stepz"),
    "a missing field": (lambda: fitted(of_dataclass, {"optim": {}}), "Training.optim: lr missing"),
    "missing in a list": (lambda: plain(OmegaConf.create({"a": [1, "???"]})), "a[1] missing"),
    "an interpolation to what is missing": (lambda: plain(OmegaConf.create({"a": "${b}", "b": "???"})), "a: Missing"),
    "an interpolation in a part": (lambda: plain(OmegaConf.create({"a": {"b": "x-${nowhere}"}})), "a.b: "),
    "an interpolation to itself": (lambda: plain(OmegaConf.create({"a": "${b}", "b": "${a}"})), "config: "),
    "no such resolver": (lambda: plain(OmegaConf.create({"a": "${nothing:1}"})), "a: "),
    "a resolver that fails": (lambda: plain(OmegaConf.create({"a": {"b": "${oc.decode:'{'}"}})), "a.b: "),
    "a dict in itself": (lambda: plain(around("a", "b")), "config.a.b[0]: contains itself"),
    "without an end": (lambda: plain(reduce(lambda inner, _: {"a": inner}, range(3000), {})), "nested too deeply"),
    "a dataclass in itself": (lambda: plain(of_itself()), "config.parts[0]: contains itself"),
    "a method": (lambda: configured(Method.build), "Method.build cannot be called with a config alone"),
    "no function": (lambda: configured(None), "a NoneType is no function"),
    "a function of nothing": (lambda: configured(lambda: None), "cannot be called with a config alone"),
    "no mapping, though it may be none": (lambda: fitted(of_perhaps, [1]), "expected a mapping"),
    "no mapping": (lambda: fitted(of_dataclass, [1]), "expected a mapping"),
    "an unknown name": (lambda: fitted(of_dataclass, {"optim": {"lr": 1.0}, "kind": "HUGE"}), "none of SMALL, LARGE"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_told_is_named_in_one_line(what):
    make, line = REFUSED[what]
    with pytest.raises(BadInput) as refused:
        make()
    assert line in str(refused.value) and "\n" not in str(refused.value)


@dataclass
class OfOldTypes:
    of: Dict = field(default_factory=dict)  # noqa: UP006
    pair: Tuple = ()  # noqa: UP006


@dataclass
class OfNoType:
    width: "Nowhere" = 1  # noqa: F821


def test_fields_whose_types_say_little_or_cannot_be_found():
    def old(config: OfOldTypes): ...

    def none(config: OfNoType): ...

    assert fitted(old, {"of": {"a": 1}, "pair": [1, 2]}) == OfOldTypes(of={"a": 1}, pair=(1, 2))
    with pytest.raises(BadInput, match="OfNoType: the type of a field cannot be found"):
        fitted(none, {"width": 1})
