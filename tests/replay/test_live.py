from pathlib import Path

from reprokit.replay.live import Live
from reprokit.replay.result import Replay
from reprokit.replay.strata import Attempt
from reprokit.step.outcome import Outcome, Status

FAIL = Outcome(status=Status.FAIL, fingerprint={"losses": "aa"})
PASS = Outcome(status=Status.PASS, fingerprint={"losses": "bb"})
BROKE = Outcome(status=Status.INFRA)


class Told:
    """A replay that is told attempt by attempt, each of which takes `seconds`."""

    def __init__(self, *outcomes, asked=14, seconds=1.0, room=1, gpus=0, kept=0, captured=None):
        self.now, self.said, self.shown = 0.0, [], []
        attempts = [Attempt(index=index, outcome=outcome) for index, outcome in enumerate(outcomes)]
        show = lambda what, done, total, note: self.shown.append((what, done, total, note))
        live = Live(
            "docker", room=room, gpus=gpus, kept=attempts[:kept], say=self.said.append, show=show,
            clock=lambda: self.now,
        )  # fmt: skip
        live.begin(asked)
        for end in range(kept + 1, len(attempts) + 1):
            self.now += seconds
            live(Replay(
                engine="docker", asked=asked, min_rate=0, stopped="interrupted", attempts=tuple(attempts[:end]),
                captured=captured or {}, folder=Path("run"),
            ))  # fmt: skip


def test_the_line_has_attempts_counts_interval_fingerprints_and_the_time_left():
    told = Told(FAIL, PASS, BROKE, FAIL, seconds=2.0)
    what, done, total, note = told.shown[-1]
    assert (what, done, total) == ("replay in docker", 3, 14)
    assert note == "2 failed, 6% to 100%, 2 fingerprints, 1 without an answer, about 29 s left"
    assert told.shown[0][1:] == (0, 14, "") and told.said == []


def test_before_a_long_wait_its_length_is_said_once():
    told = Told(FAIL, FAIL, FAIL, seconds=60.0, room=2)
    assert told.said == ["about 7 min for up to 13 more attempts, 2 at once"]
    assert Told(FAIL, FAIL, seconds=4.0).said == []


def test_gpus_that_are_held_meanwhile_are_counted():
    assert Told(FAIL, seconds=600.0, gpus=4, asked=7).said == [
        "about 60 min for up to 6 more attempts, 1 at once, 4.0 GPU hours"
    ]


def test_one_that_goes_on_counts_its_own_time_alone():
    told = Told(*[FAIL] * 5, kept=4, seconds=10.0)
    assert told.shown[0][1:] == (4, 14, "") and told.shown[-1][3].endswith("about 2 min left")


def test_other_versions_are_said_aloud_once():
    newer = Outcome(status=Status.PASS, versions={"torch": "2.13.0+cpu", "python": "3.11.1"})
    told = Told(newer, newer, captured={"torch": "2.9.0", "python": "3.11.2"})
    assert told.said == [
        "torch 2.13.0+cpu here, newer than captured (2.9.0)",
        "python 3.11.1 here, not the one that was captured (3.11.2)",
    ]
