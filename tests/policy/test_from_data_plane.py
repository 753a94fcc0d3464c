"""V of a state on a torus from pairs: against equations that are written out here, closed forms and `solve_value`."""

import math
import warnings

import numpy as np
import pytest
import torch

from levytorch import (
    Dynamics,
    InputError,
    LevyStep,
    Transitions,
    recover,
    simulate,
    solve_value,
    tail_probability,
    value_from_data,
)
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.errors import LevytorchWarning
from levytorch.policy.bases import PlaneBasis
from levytorch.policy.diffusions import displacements, fit_brownian, phibe
from levytorch.policy.estimation import DataValue
from levytorch.policy.lstd import lstd, moments
from levytorch.policy.model_step import Model, beyond
from levytorch.spaces import Circle, Product
from levytorch.training import Recovery

PLANE = Dynamics.named("plane", alpha=0.3)
CELL = Product((Circle(), Circle()))
GRID = CELL.grid(16, 0.25).reshape(-1, 2)


def reward(x):
    own = torch if isinstance(x, torch.Tensor) else np
    return own.cos(x[..., 0]) * own.sin(x[..., 1]) + 0.5 * own.cos(x[..., 1])


# 1, and sines and cosines of one coordinate: products whose harmonics add up to one at most; n_basis = 3
def functions(x: np.ndarray) -> np.ndarray:
    u, v = x.T
    return np.stack([np.ones_like(u), np.cos(v), np.sin(v), np.cos(u), np.sin(u)], axis=1)


def derivatives(x: np.ndarray) -> list[np.ndarray]:
    """Of all functions by u, v, uu, uv and vv."""
    u, v = x.T
    o = np.zeros_like(u)
    rows = [
        [o, o, o, -np.sin(u), np.cos(u)],
        [o, -np.sin(v), np.cos(v), o, o],
        [o, o, o, -np.cos(u), -np.sin(u)],
        [o, o, o, o, o],
        [o, -np.cos(v), -np.sin(v), o, o],
    ]
    return [np.stack(row, axis=1) for row in rows]


@pytest.fixture(scope="module")
def pairs() -> Transitions:
    return simulate(PLANE, 90, 20, 0.05, seed=3).transitions()


# -- the equations ----------------------------------------------------------------------------------------------------
def test_lstd_solves_the_equations_of_all_pairs(pairs):
    beta, dt, basis = 0.7, 0.05, PlaneBasis(7, CELL)
    x, y = pairs.x.numpy(), (pairs.x + pairs.dx).numpy()
    A = functions(x).T @ (functions(x) - math.exp(-beta * dt) * functions(y))
    late = (-math.expm1(-beta * dt) / beta - dt * math.exp(-beta * dt)) / (beta * dt)
    early = -math.expm1(-beta * dt) / beta - late
    g = functions(x).T @ (early * reward(x) + late * reward(y))
    equations = lstd(moments(pairs, basis, 5), basis.series(reward), beta)
    np.testing.assert_allclose(equations.solve(0.0), np.linalg.solve(A, g), rtol=1e-8)


@pytest.mark.parametrize("order", [1, 2])
def test_phibe_solves_its_equations(pairs, order):
    beta, CT, dt, basis = 0.7, 1.2, 0.05, PlaneBasis(7, CELL)
    x, dx = (v.numpy().reshape(90, 20, 2) for v in (pairs.x, pairs.dx))

    def products(step):
        step = np.where(np.linalg.norm(step, axis=-1, keepdims=True) <= CT, step, 0.0)
        u, v = step[..., 0], step[..., 1]
        return np.stack([u, v, u * u / 2, u * v, v * v / 2])

    of = products(dx)
    if order == 2:
        of, x = 2 * of[:, :, :-1] - products(dx[:, :-1] + dx[:, 1:]) / 2, x[:, :-1]
    x = x.reshape(-1, 2)
    A = beta * functions(x)
    for weight, slope in zip(of.reshape(5, -1) / dt, derivatives(x)):
        A = A - weight[:, None] * slope
    expected = np.linalg.solve(functions(x).T @ A, functions(x).T @ reward(x))
    equations = phibe(displacements(pairs, basis, 5, CT, order), basis.series(reward), beta)
    np.testing.assert_allclose(equations.solve(0.0), expected, rtol=1e-7)


def test_the_brownian_fit_is_the_maximum_of_the_likelihood_of_the_pairs():
    system = Dynamics(PLANE.b, PLANE.D_o, 0.0, 0.5, dim=2)
    data = simulate(system, 200, 40, 0.02, seed=0).transitions()
    found = fit_brownian(data, PlaneBasis(3, CELL), math.inf)
    theta = found.theta.clone().requires_grad_(True)
    phi = torch.from_numpy(functions(data.x.numpy()))
    b, D = phi @ theta[:10].reshape(2, 5).T, (phi @ theta[10:]).exp()
    log_p = -torch.log(4 * math.pi * D * 0.02) - (data.dx - b * 0.02).square().sum(1) / (4 * D * 0.02)
    (score,) = torch.autograd.grad(log_p.sum(), theta)
    std = found.covariance.diagonal().sqrt()
    # bins of x are a tenth of a unit here and move the maximum by this part of a standard error
    assert float((score * std).abs().max()) < 0.3
    fisher = 1 / torch.sqrt((phi.square() * (0.02 / (2 * D[:, None]))).sum(0)).detach()  # of b, all but correlations
    assert float((std[:5] / fisher).max()) < 1.6
    assert float((std[:5] / fisher).min()) > 0.6


# -- a model in these functions ---------------------------------------------------------------------------------------
def test_a_model_in_these_functions_is_that_of_solve_value():
    V = solve_value(PLANE, reward, 1.0)(GRID)
    for n_basis, close in ((11, 1e-2), (21, 1e-4), (25, 1e-5)):  # of what is left out the rest is that small
        basis = PlaneBasis(n_basis, CELL)
        r = basis.series(reward)
        model = Model.of(PLANE, basis, r, 1.0)
        assert float((basis.matrix(GRID) @ model.V - V).abs().max() / V.abs().max()) < close
    step = model.step(1e-4)  # what is expected after a step, of a small one to first order: V + dt L V
    assert torch.allclose((step.P @ model.V - model.V) / 1e-4, model.V - r, atol=1e-2)


def recovered() -> Recovery:
    head = FourierHead(3, dim=2, alpha=AlphaSpec("constant", 0.4))
    head.set_constants(0.3, 0.6, 0.4, 0.4)
    head.set_flat(head.flat() + 0.1 * torch.arange(head.flat().numel()).cos())
    return Recovery(head)


def test_a_model_moves_with_its_parameters():
    basis, h, found = PlaneBasis(11, CELL), 1e-5, recovered()
    r = basis.series(reward)
    model = Model.of(found, basis, r, 0.5)
    change = model.change()
    rule = change.rule(0.01, 0.002, model.step(0.01))
    theta = found.theta.clone()
    for k in (0, 3, 6, 9, 12, 18, len(theta) - 1):
        moved = []
        for sign in (1, -1):
            found.head.set_flat(theta + sign * h * torch.eye(len(theta), dtype=torch.float64)[k])
            other = Model.of(found, basis, r, 0.5)
            there = other.step(0.01)
            moved.append((other.V, there.reward - 0.002 * there.P @ r))
        V, part = ((up - down) / (2 * h) for up, down in zip(*moved))
        assert torch.allclose(change.V[:, k], V, atol=1e-6 * float(V.norm()) + 1e-9)
        assert torch.allclose(rule[:, k], part, atol=1e-6 * float(part.norm()) + 1e-9)


def test_what_lies_beyond_a_disc():
    """Against samples of the law, and its tail."""
    b, x, dt, radius = (1.0, -0.5), torch.tensor([[0.3, 1.0], [2.0, 5.0]], dtype=torch.float64), 0.05, 1.5
    basis, n = PlaneBasis(5, CELL), 400_000
    far, lost = beyond(Dynamics(b, 0.4, 0.6, 0.4, dim=2), basis, x, dt, radius)
    expected = float(tail_probability(radius, (0.0, 0.0), (0.0, 0.0), 0.4, 0.6, 0.4, dt, dim=2))
    assert lost.tolist() == pytest.approx([expected] * 2, rel=1e-6)
    torch.manual_seed(0)
    steps = LevyStep(b, 0.4, 0.6, 0.4, dt, dim=2).sample((n,))
    steps = steps[(steps - dt * torch.tensor(b)).norm(dim=1) > radius]
    for state, row in zip(x, far):
        drawn = basis.rows(state + steps)
        error = drawn.square().sum(1).sqrt() / n  # of a sum over jumps that come or do not
        assert bool(((drawn.sum(1) / n - row).abs() < 4.5 * error).all())


# -- known value functions --------------------------------------------------------------------------------------------
def test_constant_coefficients_have_a_closed_form():
    """r = cos(k . x): V is the real part of exp(i k . x) / (beta - i k . b + D_o |k|^2 + D_f |k|^(2 alpha))."""
    b, D_o, D_f, alpha, beta, k = torch.tensor([1.0, -0.5]).double(), 0.4, 0.6, 0.4, 0.8, torch.tensor([1.0, 2.0])
    cell = {"period": (2.0, 5.0), "origin": (-1.0, 3.0)}
    k = 2 * math.pi * k.double() / torch.tensor(cell["period"]).double()
    system = Dynamics(lambda x: b.expand(x.shape), D_o, D_f, alpha, dim=2, **cell)
    data = simulate(system, 600, 20, 0.02, seed=5).transitions()
    x = GRID / (2 * math.pi) * torch.tensor(cell["period"]).double() + torch.tensor(cell["origin"]).double()
    size = float(k @ k)
    gain = 1 / (beta - 1j * float(k @ b) + D_o * size + D_f * size**alpha)
    true = torch.real(torch.exp(1j * (x @ k)) * gain)
    for method in ("lstd", "hybrid", "corrected", "model"):
        V = value_from_data(data, lambda x: torch.cos(x @ k), beta, method=method, recovery=system)
        if method in ("model", "corrected"):
            assert torch.allclose(V(x), true, atol=1e-3 * float(true.abs().max()) if method == "model" else 0.02)
            continue
        assert float(V.std(x).max()) < 0.5 * float(true.abs().max())
        assert bool(((V(x) - true).abs() < 4.5 * V.std(x)).all())  # 256 points of some twenty independent numbers


@pytest.fixture(scope="module")
def fitted():
    data = simulate(PLANE, 1500, 20, 1 / 40, seed=1).transitions()
    return data, recover(data, alpha=0.3, n_basis=5, law="frozen")


@pytest.mark.long
@pytest.mark.parametrize("method", ["lstd", "hybrid", "model", "corrected"])
def test_v_of_jumps_in_a_plane_lies_within_the_errors(fitted, method):
    data, recovery = fitted
    V = value_from_data(data, reward, 1.0, method=method, recovery=recovery)
    true = solve_value(PLANE, reward, 1.0)(GRID)
    assert float(V.std(GRID).norm() / true.norm()) < 0.15
    assert bool(((V(GRID) - true).abs() < 4.5 * V.std(GRID)).all())


@pytest.mark.long
def test_lost_tails_bias_lstd_and_not_the_hybrid():
    b, D_o, D_f, alpha, beta = (1.0, -0.5), 0.4, 2.0, 0.4, 1.0
    whole = simulate(Dynamics(b, D_o, D_f, alpha, dim=2), 4000, 20, 0.05, seed=7).transitions()
    data = whole.censor(CT=2.0, TRT=8.0, drop_tail=0.5, seed=1)
    found = recover(data, alpha=alpha, n_basis=1, tail={"CT": 2.0, "TRT": 8.0}, law="frozen")
    gain = 1 / (beta - 1j * b[0] + D_o + D_f)  # r = cos u
    true = torch.real(torch.exp(1j * GRID[:, 0]) * gain)
    off = {}
    for method in ("lstd", "hybrid", "corrected"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LevytorchWarning)
            V = value_from_data(data, lambda x: torch.cos(x[..., 0]), beta, method=method, recovery=found, n_basis=3)
        off[method] = ((V(GRID) - true).abs() / V.std(GRID)).max()
        assert (method == "lstd") == ("Large jumps are missing" in V.note)
    assert float(off["lstd"]) > 6  # jumps are a part of 2 of the 3.4 of the gain, and half of the far ones are gone
    assert max(float(off["hybrid"]), float(off["corrected"])) < 4


@pytest.mark.long
@pytest.mark.parametrize("method", ["phibe", "brownian"])
def test_diffusions_are_what_phibe_and_a_brownian_fit_are_right_about(method):
    system = Dynamics(PLANE.b, PLANE.D_o, 0.0, 0.5, dim=2)
    data = simulate(system, 1000, 40, 0.01, seed=2, substeps=4).transitions()
    true = solve_value(system, reward, 1.0)(GRID)
    V = value_from_data(data, reward, 1.0, method=method, order=2)
    assert float(V.std(GRID).norm() / true.norm()) < 0.2
    assert bool(((V(GRID) - true).abs() < 4.5 * V.std(GRID)).all())


def test_a_wrong_model_is_corrected():
    data = simulate(PLANE, 4000, 20, 1 / 40, seed=4).transitions()
    wrong = Dynamics(lambda x: 0.3 * PLANE.b(x), PLANE.D_o, PLANE.D_f, 0.3, dim=2)
    true = solve_value(PLANE, reward, 1.0)(GRID)
    off = {m: value_from_data(data, reward, 1.0, method=m, recovery=wrong) for m in ("model", "corrected")}
    error = {m: float((V(GRID) - true).norm() / true.norm()) for m, V in off.items()}
    assert error["model"] > 0.3
    assert error["corrected"] < 0.35 * error["model"]
    assert off["corrected"].share[1] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lstd", "phibe"])
def test_errors_from_blocks_are_those_over_data_sets(method):
    found = [
        value_from_data(simulate(PLANE, 300, 20, 1 / 40, seed=s).transitions(), reward, 1.0, method=method, n_basis=3)
        for s in range(40)
    ]
    spread = torch.stack([V(GRID) for V in found]).std(0).square().mean().sqrt()
    told = torch.stack([V.std(GRID) for V in found]).square().mean().sqrt()
    assert 0.75 < float(told / spread) < 1.35  # 40 data sets, a few independent numbers each: 10 % and what blocks miss


# -- what comes back --------------------------------------------------------------------------------------------------
def test_what_comes_back_can_be_kept(pairs, tmp_path):
    V = value_from_data(pairs, reward, 1.0, method="lstd", n_basis=3, n_bootstrap=20)
    assert isinstance(V, DataValue)
    same = DataValue.load(V.save(tmp_path / "V.pt"))
    assert torch.equal(same(GRID), V(GRID))
    assert torch.equal(same.std(GRID), V.std(GRID))
    assert same.describe() == V.describe()
    assert V.gradient(GRID).shape == (256, 2)
    with pytest.raises(InputError, match="n_bootstrap=200"):
        value_from_data(pairs, reward, 1.0, method="lstd", n_basis=3, n_bootstrap=0).std(GRID)


def test_a_model_is_fitted_where_none_is_given(pairs):
    V = value_from_data(pairs, reward, 1.0, alpha=0.3, n_basis=3, law="frozen")
    assert V.method == "corrected"
    assert bool((V.std(GRID) > 0).all())


REFUSALS = [
    ({"period": (-1.0, 1.0)}, "must have a positive period"),
    ({"n_basis": 4}, "n_basis must be an odd integer"),
    ({"n_basis": 41}, "at most 21"),
    ({"reward": lambda x: x[..., 0]}, "in coordinate 0"),
    ({"recovery": Dynamics.named("variable")}, "as many coordinates as the transitions, 2, found 1"),
    ({"transitions": Transitions(np.zeros((4, 4)), np.ones((4, 4)), 0.1)}, "at most three coordinates here, found 4"),
    ({"method": "model"}, "alpha must be given"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSALS)
def test_what_cannot_be_done_is_refused_in_a_sentence(pairs, change, sentence):
    given = {"transitions": pairs, "reward": reward, "method": "lstd"} | change
    with pytest.raises(InputError, match=sentence):
        value_from_data(given.pop("transitions"), given.pop("reward"), 1.0, **given)
