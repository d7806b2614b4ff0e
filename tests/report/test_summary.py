"""What is shown of an incident names its samples, and says nothing twice."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from reprokit.report import summary, texts


def test_the_texts_of_a_batch_say_which_samples_these_are():
    layout = {"x": "b t", "path": "b", "label": "b", "words": "b n"}
    batch = {"x": torch.ones(2, 3), "path": ["a.mp4", "b.mp4"], "label": torch.ones(2), "loose": ["c"]}
    incident = SimpleNamespace(manifest=SimpleNamespace(layout=layout), batch=lambda: batch)
    assert texts.samples(incident) == ["path: a.mp4, b.mp4"]


def test_what_was_left_out_is_told_once(make_incident):
    incident = make_incident()
    told = ("x.zip: a zip archive", "y: too large", "x.zip: a zip archive")
    facts = dict(summary._facts(replace(incident, manifest=replace(incident.manifest, left_out=told))))
    assert facts["left out"].splitlines() == ["x.zip: a zip archive", "y: too large"] and "samples" not in facts
