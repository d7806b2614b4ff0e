"""An engine that goes while attempts run, or between them: played by a proxy before the real one."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest

from reprokit.replay import attempts, machine
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

pytestmark = [pytest.mark.slow, pytest.mark.docker]

FAILED = json.dumps(Outcome(status=Status.FAIL).to_json())
BRIEF = f"open('/out/outcome.json', 'w').write({FAILED!r})"


class Proxy:
    """A socket before the engine's. `down` drops every connection and takes no new one; `up` takes them again."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path, self._engine = path, engine
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.up()

    def up(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            if listener:
                listener.close()
                self.path.unlink()
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._listener is not listener:  # it went down meanwhile
                    client.close()
                    return
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                self._open += [client, engine]
            for source, target in ((client, engine), (engine, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(tmp_path: Path, base_image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """base_image first: it asks the engine itself."""
    url = docker.from_env().api.base_url
    if "unix" not in url and "localhost" not in url:
        pytest.skip(f"the engine is at {url}, and the proxy is for a socket of this machine")
    proxy = Proxy(tmp_path / "engine.sock", docker.from_env().api.get_adapter("http+docker://").socket_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{proxy.path}")
    yield proxy
    proxy.down()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    (tmp_path / "incident").mkdir()
    return Case(incident=tmp_path / "incident")


def test_an_attempt_that_went_with_its_engine_is_made_again(proxy, engine, containers, case, monkeypatch):
    """Each leaves a mark; the first one waits, and is lost."""
    monkeypatch.setattr(machine, "_RESTART", 60.0)
    script = f"import time\nprint('here', flush=True)\ntime.sleep(5)\n{BRIEF}"
    with engine(script, deadline=120.0) as docker:
        future = docker.submit(case)
        while not containers(docker):
            time.sleep(0.05)
        time.sleep(1.0)
        proxy.down()
        time.sleep(1.5)
        proxy.up()
        outcome = future.result(timeout=120)
        assert outcome.status is Status.FAIL, outcome.detail
    assert not containers(docker)  # nor the one that nobody could remove then


def test_a_restart_between_attempts_is_no_attempt_lost(proxy, engine, containers, case):
    def restart(attempt: attempts.Attempt) -> None:
        proxy.down()
        proxy.up()

    with engine(BRIEF) as docker:
        found = attempts.run(case, docker, 3, keep=restart)
    assert (found.fail, found.infra) == (3, 0) and not containers(docker)


def test_an_engine_that_stays_away_keeps_what_has_ended(proxy, engine, case, monkeypatch):
    monkeypatch.setattr(machine, "_RESTART", 0.5)

    def stop(attempt: attempts.Attempt) -> None:
        proxy.down()

    with engine(BRIEF) as docker:
        found = attempts.run(case, docker, 3, keep=stop)
    assert found.fail == 1 and found.infra == 3 and found.verdict == "INCONCLUSIVE"
    assert all("\n" not in one.outcome.detail for one in found.attempts[1:])

