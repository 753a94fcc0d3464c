"""The rival of docs/compare.md is what its formulas say: constants within its own statistical errors, terms found."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gamma

from benchmarks.kramers_moyal import EPS, RATIO, RING, jump_constant, nonlocal_kramers_moyal, polynomial
from levytorch.law import LevyStep

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
