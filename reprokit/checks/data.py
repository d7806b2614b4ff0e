"""Tensors, arrays and lists, as NumPy sees them; and whether a sample can answer anything.

Neither torch nor NumPy is imported here before somebody hands over what needs it: a tensor can exist only where torch
is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
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


LONGEST = 120  # characters of a value in a message


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
    """A tensor or an array as NumPy's, with equal values; types that NumPy lacks become the next wider one. Raises
    BadInput for one that does not hold its values as they are."""
    if not is_tensor(value):
        return _unmasked(name, value)
    tensor = value.detach()
    if tensor.is_meta:
        raise BadInput(f"{name}: a tensor on the meta device holds no values; compare one that does")
    if tensor.is_quantized:
        raise BadInput(f"{name}: a quantized tensor; compare its .dequantize() or its .int_repr()")
    if tensor.is_nested:
        raise BadInput(f"{name}: a nested tensor; compare the list of its .unbind()")
    try:
        return _dense(tensor)
    except (RuntimeError, TypeError) as error:  # of a trace, of several machines, of bits
        first = str(error).partition("\n")[0]
        what = f"a {type(value).__name__} of {dtype(value)} does not give its values"
        raise BadInput(f"{name}: {what} ({first}); compare a plain tensor") from None


def _dense(tensor: Any) -> Any:
    import torch

    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if dtype(tensor) not in _AS_THEY_ARE:
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    return tensor.numpy()


def _unmasked(name: str, value: Any) -> Any:
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise BadInput(f"{name}: a masked array; say what its gaps are, with .compressed() or .filled(value)")
    return value


def is_number(value: object) -> bool:
    """A real one, or an array of no dimensions, as a loss is. A bool is none: True in its place is a mistake."""
    if is_array(value):
        return getattr(value, "ndim", 1) == 0
    return isinstance(value, Real | Decimal) and not isinstance(value, bool)


def read(name: str, value: Any) -> float | None:
    """A number as a float; None for what no float stands for, such as a text, 1j, 10**400 and a signalling NaN."""
    if is_array(value) and is_number(value):
        value = array(name, value)[()]
    if not isinstance(value, Real | Decimal) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None


def sample(name: str, values: object) -> Numbers:
    """One number a sample, as float64 of shape (n,). Raises BadInput for what is none."""
    import numpy as np

    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not (listed or is_array(values)):
        raise BadInput(f"{name}: a {type(values).__name__}, not one number a sample; give a list, an array or a tensor")
    try:
        plain = np.asarray([array(name, one) for one in cast(Sequence[Any], values)] if listed else array(name, values))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _no_sample(name, str(error).partition("\n")[0]) from None
    if plain.ndim != 1:
        raise BadInput(
            f"{name}: shape {plain.shape}, not one number a sample; values of one sample are no samples of their "
            "own: take their mean, or flatten them where they are independent"
        )
    if plain.dtype.kind == "O":  # which NumPy would read texts from, and take None for NaN
        return np.array([_read_one(name, index, one) for index, one in enumerate(plain)], dtype=np.float64)
    if (kind := plain.dtype.kind) not in "biuf":  # it would count dates, and drop a half of complex numbers
        raise _no_sample(
            name, {"c": "complex numbers", "M": "dates", "m": "durations", "V": "records"}.get(kind, "texts")
        )
    with np.errstate(over="ignore"):
        return plain.astype(np.float64)


def _read_one(name: str, index: int, value: Any) -> float:
    found = float(value) if isinstance(value, bool) else read(name, value)
    if found is None:
        raise _no_sample(name, f"[{index}] is {text(value)}")
    return found


def _no_sample(name: str, why: str) -> BadInput:
    return BadInput(f"{name}: not one number a sample ({why}); give a flat list, array or tensor")


class NotFinite(str):
    """Why a sample can answer nothing, where more samples would not help."""


def unsound(values: Numbers, what: str = "sample", *, may_be_constant: bool = False) -> str:
    """Why these can answer nothing; empty if they can."""
    import numpy as np

    if not len(values):
        return f"the {what} is empty"
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        said = f"{len(bad)} of {len(values)} in the {what} are not finite, the first at [{bad[0]}]: {values[bad[0]]}"
        return NotFinite(said)
    if not may_be_constant and bool((values == values[0]).all()):
        return f"the {what} is constant: all {len(values)} are {shown(float(values[0]))}"
    return ""


def shown(value: float) -> str:
    """A number as a message has it; `fields` have all of its digits."""
    return f"{value:.6g}"


def text(value: object) -> str:
    """Anything as a message has it: cut, and never an exception of its own."""
    numpy = sys.modules.get("numpy")
    try:
        plain = str(value) if numpy is not None and isinstance(value, numpy.generic) else repr(value)
    except Exception as error:  # an int of thousands of digits, lists of thousands of levels, a __repr__ that is wrong
        return f"a {type(value).__name__} that cannot be written ({type(error).__name__})"
    plain = plain.replace("\n", " ")  # of arrays, which take lines
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."
