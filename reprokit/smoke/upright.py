"""Do rows of a frame arrive as rows? Told from clips that vary from row to row alone.

A square frame that is transposed has the right size, and noise in it is noise as before. So all frames are filled with
values that are equal along each row: wherever they were cropped, mirrored, resized, recoloured or tilted, a clip still
varies from row to row more than within one. One that lies on its side varies along axis 4. Quarter turns that a step
draws look the same, but not in each draw: a clip has failed that never once stands upright.
"""

from __future__ import annotations

from typing import Any

from reprokit.layout import Layout
from reprokit.smoke.clips import CLIP, Trials, pictures, striped
from reprokit.smoke.gate import Finding, Gate
from reprokit.smoke.words import counted

DRAWS = 16  # of the step's own random numbers: quarter turns by chance lie down in all of them once in 65,536 times
STEEPER = 4.0  # between squares of slopes: upright up to a tilt of 27 degrees, on its side from 63 on

_EXPECTED = "what varies from row to row varies along axis 3"
_ADVICE = (
    "keep h before w on the way, as einops.rearrange(x, 'b t c h w -> b c t h w') does; if clips lie on their side as "
    "they come, let the layout name w before h"
)


class Upright:
    """One row for a gate. Costs a forward pass where all is well, and one for each draw where it is not."""

    def __init__(self, gate: Gate, check: str) -> None:
        self._gate, self._check = gate, check

    def look(self, bench: Trials, batch: Any, layout: Layout, seed: int) -> Finding:
        gate, check = self._gate, self._check
        clips = [one for one in pictures(batch, layout).values() if one.frames is not None]
        unnamed = [one.name for one in clips if None in (one.rows, one.columns)]
        if unnamed:
            return gate.not_applicable(check, f"the layout names no axes h and w of {unnamed[0] or 'the batch'}")
        stripes = striped(batch, layout, seed)
        slopes = _slopes(bench, stripes)
        met, standing, lying = set(slopes), _steep(slopes, 0, 1), _steep(slopes, 1, 0)
        for draw in range(1, DRAWS):
            if met <= standing:
                break
            slopes = _slopes(bench, stripes, draw)
            standing |= _steep(slopes, 0, 1)
            lying &= _steep(slopes, 1, 0)
        if lying:
            observed = f"along axis 4 in {len(lying)} of {len(met)} clips, whatever the step draws"
            return gate.failed(check, _EXPECTED, observed, _ADVICE)
        if met and met <= standing:
            return gate.passed(check, _EXPECTED, f"it does, in {counted(len(met), 'clip')}")
        return gate.not_applicable(check, "rows are not told from columns in what arrives")


_Clip = tuple[int, int]  # number of the call, and of the clip in it


def _slopes(bench: Trials, batch: Any, seed: int | None = None) -> dict[_Clip, tuple[float, float]]:
    """Of each clip the mean squares of differences along axes 3 and 4."""
    found: dict[_Clip, tuple[float, float]] = {}
    calls = [one for one in bench.forward(batch, seed).received if len(one.shape) == CLIP]
    for call, received in enumerate(calls):
        values = received.clip.detach().cpu().double()
        down, along = (values.diff(dim=axis).square().mean(dim=(1, 2, 3, 4)).tolist() for axis in (3, 4))
        found |= {(call, clip): pair for clip, pair in enumerate(zip(down, along))}
    return found


def _steep(slopes: dict[_Clip, tuple[float, float]], this: int, other: int) -> set[_Clip]:
    """Those that are steeper this way than the other."""
    return {clip for clip, pair in slopes.items() if pair[this] > STEEPER * pair[other]}
