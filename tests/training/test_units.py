"""Fits do not depend on the units of x and of time, iteration by iteration."""

import math
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Trajectories, Transitions, diagnose, recover, simulate, solve_value
from levytorch.coefficients import Coefficients, FourierHead, Head
from levytorch.coefficients.head import Units
from levytorch.coefficients.links import AlphaSpec
from levytorch.errors import LevytorchWarning

CIRCLE = Dynamics(
    b=torch.sin, D_o=lambda x: 1.0 + 0.3 * torch.cos(x), D_f=lambda x: 0.8 + 0.3 * torch.sin(x), alpha=0.6
)
UNITS = [
    pytest.param((1e6, 1e-6), id="both"),
    pytest.param((1e-6, 1.0), id="x", marks=pytest.mark.slow),
    pytest.param((1.0, 1e6), id="time", marks=pytest.mark.slow),
]
SOL = Path(__file__).parents[3] / "shared" / "data" / "sol_3min.parquet"


def circle(n=20):
    return simulate(CIRCLE, n, 100, 0.05, seed=1).transitions()


def lost_tails():
    return circle(40).censor(TRT=20.0, CT=2.0, drop_tail=0.5, seed=1)


def line():
    system = Dynamics(b=lambda x: -x, D_o=0.3, D_f=0.2, alpha=0.8, period=None)
    return simulate(system, 20, 100, 0.05, seed=3, x0=torch.linspace(-1, 1, 20, dtype=torch.float64)).transitions()


def plane():
    return simulate(Dynamics.named("plane"), 20, 50, 0.05, seed=1).transitions()


def uneven():
    data = circle()
    dt = torch.where(torch.arange(len(data)) % 3 == 0, 0.06, 0.05).to(torch.float64)
    return Transitions(data.x, data.dx, dt, trajectory=data.trajectory)


def in_units(data, x_unit, t_unit, **columns):
    """The pairs of data with x and time as numbers of other units."""
    dt = float(data.dt[0]) * t_unit if data.uniform_dt else data.dt * t_unit
    return Transitions(data.x * x_unit, data.dx * x_unit, dt, trajectory=data.trajectory, **columns)


class Pull(Head):
    """A head of the user's own, in the units of its data."""

    def __init__(self, x_unit, t_unit):
        super().__init__()
        self.x_unit, self.t_unit, self.period = x_unit, t_unit, 2 * math.pi * x_unit
        self.raw = torch.nn.Parameter(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))

    def forward(self, x):
        k, D_o, D_f = self.raw[0], *torch.nn.functional.softplus(self.raw[1:])
        alpha = torch.tensor(0.6, dtype=torch.float64)
        b = k * torch.sin(x / self.x_unit) * (self.x_unit / self.t_unit)
        D_o, D_f = D_o * self.x_unit**2 / self.t_unit, D_f * self.x_unit**1.2 / self.t_unit
        return Coefficients(b, D_o.expand(x.shape), D_f.expand(x.shape), alpha)


# data, and the options of recover in a unit of x and of time
CASES = {
    "frozen": (circle, lambda s, t: {"alpha": 0.6, "n_basis": 7, "law": "frozen"}),
    "exact": (circle, lambda s, t: {"alpha": "learn", "n_basis": 5, "law": "exact", "max_steps": 12}),
    "corrected": (circle, lambda s, t: {"alpha": "learn", "n_basis": 7, "law": "corrected"}),
    "tempering": (circle, lambda s, t: {"alpha": "learn", "tempering": "learn", "n_basis": 5, "law": "frozen"}),
    "known": (circle, lambda s, t: {"alpha": 0.6, "D_f": 0.8 * s**1.2 / t, "n_basis": 3, "law": "frozen"}),
    "function": (circle, lambda s, t: {"alpha": "function", "n_basis": 3, "law": "frozen", "max_steps": 10}),
    "tcf": (lost_tails, lambda s, t: {"alpha": 0.6, "n_basis": 5, "tail": {"CT": 2 * s, "TRT": 20 * s, "min_tail": 9}}),
    "conditional": (
        lost_tails,
        lambda s, t: {"alpha": "learn", "n_basis": 5, "tail": {"CT": 2 * s, "TRT": 20 * s, "method": "conditional"}},
    ),
    "uneven": (uneven, lambda s, t: {"alpha": 0.6, "n_basis": 5}),
    "lattice": (circle, lambda s, t: {"alpha": "learn", "n_basis": 5, "law": "frozen", "lattice": "always"}),
    "spline": (line, lambda s, t: {"alpha": 0.8, "n_basis": 7, "law": "frozen"}),
    "polynomial": (
        line,
        lambda s, t: {"alpha": 0.8, "coefficients": "polynomial", "n_basis": 5, "D_o": 0.3 * s**2 / t},
    ),
    "plane": (plane, lambda s, t: {"alpha": 0.6, "n_basis": 3}),
    "mlp": (circle, lambda s, t: {"alpha": 0.6, "coefficients": "mlp", "width": 4, "law": "frozen", "max_steps": 3}),
    "adam": (circle, lambda s, t: {"alpha": 0.6, "n_basis": 3, "engine": "adam", "max_steps": 60, "log_every": 20}),
    "own": (circle, lambda s, t: {"alpha": 0.6, "coefficients": Pull(s, t), "law": "frozen", "max_steps": 5}),
}


@cache
def fitted(name, x_unit, t_unit):
    make, options = CASES[name]
    data, given = make(), options(x_unit, t_unit)
    if name in ("spline", "polynomial"):
        given["period"] = None
    elif name != "own":
        given["period"] = 2 * math.pi * x_unit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return recover(in_units(data, x_unit, t_unit), **given)


def numbers(found, x_unit, t_unit):
    """Coefficients and their errors, in the first units."""
    x = torch.linspace(0.2, 1.4, 5, dtype=torch.float64)
    x = torch.stack([x, x], dim=1) if found.dim == 2 else x
    c = found.coefficients(x * x_unit)
    b, D_o, D_f = c.b * t_unit / x_unit, c.D_o * t_unit / x_unit**2, c.D_f * t_unit / x_unit ** (2 * c.alpha)
    values = [*b.flatten(), *D_o, *D_f, *c.alpha.flatten(), c.tempering * x_unit]
    if found.covariance is not None:
        std = found.std(x * x_unit)
        values += [*(std[0].flatten() * t_unit / x_unit), *(std[1] * t_unit / x_unit**2)]
    return torch.tensor([float(v) for v in values])


SECONDS = ("exact", "corrected", "tcf", "conditional", "uneven", "polynomial", "plane", "lattice", "function")


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SECONDS else name for name in CASES]
)
def test_the_same_answer_iteration_by_iteration(name, units):
    x_unit, t_unit = units
    found, first = fitted(name, *units), fitted(name, 1.0, 1.0)
    assert len(found.history) == len(first.history)
    shift = found.dim * math.log(x_unit)
    for one, other in zip(found.history, first.history):
        assert one["train/nll"] - shift == pytest.approx(other["train/nll"], abs=1e-8)
        scale = {"b": x_unit / t_unit, "D_o": x_unit**2 / t_unit}
        for key in ("b", "D_o"):
            if f"mean/{key}" in other:
                assert one[f"mean/{key}"] / scale[key] == pytest.approx(other[f"mean/{key}"], rel=1e-6, abs=1e-8)
    n = first.metrics["n_main"]
    assert found.log_likelihood + n * shift == pytest.approx(first.log_likelihood, abs=1e-5)
    torch.testing.assert_close(numbers(found, *units), numbers(first, 1.0, 1.0), rtol=1e-6, atol=1e-9)
    assert found.converged == first.converged


@pytest.mark.parametrize("known", [{}, {"D_f": 0.7}])
def test_a_head_in_other_units_is_the_same_system(known):
    """It shares the parameters; a D_f that is known in the units of the data moves with a learned alpha in others."""
    head = FourierHead(5, 3.0, -1.0, alpha=AlphaSpec("constant", 0.6), units=Units(0.2, 0.05), known=known)
    head.set_flat(torch.linspace(-0.5, 0.6, head.flat().numel(), dtype=torch.float64))
    units = Units(0.1, 4.0)
    other, x = head.in_units(units), torch.linspace(-1.0, 2.0, 7, dtype=torch.float64)
    a, b = head(x), other(x / units.length)
    torch.testing.assert_close(b.b * units.b, a.b)
    torch.testing.assert_close(b.D_o * units.D_o, a.D_o)
    torch.testing.assert_close(b.D_f * units.D_f(a.alpha), a.D_f)
    assert other.theta is head.theta
    by_autograd = Head.jacobian(other, x / units.length)
    for J, expected in zip(other.jacobian(x / units.length), by_autograd):
        torch.testing.assert_close(J, expected)


@pytest.mark.slow
def test_what_follows_from_a_fit_does_not_depend_on_units_either():
    """Thresholds and likelihoods are reported in the units of the data; checks and V are the same."""
    options = CASES["tcf"][1]
    results = []
    for s, t in ((1.0, 1.0), (1e6, 1e-6)):
        data = in_units(lost_tails(), s, t)
        found = recover(data, period=2 * math.pi * s, **options(s, t))
        assert (found.metrics["CT"], found.metrics["TRT"]) == (2 * s, 20 * s)
        checks = diagnose(found, data, checks=["fit", "time"])
        V = solve_value(found, lambda x, unit=s: torch.cos(x / unit), 1 / t)
        robust = found.std(1.0 * s, kind="robust")
        results.append([checks.fit.p_value, checks.time.p_value, float(V(1.0 * s)) / t, float(V.std(1.0 * s)) / t])
        results[-1] += [float(robust[0]) * t / s, float(found.bootstrap(4).std(1.0 * s)[1]) * t / s**2]
    assert results[0] == pytest.approx(results[1], rel=1e-6)


@pytest.mark.long
def test_actions_and_modulations():
    data = circle()
    label = np.arange(len(data)) % 2
    number = np.random.default_rng(0).uniform(-1, 1, len(data))
    cases = [
        (label, {"alpha": "learn", "n_basis": 3, "law": "frozen"}),
        (number, {"alpha": 0.6, "n_basis": 3}),
        (24 * (number + 1) / 2, {"alpha": "learn", "n_basis": 5, "modulation": 24.0, "n_modulation": 3}),
    ]
    for action, options in cases:
        b = []
        for s, t in ((1.0, 1.0), (1e-6, 1e6)):
            found = recover(in_units(data, s, t, action=action), period=2 * math.pi * s, **options)
            where = (1.0 * s,) if "modulation" in options else (1.0 * s, action[0])
            b.append([float(found.b(*where)) * t / s, float(found.D_o(*where)) * t / s**2, float(found.alpha)])
        assert b[0] == pytest.approx(b[1], rel=1e-7)


@pytest.mark.slow
@pytest.mark.skipif(not SOL.exists(), reason="the series is not part of the project")
def test_a_series_of_prices():
    """alpha was 0.98, not converged, for the logarithm of the price and 0.632 for ten times that."""
    import polars as pl

    x = np.log(pl.read_parquet(SOL)["open"].to_numpy().astype(float))
    found = []
    for s, t in ((1.0, 1.0), (10.0, 1.0), (1e-6, 1e6)):
        pairs = Trajectories.from_arrays(s * x, dt=0.05 * t).transitions()
        one = recover(pairs, alpha="learn", tempering="learn", period=None, n_basis=11)
        per_pair = one.log_likelihood / one.metrics["n_main"] + math.log(s)
        found.append([one.alpha, one.tempering * s, per_pair, len(one.history), one.converged])
    assert found[0][-1]
    assert found[0][0] == pytest.approx(0.632, abs=0.002)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)
