"""Fits under the exact law of a step: what they gain, what they agree with, what they refuse."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Transitions, recover, simulate
from levytorch.coefficients import Coefficients, Head
from levytorch.data import make_pools
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.tail import TailSettings
from levytorch.training.phases import choice
from levytorch.training.phases.exact import ExactEngine, ExactObjective
from levytorch.training.recovery import law_of
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


TRUTH = (STEEP.b(GRID), STEEP.D_o(GRID), STEEP.D_f(GRID))


def excess(found) -> list[float]:
    """For b, D_o, D_f: the squared error on the cell, in units of the largest that noise allows.

    Under the covariance C of a coefficient's values on the grid the squared error has the mean tr C and the variance
    2 tr C^2; four standard deviations above the mean is allowed.
    """
    out = []
    for got, true, J in zip(found.coefficients(GRID)[:3], TRUTH, found.jacobian(GRID)):
        C = J @ found.covariance @ J.T
        allowed = float(C.trace() + 4 * math.sqrt(2) * C.norm())
        out.append(float((got - true).square().sum()) / allowed)
    return out


def fitted(data: Transitions, law: str, **options):
    return recover(data, alpha=0.5, n_basis=7, engine="evidence", law=law, **options)


@cache
def whole_fit(law: str):
    return fitted(steep(), law)


@pytest.mark.long
def test_no_bias_from_the_length_of_a_step():
    frozen, corrected, exact = (whole_fit(law) for law in ("frozen", "corrected", "exact"))
    assert (frozen.law, corrected.law, exact.law) == ("frozen", "corrected", "exact")
    assert min(excess(frozen)[:2]) > 4
    for found in (corrected, exact):
        assert found.converged
        assert max(excess(found)) < 1
        assert found.metrics["covariance"] == found.law
        assert found.metrics["law_reason"] == "as requested"
        assert found.metrics["law/log_p_error"] < 1e-4
    assert corrected.metrics["law/rounds"] <= 5
    assert exact.metrics["law/evaluations"] < 12
    # the exact law's own likelihood of the samples
    with torch.no_grad():
        at_frozen, at_corrected, at_exact = (
            float(law_of(exact).log_prob(found.head, steep().x, steep().dx, torch.tensor(0.1)).sum())
            for found in (frozen, corrected, exact)
        )
    assert corrected.log_likelihood == pytest.approx(at_corrected, abs=0.5)
    assert exact.log_likelihood == pytest.approx(at_exact, abs=0.5)
    assert at_exact > at_corrected > at_frozen + 50
    assert isinstance(law_of(frozen), FrozenLaw)


@pytest.mark.parametrize(
    ("method", "law"),
    [
        ("tcf", "exact"),
        ("conditional", "corrected"),
        pytest.param("tcf", "corrected", marks=pytest.mark.slow),
        pytest.param("conditional", "exact", marks=pytest.mark.slow),
    ],
)
def test_lost_tails(method, law):
    data = steep().censor(**THRESHOLDS, seed=1)
    found = fitted(data, law, tail={**THRESHOLDS, "method": method})
    assert max(excess(found)) < 1
    if method == "tcf":
        # 4 standard errors of the number of lost pairs, and of what the fit says of them
        lost, n = 1 - len(data) / len(steep()), len(steep())
        assert abs(found.tcf - lost) < 4 * math.sqrt(lost / n) + 4 * 0.05 * lost


@pytest.mark.long
def test_constants_are_the_same_under_both_laws():
    frozen, exact = (recover(constant(20_000), alpha=ALPHA, n_basis=1, law=law) for law in ("frozen", "exact"))
    assert float(((exact.theta - frozen.theta) / frozen.covariance.diagonal().sqrt()).abs().max()) < 1e-3
    assert exact.log_likelihood == pytest.approx(frozen.log_likelihood, abs=1e-3)
    ratio = exact.covariance.diagonal() / frozen.covariance.diagonal()
    # expected against observed products of scores: relative error sqrt(kurtosis / n), kurtosis below 10
    assert float((ratio - 1).abs().max()) < 4 * math.sqrt(10 / 20_000)


@pytest.mark.slow
def test_a_learned_alpha_and_several_dt():
    rest = simulate(STEEP, 4000, 5, 1 / 20, substeps=50, seed=4).transitions()
    data = Transitions(
        np.concatenate([steep().x, rest.x]),
        np.concatenate([steep().dx, rest.dx]),
        np.concatenate([np.full(len(steep()), 0.1), np.full(len(rest), 0.05)]),
    )
    found = recover(data, alpha="learn", n_basis=7, engine="evidence", law="exact")
    assert abs(found.alpha - 0.5) < 4 * found.alpha_std
    assert found.alpha_std < 0.02
    assert max(excess(found)) < 1


class Waves(Head):
    """STEEP up to two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.size = torch.nn.Parameter(torch.tensor([1.0, 0.5], dtype=torch.float64))

    def forward(self, x):
        b, s = self.size
        alpha = torch.tensor(0.5, dtype=torch.float64)
        return Coefficients(b * torch.cos(x), torch.exp(s * torch.sin(x)), 1 + 0.5 * torch.cos(x), alpha)


@pytest.mark.long
def test_any_head():
    frozen, exact = (recover(steep(), alpha=0.5, coefficients=Waves(), law=law) for law in ("frozen", "exact"))
    assert exact.law == "exact"
    rows = expected_scores(ExactLaw(), exact.head, 0.1)
    information = rows.scores.T @ (rows.p[:, None] * rows.scores) / len(rows.states) * len(steep())
    std = torch.linalg.inv(information).diagonal().sqrt()
    true = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert float(((exact.theta - true) / std).abs().max()) < 4
    assert float(((frozen.theta - true) / std).abs().max()) > 8


@pytest.mark.long
def test_standard_errors_of_the_frozen_law_on_request():
    frozen, own = (recover(steep()[:8000], alpha=0.5, n_basis=3, law="exact", std=std) for std in ("frozen", "auto"))
    assert (frozen.metrics["covariance"], own.metrics["covariance"]) == ("frozen", "exact")
    assert torch.equal(frozen.theta, own.theta)
    ratio = torch.stack([a / b for a, b in zip(own.std(GRID), frozen.std(GRID))])
    assert 0.02 < float((ratio - 1).abs().max()) < 1


@pytest.mark.parametrize("tail", [None, pytest.param({**THRESHOLDS, "method": "tcf"}, marks=pytest.mark.slow)])
def test_standard_errors_from_blocks(tail):
    data = steep() if tail is None else steep().censor(**THRESHOLDS, seed=1)
    found = recover(data, alpha=0.5, n_basis=5, engine="fisher", law="corrected", tail=tail)
    own, robust = found.std(GRID), found.std(GRID, kind="robust")
    replicas = found.bootstrap(100).std(GRID)
    for a, b, c in zip(own, robust, replicas):
        # the mean variance over the cell, of five numbers from 60 blocks, has a relative error of about
        # sqrt(2 / (60 * 5)) = 0.08, and that of 100 replicas one of 0.06
        assert float(b.square().mean() / a.square().mean()) == pytest.approx(1.0, abs=4 * 0.08)
        assert float(c.square().mean() / b.square().mean()) == pytest.approx(1.0, abs=4 * 0.06)


# ----------------------------------------------------------------------------------------------------------------- auto


@pytest.mark.long
def test_auto_takes_the_exact_law_where_it_matters():
    found = recover(steep(), alpha=0.5, n_basis=7, engine="evidence")
    assert found.law == "exact"
    told = re.fullmatch(r"available; .* estimates by up to ([\d.]+) standard errors", found.metrics["law_reason"])
    # as far as the exact law moves the coefficients from the frozen law's maximum, but for the rounds on the score
    frozen = whole_fit("frozen")
    farthest = max(
        float(((a - b).abs() / s).max())
        for a, b, s in zip(found.coefficients(GRID)[:3], frozen.coefficients(GRID)[:3], found.std(GRID))
    )
    assert 0.8 * farthest < float(told.group(1)) < 1.25 * farthest


def test_auto_leaves_what_is_exact_or_good():
    found = recover(constant(20_000), alpha=ALPHA, n_basis=1)
    assert (found.law, found.metrics["law_reason"]) == ("frozen", "constant coefficients, for which it is exact")
    weak = Dynamics(b=0.0, D_o=1.0, D_f=lambda x: 1 + 0.02 * torch.cos(x), alpha=0.5)
    found = recover(simulate(weak, 300, 10, 1 / 20, seed=0).transitions(), alpha=0.5, n_basis=3, penalty=1e9)
    assert found.law == "frozen"
    assert "below 0.1 standard errors" in found.metrics["law_reason"]
    assert found.covariance is not None


@pytest.mark.long
@pytest.mark.parametrize(("share", "law"), [(0.7, "corrected"), (0.0, "simulated")])
def test_auto_takes_no_longer_than_it_may(monkeypatch, share, law):
    # the corrected law takes about half of what the exact one does; what that is depends on the grid alone
    exact = 48 + choice.ROUNDS + 2 * choice._INFORMATION
    monkeypatch.setattr(choice, "_FORWARD", 3 / exact)
    monkeypatch.setattr(choice, "_GROWTH", 0.0)
    monkeypatch.setattr(choice, "SECONDS", 3 * share)
    found = recover(steep()[:4000], alpha=0.5, n_basis=3)
    assert found.law == law
    assert "the exact law would take about 3 s" in found.metrics["law_reason"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["none", "conditional", "tcf"])
def test_gradient_of_the_objective(method):
    torch.manual_seed(0)
    found = recover(steep()[:8000], alpha=0.5, n_basis=3, law="frozen")
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


@pytest.mark.slow
def test_a_fit_that_begins_far_away_asks_for_the_information_again(monkeypatch):
    """Steps of 1/4, where the frozen law is off by half: fewer evaluations to the same maximum."""
    system = Dynamics.named("variable", alpha=ALPHA)
    data = simulate(system, 2000, 20, 0.25, substeps=20, order=2, seed=1).transitions()
    found = recover(data, alpha=ALPHA, n_basis=5, engine="evidence", law="exact")
    monkeypatch.setattr(
        "levytorch.training.phases.exact.ExactEngine", lambda **options: ExactEngine(**options | {"renewed": None})
    )
    stale = recover(data, alpha=ALPHA, n_basis=5, engine="evidence", law="exact")
    assert found.converged
    assert stale.converged
    assert found.metrics["law/evaluations"] < stale.metrics["law/evaluations"]
    for one, other, std in zip(found.coefficients(GRID), stale.coefficients(GRID), found.std(GRID)):
        assert ((one - other).abs() < 0.1 * std).all()  # strengths are settled to a tenth of a coefficient


@pytest.mark.long
def test_steps_count_on_from_law_to_law():
    found = recover(steep()[:4000], alpha=0.5, n_basis=1, law="exact")
    own = found.metrics["steps_of"]
    assert list(own) == ["frozen", "corrected", "exact"]
    assert found.metrics["steps"] == sum(own.values()) == len(found.history)
    assert [entry["fit/phase"] for entry in found.history] == [
        i + 1.0 for i, n in enumerate(own.values()) for _ in range(n)
    ]
    assert [entry["step"] for entry in found.history] == [1.0 + i for i in range(len(found.history))]


@pytest.mark.long
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
    with pytest.raises(InputError, match='law "corrected" must have engine fisher or evidence with a MLPHead'):
        recover(data, alpha=0.5, coefficients="mlp", law="corrected", engine="lbfgs")
    with pytest.raises(InputError, match="a head with a period"):
        recover(data, alpha=0.5, coefficients="mlp", law="exact", periodic=False, period=1e6, origin=-5e5)
    with pytest.raises(InputError, match="law must be one of"):
        recover(data, alpha=0.5, n_basis=3, law="euler")
    with pytest.raises(InputError, match="std must be one of"):
        recover(data, alpha=0.5, n_basis=3, std="exact")
    plane = simulate(Dynamics.named("plane"), 100, 5, 0.1, seed=0).transitions()
    with pytest.raises(InputError, match="2 coordinates"):
        recover(plane, alpha=0.3, n_basis=3, law="exact")
    many = Transitions(data.x, data.dx, np.linspace(0.05, 0.15, len(data)))
    with pytest.raises(InputError, match="at most 12 distinct dt"):
        recover(many, alpha=0.5, n_basis=3, law="exact")


def test_short_steps_are_refused_before_anything_is_fitted(monkeypatch):
    data = steep()[:2000]
    monkeypatch.setattr("levytorch.training.phases.maximise.Maximise.step", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(InputError, match="steps this short"):
        recover(Transitions(data.x, data.dx / 1000, 1e-7), alpha=0.5, n_basis=3, law="exact")
