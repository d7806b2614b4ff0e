"""What a person reads: complete for a real incident, and nothing but text for a hostile one."""

import io
import json
import re
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from reprokit.incident import FileEntry, Incident
from reprokit.report import pages, reductions, templates, texts
from reprokit.report.summary import incident_panel, next_step

PAGES = ("README.md", "bug_report.md")
REPLAY = {
    "verdict": "REPRODUCIBLE", "n": 14, "fail": 14, "pass": 0, "other": 0, "infra": 0, "rate_at_least": 0.807,
    "interval": [0.77, 1.0], "confidence": 0.95, "engine": "docker", "fingerprints": {"distinct": 1, "stable": 14},
}  # fmt: skip
REDUCTION = {
    "axes": {"b": {"size": 8, "kept": [3, 5], "guilty": [3]}, "t": {"size": 16, "kept": [12], "guilty": [12, 13, 14]}},
    "calls": 21, "one_minimal": True, "batch_guilty": True,
}  # fmt: skip


def render(incident, name, replay=None, reduction=None, image=None):
    values = pages.values(incident, name="n", file="n.tar.zst", replay=replay, reduction=reduction, image=image)
    return templates.render(f"bundle/{name}.j2", values)


def test_a_report_says_all_that_is_known(captured):
    page = render(captured, "bug_report.md", replay=REPLAY, reduction=REDUCTION)
    for known in (
        "nonfinite_loss at loss", "step 3", "14/14 attempts failed with engine docker", "at least 81% of attempts",
        "95% confidence", "| `b` | `8` | `3, 5` | `3` |", "| `t` | `16` | `12` | `12-14` |", "21 evaluations",
        "1-minimal", "Every loss term is finite", "`python train.py`", "torch", "recorder.step",
        "./run.sh --trust", captured.manifest.id,
    ):  # fmt: skip
        assert known in page, known


def test_what_else_a_reduction_found_has_a_section_each(captured):
    plain = render(captured, "bug_report.md", reduction=REDUCTION)
    titles = ("### Values", "### Modules", "### Simpler settings", "### Differences to a configuration")
    assert not [title for title in titles if title in plain]
    found = {
        "values": {"x": "special"},
        "variant": {
            "modules": {"net.drop": "identity", "net.0": "freeze"}, "config": {"depth": 1},
            "harness": {"autocast": None},
        },
        "config": {
            "differences": [{"key": "lr", "here": 9, "baseline": 0.1}, {"key": "eps", "here": "a|b"}], "kept": ["lr"]
        },
    }  # fmt: skip
    page = render(captured, "bug_report.md", reduction=REDUCTION | found)
    assert all(title in page for title in titles)
    for known in (
        "| `x` | `NaN, infinities and extremes alone` |", "| `net.drop` | `not needed: ",
        "| `net.0` | `needs no gradients` |",
        "| `depth` | `1` |", "| `autocast` | `null` |", "| `lr` | `9` | `0.1` | `yes` |", "| `(absent)` | `no` |",
    ):  # fmt: skip
        assert known in page, known
    tables = [one for one in MarkdownIt("commonmark").enable("table").parse(page) if one.type == "table_open"]
    before = [one for one in MarkdownIt("commonmark").enable("table").parse(plain) if one.type == "table_open"]
    assert len(tables) == len(before) + len(titles)
    assert "### Values" not in render(captured, "bug_report.md", reduction=REDUCTION | {"values": ["odd"]})


def test_what_only_a_person_knows_is_marked(captured):
    page = render(captured, "bug_report.md")
    for blank in ("Priority", "Impact", "Workarounds tried", "Frequency"):
        assert re.search(rf"{blank}\W+_to be filled in: [^_]+_", page), blank
    assert "_to be filled in: run" not in render(captured, "bug_report.md", replay=REPLAY)
    assert "Not reduced yet" in page


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_incident_draws_nothing(name, hostile, captured):
    """The structure of its page is made of our elements only."""
    tokens = MarkdownIt("commonmark").enable("table").parse(render(hostile, name))
    allowed = {"image", "text", "code_inline", "softbreak", "strong_open", "strong_close", "em_open", "em_close"}
    for token in tokens:
        assert token.type != "html_block"
        assert {part.type for part in token.children or ()} <= allowed
        for part in token.children or ():
            assert part.type != "image" or part.attrs["src"] in ("batch.png", "curve.png")
            if part.type == "text":
                assert not re.search(r"[<>@{}$\x1b\x07\u202e]", part.content), part.content
    headings = [after.content for before, after in pairwise(tokens) if before.type == "heading_open"]
    assert not [heading for heading in headings if heading.startswith("false")]


@pytest.mark.parametrize("name", ["run.sh", "Dockerfile"])
def test_a_hostile_incident_reaches_no_script(name, hostile, captured):
    scripts = [render(incident, name, image="some/image:1") for incident in (hostile, captured)]
    assert scripts[0] == scripts[1]
    if name == "run.sh":
        subprocess.run(["sh", "-n"], input=scripts[0], text=True, check=True)


def screen(incident, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(incident_panel(incident))
    return console.file.getvalue()


def test_one_screen_answers_first(captured):
    shown = screen(captured)
    lines = shown.rstrip("\n").split("\n")
    assert "nonfinite_loss at loss, step 3" in lines[0]
    for known in ("b 3 x t 4", "train.py:build", "no commit", "the last healthy batch", captured.manifest.id[:12]):
        assert known in shown, known
    assert len(lines) < 40  # and one for the next step
    assert next_step(captured, "here") == ("reprokit", "reduce", "here", "-o", "reduced")


def test_one_screen_says_what_it_takes_to_go_on(captured, copy):
    shown = " ".join(screen(captured).split())
    for known in ("2 steps before it: --rewind 2 at most", "float32, no autocast", "redacted nothing"):
        assert known in shown, known
    flags = json.loads((copy / "flags.json").read_text())
    (copy / "flags.json").write_text(json.dumps({**flags, "harness_autocast": "bf16"}))
    patch = {"source/patch.diff": FileEntry(sha256="0" * 64, bytes=9)}
    changed = replace(captured.manifest, commit="ab" * 20, files=captured.manifest.files | patch, redacted=("a.py: 1",))
    shown = " ".join(screen(Incident(copy, changed)).split())
    for known in ("commit abababababab, with uncommitted changes", "autocast bf16", "redacted a.py: 1"):
        assert known in shown, known
    clean = FileEntry(sha256="0" * 64, bytes=0)
    changed = replace(changed, files={"source/patch.diff": clean})
    shown = screen(Incident(copy, changed))
    assert "uncommitted" not in shown and "none: no --rewind" in shown


def test_a_hostile_incident_does_not_steer_the_terminal(hostile):
    shown = screen(hostile)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "[bold]" in shown and "\\x1b" in shown
    assert len(shown.splitlines()) <= 60


def test_a_batch_that_is_a_bare_tensor_is_called_so(captured):
    found = REDUCTION | {
        "axes": {"key": {"size": 1, "kept": [""], "healed": [], "guilty": [""], "together": False}},
        "values": {"": "zero"}, "regions": [{"entry": "", "b": [1], "guilty": True}], "groups": [], "untried": [""],
    }  # fmt: skip
    lines = reductions.lines(found)
    for known in (
        "content needed of none (text, not tried: batch)   guilty batch", "values of batch: zeros",
        "region of batch: b 1",
    ):  # fmt: skip
        assert any(known in line for line in lines), lines
    page = render(captured, "bug_report.md", reduction=found)
    assert "| `batch` | `zeros` |" in page and "| `batch` | `batch` |" in page and "(empty)" not in page


def test_bytes_for_people():
    counts = {0: "0 bytes", 999: "999 bytes", 1000: "1.0 KB", 12_345_678: "12.3 MB", 10**15: "1000 TB"}
    assert {count: texts.size(count) for count in counts} == counts


def test_a_verdict_that_cannot_be_read_is_none():
    for odd in (None, {}, {"n": 3}, {"n": "x"}, REPLAY | {"interval": None, "verdict": "FLAKY"}):
        assert texts.frequency(odd) is None
    assert "77% to 100%" in texts.frequency(REPLAY | {"verdict": "FLAKY"})
    decided = REPLAY | {"verdict": "FLAKY", "depends_on": ["rng", "threads"], "confidence": 0.999}
    assert "; depends on RNG or thread count; it fails" in texts.frequency(decided)
    assert "(99.9% confidence)" in texts.frequency(decided)
