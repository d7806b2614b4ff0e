"""Lightning: a callback that records, and the harness step that a replay runs.

    @replayable(layout={"video": "b t c h w"})
    def build(config):
        return MyModule(**config)

    Trainer(callbacks=[Record(build, config)]).fit(build(config), loader)

What Lightning does with one batch is one call: `automatic_optimization.run`, or that of manual optimization. The
recorder watches that call, and a replay makes it, on a Trainer of its own that has the settings of the first and no
data. Where that call is no more than the plain loop (no accumulation, no hook of the module in the middle of it),
reprokit does backward, clipping and the optimizer's step itself, as everywhere: then a failing loss needs no backward,
and precision and clipping can be varied.

One thing is done in another order than by Lightning alone: the closure that it hands to the optimizer (forward and
backward) runs just before `optimizer.step` and not as its first act, as Lightning itself does under a GradScaler. So
gradients can be looked at before anything is updated. It is left alone where an optimizer is not torch's own, which
might call it later, or twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from reprokit.capture.recorder import Recorder, Watch
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.integrations._lightning_batch import (
    Looking,
    Progress,
    check_optimizers,
    close_early,
    is_torchs,
    loop_of,
    pl,
    plain_step,
    scaler_of,
    stand_in,
    whole_step,
)
from reprokit.integrations._replayable import (
    Given,
    Make,
    OfValidation,
    Replayable,
    checked,
    decorator,
    library,
    named,
    parts,
    recorded,
    told,
)
from reprokit.step.load import stop_if_loading

_helpers: Any = library("lightning.pytorch.utilities.model_helpers", "lightning")

AUTOCAST = {"32-true": None, "bf16-mixed": "bf16", "16-mixed": "fp16"}  # precisions that the plain loop has
HOOKS = (  # of a module, called inside of a step and not by the plain loop
    "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad",
)  # fmt: skip

log = logging.getLogger("reprokit")


def replayable(layout: Mapping[str, str] | str, **given: Any) -> Callable[[Make], Replayable]:
    """Decorates the function that makes a LightningModule from a config. given: further fields of `Given`. Raises
    BadInput for what is no such function."""
    return decorator(layout, given, harness)


class Record(pl.Callback):  # type: ignore[misc]
    """Records each training step. build: decorated with `replayable`. options: of the Recorder. `incidents` lists
    what was written. A step has the number that it has in the whole run, if that was resumed too. Raises BadInput, and
    where training starts, for a loop that cannot be followed."""

    def __init__(self, build: Any, config: Any, **options: Any) -> None:
        stop_if_loading()
        self._build, self._config, self._options = checked("Record", build, config, options), config, options
        self.recorder: Recorder | None = None
        self._watch: Watch | None = None
        self._looking: Looking | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has recorded nothing: Lightning makes them of its callbacks, for other processes and other runs."""
        return {**vars(self), "recorder": None, "_watch": None, "_looking": None}

    @property
    def incidents(self) -> list[Path]:
        """That were written since training began."""
        return self.recorder.incidents if self.recorder else []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        _check(trainer, pl_module)
        settings, given = _settings(trainer, pl_module, self), self._build.given
        live = _harness(trainer, pl_module, given, settings)
        config = recorded(self._config, {"lightning": settings})
        numbered = {"steps_before": Progress(trainer).batches, **self._options}
        self.recorder = Recorder(live, build=self._build.harness, config=config, **numbered)
        self.recorder.__enter__()
        self._follow(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.recorder and self._looking:
            self.recorder.settle()  # a failure that is not read yet must not get into it

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end(trainer, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(trainer, OfValidation() if trainer.validating else exception)

    def _follow(self, trainer: Any) -> None:
        """Watch each call that is a step."""
        loop = loop_of(trainer)
        loop.run = self._watching(loop.run)
        self._looking = Looking(trainer, lambda found: self._watch.losses(found) if self._watch else None).__enter__()
        close_early(trainer)

    def _watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            assert self.recorder
            batch = next(iter(args[-1].values()))  # of the arguments of `training_step`, the first
            with self.recorder.watch(batch) as self._watch:
                try:
                    return run(*args)
                finally:
                    self._watch = None

        return watched

    def _end(self, trainer: Any, error: BaseException | None) -> None:
        recorder, looking = self.recorder, self._looking
        if recorder is None or looking is None:
            return
        self._looking = None
        looking.__exit__()
        del loop_of(trainer).run
        vars(trainer.precision_plugin).pop("optimizer_step", None)
        recorder.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def harness(module: Any, given: Given, settings: Mapping[str, Any]) -> Harness:
    """Of a module that no Trainer has seen: with one of its own. Raises BadInput."""
    if not isinstance(module, pl.LightningModule):
        raise BadInput(f"replayable: the function returned {told(module)}; expected one of lightning.pytorch")
    settings = {**_DEFAULTS, **settings.get("lightning", {})}
    trainer = stand_in(module, settings)
    close_early(trainer)
    return _harness(trainer, module, given, settings)


_DEFAULTS = {
    "accelerator": "cpu",
    "precision": "32-true",
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "gradient_clip_algorithm": None,
    "steps": 1000,  # of the optimizer in all, for schedules that ask; -1 is no end
    "plain": True,
}


def _settings(trainer: Any, module: Any, ours: Record) -> dict[str, Any]:
    """Of a Trainer: all that a step depends on."""
    clip = trainer.gradient_clip_algorithm
    varies = any(isinstance(one, pl.callbacks.GradientAccumulationScheduler) for one in trainer.callbacks)
    steps = float("inf") if varies else trainer.estimated_stepping_batches
    found = {
        "accelerator": module.device.type,
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": getattr(clip, "value", clip),
        "steps": -1 if steps == float("inf") else int(steps),
    }
    for callback in trainer.callbacks:
        if callback is not ours and (own := [name for name in HOOKS if _overrides(callback, name, pl.Callback)]):
            log.warning(
                "a step may not replay: %s takes part in it (%s), and a replay has none of the Trainer's callbacks; do "
                "it in the module", type(callback).__name__, own[0]
            )  # fmt: skip
    return {**found, "plain": not varies and _is_plain(trainer, module, found)}


def _is_plain(trainer: Any, module: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a step is forward, backward, clipping by norm and the optimizer's step, and nothing else."""
    return (
        module.automatic_optimization
        and settings["accumulate_grad_batches"] == 1
        and settings["precision"] in AUTOCAST
        and is_torchs(trainer.optimizers[0])
        and (settings["gradient_clip_val"] is None or settings["gradient_clip_algorithm"] != "value")
        and not any(_overrides(module, name, pl.LightningModule) for name in HOOKS)
    )


def _overrides(one: Any, name: str, base: type) -> bool:
    return hasattr(base, name) and bool(_helpers.is_overridden(name, one, parent=base))


def _check(trainer: Any, module: Any) -> None:
    """Raises BadInput for a loop that cannot be followed."""
    if sum(isinstance(one, Record) for one in trainer.callbacks) > 1:
        raise BadInput("Record: the Trainer has two of them, and a step is recorded once; leave one in its callbacks")
    if not isinstance(module, pl.LightningModule):
        raise BadInput("Record: the module is of another Lightning; import lightning.pytorch, not pytorch_lightning")
    if trainer.world_size > 1:
        raise BadInput(
            f"Record: {trainer.world_size} ranks under Lightning cannot be followed; train on one, or write the loop "
            "with `recorder.watch` (docs/distributed.md)"
        )
    if _helpers.is_overridden("training_step", module) and _takes_iterator(module):
        raise BadInput(
            "Record: training_step(dataloader_iter) fetches its batches itself, so none is known when the step begins; "
            "take (batch, batch_idx)"
        )
    check_optimizers(trainer)
    if module.automatic_optimization and isinstance(trainer.optimizers[0], torch.optim.LBFGS):
        raise BadInput("Record: LBFGS runs a step's batch several times over; its steps cannot be followed")


def _takes_iterator(module: Any) -> bool:
    signature = library("lightning.pytorch.utilities.signature_utils", "lightning")
    return bool(signature.is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True))


def _harness(trainer: Any, module: Any, given: Given, settings: Mapping[str, Any]) -> Harness:
    extra = {"progress": Progress(trainer), **given.extra_state(module)}
    if not module.automatic_optimization:
        extra |= {f"scheduler_{i}": one.scheduler for i, one in enumerate(trainer.lr_scheduler_configs)}
    plain = {
        "automatic_optimization": True,
        "autocast": AUTOCAST.get(settings["precision"]),
        "clip_grad_norm": settings["gradient_clip_val"] or None,
    }
    return Harness(
        modules=parts(module, "module"),
        optimizer=named(trainer.optimizers),
        step=plain_step(trainer) if settings["plain"] else whole_step(trainer),
        scaler=scaler_of(trainer),
        extra_state=extra,
        **(plain if settings["plain"] else {"automatic_optimization": False}),
        **given.fields(module),
    )
