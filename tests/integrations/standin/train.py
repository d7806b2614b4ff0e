"""The project's training, without reprokit."""

import hydra
import lightning.pytorch as L
import torch

from standin.model import JointModule


class Clips(torch.utils.data.Dataset):
    """Frames as a decoder gives them: one global view and some local ones of the same times."""

    def __init__(self, config):
        self.data = config.data

    def __len__(self):
        return self.data.batch_size * self.data.batches

    def __getitem__(self, index):
        make = torch.Generator().manual_seed(index)
        frames, views = self.data.frames, self.data.views
        draw = lambda *shape: torch.randint(0, 256, shape, dtype=torch.uint8, generator=make)
        whole, local = draw(frames, 3, 224, 224), draw(views, frames, 3, 96, 96)
        if self.data.black is not None and index == self.data.black * self.data.batch_size + 1:
            local[4, 7] = 0
        return {"global_frame": whole, "local_frames": local}


def train(config, callbacks=()):
    loader = torch.utils.data.DataLoader(Clips(config), batch_size=config.data.batch_size)
    L.Trainer(callbacks=list(callbacks), **config.trainer).fit(JointModule(config), loader)


@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(config):
    train(config)


if __name__ == "__main__":
    main()
