"""Statistics beside the score: expectations by quadrature, sums pair by pair, slope and variance by the exact law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch.coefficients import AlphaSpec, Coefficients
from levytorch.coefficients.links import TemperingSpec
from levytorch.data import make_pools
from levytorch.data.batches import full_batch
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from levytorch.likelihood.frozen import FrozenLaw, sweep
from levytorch.likelihood.likelihood import make_objective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.simulated import SimulatedScore, rows_at, windows_of
from levytorch.likelihood.tail import TailSettings
from levytorch.likelihood.windows import Windows
from tests.likelihood.test_simulated import fourier, known_pairs, posed, steps_of

D = torch.float64
HEADS = {
    "alpha known": lambda: fourier(),
    "alpha learned": lambda: fourier(alpha=AlphaSpec("constant", 0.7)),
    "alpha(x)": lambda: fourier(alpha=AlphaSpec("function", 0.5), n_basis_alpha=3),
    "tempered": lambda: fourier(tempering=TemperingSpec("learn", 0.5)),
}


@pytest.mark.parametrize("case", HEADS)
def test_expectations_are_integrals(case):
    head, dt = HEADS[case](), torch.tensor(0.1, dtype=D)
    windows = Windows(FrozenLaw("contour"))
    with torch.no_grad():
        c = head(torch.tensor([0.3, 2.0, 5.0], dtype=D))
        alpha, lam = c.alpha.expand(3), c.tempering
        expected = windows.expected(head, c, dt)
        for i in range(3):
            one = Coefficients(c.b[i], c.D_o[i], c.D_f[i], alpha[i], lam)
            z = torch.linspace(-9, 9, 3001, dtype=D)  # widths; the trapezoidal rule is exact to rounding
            dx = one.b * dt + z * windows.width(one, dt)
            many = Coefficients(*(v.expand(len(z)) for v in (one.b, one.D_o, one.D_f)), c.alpha, lam)
            if c.alpha.dim():
                many = many._replace(alpha=one.alpha.expand(len(z)))
            density = windows.law.score(many, dx, dt).log_p.exp()
            integral = np.trapezoid((windows.statistics(head, many, dx, dt) * density).numpy(), dx.numpy())
            assert expected[1:, :, i].numpy() == pytest.approx(integral[1:], rel=1e-6, abs=1e-8)
    assert not bool(expected[0].any())


def test_sums_are_sums_over_the_pairs():
    head, data = known_pairs()
    objective = make_objective(head, make_pools(data[:300], CT=None), TailSettings(), FrozenLaw("table"))
    windows, batch = Windows(objective.law), full_batch(make_pools(data[:300], CT=None)).main
    found = windows.sums(head, batch, objective.bins, centered=True, products=True)
    dt = batch.dt.expand(len(batch.x))
    with torch.no_grad():
        each = rows_at(head, batch.x).statistics(windows, batch.dx, dt)
        rows = windows.statistics(head, head(batch.x), batch.dx, dt) - windows.expected(head, head(batch.x), dt)
    assert torch.allclose(found.gradient, each.sum(0), rtol=1e-6, atol=1e-6)
    P = head.theta.numel()
    assert torch.allclose(found.gradient[:P], sweep(head, objective.law, batch, objective.bins).gradient)
    # of D_f with itself and with the window, in its predictor
    chain = head.chain(head.theta.detach(), head.design(batch.x))
    for one, other in ((2, 2), (2, 8), (5, 8)):
        product = rows[one // 3, one % 3] * rows[other // 3, other % 3] * chain.slope[one % 3] * chain.slope[other % 3]
        assert float(found.second[one, other].sum()) == pytest.approx(float(product.sum()), rel=2e-2, abs=0.1)


def test_where_they_are_used():
    _, _, _, objective = posed("none")
    assert windows_of(objective).widest == math.inf
    _, _, _, objective = posed("conditional")
    windows = windows_of(objective)
    assert windows is not None
    assert float(objective.masses.CT.min()) > 6 * windows.widest > 0
    _, data = known_pairs()
    few = make_objective(fourier(), make_pools(data[:20_000], CT=None), TailSettings(), FrozenLaw("table"))
    assert windows_of(few) is None
    near = TailSettings(method="conditional", CT=0.5, TRT=12.0)
    pools = make_pools(data, CT=0.5, TRT=12.0, min_tail=1)
    assert windows_of(make_objective(fourier(), pools, near, FrozenLaw("table"))) is None
    plane = fourier(dim=2)
    flat = make_objective(
        plane, make_pools(steps_of(plane, 0.3, n=5000), CT=None), TailSettings(), FrozenLaw("direct", 2)
    )
    assert windows_of(flat) is None


@pytest.mark.long
def test_slope_and_variance_are_those_of_the_exact_law():
    head, n = fourier(), 200_000
    data = steps_of(head, 0.1, seed=7, n=n)
    objective = make_objective(head, make_pools(data, CT=None), TailSettings(), FrozenLaw("table"))
    windows = windows_of(objective)
    assert windows is not None
    score = SimulatedScore(objective, seed=1, n_simulated=n, windows=windows)
    U, ev = score.centered()
    found = score.information(ev)
    rows = expected_scores(ExactLaw().fixed(head, torch.tensor([0.1], dtype=D)), head, 0.1)
    S = len(rows.states)
    p = rows.p / torch.zeros(S, dtype=D).index_add_(0, rows.which, rows.p)[rows.which]
    dt = torch.full((len(rows.dx),), 0.1, dtype=D)
    with torch.no_grad():
        f = rows_at(head, rows.states[rows.which]).statistics(windows, rows.dx, dt)
    mean = torch.zeros((S, f.shape[1]), dtype=D).index_add_(0, rows.which, p[:, None] * f)
    A, apart = f.T @ ((p / S)[:, None] * rows.scores), f - mean[rows.which]
    B = apart.T @ ((p / S)[:, None] * apart)
    I = rows.scores.T @ ((p / S)[:, None] * rows.scores)
    of_f, of_score = B.diagonal().sqrt(), I.diagonal().sqrt()
    # products of n pairs, with tails as heavy as those of a Gaussian's square
    assert float(((found.slope - A) / of_f[:, None] / of_score).abs().max()) < 10 / math.sqrt(n / 10)
    assert float(((found.variance - B) / of_f[:, None] / of_f).abs().max()) < 10 / math.sqrt(n / 10)
    # with the statistics beside it the score is worth nearly as much as the exact one, alone it is not
    P = len(I)
    alone = A[:P].T @ symmetric_inverse(B[:P, :P]) @ A[:P]
    whole = A.T @ symmetric_inverse(B) @ A
    lost = [symmetric_inverse(part).diagonal() / symmetric_inverse(I).diagonal() - 1 for part in (alone, whole)]
    assert float(lost[1].max()) < 0.5 * float(lost[0].max())
    # and at the truth the equation holds: n U^T B^-1 U has a chi-squared law of 3 P degrees
    chi = float(n * U @ symmetric_inverse(found.variance) @ U) / len(U)
    assert chi < 1 + 4.5 * math.sqrt(2 / len(U))


@pytest.mark.long
@pytest.mark.parametrize("method", ["conditional", "tcf"])
def test_zero_at_the_truth_where_tails_are_lost(method):
    _, _, _, objective = posed(method)
    score = SimulatedScore(objective, seed=1, n_simulated=200_000, windows=windows_of(objective))
    U, ev = score.centered()
    assert ev.R_theta is None or ev.R_theta > 0
    B = score.information(ev).variance
    beside = slice(objective.head.theta.numel(), None)  # the score itself is tested against the exact law
    chi = float(objective.n * U[beside] @ symmetric_inverse(B[beside, beside]) @ U[beside]) / len(U[beside])
    assert chi < 1 + 4.5 * math.sqrt(2 / len(U[beside]))
