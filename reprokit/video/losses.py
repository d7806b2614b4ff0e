"""What the reference model minimises: views agree, and their embeddings look like a standard normal.

Agreement alone has a trivial optimum, the constant embedding. The second term rules it out without negatives or a
teacher: a distribution is a standard normal if and only if all its one-dimensional projections are (Cramér and Wold
1936), and a projection is tested through its characteristic function.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

KNOTS, REACH = 17, 3.0  # of the quadrature on [0, 3]; past 3 the Gaussian weight is under 1.2%
PROJECTIONS = 64
SIGREG_WEIGHT = 0.02


def losses(embeddings: Tensor) -> dict[str, Tensor]:
    """All terms for [B, 1 + V, D], the global view first; `loss` is their weighted sum."""
    pred, sigreg = pred_loss(embeddings), sigreg_loss(embeddings.transpose(0, 1))
    return {"loss": pred + SIGREG_WEIGHT * sigreg, "pred_loss": pred, "sigreg_loss": sigreg}


def pred_loss(embeddings: Tensor) -> Tensor:
    """Mean squared distance of every view's embedding to the global one; [B, 1 + V, D], the global view first."""
    whole, views = embeddings[:, :1], embeddings[:, 1:]
    return (views - whole).square().mean()


def sigreg_loss(embeddings: Tensor, projections: int = PROJECTIONS) -> Tensor:
    """How far random projections of [..., N, D] are from a standard normal; N = 1 is enough.

    For each random unit vector a, with x_j the N projections of a group,

        N * integral over t of |1/N sum_j exp(i t x_j) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt,

    by the trapezoid rule on 17 knots in [0, 3] and doubled, since the integrand is even; then the mean over projections
    and groups. The test is that of T. W. Epps and L. B. Pulley, "A test for normality based on the empirical
    characteristic function", Biometrika 70 (1983); its use as a regulariser with random projections is from
    R. Balestriero and Y. LeCun, "LeJEPA", arXiv:2511.08544 (2025). The vectors come from torch's global generator.
    """
    knots = torch.linspace(0, REACH, KNOTS, device=embeddings.device)
    normal = torch.exp(-knots.square() / 2)  # the characteristic function of N(0, 1), and the weight
    vectors = normalize(torch.randn(embeddings.shape[-1], projections, device=embeddings.device), dim=0)
    angles = (embeddings @ vectors)[..., None] * knots
    gap = (angles.cos().mean(dim=-3) - normal).square() + angles.sin().mean(dim=-3).square()
    return embeddings.shape[-2] * 2 * torch.trapezoid(gap * normal, knots, dim=-1).mean()
