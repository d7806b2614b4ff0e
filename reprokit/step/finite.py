"""Whether tensors hold only finite numbers, asked of all of them at once.

The largest absolute value is finite exactly if every value is: NaN and infinities propagate through a maximum, and
unlike a sum of squares it cannot overflow for finite values. One fused kernel a device and dtype, and one read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import hypot, isinf

import torch


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """True if no floating-point or complex tensor holds NaN or an infinity. Reads one value a device and dtype."""
    return all(bool(_largest(group).isfinite()) for group in _groups(tensors))


def norms(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """L2 norms, a device and dtype each, left where they are: finite exactly if each value is, but for squares that
    overflow."""
    return [_norm(group) for group in _groups(tensors)]


def norm(tensors: Iterable[torch.Tensor]) -> float:
    """L2 norm of all numbers together: finite exactly if each of them is. Reads one value a device and dtype."""
    groups = _groups(tensors)
    total = hypot(*(float(_norm(group)) for group in groups))
    if isinf(total) and all(bool(_largest(group).isfinite()) for group in groups):  # squares near 3e38 overflow
        wide = (torch.linalg.vector_norm(one, dtype=torch.float64) for group in groups for one in group)
        total = min(hypot(*map(float, wide)), sys.float_info.max)
    return total


def bad_numbers(tensor: torch.Tensor) -> bool:
    """Whether it holds NaN or plus infinity: minus infinity is what masks are made of."""
    if all_finite([tensor]):
        return False
    return not all_finite([part.clamp(min=0) for group in _groups([tensor]) for part in group])


def _groups(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Real numbers of one device and dtype each."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_sparse:
            tensor = tensor.coalesce().values()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.detach().resolve_conj())
        if tensor.is_floating_point() and tensor.itemsize == 1:
            tensor = tensor.detach().float()  # float8 has no kernels of its own for this
        if tensor.is_floating_point() and tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    return list(groups.values())


def count_bad(tensor: torch.Tensor) -> dict[str, int]:
    """How many NaN and how many infinities, of how many."""
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum()), "of": values.numel()}


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float32 if tensors[0].itemsize < 4 else tensors[0].dtype  # float16 overflows at 65,504
    dtype = None if tensors[0].dtype == wide else wide  # naming the same one costs twice the time on a CPU
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype)).square().sum().sqrt()


def _largest(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(torch._foreach_norm(tensors, float("inf"))).amax()
