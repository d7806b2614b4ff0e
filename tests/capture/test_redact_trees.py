"""Texts of a batch are written without secrets, and nothing else of it is changed."""

import json
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch

import reprokit
from reprokit import tree
from reprokit.capture import redact, remains
from reprokit.incident import Draft, Incident
from reprokit.step.load import load_entrypoint

TOKEN = "gh" + "p_" + "a1" * 18
Clip = namedtuple("Clip", ["url", "caption"])


def clean(data):
    packed = tree.refer(data)
    found, places = redact.tree(packed.data, "batch")
    return tree._Decoder({block.name: tree._storage.duplicate(block) for block in packed.blocks}).decode(found), places


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: [text, 1],
        lambda text: {"a": {"b": (text,)}},
        lambda text: {1: text},
        lambda text: {text},
        lambda text: OrderedDict(a=text),
        lambda text: defaultdict(list, a=[text]),
        lambda text: Clip(url=text, caption="x"),
        lambda text: PurePosixPath("/clips") / text,
        lambda text: np.str_(text),
    ],
)
def test_a_secret_is_hidden_wherever_a_text_can_be(wrap):
    found, places = clean({"batch": wrap(f"clip-{TOKEN}")})
    hidden = "clip-" + redact.marker(TOKEN)
    assert found == {"batch": wrap(hidden)} and type(found["batch"]).__name__ == type(wrap(hidden)).__name__
    assert places == ["batch: github token"]


def test_a_loaders_addresses_lose_their_credentials_alone():
    urls = ["https://me:Corr3ct-horse@host.example/a.mp4", "s3://bucket/b.mp4", f"https://h.example/c?token={TOKEN}"]
    found, places = clean({"url": urls, "id": ["550e8400-e29b-41d4-a716-446655440000", "3f2b" * 16, "dQw4w9WgXcQ"]})
    assert found["url"][0].startswith("https://") and found["url"][0].endswith("@host.example/a.mp4")
    assert found["url"][1] == urls[1] and found["id"][1] == "3f2b" * 16
    assert not any(secret in json.dumps(found) for secret in ("Corr3ct", TOKEN)) and len(places) == 2


def test_what_is_no_text_and_where_nothing_is_found_stay_as_they_are():
    data = {"bytes": b"\x00" + TOKEN.encode(), "count": Counter(a=2), "x": torch.ones(2), "words": ["a\nb", "", "c"]}
    packed = tree.refer(data)
    assert redact.tree(packed.data, "batch")[0] is packed.data


def test_texts_of_several_lines_come_back_from_their_places():
    words = ["one\ntwo", "", TOKEN, "\n", f"three {TOKEN}\n"]
    found, _ = clean(words)
    assert [len(one) for one in found] == list(map(len, words)) and found[0] == words[0] and found[3] == "\n"


TRAIN = """
import torch
from torch import nn
import reprokit

def build(config):
    net = nn.Linear(4, 1)
    runs = []

    def step(batch):
        runs.append(1)
        if "again" in batch and len(runs) == 4:
            raise ValueError(f"no access with {batch['url'][0]}")
        return net(batch["x"]).square().mean() * (float("nan") if "bad" in batch and len(runs) == 3 else 1)

    return reprokit.Harness(modules={"net": net}, step=step, layout={"x": "b d"},
                            optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
"""


class Loader:
    """It cannot say where it is, and says too much about why."""

    def state_dict(self):
        raise RuntimeError(f"no answer to {TOKEN}")

    def __iter__(self):
        return iter(())


class Clips(torch.utils.data.Dataset):
    def __getitem__(self, name):
        raise OSError("gone")


@pytest.fixture
def train(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    build = load_entrypoint("train.py:build", tmp_path)
    harness = build({})
    harness.loader = Loader()
    options = {"rehearse": False, "entrypoint": "train.py:build", "out": tmp_path / "out", "on_failure": "fallback"}
    return reprokit.Recorder(harness, build=build, config={}, **options)


def test_nothing_of_a_secret_that_a_batch_a_loader_or_a_fallback_tells_is_written(train, tmp_path):
    batch = {"x": torch.ones(2, 4), "url": [f"https://me:{TOKEN}@host.example/a"], "path": (TOKEN,)}
    with train:
        train.step(batch)
        train.step(batch)
        train.step({**batch, "bad": 1, "again": 1})
        train.capture("look")
    with pytest.raises(OSError, match="gone"), train:
        next(iter(torch.utils.data.DataLoader(Clips(), batch_sampler=[[TOKEN]])))
    assert len(train.incidents) == 3 and train.fallbacks[0].tried[0][1].startswith("ValueError")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    manifest = Incident.open(train.incidents[0]).manifest
    assert "ranks/00/batch: credentials in a URL" in manifest.redacted
    assert Incident.open(train.incidents[0]).batch()["x"].equal(batch["x"])


def test_what_a_dead_process_left_is_written_without_secrets_too(tmp_path):
    tree.save({"x": torch.ones(2), "url": [TOKEN]}, tmp_path, "batch")
    with Draft(tmp_path / "out") as draft:
        assert remains._copy(tmp_path, "batch", draft, "ranks/00", "donor") == ["ranks/00/donor: github token"]
        assert tree.load(draft.path / "ranks/00", "donor")["url"] == [redact.marker(TOKEN)]
