"""A user's script with Hugging Face's Trainer: a tiny model, nothing is downloaded."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

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
    if config.get("far") is not None:
        found[config["far"]]["labels"] += 30
    if config.get("negative") is not None:
        found[config["negative"]]["labels"] -= 2
    return found


def language(config):
    """A model of the library, whose loss is divided by the tokens of all accumulated batches."""
    size = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=2, attention_dropout=0.1))


def sentences(config):
    generator = torch.Generator().manual_seed(1)
    draw = lambda i: torch.randint(0, 12, (6,), generator=generator).where(torch.arange(6) < 3 + i % 4, -100)
    found = [{"inputs_embeds": torch.rand(6, 8, generator=generator), "labels": draw(i)} for i in range(30)]
    if config.get("bad") is not None:
        found[config["bad"]]["inputs_embeds"][1] = float("nan")
    return found


def arguments(config):
    torch.manual_seed(0)
    return TrainingArguments(
        output_dir=config["out"],
        per_device_train_batch_size=4,
        max_steps=config.get("steps", 9),
        learning_rate=0.02,
        report_to=[],
        use_cpu=True,
        logging_strategy="no",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **{"save_strategy": "no", **config.get("args", {})},
    )


@replayable(layout={"x": "b d", "labels": "b"})
def build(config):
    kind = Own if config.get("own") else Trainer
    args = arguments(config)
    datasets = {"train_dataset": samples(config), "eval_dataset": samples({})}
    return kind(model=Net(config.get("scale", 1.0)), args=args, **datasets)


@replayable(layout={"inputs_embeds": "b l d", "labels": "b l"})
def build_language(config):
    args = arguments(config)
    return Trainer(model=language(config), args=args, train_dataset=sentences(config))
