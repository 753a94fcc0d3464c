"""Widening of standard errors where the variances of harmonics are estimated."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import invgamma

from levytorch import Dynamics, Transitions, recover, simulate
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.likelihood.penalty import SHAPE, RoughnessPenalty, widening
from tests.training.problems import ALPHA, steps

X = torch.linspace(0, 2 * math.pi, 129, dtype=torch.float64)[:-1]


def brute_force(est, v, rate, theta):
    """E[(theta_0 - theta)^2] under a bivariate Student prior (s ~ IG(SHAPE, rate) integrated out) on a grid."""
    reach = 12 * math.sqrt(v) + 3 * float(np.abs(est).max())
    x = np.linspace(-reach, reach, 2001)
    a, b = np.meshgrid(x, x, indexing="ij")
    log_p = -(SHAPE + 1) * np.log(rate + 0.5 * (a**2 + b**2)) - 0.5 * ((a - est[0]) ** 2 + (b - est[1]) ** 2) / v
    p = np.exp(log_p - log_p.max())
    return float((p * (a - theta) ** 2).sum() / p.sum())


@pytest.mark.long
@pytest.mark.parametrize("est", [(0.3, -0.1), (2.0, 1.0), (9.0, -4.0)])
@pytest.mark.parametrize("s", [0.05, 0.5, 20.0])
def test_total_variance(est, s):
    """Against the posterior under the Student prior itself, whose scale is that of the one harmonic there is."""
    penalty = RoughnessPenalty(FourierHead(3, alpha=AlphaSpec("fixed", 0.5)), "harmonics")
    penalty.strengths[:] = 1 / s
    v = 1.0
    share = s / (s + v)
    theta = torch.zeros(9, dtype=torch.float64)
    theta[1:3] = share * torch.tensor(est, dtype=torch.float64)
    factors = widening(penalty, theta, share * v * torch.eye(9, dtype=torch.float64))
    wide = brute_force(np.array(est), v, SHAPE * s, share * est[0])
    assert float(factors[1] ** 2) == pytest.approx(max(wide / (share * v), 1.0), rel=2e-3)
    assert factors[0] == factors[3] == 1.0  # means are not shrunk


def test_well_determined_harmonics_keep_their_errors():
    penalty = RoughnessPenalty(FourierHead(5, alpha=AlphaSpec("fixed", 0.5)), "harmonics")
    penalty.strengths[:] = 1.0
    theta = torch.ones(15, dtype=torch.float64)
    np.testing.assert_allclose(widening(penalty, theta, 1e-6 * torch.eye(15, dtype=torch.float64)), 1.0, atol=1e-3)


@pytest.mark.long
def test_what_a_series_leaves_out():
    """Against a plain sum of medians."""
    head = FourierHead(11, alpha=AlphaSpec("fixed", 0.3), known={"D_o": 1.0})
    penalty = RoughnessPenalty(head, "harmonics")
    j = torch.arange(1, 6, dtype=torch.float64)
    penalty.strengths[1:6], penalty.strengths[-5:] = j**4.5 / 3.0, j**9 / 0.2
    b, D_o, D_f = penalty.left_out()
    beyond = np.arange(6, 2_000_000, dtype=float)
    assert b**2 == pytest.approx(float(invgamma.median(0.5, scale=0.5 * 3.0 * beyond**-4.5).sum()), rel=1e-6)
    assert D_o == 0.0
    assert 0.0 < D_f < 0.01 * b
    assert RoughnessPenalty(head, "evidence").left_out() == [0.0] * 3


@pytest.mark.long
def test_what_is_left_out_is_part_of_every_standard_error():
    data = steps(4_000, 0, D_o=lambda x: 4 + 2 * np.cos(3 * x))
    data = Transitions(data.x, data.dx, data.dt, trajectory=np.arange(4_000) // 40)
    found = recover(data, alpha=ALPHA, n_basis=9, law="frozen")
    missing = found.metrics["left_out_of_series"]
    added = missing[0] * found.head.units.length / found.head.units.time  # b is its own predictor
    for kind in ("fisher", "robust", "bootstrap"):
        found.metrics["left_out_of_series"] = missing
        with_it = found.std(X, kind=kind)
        del found.metrics["left_out_of_series"]
        without = found.std(X, kind=kind)
        for one, other, size in zip(with_it, without, missing):
            assert (one > other).all() == (size > 0)
        np.testing.assert_allclose(with_it[0] ** 2 - without[0] ** 2, added**2, rtol=1e-8)


@pytest.mark.long
def test_bands_allow_for_a_kink_that_the_series_cannot_have():
    """With much data the error of b is what 9 functions miss of a kink, which their own harmonics foretell."""
    system = {"b": lambda x: 3 * np.abs(np.sin(x / 2)), "D_o": 4.0, "D_f": 1.0}
    inside, bare = [], []
    for seed in range(2):
        found = recover(steps(400_000, seed, dt=1.0, **system), alpha=ALPHA, n_basis=9, law="frozen")
        error = (found.b(X) - torch.as_tensor(system["b"](X.numpy()))).abs()
        inside.append(float((error < 1.96 * found.std(X)[0]).double().mean()))
        found.metrics.pop("left_out_of_series")
        bare.append(float((error < 1.96 * found.std(X)[0]).double().mean()))
    assert np.mean(inside) > 0.9
    assert np.mean(bare) < 0.8


@pytest.mark.slow
def test_bands_hold():
    """Over 16 data sets the share of the cell within 95 % bands of b, D_o and D_f is not below 90 %; it would be, for
    b and D_f, without the widening.
    """
    truth = Dynamics.named("variable", alpha=0.3)
    x = torch.linspace(0, 2 * math.pi, 129, dtype=torch.float64)[:-1]
    inside = []
    for seed in range(300, 316):
        data = simulate(truth, 10_000, 40, 1 / 40, substeps=1, seed=seed).transitions()
        found = recover(data, alpha=0.3, n_basis=21, engine="evidence", penalty="harmonics", law="frozen")
        rows = zip(("b", "D_o", "D_f"), found.std(x))
        inside.append(
            [
                float(((getattr(found, c)(x) - getattr(truth, c)(x)).abs() < 1.96 * std).double().mean())
                for c, std in rows
            ]
        )
    assert np.mean(inside, 0).min() > 0.9
