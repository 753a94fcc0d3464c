"""Tail mass, quantiles and the distribution object."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import levy_stable

from levytorch import LevyStep, cutting_threshold, log_density, tail_probability
from levytorch.errors import InputError
from levytorch.law.tails import radial_tail

D = torch.float64
STEP = dict(b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)


def test_mass_beyond_eight_of_the_constant_example():
    assert abs(tail_probability(8.0, 0.125, **STEP).item() - 0.0164) <= 5e-5


def test_tail_is_the_integral_of_the_density():
    nodes, weights = np.polynomial.legendre.leggauss(300)
    for center, threshold in ((0.125, 1.0), (0.8, 0.3), (-3.0, 2.5)):
        x = torch.tensor(center + threshold * nodes)
        inside = float((torch.exp(log_density(x, **STEP, method="contour")) * torch.tensor(weights)).sum()) * threshold
        assert math.isclose(tail_probability(threshold, center, **STEP).item(), 1 - inside, rel_tol=1e-9)


def test_tiny_masses_keep_their_digits():
    """Far out P(|Y| > u) ~ (2 / pi) Gamma(2 alpha) sin(pi alpha) B u^(-2 alpha), up to a relative B u^(-2 alpha)."""
    alpha, B = 0.7, 1e-20
    mass = tail_probability(1e9, 0.0, 0.0, 1e-3, B, alpha, 1.0).item()
    leading = 2 / math.pi * math.gamma(2 * alpha) * math.sin(math.pi * alpha) * B * 1e9 ** (-2 * alpha)
    assert math.isclose(mass, leading, rel_tol=1e-9)
    assert mass < 1e-32


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("dim", "offset"),
    [(1, 0.3), (1, 2.0), (2, 0.3), *(pytest.param(*v, marks=SLOW) for v in ((2, 2.0), (3, 0.3), (3, 2.0)))],
)
def test_gradcheck(dim, offset):
    center = (
        torch.full((dim,), offset, dtype=D, requires_grad=True)
        if dim > 1
        else torch.tensor(offset, dtype=D, requires_grad=True)
    )
    b = torch.ones(dim, dtype=D, requires_grad=True) if dim > 1 else torch.tensor(1.0, dtype=D, requires_grad=True)
    rest = [torch.tensor(v, dtype=D, requires_grad=True) for v in (4.0, 3.0, 0.3)]
    threshold = torch.tensor(1.1, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda c, m, b, A, B, a: tail_probability(c, m, b, A, B, a, 1 / 40, dim=dim), (threshold, center, b, *rest)
    )


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_sampler_against_tail_mass(dim):
    n = 200_000
    b = torch.tensor([5.0, -3.0, 1.0][:dim], dtype=D) if dim > 1 else 5.0
    step = LevyStep(b, 4.0, 3.0, 0.3, 1 / 40, dim=dim)
    x = step.sample((n,), generator=torch.Generator().manual_seed(dim))
    center = torch.tensor([0.3, -0.5, 0.2][:dim], dtype=D) if dim > 1 else 0.3
    deviation = (x - center).abs() if dim == 1 else (x - center).norm(dim=-1)
    for threshold in (0.05, 0.3, 0.8, 2.0, 8.0, 100.0, 1e4):
        p = tail_probability(threshold, center, b, 4.0, 3.0, 0.3, 1 / 40, dim=dim).item()
        share = float((deviation > threshold).double().mean())
        assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / n)


def test_sampler_has_the_characteristic_function():
    n, step = 200_000, LevyStep(**STEP)
    x = step.sample((n,), generator=torch.Generator().manual_seed(7))
    for k in (0.5, 2.0, 6.0):
        exact = np.exp(1j * k * 5 / 40 - (4 * k**2 + 3 * k**0.6) / 40)
        empirical = complex(torch.exp(1j * k * x).mean())
        assert abs(empirical - exact) <= 4 / math.sqrt(n)


def test_samples_follow_the_cdf():
    """Probability integral transform, Kolmogorov-Smirnov at the 0.1 % level."""
    n, step = 20_000, LevyStep(**STEP)
    u = step.cdf(step.sample((n,), generator=torch.Generator().manual_seed(1))).sort().values
    distance = float((u - torch.arange(1, n + 1, dtype=D) / n).abs().max())
    assert distance <= 1.95 / math.sqrt(n)


def test_cutting_threshold_of_appendix_a():
    assert math.isclose(cutting_threshold(0.5, 1.0, 1.0, 0.5).item(), 1.0, rel_tol=1e-12)  # Cauchy
    assert math.isclose(cutting_threshold(0.75, 1.0, 1.0).item(), levy_stable.ppf(0.99, 1.5, 0.0), rel_tol=1e-6)
    alpha = torch.tensor([0.05, 0.3, 0.97], dtype=D)
    for D_o in (None, 4.0):
        CT = cutting_threshold(alpha, 3.0, 1 / 40, 0.98, D_o=D_o)
        left = radial_tail(CT, torch.tensor((D_o or 0.0) / 40, dtype=D), torch.tensor(3 / 40, dtype=D), alpha)
        assert torch.allclose(left, torch.full((3,), 0.02, dtype=D), rtol=1e-10)
    # at small dt the reduced law falls inside the Gaussian, the full law does not
    width = math.sqrt(2 * 4 / 400)
    assert cutting_threshold(0.3, 3.0, 1 / 400).item() < width < cutting_threshold(0.3, 3.0, 1 / 400, D_o=4.0).item()


def test_distribution_shapes():
    step = LevyStep(torch.zeros(3, 1), 1.0, torch.ones(4), 0.3, 0.1)
    assert step.batch_shape == (3, 4)
    assert step.sample((5,)).shape == (5, 3, 4)
    assert step.log_prob(torch.zeros(5, 3, 4)).shape == (5, 3, 4)
    assert step.expand((2, 3, 4)).sample().shape == (2, 3, 4)
    vector = LevyStep(torch.zeros(2), torch.ones(3), 1.0, 0.3, 0.1, dim=2)
    assert vector.batch_shape == (3,)
    assert vector.event_shape == (2,)
    assert vector.log_prob(vector.sample((5,))).shape == (5, 3)
    assert torch.distributions.Independent(step, 1).log_prob(torch.zeros(3, 4)).shape == (3,)


def test_moments():
    assert math.isnan(LevyStep(**STEP).mean)
    assert LevyStep(1.0, 1.0, 1.0, 0.8, 0.5).mean == 0.5
    assert LevyStep(**STEP).variance == math.inf


def test_bad_input():
    with pytest.raises(InputError, match="threshold must be finite and >= 0"):
        tail_probability(-1.0, 0.0, **STEP)
    with pytest.raises(InputError, match=r"mass must lie in \(0, 1\)"):
        cutting_threshold(0.3, 1.0, 1.0, 1.0)
    with pytest.raises(InputError, match="D_f must be finite and > 0"):
        LevyStep(0.0, 1.0, -1.0, 0.3, 0.1)
    with pytest.raises(InputError, match="dim must be 1 for cdf"):
        LevyStep(torch.zeros(2), 1.0, 1.0, 0.3, 0.1, dim=2).cdf(torch.zeros(2))
    with pytest.raises(ValueError, match="must be finite"):
        LevyStep(**STEP).log_prob(torch.tensor(math.nan))
