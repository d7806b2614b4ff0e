"""What all pictures share: matplotlib without pyplot, one font, a few colours, and a PNG file that is whole or absent.

matplotlib (the extra `pictures`) is imported when the first picture is drawn. No window, and nothing of a user's own
plots changes. Equal pictures give equal bytes.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from reprokit import _files
from reprokit.errors import BadInput

Colour = tuple[int, int, int]

# Okabe and Ito's palette, which colour-blind people tell apart
BLACK, GREY, PALE = (32, 32, 32), (96, 96, 96), (204, 204, 204)
BLUE: Colour = (0, 114, 178)
GREEN: Colour = (0, 158, 115)  # bluish
VERMILLION: Colour = (213, 94, 0)

DPI = 128  # a power of two: sizes in inches are exact, and so is the number of pixels


def require() -> None:
    """Raises BadInput where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BadInput("pictures: matplotlib is not installed; `pip install 'reprokit[pictures]'`") from error


def written(canvas: Any, out: Path) -> Path:
    """The picture of a canvas as a PNG file, without a date or a version in it. Raises BadInput where it cannot be."""
    data = BytesIO()
    canvas.print_png(data, metadata={"Software": None})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _files.write_out(out, data.getvalue())
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error.strerror}); choose another folder") from error
    return out


@cache
def font(size: int, bold: bool = False) -> Any:
    """matplotlib's own font, by its file: what else is installed makes no difference. size: in pixels."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(fname=font_file(bold), size=size * 72 / DPI)


def font_file(bold: bool) -> str:
    import matplotlib

    return str(Path(matplotlib.get_data_path()) / "fonts/ttf" / f"DejaVuSans{'-Bold' if bold else ''}.ttf")


def rgb(colour: Colour) -> list[float]:
    """As matplotlib wants it."""
    return [part / 255 for part in colour]
