"""Servers of S3 that differ, as they do: some know conditions, some ignore them or refuse them."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import s3fs

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.incident import Draft, Incident
from reprokit.store.objects import Store

EMPTY = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
CODES = {409: "ConditionalRequestConflict", 412: "PreconditionFailed", 501: "NotImplemented", 403: "AccessDenied"}
CODES |= {404: "NoSuchKey"}


class Server(ThreadingHTTPServer):
    """A bucket in memory. condition: what it says where it is asked to write only if nothing is there."""

    request_queue_size = 128  # a connection past it is tried again after a second, and then given up

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.held: dict[str, bytes] = {}
        self.condition = "honoured"  # or ignored, refused, conflict
        self.blind = False  # says of nothing that it is there, as one that is slow to agree with itself
        self.denied = False
        self.written: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # in 1.0 nobody says that a body may be sent

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        conditional = self.headers["If-None-Match"] == "*"
        if self.server.denied:
            return self._refuse(403)
        if conditional and self.server.condition == "refused":
            return self._refuse(501)
        if conditional and self.server.condition == "conflict":
            return self._refuse(409)
        if conditional and self.server.condition == "honoured" and self._key in self.server.held:
            return self._refuse(412)
        self.server.held[self._key] = data
        self.server.written.append(self._key)
        self._say(200, b"")

    def do_HEAD(self) -> None:
        if self.server.blind or self._key not in self.server.held:
            return self._say(404, b"")
        self._say(200, self.server.held[self._key], body=False)

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            return self._say(200, EMPTY)
        held = self.server.held.get(self._key)
        self._refuse(404) if held is None else self._say(200, held)  # also where a range was asked for

    @property
    def _key(self) -> str:
        return self.path.partition("?")[0]

    def _refuse(self, status: int) -> None:
        self._say(status, f"<Error><Code>{CODES[status]}</Code><Message>no</Message></Error>".encode())

    def _say(self, status: int, data: bytes, *, body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    s3fs.S3FileSystem.clear_instance_cache()
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield server
        server.shutdown()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    with Draft(tmp_path / "incidents") as draft:
        draft.write_text("config.yaml", "depth: 2\n")
        draft.write_text("logs/stdout.txt", "step 1\n" * 1000)
        return draft.publish(
            "nan",
            signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss"),
            step=3,
            entrypoint="train:build",
            layout={"x": "b"},
        )


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("condition", ["honoured", "ignored", "refused", "conflict"])
def test_an_incident_goes_there_and_comes_back(server, incident, tmp_path, condition, blind):
    server.condition, server.blind = condition, blind
    store = Store("s3://bucket/runs")
    id = store.put(incident)
    assert store.put(incident) == id  # whatever is there already
    found = store.get(id, tmp_path / "cache")
    assert found.manifest == incident.manifest
    assert all(key.startswith("/bucket/runs/") for key in server.held)


def test_what_is_there_is_not_written_again(server, incident):
    store = Store("s3://bucket/runs")
    store.put(incident)
    server.written.clear()
    store.put(incident)
    assert not server.written


def test_what_a_server_stored_over_an_object_is_refused(server, incident, tmp_path):
    store = Store("s3://bucket/runs")
    id = store.put(incident)
    [key] = [key for key, data in server.held.items() if data == b"depth: 2\n"]
    server.held[key] = b"<Tags />\n"
    with pytest.raises(BadInput, match="not what was stored there"):
        store.get(id, tmp_path / "cache")


def test_a_server_that_denies_is_one_line(server, incident):
    server.denied = True
    with pytest.raises(Infrastructure, match=r"s3://bucket/runs: the store cannot be used \(.*\); check --store"):
        Store("s3://bucket/runs").put(incident)


def test_no_server_is_one_line(server, incident, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Infrastructure, match="the store cannot be used") as caught:
        Store("s3://bucket/runs").put(incident)
    assert "\n" not in str(caught.value)
