"""The compiled step in two and three dimensions against the composition around the quadrature, and the sampler."""

import math

import pytest
import torch

from levytorch.errors import InputError
from levytorch.law import LevyStep, log_density, score, tail_probability

D = torch.float64


def problem(dim, n=3000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 4, n, dtype=D).unsqueeze(-1)
    x = scale * torch.randn(n, dim, generator=generator, dtype=D)
    b = torch.randn(n, dim, generator=generator, dtype=D)
    D_o, D_f = (0.2 + 4 * torch.rand(n, generator=generator, dtype=D) for _ in range(2))
    dt = 0.01 + 0.1 * torch.rand(n, generator=generator, dtype=D)
    return x, b, D_o, D_f, dt


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("alpha", [0.3, 0.6])
def test_table_agrees_with_the_quadrature(dim, alpha):
    x, b, D_o, D_f, dt = problem(dim)
    fast = score(x, b, D_o, D_f, alpha, dt, dim=dim, method="table")
    slow = score(x, b, D_o, D_f, alpha, dt, dim=dim, method="contour")
    assert float((fast.log_p - slow.log_p).abs().max()) < 1e-8
    for name in ("b", "D_o", "D_f"):
        ours, theirs = getattr(fast, name), getattr(slow, name)
        assert ours.shape == theirs.shape
        assert float(((ours - theirs).abs() / (theirs.abs() + 1e-3 * theirs.abs().mean())).max()) < 1e-5


@pytest.mark.parametrize("dim", [2, 3])
def test_backward_and_second_derivatives(dim):
    x, b, D_o, D_f, dt = (t.requires_grad_() for t in problem(dim, 40, 1))
    fast, slow = (log_density(x, b, D_o, D_f, 0.4, dt, dim=dim, method=m) for m in ("table", "contour"))
    g = torch.linspace(-1, 1, 40, dtype=D)
    ours, theirs = (torch.autograd.grad((g * v).sum(), (x, b, D_o, D_f, dt), create_graph=True) for v in (fast, slow))
    for left, right in zip(ours, theirs):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)
    bent = [torch.autograd.grad(v[2].sum(), (b, D_f)) for v in (ours, theirs)]
    for left, right in zip(*bent):
        torch.testing.assert_close(left, right)


def test_shared_arguments_get_summed_gradients():
    x, *_ = problem(2, 50)
    b = torch.tensor([5.0, -3.0], dtype=D, requires_grad=True)
    D_o, dt = (torch.tensor(v, dtype=D, requires_grad=True) for v in (4.0, 0.025))
    found = [
        torch.autograd.grad(log_density(x, b, D_o, 3.0, 0.3, dt, dim=2, method=m).sum(), (b, D_o, dt))
        for m in ("table", "contour")
    ]
    for left, right in zip(*found):
        assert left.shape == right.shape
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


def test_what_no_table_holds_goes_to_the_quadrature():
    x = torch.tensor([[0.3, 0.4], [1e14, 0.0], [0.0, 0.0]], dtype=D)
    D_o = torch.tensor([0.0, 1.0, 1.0], dtype=D)  # no Gaussian part; far beyond; at the center
    for dt in (torch.tensor(0.1, dtype=D), torch.full((3,), 0.1, dtype=D)):
        fast, slow = (score(x, 0.0, D_o, 1.0, 0.4, dt, dim=2, method=m) for m in ("table", "contour"))
        torch.testing.assert_close(fast.log_p, slow.log_p, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(fast.b, slow.b, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(fast.D_f, slow.D_f, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("alpha", [0.3, 0.6])
def test_radius_of_the_sampler_has_the_tail_mass_of_the_law(dim, alpha):
    torch.manual_seed(dim)
    n = 200_000
    b, center = torch.arange(1.0, dim + 1, dtype=D), torch.full((dim,), 0.1, dtype=D)
    dx = LevyStep(b, 4.0, 3.0, alpha, 1 / 40, dim=dim).sample((n,))
    radius = (dx - center).norm(dim=-1)
    for threshold in (0.3, 0.8, 2.0, 8.0, 40.0):
        p = float(tail_probability(threshold, center, b, 4.0, 3.0, alpha, 1 / 40, dim=dim))
        found = float((radius > threshold).double().mean())
        assert abs(found - p) < 4 * math.sqrt(p * (1 - p) / n)


def test_bad_input_is_refused():
    x = torch.zeros(4, 2, dtype=D)
    with pytest.raises(InputError, match="components"):
        log_density(torch.zeros(4, 3, dtype=D), 0.0, 1.0, 1.0, 0.3, 0.1, dim=2, method="table")
    with pytest.raises(InputError, match="dim must be 1, 2 or 3"):
        log_density(torch.zeros(4, 4, dtype=D), 0.0, 1.0, 1.0, 0.3, 0.1, dim=4)
    with pytest.raises(InputError, match="D_f must be finite and > 0"):
        score(x, 0.0, 1.0, 0.0, 0.3, 0.1, dim=2, method="table")
    with pytest.raises(InputError, match="alpha must lie"):
        score(x, 0.0, 1.0, 1.0, 1.3, 0.1, dim=2, method="table")
    with pytest.raises(InputError, match="displacement must be finite"):
        log_density(x / 0, 0.0, 1.0, 1.0, 0.3, 0.1, dim=2, method="table")
    assert log_density(torch.zeros(0, 2, dtype=D), 0.0, 1.0, 1.0, 0.3, 0.1, dim=2, method="table").shape == (0,)
