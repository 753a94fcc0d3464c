"""The roughness penalty: smooths where data is thin, leaves alone where it speaks, chosen by the evidence."""

import math

import numpy as np
import pytest
import torch

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
