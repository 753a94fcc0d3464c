"""Fits under the exact law of a step: what they gain, what they agree with, what they refuse."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Transitions, recover, simulate
from levytorch.data import make_pools
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_objective import ExactObjective
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.tail import TailSettings
from levytorch.training.law_of import law_of
from tests.training.problems import ALPHA, constant

STEEP = Dynamics(
    b=lambda x: 2 * torch.cos(x), D_o=lambda x: torch.exp(torch.sin(x)), D_f=lambda x: 1 + 0.5 * torch.cos(x), alpha=0.5
)
GRID = torch.linspace(0, 2 * math.pi, 201, dtype=torch.float64)[:-1]
THRESHOLDS = {"CT": 4.0, "TRT": 10.0}


@cache
def steep() -> Transitions:
    """Steps of 1/10 along which D_o varies by much."""
    return simulate(STEEP, 4000, 10, 1 / 10, substeps=50, seed=3).transitions()


def errors(found) -> np.ndarray:
    """Relative L2 errors of b, D_o, D_f on the cell."""
    pairs = ((found.b, STEEP.b), (found.D_o, STEEP.D_o), (found.D_f, STEEP.D_f))
    return np.array([float((got(GRID) - true(GRID)).norm() / true(GRID).norm()) for got, true in pairs])


def fitted(data: Transitions, law: str, **options):
    return recover(data, alpha=0.5, n_basis=7, engine="evidence", law=law, **options)


def test_no_bias_from_the_length_of_a_step():
    frozen, exact = (fitted(steep(), law) for law in ("frozen", "exact"))
    assert exact.converged
    before, after = errors(frozen), errors(exact)
    assert before[0] > 0.15
    assert before[1] > 0.1
    assert after[0] < 0.5 * before[0]
    assert after[1] < 0.4 * before[1]
    # within the noise that the standard errors tell
    for got, true, std in zip(
        exact.coefficients(GRID)[:3], (STEEP.b(GRID), STEEP.D_o(GRID), STEEP.D_f(GRID)), exact.std(GRID)
    ):
        assert float(((got - true) / std).square().mean().sqrt()) < 2.5
    assert (frozen.law, exact.law) == ("frozen", "exact")
    assert exact.metrics["covariance"] == "frozen"
    assert exact.metrics["law/log_p_error"] < 1e-4
    assert exact.metrics["law/evaluations"] < 30
    # the exact law's own likelihood of the samples
    with torch.no_grad():
        at_frozen, at_exact = (
            float(law_of(exact).log_prob(found.head, steep().x, steep().dx, torch.tensor(0.1)).sum())
            for found in (frozen, exact)
        )
    assert exact.log_likelihood == pytest.approx(at_exact, abs=0.5)
    assert at_exact > at_frozen + 50
    assert isinstance(law_of(frozen), FrozenLaw)


@pytest.mark.parametrize("method", ["tcf", "conditional"])
def test_lost_tails(method):
    data = steep().censor(**THRESHOLDS, seed=1)
    frozen, exact = (fitted(data, law, tail={**THRESHOLDS, "method": method}) for law in ("frozen", "exact"))
    before, after = errors(frozen), errors(exact)
    assert (after[:2] < 0.5 * before[:2]).all()
    assert abs(float(exact.D_f(GRID).mean()) - 1) < 0.1
    if method == "tcf":
        lost = 1 - len(data) / len(steep())
        assert exact.tcf == pytest.approx(lost, rel=0.3)


def test_constants_are_the_same_under_both_laws():
    frozen, exact = (recover(constant(20_000), alpha=ALPHA, n_basis=1, law=law) for law in ("frozen", "exact"))
    assert float(((exact.theta - frozen.theta) / frozen.covariance.diagonal().sqrt()).abs().max()) < 1e-3
    assert exact.log_likelihood == pytest.approx(frozen.log_likelihood, abs=1e-3)
    # harmonics that are noise differ, since the laws look at different moments of a step, but by no more than noise
    frozen, exact = (recover(constant(20_000), alpha=ALPHA, n_basis=3, law=law) for law in ("frozen", "exact"))
    assert float(((exact.theta - frozen.theta) / frozen.covariance.diagonal().sqrt()).abs().max()) < 1.5


def test_standard_errors_from_the_exact_information():
    quick, own = (recover(steep()[:8000], alpha=0.5, n_basis=3, law="exact", std=std) for std in ("frozen", "exact"))
    assert own.metrics["covariance"] == "exact"
    assert torch.equal(quick.theta, own.theta)
    with pytest.raises(InputError, match='law "exact"'):
        own.bootstrap(2)
    ratio = torch.stack([a / b for a, b in zip(own.std(GRID), quick.std(GRID))])
    assert bool(((ratio > 0.6) & (ratio < 1.7)).all())
    assert float((ratio - 1).abs().max()) > 1e-3


@pytest.mark.parametrize("method", ["none", "conditional", "tcf"])
def test_gradient_of_the_objective(method):
    torch.manual_seed(0)
    found = recover(steep()[:8000], alpha=0.5, n_basis=3)
    tail = TailSettings(method=method, **(THRESHOLDS if method != "none" else {}))
    pools = make_pools(steep()[:8000], CT=tail.CT, TRT=tail.TRT, alpha=0.5, min_tail=1)
    lattice = Lattice.from_transitions(pools.main, CT=tail.CT, TRT=tail.TRT, mu=float(pools.mu), reach=6.0)
    likelihood = Likelihood(found.head, FrozenLaw(), tail)
    likelihood.observe(lattice)
    frozen = likelihood.objective(lattice.full_batch(), 1.0)
    parts = {
        name: getattr(frozen, name)
        for name in ("head", "law", "bins", "batch", "masses", "method", "region", "penalty")
    }
    law = ExactLaw().fixed(found.head, torch.tensor(0.1))
    objective = ExactObjective(**parts, exact=law)
    ev = objective.evaluate()
    gradient, theta = objective.gradient(ev), ev.theta
    direction = torch.randn(theta.shape, dtype=torch.float64)
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            found.head.theta.copy_(theta + sign * 1e-4 * direction)
            values.append(objective.evaluate())
    slope = (objective.value(values[0], ev.tcf) - objective.value(values[1], ev.tcf)) / 2e-4
    assert slope == pytest.approx(float(gradient @ direction), rel=1e-5, abs=1e-7)
    if method == "tcf":
        assert ev.tcf > 0
        change = (values[0].tcf - values[1].tcf) / 2e-4
        assert change == pytest.approx(float(ev.tcf_gradient @ direction), rel=1e-4)


def test_a_lattice_that_smears_the_tail_is_told():
    lattice = Lattice.from_transitions(steep()[:8000])
    with pytest.warns(LevytorchWarning, match="reach"):
        recover(lattice, alpha=0.5, n_basis=3, law="exact")


def test_refusals():
    data = steep()[:2000]
    with pytest.raises(InputError, match="adam"):
        recover(data, alpha=0.5, n_basis=3, engine="adam", law="exact")
    with pytest.raises(InputError, match="function of x"):
        recover(data, alpha="function", n_basis=3, law="exact")
    with pytest.raises(InputError, match="MLP"):
        recover(data, alpha=0.5, coefficients="mlp", law="exact")
    with pytest.raises(InputError, match="law must be one of"):
        recover(data, alpha=0.5, n_basis=3, law="euler")
    with pytest.raises(InputError, match='go with law "exact"'):
        recover(data, alpha=0.5, n_basis=3, std="exact")
    plane = simulate(Dynamics.named("plane"), 100, 5, 0.1, seed=0).transitions()
    with pytest.raises(InputError, match="2 coordinates"):
        recover(plane, alpha=0.3, n_basis=3, law="exact")
    many = Transitions(data.x, data.dx, np.linspace(0.05, 0.15, len(data)))
    with pytest.raises(InputError, match="at most 12 distinct dt"):
        recover(many, alpha=0.5, n_basis=3, law="exact")
    short = Transitions(data.x, data.dx / 1000, 1e-7)
    with pytest.raises(InputError, match="steps this short"):
        recover(short, alpha=0.5, n_basis=3, law="exact")
