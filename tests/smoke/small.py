"""The reference model at a size that takes milliseconds, on content that no video is read for; and a plain one."""

from dataclasses import replace

import torch
from torch import nn

from reprokit.harness import Harness
from reprokit.smoke.gate import Subject, Verdict
from reprokit.video import train


def config(seed=0, **changes):
    """Healthy; changes: dotted keys with __ in place of the dot."""
    found = train.default_config()
    found["video"].update(frames=4, windows=6, pad_last=False, max_frames=60, short_side=40)
    found["data"].update(batch_size=4, views=2, global_size=32, local_size=16, standardize="imagenet", seed=seed)
    found["model"].update(width=48, depth=2, heads=2, projector_width=64, embedding=32)
    found["training"].update(seed=seed, steps=6)
    for dotted, value in changes.items():
        section, key = dotted.split("__")
        found[section][key] = value
    return found


def clips(seed=0, count=2):
    """Batches of the loader's shapes: bright and dark blobs that move."""
    return [_batch(torch.Generator().manual_seed(1000 * seed + i)) for i in range(count)]


def _batch(generator):
    def smooth(*shape):
        coarse = torch.rand(*shape[:-2], 4, 4, generator=generator).flatten(0, -4)
        fine = nn.functional.interpolate(coarse, shape[-2:], mode="bilinear")
        return (255 * fine).reshape(shape).to(torch.uint8)

    return {"global": smooth(4, 4, 3, 32, 32), "local": smooth(4, 2, 4, 3, 16, 16), "source": list("abcd")}


def subject(build=train.build, seed=0, **changes):
    """The reference model, or what another build makes of its config."""
    found = Subject(build=build, config=config(seed), entrypoint="small:build", batches=clips(seed), seed=seed)
    return replace(found, **changes)


def changed(**fields):
    """A build that is the reference model with other fields in its harness; functions are given the harness."""

    def build(given):
        harness = train.build(given)
        for name, value in fields.items():
            setattr(harness, name, value(harness) if callable(value) else value)
        return harness

    return build


def by_itself(harness):
    """The step of a harness that optimizes by itself, for `changed`."""
    inner, optimizer = harness.step, harness.optimizers["optimizer"]

    def step(batch):
        terms = inner(batch)
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        return {name: term.detach() for name, term in terms.items()}

    return step


def plain(forward, *, lr=1e-2, width=16, **fields):
    """A subject whose loss is forward(net, x), of floats [8, 16]."""

    def build(_):
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, width))

        def step(batch):
            if not len(batch["x"]):
                raise ValueError("x: no samples")
            return {"loss": forward(net, batch["x"])}

        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        return Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"}, **fields)

    batch = {"x": torch.randn(8, 16, generator=torch.Generator().manual_seed(5))}
    return Subject(build=build, config={}, entrypoint="small:build", batches=[batch])


def rows(gate, asked):
    """What a gate finds, by check."""
    found = list(gate.look(asked))
    assert found and len({one.check for one in found}) == len(found)
    for one in found:
        assert one.gate == gate.name and one.observed
        assert one.expected or one.verdict is Verdict.NOT_APPLICABLE
        assert one.advice or one.verdict is not Verdict.FAILED
    return {one.check: one for one in found}


def verdicts(found, verdict):
    return [check for check, one in found.items() if one.verdict is verdict]


def failed(found):
    return verdicts(found, Verdict.FAILED)


def skipped(found):
    return verdicts(found, Verdict.NOT_APPLICABLE)
