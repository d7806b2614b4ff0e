"""The curve of size against evaluations: it says where it ends, and takes whatever a trail holds."""

import sys
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from reprokit.errors import BadInput
from reprokit.report.figures import curve, paper
from reprokit.report.figures.curve import percent

TRAIL = [(1, 1.0), (3, 0.5), (7, 0.125), (20, 0.0012)]


def pixels(file):
    return np.asarray(Image.open(file).convert("RGB"))


def line(picture):
    """Columns with the line in them, and the rows of its pixels in each."""
    found = (picture == paper.KEPT).all(axis=2)
    return [(x, np.flatnonzero(found[:, x])) for x in np.flatnonzero(found.any(axis=0))]


def test_the_line_falls_and_never_rises(tmp_path):
    found = line(pixels(curve(TRAIL, tmp_path / "curve.png")))
    tops = [rows.min() for _, rows in found]
    assert len(found) > 500 and tops[-1] - tops[0] > 200
    assert all(after >= before - 6 for before, after in pairwise(tops))  # the last point is a disc


@pytest.mark.parametrize(("share", "text"), [(1.0, "100%"), (0.5, "50%"), (0.00125, "0.125%"), (3e-9, "3.0e-09")])
def test_shares_are_written_as_people_write_them(share, text):
    assert percent(share) == text


def test_phases_are_lines_with_names(tmp_path, monkeypatch):
    from matplotlib.text import Text

    written = []
    monkeypatch.setattr(Text, "__init__", spied(Text.__init__, written))
    phases = [(1, "isolation"), (3, "search b"), (3, "hidden by the one before"), (7, "$t$\x1b"), (99, "beyond")]
    with_phases = curve(TRAIL, tmp_path / "a.png", phases=phases)
    assert {"isolation", "search b", r"$t$\x1b"} <= set(written) and not {"beyond", "$t$\x1b"} & set(written)
    assert with_phases.read_bytes() != curve(TRAIL, tmp_path / "b.png").read_bytes()


def spied(init, written):
    def spy(self, *args, **how):
        init(self, *args, **how)
        written.append(self.get_text())

    return spy


share = st.floats(-1, 2) | st.sampled_from([nan, inf, 5e-324, 1e-12])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(-1, 10**6), share), max_size=8),
    st.lists(st.tuples(st.integers(-1, 10**6), st.text()), max_size=4),
    st.text(),
)
def test_no_trail_makes_it_fail(tmp_path, trail, phases, title):
    picture = pixels(curve(trail, tmp_path / "curve.png", phases=phases, title=title))
    assert picture.shape == (560, 1100, 3)


def test_equal_trails_give_equal_bytes(tmp_path):
    same = [curve(TRAIL, tmp_path / f"{name}.png", title="x", phases=[(3, "b")]).read_bytes() for name in "ab"]
    assert same[0] == same[1] and len(same[0]) < 100_000


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'reprokit\[pictures\]'"):
        curve(TRAIL, tmp_path / "curve.png")
