"""Coefficients at or near zero: they leave the parameters, and the errors of the others are profiled."""

import math
import warnings

import pytest
import torch

from levytorch import Dynamics, Recovery, Transitions, recover, simulate, solve_value
from levytorch.errors import LevytorchWarning, NumericalError
from levytorch.likelihood.penalty import guarded_solve
from levytorch.training.boundary import Vanished, include_vanished
from levytorch.training.individual import _row as individual_row

OU = Dynamics(b=lambda x: -x, D_o=0.3, D_f=0.2, alpha=0.8, period=None)


def ornstein_uhlenbeck(seed):
    generator = torch.Generator().manual_seed(seed)
    x0 = 0.6 * torch.randn(100, dtype=torch.float64, generator=generator)
    return simulate(OU, 100, 100, 0.05, seed=seed, x0=x0).transitions()


def quietly(data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return recover(data, **options)


@pytest.mark.parametrize("seed", [35, pytest.param(61, marks=pytest.mark.slow)])
def test_a_strength_that_grows_does_not_throw_the_fit_off(seed):
    """Seed 35 ended 5,900 log units below the maximum, seed 61 with alpha at its bound 0.03."""
    found = quietly(ornstein_uhlenbeck(seed), alpha="learn", period=None, law="frozen")
    given = quietly(ornstein_uhlenbeck(seed), alpha=0.8, period=None, law="frozen")
    assert found.converged
    assert found.log_likelihood > given.log_likelihood - 2.0
    assert abs(found.alpha - 0.8) < 3 * found.alpha_std < 0.6


@pytest.mark.long
def test_errors_near_a_boundary_are_profiled():
    """alpha is 0.935 +- 0.019 by the information matrix alone; with alpha = 0.8 the likelihood is hardly lower."""
    with pytest.warns(LevytorchWarning, match="D_o cannot be distinguished from zero"):
        found = recover(ornstein_uhlenbeck(10), alpha="learn", period=None, law="frozen")
    assert abs(found.alpha - 0.8) < 3 * found.alpha_std
    assert abs(float(found.D_o(0.0)) - 0.3) < 3 * float(found.std(0.0)[1])


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 102, 211])
def test_brownian_data_with_alpha_learned(seed):
    """D_f leaves the parameters, V.std is that of a diffusion, and alpha is said to be unknown.

    Seed 102: without D_f the penalty smooths b more, for 2 units of log-likelihood, taken for jumps.
    Seed 211: alpha runs to its upper end, where D_f takes a part of D_o.
    """
    data = simulate(Dynamics(b=torch.sin, D_o=0.3, D_f=0.0, alpha=0.6), 100, 100, 0.05, seed=seed).transitions()
    with pytest.warns(LevytorchWarning, match="D_f is estimated as zero"):
        found = recover(data, alpha="learn", n_basis=7, law="frozen")
    known = recover(data, alpha=0.6, D_f=0.0, n_basis=7, law="frozen")
    assert found.alpha_std == math.inf
    assert float(found.D_f(1.0)) == 0.0 == float(known.D_f(1.0))
    assert 0 < float(found.std(1.0)[2]) < 0.1
    shown = next(row for row in found.report.estimates if row.name == "D_f")
    assert shown.note == "", "it was estimated, not given"
    assert shown.std == pytest.approx(float(found.std(1.0)[2]))
    row = individual_row("all", found, data)
    assert row.std["D_f"] == pytest.approx(shown.std)
    assert row.std["alpha"] == math.inf
    V, W = (solve_value(one, torch.cos, 1.0) for one in (found, known))
    assert abs(float(V(1.0) - W(1.0))) < 0.1 * float(W.std(1.0))
    assert 0.9 * float(W.std(1.0)) < float(V.std(1.0)) < 1.5 * float(W.std(1.0))


def test_the_error_of_a_coefficient_that_is_all_but_zero_and_stays_a_parameter():
    """Its logarithm has all but no slope: D_o of a track was 1e-8 with a standard error of 1e-40, and may be 0.7."""
    data = simulate(Dynamics(b=torch.sin, D_o=0.3, D_f=0.2, alpha=0.6), 20, 100, 0.05, seed=0).transitions()
    found = quietly(data, alpha=0.6, n_basis=1, law="frozen")
    before = float(solve_value(found, torch.cos, 1.0).std(1.0))
    theta = found.theta.clone()
    theta[found.head.part(1)] = -40.0
    found.head.set_flat(theta)
    x = found.head.grid(8)
    none = torch.zeros_like(x)
    include_vanished(found, Vanished("D_o", 0.4, 0.8, x, (none, none + 0.4, none, none), gone=False))
    assert float(found.D_o(1.0)) < 1e-6
    assert float(found.std(1.0)[1]) == pytest.approx(0.4)
    assert individual_row("all", found, data).std["D_o"] == pytest.approx(0.4, rel=1e-3)
    assert float(solve_value(found, torch.cos, 1.0).std(1.0)) > 1.5 * before
    again = Recovery.from_content(found.content())
    assert float(again.std(1.0)[1]) == pytest.approx(0.4)


def test_singular_systems_move_only_what_they_determine():
    information = torch.diag(torch.tensor([2.0, 0.0, 1e-40], dtype=torch.float64))
    step = guarded_solve(information, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), "a test")
    assert step.tolist() == [0.5, 0.0, 0.0]
    twice = torch.ones((2, 2), dtype=torch.float64)
    step = guarded_solve(twice, torch.tensor([1.0, 1.0], dtype=torch.float64), "a test")
    torch.testing.assert_close(twice @ step, torch.ones(2, dtype=torch.float64))
    with pytest.raises(NumericalError, match="information for a test must be finite"):
        guarded_solve(twice * math.nan, torch.ones(2, dtype=torch.float64), "a test")


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.long), pytest.param(1, marks=pytest.mark.slow)])
def test_few_jumps_on_a_circle(seed):
    """D_f = 0.01 and alpha learned: an answer with errors that are numbers, and not zero."""
    system = Dynamics(b=torch.sin, D_o=0.3, D_f=0.01, alpha=0.6)
    found = quietly(simulate(system, 20, 100, 0.05, seed=seed).transitions(), alpha="learn", n_basis=3)
    for std in found.std(found.states):
        assert bool((std.isfinite() & (std > 0)).all())
    V = solve_value(found, torch.cos, 1.0)
    assert 0.0 < float(V.std(1.0)) < 1.0


def test_rounds_that_lead_away_are_undone(monkeypatch):
    """After a round that comes no nearer to the root the fit has the parameters from which it was nearest."""
    from levytorch.training.phases.corrected import Corrected

    data = simulate(Dynamics(b=torch.sin, D_o=0.3, D_f=0.2, alpha=0.6), 20, 100, 0.05, seed=0).transitions()
    frozen = quietly(data, alpha=0.6, n_basis=3, law="frozen", engine="fisher")
    true, calls = Corrected.centered, []

    def worse(self):
        U, ev = true(self)
        calls.append(ev.theta.clone())
        return (U if len(calls) == 1 else 100.0 * U + 1.0), ev

    with monkeypatch.context() as patched:
        patched.setattr(Corrected, "centered", worse)
        found = quietly(data, alpha=0.6, n_basis=3, law="corrected", engine="fisher")
    assert len(calls) > 1
    assert not torch.equal(calls[0], calls[1])
    torch.testing.assert_close(found.theta, frozen.theta, rtol=1e-6, atol=1e-8)


def test_a_value_from_a_doubtful_fit_warns():
    data = simulate(Dynamics(b=torch.sin, D_o=0.3, D_f=0.2, alpha=0.6), 20, 100, 0.05, seed=0).transitions()
    found = quietly(data, alpha=0.6, n_basis=3, law="frozen")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LevytorchWarning)
        solve_value(found, torch.cos, 1.0)
    found.metrics["at_zero"] = {"D_o": {"std": math.inf, "upper": math.inf, "moves": [0.0] * found.theta.numel()}}
    with pytest.warns(LevytorchWarning, match="D_o has vanished and the data does not bound it"):
        solve_value(found, torch.cos, 1.0)
    del found.metrics["at_zero"]
    found.metrics["alpha_at_bound"] = 0.03
    with pytest.warns(LevytorchWarning, match="held at the end 0.03"):
        solve_value(found, torch.cos, 1.0)
    del found.metrics["alpha_at_bound"]
    found.metrics["vanishing"] = ["D_o"]  # by an engine that does not drop it
    with pytest.warns(LevytorchWarning, match="D_o has vanished and counts as known to be zero"):
        solve_value(found, torch.cos, 1.0)
    found.metrics["vanishing"] = []
    found.covariance = torch.zeros_like(found.covariance)
    with pytest.warns(LevytorchWarning, match="the standard error of b is 0 and the standard error of D_o is 0"):
        solve_value(found, torch.cos, 1.0)


def test_a_frozen_law_that_was_not_judged_is_told_with_the_value(monkeypatch):
    """Rounds of the simulated law without a root say nothing of the frozen law."""
    from levytorch.training.phases.simulated import SimulatedRounds

    system = Dynamics(b=torch.sin, D_o=0.3, D_f=0.2, alpha=0.6)
    data = simulate(system, 20, 100, 0.05, seed=0).transitions()
    uneven = Transitions(data.x, data.dx, 0.05 * torch.linspace(0.9, 1.1, len(data), dtype=torch.float64))
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedRounds, "reached", property(lambda self: False))
        found = quietly(uneven, alpha=0.6, n_basis=3)
    assert found.law == "frozen"
    with pytest.warns(LevytorchWarning, match="although its bias is not known .* did not converge"):
        solve_value(found, torch.cos, 1.0)


@pytest.mark.parametrize("noise", ["isotropic", "matrix"])
def test_no_jumps_in_the_plane(noise):
    """D_f = 0 is zero wherever it is shown, and the Gaussian law has a closed maximum."""
    system = Dynamics(b=lambda x: 0.0 * x, D_o=0.3, D_f=0.0, alpha=0.6, dim=2)
    data = simulate(system, 20, 60, 0.05, seed=402).transitions()
    found = recover(data, alpha=0.6, D_f=0.0, n_basis=1, law="frozen", noise=noise)
    moments = torch.cov(data.dx.T, correction=0) / (2 * 0.05)
    matrix = found.D_o(data.x[0]) * (1.0 if noise == "matrix" else torch.eye(2))
    expected = moments if noise == "matrix" else torch.eye(2) * moments.diagonal().mean()
    torch.testing.assert_close(matrix, expected.to(matrix.dtype), rtol=1e-3, atol=1e-4)
    assert float(found.D_f(data.x[0])) == 0.0
    assert "D_f 0," in repr(found)
    assert "1e-300" not in str(found.summary())


@pytest.mark.long
def test_a_coefficient_that_only_the_exact_law_drives_to_zero():
    """D_o, D_f and a learned alpha near 1 lie on a ridge, along which the exact law's fit ran to D_o = 0: a lower
    maximum, with alpha 13 of its standard errors from the truth.
    """
    truth = Dynamics(
        b=torch.sin, D_o=lambda x: 1 + 0.3 * torch.cos(x), D_f=lambda x: 0.8 + 0.3 * torch.sin(x), alpha=0.8
    )
    data = simulate(truth, 40, 100, 1 / 20, substeps=10, seed=101).transitions()
    found = quietly(data, alpha="learn")
    assert found.law == "frozen"
    assert "drove D_o to zero" in found.metrics["law_reason"]
    assert abs(found.alpha - 0.8) < 3 * found.alpha_std
    x = found.states
    for label, std in zip(("D_o", "D_f"), found.std(x)[1:]):
        assert float(((getattr(found, label)(x) - getattr(truth, label)(x)).abs() < 3 * std).double().mean()) > 0.9


@pytest.mark.slow
def test_errors_under_a_law_that_was_asked_for_include_what_a_vanished_coefficient_may_be():
    system = Dynamics(
        b=torch.sin, D_o=lambda x: 1 + 0.3 * torch.cos(x), D_f=lambda x: 0.8 + 0.3 * torch.sin(x), alpha=0.8
    )
    data = simulate(system, 40, 100, 1 / 20, substeps=10, seed=101).transitions()
    held = quietly(data, alpha="learn", law="exact")
    x = held.states
    assert held.metrics["near_zero"]["D_o"]["std"] > 0.1
    assert float(held.std(x)[1].min()) > 0.1
