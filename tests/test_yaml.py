"""YAML that somebody hands over: plain data, or one line, whatever it would expand to."""

import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reprokit import _yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abc: \n-&*"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=9,
)
LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40))])
MERGED = LAUGHS.replace("[x, x]", "{x: 1}").replace("[*", "{<<: [*").replace("]", "]}")
CHAIN = "[" + ", ".join(["&a0 [x]", *(f"&a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]) + "]"


@given(PLAIN)
def test_what_was_written_is_read(data):
    assert _yaml.read(yaml.safe_dump(data)) == data


def test_aliases_and_merged_keys_that_stay_small_are_read():
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n"
    assert _yaml.read(text) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
    assert _yaml.read("") is None


@pytest.mark.parametrize("text", [LAUGHS, MERGED, CHAIN])
def test_what_would_fill_the_machine_is_refused_in_bounded_time_and_memory(text):
    """In a process that may take a gigabyte and ten seconds of a core."""
    code = (
        "import resource, sys\nfrom reprokit import _yaml\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (10, 10))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try: _yaml.read(sys.argv[1])\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=False)
    assert done.stdout == "more than 1,000,000 values, with its aliases written out\n", done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("&a [*a]", "an alias of what it stands in"),
        ("a: &a {b: *a}", "an alias of what it stands in"),
        ("x" * (_yaml.LENGTH + 1), "more than 4,194,304 characters"),
        ("a: b: c", "mapping values are not allowed here"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("[" * 10_000, "recursion"),
        ("{[]: 1}", "unhashable"),
        ("*a", "undefined alias"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("\0", "not allowed"),
    ],
)
def test_what_is_no_plain_data_is_one_line(text, says):
    with pytest.raises(ValueError, match=says) as error:
        _yaml.read(text)
    assert "\n" not in str(error.value)
