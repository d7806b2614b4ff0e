"""A further round where a replay is flaky, or does not reproduce: what is kept, and what is said of it."""

import gzip
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reprokit import escalating, pipeline
from reprokit.errors import Infrastructure
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Draft, Incident
from reprokit.pipeline import Options, Subject
from reprokit.progress import Silence
from reprokit.replay import escalated
from reprokit.replay.engines.inline import Inline
from reprokit.step.case import Case

ZOO = Path(__file__).resolve().parents[1] / "zoo"
HEALTHY = {"x": torch.rand(4, 4, generator=torch.Generator().manual_seed(1))}

# Each second evaluation of a session fails: after its modules as z32 does, before them as z48, in one of them.
AFTER = "count[0] += 1\nreturn {'loss': net(x).pow(2).mean() * (float('nan') if count[0] % 2 else 1.0)}"
BEFORE = "count[0] += 1\nif count[0] % 2: raise ZeroDivisionError('division by zero')"
INSIDE = "count[0] += 1\nif count[0] % 2: x = x * float('nan')"
RAISES = Signature(kind=Kind.EXCEPTION, where="forward", exception="ZeroDivisionError", message="division by zero")


def escalate(incident, **options):
    options = Options(**{"engine": "inline", "n": 8} | options)
    return escalating.escalate(Subject(incident=incident), options, Silence())


def data_of(found, name):
    return json.loads((found.incident.path / "escalation" / name).read_text())


def test_all_of_it_is_kept_in_an_incident_of_its_own(make_incident):
    incident = make_incident(AFTER, batch=HEALTHY)
    found = escalate(incident)
    kept = Incident.open(found.incident.path)  # every byte of it as its manifest says
    assert kept.manifest.parent == incident.manifest.id and kept.name == f"{incident.name}-escalated"
    assert kept.manifest.created == incident.manifest.created and kept.path.parent == incident.path.parent
    attempts = [data_of(found, f"attempts/{i:04d}.json") for i in range(8)]
    assert [one["status"] for one in attempts] == ["FAIL", "PASS"] * 4
    assert all("trace" not in one["evidence"] and one["evidence"]["host"] for one in attempts)
    assert attempts[1]["fingerprint"] == dict(found.replay.attempts[1].outcome.fingerprint)  # no secret, though random
    trace = gzip.decompress((kept.path / "escalation/traces/0003.json.gz").read_bytes())
    assert json.loads(trace)["traceEvents"]
    assert len((kept.path / "escalation/telemetry.jsonl").read_text().splitlines()) >= 1
    assert {**data_of(found, "summary.json"), "path": str(kept.path), "id": kept.manifest.id} == found.to_json()
    again = pipeline.replay(Subject(incident=kept), Options(engine="inline", n=2), Silence())
    assert again.n == 2
    twice = escalate(kept, n=2)
    assert twice.incident.manifest.parent == kept.manifest.id and len(list(twice.incident.path.rglob("00*.json"))) == 2


@pytest.mark.parametrize(
    ("body", "signature", "how", "says"),
    [
        (AFTER, None, None, "all 5 outputs of modules are the same in failing and passing attempts; what tells them "
         "apart is the losses"),
        (BEFORE, RAISES, "stops", "failing attempts end before `net.0` has run"),
        (INSIDE, None, "values", "the first module whose output tells failing from passing attempts is `net.0`: "
         "nonfinite 32 against 0"),
    ],
    ids=["after", "before", "inside"],
)  # fmt: skip
def test_what_failing_attempts_did_otherwise_is_said(make_incident, body, signature, how, says):
    incident = make_incident(body, batch=HEALTHY, config={"dropout": 0.0})
    if signature:
        incident = renamed(incident, signature)
    found = escalate(incident)
    assert (found.replay.fail, found.replay.passed) == (4, 4), found.replay.usable[0].detail
    assert (found.contrast.module and found.contrast.module.how) == how
    assert found.sentences()[0].startswith(says), found.sentences()


def renamed(incident, signature):
    """The incident as if it had been captured: its function is in its own file."""
    file = next(incident.source.glob("*.py")).name
    with Draft(incident.path.parent) as draft:
        incident.copy_into(draft)
        manifest = incident.manifest
        own = replace(signature, function=f"{file}:step")
        return Incident.open(
            draft.publish("renamed", signature=own, step=1, entrypoint=manifest.entrypoint, layout=manifest.layout).path
        )


def test_where_nothing_fails_what_differs_from_the_capture_is_said(make_incident):
    incident = make_incident(batch=HEALTHY)
    lines = [{"time": "2026-11-29T10:00:00+00:00", "load": 5000.0, "memory_total": 1, "gpus": [{"index": 0, "x": 1}]}]
    with Draft(incident.path.parent) as draft:
        incident.copy_into(draft)
        draft.write_text("telemetry.jsonl", "\n".join([*map(json.dumps, lines), "torn"]))
        manifest = incident.manifest
        told = {"step": 1, "entrypoint": manifest.entrypoint, "layout": manifest.layout}
        incident = Incident.open(draft.publish("with-telemetry", signature=manifest.signature, **told).path)
    found = escalate(incident, n=2)
    assert found.replay.fail == 0 and set(found.captured) == {"load"}
    assert found.sentences()[0].startswith("no attempt failed, so there is nothing to tell apart")
    assert found.sentences()[1].startswith("load 5000 at capture, ")


def test_evidence_of_anybodys_code_is_no_more_than_data(make_incident):
    assert escalated._unpacked("x" * (8 << 20)) is None and escalated._unpacked(3) is None
    assert escalated._unpacked("!!") is None and escalated._unpacked("QUJD") is None
    secret = "ghp_" + "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789", k=36))
    incident = make_incident(f"raise ValueError('token={secret}')", batch=HEALTHY)
    found = escalate(incident, n=1)
    texts = [path.read_text(errors="replace") for path in found.incident.path.rglob("escalation/**/*.[jt]*")]
    assert texts and not any(secret in text for text in texts)


@pytest.mark.parametrize("engine", ["process", "fork", pytest.param("docker", marks=pytest.mark.docker)])
@pytest.mark.slow
def test_it_comes_through_whatever_attempts_run_in(make_incident, engine, request):
    image = request.getfixturevalue("replay_image") if engine == "docker" else None
    inner = "process" if engine == "fork" else None
    found = escalate(make_incident(), engine=engine, inner=inner, image=image, n=2, jobs=2, timeout=250.0)
    assert (found.replay.n, found.replay.fail) == (2, 2)
    told = data_of(found, "attempts/0001.json")["evidence"]
    assert len(told["modules"]) == 5 and told["top"] and told["counters"] and told["host"] and told["notes"] == []
    assert (found.incident.path / "escalation/traces/0001.json.gz").stat().st_size > 500


@pytest.mark.slow
def test_a_step_that_hangs_says_where_it_is(make_incident):
    waited = Symptom(kind=Kind.HANG, where="step", evidence={"hang_after": 4.0})
    hung = Signature(kind=Kind.HANG, where="step")
    found = escalate(
        make_incident("import time; time.sleep(600)", signature=hung, symptoms=(waited,)), engine="process", n=1
    )
    log = (found.incident.path / "escalation/logs/0000.txt").read_text()
    assert found.replay.fail == 1 and "Timeout" in log and ", line " in log and " in step" in log
    assert found.contrast.silent == 1 and data_of(found, "attempts/0000.json")["evidence"]["host"]


def test_logs_of_a_gpu_are_asked_for_where_it_ran_on_one(make_incident, monkeypatch):
    incident = make_incident()
    case = Case(incident=incident.path, evidence=True)
    assert escalating._case(incident, case) == case
    monkeypatch.setattr(Incident, "flags", lambda self: {"device": "cuda:0"})
    assert escalating._case(incident, case).variant.env["CUDA_LAUNCH_BLOCKING"] == "1"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """captured(name): the incident of a recipe, made in a process of its own."""
    folder = tmp_path_factory.mktemp("zoo")
    for file in ("adapter.py", "z32.py", "z48.py"):
        shutil.copy(ZOO / file, folder)
    (folder / "train.py").write_text(
        "import torch, adapter\n"
        "for name in ('z32', 'z48'):\n"
        "    for seed in range(20):\n"
        "        torch.manual_seed(seed)\n"
        "        if adapter.main(name, name, rehearse=False).incidents:\n"
        "            break\n"
    )
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True, timeout=250)
    return lambda name: Incident.open(next((folder / name).iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "says"),
    [("z32", 40, "what tells them apart is the losses"), ("z48", 40, "failing attempts end before `model.proj`")],
)
def test_real_flaky_steps(captured, name, n, says):
    """So many that both answers are there, but in one run of millions."""
    found = escalate(captured(name), engine="fork", inner="process", n=n, jobs=2)
    assert 0 < found.replay.fail < found.replay.n == n
    assert says in found.sentences()[0], found.sentences()
    assert found.to_json()["id"] == Incident.open(found.incident.path).manifest.id


@pytest.fixture
def here(monkeypatch):
    """Attempts of the verb run in this process, in one session for each round."""
    monkeypatch.setattr(pipeline, "engine_of", lambda subject, options, progress: Inline(subject.incident))


def test_the_verb_says_it_where_it_is_asked_and_worth_it(make_incident, cli, tmp_path, here):
    flaky = make_incident(AFTER, batch=HEALTHY)
    words = ("replay", flaky.path, "-n", 6)
    code, out, _ = cli(*words, "--json")
    assert code == 10 and "escalation" not in json.loads(out)
    code, out, _ = cli(*words, "--escalate", "--out", tmp_path / "run")
    lines = out.splitlines()
    assert code == 10 and lines[1].startswith("FLAKY") and lines[2] == "ESCALATED  3/6 failed as captured"
    kept = tmp_path / "run" / f"{flaky.name}-escalated"
    assert f"  evidence in {kept}/escalation" in lines and lines[-1] == f"next: reprokit triage {kept}"
    assert len((tmp_path / "run/attempts.jsonl").read_text().splitlines()) == 2 + 2  # of the first round alone
    code, out, _ = cli("show", kept)
    assert "all 5 outputs of modules" in " ".join(out.replace("│", " ").split()) and "same as" in out
    failing = make_incident()
    code, out, _ = cli("replay", failing.path, "-n", 2, "--escalate", "--json")
    assert code == 0 and json.loads(out)["escalation"] is None
    code, _, err = cli("replay", failing.path, "--engine", "inline", "-n", 2, "--escalate")
    assert code == 2 and "takes fresh processes" in err


def test_a_round_that_breaks_leaves_the_verdict(make_incident, cli, monkeypatch, here):
    def breaks(*_):
        raise Infrastructure("the disk is full")

    monkeypatch.setattr(escalated, "publish", breaks)
    flaky = make_incident(AFTER, batch=HEALTHY)
    code, out, err = cli("replay", flaky.path, "-n", 4, "--escalate", "--json")
    assert code == 10 and json.loads(out)["escalation"] == {"error": "the disk is full"} and "not escalated" in err
