"""A harness of a recipe: what a user of reprokit would have written around it."""

import importlib.util
from pathlib import Path

import torch

import reprokit


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layout(recipe):
    """The recipes' capitals as axis names; frames of two lengths are two axes."""
    batch = recipe.make_batch(0)
    lengths = {batch[key].shape[axes.index("T")] for key, axes in recipe.LAYOUT.items() if "T" in axes and key in batch}
    private = lambda key, axis: f"{key}.t" if axis == "T" and len(lengths) > 1 and key == "locals" else axis.lower()
    return {key: " ".join(private(key, axis) for axis in axes) for key, axes in recipe.LAYOUT.items() if key in batch}


def build(config):
    recipe = load(config["recipe"])
    model = recipe.make_model()
    optimizer = getattr(model, "opt", None)
    own = optimizer is None
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch):
        loss = recipe.step(model, batch)
        if own:
            optimizer.step()
        return {"loss": loss}

    teacher = getattr(model, "teacher", None)
    return reprokit.Harness(
        modules={"model": model} | ({"teacher": teacher[0]} if teacher else {}),
        optimizer=optimizer,
        step=step,
        layout=layout(recipe),
        automatic_optimization=False,
        scaler=getattr(model, "scaler", None),
    )


def main(name, out, times=1, **options):
    """Step on the donor, then on the batch, so many times, as training would; returns the recorder."""
    config = {"recipe": name}
    recipe = load(name)
    if recipe.TRUTH["kind"] == "spike":
        options.setdefault("limits", reprokit.Limits(loss_above=recipe.TRUTH["spike_over"]))
    recorder = reprokit.Recorder(build(config), build=build, config=config, out=out, **options)
    with recorder:
        for batch in (recipe.make_donor(), *(recipe.make_batch(0) for _ in range(times))):
            try:
                recorder.step(batch)
            except Exception as error:
                recorder.error = error
    return recorder
