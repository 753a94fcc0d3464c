"""Value functions with tempered jumps: the symbol, limits, a manufactured V, the plane, error bars, simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid

from benchmarks.monte_carlo import monte_carlo_value
from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.errors import InputError
from levytorch.law.jumps import TemperedDensity, jumps_of, log_factor
from levytorch.policy.rewards import Manufactured
from levytorch.spaces.line_operator import given_outside, line_operators

D = torch.float64


def test_one_mode_in_closed_form():
    """r = cos x, constants without drift: V = cos x / (beta + D_o + D_f ((1 + lam^2)^alpha - lam^(2 alpha)))."""
    V = solve_value(Dynamics(0.0, 0.5, 2.0, 0.3, tempering=0.7), torch.cos, beta=0.4)
    x = torch.linspace(0, 6, 7, dtype=D)
    rate = 0.4 + 0.5 + 2.0 * ((1 + 0.49) ** 0.3 - 0.7**0.6)
    torch.testing.assert_close(V(x), torch.cos(x) / rate, rtol=1e-10, atol=1e-12)


def test_generator_is_that_of_the_simulated_steps():
    """E cos(X_t) under constants decays at the symbol's rate: 40,000 steps, 4.5 standard errors."""
    d = Dynamics(0.0, 0.2, 1.5, 0.6, tempering=0.8)
    x = simulate(d, 40_000, 1, 0.7, x0=0.0, seed=2).to_array()[:, 1]
    cosine = torch.cos(torch.as_tensor(x))
    want = math.exp(-0.7 * (0.2 + 1.5 * ((1 + 0.64) ** 0.6 - 0.8**1.2)))
    assert abs(float(cosine.mean()) - want) < 4.5 * float(cosine.std()) / 200


def test_variable_coefficients_are_simulated_in_substeps():
    """One step of a system that varies: the mean of dx is b dt at x0 to first order, reproducible, by seed."""
    d = Dynamics(torch.sin, 0.1, lambda x: 1 + 0.5 * torch.cos(x), 0.4, tempering=1.0)
    one, two, other = (simulate(d, 5000, 2, 0.01, x0=1.0, seed=s, substeps=4).to_array() for s in (1, 1, 2))
    assert (one == two).all()
    assert (one != other).any()
    dx = torch.as_tensor(one[:, 1] - one[:, 0])
    assert abs(float(dx.mean()) - 0.01 * math.sin(1.0)) < 4.5 * float(dx.std()) / math.sqrt(5000)


def test_manufactured_value():
    d = Dynamics(torch.sin, lambda x: 1 + 0.3 * torch.cos(x), lambda x: 1 + 0.5 * torch.sin(x), 0.4, tempering=0.6)
    V = solve_value(d, Manufactured(lambda x: torch.cos(2 * x), d, 0.5), beta=0.5)
    x = torch.linspace(0, 6, 9, dtype=D)
    torch.testing.assert_close(V(x), torch.cos(2 * x), rtol=1e-8, atol=1e-9)


def test_plane():
    """r = cos(x_1 + 2 x_2), constants: one mode with |k|^2 = 5."""
    d = Dynamics([0.0, 0.0], 0.5, 2.0, 0.3, dim=2, tempering=0.7)
    V = solve_value(d, lambda x: torch.cos(x[..., 0] + 2 * x[..., 1]), beta=0.4)
    rate = 0.4 + 0.5 * 5 + 2.0 * ((5 + 0.49) ** 0.3 - 0.7**0.6)
    at = torch.tensor([[0.3, 1.1], [2.0, 0.2]], dtype=D)
    torch.testing.assert_close(V(at), torch.cos(at[:, 0] + 2 * at[:, 1]) / rate, rtol=1e-7, atol=1e-9)


@pytest.mark.long
def test_error_bar_of_V_counts_the_tempering():
    """V.std from the delta method against V at parameters moved along each column of a root of the covariance."""
    data = simulate(Dynamics(1.0, 0.1, 1.0, 0.45, tempering=0.4), 500, 20, 0.25, seed=4).transitions()
    found = recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher")
    V = solve_value(found, torch.cos, beta=0.5)
    x = torch.tensor([0.5, 2.0], dtype=D)
    root, theta, total = torch.linalg.cholesky(found.covariance), found.theta, torch.zeros(2, dtype=D)
    for column in root.T:
        moved = []
        for sign in (1e-3, -1e-3):
            found.head.set_flat(theta + sign * column)
            moved.append(solve_value(found, torch.cos, beta=0.5)(x))
        total += ((moved[0] - moved[1]) / 2e-3) ** 2
    found.head.set_flat(theta)
    torch.testing.assert_close(V.std(x), total.sqrt(), rtol=1e-4, atol=1e-9)


def test_monte_carlo():
    """Constants, so that steps are exact: V of the paths within four standard errors of the solved one."""
    d, x = Dynamics(0.5, 0.3, 1.0, 0.4, tempering=1.0), torch.tensor([0.0, 2.0], dtype=D)
    found = monte_carlo_value(d, torch.cos, 2.0, x, n_paths=4000, dt=0.05, seed=1)
    want = solve_value(d, torch.cos, beta=2.0)(x)
    assert bool(((found.V - want).abs() < 4 * found.standard_error + 2e-4).all())  # of the trapezoidal rule


def test_dynamics_refuse_bad_tempering():
    for bad in (-1.0, math.nan, "much", None, [1.0, 2.0]):
        with pytest.raises(InputError, match="tempering"):
            Dynamics(0.0, 1.0, 1.0, 0.4, tempering=bad)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_generator_on_a_line(alpha):
    """cos everywhere, inside and outside of the window: the operator multiplies it by its symbol."""
    window, lam, k = (-3.0, 3.0), 1.5, 1.0
    a = torch.tensor(alpha, dtype=torch.float64)

    def wave(x):
        return torch.cos(k * x)

    symbol = (k * k + lam * lam) ** alpha - lam ** (2 * alpha)
    ops = line_operators(256, window, a, given_outside(wave, window, 2 * float(a)), jumps=jumps_of(lam))
    image = ops.fractional @ wave(ops.x) + ops.fractional_end
    off = (image - symbol * wave(ops.x))[ops.x.abs() < 2.9].abs().max() / symbol
    assert float(off) < 2e-6


def test_value_on_a_line():
    """Without an end it is that of stable jumps; the mass beyond a distance is the integral of the density."""
    system = {"b": lambda x: -x, "D_o": 0.2, "D_f": 1.0, "alpha": 0.6, "period": None}
    options = {"window": (-3.0, 3.0), "exterior": "absorb"}
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    V = [
        solve_value(Dynamics(**system, tempering=lam), lambda x: torch.exp(-x * x), 1.0, **options)(x)
        for lam in (0.0, 1e-6, 2.0)
    ]
    torch.testing.assert_close(V[1], V[0], rtol=1e-5, atol=1e-6)
    assert bool((V[2] > V[0]).all())  # fewer jumps leave the window
    jumps = TemperedDensity(0.6, 0.8)
    t = np.geomspace(0.5, 80.0, 200_001)
    density = t**-2.2 * np.exp(log_factor(0.8 * t, 0.6))
    assert jumps.beyond(np.array([0.5]))[0] == pytest.approx(trapezoid(density, t), rel=1e-7)


@pytest.mark.slow
def test_error_bar_on_a_line_counts_the_tempering():
    data = simulate(Dynamics(lambda x: -x, 0.3, 0.5, 0.5, period=None, tempering=1.0), 60, 60, 0.1, x0=0.0, seed=6)
    found = recover(data.transitions(), alpha=0.5, tempering="learn", n_basis=1, period=None, law="frozen")
    V = solve_value(found, lambda x: x * x, 1.0, window=(-1.5, 1.5), n_modes=64)
    theta, J = found.theta.clone(), []
    for i in range(len(theta)):
        moved = []
        for sign in (1, -1):
            found.head.set_flat(theta + sign * 1e-4 * torch.eye(len(theta), dtype=torch.float64)[i])
            moved.append(solve_value(found, lambda x: x * x, 1.0, window=(-1.5, 1.5), n_modes=64)(0.4))
        J.append(float(moved[0] - moved[1]) / 2e-4)
    found.head.set_flat(theta)
    slope = torch.tensor(J, dtype=torch.float64)
    assert float(V.std(0.4)) == pytest.approx(float((slope @ found.covariance @ slope).sqrt()), rel=1e-3)
