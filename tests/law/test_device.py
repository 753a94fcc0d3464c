"""The law on devices without compiled kernels, run on the CPU here, against the compiled laws."""

from __future__ import annotations

import pytest
import torch

from levytorch import log_density
from levytorch.law import mixture_device
from levytorch.law.arguments import Step


def samples(n, dim, low, high, one_alpha=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def between(a, b, *shape):
        return a + (b - a) * torch.rand(shape or (n,), generator=generator, dtype=torch.float64)

    shape = (n,) if dim == 1 else (n, dim)
    dx = 10 ** between(-4.0, 6.0) * torch.where(between(-1.0, 1.0) < 0, -1.0, 1.0)
    dx = dx if dim == 1 else dx.unsqueeze(-1) * between(-1.0, 1.0, *shape)
    alpha = between(low, high, 1)[0] if one_alpha else between(low, high)
    D_o, D_f, dt = (10 ** between(a, b) for a, b in ((-2.0, 1.0), (-3.0, 1.0), (-3.0, -1.0)))
    return Step(dx, between(-1.0, 1.0, *shape), D_o, D_f, alpha, dt)


def same(step, lam, dim, matrix, tolerance):
    leaves = [t.clone().requires_grad_() for t in (*step[:6], *([] if lam is None else [lam]))]
    found = mixture_device.log_density(Step(*leaves[: 6 if lam is None else 7]), dim, matrix)
    others = [t.clone().requires_grad_() for t in leaves]
    want = log_density(*others[:6], dim=dim, tempering=0.0 if lam is None else others[6])
    torch.testing.assert_close(found, want, rtol=tolerance, atol=tolerance)
    slopes = (torch.autograd.grad(v.sum(), t) for v, t in ((found, leaves), (want, others)))
    for mine, other in zip(*slopes):
        # of the scale of each argument, where the derivative itself may vanish
        torch.testing.assert_close(
            mine, other, rtol=100 * tolerance, atol=100 * tolerance * float(other.abs().median())
        )


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.95)])
def test_it_is_the_contour_of_a_line(low, high):
    same(samples(200, 1, low, high), None, 1, False, 1e-9)
    same(samples(200, 1, low, high, one_alpha=True, seed=1), None, 1, False, 1e-9)


def test_small_alpha_is_good_to_five_digits():
    same(samples(300, 1, 0.05, 0.1), None, 1, False, 1e-5)


def test_it_is_the_mixture_of_the_plane():
    step = samples(200, 2, 0.1, 0.9)
    same(step, None, 2, False, 1e-9)
    root = torch.randn((200, 2, 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix = root @ root.transpose(1, 2) + 0.1 * torch.eye(2, dtype=torch.float64)
    D_o = step.D_o[:, None, None] * matrix
    same(step._replace(D_o=D_o), None, 2, True, 1e-9)


def test_tempered_jumps():
    step = samples(200, 1, 0.2, 0.9)
    lam = 0.01 + torch.rand(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    step = step._replace(displacement=step.displacement.clamp(-20.0, 20.0))
    same(step, lam, 1, False, 1e-8)


def test_shapes_are_broadcast_and_empty_batches_stay_empty():
    step = Step(*(torch.tensor(v, dtype=torch.float64) for v in (0.5, 5.0, 4.0, 3.0, 0.3, 1 / 40)))
    step = step._replace(displacement=torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3))
    torch.testing.assert_close(mixture_device.log_density(step, 1, False), log_density(*step[:6]))
    empty = step._replace(displacement=torch.empty(0, dtype=torch.float64))
    assert mixture_device.log_density(empty, 1, False).shape == (0,)
