"""The tempered law against 360 points by mpmath, closed forms, its limits, and itself by other routes."""

import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import kve

import levytorch
from levytorch import LevyStep, log_density, tail_probability
from levytorch.errors import InputError
from levytorch.law import quadrature, score
from tests.law import tempered_oracle
from tests.law.tempered_oracle import FIRST, PARAMETERS, read_table

D = torch.float64
WIDE = [  # y, A, B, alpha, lam: center, shoulder, exponential tail; split and unsplit; all but Gaussian; all but stable
    (0.0, 1.0, 0.5, 0.3, 0.7),
    (0.9, 1.0, 0.01, 0.7, 3.0),
    (30.0, 1.0, 0.01, 0.2, 0.5),
    (8.0, 1.0, 40.0, 0.6, 30.0),
    (5.0, 0.0, 2.0, 0.45, 0.02),
    (2.0, 1.0, 1.0, 0.9, 1e-5),
    (12.0, 0.3, 6.0, 0.1, 2.0),
]


def tensors(points):
    return [torch.tensor(column, dtype=D) for column in zip(*points)]


@cache
def table(d):
    rows = [r for r in read_table() if r["d"] == str(d)]
    point = [torch.tensor([float(r[k]) for r in rows], dtype=D) for k in PARAMETERS]
    want = np.array([[float(r[k]) for r in rows] for k in ("log_p", *FIRST, "log_tail")])
    return point, want


@pytest.mark.long
def test_against_mpmath():
    point, want = table(1)
    assert want.shape[1] == 360
    assert want[0].min() < -195
    got = quadrature.density(*point, order=1).numpy()
    assert np.abs(got[0] - want[0]).max() < 1e-12
    assert (np.abs(got[1:] - want[1:6]) / np.abs(want[1:6])).max() < 1e-9
    tails = np.log(quadrature.tail(*point, order=0)[0].numpy())
    assert (np.abs(tails - want[6]) / (1.0 + np.abs(want[6]))).max() < 1e-11


@pytest.mark.long
@pytest.mark.parametrize("d", [2, 3])
def test_several_dimensions_against_mpmath(d):
    """Up to B lam^(2 alpha) = 1e5 and lam |y| = 540."""
    (y, A, B, alpha, lam), want = table(d)
    x = torch.nn.functional.pad(y[:, None], (0, d - 1))
    got = score(x, 0.0, A, B, alpha, 1.0, dim=d, wrt_alpha=True, tempering=lam)
    # 3.8e-11 in the plane, 1.5e-10 with the plainest code of every library, where cos and exp round differently
    assert np.abs(got.log_p.numpy() - want[0]).max() < 3e-10
    found = np.stack([-got.b[:, 0], got.D_o, got.D_f, got.alpha, got.tempering])
    size = np.abs(want[1:6]) + np.stack([0 * y, 0 * y, 1e-6 / B, 1e-4 + 0 * y, 0 * y])
    assert (np.abs(found - want[1:6]) / size).max() < 1e-7
    tails = np.log(tail_probability(y, torch.zeros(d, dtype=D), 0.0, A, B, alpha, 1.0, dim=d, tempering=lam).numpy())
    assert (np.abs(tails - want[6]) / (1.0 + np.abs(want[6]))).max() < 1e-10


def test_table_is_the_one_of_the_generator():
    cases = tempered_oracle.table_cases()
    committed = [[float(r[k]) for k in (*PARAMETERS, "d")] for r in read_table()]
    np.testing.assert_allclose(np.array(cases, dtype=float), committed, rtol=1e-13, atol=0)


@pytest.mark.parametrize("point", [WIDE[1], WIDE[4]])
def test_oracle_by_its_other_route(point):
    one, two = tempered_oracle.evaluate(*point), tempered_oracle.evaluate(*point, other=True)
    for a, b in zip((one.log_p, *one.first, one.log_tail), (two.log_p, *two.first, two.log_tail)):
        assert abs(a - b) <= mpmath.mpf(10) ** -16 * (1 + abs(b))


def test_normal_inverse_gaussian():
    """alpha = 1/2, A = 0: p = lam B / pi exp(lam B) K_1(lam s) / s, s = sqrt(y^2 + B^2); the cdf from SciPy."""
    y, B, lam = (torch.tensor(v, dtype=D) for v in ([0.0, 0.3, 4.0, 60.0], [0.7, 2.0, 0.1, 1.3], [1.0, 30.0, 5.0, 2.5]))
    s = torch.sqrt(y * y + B * B).numpy()
    z = lam.numpy() * s
    want = np.log((lam * B).numpy() / math.pi) + np.log(kve(1, z)) - z - np.log(s) + (lam * B).numpy()
    got = log_density(y, 0.0, 0.0, B, 0.5, 1.0, tempering=lam)
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-12)
    law = stats.norminvgauss((lam * B).numpy(), 0.0, scale=B.numpy())
    cdf = LevyStep(0.0, 0.0, B, 0.5, 1.0, tempering=lam).cdf(-y)
    np.testing.assert_allclose(cdf, law.cdf(-y.numpy()), rtol=1e-7, atol=1e-14)  # SciPy's is good to an absolute 1e-15


@pytest.mark.parametrize("d", [1, 2, 3])
def test_without_jumps_a_gaussian(d):
    y, A = torch.tensor([0.0, 1.0, 4.0], dtype=D), 0.8
    x = y if d == 1 else torch.nn.functional.pad(y[:, None], (0, d - 1))
    got = log_density(x, 0.0, A, 1e-200, 0.4, 1.0, dim=d, tempering=2.0)
    torch.testing.assert_close(got, -y * y / (4 * A) - 0.5 * d * math.log(4 * math.pi * A), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_joins_the_stable_law(d):
    """log p - B lam^(2 alpha) differs from the stable law by O((lam y)^(1 + 2 alpha)); no seam at the switch."""
    y, A, B, alpha = tensors(
        [(0.0, 1.0, 0.5, 0.3), (2.0, 0.5, 3.0, 0.8), (40.0, 1.0, 0.1, 0.12), (3.0, 0.0, 1.0, 0.55)]
    )
    x = y if d == 1 else y[:, None] * torch.eye(d, dtype=D)[0]
    stable = log_density(x, 0.0, A, B, alpha, 1.0, dim=d, method="contour")
    for lam in (1e-10, 1e-12, 1e-14, 3e-15, 1e-18, 0.0):
        got = log_density(x, 0.0, A, B, alpha, 1.0, dim=d, tempering=torch.tensor(lam, dtype=D))
        assert (got - B * lam ** (2 * alpha) - stable).abs().max() < 1e-10
    got = log_density(x, 0.0, A, B, alpha, 1.0, dim=d, tempering=0.0)
    assert torch.equal(got, log_density(x, 0.0, A, B, alpha, 1.0, dim=d))


@pytest.mark.parametrize("d", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_derivatives(d):
    point = [t.requires_grad_() for t in tensors([*WIDE[1:3], WIDE[6]])]

    def value(y, A, B, alpha, lam):
        x = y if d == 1 else y[:, None] * torch.tensor([0.6, 0.8, 0.0][:d], dtype=D)
        return log_density(x, 0.05, A, B, alpha, 1.0, dim=d, tempering=lam)

    assert torch.autograd.gradcheck(value, point, rtol=1e-5, atol=1e-7)
    assert torch.autograd.gradgradcheck(value, point, rtol=1e-4, atol=1e-5)

    def beyond(y, A, B, alpha, lam):
        center = 0.1 if d == 1 else torch.full((d,), 0.1, dtype=D)
        return tail_probability(y, center, 0.05, A, B, alpha, 1.0, dim=d, tempering=lam)

    assert torch.autograd.gradcheck(beyond, point, rtol=1e-4, atol=1e-9)


def test_scaling():
    """p(c y, c^2 A, c^(2 alpha) B, lam / c) = p / c: the tempering's own derivative from the others."""
    y, A, B, alpha, lam = tensors(WIDE)
    got = quadrature.density(y, A, B, alpha, lam, order=1)
    size = 1.0 + (y * got[1]).abs() + (2 * A * got[2]).abs() + (2 * alpha * B * got[3]).abs()
    rest = 1.0 + y * got[1] + 2 * A * got[2] + 2 * alpha * B * got[3] - lam * got[5]
    assert (rest.abs() / size).max() < 1e-12


@pytest.mark.parametrize("d", [1, 2, 3])
def test_integrates_to_one(d):
    """Mass within u by Gauss-Legendre panels, and the rest by tail_probability."""
    A, B, alpha, lam = 0.4, 0.6, 0.35, 0.8
    edges = np.linspace(0.0, 6.0, 25)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    r = torch.tensor(np.concatenate([0.5 * (b - a) * nodes + 0.5 * (a + b) for a, b in pairwise(edges)]))
    w = torch.tensor(np.tile(0.5 * (edges[1] - edges[0]) * weights, 24))
    area = {1: torch.full_like(r, 2.0), 2: 2 * math.pi * r, 3: 4 * math.pi * r * r}[d]
    x = r if d == 1 else torch.nn.functional.pad(r[:, None], (0, d - 1))
    inside = float((w * area * log_density(x, 0.0, A, B, alpha, 1.0, dim=d, tempering=lam).exp()).sum())
    center = 0.0 if d == 1 else torch.zeros(d, dtype=D)
    beyond = float(tail_probability(6.0, center, 0.0, A, B, alpha, 1.0, dim=d, tempering=lam))
    assert abs(inside + beyond - 1.0) < 1e-11


@pytest.mark.parametrize(("alpha", "lam", "D_f"), [(0.3, 0.4, 3.0), (0.7, 2.0, 6.0), (0.6, 300.0, 40.0)])
def test_samples(alpha, lam, D_f):
    """Kolmogorov and the variance 2 A + 2 alpha B lam^(2 alpha - 2), one to many parts and the Gaussian shortcut."""
    step = LevyStep(1.0, 0.5, D_f, alpha, 0.5, tempering=lam)
    n = 4000
    x = step.sample((n,), generator=torch.Generator().manual_seed(3))
    assert stats.kstest(step.cdf(x).numpy(), "uniform").pvalue > 1e-3
    assert float(step.mean) == 0.5
    z = (x - step.mean) ** 2
    assert abs(float(z.mean() - step.variance)) < 4.5 * float(z.std()) / math.sqrt(n)


def test_samples_of_the_plane():
    step = LevyStep([1.0, -1.0], 0.5, 3.0, 0.4, 0.5, dim=2, tempering=0.7)
    x = step.sample((3000,), generator=torch.Generator().manual_seed(5))
    assert x.shape == (3000, 2)
    u = (x - step.mean).norm(dim=-1)
    mass = tail_probability(u, step.mean, step.b, 0.5, 3.0, 0.4, 0.5, dim=2, tempering=0.7)
    assert stats.kstest(mass.numpy(), "uniform").pvalue > 1e-3


def test_score_is_the_gradient():
    y, A, B, alpha, lam = (t.requires_grad_() for t in tensors(WIDE))
    b = torch.full_like(y, 0.2).detach().requires_grad_()
    log_p = log_density(y.detach(), b, A, B, alpha, 0.7, tempering=lam)
    want = torch.autograd.grad(log_p.sum(), [b, A, B, alpha, lam])
    got = score(y.detach(), b, A, B, alpha, 0.7, wrt_alpha=True, tempering=lam.detach())
    for one, two in zip((got.log_p, got.b, got.D_o, got.D_f, got.alpha, got.tempering), (log_p.detach(), *want)):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_refusals():
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="tempering must be finite and >= 0"):
            log_density(0.5, 0.0, 1.0, 1.0, 0.5, 1.0, tempering=bad)
        with pytest.raises(InputError, match="tempering"):
            tail_probability(0.5, 0.0, 0.0, 1.0, 1.0, 0.5, 1.0, tempering=bad)
        with pytest.raises(InputError, match="tempering"):
            LevyStep(0.0, 1.0, 1.0, 0.5, 1.0, tempering=bad)
    for method in ("table", "windowed"):
        with pytest.raises(InputError, match="method must be 'auto' or 'contour' with tempering"):
            log_density(0.5, 0.0, 1.0, 1.0, 0.5, 1.0, tempering=1.0, method=method)
    assert levytorch.log_density(0.5, 0.0, 1.0, 1.0, 0.5, 1.0, tempering=1.0).dtype == D
