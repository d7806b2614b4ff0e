"""Accelerate: a harness of a plain loop with `accelerator.backward`.

    def build(config):
        accelerator = Accelerator(gradient_accumulation_steps=2)
        model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))

        def step(batch):
            with accelerator.accumulate(model):
                loss = model(batch["x"]).square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            return {"loss": loss}

        return harness(accelerator, {"model": model}, optimizer, step, layout={"x": "b d"})

The step stays the user's, and so does everything in it. What Accelerate counts between steps is state, too: at which
batch it is of those that it accumulates, and whether the loader has none after this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.integrations._replayable import library, told
from reprokit.step.probe import gradients_complete

_optimizer: Any = library("accelerate.optimizer", "hf")


def harness(
    accelerator: Any,
    modules: Mapping[str, nn.Module],
    optimizer: Any,
    step: Callable[[Any], Any],
    *,
    layout: Mapping[str, str] | str,
    extra_state: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Harness:
    """Of what `accelerator.prepare` returned. optimizer: one, or a mapping by name. step: all that the loop does with a
    batch. fields: further ones of the Harness. Raises BadInput."""
    if not hasattr(accelerator, "sync_gradients"):
        raise BadInput(f"harness: the first argument is {told(accelerator)}; expected an Accelerator")
    if not callable(step):
        raise BadInput(f"harness: step is a {type(step).__name__}; expected the function that runs a batch")
    several = optimizer if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
    bare = {name: one.optimizer if _is_ours(one) else one for name, one in several.items()}
    return Harness(
        modules=modules,
        optimizer=bare if isinstance(optimizer, Mapping) else bare["optimizer"],
        step=_looking(accelerator, step),
        layout=layout,
        automatic_optimization=False,
        scaler=accelerator.scaler,
        extra_state={"accelerator": _Progress(accelerator), **(extra_state or {})},
        **fields,
    )


def _is_ours(optimizer: Any) -> bool:
    return isinstance(optimizer, _optimizer.AcceleratedOptimizer)


def _looking(accelerator: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The step, whose gradients are looked at before it clips them."""

    def looked(batch: Any) -> Any:
        clip = accelerator.clip_grad_norm_

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            if accelerator.sync_gradients and accelerator.scaler is None:
                gradients_complete()
            return clip(*args, **kwargs)

        accelerator.clip_grad_norm_ = clip_grad_norm_
        try:
            return step(batch)
        finally:
            del accelerator.clip_grad_norm_

    return looked


class _Progress:
    """Where Accelerate is in accumulating gradients."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator, self._state = accelerator, accelerator.gradient_state

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._accelerator.step,
            "sync": bool(self._accelerator.sync_gradients),
            "last": bool(self._state.end_of_dataloader),
            "remainder": int(self._state.remainder),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._accelerator.step = state["step"]
        self._state._set_sync_gradients(state["sync"])
        if not self._state.in_dataloader:
            self._state._add_dataloader(_Loader())
        if isinstance(loader := self._state.active_dataloader, _Loader):
            loader.end_of_dataloader, loader.remainder = state["last"], state["remainder"]


class _Loader:
    """In a replay there is none, and Accelerate asks it."""

    end_of_dataloader = False
    remainder = -1
