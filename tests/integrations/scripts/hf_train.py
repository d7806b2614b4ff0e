"""A user's script with Hugging Face's Trainer: a tiny model, nothing is downloaded."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from reprokit.integrations.transformers import replayable


class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x, labels=None):
        if labels.min() < 0:
            raise ValueError("a label is below 0")
        return {"loss": (self.body(x)[:, 0] - labels).square().mean() * self.scale}


class Own(Trainer):
    """Does more in its step than the Trainer does."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        return loss


def samples(config):
    generator = torch.Generator().manual_seed(1)
    found = [
        {"x": torch.rand(4, generator=generator), "labels": torch.rand((), generator=generator)} for _ in range(30)
    ]
    if config.get("bad") is not None:
        found[config["bad"]]["x"][1] = float("nan")
    if config.get("negative") is not None:
        found[config["negative"]]["labels"] -= 2
    return found


@replayable(layout={"x": "b d", "labels": "b"})
def build(config):
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=config["out"],
        per_device_train_batch_size=4,
        max_steps=config.get("steps", 9),
        learning_rate=0.02,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **config.get("args", {}),
    )
    kind = Own if config.get("own") else Trainer
    return kind(model=Net(config.get("scale", 1.0)), args=args, train_dataset=samples(config))
