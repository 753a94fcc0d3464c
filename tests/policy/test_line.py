"""Value functions on a line, against the closed forms of Getoor and of Blumenthal, Getoor and Ray, and against ODEs."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import betainc, gamma

from benchmarks import line_systems
from benchmarks.line_systems import resolvent_on_line
from benchmarks.monte_carlo import monte_carlo_on_line
from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.errors import InputError
from levytorch.law.jumps import jumps_of, normalisation
from levytorch.policy import ValueFunction
from levytorch.spaces.line_operator import Exterior, given_outside, inner_nodes, line_operators

X = torch.linspace(-0.9, 0.9, 37, dtype=torch.float64)
WELL = Dynamics(lambda x: x - x**3, lambda x: 0.5 * (2 + 2 * x + x * x), lambda x: (1 + x * x / 2) ** -1.5, 0.75, None)


def stable(alpha, D_f=1.0):
    return Dynamics(0.0, 0.0, D_f, alpha, period=None)


def exit_time(alpha, x):
    """Getoor 1961: mean exit time of the symmetric 2 alpha-stable process from (-1, 1)."""
    return math.gamma(0.5) / (4**alpha * gamma(1 + alpha) * gamma(0.5 + alpha)) * (1 - x**2) ** alpha


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.75, 0.95])
def test_exit_times_and_probabilities_with_their_order(alpha):
    truth = exit_time(alpha, X), torch.from_numpy(betainc(alpha, alpha, ((1 + X) / 2).numpy()))
    errors = []
    for n in (32, 64, 128):
        time = solve_value(stable(alpha), 1.0, 1e-12, window=(-1, 1), exterior="absorb", n_modes=n)
        above = solve_value(stable(alpha), 0.0, 1e-12, window=(-1, 1), exterior=lambda y: 1.0 * (y > 0), n_modes=n)
        errors.append([float((V(X) / exact - 1).abs().max()) for V, exact in zip((time, above), truth)])
    assert max(errors[1]) < (1e-3 if alpha < 0.9 else 2e-3)
    assert max(errors[2]) < (5e-6 if alpha < 0.9 else 2e-5)
    assert np.log2(np.array(errors[0]) / np.array(errors[1])).min() > 5  # the order, from halving the spacing


def test_windows_scale_and_move():
    V = solve_value(stable(0.6, 2.0), 1.0, 1e-12, window=(3, 8), exterior="absorb")
    expected = 2.5**1.2 / 2.0 * exit_time(0.6, X)
    assert torch.allclose(V(5.5 + 2.5 * X), expected, rtol=1e-5)
    assert V.converged
    assert float(V(2.0)) == float(V(9.0)) == 0.0


def test_without_jumps_it_is_the_differential_equation():
    x = X
    plain = Dynamics(0.0, 1.0, 0.0, 0.5, period=None)
    absorbed = solve_value(plain, 1.0, 1.0, window=(-1, 1), exterior="absorb")
    assert torch.allclose(absorbed(x), 1 - torch.cosh(x) / math.cosh(1), atol=1e-6)
    reflected = solve_value(plain, lambda y: torch.cos(math.pi * y), 1.0, window=(-1, 1))
    assert torch.allclose(reflected(x), torch.cos(math.pi * x) / (1 + math.pi**2), atol=1e-6)
    slope = -math.pi * torch.sin(math.pi * x) / (1 + math.pi**2)
    assert torch.allclose(reflected.derivative(x), slope, atol=1e-5)
    assert torch.allclose(reflected.derivative(x, 2), -(math.pi**2) * reflected(x), atol=1e-3)
    paid = solve_value(
        plain, 0.0, 1.0, window=(-1, 1), exterior=lambda y: torch.exp(-y.abs() + 1) * (2 + torch.sign(y))
    )
    even, odd = torch.cosh(x) / math.cosh(1), torch.sinh(x) / math.sinh(1)
    assert torch.allclose(paid(x), 2 * even + odd, atol=1e-6)  # 3 at the high end, 1 at the low end


def test_what_is_given_outside_enters_by_its_integral():
    alpha, window = torch.tensor(0.35, dtype=torch.float64), (-1.0, 1.0)
    exterior = given_outside(lambda y: torch.exp(-((y - 3) ** 2)), window, 2 * float(alpha.min()))
    absorbed, given = (
        line_operators(64, window, alpha, outside, (True, True), jumps=jumps_of(0.0))
        for outside in (Exterior(False), exterior)
    )
    c = float(normalisation(np.array([0.35]))[0])
    for i in (5, 20, 31, 45, 60):
        at = float(given.x[i])
        far = quad(lambda y, at=at: math.exp(-((y - 3) ** 2)) * abs(at - y) ** -1.7, 1, 9, points=[1.01, 3], limit=400)[
            0
        ]
        far += quad(lambda y, at=at: math.exp(-((y - 3) ** 2)) * abs(at - y) ** -1.7, -4, -1, limit=400)[0]
        assert float(absorbed.fractional_end[i] - given.fractional_end[i]) == pytest.approx(c * far, rel=1e-6)


def test_constants_are_preserved_and_bounded():
    V = solve_value(WELL, 3.0, 0.5, window=(-4, 4))
    assert torch.allclose(V(4 * X), torch.full_like(X, 6.0), rtol=1e-6)
    assert float(V(100.0)) == pytest.approx(6.0)
    paid = solve_value(WELL, 1.0, 0.5, window=(-4, 4), exterior=lambda y: torch.full_like(y, 2.0))
    assert torch.allclose(paid(4 * X), torch.full_like(X, 2.0), rtol=1e-6)


def test_alpha_may_depend_on_x():
    varying = Dynamics(0.0, 0.5, 1.0, lambda x: 0.5 + 0 * x, period=None)
    same = Dynamics(0.0, 0.5, 1.0, 0.5, period=None)
    one, other = (solve_value(d, torch.cos, 1.0, window=(-2, 1), n_modes=100) for d in (varying, same))
    assert torch.allclose(one.values, other.values, atol=1e-12)


def test_many_systems_at_once_are_single_ones():
    n, window, own = 65, (-4.0, 4.0), (WELL.b, WELL.D_o, WELL.D_f)
    x = inner_nodes(n, window)
    factors = torch.tensor([[1.0], [1.3]], dtype=torch.float64)
    many = resolvent_on_line(n, window, *(c(x) * factors for c in own), 0.75, torch.cos(x), 1.0)
    for found, factor in zip(many, factors):
        scaled = Dynamics(*(lambda x, c=c, f=factor: f * c(x) for c in own), 0.75, None)
        V = solve_value(scaled, torch.cos, 1.0, window=window, n_modes=n)
        assert torch.allclose(found, V.values[1:-1], rtol=1e-6)


@pytest.mark.parametrize("exterior", [None, Exterior(False)])
def test_systems_around_their_mean_are_single_ones(monkeypatch, exterior):
    n, window = 65, (-3.0, 3.0)
    x, generator = inner_nodes(n, window), torch.Generator().manual_seed(1)
    factors = 1 + 0.3 * torch.rand((40, 3, 1), generator=generator, dtype=torch.float64)
    factors[7] = torch.tensor([[0.0], [30.0], [9.0]])  # far from all others: does not contract
    own = [c(x) * factors[:, k] for k, c in enumerate((WELL.b, WELL.D_o, WELL.D_f))]
    together = resolvent_on_line(n, window, *own, 0.75, torch.cos(x), 1.0, exterior)
    monkeypatch.setattr(line_systems, "_FEW", 10**9)
    single = resolvent_on_line(n, window, *own, 0.75, torch.cos(x), 1.0, exterior)
    assert float(((together - single).abs().amax(1) / single.abs().amax(1)).max()) < 1e-7


@pytest.mark.parametrize("exterior", [None, "absorb"])
def test_std_is_the_spread_of_v_over_perturbed_parameters(exterior):
    data = simulate(Dynamics(0.0, 0.5, 0.5, 0.6, None), 100, 20, 0.01, x0=0.0, seed=3).transitions()
    window = {"name": "spline", "window": (-2, 2)}
    found = recover(data, alpha="learn", n_basis=1, coefficients=window, engine="fisher")
    options = {"window": (-1, 1), "exterior": exterior, "n_modes": 64}
    V = solve_value(found, torch.cos, 1.0, **options)
    theta, S = found.theta.clone(), torch.linalg.cholesky(found.covariance + 1e-14 * torch.eye(len(found.theta)))
    moves = []
    for direction in S.T:
        sides = []
        for sign in (1e-3, -1e-3):
            found.head.set_flat(theta + sign * direction)
            sides.append(solve_value(found, torch.cos, 1.0, **options)(X))
        moves.append((sides[0] - sides[1]) / 2e-3)
    found.head.set_flat(theta)
    assert torch.allclose(V.std(X), torch.stack(moves).norm(dim=0), rtol=2e-3, atol=1e-6)


def test_saved_and_loaded(tmp_path):
    V = solve_value(WELL, torch.cos, 1.0, window=(-3, 2), exterior=lambda y: torch.sin(y), n_modes=64)
    again = ValueFunction.load(V.save(tmp_path / "v.pt"))
    x = torch.tensor([-3.5, -3.0, 0.0, 1.99, 2.5], dtype=torch.float64)
    assert torch.equal(again(x), V(x))
    assert again.exterior == "given"
    assert torch.allclose(V(x)[[0, 4]], torch.sin(x[[0, 4]]), atol=1e-3)
    with pytest.raises(InputError, match="must be a saved value function"):
        ValueFunction.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "window must be given for a state on a line"),
        ({"window": (1, 1)}, "low < high"),
        ({"window": (-1, 1), "exterior": "reflect"}, "constant, absorb"),
        ({"window": (-1, 1), "exterior": 3.0}, "constant, absorb or a function"),
        ({"window": (-1, 1), "exterior": lambda y: y * y}, r"grow more slowly than \|x\|\^1.5"),
        ({"window": (-1, 1), "n_modes": 4}, "n_modes"),
    ],
)
def test_refusals(options, match):
    with pytest.raises(InputError, match=match):
        solve_value(WELL, torch.cos, 1.0, **options)
    with pytest.raises(InputError, match="must be left out beside a period"):
        solve_value(Dynamics.named("constant"), torch.cos, 1.0, exterior="absorb")


@pytest.mark.slow
@pytest.mark.parametrize(("system", "exterior"), [(WELL, "constant"), (stable(0.5), "absorb")])
def test_monte_carlo_of_the_same_rule(system, exterior):
    x = torch.tensor([-0.9, 0.0, 0.6], dtype=torch.float64)
    V = solve_value(system, torch.cos, 5.0, window=(-1, 1), exterior=exterior)
    found = monte_carlo_on_line(system, torch.cos, 5.0, x, (-1, 1), exterior=exterior, n_paths=4000, dt=0.005, seed=1)
    assert float(((V(x) - found.V) / found.standard_error).abs().max()) < 3.5  # six comparisons


@pytest.mark.long
def test_std_includes_what_the_exterior_matters():
    """With the true coefficients V on the range of the data is off by about 1 %, because paths return at its ends."""
    system = Dynamics(lambda x: -x, 0.3, 0.2, 0.8, None)
    x0 = 0.6 * torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    data = simulate(system, 100, 100, 0.05, seed=5, x0=x0).transitions()
    line = {"coefficients": "polynomial", "degree": 1, "n_basis": 1, "D_o": 0.3, "D_f": 0.2, "period": None}
    found = recover(data, alpha=0.8, law="frozen", **line)
    ends = torch.tensor(found.head.window, dtype=torch.float64)
    theta = torch.linalg.solve(found.jacobian(ends)[0], -ends)  # b = -x exactly
    found.head.set_flat(theta)
    V, W = solve_value(found, torch.cos, 0.1), solve_value(found, torch.cos, 0.1, exterior="constant")
    missing = float(V(0.0) - solve_value(system, torch.cos, 0.1, window=(-100.0, 100.0))(0.0))
    assert float(V(0.0)) == float(W(0.0))
    assert abs(missing) > 0.005 * float(V(0.0))
    added = float((V.std(0.0) ** 2 - W.std(0.0) ** 2).sqrt())
    assert added == pytest.approx(abs(missing), rel=0.15)
    window = tuple(found.support)
    assert float(solve_value(found, torch.cos, 0.1, window=window).std(0.0)) == pytest.approx(float(W.std(0.0)))
