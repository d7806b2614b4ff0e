"""Tables of the docs name all that there is, and what they show is right."""

import ast
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import reprokit
from reprokit.layout import Layout

ROOT = Path(__file__).parents[1]
MAKER = {"dev", "bench"}  # extras for whoever works on reprokit itself


def rows(page, head):
    """Cells of the table whose head begins so."""
    text = (ROOT / page).read_text()
    table = text[text.index(f"| {head} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_field_of_a_harness_is_in_the_docs_in_its_order():
    told = [name.strip("`") for name, what, who in rows("docs/harness.md", "field")]
    assert told == [one.name for one in fields(reprokit.Harness) if one.init]


CLIPS, VIEWS = torch.zeros(2, 4, 3, 8, 8), torch.zeros(2, 5, 4, 3, 8, 8)
BATCH = {
    "clips": CLIPS, "more": CLIPS, "views": VIEWS, "labels": torch.zeros(2), "paths": ["a", "b"],
    "sound": torch.zeros(2, 160),
}  # fmt: skip


@pytest.mark.parametrize(("batch", "layout"), rows("docs/harness.md", "batch"))
def test_every_layout_that_is_shown_cuts_its_batch(batch, layout):
    layout = Layout.parse(ast.literal_eval(layout.strip("`")))
    batch = eval(batch.strip("`"), dict(BATCH))
    assert layout.sizes(batch)["b"] == 2
    for entry, value in layout.leaves(layout.select(batch, {"b": [1], "t": [0, 2]})).items():
        assert len(value) == 1, entry
        assert "t" not in layout.axes_of(entry) or value.shape[layout.axes_of(entry).index("t")] == 2


def test_every_extra_is_in_the_docs_and_no_other():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = [name.strip("`") for name, why in rows("docs/dependencies.md", "extra")]
    assert told == [name for name in extras if name not in MAKER]


def test_every_page_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert {"docs/harness.md", "docs/dependencies.md"} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []
