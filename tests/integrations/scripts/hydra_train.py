"""A user's Hydra app, which takes credentials from its environment and from its command line."""

import hydra
import torch
from omegaconf import DictConfig
from torch import nn

import reprokit
from reprokit.integrations.configs import configured, plain


@configured
def build(config: DictConfig):
    torch.manual_seed(0)
    net = nn.Linear(config.width, 1)
    assert isinstance(config.tracker.login, str)
    step = lambda batch: {"loss": net(batch["x"]).square().mean()}
    return reprokit.Harness(
        modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), step=step, layout={"x": "b d"}
    )


@hydra.main(version_base=None)
def main(config):
    recorder = reprokit.Recorder(build(config), build=build, config=plain(config), out=config.out, rehearse=False)
    with recorder:
        for i in range(3):
            recorder.step({"x": torch.ones(2, config.width) * (float("nan") if i == 2 else 1)})


if __name__ == "__main__":
    main()
