import sys
import textwrap
import zipfile

import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay.wheels import Collection, Wanted, diagnose, parse


def test_a_list_is_pins_and_where_to_look():
    wanted = parse(
        textwrap.dedent("""
            # torch from its own index
            --extra-index-url https://example.org/whl/cpu
            torch==2.13.0+cpu  # the CPU build
            numpy==2.4.6 \\
                --hash=sha256:0123
            -e git+https://example.org/me/mine.git#egg=mine
            Reprokit==0.1.0
            tool @ https://example.org/tool-1.0-py3-none-any.whl#sha256=00
            apple==1.0 ; python_version < "4"
        """)
    )
    assert wanted.pins == (
        'apple==1.0 ; python_version < "4"',
        "numpy==2.4.6",
        "tool @ https://example.org/tool-1.0-py3-none-any.whl#sha256=00",
        "torch==2.13.0+cpu",
    )
    assert wanted.indexes == ("--extra-index-url https://example.org/whl/cpu",)


@pytest.mark.parametrize("line", ["what is this", "-r other.txt", "../some/folder", "== 1.0"])
def test_a_line_that_is_no_pin_is_named(line: str):
    with pytest.raises(BadInput, match="not a requirement that can be pinned") as refusal:
        parse(line)
    assert line in str(refusal.value) and "\n" not in str(refusal.value)


def test_gathered_once_then_remembered_and_complete(tmp_path, make_wheel, no_index):
    house = tmp_path / "house"
    made = make_wheel(house, "alpha", "1.0")
    make_wheel(house, "alpha", "2.0")
    make_wheel(house, "beta", "1.0+cpu")
    collection, wanted = Collection(tmp_path / "cache"), parse("alpha==1.0\nbeta==1.0+cpu")
    assert collection.remembered(wanted, house) is None
    news: list[str] = []
    hashes = collection.gather(wanted, house, news.append)
    assert sorted(hashes) == ["alpha-1.0-py3-none-any.whl", "beta-1.0+cpu-py3-none-any.whl"]
    assert news[-1].startswith("gathering wheels: 2 of 2")
    again = Collection(tmp_path / "cache")
    assert again.remembered(wanted, house) == hashes and again.complete(hashes)
    assert [path.name for path in again.paths(hashes)] == sorted(hashes)
    assert made.exists()  # the wheelhouse is the user's


def test_a_changed_wheelhouse_is_asked_again(tmp_path, make_wheel, no_index):
    house = tmp_path / "house"
    make_wheel(house, "alpha", "1.0")
    collection, wanted = Collection(tmp_path / "cache"), parse("alpha==1.0")
    before = collection.gather(wanted, house, lambda line: None)
    make_wheel(house, "alpha", "1.0", says="something longer")
    assert collection.remembered(wanted, house) is None
    after = collection.gather(wanted, house, lambda line: None)
    assert before.keys() == after.keys() and before != after
    assert collection.complete(before) and collection.complete(after)  # kept by content: both are there


def test_an_altered_wheel_is_not_complete(tmp_path, make_wheel, no_index):
    make_wheel(tmp_path / "house", "alpha", "1.0")
    collection = Collection(tmp_path / "cache")
    hashes = collection.gather(parse("alpha==1.0"), tmp_path / "house", lambda line: None)
    (kept,) = collection.paths(hashes)
    kept.write_bytes(kept.read_bytes()[:-1])
    assert not collection.complete(hashes)
    kept.unlink()
    assert not collection.complete(hashes)


def test_the_lists_own_indexes_are_the_second_choice(tmp_path, make_wheel, no_index, monkeypatch: pytest.MonkeyPatch):
    make_wheel(tmp_path / "own", "alpha", "1.0", says="by pip's own settings")
    make_wheel(tmp_path / "listed", "alpha", "1.0", says="by the list")
    make_wheel(tmp_path / "listed", "beta", "1.0+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "own"))
    collection, where = Collection(tmp_path / "cache"), f"--find-links {tmp_path / 'listed'}\n"
    alone = collection.gather(parse(f"{where}alpha==1.0"), None, lambda line: None)
    assert b"pip's own" in zipfile.ZipFile(collection.paths(alone)[0]).read("alpha.py")
    both = collection.gather(parse(f"{where}alpha==1.0\nbeta==1.0+cpu"), None, lambda line: None)
    assert len(both) == 2


def test_what_nobody_has_is_named_and_nothing_is_left_behind(tmp_path, make_wheel, no_index):
    make_wheel(tmp_path / "house", "alpha", "1.0")
    collection = Collection(tmp_path / "cache")
    with pytest.raises(BadInput, match=r"^alpha==9\.9: not in any index .*--wheelhouse$"):
        collection.gather(parse("alpha==9.9"), tmp_path / "house", lambda line: None)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name not in ("files", "resolved")] == []
    with pytest.raises(BadInput, match="no such folder of wheels"):
        collection.gather(Wanted(pins=("alpha==1.0",)), tmp_path / "none", lambda line: None)


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (f"{sys.executable}: No module named pip", Infrastructure, "ensurepip"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", Infrastructure, "disk full"),
        ("ERROR: No matching distribution found for torch==2.13.0+cu130", BadInput, r"^torch==2.13.0.cu130: not in"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/torch/\n"
            "ERROR: No matching distribution found for torch==2.13.0",
            Infrastructure,
            r"^torch==2\.13\.0: an index of pip's does not answer",
        ),
        ("  ERROR: Failed building wheel for flash-attn\nERROR: Failed to build one", BadInput, "^flash-attn: only"),
        ("ERROR: Failed to build 'apex' when getting requirements to build wheel", BadInput, "^apex: only"),
        ("ERROR: Package 'x' requires a different Python: 3.11.2 not in '>=3.12'", BadInput, "different Python"),
        ("", BadInput, "pip cannot gather"),
    ],
)
def test_what_pip_says_becomes_one_line(said: str, kind: type, words: str):
    with pytest.raises(kind, match=words) as refusal:
        raise diagnose(said.splitlines())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "line",
    [
        "evil @ http://127.0.0.1:9/evil-1.0.tar.gz",
        "evil @ file:///tmp/evil",
        "evil @ git+https://example.org/evil",
        "evil>=1",
        "evil",
        "evil==1.*",
        "evil===http://x",
    ],
)
def test_a_list_from_a_stranger_holds_exact_pins_alone(line):
    with pytest.raises(BadInput, match=r"stranger chose.*--trust"):
        parse(f"torch==2.0\n{line}\n", trust=False)


def test_a_strangers_indexes_are_not_asked_and_nothing_is_built():
    wanted = parse("--extra-index-url https://evil.example/simple\ntorch==2.13.0+cpu\n", trust=False)
    assert (wanted.pins, wanted.indexes, wanted.built) == (("torch==2.13.0+cpu",), (), False)


@pytest.mark.parametrize("line", ["--pre -r /etc/passwd", "--pre -e /tmp/evil", "--find-links a b", "-r x.txt", "-c x"])
@pytest.mark.parametrize("trust", [True, False])
def test_options_that_are_no_index_are_refused_whoever_wrote_them(line, trust):
    with pytest.raises(BadInput, match="requirements: "):
        parse(f"torch==2.0\n{line}\n", trust=trust)


@pytest.mark.parametrize("line", ["evil @ http://x/${SECRET}/y", "--index-url https://x/${SECRET}", "a==${SECRET}"])
def test_variables_of_this_machine_are_not_put_into_a_list(line):
    with pytest.raises(BadInput, match="names a variable of this machine"):
        parse(line)
