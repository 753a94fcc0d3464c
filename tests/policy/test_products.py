"""V on products with a line: operators in closed form, one-dimensional solutions, errors, Monte Carlo, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gamma, hyp1f1

from levytorch import Dynamics, Recovery, simulate, solve_value
from levytorch.coefficients import SplineHead
from levytorch.errors import InputError
from levytorch.law.jumps import Stable, jumps_of
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product
from levytorch.spaces.nodes import IntervalNodes
from levytorch.spaces.smoothing import SmoothingOperator

EXTERIORS = ("constant", "absorb")
Y = torch.linspace(-1.9, 1.9, 9, dtype=torch.float64)


@pytest.fixture(scope="module")
def wide() -> SmoothingOperator:
    return SmoothingOperator(Product((Interval(-6.0, 6.0),) * 2), 52, Stable(), "absorb")


@pytest.mark.parametrize("alpha", [0.15, 0.5, 0.85])
def test_fractional_laplacian_of_a_gaussian(wide, alpha):
    """(-Lap)^alpha exp(-|x|^2) = 4^alpha Gamma(alpha + 1) 1F1(alpha + 1; 1; -|x|^2)."""
    u, v = np.meshgrid(*(axis.x for axis in wide.axes), indexing="ij")
    square = u * u + v * v
    exact = 4**alpha * gamma(alpha + 1) * hyp1f1(alpha + 1, 1, -square)
    np.testing.assert_allclose(wide.fractional(np.exp(-square), alpha), exact, atol=1e-5)
    both = np.stack([np.exp(-square), 2 * np.exp(-square)])  # several fields, and an alpha per node
    found = wide.fractional(both, np.full(square.shape, alpha))
    np.testing.assert_allclose(found[1], 2 * exact, atol=2e-5)


@pytest.mark.parametrize(("alpha", "lam"), [(0.3, 0.0), (0.8, 0.0), (0.5, 1.0)])
def test_waves_on_circles_have_their_symbol(alpha, lam):
    operator = SmoothingOperator(Product((Circle(), Circle(3.0, 1.0))), 12, jumps_of(lam))
    u, v = np.meshgrid(*(axis.x for axis in operator.axes), indexing="ij")
    k = 2 * math.pi / 3
    wave = np.cos(2 * u + k * v)
    symbol = (lam**2 + 4 + k * k) ** alpha - lam ** (2 * alpha)
    np.testing.assert_allclose(operator.fractional(wave, alpha), symbol * wave, atol=1e-6)


def test_constants_stay_and_heat_leaves_through_absorbing_ends():
    axis = IntervalNodes(20, -1.0, 2.0)
    for t in (1e-8, 0.01, 1.0, 1e6):
        np.testing.assert_allclose(axis.heat(t).sum(1), 1.0, atol=1e-11)
    absorbing = IntervalNodes(24, -1.0, 1.0, "absorb")
    values = (1 - absorbing.x**2) ** 2
    nodes, weights = np.polynomial.legendre.leggauss(200)
    kernel = np.exp(-((absorbing.x[:, None] - nodes) ** 2) / 0.4) / math.sqrt(0.4 * math.pi)
    np.testing.assert_allclose(absorbing.heat(0.1) @ values, kernel @ (weights * (1 - nodes**2) ** 2), atol=1e-12)


def one(exterior, **more):
    line = Dynamics(lambda y: -y, lambda y: 0.5 + 0.2 * torch.cos(y), 0.4, 0.6, period=None, window=(-2.0, 2.0), **more)
    return solve_value(line, lambda y: torch.exp(-y * y) + 0.3 * y, 0.5, exterior=exterior)(Y)


def two(period, window, exterior, n_modes, **more):
    plane = Dynamics(
        lambda x: torch.stack([0 * x[..., 0], -x[..., 1]], -1), lambda x: 0.5 + 0.2 * torch.cos(x[..., 1]), 0.4, 0.6,
        period=period, window=window, dim=2, **more,
    )  # fmt: skip
    reward = lambda x: torch.exp(-(x[..., 1] ** 2)) + 0.3 * x[..., 1]  # noqa: E731
    return solve_value(plane, reward, 0.5, exterior=exterior, n_modes=n_modes)


@pytest.mark.parametrize("exterior", EXTERIORS)
@pytest.mark.parametrize("tempering", [0.0, 1.0])
def test_circle_times_line_agrees_with_the_line_alone(exterior, tempering):
    V = two([2 * math.pi, math.inf], [(0, 7), (-2.0, 2.0)], exterior, 31, tempering=tempering)
    expected = one(exterior, tempering=tempering)
    torch.testing.assert_close(V(torch.stack([Y, Y], -1)), expected, rtol=0, atol=3e-5)
    beyond = torch.tensor([[1.0, 2.5], [1.0, 2.0]], dtype=torch.float64)
    outside, end = V(beyond)
    assert float(outside) == (float(end) if exterior == "constant" else 0.0)


def test_line_times_line_agrees_with_the_line_alone():
    V = two(None, [(-1.0, 3.0), (-2.0, 2.0)], "constant", 31)
    torch.testing.assert_close(V(torch.stack([0.4 * Y + 1, Y], -1)), one("constant"), rtol=0, atol=3e-5)


def matrix(x):
    c, one = 0.4 * torch.tanh(x[..., 0]), torch.ones_like(x[..., 0])
    return torch.stack([one, c, c, 0.8 * one], -1).unflatten(-1, (2, 2))


def test_a_manufactured_solution_with_a_matrix(tmp_path):
    """V = exp(-|x|^2), which is nothing beyond the ends of (-6, 6)^2."""
    alpha, beta = 0.5, 1.0
    plane = Dynamics(lambda x: torch.sin(x), matrix, 0.7, alpha, period=None, dim=2, window=[(-6, 6), (-6, 6)])

    def V(x):
        return torch.exp(-(x * x).sum(-1))

    def reward(x):
        square = (x * x).sum(-1)
        bend = 4 * x[..., :, None] * x[..., None, :] - 2 * torch.eye(2, dtype=torch.float64)
        jumps = 4**alpha * gamma(alpha + 1) * torch.from_numpy(hyp1f1(alpha + 1, 1, -square.numpy()))
        local = -2 * (torch.sin(x) * x).sum(-1) + (matrix(x) * bend).sum((-1, -2))
        return beta * V(x) - local * V(x) + 0.7 * jumps

    found = solve_value(plane, reward, beta, exterior="absorb", n_modes=44)
    x = torch.randn((50, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(found(x), V(x), rtol=0, atol=2e-5)
    torch.testing.assert_close(found.gradient(x), -2 * x * V(x)[:, None], rtol=0, atol=2e-4)
    again = ValueFunction.load(found.save(tmp_path / "V.pt"))
    torch.testing.assert_close(again(x), found(x))
    assert again.exterior == "absorb"


@pytest.mark.long
def test_errors_are_derivatives_in_the_parameters():
    torch.manual_seed(1)
    head = SplineHead(4, [(-1.0, 1.0), (0.0, 3.0)], dim=2, noise="matrix")
    head.set_flat(head.flat() + 0.1 * torch.randn(head.flat().shape, dtype=torch.float64))
    P = head.flat().numel()
    x = torch.tensor([[0.2, 1.0], [-0.5, 2.5]], dtype=torch.float64)

    def V(recovery):
        return solve_value(recovery, lambda at: torch.cos(at[..., 0]) + at[..., 1], 1.0, n_modes=14)

    start, h, slopes = head.flat(), 1e-4, []
    for p in range(0, P, 3):
        ends = []
        for sign in (1, -1):
            moved = start.clone()
            moved[p] += sign * h
            head.set_flat(moved)
            ends.append(V(Recovery(head))(x))
        slopes.append((ends[0] - ends[1]) / (2 * h))
    head.set_flat(start)
    some = torch.zeros(P, dtype=torch.float64)
    some[::3] = 1.0
    std = V(Recovery(head, covariance=torch.diag(some))).std(x)
    torch.testing.assert_close(std, torch.stack(slopes, -1).norm(dim=-1), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": (0.0, 1.0)}, "window must be None for a coordinate with a period"),
        ({"window": [None, (1.0, 0.0)]}, "window must be \\(low, high\\)"),
        ({"window": 3.0}, "one entry per coordinate"),
        ({"exterior": "reflect"}, "exterior must be one of"),
        ({"exterior": torch.cos}, "exterior must be constant or absorb in 2 dimensions"),
        ({"n_modes": 2}, "n_modes"),
    ],
)
def test_refused(options, words):
    plane = Dynamics(0.0, 1.0, 1.0, 0.5, period=[1.0, math.inf], dim=2, window=[(0, 1), (0, 1)])
    with pytest.raises(InputError, match=words):
        solve_value(plane, 1.0, 1.0, **options)


def test_needs_diffusion():
    plane = Dynamics(0.0, 0.0, 1.0, 0.5, period=[1.0, math.inf], dim=2, window=[(0, 1), (0, 1)])
    with pytest.raises(InputError, match="D_o must be positive on a window"):
        solve_value(plane, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("period", [[2 * math.pi, math.inf], None])
def test_monte_carlo_of_absorbed_paths(period):
    """The mean discounted reward until a path leaves; Richardson's rule for looking at it at discrete times only."""
    plane = Dynamics(
        lambda x: torch.stack([torch.cos(x[..., 1]), -x[..., 1]], -1), matrix, 0.5, 0.6, period=period, dim=2,
        window=[(-2.0, 2.0), (-1.5, 1.5)],
    )  # fmt: skip
    reward = lambda x: 2 + torch.cos(x[..., 0]) * x[..., 1]  # noqa: E731
    V, beta, x0, horizon = solve_value(plane, reward, 1.0, exterior="absorb"), 1.0, [0.5, 0.2], 8.0
    means, errors = [], []
    for steps in (800, 3200):
        x = torch.from_numpy(simulate(plane, 30_000, steps, horizon / steps, x0=x0, seed=2, substeps=1).to_array())
        out = x[..., 1].abs() > 1.5
        if period is None:
            out |= x[..., 0].abs() > 2.0
        inside = out.cumsum(1) == 0
        t = torch.linspace(0, horizon, steps + 1, dtype=torch.float64)
        paths = (torch.exp(-beta * t) * reward(x) * inside).sum(1) * (horizon / steps)
        means.append(float(paths.mean()))
        errors.append(float(paths.std()) / math.sqrt(len(paths)))
    mean, error = 2 * means[1] - means[0], math.hypot(2 * errors[1], errors[0])
    assert abs(mean - float(V(x0))) < 3 * error + 0.003 * mean
