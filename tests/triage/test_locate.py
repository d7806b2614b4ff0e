"""`reprokit locate`: the operation, and a script of it that needs nothing of ours."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reprokit.errors import BadInput
from reprokit.report import standalone
from reprokit.triage.locate import Located

pytestmark = pytest.mark.slow

ZOO = Path(__file__).parents[1] / "zoo"


def captured(tmp_path, recipe):
    for name in ("adapter.py", f"{recipe}.py"):
        shutil.copy(ZOO / name, tmp_path)
    code = f"import adapter\nadapter.main('{recipe}', 'incidents', rehearse=False)\n"
    (tmp_path / "go.py").write_text(code)
    subprocess.run([sys.executable, "go.py"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    [path] = (tmp_path / "incidents").iterdir()
    return path


@pytest.mark.parametrize(
    ("recipe", "producer"),
    [("z01", "aten._softmax.default"), ("z03", "SqrtBackward0"), ("z10", "aten.bmm.default")],
)
def test_the_operation_fails_in_a_script_of_its_own(tmp_path, cli, recipe, producer):
    path = captured(tmp_path, recipe)
    code, out, err = cli("locate", path, "--standalone", tmp_path / "alone", "--json")
    assert code == 0, err
    assert json.loads(out)["producer"] == producer
    for name in ("adapter.py", f"{recipe}.py"):
        (tmp_path / name).unlink()
    script = [sys.executable, "-I", str(tmp_path / "alone" / "operation.py")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    assert done.returncode == 1, done.stderr
    assert "values are not finite, the first at" in done.stdout
    assert "reprokit" not in (tmp_path / "alone" / "operation.py").read_text()


def test_for_people_it_is_a_few_lines(tmp_path, cli):
    code, out, _ = cli("locate", captured(tmp_path, "z07"))
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("nonfinite_loss at loss") and lines[1] == "aten.div.Tensor, forward"
    assert any(line.startswith("  in   float32 [4, 1, 1, 1, 1]  0 to") for line in lines)
    assert "z07.py" in lines[-1]


def test_what_was_bad_from_the_start_has_no_operation(tmp_path, cli):
    code, out, err = cli("locate", captured(tmp_path, "z17"), "--standalone", tmp_path / "alone")
    assert code == 2
    assert out.splitlines()[1].startswith("batch entry locals, before the step began")  # the answer all the same
    assert "batch entry locals was bad before the step began" in err
    assert not (tmp_path / "alone").exists()


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path, cli, monkeypatch):
    path = captured(tmp_path, "z07")
    monkeypatch.setattr("reprokit.pipeline.locate", lambda *_: pytest.fail("worked"))
    (tmp_path / "file").write_text("mine")
    for folder, says in ((tmp_path / "file", "exists already"), (tmp_path / "file" / "x", "no folder that you may")):
        code, out, err = cli("locate", path, "--standalone", folder)
        assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1


def test_an_exception_that_no_operation_raised_has_no_script(tmp_path):
    described = {"op": None, "producer": "ValueError", "phase": "forward"}
    with pytest.raises(BadInput, match="ValueError was raised by no operation"):
        standalone.write(Located(description=described, arguments=None), tmp_path / "out")


def test_names_that_would_become_code_are_refused(tmp_path):
    described = {"op": "aten.div.Tensor(0)\nimport os", "producer": "x", "phase": "forward", "inputs": []}
    with pytest.raises(BadInput, match="none that torch gives"):
        standalone.write(Located(description=described, arguments={"args": [], "kwargs": {}}), tmp_path / "out")
    described |= {"op": "aten.div.Tensor", "producer": '"""\nimport os'}
    with pytest.raises(BadInput, match="none that torch gives"):
        standalone.write(Located(description=described, arguments={"args": [], "kwargs": {}}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_arguments_of_all_kinds_are_source(tmp_path):
    arguments = {
        "args": [torch.tensor([1.0, 0.0]).to(torch.bfloat16), 2.5, [1, -1], None, "mean", float("inf")],
        "kwargs": {"dtype": torch.float32, "device": torch.device("cpu"), "bad name": 1},
    }
    described = {"op": "aten.div.Tensor", "producer": "aten.div.Tensor", "phase": "forward"}
    text = standalone.write(Located(description=described, arguments=arguments), tmp_path / "out").read_text()
    call = "(input0, float('2.5'), [1, -1], None, 'mean', float('inf'), dtype=torch.float32, device='cpu')"
    assert call in text
    compile(text, "operation.py", "exec")
