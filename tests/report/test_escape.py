"""Whatever an incident says, a page that quotes it draws no more than code."""

import io
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from rich.text import Text

from reprokit.report import escape

HOSTILE = [
    "`", "``` \n# heading", "a|b\\|c", "<script>alert(1)</script>", "\x1b[31mred\x1b[0m\x07", "\u202etxt.exe", "@a #1",
    "[x](javascript:alert(1))", "![](https://tracker.example/x.png)", "~~~\n", "\r\nSet-Cookie: a", "[bold]x[/bold]",
    "\ud800", "{{ 7 * 7 }}", "{% raw %}", "$(touch evil)", "'; touch evil #", "--option", "", " ", "``", "`a", "a`",
    "\\", "|", "\0", "&lt;",
]  # fmt: skip
ANYTHING = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters()), st.text("`|\\\n <>a"))

UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

markdown = MarkdownIt("commonmark").enable("table")


def unseen(text):
    """What `escape` shows of a text: its hidden characters by number, in one line."""
    return escape.line(text)


@given(ANYTHING)
def test_inline_code_is_one_piece_of_code_and_nothing_else(text):
    _, inline, _ = markdown.parse(f"before {escape.code(text)} after")
    if unseen(text):
        assert [part.type for part in inline.children] == ["text", "code_inline", "text"]
        assert inline.children[1].content == unseen(text)


@given(ANYTHING, ANYTHING)
def test_a_cell_stays_one_cell(one, other):
    table = f"| a | b |\n|---|---|\n| {escape.cell(one)} | {escape.cell(other)} |\n"
    tokens = markdown.parse(table)
    cells = [after for before, after in pairwise(tokens) if before.type == "td_open"]
    assert len(cells) == 2
    for cell, text in zip(cells, (one, other)):
        assert all(part.type == "code_inline" for part in cell.children) or not unseen(text)


@given(ANYTHING)
def test_a_block_ends_where_we_end_it(text):
    tokens = markdown.parse(f"before\n\n{escape.block(text, 'text')}\n\n# after\n")
    assert [token.type for token in tokens if token.type == "fence"] == ["fence"]
    assert [token.content for token in tokens if token.type == "inline"] == ["before", "after"]


@given(ANYTHING)
def test_nothing_hidden_reaches_a_page_or_a_terminal(text):
    for shown in (escape.code(text), escape.cell(text), escape.block(text), escape.line(text), escape.sh(text)):
        assert not UNSEEN.search(shown.replace("\t", ""))
        shown.encode("utf-8")
    console = Console(file=io.StringIO(), force_terminal=False, width=10_000)
    console.print(Text(escape.line(text)), soft_wrap=True)
    assert console.file.getvalue().rstrip("\n") == escape.line(text)


def test_of_a_long_text_the_end_is_kept():
    shown = escape.block("first\n" + "x" * escape.LONGEST + "\nlast")
    assert "last" in shown and "first" not in shown and "left out" in shown
