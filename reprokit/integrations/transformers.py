"""Hugging Face's Trainer: records its training steps, and the harness step that a replay runs.

    @replayable(layout={"input_ids": "b l", "labels": "b l"})
    def build(config):
        return Trainer(model=..., args=TrainingArguments(...), train_dataset=...)

    trainer = build(config)
    record(trainer, build, config)
    trainer.train()

A callback sees neither batches nor losses, so `training_step` of this one trainer is wrapped as well. A step of the
recorder is one batch: from there to the callback after the optimizer's step, or to the end of `training_step` where
gradients are accumulated. A replay builds the trainer and calls what `train` would have called; it needs no more of the
data set than that `build` can make one. Without accumulation, and with the Trainer's own `training_step`, that is the
plain loop, and reprokit does backward, clipping and the optimizer's step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reprokit.capture.recorder import Recorder, Watch
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.integrations._replayable import (
    Given,
    Make,
    OfValidation,
    Replayable,
    checked,
    decorator,
    library,
    parts,
    recorded,
    told,
)
from reprokit.step.load import stop_if_loading
from reprokit.step.probe import gradients_complete

_trainer: Any = library("transformers.trainer", "hf")
_callback: Any = library("transformers.trainer_callback", "hf")
library("accelerate", "hf")  # which a Trainer needs, and transformers does not ask for


def replayable(layout: Mapping[str, str] | str, **given: Any) -> Callable[[Make], Replayable]:
    """Decorates the function that makes a Trainer from a config. given: further fields of `Given`. Raises BadInput for
    what is no such function."""
    return decorator(layout, given, harness)


def record(trainer: Any, build: Any, config: Any, **options: Any) -> Record:
    """Record the steps of `trainer.train()`. build: decorated with `replayable`. options: of the Recorder. A step has
    the number that it has in the whole run, if that was resumed too. Raises BadInput for a trainer whose steps cannot
    be followed."""
    stop_if_loading()
    if not isinstance(trainer, _trainer.Trainer):
        raise BadInput(f"record: the first argument is {told(trainer)}; expected a transformers.Trainer")
    _check(trainer, "record")
    if trainer.train_dataset is None:
        raise BadInput("record: the Trainer has no train_dataset, so there are no steps to record; give it one")
    if any(isinstance(one, Record) for one in trainer.callback_handler.callbacks):
        raise BadInput("record: this Trainer is recorded already, and a step is recorded once; call it once")
    found = Record(trainer, checked("record", build, config, options), config, options)
    trainer.add_callback(found)
    return found


class Record(_callback.TrainerCallback):  # type: ignore[misc]
    """Of one Trainer. `incidents` lists what was written."""

    def __init__(self, trainer: Any, build: Replayable, config: Any, options: Mapping[str, Any]) -> None:
        self._trainer, self._build, self._config, self._options = trainer, build, config, options
        self.recorder: Recorder | None = None
        self._entered = False
        self._open = ExitStack()  # the step that is under way
        self._train, trainer.train = trainer.train, self._training

    def __getstate__(self) -> dict[str, Any]:
        """A copy, of the Trainer too, has recorded nothing."""
        return {**vars(self), "recorder": None, "_entered": False, "_open": ExitStack()}

    @property
    def incidents(self) -> list[Path]:
        """That were written since training began."""
        return self.recorder.incidents if self.recorder else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.recorder is None or not self._entered:
            return
        self._entered = False
        self._trainer.__dict__.pop("training_step", None)
        try:
            self._open.__exit__(kind, error, trace)  # of a step that raised after its backward
        finally:
            if error is not None and self._trainer.control.should_evaluate:  # which ends when it has
                error = OfValidation()
            self.recorder.__exit__(type(error) if error else None, error, trace)

    def _training(self, *args: Any, **kwargs: Any) -> Any:
        """In place of `trainer.train`."""
        with self:
            return self._train(*args, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self.__exit__(None, None, None)  # of an attempt before: `auto_find_batch_size` begins anew
        trainer, given = self._trainer, self._build.given
        progress = _Progress(trainer)
        live = _harness(trainer, trainer.model_wrapped, given, progress)
        config = recorded(self._config, {"transformers": {"steps": int(state.max_steps)}})
        numbered = {"steps_before": _batches_before(trainer, train_dataloader), **self._options}
        self.recorder = Recorder(live, build=self._build.harness, config=config, **numbered)
        self.recorder.__enter__()
        self._entered = True
        trainer.training_step = self._watching(progress, trainer.training_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.recorder and control.should_save:
            self.recorder.settle()  # a failure that is not read yet must not get into a checkpoint

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._open.close()

    def _watching(self, progress: _Progress, step: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            assert self.recorder
            progress.items = num_items_in_batch
            batch = dict(inputs) if isinstance(inputs, Mapping) else inputs
            watch: Watch = self._open.enter_context(self.recorder.watch(batch))
            try:
                loss = step(model, inputs, num_items_in_batch)
            except BaseException as error:
                self._open.__exit__(type(error), error, error.__traceback__)
                raise
            watch.losses(loss)
            if progress.sync:
                _look(self._trainer)
            else:
                self._open.close()
            return loss

        return training_step


def harness(trainer: Any, given: Given, settings: Mapping[str, Any]) -> Harness:
    """Of a Trainer that was built and does not train. Raises BadInput."""
    if not isinstance(trainer, _trainer.Trainer):
        raise BadInput(f"replayable: the function returned {told(trainer)}; expected a transformers.Trainer")
    _check(trainer, "replayable")
    trainer.create_optimizer()
    model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped, trainer.is_in_train, trainer.current_gradient_accumulation_steps = model, True, 1
    trainer.create_scheduler(num_training_steps=settings.get("transformers", {}).get("steps", 1))
    model.train()
    return _harness(trainer, model, given, _Progress(trainer))


def _check(trainer: Any, who: str) -> None:
    many = trainer.args.n_gpu > 1 or trainer.args.world_size > 1
    if many or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise BadInput(
            f"{who}: a Trainer over several devices, DeepSpeed or FSDP cannot be followed; train on one device, or "
            "write the loop with `recorder.watch` (docs/distributed.md)"
        )


def _harness(trainer: Any, model: Any, given: Given, progress: _Progress) -> Harness:
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # beneath Accelerate's
    plain = _is_plain(trainer, optimizer)
    clip = {"clip_grad_norm": trainer.args.max_grad_norm or None} if plain else {"automatic_optimization": False}
    return Harness(
        modules=parts(trainer.model, "model"),
        optimizer=optimizer,
        step=_plain_step(trainer, model, progress) if plain else _whole_step(trainer, model, progress),
        scaler=trainer.accelerator.scaler,
        extra_state={"progress": progress, **given.extra_state(trainer)},
        **clip,
        **given.fields(trainer),
    )


def _is_plain(trainer: Any, optimizer: Any) -> bool:
    """Whether a step is forward, backward, clipping and the optimizer's step, with the same last bits: a norm over
    parameters in another order than the optimizer's (as with weight decay for some of them) is another sum."""
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    every = list(trainer.model.parameters())
    return (
        trainer.args.gradient_accumulation_steps == 1
        and (not trainer.args.max_grad_norm or list(map(id, ordered)) == list(map(id, every)))
        and all(
            getattr(type(trainer), name, None) is getattr(_trainer.Trainer, name, None)
            for name in ("training_step", "_clip_grad_norm")
        )
    )


def _plain_step(trainer: Any, model: Any, progress: _Progress) -> Callable[[Any], Any]:
    """The loss as `training_step` computes it."""

    def step(batch: Any) -> Any:
        model.train()
        inputs = trainer._prepare_inputs(dict(batch))
        with trainer.compute_loss_context_manager():
            return trainer.compute_loss(model, inputs, num_items_in_batch=progress.items)

    return step


def _whole_step(trainer: Any, model: Any, progress: _Progress) -> Callable[[Any], Any]:
    """What `train` does with a batch."""
    training_step = trainer.training_step

    def step(batch: Any) -> Any:
        loss = training_step(model, dict(batch), progress.items)
        if progress.sync:
            _look(trainer)
            if trainer.args.max_grad_norm:
                trainer._clip_grad_norm(model)
            trainer.optimizer.step()
            model.zero_grad()
        return loss

    return step


def _batches_before(trainer: Any, loader: Any) -> int:
    """That the run has had, by the optimizer's steps that its checkpoint tells. The last of an epoch takes what is
    left."""
    each, steps = trainer.args.gradient_accumulation_steps, int(trainer.state.global_step)
    if not _trainer.has_length(loader):
        return int(steps * each)
    epochs, more = divmod(steps, -(-len(loader) // each))
    return int(epochs * len(loader) + more * each)


def _look(trainer: Any) -> None:
    """At the gradients, before they are clipped. Where a scaler has scaled them the optimizer's hook is the place."""
    if trainer.accelerator.scaler is None:
        gradients_complete()


class _Progress:
    """Where a Trainer is, as far as a step depends on it: whether gradients are complete with this batch, and by how
    many tokens and batches its loss is divided."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.items: Any = None

    @property
    def sync(self) -> bool:
        return bool(self._trainer.accelerator.gradient_state.sync_gradients)

    def state_dict(self) -> dict[str, Any]:
        return {
            "sync": self.sync,
            "items": self.items,
            "batches": getattr(self._trainer, "current_gradient_accumulation_steps", 1),
            "global_step": self._trainer.state.global_step,
            "epoch": self._trainer.state.epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._trainer.accelerator.gradient_state._set_sync_gradients(state["sync"])
        self.items, self._trainer.current_gradient_accumulation_steps = state["items"], state["batches"]
        self._trainer.state.global_step, self._trainer.state.epoch = state["global_step"], state["epoch"]
