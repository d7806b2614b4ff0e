from math import cos, exp, sin

import torch

from reprokit.video.losses import losses, pred_loss, sigreg_loss


def embeddings(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_pred_loss_by_hand():
    z = embeddings(3, 4, 5)
    total = sum((z[b, v, d] - z[b, 0, d]).item() ** 2 for b in range(3) for v in range(1, 4) for d in range(5))
    torch.testing.assert_close(pred_loss(z), torch.tensor(total / (3 * 3 * 5)))


def test_sigreg_loss_by_hand():
    z = embeddings(2, 6, 4)
    torch.manual_seed(3)
    found = sigreg_loss(z, projections=2)
    torch.manual_seed(3)
    vectors = torch.randn(4, 2)
    statistics = []
    for group in z:
        for vector in vectors.T:
            x = (group @ (vector / vector.norm())).tolist()
            curve = [_integrand(x, 3 * k / 16) for k in range(17)]
            statistics.append(6 * 2 * 3 / 16 * (sum(curve) - (curve[0] + curve[-1]) / 2))
    torch.testing.assert_close(found, torch.tensor(sum(statistics) / 4), rtol=1e-4, atol=1e-6)


def _integrand(x, t):
    real, imaginary = (sum(f(t * one) for one in x) / len(x) for f in (cos, sin))
    normal = exp(-t * t / 2)
    return ((real - normal) ** 2 + imaginary**2) * normal


def test_sigreg_loss_is_small_for_a_normal_and_large_for_a_collapse():
    torch.manual_seed(0)
    normal, collapsed, wide = embeddings(1, 2000, 8), torch.zeros(1, 2000, 8), 3 * embeddings(1, 2000, 8)
    assert sigreg_loss(normal) < 2 < 100 < min(sigreg_loss(collapsed), sigreg_loss(wide))


def test_one_sample_is_enough():
    z = embeddings(1, 2, 8).requires_grad_()
    terms = losses(z)
    terms["loss"].backward()
    assert terms["loss"].isfinite() and z.grad.isfinite().all()


def test_the_total_is_their_weighted_sum():
    terms = losses(embeddings(3, 4, 5))
    assert list(terms) == ["loss", "pred_loss", "sigreg_loss"]
    torch.testing.assert_close(terms["loss"], terms["pred_loss"] + 0.02 * terms["sigreg_loss"])


def test_projections_come_from_the_global_generator():
    z = embeddings(2, 4, 5)
    torch.manual_seed(1)
    first, second = sigreg_loss(z), sigreg_loss(z)
    torch.manual_seed(1)
    assert sigreg_loss(z) == first != second
