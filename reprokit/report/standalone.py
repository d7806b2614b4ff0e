"""A script of plain torch with one operation and its inputs: what a maintainer of torch wants to see.

It needs nothing of the user's code and nothing of reprokit. Tensors lie beside it as raw bytes, which torch reads
without a pickle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.report import templates
from reprokit.triage.locate import Located

SCRIPT = "operation.py"
_OPERATION = re.compile(r"\w+\.\w+(\.\w+)?")  # it becomes source: a name may come from code that is not ours
_PRODUCER = re.compile(r"[\w.:]+")


def check(folder: Path) -> None:
    """Raises BadInput where no folder of this name can be made: said before the work."""
    if os.path.lexists(folder):
        raise BadInput(f"{folder}: exists already; name a folder that does not")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"{folder}: {above} is no folder that you may write to; name another place")


def write(located: Located, folder: Path) -> Path:
    """Write operation.py and its inputs into a folder that does not exist yet; returns the script.

    Raises BadInput where the failure has no operation, or its arguments were too large to keep.
    """
    if located.description["op"] is None and located.description["phase"]:
        raise BadInput(f"{located.description['producer']} was raised by no operation, so there is none for a script")
    if located.description["op"] is None:
        raise BadInput(
            f"{located.description['producer']} was bad before the step began: there is no operation for a script; "
            "look for what wrote it"
        )
    if not _OPERATION.fullmatch(located.description["op"]) or not _PRODUCER.fullmatch(located.description["producer"]):
        raise BadInput("the name of the operation is none that torch gives; whatever made this incident is not honest")
    if located.arguments is None:
        raise BadInput("the operation's arguments were too large to keep; reduce the incident first")
    check(folder)
    beside = folder.with_name(f".{folder.name}.part")
    beside.mkdir(parents=True)
    try:
        inputs: list[dict[str, Any]] = []
        arguments = [_expression(one, beside, inputs) for one in located.arguments["args"]]
        arguments += [
            f"{name}={_expression(one, beside, inputs)}"
            for name, one in located.arguments["kwargs"].items()
            if one is not tree.MISSING and name.isidentifier()
        ]
        values = {"located": located.description, "inputs": inputs, "arguments": arguments, "torch": torch.__version__}
        (beside / SCRIPT).write_text(templates.render("locate/operation.py.j2", values))
        beside.rename(folder)
    except BaseException:
        for file in beside.iterdir():
            file.unlink()
        beside.rmdir()
        raise
    return folder / SCRIPT


def _expression(value: Any, folder: Path, inputs: list[dict[str, Any]]) -> str:
    """A value as Python source; tensors become files, and names in the script."""
    if isinstance(value, torch.Tensor):
        return _stored(value, folder, inputs)
    if isinstance(value, list | tuple):
        inside = ", ".join(_expression(one, folder, inputs) for one in value)
        return f"[{inside}]"
    if isinstance(value, Mapping) or value is tree.MISSING:
        return "None"
    if isinstance(value, float):
        return f"float({str(value)!r})"
    if isinstance(value, torch.device):
        return "'cpu'"
    return repr(value)


def _stored(tensor: torch.Tensor, folder: Path, inputs: list[dict[str, Any]]) -> str:
    name = f"input{len(inputs)}"
    plain = tensor.detach().cpu().contiguous()
    (folder / f"{name}.bin").write_bytes(
        plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    )
    inputs.append({"name": name, "dtype": str(plain.dtype), "shape": list(plain.shape)})
    return name
