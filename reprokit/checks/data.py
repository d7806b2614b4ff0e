"""Tensors, arrays and lists, as NumPy sees them; and whether a sample can answer anything.

Neither torch nor NumPy is imported here before somebody hands over what needs it: a tensor can exist only where torch
is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from reprokit.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

_AS_THEY_ARE = frozenset(
    f"{kind}{bits}"
    for kind, widths in {
        "uint": (8, 16, 32, 64),
        "int": (8, 16, 32, 64),
        "float": (16, 32, 64),
        "complex": (64, 128),
    }.items()
    for bits in widths
) | {"bool"}


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Of NumPy's, or a tensor. NumPy's scalars are numbers."""
    numpy = sys.modules.get("numpy")
    return is_tensor(value) or (numpy is not None and isinstance(value, numpy.ndarray))


def dtype(value: Any) -> str:
    """By the name that torch and NumPy share: "float32"."""
    return str(value.dtype).removeprefix("torch.")


def array(name: str, value: Any) -> Any:
    """A tensor or an array as NumPy's, with equal values; types that NumPy lacks become the next wider one."""
    if not is_tensor(value):
        return value
    import torch

    tensor = value.detach()
    if tensor.is_meta:
        raise BadInput(f"{name}: a tensor on the meta device holds no values; compare one that does")
    if tensor.is_quantized:
        raise BadInput(f"{name}: a quantized tensor; compare its .dequantize() or its .int_repr()")
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if dtype(tensor) not in _AS_THEY_ARE:
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    return tensor.numpy()


def sample(name: str, values: object) -> Numbers:
    """One number a sample, as float64. Raises BadInput for what is none."""
    import numpy as np

    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not (listed or is_array(values)):
        raise BadInput(f"{name}: a {type(values).__name__}, not one number a sample; give a list, an array or a tensor")
    try:
        plain = [array(name, one) for one in cast(Sequence[Any], values)] if listed else array(name, values)
        if (kind := np.asarray(plain).dtype.kind) in "cSUMm":  # NumPy would read texts, count dates, and drop a half
            raise TypeError({"c": "complex numbers", "M": "dates", "m": "durations"}.get(kind, "texts"))
        numbers = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: not one number a sample ({error}); give a flat list, array or tensor") from None
    if numbers.ndim != 1:
        raise BadInput(
            f"{name}: shape {numbers.shape}, not one number a sample; values of one sample are no samples of their "
            "own: take their mean, or flatten them where they are independent"
        )
    return numbers


def unsound(values: Numbers, what: str = "sample", *, may_be_constant: bool = False) -> str:
    """Why these can answer nothing; empty if they can."""
    import numpy as np

    if not len(values):
        return f"the {what} is empty"
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        return f"{len(bad)} of {len(values)} in the {what} are not finite, the first at [{bad[0]}]: {values[bad[0]]}"
    if not may_be_constant and bool((values == values[0]).all()):
        return f"the {what} is constant: all {len(values)} are {shown(float(values[0]))}"
    return ""


def shown(value: float) -> str:
    """A number as a message has it; `fields` have all of its digits."""
    return f"{value:.6g}"


def checked_alpha(name: str, alpha: float) -> float:
    if not 0 < alpha < 1:
        raise BadInput(f"{name}: alpha is {alpha}; it is a probability, such as 0.05")
    return alpha
