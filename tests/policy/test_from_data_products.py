"""V from pairs on products of circles and lines and on three circles."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, recover, simulate, solve_value, value_from_data
from levytorch.policy.bases import PlaneBasis, ProductBasis
from levytorch.policy.from_data import METHODS, prepare
from levytorch.policy.lstd import lstd, moments
from levytorch.policy.model_step import Model
from levytorch.spaces import Circle, Product

TURN = 2 * math.pi
STRIP = Dynamics(
    lambda x: torch.stack([torch.cos(x[..., 1]), -x[..., 1]], dim=-1),
    lambda x: 0.5 + 0.2 * torch.cos(x[..., 0]),
    0.3,
    0.6,
    period=[TURN, float("inf")],
    window=[(0.0, TURN), (-1.5, 1.5)],
    dim=2,
)


def reward(x):
    return 2 + torch.cos(x[..., 0]) * x[..., 1].clamp(-1.5, 1.5)


@pytest.fixture(scope="module")
def V():
    return solve_value(STRIP, reward, 1.0)


@pytest.fixture(scope="module")
def states(V):
    return V.space.grid(11).reshape(-1, 2)


@pytest.fixture(scope="module")
def data():
    begin = torch.rand((1500, 2), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x0 = begin * torch.tensor([TURN, 3.0], dtype=torch.float64) - torch.tensor([0.0, 1.5], dtype=torch.float64)
    return simulate(STRIP, 1500, 40, 1 / 40, x0=x0, seed=3).transitions()


def test_functions_and_their_derivatives(V):
    basis = ProductBasis(7, V.space)
    x = V.space.grid(5).reshape(-1, 2)
    h = 1e-4
    for axis in (0, 1):
        step = h * torch.eye(2, dtype=torch.float64)[axis]
        order = tuple(int(i == axis) for i in range(2))
        slope = (basis.matrix(x + step) - basis.matrix(x - step)) / (2 * h)
        torch.testing.assert_close(basis.derivative(x, order), slope, rtol=1e-5, atol=1e-5)
        bent = (basis.matrix(x + step) - 2 * basis.matrix(x) + basis.matrix(x - step)) / h**2
        torch.testing.assert_close(basis.derivative(x, tuple(2 * k for k in order)), bent, rtol=1e-4, atol=1e-2)
    c = torch.linspace(-1, 1, basis.n_modes, dtype=torch.float64)
    torch.testing.assert_close(basis.project(basis.matrix(basis.points()) @ c), c)
    nodes = basis.value(c, 1.0)  # a polynomial through 48 nodes, and third derivatives of splines jump
    torch.testing.assert_close(nodes(x), basis.matrix(x) @ c, rtol=1e-3, atol=1e-3)


def test_a_model_in_these_functions_is_that_of_solve_value(V, states):
    for n_basis, close in ((7, 1e-2), (21, 1e-3)):  # what the functions leave out
        basis = ProductBasis(n_basis, V.space)
        found = basis.value(Model.of(STRIP, basis, basis.series(reward), 1.0).V, 1.0)
        assert float((found(states) - V(states)).abs().max()) < close * float(V(states).abs().max())


def test_lstd_solves_the_equations_of_all_pairs(data, V):
    inside = data.starting_in([(-math.inf, math.inf), (-1.5, 1.5)])
    basis, beta, dt = ProductBasis(9, V.space), 1.0, 1 / 40
    K = ProductBasis(5, V.space).n_modes
    x, y = inside.x, inside.x + inside.dx
    phi, later = basis.matrix(x)[:, :K].numpy(), basis.matrix(y)[:, :K].numpy()
    late = (-math.expm1(-beta * dt) / beta - dt * math.exp(-beta * dt)) / (beta * dt)
    early = -math.expm1(-beta * dt) / beta - late
    r = basis.series(reward)
    g = phi.T @ (basis.matrix(x) @ r * early + basis.matrix(y) @ r * late).numpy()
    expected = np.linalg.solve(phi.T @ (phi - math.exp(-beta * dt) * later), g)
    np.testing.assert_allclose(lstd(moments(inside, basis, K), r, beta).solve(0.0), expected, rtol=1e-7)


@pytest.mark.long
def test_every_method_on_a_circle_and_a_line(data, V, states):
    found = recover(data, alpha=0.6, n_basis=5, period=(TURN, None), law="frozen", window=[None, (-1.5, 1.5)])
    estimation = prepare(data, reward, 1.0, found, n_bootstrap=50)
    size = float(V(states).square().mean().sqrt())
    for method in METHODS:
        estimate = estimation.value(method)
        error = estimate(states) - V(states)
        assert float(error.square().mean().sqrt()) < 0.03 * size, method
        assert float((error / estimate.std(states)).square().mean().sqrt()) < 4.0, method  # its level is one number


@pytest.mark.long
def test_three_circles():
    system = Dynamics(lambda x: 0.5 * torch.sin(x), 0.6, 0.4, 0.7, period=TURN, dim=3)

    def r(x):
        return 1 + torch.cos(x[..., 0]) * torch.sin(x[..., 1]) + torch.cos(x[..., 2])

    V = solve_value(system, r, 1.0)
    x = V.space.grid(5).reshape(-1, 3)
    basis = PlaneBasis(9, Product((Circle(), Circle(), Circle())))
    model = basis.value(Model.of(system, basis, basis.series(r), 1.0).V, 1.0)
    assert float((model(x) - V(x)).abs().max()) < 2e-3 * float(V(x).abs().max())
    data = simulate(system, 600, 40, 1 / 40, seed=2).transitions()
    for method in ("lstd", "phibe", "brownian"):
        estimate = value_from_data(data, r, 1.0, method=method, n_bootstrap=50)
        error = estimate(x) - V(x)
        assert float((error / estimate.std(x)).square().mean().sqrt()) < 4.0, method


def test_more_coordinates_are_refused():
    system = Dynamics(torch.zeros(4), 1.0, 0.5, 0.6, period=TURN, dim=4)
    with pytest.raises(InputError, match="at most three coordinates here, found 4"):
        value_from_data(simulate(system, 3, 4, 0.1, seed=0).transitions(), 1.0, 1.0, method="lstd")
