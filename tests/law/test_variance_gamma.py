"""Variance gamma jumps: density, tail mass, samples and generator against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import gammaincc, gammaln, kve
from scipy.stats import kstest

from levytorch import Dynamics, InputError, log_density, simulate, solve_value, tail_probability, transition_density
from levytorch.law.jumps import Tempered
from levytorch.law.variance_gamma import VarianceGamma, gamma_variable


def log_bessel(y, B, decay):
    """log p without diffusion: a Bessel function K of order B - 1/2 (Madan, Carr and Chang 1998)."""
    z, nu = decay * abs(y), B - 0.5
    return math.log(decay / math.sqrt(math.pi)) - gammaln(B) + nu * math.log(z / 2) + math.log(kve(nu, z)) - z


@pytest.mark.parametrize("B", [0.01, 0.3, 1.0, 60.0])
@pytest.mark.parametrize("decay", [0.2, 2.0, 30.0])
def test_density_without_diffusion_is_a_bessel_function(B, decay):
    y = torch.tensor([1e-3, 0.5, -8.0], dtype=torch.float64)
    found = log_density(y + 0.7, 1.4, 0.0, 2 * B, VarianceGamma(decay), 0.5)
    expected = [log_bessel(float(v), B, decay) for v in y]
    keep = np.isfinite(expected)
    assert keep.sum() > 1
    np.testing.assert_allclose(found.numpy()[keep], np.array(expected)[keep], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("A", "B", "decay"), [(0.3, 0.02, 1.0), (1.0, 2.0, 0.5), (1e-3, 0.5, 5.0), (4.0, 50.0, 8.0)])
def test_density_and_tail_with_diffusion_invert_the_characteristic_function(A, B, decay):
    y = 1.3
    end = math.sqrt(40 / A)

    def phi(k):
        return math.exp(-A * k * k) * (1 + k * k / decay**2) ** -B

    options = {"limit": 2000, "epsabs": 1e-13, "epsrel": 1e-12}
    p = quad(lambda k: phi(k) * math.cos(k * y), 0, end, **options)[0] / math.pi
    inside = 2 / math.pi * quad(lambda k: phi(k) * y * np.sinc(k * y / math.pi), 0, end, **options)[0]
    assert float(log_density(y, 0.0, A, B, VarianceGamma(decay), 1.0)) == pytest.approx(math.log(p), abs=1e-10 / p)
    assert float(tail_probability(y, 0.0, 0.0, A, B, VarianceGamma(decay), 1.0)) == pytest.approx(1 - inside, abs=1e-10)


def test_tail_keeps_its_digits_far_out():
    """Without diffusion and for B = 1 the law is Laplace's."""
    u = torch.tensor([1.0, 30.0, 200.0], dtype=torch.float64)
    found = tail_probability(u, 0.0, 0.0, 0.0, 1.0, VarianceGamma(2.0), 1.0)
    torch.testing.assert_close(found, torch.exp(-2.0 * u), rtol=1e-11, atol=0)


def test_several_dimensions_and_derivatives():
    y = torch.tensor([0.4, -0.8], dtype=torch.float64)
    square, B, scale = 0.8, 0.9, 1.5**2

    def mixture(s):
        return math.exp(-scale * s - square / (4 * (0.2 + s))) * scale**B * s ** (B - 1) / (4 * math.pi * (0.2 + s))

    exact = quad(mixture, 0, 40, epsabs=1e-14, points=[0.01, 1.0], limit=500)[0] / math.gamma(B)
    density = log_density(y, torch.zeros(2), 0.2, B, VarianceGamma(1.5), 1.0, dim=2)
    assert float(density) == pytest.approx(math.log(exact), abs=1e-7)
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.5, 1.0, 0.3, 0.8, 0.2)]

    def log_p(x, b, D_o, D_f, dt):
        return log_density(x, b, D_o, D_f, VarianceGamma(1.5), dt)

    assert torch.autograd.gradcheck(log_p, inputs, atol=1e-7)
    assert torch.autograd.gradgradcheck(log_p, inputs, atol=1e-6)


def test_it_is_the_limit_of_tempered_jumps():
    y, alpha = torch.linspace(-3, 3, 7, dtype=torch.float64), 1e-3
    tempered = log_density(y, 0.0, 0.5, 0.7 / alpha, alpha, 1.0, tempering=1.2)
    torch.testing.assert_close(log_density(y, 0.0, 0.5, 0.7, VarianceGamma(1.2), 1.0), tempered, rtol=0, atol=5e-3)
    square = torch.tensor([0.0, 1e-3, 1.0, 40.0], dtype=torch.float64)
    at = torch.tensor(1e-6, dtype=torch.float64)
    limit = Tempered(1.2).symbol(square, at) / at
    torch.testing.assert_close(VarianceGamma(1.2).symbol(square, at), limit, rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [0.05, 1.0, 7.5])
def test_gamma_variables(shape):
    found = gamma_variable(torch.full((4000,), shape, dtype=torch.float64), torch.Generator().manual_seed(1))
    assert kstest(found.numpy(), lambda x: 1 - gammaincc(shape, x)).pvalue > 1e-3


def test_simulated_steps_have_the_characteristic_function():
    system = Dynamics(0.5, 0.2, 3.0, VarianceGamma(1.5), period=None, window=(-1.0, 1.0))
    dx = simulate(system, 40_000, 1, 0.25, x0=0.0, seed=3).transitions().dx.numpy()
    for k in (0.5, 2.0, 6.0):
        exact = np.exp(1j * k * 0.125 - 0.05 * k * k) * (1 + k * k / 2.25) ** -0.75
        assert abs(np.exp(1j * k * dx).mean() - exact) < 4 / math.sqrt(len(dx))


@pytest.mark.parametrize("dim", [1, 2])
def test_waves_are_eigenfunctions_on_circles(dim):
    system = Dynamics(0.0 if dim == 1 else [0.0, 0.0], 0.5, 1.2, VarianceGamma(0.8), dim=dim)

    def reward(x):
        return torch.cos(2 * x) if dim == 1 else torch.cos(2 * x[..., 0])

    V = solve_value(system, reward, 0.7)
    at = torch.tensor(0.3 if dim == 1 else [0.3, 1.0], dtype=torch.float64)
    psi = math.log1p(4 / 0.64)
    assert float(V(at)) == pytest.approx(math.cos(0.6) / (0.7 + 0.5 * 4 + 1.2 * psi), rel=1e-9)


def test_on_a_line_a_wave_beyond_the_window_gives_a_wave():
    """With V = cos outside of the window, V = cos solves the equation inside."""
    system = Dynamics(0.0, 0.4, 1.0, VarianceGamma(1.3), period=None, window=(-1.0, 2.0))
    psi = math.log1p(1 / 1.69)
    V = solve_value(system, lambda x: (0.5 + 0.4 + psi) * torch.cos(x), 0.5, n_modes=512, exterior=torch.cos)
    x = torch.linspace(-0.95, 1.95, 30, dtype=torch.float64)
    torch.testing.assert_close(V(x), torch.cos(x), rtol=0, atol=2e-6)


def test_a_product_with_a_line_agrees_with_the_line_alone():
    jumps = VarianceGamma(1.3)
    line = Dynamics(0.0, 0.4, 1.0, jumps, period=None, window=(-1.0, 2.0))
    both = Dynamics([0.0, 0.0], 0.4, 1.0, jumps, dim=2, period=[2 * math.pi, math.inf], window=[(0, 1), (-1.0, 2.0)])
    one = solve_value(line, torch.cos, 0.5)
    two = solve_value(both, lambda x: torch.cos(x[..., 1]), 0.5, n_modes=20)
    x = torch.linspace(-0.9, 1.9, 9, dtype=torch.float64)
    torch.testing.assert_close(two(torch.stack([x, x], -1)), one(x), rtol=0, atol=1e-4)


def test_refused():
    with pytest.raises(InputError, match="decay must be"):
        VarianceGamma(0.0)
    system = Dynamics(0.0, 0.4, 1.0, VarianceGamma(1.3))
    assert "VarianceGamma(decay=1.3)" in repr(system)
    with pytest.raises(InputError, match="stable or tempered for the exact law"):
        transition_density(system, 0.0, 0.1, 0.1)
