"""Whether tensors hold only finite numbers, asked of all of them at once.

The largest absolute value is finite exactly if every value is: NaN and infinities propagate through a maximum, and
unlike a sum of squares it cannot overflow for finite values. One fused kernel a device and dtype, and one read.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """True if no floating-point or complex tensor holds NaN or an infinity. Reads one value a device and dtype."""
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
    return all(bool(_largest(group).isfinite()) for group in groups.values())


def count_bad(tensor: torch.Tensor) -> dict[str, int]:
    """How many NaN and how many infinities, of how many."""
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum()), "of": values.numel()}


def _largest(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(torch._foreach_norm(tensors, float("inf"))).amax()
