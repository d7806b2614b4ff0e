import shutil
import subprocess
import sys
import zipfile

import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay.requirements import Wanted, parse
from reprokit.replay.wheels import Collection, diagnose, names_in

LISTED = Wanted(pins=("mine @ git+https://me:s3cret@h.example/mine@abc",), files={"mine": "mine-1.0.whl"})


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


def test_wheels_that_somebody_has_removed_are_gathered_again(tmp_path, make_wheel, no_index):
    make_wheel(tmp_path / "house", "alpha", "1.0")
    collection, wanted = Collection(tmp_path / "cache"), parse("alpha==1.0")
    hashes = collection.gather(wanted, tmp_path / "house", lambda line: None)
    shutil.rmtree(tmp_path / "cache")
    assert collection.remembered(wanted, tmp_path / "house") is None and not collection.complete(hashes)
    assert collection.gather(wanted, tmp_path / "house", lambda line: None) == hashes and collection.complete(hashes)


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
        ("ERROR: No matching distribution found for pyg==2+pt26cu126", BadInput, r"the \+pt26cu126 builds in PIP_"),
        ("ERROR: No matching distribution found for mine==1.0", BadInput, r"from the file mine-1\.0\.whl"),
        (
            "Collecting mine @ git+https://me:s3cret@h.example/mine@abc (from -r x)\n  fatal: could not read Username\n"
            "error: subprocess-exited-with-error\n  x git clone --filter=blob:none did not run successfully.",
            BadInput,
            r"^mine @ git\+https://h\.example/mine@abc: its repository cannot be cloned here \(fatal: could not read",
        ),
        ("ERROR: Cannot find command 'git' - do you have 'git' installed?", BadInput, "cloned here .Cannot find"),
        ("", BadInput, "pip cannot gather"),
    ],
)
def test_what_pip_says_becomes_one_line(said: str, kind: type, words: str):
    with pytest.raises(kind, match=words) as refusal:
        raise diagnose(said.splitlines(), LISTED)
    assert "\n" not in str(refusal.value) and "s3cret" not in str(refusal.value)


BACKEND = """
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "mine-0.3-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("mine.py", "FROM = 'a commit'\\n")
        wheel.writestr("mine-0.3.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 0.3\\n")
        wheel.writestr("mine-0.3.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mine-0.3.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def repository(tmp_path):
    """A git repository with a package that builds without anything from an index; its folder and its commit."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(f'{build}[project]\nname = "mine"\nversion = "0.3"\n')
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return folder, commit


@pytest.mark.slow
def test_a_commit_is_built_out_here(tmp_path, repository, no_index):
    folder, commit = repository
    collection = Collection(tmp_path / "cache")
    hashes = collection.gather(parse(f"mine @ git+file://localhost{folder}@{commit}"), None, lambda line: None)
    assert list(hashes) == ["mine-0.3-py3-none-any.whl"]
    assert b"a commit" in zipfile.ZipFile(collection.paths(hashes)[0]).read("mine.py")
    with pytest.raises(BadInput, match=r"^away @ git\+file:.*cannot be cloned here \(fatal: ") as refusal:
        collection.gather(parse(f"away @ git+file://localhost/nowhere/at/all@{commit}"), None, lambda line: None)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_a_wheelhouse_is_asked_for_what_came_from_a_commit(tmp_path, make_wheel, no_index):
    house = tmp_path / "house"
    make_wheel(house, "mine", "0.3")
    wanted = parse("mine @ git+file:///nowhere/at/all@abc", house=names_in(house))
    hashes = Collection(tmp_path / "cache").gather(wanted, house, lambda line: None)
    assert list(hashes) == ["mine-0.3-py3-none-any.whl"]


@pytest.mark.slow
def test_the_index_of_a_build_is_asked_where_pips_own_do_not_have_it(tmp_path, make_wheel, monkeypatch):
    """An index as PEP 503 has it, in a folder: /cu130/torch/ holds the wheel."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/own")
    monkeypatch.setenv("REPROKIT_TORCH_INDEX", f"file://{tmp_path}/torch-builds")
    page = tmp_path / "torch-builds" / "cu130" / "torch"
    wheel = make_wheel(page, "torch", "2.13.0+cu130")
    (page / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    collection = Collection(tmp_path / "cache")
    wanted = parse("torch==2.13.0+cu130\n", trust=False)
    assert list(collection.gather(wanted, None, lambda line: None)) == [wheel.name]
    with pytest.raises(BadInput, match=r"^torch==2\.13\.0\+cu126: not in any index"):
        collection.gather(parse("torch==2.13.0+cu126\n"), None, lambda line: None)
