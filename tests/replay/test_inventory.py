"""What was built here, and its end."""

import shutil
import threading
from contextlib import suppress
from io import BytesIO
from uuid import uuid4

import pytest
from docker.errors import ImageNotFound

from reprokit.errors import BadInput
from reprokit.replay import daemon, image, inventory

pytestmark = [pytest.mark.slow, pytest.mark.docker]


@pytest.fixture
def own(base_image):
    """own(tag) -> the id of an image that says it is one of ours, with or without a name; it goes with the test."""
    client, made = daemon.connect(), []

    def build(tag=None):
        text = f"FROM {base_image}\nLABEL reprokit=1\nLABEL of={uuid4().hex}\n"
        made.append(client.images.build(fileobj=BytesIO(text.encode()), rm=True, tag=tag)[0].id)
        return made[-1]

    yield build
    for id in made:
        with suppress(ImageNotFound):
            client.images.remove(id, force=True)


def test_a_build_that_goes_on_keeps_what_it_has_just_made(own):
    tag, fresh = f"reprokit/replay:{uuid4().hex[:16]}", own()
    own(tag)
    assert inventory.remove([tag]) == [tag] and daemon.connect().images.get(fresh)


def test_while_another_prunes_an_image_is_removed_all_the_same(own, prunes_already):
    tag = f"reprokit/replay:{uuid4().hex[:16]}"
    own(tag)
    assert inventory.remove([tag]) == [tag] and tag not in [one.tag for one in inventory.listed()]


def test_wheels_are_counted_while_somebody_gathers_some(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, ended = inventory.wheels()[0], threading.Event()

    def gathers():
        while not ended.is_set():
            (folder / "gather-x").mkdir(parents=True)
            for number in range(20):
                (folder / "gather-x" / f"{number}.whl").write_bytes(b"wheel")
            shutil.rmtree(folder)

    gathering = threading.Thread(target=gathers)
    gathering.start()
    try:
        assert all(inventory.wheels()[1] % 5 == 0 for _ in range(500))
    finally:
        ended.set()
        gathering.join()


def test_an_image_is_listed_used_and_removed(tmp_path, monkeypatch, make_wheel, no_index, base_image):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_wheel(tmp_path / "house", "torch", "2.0", says=str(tmp_path))
    tag = image.ensure("torch==2.0", base=base_image, wheelhouse=tmp_path / "house")
    client, listed = daemon.connect(), inventory._listed
    container = client.containers.create(tag, ["true"])
    try:
        (kept,) = [one for one in inventory.listed() if one.tag == tag]
        assert (kept.base, kept.torch, kept.wheels, kept.compiler) == (base_image, "2.0", 1, False)
        assert kept.bytes > 0 and kept.created.startswith("2")
        assert base_image not in [one.tag for one in inventory.listed()]
        folder, bytes = inventory.wheels()
        assert folder.is_relative_to(tmp_path) and 0 < bytes < 10_000
        with pytest.raises(BadInput, match=rf"^{tag}: a container uses it"):
            inventory.remove([tag])
        with pytest.raises(BadInput, match="no image that reprokit has built"):
            inventory.remove([tag, base_image])
        assert client.images.get(tag)
        container.remove()
        assert inventory.remove([tag.rpartition(":")[2]]) == [tag]
        assert tag not in [one.tag for one in inventory.listed()]
        assert inventory.remove_wheels() == bytes and inventory.wheels()[1] == 0
        again = image.ensure("torch==2.0", base=base_image, wheelhouse=tmp_path / "house")
        mine = lambda client: [one for one in listed(client) if one.tag == tag]  # others build here as well
        monkeypatch.setattr(inventory, "_listed", mine)
        assert again == tag and inventory.remove([], every=True) == [tag] and not inventory.listed()
    finally:
        for one in client.containers.list(all=True, filters={"ancestor": tag}):
            one.remove(force=True)
