"""What was built here, and its end."""

import pytest

from reprokit.errors import BadInput
from reprokit.replay import daemon, image, inventory

pytestmark = [pytest.mark.slow, pytest.mark.docker]


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
