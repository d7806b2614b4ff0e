import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprokit import _canvas
from reprokit.errors import BadInput
from reprokit.smoke import course, plots, views
from reprokit.smoke.bench import Bench
from reprokit.smoke.doors import Call, Doors, rows
from reprokit.smoke.plots import draw

from .small import changed, config, plain, subject

matplotlib = pytest.importorskip("matplotlib")


def pixels(path):
    from matplotlib.image import imread

    return (imread(path)[..., :3] * 255).round().astype(np.uint8)


def count(path, colour):
    return int((pixels(path) == np.array(colour, np.uint8)).all(-1).sum())


def test_a_healthy_model_has_three_pictures_and_nothing_else_is_left(tmp_path):
    drawn = draw(subject(), tmp_path / "plots")
    assert [path.name for path in drawn] == ["views.png", "features.png", "losses.png"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(path.name for path in drawn)
    views, features, losses = map(pixels, drawn)
    assert views.shape[:2] == (plots.HEAD + 2 * (plots.ABOVE + plots.ROW + plots.BOTTOM), plots.WIDTH)
    assert features.shape == views.shape  # two modules, two views
    assert len(losses) == plots.HEAD + 4 * (plots.ABOVE + plots.ROW + plots.BOTTOM)  # three terms and the norm
    assert all(count(path, _canvas.BLUE) > 500 for path in drawn)
    assert not any(count(path, _canvas.VERMILLION) for path in drawn)


def test_equal_subjects_give_equal_bytes(tmp_path):
    one, two = (draw(subject(), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_dead_view_stands_out_of_its_panel(tmp_path):
    asked = subject()
    asked.batches[0]["local"][:, 1] = 0
    healthy, dead = draw(subject(), tmp_path / "a")[0], draw(asked, tmp_path / "b")[0]
    assert (pixels(healthy) != pixels(dead)).any()


def test_steps_that_were_judged_are_drawn_and_not_taken_again(tmp_path, monkeypatch):
    asked, titles = subject(), []
    taken = course.take(asked.harness(), asked.batches[0], 7, asked.seed)
    monkeypatch.setattr(course, "take", lambda *_: pytest.fail("steps are taken again"))
    monkeypatch.setattr(plots, "_picture", noting(plots._picture, titles))
    draw(asked, tmp_path, taken)
    assert titles[1:] == [
        "Features in the first step and in step 7, on one batch",
        "7 steps on one batch, each with the same random numbers",
    ]


def noting(function, said):
    """The same, but that its first argument, or what it labels, is in the list."""

    def noted(*args, **how):
        said.append(args[0] if isinstance(args[0], str) else args[-1])
        return function(*args, **how)

    return noted


def test_a_logarithmic_scale_is_marked_beside_linear_ones(tmp_path, monkeypatch):
    labels, steep = [], [{"loss": 1.0, "small": 10.0**-i} for i in range(4)]
    monkeypatch.setattr(plots, "_labels", noting(plots._labels, labels))
    assert plots._losses(course.Course(losses=steep), tmp_path / "losses.png")
    assert labels == ["loss, linear", "loss, log scale"]


def test_features_of_the_first_step_are_seen_behind_those_that_agree(tmp_path):
    points = torch.randn(12, 16, generator=torch.Generator().manual_seed(0))
    taken = course.Course(losses=[{"loss": 1.0}] * 3, first={"net": points}, last={"net": points})
    both = plots._features(taken, tmp_path / "both.png")
    taken.first = {}
    alone = plots._features(taken, tmp_path / "alone.png")
    assert count(both, _canvas.PALE) > count(alone, _canvas.PALE) + 1000
    assert count(both, _canvas.BLUE) > 0.8 * count(alone, _canvas.BLUE)


def test_calls_are_named_after_the_entries_that_they_show():
    asked = subject()
    bench = Bench(asked.harness(), asked.seed)
    calls = views.calls_of(bench, asked.batches[0])
    assert views.entries_of(bench, asked.batches[0], calls) == ["global", "local", ""]
    alone = plain(lambda net, x: net(x).square().mean())
    bench = Bench(alone.harness(), 0)
    named = views.entries_of(bench, alone.batches[0], views.calls_of(bench, alone.batches[0]))
    assert set(named) <= {"x", ""} and named[0] == "x"


def test_an_entry_that_the_step_refuses_has_no_name():
    def forward(net, x):
        if not torch.equal(x, alone.batches[0]["x"]):
            raise ValueError("another batch")
        return net(x).square().mean()

    alone = plain(forward)
    bench = Bench(alone.harness(), 0)
    assert set(views.entries_of(bench, alone.batches[0], views.calls_of(bench, alone.batches[0]))) == {""}


def test_what_is_not_finite_is_told_in_vermillion(tmp_path):
    asked = subject(config=config(data__standardize="frame"))
    asked.batches[0]["global"][1, 2] = 0
    views, losses = (path for path in draw(asked, tmp_path) if path.name != "features.png")
    assert count(views, _canvas.VERMILLION) > 100 and count(losses, _canvas.VERMILLION) > 100


def test_names_are_no_mathematics_and_may_be_anything(tmp_path):
    def build(given):
        harness = plain(lambda net, x: net(x).square().mean()).build(given)
        net = harness.modules["net"]
        inner = harness.step
        harness.modules = {"$\\frac{1}$\n<b>": net}
        harness.step = lambda batch: inner(batch) | {"$x_{": inner(batch)["loss"]}
        return harness

    drawn = draw(subject(build, batches=plain(None).batches, config={}), tmp_path)
    assert len(drawn) == 3


def test_a_step_without_modules_to_see_into_still_has_losses(tmp_path):
    def build(given):
        harness = plain(lambda net, x: net(x).square().mean()).build(given)
        weight = harness.modules["net"][0].weight
        harness.step = lambda batch: {"loss": (weight.square().mean())}
        return harness

    drawn = draw(subject(build, batches=plain(None).batches, config={}), tmp_path)
    assert [path.name for path in drawn] == ["losses.png"]


def test_without_a_batch_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(BadInput, match="nothing to draw: the harness has no loader"):
        draw(subject(batches=[], no_batches="the harness has no loader"), tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"views.png: cannot be written"):
        draw(subject(), tmp_path / "file")


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"reprokit\[pictures\]"):
        draw(subject(), tmp_path)


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    (tmp_path / "a.png").write_bytes(b"old")

    class Canvas:
        def print_png(self, data, metadata):
            data.write(b"half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _canvas.written(Canvas(), tmp_path / "a.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_doors_see_outermost_calls_and_what_comes_from_data():
    harness = subject().harness()
    with Doors(harness) as doors:
        harness.step(subject().batches[0])
    shapes = [(call.module, [list(one.shape) for one in call.inputs]) for call in doors.calls]
    assert shapes == [("encoder", [[4, 3, 4, 32, 32]]), ("encoder", [[8, 3, 4, 16, 16]]), ("projector", [])]
    assert [call.output.requires_grad for call in doors.calls] == [False] * 3
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in harness.modules.values())


def test_doors_are_not_passed_by_what_a_backward_pass_computes_anew():
    def forward(net, x):
        return checkpoint(lambda x: net[2](net[1](net[0](x))), x, use_reentrant=False).square().mean()

    asked = plain(forward)
    harness = asked.build({})
    with Doors(harness) as doors:
        harness.step(asked.batches[0])["loss"].backward()
    assert [call.module for call in doors.calls] == ["net.0", "net.1", "net.2"]


def test_doors_close_behind_a_module_that_raises():
    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    asked = plain(lambda net, x: net(x).square().mean())
    harness = asked.build({})
    harness.modules["net"].append(Bad())
    with Doors(harness) as doors:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                harness.step(asked.batches[0])
        harness.modules["net"][0](torch.ones(2, 16))
    assert [call.module for call in doors.calls] == ["net", "net", "net.0"]


@pytest.mark.parametrize(
    ("shape", "columns"), [((5, 7), 7), ((5, 3, 7), 7), ((5, 7, 2, 4, 4), 7), ((5,), None)], ids=str
)
def test_rows_are_samples_and_columns_features(shape, columns):
    harness = plain(None).build({})
    found = rows(harness, Call(module="net", output=(None, {"a": torch.ones(shape)})))
    assert (found is None) if columns is None else found.shape == (5, columns)


def test_a_course_draws_the_same_numbers_in_each_step_also_from_a_generator_of_the_harness():
    private = torch.Generator().manual_seed(3)
    forward = lambda net, x: 0 * net(x).sum() + torch.rand(()) + torch.rand((), generator=private)
    asked = plain(forward, extra_state={"dice": private})
    assert len(set(course.take(asked.harness(), asked.batches[0], 5, 0).total)) == 1


def test_a_course_ends_at_the_first_step_that_is_not_finite():
    asked = subject(changed(clip_grad_norm=None), config=config(optim__lr=1e20))
    taken = course.take(asked.harness(), asked.batches[0], 50, 0)
    assert taken.symptom is not None and len(taken.losses) < 50
