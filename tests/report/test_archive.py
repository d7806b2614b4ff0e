"""The archive: equal bytes for equal input, and nothing that a stranger can put into one gets out of it."""

import io
import os
import subprocess
import tarfile

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.report import archive
from reprokit.report.checksums import MANIFEST, Index, format_index, parse_index

DEEP = bytes(range(256)) * 9000
FILES = {"README.md": b"read me\n", "run.sh": b"#!/bin/sh\n", "incident/a/deep.bin": DEEP, "empty": b""}


@pytest.fixture
def packed(tmp_path):
    out = tmp_path / "box.tar.zst"
    archive.pack(FILES, top="box", incident="abc", out=out)
    return out


def test_what_goes_in_comes_out(packed, tmp_path):
    index = archive.extract(packed, tmp_path / "out")
    found = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found.pop(MANIFEST) == format_index(index)
    assert found == FILES and index.incident == "abc"
    assert os.access(tmp_path / "out/run.sh", os.X_OK) and not os.access(tmp_path / "out/README.md", os.X_OK)


def test_equal_input_gives_equal_bytes_whatever_the_disk_says(packed, tmp_path):
    folder = tmp_path / "in"
    for path, content in reversed(FILES.items()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        os.utime(folder / path, (1, 1))
        (folder / path).chmod(0o600)
    archive.pack({path: folder / path for path in reversed(FILES)}, top="box", incident="abc", out=tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == packed.read_bytes()


def test_tar_and_sha256sum_of_the_system_read_it(packed, tmp_path):
    plain = zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()).read()
    subprocess.run(["tar", "-xf", "-", "-C", str(tmp_path)], input=plain, check=True)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", MANIFEST], cwd=tmp_path / "box", check=True)


def test_nothing_is_left_when_writing_fails(tmp_path):
    with pytest.raises(FileNotFoundError):
        archive.pack({"a": tmp_path / "absent"}, top="box", incident="abc", out=tmp_path / "out" / "box.tar.zst")
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def refused(file, tmp_path):
    """The one line, from reading and from unpacking alike; neither leaves anything behind."""
    with pytest.raises(BadInput) as told:
        archive.read(file)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput):
        archive.extract(file, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
    line = str(told.value)
    assert "\n" not in line and str(file) in line
    return line


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_altered_byte_is_noticed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("altered")
    archive.pack({"a": b"some", "b": b"text"}, top="box", incident="abc", out=folder / "box")
    whole = (folder / "box").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    changed = whole[:at] + bytes([whole[at] ^ other]) + whole[at + 1 :]
    (folder / "box").write_bytes(changed)
    try:
        index = archive.read(folder / "box")
    except BadInput:
        return
    # A frame header has bits that mean nothing; what they leave is byte for byte the same archive.
    decompress = lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert decompress(changed) == decompress(whole) and index.incident == "abc"


@settings(max_examples=40, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_any_truncation_is_noticed(cut, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    archive.pack(FILES, top="box", incident="abc", out=folder / "box")
    whole = (folder / "box").read_bytes()
    (folder / "box").write_bytes(whole[: int(cut * len(whole))])
    assert "truncated" in refused(folder / "box", folder)


def hostile(file, members, *, listed=None, top="box", schema=1, size=None, level=3):
    """A bundle made by hand: members are (name, content) or ready TarInfos with their content."""
    listed = {name: content for name, content in members if isinstance(name, str)} if listed is None else listed
    total = sum(map(len, listed.values())) if size is None else size
    digests = {name: archive._hash(content) for name, content in listed.items()}
    head = format_index(Index(schema=schema, incident="abc", bytes=total, files=digests))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in [(MANIFEST, head), *members]:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(f"{top}/{name}")
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    file.write_bytes(zstandard.ZstdCompressor(level=level).compress(buffer.getvalue()))
    return file


@pytest.mark.parametrize("path", ["../evil", "a/../../evil", "/etc/evil", "./a", "a//b", "a/", ""])
def test_a_path_outside_its_folder_is_refused(path, tmp_path):
    assert "outside its folder" in refused(hostile(tmp_path / "b", [(path, b"x")]), tmp_path)


@pytest.mark.parametrize("path", ["/etc/evil", "../evil", "box/../evil", "other/evil"])
def test_a_member_outside_its_folder_is_refused_even_if_the_manifest_is_clean(path, tmp_path):
    member = tarfile.TarInfo(path)
    line = refused(hostile(tmp_path / "b", [("evil", b"x"), (member, b"x")]), tmp_path)
    assert "outside" in line or "not announced" in line


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_what_is_no_plain_file_is_refused(kind, tmp_path):
    member = tarfile.TarInfo("box/evil")
    member.type, member.linkname = kind, "/etc/passwd"
    assert "no plain file" in refused(hostile(tmp_path / "b", [(member, b"")], listed={"evil": b""}), tmp_path)


def test_duplicate_extra_and_missing_members_are_refused(tmp_path):
    twice = [("a", b"x"), ("a", b"x")]
    assert "twice" in refused(hostile(tmp_path / "b", twice, listed={"a": b"x"}), tmp_path)
    assert "not announced" in refused(hostile(tmp_path / "b", [("a", b"x"), ("b", b"y")], listed={"a": b"x"}), tmp_path)
    assert "missing" in refused(hostile(tmp_path / "b", [("a", b"x")], listed={"a": b"x", "b": b""}), tmp_path)
    assert "hash" in refused(hostile(tmp_path / "b", [("a", b"x")], listed={"a": b"y"}), tmp_path)


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    with pytest.raises(BadInput):
        archive.extract(hostile(tmp_path / "b", [("a", b"x"), ("a/b", b"y")]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bomb_is_refused_before_it_unfolds(tmp_path):
    zeros = bytes(1 << 26)
    assert "larger" in refused(hostile(tmp_path / "b", [("a", zeros)], listed={"a": b"x"}), tmp_path)
    huge = hostile(tmp_path / "b", [("a", b"x")], size=1 << 60)
    with pytest.raises(BadInput, match="room"):
        archive.extract(huge, tmp_path / "out")
    header = tarfile.TarInfo("box/a")
    header.pax_headers = {"comment": "x" * (1 << 26)}  # tarfile would hold all of it
    assert "header" in refused(hostile(tmp_path / "b", [(header, b"x")], listed={"a": b"x"}), tmp_path)


def test_what_is_no_bundle_is_refused(tmp_path):
    for content in (b"", b"hello", zstandard.compress(b""), zstandard.compress(b"hello" * 5000)):
        (tmp_path / "b").write_bytes(content)
        refused(tmp_path / "b", tmp_path)
    for absent in (tmp_path / "absent", tmp_path):
        with pytest.raises(BadInput, match="no bundle"):
            archive.read(absent)


def test_something_after_the_end_is_refused(packed, tmp_path):
    whole = packed.read_bytes()
    for more in (b"x", whole, zstandard.compress(b"more")):
        packed.write_bytes(whole + more)
        assert "follows" in refused(packed, tmp_path)
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(whole)
    packed.write_bytes(zstandard.compress(tar + b"more"))
    assert "follows" in refused(packed, tmp_path)


def test_a_newer_schema_says_so(tmp_path):
    assert "newer reprokit" in refused(hostile(tmp_path / "b", [("a", b"x")], schema=2), tmp_path)


def test_an_existing_folder_is_not_touched(packed, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(BadInput, match="already there"):
        archive.extract(packed, tmp_path / "out")


NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1).filter(lambda name: name not in (".", ".."))


@given(st.dictionaries(NAMES, st.binary(min_size=32, max_size=32).map(bytes.hex)), st.integers(0))
def test_the_manifest_keeps_any_name(files, size):
    files = dict(sorted(files.items()))
    index = Index(schema=1, incident="abc", bytes=size, files=files)
    try:
        data = format_index(index)
    except UnicodeEncodeError:  # a surrogate that stands for no byte: no file system has such a name
        return
    assert parse_index(data) == index
