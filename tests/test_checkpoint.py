"""An incident may point into a checkpoint: as exact as a whole state, and refused where the file is another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from reprokit import checkpoint, tree
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.works import check, works


def states(changed=()):
    generator = torch.Generator().manual_seed(1)
    saved = {name: torch.randn(16, 32, generator=generator) for name in ("a", "b", "frozen")}
    saved["half"] = torch.randn(700, generator=generator).bfloat16()
    now = {name: tensor.clone() for name, tensor in saved.items()}
    for name in changed:
        now[name].view(-1)[0] += 1
    return saved, now


def put(folder, state, pointers):
    folder.mkdir(exist_ok=True)
    tree.save(tree.refer(state, name="state"), folder, "state", without=pointers.held("state"))


def as_torch(saved, path):
    torch.save({"epoch": 3, "model": saved}, path)


def as_safetensors(saved, path):
    save_file(saved, path)


WRITERS = {"last.pt": as_torch, "last.safetensors": as_safetensors}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("changed", [(), ("a",), ("a", "b", "frozen", "half")])
def test_what_comes_back_is_the_state_bit_for_bit(tmp_path, name, changed):
    saved, now = states(changed)
    WRITERS[name](saved, tmp_path / name)
    pointers = checkpoint.match(tmp_path / name, 3, {"state": tree.refer(now, name="state")})
    assert set(pointers.held("state")) == now.keys() - set(changed)
    put(tmp_path / "state", now, pointers)
    again = tree.load(tmp_path / "state", "state", checkpoint.resolve(pointers, "state"))
    assert {key: tree.digest(value) for key, value in again.items()} == {k: tree.digest(v) for k, v in now.items()}
    held = tmp_path / "state" / "state.safetensors"
    assert held.exists() == bool(changed)


@settings(max_examples=20, deadline=None)
@given(st.sets(st.sampled_from(["a", "b", "frozen", "half"])))
def test_a_block_is_pointed_to_exactly_if_its_bytes_are_there(tmp_path_factory, changed):
    path = tmp_path_factory.mktemp("any") / "last.pt"
    saved, now = states(sorted(changed))
    as_torch(saved, path)
    assert set(checkpoint.match(path, 1, {"state": tree.refer(now)}).held("state")) == now.keys() - changed


def one_line(error):
    return "\n" not in str(error.value)


def test_a_checkpoint_that_is_gone_or_changed_is_refused_in_one_line(tmp_path):
    saved, now = states()
    path = tmp_path / "last.pt"
    as_torch(saved, path)
    pointers = checkpoint.match(path, 3, {"state": tree.refer(now)})
    assert checkpoint.missing(pointers) == ""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert checkpoint.missing(pointers) == ""  # of its size: only reading tells
    with pytest.raises(BadInput, match="not the checkpoint of step 3") as error:
        checkpoint.resolve(pointers, "state")
    assert one_line(error)
    path.write_bytes(raw[:-1])
    assert "not the checkpoint of step 3" in checkpoint.missing(pointers)
    path.unlink()
    with pytest.raises(BadInput, match="cannot be read") as error:
        checkpoint.resolve(pointers, "state")
    assert one_line(error)


class Code:
    def __reduce__(self):
        return (print, ("a checkpoint ran its code",))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, capsys):
    torch.save({"model": torch.zeros(9), "code": Code()}, tmp_path / "last.pt")
    with pytest.raises(BadInput, match="plain data"):
        checkpoint.match(tmp_path / "last.pt", 1, {"state": tree.refer({"a": torch.zeros(9)})})
    assert "ran" not in capsys.readouterr().out


BAD = ["", "[]", '{"path": 3}', '{"path": "a", "sha256": 1, "bytes": 1, "step": 1, "trees": {}}']


@pytest.mark.parametrize("text", BAD)
def test_pointers_that_nobody_wrote_are_refused(tmp_path, text):
    (tmp_path / checkpoint.FILE).write_text(text)
    with pytest.raises(BadInput, match="not what reprokit writes"):
        checkpoint.read(tmp_path)


@pytest.fixture
def incident(tmp_path):
    from reprokit.incident import Draft

    def make(*names):
        with Draft(tmp_path) as draft:
            for name in names:
                draft.write_json(name, {})
            return draft.publish("some", signature=None, step=1, entrypoint="train.py:build", layout={})

    return make


def test_verbs_follow_from_the_files(incident):
    whole = incident("state/state.json", "ranks/00/batch.json")
    assert not any(works(whole).values())
    rolled = incident("state/anchor.json", "ranks/00/batch.json")
    assert not any(works(rolled).values())
    for names, says in {("ranks/00/batch.json",): "no state", ("state/state.json",): "no batch", (): "and"}.items():
        found = incident(*names)
        assert {verb for verb, reason in works(found).items() if reason} == {"replay", "reduce", "locate", "triage"}
        check(found, "show")
        with pytest.raises(BadInput, match=says) as error:
            check(found, "replay")
        assert one_line(error)


def test_an_incident_whose_checkpoint_is_gone_can_only_be_read(tmp_path, incident):
    saved, now = states()
    as_torch(saved, tmp_path / "last.pt")
    pointers = checkpoint.match(tmp_path / "last.pt", 3, {"state": tree.refer(now)})
    from reprokit.incident import Draft

    with Draft(tmp_path) as draft:
        draft.write_tree("state", "state", tree.refer(now, name="state"), without=pointers.held("state"))
        draft.write_json(f"state/{checkpoint.FILE}", pointers.to_json())
        draft.write_tree("ranks/00", "batch", {})
        path = draft.publish("points", signature=None, step=4, entrypoint="train.py:build", layout={}).path
    found = Incident.open(path)
    assert not any(works(found).values())
    assert tree.digest(found.state()["a"]) == tree.digest(now["a"])
    (tmp_path / "last.pt").unlink()
    with pytest.raises(BadInput, match="put it there again"):
        check(found, "replay")
    with pytest.raises(BadInput, match="put it there again"):
        found.state()
