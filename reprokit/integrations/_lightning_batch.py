"""One batch under Lightning: with the Trainer that trains, or with one that stands in for it in a replay.

The stand-in is a real Trainer with the settings of the first and no data, brought to where `fit` would fetch a batch.
What it calls is Lightning's own loop over one batch. Some of that is not public: it is all in this file.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch

from reprokit.errors import BadInput
from reprokit.integrations._replayable import library, terms_of
from reprokit.step.probe import gradients_complete

pl: Any = library("lightning.pytorch", "lightning")
call: Any = library("lightning.pytorch.trainer.call", "lightning")
precision: Any = library("lightning.pytorch.plugins.precision", "lightning")
rank_zero: Any = library("lightning.pytorch.utilities.rank_zero", "lightning")


def plain_step(trainer: Any) -> Callable[[Any], Any]:
    """`training_step` as Lightning calls it, and what it does before backward."""

    def run(batch: Any) -> Any:
        output = call._call_strategy_hook(trainer, "training_step", *_arguments(trainer, batch).values())
        if not (found := terms_of(output)):
            raise BadInput("training_step returned no loss; a replay runs steps that have one")
        trainer.optimizers[0].zero_grad()
        Progress(trainer).stepped()
        return found

    return run


def whole_step(trainer: Any) -> Callable[[Any], Any]:
    """All that Lightning does with a batch."""
    run = loop_of(trainer).run

    def step(batch: Any) -> Any:
        told: dict[str, Any] = {}
        arguments = _arguments(trainer, batch)
        with Looking(trainer, told.update):
            if trainer.lightning_module.automatic_optimization:
                run(trainer.optimizers[0], Progress(trainer).batch_idx, arguments)
            else:
                run(arguments)
        return told or {"loss": 0.0}

    return step


class Looking(pl.Callback):  # type: ignore[misc]
    """Within it, steps say when gradients are complete, and `tell` is given their loss terms."""

    def __init__(self, trainer: Any, tell: Callable[[dict[str, Any]], object]) -> None:
        self._trainer, self._tell = trainer, tell
        self._backward: list[torch.Tensor] = []

    def __enter__(self) -> Self:
        strategy = self._trainer.strategy
        self._around = vars(strategy).get("training_step")
        strategy.training_step = self._looked(strategy.training_step)
        self._trainer.callbacks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._trainer.callbacks.remove(self)
        del self._trainer.strategy.training_step
        if self._around is not None:
            self._trainer.strategy.training_step = self._around

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        self._backward.append(_unscaled(trainer, loss))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gradients_complete(judge=scaler_of(trainer) is None)

    def _looked(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*args: Any, **kwargs: Any) -> Any:
            self._backward = []
            output = step(*args, **kwargs)
            if found := _terms(output, self._backward):
                self._tell(found)
            return output

        return looked


def _terms(output: Any, backward: list[torch.Tensor]) -> dict[str, Any]:
    """What `training_step` returned; with manual optimization it may be nothing, and the losses that went backward are
    the terms. The last of those is the loss where it names none."""
    last = {"loss": backward[-1]} if backward else {}
    if found := terms_of(output):
        return {**last, **found} if "loss" in found or backward else {}
    each = {f"backward_{i}": loss for i, loss in enumerate(backward, 1)} if len(backward) > 1 else {}
    return {**each, **last}


def _unscaled(trainer: Any, loss: torch.Tensor) -> torch.Tensor:
    """Lightning tells the loss as the scaler has made it."""
    scaler = scaler_of(trainer)
    return loss.detach() / scaler._scale if scaler is not None and scaler.is_enabled() else loss.detach()


def scaler_of(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def loop_of(trainer: Any) -> Any:
    """Of one batch."""
    epoch = trainer.fit_loop.epoch_loop
    automatic = trainer.lightning_module.automatic_optimization
    return epoch.automatic_optimization if automatic else epoch.manual_optimization


def _arguments(trainer: Any, batch: Any) -> Any:
    return trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, Progress(trainer).batch_idx)


def close_early(trainer: Any) -> None:
    """Run the closure before the optimizer's step, so that gradients can be looked at before anything is updated; as
    Lightning itself does under a GradScaler. An optimizer that is not torch's own might call it later, or twice."""
    plugin = trainer.precision_plugin
    ours = (precision.Precision.optimizer_step, precision.MixedPrecision.optimizer_step)
    if type(plugin).optimizer_step not in ours or scaler_of(trainer) is not None:
        return
    original = plugin.optimizer_step

    def optimizer_step(optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        if not is_torchs(optimizer):
            return original(optimizer, model=model, closure=closure, **kwargs)
        result = plugin._wrap_closure(model, optimizer, closure)
        return optimizer.step(closure=lambda: result, **kwargs)

    plugin.optimizer_step = optimizer_step


def check_optimizers(trainer: Any) -> None:
    """Raises BadInput where there is none: Lightning then has one that does nothing."""
    if not all(isinstance(one, torch.optim.Optimizer) and one.param_groups for one in trainer.optimizers or [None]):
        raise BadInput("configure_optimizers returned none, so nothing is trained; return an optimizer")


def is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


class Progress:
    """Where a Trainer is in its loops, as far as a step can ask for it: `batch_idx`, `current_epoch`, `global_step`,
    and whether this is the last batch, at which Lightning steps though it has accumulated fewer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._fit, self._epoch = trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop

    @property
    def batch_idx(self) -> int:
        return int(self._epoch.batch_progress.current.ready) - 1

    @property
    def batches(self) -> int:
        """That the run has had, before it was resumed too."""
        return int(self._epoch.batch_progress.total.processed)

    @property
    def _steps(self) -> Any:
        """The optimizer's, which `global_step` counts."""
        if self._trainer.lightning_module.automatic_optimization:
            return self._epoch.automatic_optimization.optim_progress.optimizer.step
        return self._epoch.manual_optimization.optim_step_progress

    def stepped(self) -> None:
        """The optimizer's next step was begun by someone else."""
        self._steps.total.completed += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "batch_idx": self.batch_idx,
            "epoch": int(self._fit.epoch_progress.current.processed),
            "global_step": int(self._steps.total.completed),
            "last": bool(self._epoch._num_ready_batches_reached()),
            "accumulate": int(self._trainer.accumulate_grad_batches),  # a callback may change it
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch.batch_progress.current.ready = state["batch_idx"] + 1
        self._epoch.batch_progress.is_last_batch = state["last"]
        now = self._fit.epoch_progress.current
        now.processed = now.completed = state["epoch"]  # they differ between two epochs only
        self._steps.total.completed = state["global_step"]
        self._trainer.accumulate_grad_batches = state["accumulate"]


def stand_in(module: Any, settings: Mapping[str, Any]) -> Any:
    """A Trainer with these settings and no data, about to run a batch of this module. Raises BadInput."""
    kept = ("accelerator", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    with _no_banner():
        trainer = pl.Trainer(
            **{name: settings[name] for name in kept},
            **dict.fromkeys(quiet, False),
            **_precision_of(settings),
            devices=1,
            max_steps=settings["steps"],
            max_epochs=-1,
        )
    trainer.state.fn, trainer.training = pl.trainer.states.TrainerFn.FITTING, True
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer._callback_connector._attach_model_callbacks()
    trainer._callback_connector._attach_model_logging_functions()
    trainer.strategy.setup_environment()
    call._call_setup_hook(trainer)
    call._call_configure_model(trainer)
    try:
        trainer.strategy.setup(trainer)
    except (pl.utilities.exceptions.MisconfigurationException, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "multiple optimizers" not in str(error):
            raise
        raise BadInput(f"the module cannot be trained: {str(error).splitlines()[0]}") from error
    check_optimizers(trainer)
    module.train()
    return trainer


@contextmanager
def _no_banner() -> Iterator[None]:
    """Which devices there are and what else can be installed, Lightning tells for each Trainer; a gate makes many."""
    said = rank_zero.rank_zero_module.log  # of the last to be imported, where both Lightnings are
    level = said.level
    said.setLevel(logging.WARNING)
    try:
        yield
    finally:
        said.setLevel(level)


def _precision_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """fp16 on a CPU has to be asked for by its plugin: as a word, Lightning makes bf16 of it."""
    if settings["precision"] == "16-mixed":
        return {"plugins": [precision.MixedPrecision("16-mixed", settings["accelerator"])]}
    return {"precision": settings["precision"]}
