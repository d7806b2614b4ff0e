"""The last line of a verb is a command that can be copied, on the narrowest screen and from the strangest folder."""

import shlex

import pytest

NAME = "a folder with $HOME and a name that is longer than a narrow screen is wide"


def next_of(said):
    [line] = [line for line in said.splitlines() if line.startswith("next: ")]
    assert said.splitlines()[-1] == line
    return shlex.split(line.removeprefix("next: "))


@pytest.fixture
def path(made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    return made(name=NAME)


def test_after_show_and_replay(cli, path):
    reduce = ["reprokit", "reduce", str(path), "-o", "reduced"]
    assert next_of(cli("show", path)[1]) == reduce
    assert next_of(cli("replay", path, "--engine", "inline", "-n", "1")[1]) == reduce


def test_what_somebody_captured_by_hand_is_run_again_and_not_reduced(cli, made):
    path = made(bad=False, failed=False)
    assert next_of(cli("show", path)[1]) == ["reprokit", "replay", str(path)]
    assert "reduce" not in cli("replay", path, "--engine", "inline", "-n", "1")[1]


@pytest.mark.slow
def test_after_reduce_locate_and_bundle(cli, path, tmp_path):
    out = tmp_path / "re duced"
    said = cli("reduce", path, "-o", out, "--verify", "1")[1]
    [reduced] = [one for one in out.iterdir() if one.is_dir()]
    assert next_of(said) == ["reprokit", "replay", str(reduced)]
    assert next_of(cli("show", reduced)[1]) == ["reprokit", "replay", str(reduced)]
    file = tmp_path / "re duced.tar.zst"
    assert next_of(cli("bundle", reduced, "-o", file)[1])[:4] == ["tar", "--zstd", "-xf", str(file)]
