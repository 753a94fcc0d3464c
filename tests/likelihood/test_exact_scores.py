"""All scores at once against differences, and the centered score against closed forms of constant coefficients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch import Transitions, tail_probability
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.data.lattice import Lattice
from levytorch.likelihood.corrected import Strata, expected_score, informations
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.tail import TailSettings
from tests.likelihood.expected_batch import information, scores

LAW, FROZEN = ExactLaw(), FrozenLaw()


def head_of(alpha: float, *, learned: bool = False, period: float = 5.0, wave: float = 0.3) -> FourierHead:
    head = FourierHead(
        n_basis=3, alpha=AlphaSpec("constant" if learned else "fixed", alpha), period=period, origin=-1.0
    )
    theta = head.flat()
    theta[:9] = torch.tensor([0.5, wave, -wave, 1.0, wave, wave, 0.8, -wave, wave], dtype=torch.float64)
    head.set_flat(theta)
    return head


@pytest.mark.long
@pytest.mark.parametrize(("alpha", "learned"), [(0.3, False), (0.5, True), (0.8, False)])
def test_scores_are_those_of_each_transition(alpha, learned):
    head = head_of(alpha, learned=learned)
    rows = expected_scores(LAW, head, 0.1, cuts=(-7.0, 3.0))
    x = rows.states[rows.which]
    some = torch.arange(0, len(x), 37)
    some = some[rows.p[some] > 1e-8]
    expected = scores(LAW, head, x[some], rows.dx[some], 0.1)
    size = (rows.p[some, None] * expected.square()).sum(0).sqrt() / rows.p[some].sum().sqrt()
    core = rows.dx[some].abs() < 12
    assert bool(core.any())
    assert float(((rows.scores[some] - expected).abs() / size)[core].max()) < 5e-3
    # cells end where they are told to, and hold what the law says lies between
    for low, high in ((-7.0, 3.0), (3.0, math.inf), (-math.inf, -7.0)):
        found = torch.zeros(len(rows.states), dtype=torch.float64).index_add_(0, rows.which, rows.within(low, high))
        step = LAW.step(head, 0.1)
        upper = step.lower(rows.states, torch.full_like(rows.states, high)) if math.isfinite(high) else 1.0
        lower = step.lower(rows.states, torch.full_like(rows.states, low)) if math.isfinite(low) else 0.0
        assert float((found - (upper - lower)).detach().abs().max()) < 2e-4


@pytest.mark.long
@pytest.mark.parametrize(("alpha", "learned"), [(0.3, False), (0.5, True)])
def test_information_is_that_of_all_transitions(alpha, learned):
    head = head_of(alpha, learned=learned)
    rows = expected_scores(LAW, head, 0.1)
    own = rows.scores.T @ (rows.p[:, None] * rows.scores) / len(rows.states)
    x = -1.0 + 5.0 * torch.arange(128, dtype=torch.float64) / 128  # the states of these, evenly
    expected = information(LAW, head, x, torch.full_like(x, 1 / 128), 0.1)
    scale = expected.diagonal().rsqrt()
    assert float(((own - expected) * scale * scale[:, None]).abs().max()) < 5e-3
    assert float(((rows.p[:, None] * rows.scores).sum(0) / len(rows.states) * scale).abs().max()) < 2e-3


def lattice(**thresholds) -> Lattice:
    x = np.random.default_rng(0).uniform(-1, 4, 500)
    return Lattice.from_transitions(
        Transitions(x, 3 * np.sin(7 * x), 0.1), period=5.0, origin=-1.0, mu=0.2, **thresholds
    )


def test_nothing_is_expected_of_the_score_of_constants():
    head = head_of(0.4, wave=0.0)
    strata = Strata.of(TailSettings(), lattice())
    expected, _ = expected_score(head, FROZEN, LAW, strata)
    scale = informations(head, FROZEN, LAW, strata).exact.slope.diagonal().sqrt()
    assert float((expected["main"] / strata.n / scale).abs().max()) < 1e-3


def test_expected_scores_of_strata():
    head = head_of(0.4, wave=0.0)
    tail = TailSettings(method="conditional", CT=2.0, TRT=9.0)
    strata = Strata.of(tail, lattice(CT=2.0, TRT=9.0))
    expected, R = expected_score(head, FROZEN, LAW, strata)
    theta = head.theta
    c = head(torch.zeros(1, dtype=torch.float64))
    with torch.enable_grad():
        beyond = [
            tail_probability(torch.tensor(u), torch.tensor(0.2), c.b, c.D_o, c.D_f, c.alpha, 0.1) for u in (2.0, 9.0)
        ]
        masses = {"core": torch.log(1 - beyond[0]), "tail": torch.log(beyond[0] - beyond[1])}
        slopes = {name: torch.autograd.grad(m.sum(), theta, retain_graph=True)[0] for name, m in masses.items()}
    assert float(beyond[0].detach()) == pytest.approx(R, rel=1e-3)
    pairs = {"core": strata.n - float(strata.tail.pairs.sum()), "tail": float(strata.tail.pairs.sum())}
    scale = informations(head, FROZEN, LAW, strata).exact.slope.diagonal().sqrt()
    for name, slope in slopes.items():
        constants = [0, 3, 6]
        difference = (expected[name] / pairs[name] - slope)[constants] / scale[constants]
        assert float(difference.abs().max()) < 1e-2


def test_information_of_constants_is_the_frozen_laws():
    head = head_of(0.4, wave=0.0)
    strata = Strata.of(TailSettings(), lattice())
    found = informations(head, FROZEN, LAW, strata)
    constants = torch.tensor([0, 3, 6])
    for matrix in (found.corrected.slope, found.corrected.variance):
        ratio = matrix[constants, constants] / found.exact.slope[constants, constants]
        assert float((ratio - 1).abs().max()) < 2e-3


def test_curvature_of_the_centered_score_is_an_information():
    """Its slope is not symmetric, and an inverse of half of it gave standard errors of 29,000 %."""
    head = head_of(0.4, wave=0.5)
    found = informations(head, FROZEN, LAW, Strata.of(TailSettings(), lattice())).corrected
    A, B = found.slope, found.variance
    scale = found.curvature.diagonal().rsqrt()
    assert float(((A - A.T) * scale * scale[:, None]).abs().max()) > 1e-2
    expected = A.T @ torch.linalg.solve(B, A)
    assert float(((found.curvature - expected) * scale * scale[:, None]).abs().max()) < 1e-6
