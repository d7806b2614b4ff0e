"""The module: each view to an embedding, each embedding near that of the global view."""

import lightning.pytorch as L
import torch
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    """A clip [B, T, C, H, W] to one vector."""

    def __init__(self, width):
        super().__init__()
        self.stem = nn.Linear(3 * 8 * 8, width)
        self.mix = nn.GRU(width, width, batch_first=True)

    def forward(self, clip):
        frames = clip.flatten(0, 1).float()
        frames = functional.adaptive_avg_pool2d(frames, 8).flatten(1)
        frames = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)  # of a black frame: 0 / 0
        return self.mix(self.stem(frames).unflatten(0, clip.shape[:2]))[0][:, -1]


class JointModule(L.LightningModule):
    def __init__(self, config):
        super().__init__()
        torch.manual_seed(config.seed)
        self.config, self.automatic_optimization = config, False
        self.encoder = Encoder(config.model.width)
        hidden, out = config.model.width, config.model.embedding
        self.projector = nn.Sequential(
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.GELU(), nn.Linear(hidden, out)
        )

    def training_step(self, batch, batch_idx):
        views = batch["local_frames"].shape[1]
        whole = self.projector(self.encoder(batch["global_frame"]))
        local = self.projector(self.encoder(batch["local_frames"].flatten(0, 1))).unflatten(0, (-1, views))
        pred = (local - whole[:, None]).square().mean()
        spread = functional.relu(1 - local.flatten(0, 1).std(0)).mean()
        loss = pred + self.config.model.regulariser * spread
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 1.0, "norm")
        optimizer.step()
        return {"loss": loss.detach(), "pred_loss": pred.detach(), "spread_loss": spread.detach()}

    def on_after_backward(self):
        """The hook after `manual_backward`: the projector learns at half the pace."""
        for parameter in self.projector.parameters():
            parameter.grad.mul_(0.5)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.config.optim.lr)
