"""A training run full of secrets: none is in its incident, the patch applies, and a replay fails as it did."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reprokit
from reprokit import failure
from reprokit.capture import redact, source
from reprokit.capture.listing import Caps
from reprokit.failure import Kind, Signature
from reprokit.incident import Draft
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, env={**os.environ, **GIT})
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


TRAIN = '''
import sys, torch, reprokit
from torch import nn

def build(config):
    torch.manual_seed(config["seed"])
    assert isinstance(config["hub"]["password"], str) and config["pin"] >= 0
    net = nn.Linear(4, 1)
    def step(batch):
        if batch["x"].isnan().any():
            raise RuntimeError(f"no access for {config['hub']['user']}: password={config['hub']['password']}")
        return {"loss": net(batch["x"]).pow(2).mean()}
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), 0.1), step=step,
                            layout={"x": "b d"})

if __name__ == "__main__":
    config = __import__("json").load(open("private/config.json"))
    for line in open("private/said.txt"):
        print(line, end="")
        print(line, end="", file=sys.stderr)
    with reprokit.Recorder(build(config), build=build, config=config, rehearse=False) as recorder:
        recorder.step({"x": torch.ones(2, 4)})
        recorder.step({"x": torch.full((2, 4), float("nan"))})
'''


@pytest.fixture(scope="module")
def incident(tmp_path_factory, planting):
    """A training run that is full of secrets, captured."""
    folder = tmp_path_factory.mktemp("planted") / "project"
    planter = planting.Planter("run")
    lines = lambda form: [form.format(name=name, value=value) for name, value in planter.all().values()]
    put(folder, "train.py", TRAIN)
    put(folder, ".gitignore", "private/\nincidents/\n")
    filler = [f"x{index} = {index}" for index in range(40)]
    mixed = [line for pair in zip(filler, lines('{name} = "{value}"')) for line in pair]
    for name, end in (("context.py", "\n"), ("crlf.py", "\r\n")):
        put(folder, name, end.join(mixed) + end)
    put(folder, "tracked.yaml", "\n".join([*lines("{name}: {value}"), "key: |", *planter.key().split("\n")]))
    put(folder, "unchanged.toml", "\n".join(lines('{name} = "{value}"')))
    put(folder, "gone.json", json.dumps(dict(planter.all().values())))
    put(folder, "data.bin", b"\0" + "\0".join(lines("{value}")).encode() + bytes(range(256)) * 20)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    git(folder, "remote", "add", "origin", f"https://me:{planter.all()['github'][1]}@host.example/x.git")
    for name in ("context.py", "crlf.py"):  # changed lines, with secrets on lines around them
        fresh = planter.all()["hugging face"][1].encode()
        data = (folder / name).read_bytes().replace(b"x3 = 3", b"x3 = 33")
        put(folder, name, data.replace(b"x5 = 5", b"x5 = '%s'" % fresh))
    changed = [(folder / "tracked.yaml").read_text(), "more: 1", *lines("{name}: '{value}'")]
    put(folder, "tracked.yaml", "\n".join(changed))
    (folder / "gone.json").unlink()
    put(folder, "data.bin", (folder / "data.bin").read_bytes()[::-1] + "\0".join(lines("{value}")).encode())
    put(folder, "new.ipynb", json.dumps({"cells": [{"source": lines('{name} = "{value}"\n')}]}, indent=1))
    put(folder, "new16.txt", "\r\n".join(lines('{name} = "{value}"')).encode("utf-16"))
    put(folder, "new.zip", planting.zipped(**{"a.env": "\n".join(lines("{name}={value}"))}))
    put(folder, ".env", "\n".join(lines("{name}={value}")))
    put(folder, "id_rsa", planter.key("OPENSSH"))
    said = [*lines("INFO {name}={value} done"), f"the key is\n{planter.key()}"]
    put(folder, "private/said.txt", "\n".join(said))
    hub = {f"{index}": {name: value} for index, (name, value) in enumerate(planter.all().values())}
    password = "Tr0ub4dor&" + planter.some(6)
    planter.planted[password] = "password"
    config = {"seed": 3, "pin": 4, "hub": {"user": "me", "password": password, **hub}, "key": planter.key()}
    put(folder, "private/config.json", json.dumps(config))
    made = planter.all()
    words = [f"--{made['wandb'][0]}={made['wandb'][1]}", "--password", "x7Kq_unlike", made["openai"][1]]
    planter.planted["x7Kq_unlike"] = "password"
    variables = {made["aws secret"][0].upper(): made["aws secret"][1], "NCCL_NOTE": made["github"][1]}
    done = subprocess.run([sys.executable, "train.py", *words], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **variables, "OMP_NUM_THREADS": "1"}, check=False)  # fmt: skip
    incidents = list((folder / "incidents").iterdir()) if (folder / "incidents").exists() else []
    assert len(incidents) == 1, done.stderr[-3000:]
    return folder, planter.planted, reprokit.Incident.open(incidents[0])


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.slow
def test_no_secret_is_anywhere_in_the_incident(incident, planting):
    _, planted, found = incident
    for path in sorted(found.path.rglob("*")):
        if path.is_file():
            seen = planting.leaks(path.read_bytes() + str(path).encode(), planted)
            if path.name == "data.bin":
                seen -= {"password", "wandb", "aws secret", "random", "basic auth"}  # what has no shape, in binary data
            assert seen == set(), path


@pytest.mark.slow
def test_the_redacted_diff_applies(incident, tmp_path):
    folder, _, found = incident
    again = tmp_path / "again"
    git(tmp_path, "clone", "-q", str(folder), str(again))
    git(again, "checkout", "-q", found.manifest.commit)
    patch = found.path / "source/patch.diff"
    git(again, "apply", "--check", str(patch))
    git(again, "apply", str(patch))
    for name in ("context.py", "crlf.py", "tracked.yaml", "data.bin", "new.ipynb", "new16.txt"):
        assert (again / name).read_bytes() == (found.source / name).read_bytes(), name
        assert (again / name).read_bytes() != (folder / name).read_bytes()
        assert len((again / name).read_bytes()) == len((folder / name).read_bytes())
    assert b"x3 = 33\r\n" in (again / "crlf.py").read_bytes() and not (again / "gone.json").exists()
    compile((found.source / "context.py").read_text(), "context.py", "exec")
    json.loads((found.source / "new.ipynb").read_text())


@pytest.mark.slow
def test_the_manifest_says_so(incident):
    _, _, found = incident
    assert found.manifest.redacted[0].startswith("source: the code was changed in ")
    assert any(line.startswith("config.hub.password: value of password") for line in found.manifest.redacted)
    assert any(line.startswith("command.json: argv[") for line in found.manifest.redacted)
    assert any(line.startswith("the message of the failure: ") for line in found.manifest.redacted)
    left_out = "\n".join(found.manifest.left_out)
    assert ".env: a file of credentials" in left_out and "id_rsa: a file of credentials" in left_out
    assert "new.zip: a zip archive with a file of credentials in it" in left_out


@pytest.mark.slow
def test_a_replay_of_clean_code_fails_in_the_same_way(incident):
    _, _, found = incident
    with Worker(found) as worker:
        outcome = worker.evaluate(Case(incident=found.path), "process", timeout=120)
    assert outcome.status is Status.FAIL, outcome
    assert found.manifest.signature.message.startswith("no access for me: password=R")
    assert Path(found.path, "logs/traceback.txt").read_text().count("Traceback")


def test_a_message_that_was_hidden_in_part_is_still_the_same_one():
    said = lambda message: Signature(kind=Kind.EXCEPTION, where="forward", message=failure.normalise(message))
    hidden = said("no access with key=REDACTEDxxxxxxxx for me")
    assert failure.same(hidden, said("no access with key=hunter2hunter2! for me"))
    assert failure.same(said("no access with key=other for me"), hidden)
    assert not failure.same(hidden, said("no access with key=hunter2 for you"))
    assert not failure.same(said("a"), said("b"))


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    put(folder, "train.py", "x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    put(folder, "train.py", "x = 2\n")
    put(folder, "new.py", "y = 1\n")
    git(folder, "remote", "add", "origin", "https://me:secret@host.example/x.git")
    return folder


def archived(project, tmp_path):
    with Draft(tmp_path / "out") as draft:
        record = source.archive(draft, project, modules={}, caps=Caps())
        files = {path.relative_to(draft.path).as_posix(): path.read_bytes() for path in draft.path.rglob("*.*")}
    return record, files


@pytest.mark.slow
def test_code_that_cannot_be_searched_is_not_written(project, tmp_path, monkeypatch):
    def never():
        raise redact.Unscanned("secrets cannot be looked for (no library)")

    monkeypatch.setattr(redact, "ready", never)
    record, files = archived(project, tmp_path)
    assert record.left_out == ["source: no code and no patch, since secrets cannot be looked for (no library)"]
    assert files["source/patch.diff"] == b"" and not any(name.startswith("source/tree") for name in files)
    described = json.loads(files["source/git.json"])
    assert described["commit"] == record.commit and described["remotes"] == {"origin": "https://host.example/x.git"}


@pytest.mark.slow
def test_a_file_that_breaks_the_search_is_left_out_alone(project, tmp_path, monkeypatch):
    real = redact.content

    def picky(data, place=""):
        if place.endswith("new.py"):
            raise redact.Unscanned("the search for secrets broke (RecursionError)")
        return real(data, place)

    monkeypatch.setattr(redact, "content", picky)
    record, files = archived(project, tmp_path)
    assert "new.py: the search for secrets broke (RecursionError)" in record.left_out
    assert "source/tree/new.py" not in files and b"new.py" not in files["source/patch.diff"]
    assert b"+x = 2" in files["source/patch.diff"] and files["source/tree/train.py"] == b"x = 2\n"
