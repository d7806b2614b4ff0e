"""What a contact sheet shows: the marks are where the reduction says, and whatever the batch is, there is a picture."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.incident import Draft
from reprokit.layout import Layout
from reprokit.report.figures import cells, contact_sheet, marks, paper, plan, sheet_of, thumbs
from reprokit.report.figures.marks import Mark, Marks

VIDEO = Layout.parse({"global": "b t c h w", "local": "b v t c h w", "source": "b", "label": "b"})


def axis(size, kept, guilty=(), healed=()):
    return {"size": size, "kept": list(kept), "healed": list(healed), "guilty": list(guilty), "together": False}


def batch(samples=3, frames=4, side=16, views=2):
    """Grey everywhere, so that no colour on the sheet comes from its content."""
    return {
        "global": torch.full((samples, frames, 3, side, side), 90, dtype=torch.uint8),
        "local": torch.full((samples, views, frames, 3, side, side), 90, dtype=torch.uint8),
        "source": [f"clip{i}.mp4" for i in range(samples)],
        "label": torch.arange(samples),
    }


def pixels(file):
    return np.asarray(Image.open(file).convert("RGB"))


def drawn(held, layout, reduction, tmp_path):
    return pixels(contact_sheet(held, layout, reduction, tmp_path / "sheet.png"))


def count(picture, colour):
    return int((picture == colour).all(axis=2).sum())


def runs(picture, colour, length):
    """How many horizontal lines of at least this length there are in exactly this colour."""
    same = (picture == colour).all(axis=2)
    held = same[:, : same.shape[1] - length + 1].copy()
    for shift in range(1, length):
        held &= same[:, shift : shift + held.shape[1]]
    return int(held.any(axis=1).sum())


@pytest.fixture
def texts(monkeypatch):
    """Every text that is put on paper."""
    written, write = [], paper.Paper.write

    def spy(self, x, y, text, **how):
        write(self, x, y, text, **how)
        written.append(self.texts[-1].text)

    monkeypatch.setattr(paper.Paper, "write", spy)
    return written


# what is marked


def test_the_guilty_frame_has_an_outline_of_its_colour_and_a_cross(tmp_path):
    reduction = {"axes": {"b": axis(3, [1], [1]), "t": axis(4, [2], [2]), "v": axis(2, [0])}}
    plain, told = drawn(batch(), VIDEO, None, tmp_path), drawn(batch(), VIDEO, reduction, tmp_path)
    assert runs(plain, paper.GUILTY, 40) == 0
    assert runs(told, paper.GUILTY, 100) >= 8  # four pixels above and four below
    assert runs(plain, paper.KEPT, 40) == 0 and count(told, paper.KEPT)


def test_only_what_was_dropped_is_pale(tmp_path):
    reduction = {"axes": {"b": axis(3, [1]), "t": axis(4, [2]), "v": axis(2, [0])}}
    plain, told = drawn(batch(), VIDEO, None, tmp_path), drawn(batch(), VIDEO, reduction, tmp_path)
    pale = round(255 * (1 - (1 - 90 / 255) * 0.22))
    assert runs(plain, (90, 90, 90), 30) and not runs(plain, (pale,) * 3, 30)
    assert runs(told, (90, 90, 90), 30) and runs(told, (pale,) * 3, 30) > runs(told, (90, 90, 90), 30)


def test_nan_is_seen_wherever_it_is(tmp_path):
    held = {"x": torch.zeros(2, 3, 3, 224, 224)}
    layout = Layout.parse({"x": "b t c h w"})
    assert count(drawn(held, layout, None, tmp_path), paper.BAD) == 0
    held["x"][1, 2, 0, 100, 100] = float("nan")  # one value of 150,528, in a frame that a reduction drops
    told = drawn(held, layout, {"axes": {"b": axis(2, [0])}}, tmp_path)
    assert count(told, paper.BAD) > 100


def test_its_colour_means_nothing_else(tmp_path):
    magenta = torch.tensor([255, 0, 255], dtype=torch.uint8).view(1, 1, 3, 1, 1).expand(2, 2, 3, 8, 8)
    assert count(drawn({"x": magenta}, Layout.parse({"x": "b t c h w"}), None, tmp_path), paper.BAD) == 0


def test_a_guilty_region_is_outlined_within_its_frame(tmp_path):
    region = {"entry": "global", "b": [1], "t": [2], "h": [4, 5, 6, 7], "w": [0, 1, 2, 3], "guilty": True}
    axes = {"b": axis(3, [1]), "t": axis(4, [2]), "v": axis(2, [0])}
    without = drawn(batch(), VIDEO, {"axes": axes}, tmp_path)
    told = drawn(batch(), VIDEO, {"axes": axes, "regions": [region]}, tmp_path)
    assert runs(without, paper.GUILTY, 30) == 0 and 4 <= runs(told, paper.GUILTY, 30) < 20


def test_constant_frames_and_bad_values_are_named(tmp_path, texts):
    held = {"x": torch.rand(2, 4, 3, 8, 8)}
    held["x"][0, 1:3] = 0.25
    held["x"][1, 0] = float("nan")
    held["x"][1, 3, 0] = float("inf")
    contact_sheet(held, Layout.parse({"x": "b t c h w"}), None, tmp_path / "sheet.png")
    assert {"frames 1-2: constant 0.25", "frame 0: all NaN", "frame 3: 33% Inf"} <= set(texts)


def test_a_frame_that_is_black_before_normalisation_is_constant():
    found = thumbs.thumb((-MEAN / STD).expand(3, 8, 8), ("c", "h", "w"), (4, 4))
    assert len(found.constant) == 3


def test_small_entries_of_the_guilty_sample_are_listed_as_they_are(tmp_path, texts):
    held = batch() | {"source": ["a", r"$\frac{1}{2}$ \x1b[31m".replace(r"\x1b", "\x1b") + "\u202e", "c"]}
    contact_sheet(held, VIDEO, {"axes": {"b": axis(3, [1], [1])}}, tmp_path / "sheet.png")
    listed = [text for text in texts if text.startswith("source")]
    assert listed == [r"source $\frac{1}{2}$ \x1b[31m\u202e · label 1"]


# what of a large batch is shown


def test_what_matters_is_shown_of_a_large_batch_and_the_rest_is_counted(tmp_path, texts):
    held = {"x": torch.zeros(96, 64, 1, 8, 8, dtype=torch.uint8)}
    reduction = {"axes": {"b": axis(96, [41], [41]), "t": axis(64, [50, 51], [51])}}
    picture = drawn(held, Layout.parse({"x": "b t c h w"}), reduction, tmp_path)
    assert {"sample 41", "sample 40", "sample 42", "50", "51"} <= set(texts)
    assert any(text.startswith("+ 90 more samples, 48 more frames") for text in texts)
    assert picture.shape[0] < 1600 and picture.shape[1] < 1500


@given(st.integers(1, 300), st.data())
def test_choose_keeps_its_promises(size, data):
    first = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    limit, context = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 30))
    chosen = plan.choose(size, first, limit, context)
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(range(size))
    assert len(chosen) <= limit and set(first[:limit]) <= set(chosen)
    assert len(chosen) == min(size, limit) if size <= limit else len(chosen) <= len(first[:limit]) + context
    if size > limit and len(first) < limit:
        assert len(chosen) == min(limit, len(first) + context)


def test_a_large_batch_stays_small_on_paper(tmp_path):
    clips = torch.zeros(1, 1, 1, 1, 1, dtype=torch.uint8).expand(96, 16, 3, 224, 224)
    file = contact_sheet({"x": clips}, Layout.parse({"x": "b t c h w"}), None, tmp_path / "sheet.png")
    assert file.stat().st_size < 2_000_000 and max(Image.open(file).size) < 2000


# what a reduction says


def test_a_cell_is_guilty_where_every_axis_that_has_guilty_indices_agrees():
    axes = {"b": axis(4, [2], [2]), "t": axis(8, [5], [5, 6]), "v": axis(3, [1])}
    told = Marks.read({"axes": axes}, {"b": 4, "t": 8, "v": 3})
    cell = lambda b, t, v: told.cell("local", {"b": b, "t": t, "v": v})
    assert cell(2, 5, 1) is Mark.GUILTY and cell(2, 6, 1) is Mark.BLAMED  # not kept: frame 5 is enough to fail
    assert told.index("t", 5) is Mark.GUILTY and told.index("t", 6) is Mark.BLAMED
    assert cell(2, 5, 0) is Mark.DROPPED and cell(1, 5, 1) is Mark.DROPPED and cell(2, 4, 1) is Mark.DROPPED


def test_an_entry_is_not_guilty_where_another_is_to_blame():
    axes = {"b": axis(4, [2], [2])}
    for blame in ({"key": {"guilty": ["global"]}}, {"global.h": axis(8, [1], [1])}):
        told = Marks.read({"axes": axes | blame}, {"b": 4, "global.h": 8, "local.h": 8})
        assert told.cell("global", {"b": 2}) is Mark.GUILTY and told.cell("local", {"b": 2}) is Mark.KEPT


def test_healed_and_grouped_cells_are_told_apart():
    told = Marks.read({"axes": {"b": axis(4, [0, 1], healed=[1])}, "groups": [{"b": [0, 1]}, {"b": [3]}]}, {"b": 4})
    found = [told.cell("x", {"b": index}) for index in range(4)]
    assert found == [Mark.KEPT, Mark.HEALED, Mark.DROPPED, Mark.KEPT]


def test_a_reduced_batch_keeps_its_original_indices():
    region = {"entry": "x", "b": [41], "h": [4, 5], "guilty": True}
    reduction = {"axes": {"b": axis(96, [7, 41], [41]), "x.h": axis(8, [4, 5, 6])}, "regions": [region]}
    moved, labels = marks.of_reduced(reduction, {"b": 2, "x.h": 3})
    assert labels == {"b": [7, 41], "x.h": [4, 5, 6]}
    assert moved["axes"]["b"]["guilty"] == [1] and moved["regions"] == [{**region, "b": [1], "h": [0, 1]}]


# values and their scale


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_thumb_is_the_mean_of_areas_of_finite_values_and_hides_no_bad_one(h, w, th, tw, seed):
    random = np.random.default_rng(seed)
    cell = torch.from_numpy(random.uniform(-1, 1, (2, h, w)))
    spots = random.integers(0, [2, h, w], (3, 3))
    cell[tuple(spots.T)] = float("nan")
    found = thumbs.thumb(cell, ("c", "h", "w"), (th, tw))
    assert found.pixels.shape == (min(h, th), min(w, tw), 2) and np.isfinite(found.pixels).all()
    rows, columns = (np.arange(min(n, m)) * n // min(n, m) for n, m in ((h, th), (w, tw)))
    place = lambda edges, index: int(np.searchsorted(edges, index, side="right")) - 1
    assert {(place(rows, y), place(columns, x)) for _, y, x in spots} == set(zip(*map(list, found.bad.nonzero())))
    if min(h, th) == min(w, tw) == 1:
        whole = [np.nanmean(c) if np.isfinite(c).any() else 0 for c in cell.numpy()]
        np.testing.assert_allclose(found.pixels[0, 0], whole)


MEAN, STD = (torch.tensor(one).view(3, 1, 1) for one in (thumbs.MEAN, thumbs.STD))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("0 to 1", lambda x: x),
        ("-1 to 1", lambda x: 2 * x - 1),
        ("ImageNet-normalised", lambda x: (x - MEAN) / STD),
        ("0 to 255", lambda x: 255 * x),
    ],
)
def test_pictures_look_the_same_however_they_are_encoded(name, make):
    original = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    found = thumbs.thumb(make(original), ("c", "h", "w"), (32, 32))
    scale = thumbs.scale([found], torch.float64, image=True)
    assert scale.name == name
    np.testing.assert_allclose(scale.shown(found.pixels), original.permute(1, 2, 0).numpy(), atol=1e-6)


def test_one_wild_value_does_not_change_what_the_others_mean():
    wild = torch.rand(3, 32, 32)
    wild[0, 0, 0] = 3e38
    assert thumbs.scale([thumbs.thumb(wild, ("c", "h", "w"), (16, 16))], torch.float32, image=True).name == "0 to 1"


# whatever the batch is

DTYPES = (torch.uint8, torch.bool, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64, torch.uint16, torch.float8_e5m2)  # fmt: skip
usual = st.sampled_from(["b t c h w", "b v t c h w", "h w c b", "b h w", "b t", "b n"]).map(str.split)
names = usual | st.lists(st.sampled_from(["s", "b", "v", "t", "c", "h", "w", "d", "n"]), max_size=6, unique=True)
indices = st.lists(st.integers(0, 4) | st.text(max_size=2) | st.none(), max_size=4)
odd_axis = st.fixed_dictionaries({}, optional=dict.fromkeys(("kept", "healed", "guilty", "size"), indices))
some_axis = st.sampled_from([axis(3, [0, 1, 2], [0]), axis(5, [0], [0, 2]), axis(3, [0, 1], [], [1])]) | odd_axis
real = lambda x: (x.abs() if x.is_complex() else x).float()
kinds = st.sampled_from([lambda x: x, lambda x: real(x).numpy(), lambda x: real(x).requires_grad_()])


@st.composite
def batches(draw):
    entries = draw(st.lists(st.sampled_from(["x", "views.y", "$z$", "{0}\x1b"]), min_size=1, max_size=3, unique=True))
    lengths, held, spec = {axis: draw(st.sampled_from([3, 1, 5, 2, 4, 0])) for axis in "svbt"}, {}, {}
    for entry in entries:
        axes = draw(names)
        shape = [lengths[axis] if axis in lengths else draw(st.sampled_from([3, 1, 9, 2, 7, 0])) for axis in axes]
        values = torch.rand(shape) * draw(st.sampled_from([1, 0, 300, 1e38]))
        spoilt = draw(st.sampled_from([0, 0, float("nan"), -float("inf")]))
        value = (values + spoilt).to(draw(st.sampled_from(DTYPES)))
        value = draw(kinds)(value)
        spec[entry] = " ".join(axes)
        *folders, name = entry.split(".")
        place = held.setdefault(folders[0], {}) if folders else held
        place[name] = value
    held["notes"] = draw(st.none() | st.text() | st.lists(st.floats()))
    return held, Layout.parse(spec)


@st.composite
def reductions(draw, layout):
    named = st.sampled_from([*layout.axes, "key", "q"])
    entry = {"entry": st.sampled_from([*layout.entries, "q"])}
    region = st.fixed_dictionaries(entry, optional=dict.fromkeys("bthw", indices) | {"guilty": st.booleans()})
    return draw(
        st.none()
        | st.fixed_dictionaries(
            {"axes": st.dictionaries(named, some_axis, max_size=4) | st.text(max_size=3)},
            optional={
                "signature": st.none() | st.just({"kind": "oom", "where": "\x07$x$"}),
                "regions": st.lists(region | st.none(), max_size=2),
                "groups": st.lists(st.dictionaries(named, indices) | st.integers(), max_size=3),
                "values": st.dictionaries(st.text(max_size=3), st.text(max_size=3)) | st.integers(),
            },
        )
    )


@settings(
    max_examples=30, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.data())
def test_no_batch_and_no_reduction_makes_it_fail(tmp_path, data):
    held, layout = data.draw(batches())
    picture = drawn(held, layout, data.draw(reductions(layout)), tmp_path)
    assert 0 < picture.shape[0] < 6000 and 0 < picture.shape[1] < 1600


@pytest.mark.parametrize(
    ("held", "spec"),
    [
        (torch.zeros(2, 3, 8, 8), "b c h w"),
        ({"x": torch.zeros(4)}, {"x": "b t"}),  # the layout does not fit
        ({"x": torch.zeros(4)}, {"y": "b"}),
        ({"x": torch.zeros(3, 4).to_sparse()}, {"x": "b t"}),
        ({"x": np.array([["a", "b"]])}, {"x": "b t"}),
        ({"x": torch.empty(2, 3, 4, 4, device="meta")}, {"x": "b t h w"}),
        ({"x": torch.zeros(1, 1, 1, 1).expand(10**6, 10**4, 2, 2)}, {"x": "b t h w"}),
        ({"x": torch.zeros(2, 1000, 1)}, {"x": "b h w"}),
        ({"x": torch.zeros(2, 1, 5000)}, {"x": "b h w"}),
        ({f"x{i}": torch.zeros(2, 9) for i in range(40)}, {f"x{i}": "b n" for i in range(40)}),
        ({"x": [object(), object()], "y": {"deep": [1, {"a": b"b"}]}}, {"x": "b"}),
        ({}, {}),
        (None, {}),
    ],
)  # fmt: skip
def test_odd_batches_have_a_picture_too(tmp_path, held, spec):
    drawn(held, Layout.parse(spec), {"axes": {"b": axis(2, [1], [1])}}, tmp_path)


def test_equal_batches_give_equal_bytes_whatever_a_user_has_set(tmp_path):
    import matplotlib

    reduction = {"axes": {"b": axis(3, [1], [1]), "t": axis(4, [2], [2])}}
    first = contact_sheet(batch(), VIDEO, reduction, tmp_path / "a.png").read_bytes()
    odd = {"savefig.dpi": 30, "savefig.bbox": "tight", "text.color": "red", "figure.dpi": 9, "text.usetex": True}
    with matplotlib.rc_context(odd):
        assert contact_sheet(batch(), VIDEO, reduction, tmp_path / "b.png").read_bytes() == first
        assert matplotlib.rcParams["text.usetex"] is True


@pytest.mark.slow
def test_neither_pyplot_nor_a_backend_is_touched(tmp_path):
    script = (
        "import sys, torch, matplotlib\n"
        "from pathlib import Path\n"
        "from reprokit.layout import Layout\n"
        "from reprokit.report.figures import contact_sheet, curve\n"
        "before = matplotlib.get_backend(auto_select=False) if matplotlib.__version__ >= '3.10' else None\n"
        "contact_sheet(torch.zeros(2, 3), Layout.parse('b t'), None, Path('sheet.png'))\n"
        "curve([(1, .5)], Path('curve.png'))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.__version__ < '3.10' or matplotlib.get_backend(auto_select=False) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'reprokit\[pictures\]'"):
        contact_sheet(batch(), VIDEO, None, tmp_path / "sheet.png")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        contact_sheet(batch(), VIDEO, None, tmp_path / "file" / "sheet.png")


# incidents


@pytest.fixture
def incidents(tmp_path):
    """One with its batch, and what it was reduced to."""
    signature = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
    common = {"signature": signature, "step": 3, "entrypoint": "train.py:build", "layout": {"x": "b t"}}
    found = []
    reduction = {"axes": {"b": axis(3, [1], [1]), "t": axis(4, [2, 3])}, "calls": 5}
    for name, held, more in (
        ("whole", torch.zeros(3, 4), lambda: {}),
        ("reduced", torch.zeros(1, 2), lambda: {"parent": found[0].manifest.id, "certificate": reduction}),
    ):
        with Draft(tmp_path) as draft:
            draft.write_tree("ranks/00", "batch", {"x": held})
            found.append(draft.publish(name, **common, **more()))
    return found


def test_a_reduction_is_drawn_in_the_whole_batch_where_its_parent_is_at_hand(incidents, tmp_path, texts):
    whole, reduced = incidents
    sheet_of(reduced, whole, tmp_path / "sheet.png")
    assert {"sample 0", "sample 1", "sample 2", "0", "3", "dropped"} <= set(texts)
    with pytest.raises(BadInput, match="was not reduced from it"):
        sheet_of(whole, reduced, tmp_path / "sheet.png")


def test_a_reduction_without_its_parent_keeps_the_original_indices(incidents, tmp_path, texts):
    sheet_of(incidents[1], None, tmp_path / "sheet.png")
    assert {"sample 1", "2", "3"} <= set(texts) and not {"sample 0", "0", "1", "dropped"} & set(texts)


def test_incidents_as_they_are_and_hostile_ones_are_drawn(incidents, hostile, tmp_path, texts):
    for incident in (incidents[0], hostile):
        assert pixels(BytesIO(sheet_of(incident, None, tmp_path / "sheet.png").read_bytes())).any()
    assert not any(character in text for text in texts for character in "\x1b\x07\u202e\n")
    assert Path(tmp_path / "sheet.png").stat().st_size < 1_000_000


def test_no_two_marks_look_alike():
    seen = {}
    for mark in Mark:
        sheet = paper.Paper(60)
        sheet.space(60)
        cells.framed(sheet, 10, 10, (40, 40), mark)
        seen[mark] = {tuple(int(part) for part in colour) for colour in sheet.pixels[6:56, 30]}  # down its middle
    colours = {mark: seen[mark] - {paper.WHITE} for mark in Mark}
    assert colours[Mark.GUILTY] == {paper.GUILTY, paper.KEPT} and colours[Mark.KEPT] == {paper.KEPT}
    assert colours[Mark.BLAMED] == {paper.GUILTY} and colours[Mark.HEALED] == {paper.HEALED}
    assert [mark for mark in Mark if mark.guilty] == [Mark.BLAMED, Mark.GUILTY]
