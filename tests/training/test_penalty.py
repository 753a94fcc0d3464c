"""The roughness penalty: smooths where data is thin, leaves alone where it speaks, chosen by the evidence."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from levytorch import InputError
from levytorch.coefficients import AlphaSpec, FourierHead, SplineHead
from levytorch.likelihood.penalty import SHAPE, RoughnessPenalty, trend
from tests.training.problems import ALPHA, steps
from tests.training.problems import frozen_recover as recover

X = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)[:-1]


def error(found, expected):
    return float(((found - expected).square().mean() / expected.square().mean()).sqrt())


def test_evidence_beats_no_penalty_on_little_data():
    data = steps(4000, 3, D_o=lambda x: 4 + np.cos(x))
    truth = (5 + 0 * X, 4 + torch.cos(X), 3 + 0 * X)
    plain = recover(data, alpha=ALPHA, n_basis=21, engine="fisher")
    smooth = recover(data, alpha=ALPHA, n_basis=21, penalty="evidence")
    assert smooth.converged
    for name, expected in zip(("b", "D_o", "D_f"), truth):
        assert error(getattr(smooth, name)(X), expected) < 0.7 * error(getattr(plain, name)(X), expected)


def test_evidence_keeps_what_the_data_shows():
    data = steps(100_000, 3, D_o=lambda x: 4 + 2 * np.cos(x))
    found = recover(data, alpha=ALPHA, n_basis=11, penalty="evidence")
    assert found.converged
    assert error(found.D_o(X), 4 + 2 * torch.cos(X)) < 0.015


def test_a_huge_fixed_strength_gives_constants():
    data = steps(20_000, 3, D_o=lambda x: 4 + 2 * np.cos(3 * x))
    found = recover(data, alpha=ALPHA, n_basis=11, penalty=1e12)
    constant = recover(data, alpha=ALPHA, n_basis=1)
    assert float(found.D_o(X).std()) < 1e-3
    assert float(found.D_o(0.0)) == pytest.approx(float(constant.D_o(0.0)), rel=1e-3)


def test_data_on_a_part_of_the_cell_does_not_extrapolate_wildly():
    rng = np.random.default_rng(0)
    data = steps(20_000, 3, x=rng.uniform(1.0, 1.5, 20_000))
    found = recover(data, alpha=ALPHA, n_basis=11, penalty="evidence")
    assert float(found.D_o(X).max() / found.D_o(X).min()) < 1.5


def settled(penalty: RoughnessPenalty, theta, information) -> RoughnessPenalty:
    """Strengths at the fixed point of the evidence, for data whose information does not depend on theta."""
    estimate = theta
    for _ in range(500):
        posterior = torch.linalg.solve(information + torch.diag(penalty.precision()), information @ theta)
        penalty.update(posterior, information)
        estimate = posterior
    assert bool(torch.isfinite(estimate).all())
    return penalty


def test_harmonics_that_stand_out_are_left_alone_and_do_not_loosen_the_others():
    """Coefficients known to one unit each: a fifth harmonic of size 30 beside harmonics of noise."""
    head = FourierHead(13, alpha=AlphaSpec.parse(0.3))
    K = head.basis.size
    theta = torch.tensor([50.0, 1.0, -1.0, 0.7, 0.7, -0.5, 0.9, 0.4, -1.1, 30.0, 30.0, 0.6, -0.6], dtype=torch.float64)
    theta, information = theta.repeat(3), torch.eye(3 * K, dtype=torch.float64)
    harmonics = settled(RoughnessPenalty(head, "harmonics"), theta, information)
    evidence = settled(RoughnessPenalty(head, "evidence"), theta, information)
    kept = {p: 1.0 / (1.0 + p.precision()[:K]) for p in (harmonics, evidence)}
    assert float(kept[harmonics][9]) > 0.99  # of the one that stands out; its James-Stein factor is 1 - 2 / 1800
    assert float(kept[harmonics][11]) < 0.2  # the noise beside it is taken away
    assert float(kept[evidence][9]) < 0.5  # one strength for all cannot do both
    assert float(kept[harmonics][0]) == 1.0  # constants are free
    assert torch.equal(harmonics.precision()[:K], harmonics.precision()[K : 2 * K])


def test_the_fixed_point_of_harmonics_is_what_it_is_said_to_be():
    head = FourierHead(9, alpha=AlphaSpec.parse(0.3))
    K = head.basis.size
    theta = torch.linspace(-3, 5, 3 * K, dtype=torch.float64)
    information = torch.diag(torch.linspace(0.5, 4.0, 3 * K, dtype=torch.float64))
    found = settled(RoughnessPenalty(head, "harmonics"), theta, information)
    precision, known = found.precision(), information.diagonal()
    posterior = known * theta / (known + precision)
    j, s = head.basis.harmonic_numbers()[1::2], 1.0 / precision[1:K:2]

    def improbable(trend):  # minus the logarithm of the inverse-gamma densities of all s_j, of shape SHAPE
        return -float(stats.invgamma.logpdf(s, SHAPE, scale=SHAPE * np.exp(trend[0]) / j.numpy() ** trend[1]).sum())

    log_m, p = optimize.minimize(
        improbable,
        [0.0, 5.0],
        method="Nelder-Mead",
        bounds=[(-30, 30), (4, 8)],
        options={"xatol": 1e-9, "fatol": 1e-13},
    ).x
    for row, number in enumerate(j):
        mine = slice(2 * row + 1, 2 * row + 3)
        determined = (known[:K] / (known[:K] + precision[:K]))[mine].sum()
        towards = 2 * SHAPE * np.exp(log_m) / number**p
        expected = (posterior[:K][mine].square().sum() + towards) / (determined + 2 * SHAPE)
        assert float(s[row]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("power", "found"), [(3.0, 4.0), (4.5, 4.5), (7.0, 7.0), (12.0, 8.0)])
def test_the_trend_is_as_steep_as_the_variances_say(power, found):
    j = torch.arange(1, 11, dtype=torch.float64)
    towards = trend(j**power / 3.0, j)
    np.testing.assert_allclose(torch.log(towards[0] / towards[-1]) / math.log(10), found, atol=1e-5)
    np.testing.assert_allclose((j**power / 3.0 * towards).mean(), 1.0)


def test_strengths_of_harmonics_are_kept_and_given_again():
    data = steps(20_000, 3, D_o=lambda x: 4 + 2 * np.cos(3 * x))
    found = recover(data, alpha=ALPHA, n_basis=9, penalty="harmonics")
    assert found.converged
    strengths = found.metrics["penalty_strengths"]
    assert len(strengths) == 3 * 5
    again = recover(data, alpha=ALPHA, n_basis=9, engine="fisher", penalty=strengths)
    # log strengths have settled to 0.1, and a factor of shrinking moves by at most a quarter of that: 0.025 of what is
    # shrunk, which is some two standard errors at most where it is shrunk by half
    assert float(((again.theta - found.theta).abs() / found.covariance.diagonal().sqrt()).max()) < 0.05
    assert bool((torch.stack(found.std(X, kind="robust")) > 0).all())
    with pytest.raises(InputError, match="one number, 3 or 15, found 4"):
        recover(data, alpha=ALPHA, n_basis=9, engine="fisher", penalty=[1.0] * 4)


@pytest.mark.parametrize("kind", ["evidence", "harmonics"])
@pytest.mark.parametrize("K", [1, 3, 5, 7])
@pytest.mark.parametrize("known", [{}, {"D_o": 1.0}, {"D_o": 0.0, "D_f": 2.0}])
@pytest.mark.parametrize("line", [False, True])
def test_strengths_mean_the_same_when_they_are_given_again(kind, K, known, line):
    spec = AlphaSpec.parse("learn")
    options = {"alpha": spec, "known": known}
    head = SplineHead(max(K, 5), (-1.0, 1.0), **options) if line else FourierHead(K, **options)
    made = RoughnessPenalty(head, kind)
    made.strengths = torch.linspace(1.0, 3.0, len(made.strengths), dtype=torch.float64)
    again = RoughnessPenalty(head, made.strengths.tolist())
    assert torch.equal(again.precision(), made.precision())
    other = RoughnessPenalty(head, "harmonics" if kind == "evidence" else "evidence")
    other.restore(made.state())  # of a run that began when another kind was the default
    if len(RoughnessPenalty(head, "harmonics").strengths) != len(RoughnessPenalty(head, "evidence").strengths):
        assert torch.equal(other.precision(), made.precision())


def test_cubics_have_a_strength_of_their_own():
    head = SplineHead(9, (-1.0, 1.0))
    given = RoughnessPenalty(head, [2.0, 3.0, 5.0, 7.0])
    assert given.strengths.tolist() == [2.0, 3.0, 5.0, 7.0]
    b = head.bases[0].harmonic_numbers() ** 4
    expected = b * torch.tensor([2.0, 2.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0], dtype=torch.float64)
    assert torch.equal(given.precision()[:9], expected)
    assert torch.equal(given.precision()[9:18], 5.0 * head.bases[1].harmonic_numbers() ** 4)
    assert RoughnessPenalty(head, [2.0, 5.0, 7.0]).strengths.tolist() == [2.0, 2.0, 5.0, 7.0]
    with pytest.raises(InputError, match="one number, 3 or"):
        RoughnessPenalty(head, [1.0] * 5)


@pytest.mark.parametrize(("drift", "least", "most"), [("cubic", 0.2, 0.8), ("line", 0.6, 2.0)])
def test_cubics_apart_gain_on_cubics_and_cost_little_elsewhere(drift, least, most):
    # squared errors of b in linear regressions; of each of 12 data sets errors of some four coefficients count, so that
    # the ratio (0.5 and 1.3 over many) has a relative standard error of about sqrt(2 * 2 / (12 * 4)) = 0.3 at most
    x = torch.linspace(-2, 2, 201, dtype=torch.float64)
    b = x - x**3 if drift == "cubic" else -x
    noise = torch.randn((12, 201), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = {}
    for free in ("auto", "lines"):
        head = SplineHead(12, (-2.0, 2.0), free=free)
        rows = head.bases[0].rows(x)
        information = torch.eye(head.flat().numel(), dtype=torch.float64)
        information[:12, :12] = rows @ rows.T
        squares[free] = 0.0
        for values in b + noise:
            right = torch.zeros(len(information), dtype=torch.float64)
            right[:12] = rows @ values
            penalty = RoughnessPenalty(head, "evidence")
            for _ in range(60):
                theta = torch.linalg.solve(information + torch.diag(penalty.precision()), right)
                if penalty.update(theta, information) < 1e-3:
                    break
            squares[free] += float((theta[:12] @ rows - b).square().mean())
    assert least < squares["auto"] / squares["lines"] < most
