"""What counts as a failure beyond non-finite values, and how it is found again in a replay."""

from reprokit.step.detectors.watching import Watching, of_one_step, of_replay, of_run

__all__ = ["Watching", "of_one_step", "of_replay", "of_run"]
