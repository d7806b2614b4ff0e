"""A sheet of pixels that grows downwards, with text and marks on it.

Pixels are painted one by one, so that an outline is exactly where it should be; text is drawn by matplotlib's Agg
canvas at the end. Text comes from incidents, that is, from anybody: it is never read as mathematics or markup, what
cannot be seen or is not in the font is shown by its number, and it is cut where its place ends.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprokit._canvas import BLACK, BLUE, DPI, GREEN, VERMILLION, Colour, font, font_file, require, written
from reprokit.report import escape

# magenta is not in the palette, nor, made sure of, in any picture
WHITE: Colour = (255, 255, 255)
KEPT, HEALED, GUILTY = BLUE, GREEN, VERMILLION
BAD: Colour = (255, 0, 255)  # NaN or Inf

LONGEST = 300  # characters of one text
TALLEST = 12_000  # pixels; more is a mistake, not a picture

_RIGHT_TO_LEFT = {"R", "AL", "AN"}  # would turn the words around it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Text:
    x: int
    y: int  # of its middle
    text: str
    size: int  # pixels
    colour: Colour
    bold: bool
    align: str
    room: int | None  # pixels in which it must fit


class Paper:
    """White, `width` pixels wide, with nothing on it."""

    def __init__(self, width: int) -> None:
        require()
        self.width, self.height = width, 0
        self.pixels: NDArray[np.uint8] = np.full((256, width, 3), 255, np.uint8)
        self.texts: list[_Text] = []

    def space(self, height: int) -> int:
        """More paper at the bottom; returns where it starts."""
        start, self.height = self.height, self.height + height
        assert self.height <= TALLEST
        if self.height > len(self.pixels):
            more = np.full((max(len(self.pixels), height), self.width, 3), 255, np.uint8)
            self.pixels = np.concatenate([self.pixels, more])
        return start

    def paste(self, x: int, y: int, picture: NDArray[np.uint8]) -> None:
        height, width = picture.shape[:2]
        self.pixels[y : y + height, x : x + width] = picture

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        self.pixels[max(0, y) : y + height, max(0, x) : x + width] = colour

    def outline(
        self, x: int, y: int, width: int, height: int, colour: Colour, thick: int, *, dash: int | None = None
    ) -> None:
        """Around, and outside of, a rectangle; dash: pixels of a dash and of the gap after it."""
        ring = np.ones((height + 2 * thick, width + 2 * thick), bool)
        ring[thick:-thick, thick:-thick] = False
        if dash is not None:
            down, across = np.ogrid[: ring.shape[0], : ring.shape[1]]
            ring &= (down + across) // dash % 2 == 0
        self.pixels[y - thick : y + height + thick, x - thick : x + width + thick][ring] = colour

    def cross(self, x: int, y: int, size: int, colour: Colour) -> None:
        """A square with a white X in it: a mark for those who do not see its colour."""
        down, across = np.ogrid[:size, :size]
        arms = (abs(down - across) < 2) | (abs(down + across - size + 1) < 2)
        arms[[0, 1, -2, -1]], arms[:, [0, 1, -2, -1]] = False, False
        self.paste(x, y, np.where(arms[..., None], np.uint8(255), np.array(colour, np.uint8)))

    def write(
        self, x: int, y: int, text: object, *, size: int = 13, colour: Colour = BLACK, bold: bool = False,
        align: str = "left", room: int | None = None,
    ) -> None:  # fmt: skip
        """One line around the height y. Without `room` it may go to the edge of the paper."""
        if room is None and align == "left":
            room = self.width - x - 4
        shown = harmless(text)
        self.texts.append(
            _Text(x=x, y=y, text=shown, size=size, colour=colour, bold=bold, align=align, room=room)
        )

    def save(self, out: Path) -> Path:
        """As PNG. Equal papers give equal bytes."""
        import matplotlib.style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.transforms import IdentityTransform

        with matplotlib.style.context("default"):  # whatever a user's own settings are
            figure = Figure(figsize=(self.width / DPI, self.height / DPI), dpi=DPI)
            canvas: Any = FigureCanvasAgg(figure)  # what it renders with has no types
            figure.figimage(self.pixels[: self.height], origin="upper")
            for one in self.texts:
                figure.text(
                    one.x, self.height - one.y, _fitted(one, canvas.get_renderer()),
                    fontproperties=font(one.size, one.bold), color=[part / 255 for part in one.colour],
                    ha=one.align, va="center_baseline", parse_math=False, transform=IdentityTransform(),
                )  # fmt: skip
            return written(canvas, out)


def harmless(text: object, longest: int = LONGEST) -> str:
    """One line in which everything can be seen, and nothing changes what is around it."""
    shown = escape.line(unicodedata.normalize("NFC", escape.line(str(text)[: 4 * longest])))
    shown = "".join(c if _drawable(c) else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _drawable(character: str) -> bool:
    combining = unicodedata.category(character) in ("Mn", "Me")
    turning = unicodedata.bidirectional(character) in _RIGHT_TO_LEFT
    return not combining and not turning and ord(character) in _glyphs()


def _fitted(one: _Text, renderer: Any) -> str:
    """As much of a text as there is room for."""
    if one.room is None:
        return one.text
    how = font(one.size, one.bold)
    if renderer.get_text_width_height_descent(one.text, how, False)[0] <= one.room:
        return one.text
    fits, fails = 0, len(one.text)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        wide = renderer.get_text_width_height_descent(f"{one.text[:middle]}…", how, False)[0]
        fits, fails = (middle, fails) if wide <= one.room else (fits, middle)
    return f"{one.text[:fits]}…"


@cache
def _glyphs() -> frozenset[int]:
    """What the font can draw, in both its weights."""
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(font_file(False)).get_charmap()) & frozenset(FT2Font(font_file(True)).get_charmap())
