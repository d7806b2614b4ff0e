"""run.sh: refuses before it runs foreign code unprotected, and says what it saw. Engine and attempts are stand-ins."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.report import templates

pytestmark = pytest.mark.slow

REPRODUCE = """
import sys
if "--check" in sys.argv: sys.exit(0)
print("ran", *sys.argv[1:])
sys.exit(CODE)
"""
DOCKER = """#!/bin/sh
printf '%s\\n' "docker $*" >> "$CALLS"
case $1 in
    version) exit "${ANSWERS:-0}" ;;
    image) [ "$3" = "${PRESENT:-}" ] ;;
    build) for last; do :; done; cp -r "$last" "$CALLS.context" ;;
    run) echo ran; exit "${CODE:-0}" ;;
esac
"""
TOOLS = (
    *("sh", "cat", "dirname", "id", "mktemp", "mkdir", "cp", "rm", "cut"),
    *("sha256sum", "find", "head", "ls", "uname", "grep"),
)


class Machine:
    """A folder with a bundle in it, and a PATH with only what a small machine has."""

    def __init__(self, root: Path, *, image="", gpu=False, code=0, docker=False):
        self.bundle, self.bin, self.calls = root / "a bundle", root / "bin", root / "calls"
        self.bundle.mkdir(), self.bin.mkdir(), self.calls.touch()
        root.chmod(0o755)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        (self.bin / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (self.bin / "python3").chmod(0o755)
        values = {"image": image, "gpu": gpu, "python": "3.11"}
        for name in ("run.sh", "Dockerfile"):
            (self.bundle / name).write_text(templates.render(f"bundle/{name}.j2", values))
        (self.bundle / "requirements.txt").write_text("torch==2.13.0\n")
        (self.bundle / "reproduce.py").write_text(REPRODUCE.replace("CODE", str(code)))
        (self.bundle / "run.sh").chmod(0o755)
        if docker:
            (self.bin / "docker").write_text(DOCKER)
            (self.bin / "docker").chmod(0o755)

    def run(self, *arguments, **variables):
        environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "HOME": "/nonexistent", **variables}
        command = [str(self.bundle / "run.sh"), *arguments]
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)

    @property
    def asked(self):
        """What docker was asked to run."""
        return [line for line in self.calls.read_text().splitlines() if line.startswith("docker run")]


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_every_shell_parses_it(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n", str(Machine(tmp_path).bundle / "run.sh")], check=True)


@pytest.mark.parametrize("arguments", [(), ("--engine", "python")])
def test_without_docker_it_asks_for_trust_in_one_line(arguments, tmp_path):
    done = Machine(tmp_path).run(*arguments)
    assert done.returncode == 2 and "--trust" in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_an_engine_that_does_not_answer_is_none(tmp_path):
    machine = Machine(tmp_path, docker=True)
    done = machine.run(ANSWERS="1")
    assert done.returncode == 2 and "--trust" in done.stderr
    done = machine.run("--engine", "docker", "--trust", ANSWERS="1")
    assert done.returncode == 3 and "no Docker engine answers" in done.stderr and not machine.asked


SEEN = [(0, "every attempt"), (10, "some did not"), (11, "no attempt"), (12, "too few")]


@pytest.mark.parametrize(("code", "words"), SEEN)
def test_with_trust_it_passes_the_verdict_on(code, words, tmp_path):
    done = Machine(tmp_path, code=code).run("--trust", "-n", "3", "--json")
    assert done.returncode == code and words in done.stderr
    assert done.stdout == "ran -n 3 --engine python --json\n"


@pytest.mark.parametrize("arguments", [("-n", "0"), ("-n", "x"), ("-n",), ("--engine", "podman"), ("--evil",)])
def test_bad_arguments_are_refused_in_one_line(arguments, tmp_path):
    done = Machine(tmp_path).run(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("run.sh: ") and done.stderr.count("\n") == 1


def test_docker_gets_nothing_but_the_bundle(tmp_path):
    machine = Machine(tmp_path, docker=True, image="made/here:1")
    done = machine.run("-n", "2", PRESENT="made/here:1", CODE="10")
    assert done.returncode == 10 and "some did not" in done.stderr
    [asked] = machine.asked
    for flag in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--pids-limit",
        "--memory 8g", "--rm", "--init", f"source={machine.bundle},target=/bundle,readonly", "--entrypoint",
        "made/here:1 python3",
    ):  # fmt: skip
        assert flag in asked
    assert "--user 0" not in asked and "--gpus" not in asked and "--privileged" not in asked


def test_a_gpu_is_asked_for_when_there_was_one(tmp_path):
    machine = Machine(tmp_path, docker=True, image="made/here:1", gpu=True)
    machine.run(PRESENT="made/here:1")
    assert "--gpus all" in machine.asked[0]


def test_an_image_is_built_where_there_is_none(tmp_path):
    machine = Machine(tmp_path, docker=True, image="made/elsewhere:1")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/some.whl").touch()
    done = machine.run(REPROKIT_BASE="my-base", REPROKIT_WHEELS=str(tmp_path / "wheels"))
    assert done.returncode == 0
    [built] = [line for line in machine.calls.read_text().splitlines() if line.startswith("docker build")]
    assert "BASE=my-base" in built and "reprokit-bundle:" in built and "reprokit-bundle:" in machine.asked[0]
    context = Path(f"{machine.calls}.context")
    found = sorted(str(path.relative_to(context)) for path in context.rglob("*"))
    assert found == ["Dockerfile", "requirements.txt", "wheels", "wheels/some.whl"]


def test_a_container_that_could_not_run_says_nothing_about_the_failure(tmp_path):
    machine = Machine(tmp_path, docker=True, image="made/here:1")
    assert machine.run(PRESENT="made/here:1", CODE="125").returncode == 3
    done = machine.run(PRESENT="made/here:1", CODE="137")
    assert done.returncode == 3 and "REPROKIT_MEMORY" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root must become somebody else")
def test_what_the_user_of_the_container_cannot_read_is_named(tmp_path):
    machine = Machine(tmp_path, docker=True, image="made/here:1")
    (machine.bundle / "secret").touch(0o600)
    (machine.bundle / "secret").chmod(0o600)
    done = machine.run(PRESENT="made/here:1")
    assert done.returncode == 2 and "secret is not readable" in done.stderr and not machine.asked
