"""The source is archived as it is, the patch leads there from the commit, and the user's repository is not touched."""

import hashlib
import json
import os
import random
import shutil
import stat
import string
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.capture import listing, repository, source
from reprokit.capture.listing import Caps
from reprokit.capture.redact import marker
from reprokit.capture.source import archive, find_root
from reprokit.incident import Draft

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
WHO = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always"]
SECRET = "ghp" + "_" + "".join(random.Random(1).choices(string.ascii_letters, k=36))
HIDDEN = marker(SECRET)


def git(folder, *arguments, **environment):
    done = subprocess.run(
        ["git", *WHO, *map(str, arguments)], cwd=folder, capture_output=True, env={**os.environ, **GIT, **environment}
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def write(folder, **files):
    """Files by name; `__` in a name is a slash, `_py` a suffix."""
    for name, content in files.items():
        put(folder, name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt"), content)


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, train_py="import model\nprint(1)\n", model__net_py="depth = 1\n", notes_txt="one\ntwo\nthree\n")
    put(folder, "data.bin", bytes(range(256)) * 40)
    put(folder, ".gitignore", "ignored/\n*.log\n")
    commit(folder)
    return folder


def commit(folder, message="work"):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "incidents"


class Archived:
    def __init__(self, folder, record, into):
        self.record = record
        self.git = json.loads((folder / "source/git.json").read_text())
        self.files = contents(folder / "source/tree") if (folder / "source/tree").exists() else {}
        self.patch = shutil.copy(folder / "source/patch.diff", into)
        self.everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def archived(root, out, **options):
    out.mkdir(exist_ok=True)
    with Draft(out) as draft:
        record = archive(draft, root, **{"modules": {}, **options})  # what the tests import is not the project's
        draft.write_json("x.json", {"left_out": record.left_out, "redacted": record.redacted})
        return Archived(draft.path, record, out / "patch.diff")


def contents(folder):
    """Every file below: name to content, whether it runs, or where it leads."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = os.fsencode(path.relative_to(folder))
        if path.is_symlink():
            found[os.fsdecode(name)] = "-> " + os.readlink(path)
        elif path.is_file() and b".git/" not in name:
            found[os.fsdecode(name)] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


def applied(repo, result, tmp_path):
    """What `git checkout COMMIT && git apply patch.diff` gives."""
    folder = tmp_path / "again"
    git(tmp_path, "clone", "-q", "--no-checkout", repo, folder)
    git(folder, "checkout", "-q", result.git["commit"])
    if os.path.getsize(result.patch):
        git(folder, "apply", result.patch)
    return {name: content for name, content in contents(folder).items() if not name.startswith(".git/")}


def working(repo):
    return {name: what for name, what in contents(repo).items() if not name.startswith((".git/", "ignored/"))}


def fingerprint(folder):
    """Every file of `.git`, with its content and the time of its last change."""
    digest = hashlib.sha256()
    for path in sorted((folder / ".git").rglob("*")):
        status = path.lstat()
        digest.update(repr((str(path), status.st_mode, status.st_mtime_ns if path.is_file() else 0)).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def change_everything(repo):
    """Each way in which a working tree can differ from its commit."""
    put(repo, "train.py", "import model\nprint(2)\n")  # unstaged
    put(repo, "model/net.py", "depth = 2\n")
    git(repo, "add", "model/net.py")  # staged
    put(repo, "model/net.py", "depth = 3\n")  # and changed again
    put(repo, "data.bin", b"\0new" + bytes(range(255, -1, -1)) * 30)
    put(repo, "new.bin", b"\0\1\2" * 1000)
    put(repo, "no newline.txt", "last line")
    put(repo, "empty.txt", "")
    put(repo, "crlf.txt", "a\r\nb\r\n")
    put(repo, os.fsdecode(b"caf\xe9.txt"), "latin\n")
    put(repo, "üñí ' \" \t.txt", "names\n")
    put(repo, "latin.txt", b"caf\xe9\n")
    put(repo, "ignored/big.txt", "no")
    put(repo, "run.log", "no")
    (repo / "link").symlink_to("train.py")
    (repo / "away").symlink_to("/etc/hostname")


def test_the_patch_leads_from_the_commit_to_the_working_tree(repo, out, tmp_path):
    names = "gone.txt moved.txt tool.sh was_file was_folder/a.txt staged_gone.txt kept_untracked.txt"
    for name in names.split():
        put(repo, name, f"{name}\n" * 20)
    (repo / "turns").symlink_to("train.py")
    commit(repo)
    change_everything(repo)
    (repo / "gone.txt").unlink()
    git(repo, "rm", "-q", "staged_gone.txt")
    git(repo, "rm", "-q", "--cached", "kept_untracked.txt")
    git(repo, "mv", "moved.txt", "elsewhere.txt")
    (repo / "tool.sh").chmod(0o755)
    (repo / "was_file").unlink()
    put(repo, "was_file/inside.txt", "now a folder\n")
    shutil.rmtree(repo / "was_folder")
    put(repo, "was_folder", "now a file\n")
    (repo / "turns").unlink()
    put(repo, "turns", "no link any more\n")
    put(repo, "both", "staged\n")
    git(repo, "add", "both")
    (repo / "both").unlink()  # staged as new, and gone again
    result = archived(repo, out)
    expected = working(repo)
    del expected["run.log"]
    assert applied(repo, result, tmp_path) == expected
    assert result.git["dirty"] and result.git["branch"] == "main"
    assert "M train.py" in result.git["changed"] and "D gone.txt" in result.git["changed"]
    assert "empty.txt" in result.git["untracked"] and "caf\\xe9.txt" in result.git["untracked"]


def test_a_clean_tree_needs_no_patch(repo, out):
    result = archived(repo, out)
    assert Path(result.patch).read_bytes() == b"" and not result.git["dirty"]
    assert result.record.commit == git(repo, "rev-parse", "HEAD").decode().strip() == result.git["commit"]
    assert result.files == working(repo) and result.record.left_out == [] and result.record.redacted == []
    assert result.git["files"] == 5 and result.git["bytes"] == sum(len(data) for data, _ in result.files.values())


def test_git_is_not_touched(repo, out):
    change_everything(repo)
    os.utime(repo / "notes.txt")  # git would like to refresh its index
    before, tree = fingerprint(repo), contents(repo)
    (repo / ".git/index.lock").write_text("another git is at work")
    result = archived(repo, out)
    assert "M train.py" in result.git["changed"]
    (repo / ".git/index.lock").unlink()
    assert fingerprint(repo) == before and contents(repo) == tree


def test_configuration_runs_no_program_and_changes_no_diff(repo, out, tmp_path):
    put(repo, ".gitattributes", "*.txt diff=odd filter=odd\n*.py filter=odd\n")
    commit(repo)
    change_everything(repo)
    trap = put(tmp_path, "trap.sh", f"#!/bin/sh\ntouch {tmp_path}/sprung\necho trap\n")
    trap.chmod(0o755)
    hooks = tmp_path / "hooks"
    for hook in ("post-index-change", "pre-commit", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(trap, put(hooks, hook, ""))
    options = {"core.hooksPath": hooks, "color.ui": "always", "diff.mnemonicPrefix": "true", "diff.noprefix": "true",
               "diff.algorithm": "histogram", "diff.context": "0", "diff.renames": "copies", "core.splitIndex": "true",
               "core.quotePath": "false", "diff.suppressBlankEmpty": "true", "core.untrackedCache": "true",
               "core.safecrlf": "true", "filter.odd.required": "true"}  # fmt: skip
    options |= dict.fromkeys(["core.fsmonitor", "diff.external", "diff.odd.command", "diff.odd.textconv", "core.pager",
                              "filter.odd.clean", "filter.odd.smudge", "filter.odd.process"], trap)  # fmt: skip
    for key, value in options.items():
        git(repo, "config", key, value)
    before = fingerprint(repo)
    result = archived(repo, out)
    assert not (tmp_path / "sprung").exists() and fingerprint(repo) == before
    shutil.rmtree(repo / "ignored")
    (repo / "run.log").unlink()
    assert applied(repo, result, tmp_path) == working(repo)
    assert any(line.startswith("filter odd: not run") for line in result.record.left_out)
    assert "notes.txt" in result.git["filters"]["odd"]


def test_variables_of_a_git_around_us_are_not_inherited(repo, out, monkeypatch, tmp_path):
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    result = archived(repo, out)
    assert result.record.commit and result.files == working(repo)


def test_line_ends_as_git_stores_them(repo, out, tmp_path):
    put(repo, ".gitattributes", "*.win text eol=crlf\n")
    put(repo, "a.win", "one\r\ntwo\r\n")
    commit(repo)
    put(repo, "a.win", "one\r\nthree\r\n")
    result = archived(repo, out)
    assert applied(repo, result, tmp_path) == working(repo)
    assert b"\r" not in Path(result.patch).read_bytes()


def test_what_was_hidden_from_git_is_found(repo, out, tmp_path):
    git(repo, "update-index", "--assume-unchanged", "train.py")
    git(repo, "update-index", "--skip-worktree", "notes.txt", "data.bin")
    put(repo, "train.py", "print('local')\n")
    put(repo, "notes.txt", "local\n")
    (repo / "data.bin").unlink()  # as in a sparse checkout: not a deletion
    before = fingerprint(repo)
    result = archived(repo, out)
    assert result.git["changed"] == ["M notes.txt", "M train.py"] and fingerprint(repo) == before
    again = applied(repo, result, tmp_path)
    assert again["train.py"][0] == b"print('local')\n" and again["notes.txt"][0] == b"local\n" and "data.bin" in again


def test_a_linked_working_tree_and_sha256(tmp_path, out):
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q", "--object-format=sha256")
    put(main, "train.py", "print(1)\n")
    commit(main)
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", linked)
    put(linked, "train.py", "print(2)\n")
    before = fingerprint(main)
    result = archived(linked, out)
    assert len(result.record.commit) == 64 and result.git["branch"] == "linked" and fingerprint(main) == before
    assert applied(linked, result, tmp_path)["train.py"][0] == b"print(2)\n"


def test_a_conflict_is_archived_as_it_stands(repo, out, tmp_path):
    git(repo, "checkout", "-q", "-b", "other")
    put(repo, "notes.txt", "theirs\n")
    commit(repo)
    git(repo, "checkout", "-q", "main")
    put(repo, "notes.txt", "ours\n")
    commit(repo)
    subprocess.run(["git", *WHO, "merge", "other"], cwd=repo, capture_output=True)
    assert b"<<<<" in (repo / "notes.txt").read_bytes()
    result = archived(repo, out)
    assert applied(repo, result, tmp_path) == working(repo) == result.files


def test_secrets_are_in_neither_tree_nor_patch(repo, out, tmp_path):
    lines = "".join(f"line {index}\n" for index in range(8))
    put(repo, "old.py", f"{lines}token = '{SECRET}'\n{lines}")  # committed, not changed
    put(repo, "removed.py", f"token = '{SECRET}'\n")  # committed, then taken out: a text diff would show it
    put(repo, "near.py", f"a = 1\ntoken = '{SECRET}'\n")  # beside a change
    put(repo, "deleted.py", f"token = '{SECRET}'\n")
    commit(repo)
    put(repo, "removed.py", "token = load()\n")
    put(repo, "near.py", f"a = 2\ntoken = '{SECRET}'\n")
    (repo / "deleted.py").unlink()
    put(repo, "fresh.py", f"x = 1\nurl = 'https://me:{SECRET}@host.example/x'\n")
    put(repo, "train.py", f"import model\n# {SECRET}\nprint(1)\n")
    put(repo, ".env", f"TOKEN={SECRET}\n")
    git(repo, "remote", "add", "origin", f"https://me:{SECRET}@host.example/x.git")
    result = archived(repo, out)
    assert SECRET.encode() not in result.everything
    again = applied(repo, result, tmp_path)
    assert again["near.py"][0] == f"a = 2\ntoken = '{HIDDEN}'\n".encode() == result.files["near.py"][0]
    assert again["fresh.py"] == result.files["fresh.py"] and HIDDEN.encode() in again["fresh.py"][0]
    assert again["train.py"] == result.files["train.py"] and again["removed.py"][0] == b"token = load()\n"
    assert "deleted.py" not in again and ".env" not in again and ".env" not in result.files
    assert again["old.py"][0].count(SECRET.encode()) == 1  # of the commit, which is not ours to change
    assert HIDDEN.encode() in result.files["old.py"][0]
    assert "source/tree/old.py:9: github token" in result.record.redacted
    assert "source/patch.diff: at the commit, near.py:2: github token" in result.record.redacted
    assert result.record.redacted[0].startswith("source: the code was changed in 4 lines")
    assert ".env: a file of credentials" in result.record.left_out
    assert result.git["remotes"] == {"origin": "https://host.example/x.git"}


def test_caps_are_kept_and_code_goes_first(repo, out, tmp_path):
    put(repo, "big.bin", b"\1" * 3000)
    for index in range(10):
        put(repo, f"clip{index}.dat", b"\1" * 500)
    put(repo, "data.bin", b"\2" * 5000)  # tracked and changed, over the cap
    put(repo, "zz.py", "late = 1\n" * 20)
    result = archived(repo, out, caps=Caps(total=2000, file=1000, files=8))
    assert {"train.py", "model/net.py", "notes.txt", "zz.py"} <= result.files.keys()
    assert len(result.files) <= 8 and result.git["bytes"] <= 2000
    assert "big.bin: 3,000 bytes, over 1,000 a file" in result.record.left_out
    assert "data.bin: 5,000 bytes, over 1,000 a file" in result.record.left_out
    assert any(line.endswith("over 2,000 in all") for line in result.record.left_out)
    again = applied(repo, result, tmp_path)
    assert "big.bin" not in again and again["data.bin"][0] == bytes(range(256)) * 40  # as at the commit
    few = archived(repo, out, caps=Caps(files=3))
    assert len(few.files) == 3 and any(line.endswith("over 3 files") for line in few.record.left_out)


def test_a_manifest_names_some_and_counts_the_rest(repo, out):
    for index in range(50):
        put(repo, f"clip{index:02}.dat", b"\1" * 200)
    result = archived(repo, out, caps=Caps(file=100))
    assert len(result.record.left_out) == source.NAMED_IN_MANIFEST + 1
    assert result.record.left_out[-1] == "and 31 more"  # data.bin too
    assert len(result.git["left_out"]) == 51


def test_links_become_what_they_lead_to(repo, out, tmp_path):
    (repo / "train_link.py").symlink_to("train.py")
    (repo / "package").symlink_to("model")
    (repo / "outside").symlink_to(tmp_path)
    (repo / "hosts").symlink_to("/etc/hosts")
    (repo / "nothing").symlink_to("not there")
    (repo / "self").symlink_to("self")
    (repo / "around").symlink_to(".")
    commit(repo)
    result = archived(repo, out)
    assert result.files["train_link.py"] == result.files["train.py"]
    assert result.files["package/net.py"] == result.files["model/net.py"]
    refused = {"outside", "hosts", "nothing", "self", "around"}
    assert not result.files.keys() & refused
    assert {line.partition(":")[0] for line in result.record.left_out} == refused
    assert applied(repo, result, tmp_path) == working(repo)


def test_repositories_inside(repo, out, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    put(library, "lib.py", "lib = 1\n")
    commit(library)
    git(repo, "submodule", "--quiet", "add", library, "vendor/lib")
    git(repo, "submodule", "--quiet", "add", library, "vendor/bare")
    commit(repo)
    git(repo, "submodule", "--quiet", "deinit", "-f", "vendor/bare")
    git(tmp_path, "clone", "-q", library, repo / "beside")
    put(repo, "vendor/lib/lib.py", "lib = 2\n")
    put(repo, "vendor/lib/new.py", "new = 1\n")
    put(repo, "train.py", "print(3)\n")
    result = archived(repo, out)
    head = git(library, "rev-parse", "HEAD").decode().strip()
    assert result.git["modules"] == {"vendor/lib": head, "vendor/bare": head, "beside": head}
    assert result.files["vendor/lib/lib.py"][0] == b"lib = 2\n" and "beside/lib.py" in result.files
    assert "vendor/lib/new.py" in result.files and not any(".git/" in name for name in result.files)
    assert "vendor/bare: a submodule that is not checked out" in result.record.left_out
    assert result.git["changed"] == ["M train.py"]
    assert applied(repo, result, tmp_path)["train.py"][0] == b"print(3)\n"


def test_the_recorders_own_output_is_not_archived(repo, tmp_path):
    out = repo / "incidents"
    put(out, "2026-01-01-nan/incident.json", "{}")
    put(out, "2026-01-01-nan/state/state.safetensors", "x")
    put(out, ".draft-123/half.txt", "x")
    put(repo, "elsewhere/old/incident.json", "{}")
    put(repo, "elsewhere/old/batch.txt", "{}")
    for exclude in ([out], []):
        result = archived(repo, out, exclude=exclude)
        assert not [name for name in result.files if name.startswith(("incidents/2", "incidents/.", "elsewhere/old"))]
        assert not [name for name in applied(repo, result, tmp_path) if name.startswith("elsewhere/old")]
        shutil.rmtree(tmp_path / "again")
        (out / "patch.diff").unlink()
    assert "elsewhere/old: an incident" in result.record.left_out


def test_what_the_verbs_made_is_not_archived_unless_it_is_tracked(repo, out):
    put(repo, "replayed/attempts.jsonl", "{}")
    put(repo, "replayed/logs/1.txt", "printed")
    for name in ("nan.tar.zst", "small/nan.journal.jsonl", "kept.tar.zst"):
        put(repo, name, "x")
    git(repo, "add", "kept.tar.zst")
    result = archived(repo, out)
    assert "kept.tar.zst" in result.files and not {"nan.tar.zst", "small/nan.journal.jsonl"} & set(result.files)
    assert not [name for name in result.files if name.startswith("replayed/")]
    told = {"replayed: attempts of a replay", "nan.tar.zst: a bundle"}
    assert told < set(result.record.left_out)


def test_an_excluded_folder_around_the_root_excludes_nothing(repo, out):
    assert archived(repo, out, exclude=[repo, repo.parent]).files == working(repo)


def test_an_environment_without_an_ignore_file(repo, out):
    put(repo, "env311/pyvenv.cfg", "home = /usr\n")
    put(repo, "env311/lib/x.py", "x = 1\n")
    put(repo, "node_modules/a.py", "x = 1\n")
    put(repo, "model/__pycache__/net.cpython-311.pyc", "x")
    result = archived(repo, out)
    assert result.files.keys() == {"train.py", "model/net.py", "notes.txt", "data.bin", ".gitignore"}
    assert result.record.left_out == ["env311: an environment"]


def test_outside_a_repository_the_folder_is_walked(tmp_path, out):
    root = tmp_path / "scripts"
    put(root, "train.py", f"token = '{SECRET}'\n").parent.joinpath("again.py").symlink_to("train.py")
    put(root, "lib/__init__.py", "")
    put(root, "lib/__pycache__/a.pyc", "x")
    put(root, ".venv/x.py", "x")
    put(root, "id_rsa", "x")
    result = archived(root, out)
    assert result.record.commit is None and result.git["commit"] is None and not os.path.getsize(result.patch)
    assert result.files.keys() == {"train.py", "again.py", "lib/__init__.py"}
    assert SECRET.encode() not in result.everything
    assert result.record.redacted[1:] == [f"source/tree/{name}.py:1: github token" for name in ("again", "train")]


def test_a_walk_ends(tmp_path, out, monkeypatch):
    monkeypatch.setattr(listing, "LOOKED_AT", 20)
    for index in range(50):
        put(tmp_path, f"root/{index:02}.py", "x = 1\n")
    result = archived(tmp_path / "root", out)
    assert len(result.files) == 20
    assert result.record.left_out == [".: over 20 files and folders, the rest was not looked at"]


def test_no_commit_yet(tmp_path, out):
    root = tmp_path / "new"
    root.mkdir()
    git(root, "init", "-q")
    put(root, "train.py", "print(1)\n")
    put(root, "x.log", "x")
    put(root, ".gitignore", "*.log")
    result = archived(root, out)
    assert result.record.commit is None and result.files.keys() == {"train.py", ".gitignore"}
    assert result.record.left_out == ["patch.diff: there is no commit yet, or HEAD is broken"]


@pytest.mark.parametrize("head", ["nonsense", "ref: refs/heads/nowhere\n", "0" * 40, ""])
def test_a_broken_head(repo, out, head):
    (repo / ".git/HEAD").write_text(head)
    result = archived(repo, out)
    assert result.record.commit is None and "train.py" in result.files
    assert "patch.diff" in result.record.left_out[0] and find_root(repo / "model/net.py") == repo


def test_a_corrupt_index_or_store(repo, out):
    put(repo, "train.py", "print(5)\n")
    shutil.rmtree(repo / ".git/objects")
    (repo / ".git/objects").mkdir()
    assert archived(repo, out).files["train.py"][0] == b"print(5)\n"
    (repo / ".git/index").write_bytes(b"not an index")
    result = archived(repo, out)
    assert result.files["train.py"][0] == b"print(5)\n" and "patch.diff" in result.record.left_out[0]


def test_without_git(repo, out, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = archived(repo, out)
    assert result.record.commit is None and "train.py" in result.files
    assert result.record.left_out == ["commit and patch.diff: git cannot be run (No such file or directory)"]
    assert find_root(repo / "model/net.py") == repo


def test_a_git_that_does_not_answer(repo, out, monkeypatch, tmp_path):
    put(tmp_path, "bin/git", "#!/bin/sh\nexec sleep 60\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(repository, "TIMEOUT", 0.2)
    result = archived(repo, out)
    assert "train.py" in result.files and "took over 0.2 seconds" in result.record.left_out[0]


def test_many_untracked_files_and_a_folder_that_git_ignores(repo, out):
    for index in range(300):
        put(repo, f"frames/{index}.png", b"\0x")
    result = archived(repo, out, caps=Caps(files=100))
    assert len(result.files) == 100 and "train.py" in result.files
    put(repo, "ignored/train.py", "print(1)\n")
    inside = archived(repo / "ignored", out)
    assert inside.files.keys() == {"train.py"} and inside.record.commit is None


def test_a_folder_of_a_repository(repo, out):
    put(repo, "model/net.py", "depth = 9\n")
    result = archived(repo / "model", out)
    assert result.files.keys() == {"net.py"} and result.git["folder"] == "model" and result.record.commit


def test_the_root_of_a_file(repo, tmp_path, monkeypatch):
    assert find_root(repo / "model/net.py") == repo
    put(repo, "ignored/sub/x.py", "")
    assert find_root(repo / "ignored/sub/x.py") == repo / "ignored/sub"
    put(tmp_path, "plain/top/__init__.py", ""); put(tmp_path, "plain/top/inner/__init__.py", "")
    assert find_root(put(tmp_path, "plain/top/inner/m.py", "")) == tmp_path / "plain"
    assert find_root(put(tmp_path, "plain/script.py", "")) == tmp_path / "plain"
    packages = tmp_path / "lib/site-packages"
    put(packages, "pkg/__init__.py", "")
    assert find_root(put(packages, "pkg/m.py", "")) == packages / "pkg"
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    put(home, "pkg/__init__.py", "")
    assert find_root(put(home, "pkg/m.py", "")) == home / "pkg"
    git(home, "init", "-q")  # the settings of a person, not a project
    assert find_root(put(home, "work/train.py", "")) == home / "work"
    assert find_root(put(home, "train.py", "")) == home


def test_a_home_folder_is_never_archived_whole(tmp_path, out, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for name in ("train.py", "letters/private.txt", ".bash_history.txt", "film.mp4", "config.yaml"):
        put(home, name, "x\n")
    git(home, "init", "-q")
    result = archived(home, out)
    assert result.files.keys() == {"train.py", "config.yaml"}
    assert result.record.left_out == [".: only code directly in home is taken, not all that is below"]


def test_a_repository_of_another_user(repo, out):
    if os.geteuid():
        pytest.skip("needs root, to give a repository to another user")
    for path in [repo, *repo.rglob("*")]:
        os.lchown(path, 12345, 12345)
    put(repo, "train.py", "print(4)\n")
    result = archived(repo, out)
    assert result.record.commit and result.git["changed"] == ["M train.py"]


def test_a_file_that_cannot_be_read(repo, out):
    os.mkfifo(repo / "pipe")
    (repo / "notes.txt").unlink()
    os.mkfifo(repo / "notes.txt")
    code = f"""if True:
        import os, sys
        from pathlib import Path
        from reprokit.capture.source import archive
        from reprokit.incident import Draft
        Path({str(out)!r}).mkdir()
        with Draft(Path({str(out)!r})) as draft:
            print(archive(draft, Path({str(repo)!r})))
    """  # in a process of its own: reading a pipe would wait for ever
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "notes.txt" in done.stdout and "train.py" not in done.stdout
