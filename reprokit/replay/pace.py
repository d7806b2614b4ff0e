"""How long the rest takes, from how long it took so far. Pure: the clock is whoever asks."""

from __future__ import annotations

from math import ceil

LONG = 60.0  # seconds: who is told that it takes longer may still choose to make fewer attempts


def left(elapsed: float, done: int, total: int, room: int) -> float:
    """Seconds until `total` attempts have ended, `room` at a time, after `done` of them took `elapsed`. Attempts come
    in waves: the first to end says what all of its wave take."""
    return elapsed / max(1, _waves(done, room)) * _waves(max(0, total - done), room)


def _waves(count: int, room: int) -> int:
    return ceil(count / max(1, room))


def gpu_hours(seconds: float, total: int, room: int, gpus: int) -> float:
    """For so many attempts at once at most, on so many GPUs each."""
    return seconds / 3600 * min(room, total) * gpus


def spoken(seconds: float) -> str:
    """No more precise than it is known."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
