"""A user's loop with Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn

from reprokit.integrations.accelerate import harness


def build(config):
    torch.manual_seed(0)
    precision = config.get("precision", "no")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=config["accumulate"], mixed_precision=precision)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.02))

    def step(batch):
        with accelerator.accumulate(model):
            loss = model(batch["x"]).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss}

    build.accelerator = accelerator
    return harness(accelerator, {"model": model}, optimizer, step, layout={"x": "b d"})


def loader(bad=None):
    generator = torch.Generator().manual_seed(1)
    found = [{"x": torch.rand(4, generator=generator)} for _ in range(28)]
    if bad is not None:
        found[bad]["x"][1] = float("nan")
    return build.accelerator.prepare(torch.utils.data.DataLoader(found, batch_size=4))
