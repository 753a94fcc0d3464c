"""The contour quadrature against 20-digit values."""

import math

import numpy as np
import pytest
import torch
from scipy.special import voigt_profile
from scipy.stats import levy_stable

from levytorch.law import quadrature
from tests.law import second_opinion
from tests.law.cases import Cases, column
from tests.law.oracle import evaluate as oracle
from tests.law.oracle import random_cases


def test_log_density_and_first_derivatives():
    cases = Cases(1)
    out = quadrature.density(*cases.arguments, order=1)
    error = (out[0] - cases.log_p).abs()
    assert float(error.max()) <= 3e-11
    assert float(torch.quantile(error, 0.99)) <= 1e-12
    relative = (out[1:5] - cases.first).abs() / cases.scales()
    relative = relative[torch.isfinite(cases.first)]
    assert float(relative.max()) <= 1e-9


def test_second_derivatives():
    cases = Cases(1)
    out = quadrature.density(*cases.arguments, order=2)
    relative = (out[5:] - cases.second).abs() / cases.second_scales()
    assert float(relative[torch.isfinite(cases.second)].max()) <= 1e-6


def test_tail_mass_keeps_relative_accuracy():
    cases = Cases(1)
    mass = quadrature.tail(*cases.arguments, order=0)[0]
    assert float((torch.log(mass) - cases.log_tail).abs().max()) <= 1e-11
    assert float(cases.log_tail.min()) < -60  # the values do reach far into the tail


@pytest.mark.parametrize("seed", [0, 1])
def test_random_points_against_a_live_oracle(seed):
    for y, A, B, alpha in zip(*random_cases(3, seed=90 + seed)):
        exact = oracle(y, A, B, alpha, 1)
        one = [torch.tensor([float(v)], dtype=torch.float64) for v in (abs(y), A, B, alpha)]
        out = quadrature.density(*one, order=1)[:, 0]
        assert abs(float(out[0]) - float(exact.log_p)) <= 3e-11
        assert math.isclose(float(out[3]), float(exact.first[2]), rel_tol=1e-9, abs_tol=1e-9 / B)


def test_second_opinion():
    rows = second_opinion.read_table(1)
    y, A, B, alpha, log_p = (column(rows, k) for k in ("y", "A", "B", "alpha", "log_p"))
    out = quadrature.density(y, A, B, alpha, order=1)
    error = (out[0] - log_p).abs()
    assert float(error.max()) <= 3e-11
    assert float(torch.quantile(error, 0.9)) <= 1e-12
    L = torch.sqrt(y * y + 4 * A)
    for k, (key, scale) in enumerate(
        [("d_y", 1 / L), ("d_A", 1 / L**2), ("d_B", 1 / B), ("d_alpha", torch.ones_like(L))]
    ):
        exact = column(rows, key)
        assert float(((out[k + 1] - exact).abs() / torch.maximum(scale, exact.abs())).max()) <= 1e-9


def test_golden_value_without_diffusion():
    values = [torch.tensor([v], dtype=torch.float64) for v in (1.92, 0.0, 8 * 0.04, 3 / 23)]
    assert math.isclose(math.exp(quadrature.density(*values, order=0).item()), 0.01264457816564909890, rel_tol=1e-13)


@pytest.mark.parametrize("alpha", [0.04, 0.07, 0.12])
def test_wide_jumps_of_small_alpha(alpha):
    """Here exp(-B r^(2 alpha)) is tiny over the whole range of the Gaussian and must keep its digits."""
    for B in (20.0, 60.0, 150.0):
        one = [torch.tensor([v], dtype=torch.float64) for v in (1.0, 1.0, B, alpha)]
        exact = oracle(1.0, 1.0, B, alpha, 1)
        assert abs(float(quadrature.density(*one, order=0)) - float(exact.log_p)) <= 1e-11


def test_elementary_functions_of_the_kernels():
    from numba import njit

    from levytorch.law.vector_math import fast_exp, fast_exp_expm1, fast_log, fast_sincos

    @njit
    def run(x, small, out):
        for i in range(x.size):
            out[0, i] = fast_exp(x[i])
            out[1, i] = fast_exp_expm1(small[i])[1]
            out[2, i], out[3, i] = fast_sincos(x[i])
            out[4, i] = fast_log(abs(x[i]))

    rng = np.random.default_rng(0)
    x, small = rng.uniform(-600, 600, 20_000), rng.uniform(-3, 0.5, 20_000) ** 7 / 100
    out = np.empty((5, len(x)))
    run(x, small, out)
    assert np.abs(out[0] / np.exp(x) - 1).max() <= 4.5e-16
    assert np.abs(out[1] / np.expm1(small) - 1).max() <= 4.5e-16
    assert np.abs(out[2] - np.sin(x)).max() <= 2.3e-16
    assert np.abs(out[3] - np.cos(x)).max() <= 2.3e-16
    assert np.abs(out[4] - np.log(np.abs(x))).max() <= 9e-16


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.4995, 0.5005, 0.7, 0.97])
def test_continuous_across_the_seam_between_the_paths(alpha):
    """B L^(-2 alpha) = 1 divides the split from the unsplit path."""
    A, y = torch.tensor([0.3], dtype=torch.float64), torch.linspace(0.0, 40.0, 60, dtype=torch.float64)
    B = (y * y + 4 * A) ** alpha
    a = torch.tensor([alpha], dtype=torch.float64)
    below = quadrature.density(y, A, B * (1 - 1e-13), a, order=1)
    above = quadrature.density(y, A, B * (1 + 1e-13), a, order=1)
    assert float((below[0] - above[0]).abs().max()) <= 3e-11
    L = torch.sqrt(y * y + 4 * A)
    scale = torch.stack([1 / L, 1 / L**2, 1 / B, torch.ones_like(L)])
    assert float(((below[1:] - above[1:]).abs() / torch.maximum(scale, above[1:].abs())).max()) <= 1e-9


@pytest.mark.parametrize("alpha", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("A", [0.0, 0.2])
def test_integrates_to_one_with_its_own_tail(alpha, A):
    """Gauss-Legendre over [0, 4] plus the tail mass beyond, for a law whose center is resolved."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    v, w = torch.tensor(2 * (nodes + 1)), torch.tensor(2 * weights)
    y, jacobian = v**3 / 16, 3 * v**2 / 16  # clusters nodes at the cusp of the pure stable law
    one = [torch.tensor([x], dtype=torch.float64) for x in (A, 0.5, alpha)]
    p = torch.exp(quadrature.density(y, *one, order=0)[0])
    mass = quadrature.tail(torch.tensor([4.0], dtype=torch.float64), *one, order=0).item()
    assert math.isclose(2 * float((p * w * jacobian).sum()) + mass, 1.0, abs_tol=1e-9)


def test_voigt_profile():
    """alpha = 1/2: a Gaussian convolved with a Cauchy law."""
    y = torch.linspace(0, 50, 200, dtype=torch.float64)
    one = [torch.tensor([x], dtype=torch.float64) for x in (0.4, 0.7, 0.5)]
    exact = np.log(voigt_profile(y.numpy(), math.sqrt(0.8), 0.7))
    assert np.abs(quadrature.density(y, *one, order=0)[0].numpy() - exact).max() <= 1e-12


@pytest.mark.parametrize("alpha", [0.35, 0.6, 0.9])
def test_scipy_stable_law(alpha):
    y = np.array([0.0, 0.3, 1.0, 4.0])
    one = [torch.tensor([x], dtype=torch.float64) for x in (0.0, 1.0, alpha)]
    ours = quadrature.density(torch.tensor(y), *one, order=0)[0].exp().numpy()
    assert np.allclose(ours, levy_stable.pdf(y, 2 * alpha, 0.0), rtol=1e-7)


def test_at_the_origin_without_diffusion():
    for alpha in (0.05, 0.3, 0.97):
        one = [torch.tensor([x], dtype=torch.float64) for x in (0.0, 0.0, 2.0, alpha)]
        exact = math.lgamma(1 + 1 / (2 * alpha)) - math.log(math.pi) - math.log(2.0) / (2 * alpha)
        assert math.isclose(quadrature.density(*one, order=0).item(), exact, rel_tol=1e-12, abs_tol=1e-12)


def test_gaussian_limit():
    y = torch.linspace(0, 5, 50, dtype=torch.float64)
    one = [torch.tensor([x], dtype=torch.float64) for x in (0.5, 1e-300, 0.3)]
    exact = -(y**2) / 2 - 0.5 * math.log(2 * math.pi)
    assert float((quadrature.density(y, *one, order=0)[0] - exact).abs().max()) <= 1e-14
