"""V of a state on a line from pairs: against closed forms, `solve_value` and differences."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Trajectories, simulate, solve_value, value_from_data
from levytorch.coefficients import AlphaSpec, SplineHead
from levytorch.policy.bases import LineBasis
from levytorch.policy.estimation import DataValue
from levytorch.policy.model_step import Model
from levytorch.training import Recovery

WELL = Dynamics.named("double_well")
WINDOW = (-2.5, 2.0)


def test_functions_of_the_line():
    basis = LineBasis(12, WINDOW)
    x = torch.linspace(-2.4, 1.9, 40, dtype=torch.float64)
    for f in (torch.ones_like, lambda s: s - s**3):
        assert torch.allclose(basis.matrix(x) @ basis.series(f), f(x), atol=1e-10)
    h = 1e-5
    before, here, after = (basis.matrix(x + step) for step in (-h, 0.0, h))
    assert torch.allclose(basis.derivative(x, (1,)), (after - before) / (2 * h), atol=1e-6)
    assert torch.allclose(basis.derivative(x, (2,)), (after - 2 * here + before) / h**2, atol=1e-3)
    ends, beyond = basis.matrix(torch.tensor(WINDOW).double()), torch.tensor([-50.0, 1e6]).double()
    assert torch.equal(basis.matrix(beyond), ends)
    assert not basis.derivative(beyond, (1,)).any()


def test_a_model_in_these_functions_is_that_of_solve_value():
    basis = LineBasis(65, WINDOW)
    r = basis.series(torch.cos)
    model = Model.of(WELL, basis, r, 0.5)
    V = solve_value(WELL, torch.cos, 0.5, window=WINDOW)
    x = torch.linspace(*WINDOW, 50, dtype=torch.float64)
    assert torch.allclose(basis.matrix(x) @ model.V, V(x), atol=2e-3 * float(V(x).abs().max()))
    # what is expected after a step, of a small one to first order: V + dt L V, and L V = beta V - r
    step = model.step(1e-4)
    assert torch.allclose((step.P @ model.V - model.V) / 1e-4, 0.5 * model.V - r, atol=1e-2)


def recovered(theta=None) -> Recovery:
    head = SplineHead(5, WINDOW, alpha=AlphaSpec("constant", 0.7))
    head.set_constants(0.3, 0.6, 0.4, 0.7)
    flat = head.flat() if theta is None else theta
    if theta is None:
        flat = flat + 0.1 * torch.arange(len(flat)).cos()
    head.set_flat(flat)
    return Recovery(head, metrics={"x_min": WINDOW[0], "x_max": WINDOW[1]})


def test_a_model_moves_with_its_parameters():
    basis = LineBasis(21, WINDOW)
    r = basis.series(torch.cos)
    found = recovered()
    model = Model.of(found, basis, r, 0.5)
    change, step = model.change(), model.step(0.01)
    rule = change.rule(0.01, 0.002, step)
    h = 1e-3  # next to the ends second derivatives have 1e-9 or so of rounding, after the projection
    for k in (0, 3, 6, 11, 15):
        moved = []
        for sign in (1, -1):
            theta = found.theta.clone()
            theta[k] += sign * h
            other = Model.of(recovered(theta), basis, r, 0.5)
            there = other.step(0.01)
            moved.append((other.V, there.reward - 0.002 * there.P @ r))
        V, part = ((up - down) / (2 * h) for up, down in zip(*moved))
        size = float(change.V[:, k].norm())
        assert torch.allclose(change.V[:, k], V, atol=1e-4 * size + 1e-9)
        assert torch.allclose(rule[:, k], part, atol=1e-4 * float(rule[:, k].norm()) + 1e-9)


@pytest.fixture(scope="module")
def diffusion():
    """dX = -X dt + dW, drawn from its own law: V of r = x is x / (beta + 1)."""
    rng, dt = np.random.default_rng(1), 0.02
    x = np.empty((400, 51))
    x[:, 0] = rng.normal(0, math.sqrt(0.5), 400)
    for k in range(50):
        x[:, k + 1] = x[:, k] * math.exp(-dt) + math.sqrt(-math.expm1(-2 * dt) / 2) * rng.standard_normal(400)
    return Trajectories.from_arrays(x, dt=dt).transitions()


@pytest.mark.parametrize("method", ["lstd", "phibe", "brownian"])
def test_a_diffusion_on_a_line(diffusion, method):
    V = value_from_data(diffusion, lambda x: x, 1.0, method=method, period=None, n_basis=7)
    x = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)
    assert float(V.std(x).max()) < 0.15
    assert bool(((V(x) - x / 2).abs() < 4 * V.std(x)).all())


@pytest.fixture(scope="module")
def well():
    return simulate(WELL, 600, 40, 1 / 50, seed=2, x0=np.random.default_rng(0).uniform(-1.5, 1.5, 600)).transitions()


@pytest.mark.parametrize("method", ["lstd", "hybrid", "corrected", "model"])
def test_jumps_on_a_line(well, method):
    V = value_from_data(well, torch.cos, 1.0, method=method, recovery=WELL, n_basis=9)
    true = solve_value(WELL, torch.cos, 1.0, window=V.window)
    x = torch.linspace(-1.2, 1.2, 7, dtype=torch.float64)
    if method == "model":
        assert torch.allclose(V(x), true(x), atol=1e-9)
        return
    assert float(V.std(x).max()) < 0.1
    # of a model that is right and known nothing need be kept of the correction: then V is the model's
    assert bool(((V(x) - true(x)).abs() < 4 * V.std(x) + 1e-5).all())


def test_what_comes_back_on_a_line_can_be_kept(well, tmp_path):
    V = value_from_data(well, torch.cos, 1.0, method="lstd", period=None, n_basis=7, n_bootstrap=20)
    assert isinstance(V, DataValue)
    same = DataValue.load(V.save(tmp_path / "V.pt"))
    x = torch.linspace(-3, 3, 9, dtype=torch.float64)
    assert torch.equal(same(x), V(x))
    assert torch.equal(same.std(x), V.std(x))
    assert same.describe() == V.describe()
    assert "LSTD (no model): V from" in V.describe()
    assert float(V(-1e6)) == pytest.approx(float(V(V.window[0])))


def test_refusals_on_a_line(well):
    lost = Recovery(recovered().head, metrics={"x_min": -2.0, "x_max": 2.0, "tail_method": "tcf", "CT": 1.0})
    with pytest.raises(InputError, match="must be complete for hybrid and corrected"):
        value_from_data(well, torch.cos, 1.0, method="hybrid", recovery=lost)
    with pytest.raises(InputError, match="state on a line where period is None"):
        value_from_data(well, torch.cos, 1.0, period=None, recovery=Dynamics.named("constant"))
    with pytest.raises(InputError, match="at least 4, found 3"):
        value_from_data(well, torch.cos, 1.0, period=None, method="lstd", n_basis=3)
    with pytest.raises(InputError, match="alpha must be given"):
        value_from_data(well, torch.cos, 1.0, period=None)
