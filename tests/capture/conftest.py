"""Secrets of many kinds to plant, and a search for them in bytes."""

import base64
import binascii
import io
import json
import random
import re
import string
import zipfile
from types import SimpleNamespace
from urllib.parse import unquote_to_bytes

import pytest

from reprokit.capture import latch

WORD, HEX, UPPER = string.ascii_letters + string.digits, "0123456789abcdef", string.ascii_uppercase + string.digits


class Planter:
    """Secrets that no two places share, so that none is found because of another."""

    def __init__(self, seed):
        self.random, self.planted = random.Random(seed), {}

    def some(self, n, alphabet=WORD):
        end = "A7" if alphabet is UPPER else "77" if alphabet is string.digits else "a7"  # no two draws are all letters
        return "".join(self.random.choices(alphabet, k=n - 2)) + end

    def all(self):
        """Kind -> (name, value): the name only where the kind has no shape of its own."""
        made = {
            "aws": ("thing", "AK" + "IA" + self.some(16, UPPER)),
            "aws secret": ("aws_secret_access_key", self.some(38, WORD + "/+") + "/+"),
            "github": ("thing", "gh" + "p_" + self.some(36)),
            "github fine-grained": ("thing", "github" + "_pat_" + self.some(22) + "_" + self.some(59)),
            "gitlab": ("thing", "gl" + "pat-" + self.some(20)),
            "slack": ("thing", "xo" + "xb-" + self.some(12, string.digits) + "-" + self.some(24)),
            "stripe": ("thing", "sk" + "_live_" + self.some(24)),
            "google": ("thing", "AI" + "za" + self.some(35)),
            "jwt": ("thing", self.jwt()),
            "openai": ("thing", "sk" + "-" + self.some(48)),
            "openai project": ("thing", "sk" + "-proj-" + self.some(60)),
            "hugging face": ("thing", "h" + "f_" + self.some(34)),
            "wandb": ("wandb_api_key", self.some(40, HEX)),
            "npm": ("thing", "np" + "m_" + self.some(36)),
            "password": ("db_password", "Corr3ct-" + self.some(9) + "!"),
            "azure": ("thing", f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={self.azure()};Suffix=b"),
            "basic auth": ("thing", f"https://me:{self.some(14)}@host.example/x"),
            "random": ("thing", self.some(44, WORD + "+/")),
        }
        for kind, (_, value) in made.items():
            hidden = {"azure": r"AccountKey=(\S+?);", "basic auth": "me:(.*)@"}.get(kind)
            self.planted.setdefault(re.search(hidden, value)[1] if hidden else value, kind)
        return made

    def jwt(self):
        part = lambda data: base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")
        return f"{part({'alg': 'HS256'})}.{part({'sub': self.some(12)})}.{self.some(43)}"

    def azure(self):
        return base64.b64encode(self.random.randbytes(64)).decode()

    def key(self, kind="RSA"):
        body = [self.some(64, WORD + "+/") for _ in range(6)]
        self.planted |= dict.fromkeys(body, "private key")
        return "\n".join([f"-----BEGIN {kind} PRIVATE KEY-----", *body, f"-----END {kind} PRIVATE KEY-----"])


def everything(data):
    """Bytes as they are, without escapes, and decoded once: from addresses and from base64."""
    yield data
    yield data.replace(b"\\/", b"/").replace(b"\\n", b"\n").replace(b"\\u002b", b"+")
    yield unquote_to_bytes(data)
    yield data.replace(b"\0", b"")
    for word in re.findall(rb"[A-Za-z0-9+/_-]{16,}={0,2}", data):
        try:
            yield base64.b64decode(word.replace(b"-", b"+").replace(b"_", b"/") + b"==")
        except binascii.Error:
            continue


def leaks(data, planted):
    forms = list(everything(data))
    return {kind for secret, kind in planted.items() if any(secret.encode() in form for form in forms)}


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def planting():
    return SimpleNamespace(Planter=Planter, leaks=leaks, zipped=zipped)


@pytest.fixture
def read_late(monkeypatch):
    """read_late(recorder, steps): numbers arrive so many steps after they were asked for."""

    def delay(recorder, steps):
        made = latch._Reading.__init__

        def dated(self, numbers, device):
            made(self, numbers, device)
            self.step = recorder.steps

        arrived = lambda reading: not steps or recorder.steps >= reading.step + steps
        monkeypatch.setattr(latch._Reading, "__init__", dated)
        monkeypatch.setattr(latch._Reading, "ready", property(arrived))

    return delay
