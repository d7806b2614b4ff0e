"""From a failed gate through its incident back to that gate: no step on the way is a dead end."""

import shlex
import sys

import pytest
import torch

from reprokit.incident import Incident

SCRIPT = """
import torch, reprokit
from torch import nn

class Loader:
    def __iter__(self):
        for number in range(3):
            yield {"x": torch.rand(3, 4), "number": number}

def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    unused = nn.Linear(4, 1)
    calls = []
    def step(batch):
        calls.append(batch)
        loss = net(batch["x"]).square().mean()
        SPOILS
        return loss
    return reprokit.Harness(modules={"net": net, "unused": unused}, step=step, layout={"x": "b d"}, loader=Loader(),
                            optimizer=torch.optim.SGD([*net.parameters(), *unused.parameters()], lr=0.1))
"""
RAISES_AT_TWO = 'if len(calls) == 2: return {"loss": loss}["lss"]'
LINE = SCRIPT[: SCRIPT.index("SPOILS")].count("\n") + 1


@pytest.fixture
def smoked(cli, tmp_path, monkeypatch):
    """smoked(spoils, *words) -> what smoke printed, and the incidents that it left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    (tmp_path / "a config.yaml").write_text("{}")
    name = f"left_{abs(hash(tmp_path))}"

    def ask(spoils, *words, edit=lambda script: script):
        (tmp_path / f"{name}.py").write_text(edit(SCRIPT).replace("SPOILS", spoils))
        _, out, _ = cli("smoke", f"{name}.py:build", "--config", "a config.yaml", *words)
        return out, sorted((tmp_path / "incidents").glob("*-smoke-*"))

    yield ask
    sys.modules.pop(name, None)


def shown(cli, path):
    out = cli("show", path)[1]
    last = out.strip().splitlines()[-1]
    assert last.startswith("next: ")
    return out, shlex.split(last.removeprefix("next: "))


@pytest.mark.parametrize("gate", ["rehearsal", "numbers"])
def test_a_step_that_raises_at_its_second_call_leaves_that_exception(cli, smoked, gate):
    out, (path,) = smoked(RAISES_AT_TWO, "--only", gate)
    assert f".py:{LINE} in step)" in out
    incident = Incident.open(path)
    assert incident.manifest.step == 2
    assert (incident.manifest.signature.exception, incident.batch()["number"]) == ("KeyError", 1)
    said, following = shown(cli, path)
    assert "KeyError at forward in" in said.splitlines()[0]
    assert f'.py", line {LINE}, in step' in said
    assert following[:2] == ["reprokit", "reduce"]


@pytest.mark.parametrize(
    ("spoils", "gate", "step"),
    [
        ("if len(calls) == 2: loss.register_hook(lambda gradient: {}['lss'])", "gradients", 2),  # in its backward pass
        ("if len(calls) == 5: {}['lss']", "resources", 5),  # after all batches that the gates took
    ],
)
def test_the_call_that_raised_is_the_one_that_its_incident_holds(smoked, spoils, gate, step):
    _, paths = smoked(spoils, "--only", gate)
    raised = [found for found in map(Incident.open, paths) if found.manifest.signature]
    assert [(found.manifest.signature.exception, found.manifest.step) for found in raised] == [("KeyError", step)]


def test_an_exception_that_does_not_come_again_is_kept_all_the_same(smoked):
    once = "if len(calls) == 2 and not torch.__dict__.get('met'): torch.met = True; open('https://me:hunter2hunter2@there')"
    try:
        _, (path,) = smoked(once, "--only", "numbers")
    finally:
        vars(torch).pop("met", None)
    text = (path / "logs" / "traceback.txt").read_text()
    assert Incident.open(path).manifest.signature is None
    assert f", line {LINE}, in step" in text and "FileNotFoundError: " in text
    assert "hunter2hunter2" not in text
    assert "Thread MainThread" in text


def test_rows_that_passed_before_it_are_not_denied(smoked):
    out, _ = smoked(RAISES_AT_TWO, "--only", "numbers")
    assert "passed" in out and "nothing else" not in out
    assert "what this gate asks after that was not asked" in " ".join(out.split())


def test_a_gate_that_alone_objects_is_named_and_leads_back_to_it(cli, smoked):
    _, (path,) = smoked("", "--only", "gradients", "--seed", "3")
    said, following = shown(cli, path)
    assert "smoke gate gradients failed at step 1: " in said.splitlines()[0]
    assert "a healthy step" not in said
    assert "expected" in said and "observed" in said and "advice: " in said
    entrypoint = Incident.open(path).manifest.entrypoint
    asked = ["smoke", entrypoint, "--config", "a config.yaml", "--seed", "3", "--only", "gradients"]
    assert following == ["reprokit", *asked]
    assert "FAILED  gradients" in cli(*asked)[1]


def test_a_loader_that_hangs_says_where_and_its_incident_leads_back(cli, smoked):
    hangs = "            if number == 1: __import__('threading').Event().wait()\n            yield"
    edit = lambda script: script.replace("            yield", hangs)
    out, paths = smoked("", "--only", "numbers", "--hang-after", "5", edit=edit)
    (opening,) = [path for path in paths if path.name.endswith("opening")]
    line = SCRIPT[: SCRIPT.index("            yield")].count("\n") + 1
    assert f".py:{line} in __iter__)" in out
    assert "num_workers" not in out
    said, following = shown(cli, opening)
    assert "smoke gate opening failed at step 1: the loader gives batches" in said.splitlines()[0]
    assert f"line {line}, in __iter__" in (opening / "logs" / "traceback.txt").read_text()
    assert following[-2:] == ["--hang-after", "5"]


def test_a_failure_of_the_step_itself_is_reduced(cli, smoked):
    _, (path,) = smoked("loss = loss * float('nan')", "--only", "numbers")
    said, following = shown(cli, path)
    assert "nonfinite_loss at loss, step 1" in said.splitlines()[0]
    assert following[:2] == ["reprokit", "reduce"]
