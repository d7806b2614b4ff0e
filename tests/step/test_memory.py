"""Kills for memory, counted where the process is and nowhere else."""

import pytest

from reprokit.step import memory


@pytest.fixture
def machine(tmp_path):
    """machine(group, file, count): the counts of a machine whose whole had 9 kills, seen from a process of a group."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "vmstat").write_text("pgfault 7\noom_kill 9\n")

    def kills(group, file=None, count=2):
        (proc / "self/cgroup").write_text(group)
        if file:
            (cgroups / file).parent.mkdir(parents=True, exist_ok=True)
            (cgroups / file).write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        return memory.kills(proc, cgroups)

    return kills


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/job\n", "job/memory.events"),
        ("0::/docker/abc\n", "memory.events"),  # a container has its own where others have the root's
        ("9:name=systemd:/\n4:memory:/job/1\n0::/\n", "memory/job/1/memory.oom_control"),
        ("4:cpu,memory:/job/1\n", "memory/job/1/memory.oom_control"),
        ("4:memory:/docker/abc\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_a_container_elsewhere_that_reaches_its_limit_is_not_counted(machine, group, file):
    assert machine(group) == 9
    assert machine(group, file) == 2


def test_in_the_root_it_is_the_machine_s(machine):
    assert machine("4:memory:/\n0::/\n", "memory/memory.oom_control") == 9
