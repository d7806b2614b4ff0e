"""What was imported from beside the source is archived, and a replay imports that, whatever lives under its name."""

import json
import os
import random
import string
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

import reprokit
from reprokit.capture import siblings
from reprokit.capture.listing import Caps
from reprokit.capture.source import archive
from reprokit.incident import Draft
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

pytestmark = pytest.mark.slow

SECRET = "ghp" + "_" + "".join(random.Random(1).choices(string.ascii_letters, k=36))
SCALE = "import torch\nfrom . import depth\ndef scale(x):\n    return x * depth.FACTOR\n"
LIVE = "raise RuntimeError('the live package was imported')\n"
TRAIN = """
import torch, reprokit
from torch import nn
import {package}

def build(config):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    return reprokit.Harness(modules={{"net": net}}, optimizer=optimizer, layout={{"x": "b d"}},
                            step=lambda batch: {package}.scale(net(batch["x"])).pow(2).mean())

if __name__ == "__main__":
    with reprokit.Recorder(build({{}}), build=build, config={{}}, rehearse=False) as recorder:
        for i in range(4):
            recorder.step({{"x": torch.full((2, 4), float("nan") if i == 2 else 1.0)}})
"""
# What scikit-build-core and meson-python install: a finder before all others
HOOK = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "{package}":
            file = {file!r}
            return spec_from_file_location(name, file, submodule_search_locations=[file.rpartition("/")[0]])
sys.meta_path.insert(0, Finder)
"""


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def package(folder, name="mylib"):
    put(folder, f"{name}/__init__.py", SCALE)
    return put(folder, f"{name}/depth.py", "FACTOR = 3.0\n")


def train(folder, **env):
    """A script that fails at its third step; the incident that it leaves."""
    put(folder, "train.py", TRAIN.format(package="mylib"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env}, check=False,
    )  # fmt: skip
    assert "IncidentCaptured" in done.stderr, done.stderr
    [path] = (folder / "incidents").iterdir()
    return reprokit.Incident.open(path)


def replays(incident):
    with Worker(incident) as worker:
        outcome = worker.evaluate(Case(incident=incident.path), "process", timeout=120)
    assert outcome.status is Status.FAIL, outcome.detail
    assert outcome.fingerprint == incident.manifest.fingerprint


def path(*folders):
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_package_on_the_path_replays_whatever_becomes_of_it(tmp_path, monkeypatch):
    live = package(tmp_path / "shared")
    incident = train(tmp_path / "project", PYTHONPATH=path(tmp_path / "shared"))
    assert incident.packages == incident.path / "source/packages"
    assert sorted(file.name for file in (incident.packages / "mylib").iterdir()) == ["__init__.py", "depth.py"]
    monkeypatch.setenv("PYTHONPATH", path(tmp_path / "shared"))  # where an attempt would find it
    live.write_text(LIVE)
    replays(incident)
    live.unlink(), live.with_name("__init__.py").unlink()
    replays(incident)


@pytest.mark.parametrize("hooked", [True, False], ids=["finder", "path"])
def test_an_editable_install_replays_and_is_not_pinned(tmp_path, monkeypatch, hooked):
    """As pip leaves it: metadata in a folder of packages, and a way to the code, which a start of Python follows."""
    live = package(tmp_path / "checkout/src")
    site = tmp_path / "env/site-packages"
    info = "mylib-1.2.dist-info"
    put(site, f"{info}/METADATA", "Metadata-Version: 2.1\nName: mylib\nVersion: 1.2\nRequires-Dist: pyyaml\n")
    origin = {"url": f"file://{tmp_path}/checkout", "dir_info": {"editable": True}}
    put(site, f"{info}/direct_url.json", json.dumps(origin))
    put(site, f"{info}/RECORD", f"{info}/METADATA,,\n{info}/RECORD,,\nmylib_hook.py,,\nmylib.pth,,\n")
    put(site, "mylib_hook.py", HOOK.format(package="mylib", file=str(live.with_name("__init__.py"))))
    put(site, "mylib.pth", "import mylib_hook\n" if hooked else f"{live.parents[1]}\n")
    put(site, "sitecustomize.py", f"import site\nsite.addsitedir({str(site)!r})\n")
    incident = train(tmp_path / "project", PYTHONPATH=path(site))
    [entry] = json.loads((incident.path / "source/packages.json").read_text())["packages"]
    assert entry == {
        **{"name": "mylib", "place": "packages/mylib", "from": "../checkout/src/mylib/__init__.py", "version": "1.2"},
        **{"distribution": "mylib", "origin": {"dir_info": {"editable": True}}, "commit": None},
    }
    assert "# mylib==1.2: in the incident, below source/packages\n" in incident.requirements()
    monkeypatch.setenv("PYTHONPATH", path(site))
    live.write_text(LIVE)
    replays(incident)


def test_an_incident_without_siblings_has_no_packages(tmp_path):
    package(tmp_path / "project")
    incident = train(tmp_path / "project")
    assert not incident.packages.exists() and not (incident.path / "source/packages.json").exists()
    replays(incident)


class Archived:
    def __init__(self, folder, record):
        self.record = record
        packages = folder / "source/packages"
        self.files = {file.relative_to(packages).as_posix() for file in packages.rglob("*") if file.is_file()}
        about = folder / "source/packages.json"
        self.about = json.loads(about.read_text()) if about.exists() else None
        self.everything = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def archived(tmp_path, modules, root=None, **options):
    root = root or tmp_path / "project"
    root.mkdir(exist_ok=True)
    with Draft(tmp_path / "incidents") as draft:
        return Archived(draft.path, archive(draft, root, modules={one.__name__: one for one in modules}, **options))


def module(file, name=None, **variables):
    """As an import would leave it."""
    file = Path(file)
    made = ModuleType(name or (file.parent.name if file.stem == "__init__" else file.stem))
    made.__file__ = str(file)
    if file.stem == "__init__":
        made.__path__ = [str(file.parent)]
    vars(made).update(variables)
    return made


def test_what_is_a_sibling(tmp_path):
    lib = tmp_path / "shared"
    modules = [
        module(put(lib, "pkg/__init__.py", ""), __version__="0.3"),
        module(put(lib, "alone.py", "")),
        module(put(lib, "native.cpython-311-x86_64-linux-gnu.so", b"\0"), "native"),
        module(put(tmp_path, "project/own.py", "")),
        module(put(tmp_path, "env/site-packages/installed/__init__.py", "")),
        module(put(lib, "train.py", ""), "__main__"),
        module(reprokit.__file__),
        *map(sys.modules.__getitem__, ("json", "pytest", "torch", "sys", "os")),
    ]
    result = archived(tmp_path, modules)
    assert result.files == {"pkg/__init__.py", "alone.py", "native.cpython-311-x86_64-linux-gnu.so"}
    assert [entry["name"] for entry in result.about["packages"]] == ["alone", "native", "pkg"]
    assert result.about["packages"][2]["version"] == "0.3" and result.record.left_out == []


def test_what_pip_installed_is_taken_if_it_came_from_a_folder(tmp_path, monkeypatch):
    """As `pip install --target`: no folder's name says that these are installed."""
    target = tmp_path / "target"
    gone = {"gone": "file:///nowhere", "conda": "file:///nowhere", "unknown": "file:///nowhere"}
    origins = {"local": f"file://{tmp_path}/checkout", **gone, "indexed": ""}
    installers = {"conda": "conda\n", "gone": "pip\n"}
    (tmp_path / "checkout").mkdir()
    for name, url in origins.items():
        info = f"{name}-1.0.dist-info"
        put(target, f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        put(target, f"{info}/RECORD", f"{name}/__init__.py,,\n")
        put(target, f"{info}/direct_url.json", json.dumps({"url": url, "dir_info": {}}) if url else "null")
        put(target, f"{info}/INSTALLER", installers.get(name, ""))
    monkeypatch.syspath_prepend(target)
    result = archived(tmp_path, [module(put(target, f"{name}/__init__.py", "")) for name in origins])
    assert result.files == {"local/__init__.py", "gone/__init__.py"}  # its folder went with the image's build
    assert result.record.distributions == ["gone", "local"]


def test_of_a_namespace_package_the_parts_that_were_imported(tmp_path):
    space = ModuleType("space")
    space.__path__ = [str(tmp_path / "a/space"), str(tmp_path / "b/space")]
    put(tmp_path, "a/space/other/__init__.py", "")
    put(tmp_path, "a/space/huge.bin", b"\0")
    one = module(put(tmp_path, "a/space/one/__init__.py", ""), "space.one")
    inner = module(put(tmp_path, "a/space/one/inner.py", ""), "space.one.inner")
    two = module(put(tmp_path, "b/space/two.py", ""), "space.two")
    assert archived(tmp_path, [space, one, inner, two]).files == {
        "space/one/__init__.py", "space/one/inner.py", "space/two.py",
    }  # fmt: skip


def test_a_package_in_several_folders_becomes_one(tmp_path):
    first = put(tmp_path, "first/pkg/__init__.py", "x = 1\n")
    put(tmp_path, "second/pkg/__init__.py", "x = 2\n")
    put(tmp_path, "second/pkg/more.py", "")
    built = put(tmp_path, "env/site-packages/pkg/_core.so", b"\0core")
    linked = tmp_path / "first/pkg/linked.py"
    linked.symlink_to(put(tmp_path, "elsewhere/linked.py", ""))
    package = module(first, __path__=[str(first.parent), str(tmp_path / "second/pkg"), "/nowhere/pkg"])
    result = archived(tmp_path, [package, module(built, "pkg._core"), module(linked, "pkg.linked")])
    assert result.files == {"pkg/__init__.py", "pkg/more.py", "pkg/_core.so", "pkg/linked.py"}
    assert b"x = 1" in result.everything and b"x = 2" not in result.everything
    assert result.record.left_out == []


def test_secrets_caches_and_data_as_in_the_tree(tmp_path):
    init = put(tmp_path, "shared/pkg/__init__.py", f"TOKEN = '{SECRET}'\n")
    for name in ("__pycache__/x.pyc", ".env", "model.key", ".git/config", "weights.bin"):
        put(init.parent, name, b"\1" * 2000)
    (init.parent / "away").symlink_to("/etc/hosts")
    result = archived(tmp_path, [module(init)], caps=Caps(file=1000))
    assert result.files == {"pkg/__init__.py"} and SECRET.encode() not in result.everything
    assert result.record.redacted[1:] == ["source/packages/pkg/__init__.py:1: github token"]
    assert sorted(result.record.left_out) == [
        "packages/pkg/.env: a file of credentials",
        "packages/pkg/away: a link out of the source",
        "packages/pkg/model.key: a file of credentials",
        "packages/pkg/weights.bin: 2,000 bytes, over 1,000 a file",
    ]


def test_half_a_package_is_none(tmp_path):
    init, whole = put(tmp_path, "shared/pkg/__init__.py", ""), put(tmp_path, "shared/whole/__init__.py", "")
    core = module(put(init.parent, "_core.so", b"\0" * 2000), "pkg._core")
    result = archived(tmp_path, [module(init), core, module(whole)], caps=Caps(file=1000))
    assert result.files == {"whole/__init__.py"} and [one["name"] for one in result.about["packages"]] == ["whole"]
    reason = "nothing of it, since packages/pkg/_core.so was imported and is left out"
    assert f"packages/pkg: {reason}" in result.record.left_out


def test_code_of_all_packages_goes_before_data_of_one(tmp_path):
    first, last = put(tmp_path, "shared/a/__init__.py", ""), put(tmp_path, "shared/z/__init__.py", "x = 1\n" * 50)
    put(first.parent, "data.bin", b"\1" * 400)
    result = archived(tmp_path, [module(first), module(last)], caps=Caps(total=500))
    assert result.files == {"a/__init__.py", "z/__init__.py"}


def test_a_walk_ends_and_what_was_imported_is_there(tmp_path, monkeypatch):
    init, last = put(tmp_path, "shared/pkg/__init__.py", ""), put(tmp_path, "shared/pkg/zz.py", "")
    for index in range(50):
        put(init.parent, f"frames/{index:02}.txt", "")
    monkeypatch.setattr(siblings.listings, "LOOKED_AT", 20)
    result = archived(tmp_path, [module(init), module(last, "pkg.zz")])
    assert {"pkg/__init__.py", "pkg/zz.py"} < result.files and len(result.files) < 25
    assert result.record.left_out == ["packages/pkg: over 20 files and folders, the rest was not looked at"]


def test_odd_modules_are_no_trouble(tmp_path):
    class Lazy(ModuleType):
        def __getattr__(self, name):
            raise RuntimeError(f"{name}: not to be asked for")

    with ZipFile(tmp_path / "lib.zip", "w") as file:
        file.writestr("zipped.py", "")
    odd = {
        "none": None,
        "lazy": Lazy("lazy"),
        "number": 3,
        "relative": module("_ops.py", "relative"),
        "weird": module(tmp_path / "weird.py", __path__=3, __spec__=None),
        "listed": module(put(tmp_path, "shared/listed/__init__.py", ""), __path__=[3, None]),
        "zipped": module(tmp_path / "lib.zip/zipped.py"),
        "made up/../name": module(put(tmp_path, "shared/x.py", ""), "made up/../name"),
        "by_path": module(put(tmp_path, "shared/configs.py", ""), "by_path"),
        "builtin": sys,
        "frozen": sys.modules["_frozen_importlib"],
        4: sys,
    }
    (tmp_path / "project").mkdir()
    with Draft(tmp_path / "incidents") as draft:
        result = Archived(draft.path, archive(draft, tmp_path / "project", modules=odd))
    assert result.files == {"listed/__init__.py"}, result.record.left_out
    assert sorted(result.record.left_out) == [
        "packages/by_path: loaded by its path, not imported by its name",
        "packages/made up/../name: loaded by its path, not imported by its name",
        "packages/weird: deleted, or in an archive",
        "packages/zipped: deleted, or in an archive",
    ]


def test_whatever_goes_wrong_the_tree_is_archived(tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("metadata of no sort")

    monkeypatch.setattr(siblings.packages, "installed", broken)
    put(tmp_path, "project/train.py", "")
    result = archived(tmp_path, [module(put(tmp_path, "shared/alone.py", ""))])
    assert result.record.left_out == ["packages: RuntimeError: metadata of no sort"]
    assert b"metadata of no sort" in result.everything


def test_where_it_came_from_names_nobody(tmp_path, monkeypatch):
    home = tmp_path / "home/alice"
    monkeypatch.setattr(Path, "home", lambda: home)
    near = module(put(home, "work/near.py", ""))
    far = module(put(home, "libs/far.py", ""))
    scratch = module(put(tmp_path, "scratch/alice/much.py", ""))
    (home / "work/project").mkdir()
    result = archived(tmp_path, [near, far, scratch], root=home / "work/project")
    assert {one["name"]: one["from"] for one in result.about["packages"]} == {
        "near": "../near.py",
        "far": "~/libs/far.py",
        "much": f"{tmp_path}/scratch/~/much.py",
    }


def test_the_commit_of_a_sibling(tmp_path):
    file = put(tmp_path, "shared/src/alone.py", "")
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path / "shared", check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=file.parent, capture_output=True, text=True, check=True)
    [entry] = archived(tmp_path, [module(file)]).about["packages"]
    assert entry["commit"] == head.stdout.strip()


def test_a_script_in_the_home_folder_has_its_packages_archived(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setattr(Path, "home", lambda: home)
    init, beside = put(home, "mylib/__init__.py", ""), put(home, "beside.py", "")
    result = archived(tmp_path, [module(init), module(beside)], root=home)
    assert result.files == {"mylib/__init__.py"}  # the other is in the tree, which holds what lies in home itself


def test_an_archived_namespace_leaves_room_for_its_other_parts(tmp_path):
    put(tmp_path, "packages/space/one.py", "x = 'archived'\n")
    put(tmp_path, "live/space/one.py", "x = 'live'\n")
    put(tmp_path, "live/space/two.py", "")
    put(tmp_path, "root/train.py", "import space.one, space.two\nbuild = lambda config: space.one.x\n")
    code = """
    import sys
    from pathlib import Path
    from reprokit.step.load import load_entrypoint
    for _ in range(2):
        build = load_entrypoint("train.py:build", Path("root"), packages=Path("packages"))
    print(build({}), sum(type(one).__name__ == "_Archived" for one in sys.meta_path))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path(tmp_path / "live")},
    )  # fmt: skip
    assert done.stdout.split() == ["archived", "1"], done.stderr
