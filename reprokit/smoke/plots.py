"""What a step sees and makes, as pictures: values that modules get, features, and losses over some steps.

For people who want to look before they believe: a dead view is a spike in one thin line, a second normalisation a mean
that is far from zero, a collapse a spectrum that falls off a cliff. PNG files, drawn with matplotlib (the extra
`pictures`). Names in them come from the user's code and are never read as mathematics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reprokit import _canvas
from reprokit._canvas import BLACK, BLUE, DPI, GREY, PALE, VERMILLION, Colour, font, rgb
from reprokit._files import shown
from reprokit.errors import BadInput
from reprokit.smoke import course, views
from reprokit.smoke.bench import Bench
from reprokit.smoke.course import Course
from reprokit.smoke.doors import Call
from reprokit.smoke.gate import Subject
from reprokit.smoke.words import counted

STEPS = 30  # enough to see a loss fall or burst, and a minute at two seconds a step
WIDTH, ROW, HEAD, BOTTOM = 1100, 240, 64, 56  # pixels: of a picture, a row of panels, the title, the lowest label
LEFT, RIGHT, ABOVE = 100, 24, 40  # around a panel
GAP = 90  # between panels side by side, for the label of the right one
MOST = 8  # rows of panels in a picture
BINS = 60
CLIPS = 32  # thin lines in one panel: more cannot be told apart
STEEP = 30.0  # from here on a range is read better on a logarithmic scale
VALUES = 1_000_000  # that a histogram is made of: every so manieth of more

Array = NDArray[np.float64]


def draw(subject: Subject, folder: Path, taken: Course | None = None) -> list[Path]:
    """Pictures of a harness, below `folder`: views.png, features.png, losses.png. What cannot be drawn is not there.

    taken: the steps to draw, where somebody took them. Costs a forward pass for each entry of the first batch and one
    more, and some steps on it. Raises BadInput where there is no batch, matplotlib is missing or the folder cannot be
    written to, and what a step raises.
    """
    _canvas.require()
    if not subject.batches:
        raise BadInput(f"--plots: nothing to draw: {subject.no_batches or 'there are no batches'}")
    batch = subject.batches[0]
    harness = subject.harness()
    bench = Bench(harness, subject.seed)
    calls = views.calls_of(bench, batch)
    if taken is None:
        taken = course.take(subject.harness(), batch, STEPS, subject.seed)
    drawn = [
        _views(calls, views.entries_of(bench, batch, calls), folder / "views.png"),
        _features(taken, folder / "features.png"),
        _losses(taken, folder / "losses.png"),
    ]
    return [path for path in drawn if path is not None]


def _views(calls: Sequence[Call], entries: Sequence[str], out: Path) -> Path | None:
    """Of each call of a module, how often it gets which value; thin lines are its clips or samples."""
    every = [(call, entry, values) for call, entry in zip(calls, entries) for values in call.inputs if values.numel()]
    if not every:
        return None
    title = "What modules get of each entry of the batch"
    note = f"{_left_out(len(every))}thick: all of them; thin: each clip or sample"
    with _picture(title, min(len(every), MOST), out, note=note) as rows:
        for number, (call, entry, values) in enumerate(every[:MOST], start=1):
            axes = rows(1)[0]
            flat = _finite(values)
            edges = _edges(flat)
            if len(values) <= CLIPS and values.ndim > 1:
                for clip in values:
                    axes.stairs(_shares(_finite(clip), edges), edges, color=rgb(GREY), lw=0.6, alpha=0.6)
            axes.stairs(_shares(flat, edges), edges, color=rgb(BLUE), lw=2, fill=False)
            size = " x ".join(map(str, values.shape))
            _title(axes, f"{entry or f'call {number}'}: {call.module} gets {size}", _moments(flat), _bad(values))
            _labels(axes, "value", "share of values")
    return out


def _features(taken: Course, out: Path) -> Path | None:
    """Of each module's outputs, before and after the steps: deviation of each feature, and the spectrum."""
    judged = [name for name, rows in taken.last.items() if len(rows) > 1 and rows.shape[-1] > 1]
    if not judged:
        return None
    steps = len(taken.losses)
    title = f"Features in the first step and in step {steps}, on one batch"
    with _picture(title, min(len(judged), MOST), out, note=_left_out(len(judged))) as rows:
        for name in judged[:MOST]:
            left, right = rows(2)
            for values, colour, wide, label in (
                (taken.first.get(name), PALE, 7, "first step"),  # so wide that it is seen behind one that agrees
                (taken.last[name], BLUE, 2, f"step {steps}"),
            ):
                if values is None or not bool(values.isfinite().all()):
                    continue
                points = values.cpu().double()  # not every device has float64
                deviations = points.std(0, correction=0).sort(descending=True).values
                left.plot(range(1, 1 + len(deviations)), deviations.numpy(), color=rgb(colour), lw=wide, label=label)
                spectrum = _spectrum(points)
                right.plot(
                    range(1, 1 + len(spectrum)), spectrum, color=rgb(colour), lw=wide, marker="o", ms=3, label=label
                )
            last = taken.last[name]
            bad = "" if bool(last.isfinite().all()) else f"not finite in step {steps}"
            _title(left, f"{name}: deviation of each feature", f"{len(last)} rows of {last.shape[-1]}", bad)
            _title(right, "spectrum of the covariance")
            scale = ""
            if right.lines:
                scale = _decades(right)
                left.set_ylim(bottom=0)
            _labels(left, "feature, by deviation", "deviation")
            _labels(right, "direction", f"share of variance{scale}")
            for axes in (left, right):
                _whole_numbers(axes)
                if axes.lines:
                    axes.legend(prop=font(12), frameon=False, loc="upper right")
                else:
                    _nothing(axes)
    return out


def _losses(taken: Course, out: Path) -> Path | None:
    """Each term, and the norm of the gradients, step by step."""
    if not taken.losses:
        return None
    curves: dict[str, list[float]] = {}
    for name in taken.losses[0]:
        curves[name] = [terms.get(name, float("nan")) for terms in taken.losses]
    norms = [float("nan") if norm is None else norm for norm in taken.grad_norms]
    if any(map(isfinite, norms)):
        curves["gradient norm, before clipping"] = norms
    count = len(taken.losses)
    title = f"{counted(count, 'step')} on one batch, each with the same random numbers"
    symptom = taken.symptom
    with _picture(title, min(len(curves), MOST), out, note=_left_out(len(curves))) as rows:
        for place, (name, values) in enumerate(list(curves.items())[:MOST]):
            axes = rows(1)[0]
            steps = range(1, 1 + len(values))
            axes.plot(steps, values, color=rgb(GREY if name.startswith("gradient") else BLUE), lw=2, marker="o", ms=3)
            sound = [value for value in values if isfinite(value)]
            steep = sound and min(sound) > 0 and max(sound) > STEEP * min(sound)
            scale = _decades(axes) if steep else ", linear"
            axes.set_xlim(0.5, max(2, len(values)) + 0.5)
            _whole_numbers(axes)
            bad = ""
            if symptom is not None:
                axes.axvline(len(values), color=rgb(VERMILLION), lw=1.5)
                bad = f"{symptom.kind} at {symptom.where} in step {len(values)}" if place == 0 else ""
            _title(axes, name, _ends(sound), bad)
            _labels(axes, "step", ("norm" if name.startswith("gradient") else "loss") + scale)
            if not sound:
                _nothing(axes)
    return out


@contextmanager
def _picture(title: str, count: int, out: Path, *, note: str = "") -> Iterator[Any]:
    """A figure of so many rows of panels; gives a function that makes the next row, of so many panels side by side."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = HEAD + count * (ABOVE + ROW + BOTTOM)
    with matplotlib.style.context("default"):  # whatever a user's own settings are
        figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
        canvas = FigureCanvasAgg(figure)
        _write(figure.text, 14 / WIDTH, 1 - 30 / height, title, size=19, bold=True)
        _write(figure.text, 1 - RIGHT / WIDTH, 1 - 30 / height, note, colour=GREY, ha="right")
        made = 0

        def rows(panels: int) -> list[Any]:
            nonlocal made
            bottom = height - HEAD - made * (ABOVE + ROW + BOTTOM) - ABOVE - ROW
            wide = (WIDTH - LEFT - RIGHT - (panels - 1) * GAP) / panels
            made += 1
            return [
                figure.add_axes(((LEFT + place * (wide + GAP)) / WIDTH, bottom / height, wide / WIDTH, ROW / height))
                for place in range(panels)
            ]

        yield rows
        _canvas.written(canvas, out)


def _title(axes: Any, text: str, about: str = "", bad: str = "") -> None:
    """Above a panel: what it is on the left, numbers on the right; in vermillion what is wrong."""
    _write(axes.text, 0, 1.05, text, size=14, bold=True, transform=axes.transAxes)
    _write(axes.text, 1, 1.05, bad or about, colour=VERMILLION if bad else GREY, ha="right", transform=axes.transAxes)


def _nothing(axes: Any) -> None:
    """In the place of a curve; a scale would be made up."""
    axes.set_yticks([])
    _write(axes.text, 0.5, 0.5, "nothing finite", colour=GREY, ha="center", transform=axes.transAxes)


def _labels(axes: Any, below: str, beside: str) -> None:
    axes.grid(True, color=rgb(PALE), lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_fontproperties(font(13))
    axes.set_xlabel(below, fontproperties=font(13), parse_math=False)
    axes.set_ylabel(beside, fontproperties=font(13), parse_math=False)


def _decades(axes: Any) -> str:
    """A logarithmic scale from one power of ten to another, with numbers that the font has; what to call it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.dataLim.intervaly
    axes.set_yscale("log")
    if 0 < low <= high:
        axes.set_ylim(10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high)) * 1.05)
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    return ", log scale"


def _whole_numbers(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))


def _write(
    place: Any, x: float, y: float, text: str, *, size: int = 13, bold: bool = False, colour: Colour = BLACK, **how: Any
) -> None:
    if text:
        place(x, y, shown(text), fontproperties=font(size, bold), color=rgb(colour), parse_math=False, **how)


def _finite(values: torch.Tensor) -> Array:
    flat = values.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() // VALUES)].float().cpu()
    found: Array = flat[flat.isfinite()].double().numpy()
    return found


def _edges(values: Array) -> Array:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    wider = 0.5 if low == high else 0.0
    edges: Array = np.linspace(low - wider, high + wider, BINS + 1)
    return edges


def _shares(values: Array, edges: Array) -> Array:
    counts, _ = np.histogram(values, edges)
    shares: Array = counts / max(1, len(values))
    return shares


def _spectrum(points: torch.Tensor) -> list[float]:
    """Shares of the variance, from the largest; those that rounding leaves are left out."""
    values = torch.linalg.svdvals(points - points.mean(0)).square()
    total = float(values.sum())
    return [share for share in (values / total).tolist() if share > 1e-12] if total > 0 else []


def _moments(values: Array) -> str:
    if not len(values):
        return "nothing finite"
    mean, deviation = float(values.mean()), float(values.std())
    return f"mean {mean:.3g}, deviation {deviation:.3g}, from {values.min():.3g} to {values.max():.3g}"


def _bad(values: torch.Tensor) -> str:
    count = int((~values.isfinite()).sum())
    return f"{count:,} of {values.numel():,} values are not finite" if count else ""


def _ends(values: Sequence[float]) -> str:
    return f"{values[0]:.4g} to {values[-1]:.4g}" if values else ""


def _left_out(count: int) -> str:
    return f"{MOST} of {count} · " if count > MOST else ""
