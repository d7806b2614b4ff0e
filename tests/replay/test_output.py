"""Output as it comes, in whatever pieces: bounded, and nothing of it is missed."""

import json
import os
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.criterion import parse
from reprokit.replay.output import Scanner, drain, measured

NAN = float("nan")


def scanned(data, *fails_on, pieces=None):
    scanner = Scanner([parse(one) for one in fails_on])
    for piece in pieces or [data]:
        scanner.feed(piece)
    scanner.close()
    return scanner


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("loss: 0.5", 0.5),
        ("step 3 loss=1e-3 lr=0.1", 1e-3),
        ("{'loss': 2.5, 'lr': 0.1}", 2.5),
        ('{"loss": NaN, "lr": 0.1}', NAN),
        ("loss: tensor(nan, grad_fn=<MeanBackward0>)", NAN),
        ("loss = -inf", -float("inf")),
        ("loss: 1\nloss: 2\n", 2.0),
        ("Epoch 1:  50%|##  | loss: 3.0\rEpoch 1: 100%|####| loss: 4.0", 4.0),
        ("loss: nano", None),
        ("train_loss: 3", None),
        ("a.loss: 3", None),
        ("loss is 3", None),
        ("loss: 1.2.3", None),
    ],
)
def test_the_last_value_of_a_metric(line, value):
    found = scanned(line.encode(), "metric=loss").metrics.get("loss")
    assert found == value or (isnan(found) and isnan(value))


@given(st.binary(max_size=200), st.integers(1, 7))
def test_pieces_do_not_matter(noise, size):
    data = noise + b"\nstart loss: 2.5 end\n" + noise
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    one, other = scanned(data, "output=start .* end"), scanned(data, "output=start .* end", pieces=pieces)
    assert one.matched == other.matched == {"start .* end": "start loss: 2.5 end"} and one.log == other.log


def test_a_hundred_megabytes_take_no_memory_and_hide_nothing():
    block = b"x" * (1 << 20)
    scanner = Scanner([parse("output=needle"), parse("metric=loss")])
    scanner.feed(b"a needle\nloss: 3\n")
    for _ in range(100):
        scanner.feed(block)
    scanner.feed(b"\nthe end\n")
    scanner.close()
    assert scanner.matched and scanner.metrics == {"loss": 3.0}
    assert scanner.log.endswith("the end") and len(scanner.log) < 100_000


class Reader:
    """A thread whose every wait lets one more piece come, while there are any."""

    def __init__(self, scanner, pieces, silent=False):
        self.scanner, self.pieces, self.silent, self.waits = scanner, list(pieces), silent, 0

    def is_alive(self):
        return bool(self.pieces) or self.silent

    def join(self, patience):
        self.waits += 1
        if self.pieces:
            self.scanner.feed(self.pieces.pop(0))


def test_the_last_output_is_waited_for_while_it_comes_and_no_longer():
    scanner = Scanner([parse("output=the end")])
    drain(Reader(scanner, [*[b"x" * 9] * 50, b"the end\n"]), scanner, 30.0)
    assert scanner.matched
    drain(silent := Reader(scanner, [b"more"], silent=True), scanner, 30.0)
    assert silent.waits == 2


def test_what_a_terminal_would_obey_is_taken_out():
    scanner = scanned(b"\x1b]0;owned\x07bad\x1b[2J\n", "output=bad")
    assert "\x1b" not in scanner.log + scanner.matched["bad"]


def test_files_of_json_lines_are_read_last_value_last(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"loss": 1}\n{"loss": "nan"}\nno json\n[1]\n')
    assert isnan(measured(tmp_path, ["loss"])["loss"])
    (tmp_path / "b.jsonl").write_text('{"loss": 3, "train": {"acc": 0.5}}\n{"other": 1}\n{"loss": true}\n')
    assert measured(tmp_path, ["loss", "train.acc", "none"]) == {"loss": 3.0, "train.acc": 0.5}


def test_what_is_no_file_of_metrics_is_not_read(tmp_path):
    secret = tmp_path / "elsewhere"
    secret.write_text('{"loss": 666}\n')
    out = tmp_path / "out"
    out.mkdir()
    os.symlink(secret, out / "link.jsonl")
    os.mkfifo(out / "pipe.jsonl")
    (out / "folder.jsonl").mkdir()
    (out / "deep.jsonl").write_text("[" * 100_000 + '"loss"' + "]" * 100_000)
    (out / "huge.jsonl").write_text(json.dumps({"loss": 1})[:-1] + "0" * 5000 + "}\n")
    assert measured(out, ["loss"]) in ({}, {"loss": float("inf")})
    assert measured(tmp_path / "nowhere", ["loss"]) == {}
