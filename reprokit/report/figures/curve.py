"""How a reduction went: the size of the smallest case that still fails, after each evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

from reprokit import _canvas
from reprokit._canvas import BLACK, DPI, GREY, PALE, rgb
from reprokit.report.figures.paper import KEPT, harmless

SIZE = (1100, 560)  # pixels
LEFT, BOTTOM, WIDTH = 0.09, 0.12, 0.87  # of the plot in the picture
LONGEST = 90  # characters of the title
PHASE = 22  # characters of the name of a phase: what fits above the plot, upright
CLOSEST = 0.02  # of the width, between two names of phases


def curve(
    trail: Sequence[tuple[int, float]], out: Path, *, title: str = "", phases: Sequence[tuple[int, str]] = ()
) -> Path:
    """Draw size against evaluations as a PNG file.

    trail: evaluations so far, and what is left then of the batch's elements, as a share of them. phases: the evaluation
    at which a part of the search begins, and its name (an axis, say).
    """
    _canvas.require()
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = _points(trail)
    with matplotlib.style.context("default"):  # whatever a user's own settings are
        figure = Figure(figsize=(SIZE[0] / DPI, SIZE[1] / DPI), dpi=DPI)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((LEFT, BOTTOM, WIDTH, 0.60 if phases else 0.76))
        _scales(axes, points)
        axes.step([calls for calls, _ in points], [share for _, share in points], where="post", color=rgb(KEPT), lw=2)
        _phases(axes, phases, points[-1][0])
        _end(figure, axes, *points[-1])
        _write(figure.text, 0.02, 0.94, harmless(title, LONGEST) or "Size of the case", size=18, bold=True)
        return _canvas.written(canvas, out)


def percent(share: float) -> str:
    """As people write it, however small."""
    return f"{100 * share:.3g}%" if share >= 1e-6 else f"{share:.1e}"


def _points(trail: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """In order, and from the whole batch on. What cannot be drawn on a log scale is left out."""
    sound = sorted((calls, share) for calls, share in trail if calls >= 0 and isfinite(share) and share > 0)
    return sound if sound and sound[0][0] == 0 else [(0, 1.0), *sound]


def _scales(axes: Any, points: Sequence[tuple[int, float]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    shares = [share for _, share in points]
    axes.set_yscale("log")
    axes.set_ylim(min(0.5, min(shares) / 1.8), max(1.0, *shares) * 1.4)
    axes.set_xlim(0, max(1, points[-1][0]) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, color=rgb(PALE), lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_fontproperties(_canvas.font(13))
    for side, text in ((axes.set_xlabel, "evaluations"), (axes.set_ylabel, "share of the whole batch")):
        side(text, fontproperties=_canvas.font(13), parse_math=False)


def _phases(axes: Any, phases: Sequence[tuple[int, str]], last: int) -> None:
    """A line where each begins, and its name above the plot unless it would cover the one before."""
    taken = -1.0
    for start, name in sorted((one for one in phases if 0 <= one[0] <= last), key=itemgetter(0)):
        axes.axvline(start, color=rgb(GREY), lw=0.8, ls=":")
        place = start / (max(1, last) * 1.02)
        if place >= taken + CLOSEST:
            taken = place
            _write(axes.text, place, 1.03, harmless(name, PHASE), rotation=60, transform=axes.transAxes)


def _end(figure: Any, axes: Any, calls: int, share: float) -> None:
    """The last point, and what it is."""
    axes.plot([calls], [share], marker="o", ms=6, color=rgb(KEPT), clip_on=False)
    text = f"{percent(share)} after {calls:,} evaluation{'s' * (calls != 1)}"
    _write(figure.text, LEFT + WIDTH, 0.94, text, size=15, ha="right")


def _write(place: Any, x: float, y: float, text: str, *, size: int = 13, bold: bool = False, **how: Any) -> None:
    place(x, y, text, fontproperties=_canvas.font(size, bold), color=rgb(BLACK), parse_math=False, **how)
