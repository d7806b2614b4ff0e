"""What docs/checks.md shows is what happens."""

import re
from pathlib import Path

import pytest

from reprokit.checks import CheckFailed

DOC = Path(__file__).parents[2] / "docs" / "checks.md"


def blocks():
    """Each example, and what it is said to print, if anything."""
    found = []
    for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL):
        if kind == "python":
            found.append([body, None])
        elif kind == "text":
            found[-1][1] = body
    return found


def test_every_example_does_what_it_says():
    names = {}
    assert len(blocks()) > 5
    for source, message in blocks():
        if message is None:
            exec(compile(source, str(DOC), "exec"), names)
            continue
        with pytest.raises(CheckFailed) as raised:
            exec(compile(source, str(DOC), "exec"), names)
        assert f"{raised.value}\n" == message


def test_every_name_is_shown():
    import reprokit.checks

    text = DOC.read_text()
    missing = [name for name in reprokit.checks.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == ["Answer", "Result"]  # which nobody makes
