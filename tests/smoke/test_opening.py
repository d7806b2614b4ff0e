"""From the words of a command to what the gates look at; what is wrong with them is one line."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from reprokit.errors import BadInput
from reprokit.smoke.clock import Clock
from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.resources import Resources
from reprokit.smoke.opening import opened, read_config
from reprokit.smoke.smoke import smoke

SCRIPT = """
import torch, reprokit
from torch import nn

class Loader:
    def __iter__(self):
        while True:
            yield {"x": torch.rand(2, 4)}

def build(config):
    net = nn.Linear(4, config.get("width", 1))
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                            step=lambda batch: net(batch["x"]).mean(), layout={"x": "b d"}, loader=LOADER)

LOADER = Loader()
"""


@pytest.fixture
def script(tmp_path):
    """script(text) -> entrypoint; each has a name of its own, for modules are kept."""
    made = []

    def write(text=SCRIPT, function="build"):
        name = f"smoked_{tmp_path.name.replace('-', '_')}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)
        return f"{name}.py:{function}"

    yield write
    for name in made:
        sys.modules.pop(name, None)


def config(tmp_path, text="{}", name="config.yaml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_the_first_two_batches_are_copied_and_seeded(script, tmp_path):
    entrypoint, file = script(), config(tmp_path)
    one, two = (opened(entrypoint, file, root=tmp_path, seed=5) for _ in range(2))
    assert len(one.batches) == 2
    assert torch.equal(one.batches[1]["x"], two.batches[1]["x"])
    assert not torch.equal(one.batches[0]["x"], one.batches[1]["x"])
    other = opened(entrypoint, file, root=tmp_path, seed=6)
    assert not torch.equal(one.batches[0]["x"], other.batches[0]["x"])


def test_a_loader_that_fills_one_buffer_again_and_again(script, tmp_path):
    again = SCRIPT.replace(
        'yield {"x": torch.rand(2, 4)}',
        'buffer = globals().setdefault("B", torch.zeros(2, 4)); buffer.add_(1); yield {"x": buffer}',
    )
    subject = opened(script(again), config(tmp_path), root=tmp_path)
    assert [float(batch["x"][0, 0]) for batch in subject.batches] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "text"), [("c.json", '{"width": 3}'), ("c.yaml", "width: 3\n"), ("c.txt", "width: 3")]
)
def test_a_config_is_yaml_or_json(script, tmp_path, name, text):
    subject = opened(script(), config(tmp_path, text, name), root=tmp_path)
    assert subject.config == {"width": 3}
    assert subject.harness().modules["net"].out_features == 3


def test_build_gets_a_copy_of_the_config_each_time(script, tmp_path):
    greedy = SCRIPT.replace('config.get("width", 1)', 'config.pop("width")')
    subject = opened(script(greedy), config(tmp_path, "width: 3"), root=tmp_path)
    assert subject.harness().modules["net"].out_features == subject.harness().modules["net"].out_features == 3


def test_the_default_config_of_the_module_stands_in(script, tmp_path):
    with_default = SCRIPT + "\ndef default_config():\n    return {'width': 2}\n"
    assert opened(script(with_default), root=tmp_path).config == {"width": 2}
    with pytest.raises(BadInput, match="give --config FILE"):
        opened(script(), root=tmp_path)


def test_a_script_in_a_folder_is_named_from_the_root_of_its_repository(script, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    entrypoint = script()
    (tmp_path / entrypoint.split(":")[0]).rename(tmp_path / "src" / entrypoint.split(":")[0])
    subject = opened(entrypoint, config(tmp_path), root=tmp_path / "src")
    assert subject.entrypoint in (f"src/{entrypoint}", entrypoint)  # where git does not take that for a repository


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        ("LOADER = None", "the harness has no loader"),
        ("LOADER = []", "the loader gives no batch"),
        ("LOADER = ({}[i] for i in [0])", "the loader raised KeyError: 0 (smoked_"),
        ("LOADER = (exec('raise GeneratorExit') for i in [0])", "the loader raised GeneratorExit: (smoked_"),
        ("LOADER = 5", "the loader raised TypeError: 'int' object is not iterable, for batch 1"),
        ("LOADER = [{}]", "batch 1 of the loader has no tensors: it is {}"),
        ("LOADER = [{'x': []}]", "batch 1 of the loader has no tensors: it is {'x': []}"),
        ("LOADER = [{}]; LOADER[0]['me'] = LOADER[0]", "batch 1 of the loader cannot be copied: RecursionError"),
        ("LOADER = [{'x': (i for i in [])}]", "batch 1 of the loader cannot be copied: TypeError: cannot pickle"),
        ("LOADER = [None]", "batch 1 of the loader has no tensors: it is None"),
    ],
)
def test_why_there_are_no_batches(script, tmp_path, loader, why):
    subject = opened(script(SCRIPT.replace("LOADER = Loader()", loader)), config(tmp_path), root=tmp_path)
    assert subject.batches == ()
    assert subject.no_batches.startswith(why)
    assert [one.observed for one in subject.opening] == ([] if loader[-4:] == "None" else [subject.no_batches])
    assert all("num_workers" not in one.advice for one in subject.opening)  # there are none


SECOND = {  # what hangs does so for good: later it would draw random numbers in the middle of another test
    "raises": 'yield {"x": torch.rand(2, 4)}; raise OSError("gone"); yield {"x"',
    "hangs": 'yield {"x": torch.rand(2, 4)}; __import__("threading").Event().wait(); yield {"x"',
    "is empty": 'yield {"x": torch.rand(2, 4)}; yield {}; yield {"x"',
}


@pytest.mark.parametrize("what", SECOND)
def test_a_loader_that_fails_at_its_second_batch_has_failed_and_its_first_is_asked(script, tmp_path, what):
    text = SCRIPT.replace('yield {"x"', SECOND[what])
    subject = opened(script(text), config(tmp_path), root=tmp_path, clock=Clock(5.0 if what == "hangs" else None))
    assert len(subject.batches) == 1 and not subject.no_batches
    (told,) = subject.opening
    assert "batch 2" in told.observed and told.advice
    report = smoke(subject, [Gradients(), Resources()])
    assert not report.passed and report.failed_gates == ("opening",)
    assert any(one.verdict is Verdict.PASSED for one in report.findings)
    (asked_again,) = [one for one in report.findings if one.check == "time of a batch"]
    assert "see opening" in asked_again.observed


def test_a_loader_that_ends_after_one_batch_has_not_failed(script, tmp_path):
    once = SCRIPT.replace("LOADER = Loader()", 'LOADER = [{"x": torch.rand(2, 4)}]')
    assert opened(script(once), config(tmp_path), root=tmp_path).opening == ()


def test_a_loader_that_is_stuck_is_given_up(script, tmp_path):
    stuck = SCRIPT.replace('yield {"x"', '__import__("threading").Event().wait(); yield {"x"')
    subject = opened(script(stuck), config(tmp_path), root=tmp_path, clock=Clock(2.0))
    assert subject.batches == ()
    assert "no batch 1 in 2 s" in subject.no_batches
    assert re.search(r"\(smoked_\w+.py:\d+ in __iter__\)$", subject.no_batches)
    assert "num_workers" not in subject.opening[0].advice


def test_a_script_that_hangs_while_it_is_loaded_is_bad_input(script, tmp_path):
    hanging = "__import__('threading').Event().wait()\n" + SCRIPT
    with pytest.raises(BadInput, match=r"no end after 1 s, at threading.py:\d+ in wait; .* --hang-after"):
        opened(script(hanging), config(tmp_path), root=tmp_path, clock=Clock(1.0))


def test_what_a_loader_refuses_is_bad_input(script, tmp_path):
    refusing = SCRIPT.replace('yield {"x"', 'raise reprokit.errors.BadInput("no clips; give some"); yield {"x"')
    with pytest.raises(BadInput, match="no clips"):
        opened(
            script(refusing.replace("import torch, reprokit", "import torch, reprokit, reprokit.errors")),
            config(tmp_path),
            root=tmp_path,
        )


def test_a_method_of_that_name_that_means_something_else(script, tmp_path):
    other = SCRIPT.replace(
        "    def __iter__", '    def timed(self):\n        yield {"a": 1, "b": 2}\n\n    def __iter__'
    )
    with pytest.raises(BadInput, match=r"timed\(\) yields a dict"):
        opened(script(other), config(tmp_path), root=tmp_path)


def test_the_reference_loader_tells_its_times(mutants):
    subject = mutants.subject()
    assert [set(one) for one in subject.times] == [{"global", "local"}] * 2
    assert subject.times[0]["local"].shape == subject.batches[0]["local"].shape[:3]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("a: [1", "c.yaml", "not plain data"),
        ("!!python/object/apply:os.system ['true']", "c.yaml", "not plain data"),
        ("{", "c.json", "not plain data"),
        ("", "c.yaml", "the file is empty"),
        ("\udcff", "c.yaml", "not text"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path, text, name, says):
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=says):
        read_config(tmp_path / name)


def test_a_config_that_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", tmp_path, "/dev/zero"):
        with pytest.raises(BadInput, match="not a regular file"):
            read_config(Path(path))


def test_a_config_may_be_a_link(tmp_path):
    (tmp_path / "link.yaml").symlink_to(config(tmp_path, "width: 3\n"))
    assert read_config(tmp_path / "link.yaml") == {"width": 3}


def test_a_config_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "function", "says"),
    [
        (SCRIPT, "missing", "no function 'missing'"),
        ("def build(config): raise SystemExit(0)\n", "build", "build raised SystemExit: 0; does the config fit"),
        ("def build(config): return 3\n", "build", "expected a reprokit.Harness"),
        ("def build(config): return {}['model']\n", "build", "build raised KeyError: 'model'; does the config fit"),
        ("import no_such_thing\n", "build", "does not import"),
    ],
)
def test_an_entrypoint_that_builds_nothing(script, tmp_path, text, function, says):
    with pytest.raises(BadInput, match=says):
        opened(script(text, function), config(tmp_path), root=tmp_path)


def test_json_stays_json(tmp_path):
    data = {"a": [1, 2.5, None, True], "b": {"c": "x: y"}}
    assert read_config(config(tmp_path, json.dumps(data), "c.json")) == data
