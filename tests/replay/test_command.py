"""A command's words: split as a shell would, and seen by none."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.replay.command import PLACES, Command, parse

VALUES = {name: f'/a b/{{{name}}}\'s "$(x)"' for name in PLACES}


def test_a_word_stays_one_word_whatever_is_put_into_it():
    command = parse("python train.py --config={config} 'a  b' \"it's\" --data {batch} --out {out}/{attempt}.json")
    assert command.places == {"config", "batch", "out", "attempt"}
    assert command.filled(VALUES) == [
        "python",
        "train.py",
        f"--config={VALUES['config']}",
        "a  b",
        "it's",
        "--data",
        VALUES["batch"],
        "--out",
        f"{VALUES['out']}/{VALUES['attempt']}.json",
    ]


@given(st.lists(st.text(st.characters(blacklist_characters="\0{}", codec="utf-8"), min_size=1), min_size=1))
def test_what_has_no_braces_is_as_it_was_typed(words):
    assert parse(shlex.join(words)).filled({}) == words


@given(st.dictionaries(st.sampled_from(sorted(PLACES)), st.text(), min_size=6))
def test_what_is_put_in_is_not_looked_at_again(values):
    assert Command(words=tuple(f"{{{name}}}" for name in PLACES)).filled(values) == [values[name] for name in PLACES]


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ('{"lr": 0.1}', '{"lr": 0.1}'),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{}", "{}"),
        ("{1..3}", "{1..3}"),
        ("${HOME", "${HOME"),
        ("{{config}}", "{config}"),
        ("{{anything}}", "{anything}"),
        ("$(touch x); `y` | z > w & *", "$(touch x); `y` | z > w & *"),
    ],
)
def test_other_braces_and_what_a_shell_would_obey_are_text(word, filled):
    command = parse(shlex.join(["run", word]))
    assert not command.places and command.filled(VALUES) == ["run", filled]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no command"),
        ("  ", "no command"),
        ("''", "no command"),
        ("run 'x", "no closing quotation"),
        ("run x\\", "no escaped character"),
        ("run {foo}", "nothing fills {foo}; places are {config}"),
        ("run --x={Config}", "nothing fills {Config}"),
        ("run a\0b", "NUL"),
    ],
)
def test_what_is_no_command_is_one_line(text, says):
    with pytest.raises(BadInput, match="--script: ") as refused:
        parse(text)
    assert says in str(refused.value) and "\n" not in str(refused.value)
