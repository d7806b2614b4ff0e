"""An IncidentCaptured shows where training called the recorder, and none of what the recorder did then."""

import logging
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import reprokit

PACKAGE = str(Path(reprokit.__file__).parent)


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    step = lambda batch: net(batch["x"]).square().mean()
    optimizer = torch.optim.AdamW(net.parameters(), fused=bool(config.get("fused")))
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"})


BAD = {"x": torch.full((2, 3), float("nan"))}
GOOD = {"x": torch.ones(2, 3)}


def by_step(recorder, harness):
    recorder.step(BAD)  # where its numbers are read late, it is judged when the run ends


def by_watch(recorder, harness):
    with recorder.watch(BAD) as watch:
        (loss := harness.step(BAD)).backward()
        harness.optimizer.step()
        watch.losses(loss)


def by_settle(recorder, harness):
    recorder.step(BAD)
    recorder.settle()


def captured(out, loop, late, read_late):
    harness = build(config := {"fused": bool(late)})
    with reprokit.Recorder(harness, build=build, config=config, out=out, rehearse=False) as recorder:
        read_late(recorder, late)
        for _ in range(4):  # the first of a fused optimizer are not read late
            recorder.step(GOOD)
        loop(recorder, harness)


@pytest.mark.parametrize(
    ("loop", "late", "last"), [(by_step, 0, "by_step"), (by_settle, 3, "by_settle"), (by_step, 3, "__exit__")]
)
def test_its_traceback_ends_where_the_loop_called(tmp_path, read_late, loop, late, last):
    with pytest.raises(reprokit.IncidentCaptured) as caught:
        captured(tmp_path, loop, late, read_late)
    seen = traceback.extract_tb(caught.value.__traceback__)
    assert seen[-1].name == last and sum(one.filename.startswith(PACKAGE) for one in seen) == (last == "__exit__")


def test_a_watch_adds_the_one_frame_of_pythons_with(tmp_path, read_late):
    with pytest.raises(reprokit.IncidentCaptured) as caught:
        captured(tmp_path, by_watch, 0, read_late)
    seen = traceback.extract_tb(caught.value.__traceback__)
    assert seen[-2].name == "by_watch" and not any(one.filename.startswith(PACKAGE) for one in seen)


def train(step, out):
    harness = build({})
    harness.step = step
    with reprokit.Recorder(harness, build=build, config={}, out=out, rehearse=False) as recorder:
        recorder.step(GOOD)


def test_a_step_that_has_a_recorder_of_its_own_is_still_seen(tmp_path, read_late):
    with pytest.raises(reprokit.IncidentCaptured) as caught:
        train(lambda batch: captured(tmp_path, by_step, 0, read_late), tmp_path)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "by_step"


def test_an_exception_of_the_step_keeps_all_of_its_frames(tmp_path):
    with pytest.raises(KeyError) as caught:
        train(lambda batch: batch["no frames"], tmp_path)
    assert [one.name for one in traceback.extract_tb(caught.value.__traceback__)][-3:] == ["step", "run", "<lambda>"]


@pytest.mark.slow
def test_a_rehearsal_that_passed_is_said_once_with_where_incidents_go(tmp_path, caplog):
    caplog.set_level(logging.INFO, "reprokit")
    with reprokit.Recorder(
        build({}), build=build, config={}, out=tmp_path / "incidents", rehearse=True, steps_before=7
    ) as recorder:
        for _ in range(4):
            recorder.step(GOOD)
    said = [record for record in caplog.records if "replay" in record.getMessage()]
    assert [(one.levelno, one.getMessage()) for one in said] == [
        (
            logging.INFO,
            f"steps 8 and 9 replay bit for bit in a fresh process; incidents go to {tmp_path / 'incidents'}",
        )
    ]
    assert recorder.rehearsed == 2
