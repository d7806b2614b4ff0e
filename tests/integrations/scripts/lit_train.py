"""A user's Lightning script: one small module that can be trained in each way that Lightning knows."""

import lightning.pytorch as L
import torch
from torch import nn

from reprokit.integrations.lightning import replayable


class Net(L.LightningModule):
    def __init__(self, way="automatic", scale=1.0):
        super().__init__()
        self.way, self.scale = way, scale
        self.automatic_optimization = way not in ("manual", "adversarial")
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.critic = nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        if self.way == "raises" and batch["x"].isnan().any():
            raise ValueError("a value is missing")
        warm = 1 + 0.01 * self.global_step + 0.001 * batch_idx + 0.1 * self.current_epoch
        out = self.net(batch["x"])
        loss = out.square().mean() * warm * self.scale * batch["times"]
        self.log("loss", loss, on_epoch=True)
        if self.way == "manual":
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 1.0, "norm")
            optimizer.step()
            self.lr_schedulers().step()
            return None
        if self.way == "adversarial":
            first, second = self.optimizers()
            for optimizer, part in (first, loss), (second, self.critic(out.detach()).square().mean() * batch["times"]):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(part)
                optimizer.step()
                self.untoggle_optimizer(optimizer)
            return None
        return {"loss": loss + 0 * self.critic(out).mean(), "pred_loss": loss.detach()}

    def configure_optimizers(self):
        if self.way == "nothing":
            return None
        if self.way in ("adversarial", "two"):
            return [torch.optim.SGD(self.net.parameters(), 0.05), torch.optim.Adam(self.critic.parameters(), 0.01)]
        if self.way == "lbfgs":
            return torch.optim.LBFGS(self.parameters())
        if self.way == "own":
            return Doubling(self.parameters())
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, fused=self.way == "fused")
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.02, int(self.trainer.estimated_stepping_batches) + 9
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Hooked(Net):
    """Takes part in its step where Lightning lets it."""

    def on_after_backward(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        with torch.no_grad():
            self.critic.bias.mul_(0.9)


class Validated(Net):
    """Validates as well, and stops where there is nothing to validate."""

    def validation_step(self, batch, batch_idx):
        if batch["x"].isnan().any():
            raise ValueError("nothing to validate")
        self.log("val", 1.0)


class Doubling(torch.optim.SGD):
    """Not torch's own: when it calls its closure is its own affair."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.01)

    def step(self, closure=None):
        loss = super().step(closure)
        super().step()
        return loss


Doubling.__module__ = "somewhere.optim"


@replayable(layout={"x": "b d"})
def build(config):
    torch.manual_seed(config["seed"])
    kind = {"hooked": Hooked, "validated": Validated}.get(config["way"], Net)
    return kind(config["way"], config.get("scale", 1.0))


def loader(bad=None, batches=7, far=None):
    """bad: a batch with a NaN in it; far: one with a loss that is finite, and far from the others."""
    generator = torch.Generator().manual_seed(1)
    found = [{"x": torch.rand(6, 4, generator=generator), "times": 1.0} for _ in range(batches)]
    if bad is not None:
        found[bad]["x"][2, 1] = float("nan")
    if far is not None:
        found[far]["times"] = 1e3
    return torch.utils.data.DataLoader(found, batch_size=None)
