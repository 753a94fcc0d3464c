"""The rival of docs/compare.md is what its formulas say: constants within its own statistical errors, terms found."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gamma

from benchmarks import cramer_rao
from benchmarks.cramer_rao import information, least_errors
from benchmarks.kramers_moyal import EPS, RATIO, RING, jump_constant, nonlocal_kramers_moyal, polynomial
from levytorch.law import LevyStep, score

ENDS, H = (-2.0, 2.0), 1e-3


@pytest.mark.parametrize("a", [0.6, 1.05, 1.5, 1.9])
def test_the_constant_of_the_jump_density(a):
    # of a characteristic function exp(-|k|^a): 2 sin(pi a / 2) Gamma(1 + a) / (2 pi) on either side
    assert jump_constant(a) / 2 == pytest.approx(math.sin(math.pi * a / 2) * gamma(1 + a) / math.pi, rel=1e-12)


def test_constants_come_back_within_their_errors():
    n, a, b, Sigma2, sigma = 400_000, 1.2, 3.0, 2.0, 4.0
    torch.manual_seed(4)
    x = np.random.default_rng(4).uniform(*ENDS, n)
    dx = LevyStep(b, Sigma2 / 2, sigma**a, a / 2, H).sample((n,)).to(torch.float64).numpy()
    found = nonlocal_kramers_moyal(x, dx, H, ENDS)
    rings = [int(((np.abs(dx) >= RING * RATIO**k) & (np.abs(dx) < RING * RATIO ** (k + 1))).sum()) for k in (0, 1)]
    error = math.sqrt(sum(1 / count for count in rings)) / math.log(RATIO)
    assert abs(found.index - a) < 4 * error
    at = np.zeros(1)
    # log sigma = log(share) / a + ..., whose largest error is that of a, at distances from RING on
    assert abs(math.log(found.sigma(at)[0] / sigma)) < 4 * error * abs(math.log(sigma * H ** (1 / a) / RING)) / a
    inside = dx[np.abs(dx) < EPS]
    assert abs(found.b(at)[0] - b) < 4 * 2 * inside.std() / H / math.sqrt(n)  # two: polynomials at one state
    jumps = sigma**a * jump_constant(a) * EPS ** (2 - a) / (2 - a)
    # what is taken off follows from the rings: jumps ~ share a RING^a EPS^-a / (2 - a), by far most of it through a
    slope = 1 / a + math.log(RING / EPS) + 1 / (2 - a)
    off = jumps * (slope * error + 1 / math.sqrt(sum(rings))) + 2 * (inside**2).std() / H / math.sqrt(n)
    assert abs(found.Sigma2(at)[0] - Sigma2) < 4 * off < Sigma2


def test_sparse_regression_keeps_the_terms_that_are_there():
    x = np.linspace(-2, 2, 30)
    noise = 1e-3 * np.random.default_rng(0).standard_normal(30)
    curve = polynomial(x, x - x**3 + noise, np.ones(30), 3, True)
    assert curve(np.zeros(1))[0] == 0.0  # neither a constant
    assert curve(np.ones(1))[0] == pytest.approx(-curve(-np.ones(1))[0])  # nor a square
    assert curve(np.ones(1) * 2)[0] == pytest.approx(-6.0, abs=0.01)
    assert polynomial(x, noise + 1, np.ones(30), 3, False)(np.zeros(1))[0] != 0.0


def test_what_the_data_knows_of_nearly_brownian_steps():
    """Without jumps a step says h / (2 D_o) about b and 1 / (2 D_o^2) about D_o."""
    one = np.ones(2)
    found = information(0.7 * one, 0.5 * one, 1e-9 * one, 0.75, H)[0]
    assert found[0, 0] == pytest.approx(H / (2 * 0.5), rel=1e-4)
    assert found[1, 1] == pytest.approx(1 / (2 * 0.5**2), rel=1e-4)
    assert abs(found[0, 1]) < 1e-9


@pytest.mark.long
def test_the_least_error_of_constants_is_that_of_the_likelihood(monkeypatch):
    """From samples of the law: the variance of a maximum is the inverse of the mean of products of scores."""
    monkeypatch.setattr(cramer_rao, "_STATES", 2)  # constants are the same at all of them
    a, n = 1.2, 400_000
    torch.manual_seed(0)
    law = LevyStep(0.5, 1.0, 2.0**a, a / 2, H)
    dx = law.sample((n,)).to(torch.float64)
    s = score(dx, 0.5, 1.0, 2.0**a, a / 2, H, wrt_alpha=True)
    # a moves D_f = sigma^a, too
    rows = torch.stack([s.b, s.D_o / 2, s.D_f * a * 2.0 ** (a - 1), s.D_f * 2.0**a * math.log(2) + s.alpha / 2])
    std = torch.linalg.inv(rows @ rows.T).diagonal().sqrt()
    curves = [lambda x, v=v: np.full_like(x, v) for v in (0.5, 2.0, 2.0)]
    least = least_errors(*curves, a, H, n, ENDS, (1, 1, 1))
    expected = [float(std[3]), float(std[2]) / 2, float(std[1]) / 2, float(std[0]) / 0.5]
    assert least == pytest.approx(expected, rel=0.03)  # some 3000 jumps are far: 2 % of an information
