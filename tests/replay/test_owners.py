"""Containers of processes that are gone are removed by whoever starts containers next; all others stay."""

import subprocess
import sys
import time

import pytest
from docker.errors import NotFound

from reprokit.replay import daemon, owners

ENDED = "import sys; from reprokit.replay.owners import me; print(me())"


def dead():
    """The name of a process that has ended."""
    return subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=True).stdout.strip()


def test_who_lives_removes_its_own_and_who_is_gone_does_not():
    now = time.time()
    assert not owners.left(owners.mark(60), "exited", now + 1e6)
    assert owners.left({owners.OWNER: dead()}, "running", now)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["machine", "boot", "processes"])
def test_whom_one_cannot_see_is_not_judged_before_it_is_long_over(place):
    words = dead().split()
    words[place] = "another"
    now = time.time()
    labels = owners.mark(60) | {owners.OWNER: " ".join(words)}
    assert not owners.left(labels, "exited", now + 61) and not owners.left(labels, "running", now + 1e6)
    assert owners.left(labels, "exited", now + 2 * 3600) and owners.left(labels, "created", now + 2 * 3600)


@pytest.mark.parametrize("owner", ["", "x", "a b c d e f", "- - - -1 -1"])
def test_what_is_no_name_is_nobody_who_is_gone(owner):
    assert not owners.left({owners.OWNER: owner, owners.UNTIL: "soon"}, "exited", 1e12)


def test_a_process_that_took_the_number_of_one_that_is_gone_is_another():
    *rest, began = owners.me().split()
    assert owners.left({owners.OWNER: " ".join([*rest, str(int(began) - 1)])}, "running", time.time())


@pytest.mark.slow
@pytest.mark.docker
def test_the_next_engine_removes_what_a_killed_one_has_left(engine, base_image):
    client = daemon.connect()
    made = [  # not started: tests beside this one open engines, too, and may be the first to remove one of them
        client.containers.create(base_image, ["sleep", "600"], labels=owners.mark(600) | changed)
        for changed in ({owners.OWNER: dead()}, {})
    ]
    made[1].start()
    try:
        with engine("pass"):
            pass
        with pytest.raises(NotFound):
            client.containers.get(made[0].id)
        assert client.containers.get(made[1].id).status == "running"
    finally:
        for container in made:
            try:
                container.remove(force=True)
            except NotFound:
                continue
