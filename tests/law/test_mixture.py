"""The law in several dimensions: the mixture of Gaussians against mpmath, Fourier inversion and closed forms."""

import math

import mpmath
import numpy as np
import pytest
import torch

from levytorch import LevyStep, cutting_threshold, log_density, score, tail_probability
from levytorch.errors import InputError
from levytorch.law import mixture_torch
from tests.law import second_opinion
from tests.law.cases import Cases, column
from tests.law.oracle import evaluate as oracle

D = torch.float64
MATRIX = {
    2: [[1.3, 0.5], [0.5, 0.4]],
    3: [[1.3, 0.5, -0.2], [0.5, 0.4, 0.0], [-0.2, 0.0, 0.9]],
    5: (np.diag([2.0, 1.0, 0.5, 0.3, 0.1]) + 0.08 * np.outer([1, -1, 2, 0, 1], [1, -1, 2, 0, 1])).tolist(),
}


def along(y, d):
    """Vectors of length y, not along an axis."""
    e = torch.arange(1.0, d + 1, dtype=D)
    return y[..., None] * (e / e.norm())


@pytest.mark.long
@pytest.mark.parametrize("dim", [2, 3])
def test_scalar_noise_against_mpmath(dim):
    cases = Cases(dim)
    keep = (cases.alpha >= 0.01) & (cases.alpha <= 0.99)
    y, A, B, alpha = (t[keep] for t in cases.arguments)
    s = score(along(y, dim), 0.0, A, B, alpha, 1.0, dim=dim, wrt_alpha=True)
    assert float((s.log_p - cases.log_p[keep]).abs().max()) <= 1e-12
    by_y = -(s.b * along(torch.ones_like(y), dim)).sum(-1)
    found, exact = torch.stack([by_y, s.D_o, s.D_f, s.alpha]), cases.first[:, keep]
    good = torch.isfinite(exact)
    assert float(((found - exact).abs() / cases.scales()[:, keep])[good].max()) <= 1e-8
    some = (alpha > 0.2).nonzero()[::5, 0]
    y, A, B, alpha = (t[some] for t in (y, A, B, alpha))
    mass = tail_probability(y, torch.zeros(dim, dtype=D), 0.0, A, B, alpha, 1.0, dim=dim)
    assert float((torch.log(mass) - cases.log_tail[keep][some]).abs().max()) <= 1e-11


def test_second_opinion():
    rows = second_opinion.read_table(2)
    y, A, B, alpha, log_p = (column(rows, k) for k in ("y", "A", "B", "alpha", "log_p"))
    assert float((log_density(along(y, 2), 0.0, A, B, alpha, 1.0, dim=2) - log_p).abs().max()) <= 1e-12


def test_five_dimensions_from_one():
    """p_3 = -p_1' / (2 pi y) and p_5 = -p_3' / (2 pi y), with p_1 and its derivatives of 20 digits."""
    for y, A, B, alpha in ((0.7, 0.4, 0.3, 0.35), (30.0, 0.1, 0.02, 0.8)):
        one = oracle(y, A, B, alpha, 1)
        slope, bend = one.first[0], one.second[0]
        minus_first = -mpmath.exp(one.log_p) * slope  # -p_1'
        p_5 = (mpmath.exp(one.log_p) * (bend + slope**2) + minus_first / y) / (2 * mpmath.pi * y) ** 2
        found = log_density(along(torch.tensor(y, dtype=D), 5), 0.0, A, B, alpha, 1.0, dim=5)
        assert abs(float(found) - float(mpmath.log(p_5))) <= 1e-12


def _inversion(y, A, B, alpha, lam=0.0):
    """p of a plane with a matrix by Fourier inversion in polar coordinates."""
    angle = (np.arange(160) + 0.5) * np.pi / 160
    nodes, weights = np.polynomial.legendre.leggauss(600)
    s, w = 0.5 * (nodes + 1), 0.5 * weights
    e = np.stack([np.cos(angle), np.sin(angle)])
    quadratic = np.einsum("ik,ij,jk->k", e, A, e)
    end = math.sqrt(40 / quadratic.min())
    r, jac = end * s**4, end * 4 * s**3 * w
    psi = (r * r + lam * lam) ** alpha - lam ** (2 * alpha) if lam else r ** (2 * alpha)
    wave = np.cos(np.outer(r, y @ e)) * np.exp(-np.outer(r * r, quadratic) - B * psi[:, None])
    return float((wave * (r * jac)[:, None]).sum() / (160 * 2 * np.pi))


@pytest.mark.parametrize(("alpha", "B", "lam"), [(0.3, 0.5, 0.0), (0.7, 2.0, 0.0), (0.45, 1.0, 0.8)])
def test_matrix_noise_against_fourier_inversion(alpha, B, lam):
    A = np.array(MATRIX[2])
    for y in ([0.0, 0.0], [0.4, -0.9], [2.0, 1.0], [-1.5, 2.5]):
        exact = math.log(_inversion(np.array(y), A, B, alpha, lam))
        assert abs(float(log_density(y, 0.0, A, B, alpha, 1.0, dim=2, tempering=lam)) - exact) <= 1e-10


@pytest.mark.parametrize("d", [2, 3, 5])
def test_matrix_noise_with_fifty_digits(d):
    """alpha = 1/2: the time has the density B / (2 sqrt(pi)) s^(-3/2) exp(-B^2 / (4 s)), and mpmath does the rest."""
    A, B, lam = mpmath.matrix(MATRIX[d]), mpmath.mpf("0.3"), mpmath.mpf("0.7")
    with mpmath.workdps(50):
        l, Q = mpmath.eigsy(A)
        for y, tempering in ((0.8, 0), (40.0, 0), (3.0, lam)):
            x = along(torch.tensor(y, dtype=D), d)
            z = Q.T * mpmath.matrix(x.tolist())

            def term(v, z=z, tempering=tempering):
                s = mpmath.exp(v)
                density = B / (2 * mpmath.sqrt(mpmath.pi * s)) * mpmath.exp(-B * B / (4 * s) - tempering**2 * s)
                for k in range(d):
                    density *= mpmath.exp(-(z[k] ** 2) / (4 * (l[k] + s))) / mpmath.sqrt(4 * mpmath.pi * (l[k] + s))
                return density

            p = mpmath.nsum(lambda j: term(j * mpmath.mpf("0.1")), [-110, 800]) / 10
            exact = mpmath.log(p) + B * tempering
            found = log_density(x, 0.0, MATRIX[d], float(B), 0.5, 1.0, dim=d, tempering=float(tempering))
            assert abs(float(found) - float(exact)) <= 1e-12


def sample(d, n=4):
    generator = torch.Generator().manual_seed(d)
    x = torch.randn(n, d, generator=generator, dtype=D).requires_grad_()
    factor = torch.linalg.cholesky(torch.tensor(MATRIX[d], dtype=D)).requires_grad_()
    rest = ([3.0, 1.0, 0.5, 2.0], [0.3, 0.45, 0.6, 0.8], [0.1] * 4, [0.5, 1.0, 3.0, 0.1])
    D_f, alpha, dt, lam = (torch.tensor(v[:n], dtype=D, requires_grad=True) for v in rest)
    return x, torch.ones(d, dtype=D, requires_grad=True), factor, D_f, alpha, dt, lam


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("tempered", [False, True])
def test_derivatives_with_a_matrix(d, tempered):
    def value(x, b, factor, D_f, alpha, dt, lam):
        return log_density(
            x, b, factor @ factor.T, D_f, alpha, dt, dim=d, tempering=lam if tempered else 0.0
        ) + 0.0 * lam.sum()  # fmt: skip

    arguments = sample(d, 1)
    assert torch.autograd.gradcheck(value, arguments)
    if d == 2:
        assert torch.autograd.gradgradcheck(value, arguments, rtol=1e-3, atol=1e-4)


def test_compiled_pass_and_torch_path_agree():
    """Condition numbers up to 1e4, steps up to 1e4 widths, tempering from none to narrow."""
    rng = np.random.default_rng(3)
    n = 60
    for d in (2, 4):
        Q = np.linalg.qr(rng.standard_normal((n, d, d)))[0]
        A = torch.tensor(Q * 10 ** rng.uniform(-3, 1, (n, 1, d)) @ Q.transpose(0, 2, 1))
        A = 0.5 * (A + A.transpose(1, 2))
        y = torch.tensor(rng.standard_normal((n, d)) * 10 ** rng.uniform(-2, 3, (n, 1)))
        B, alpha, lam = (torch.tensor(v) for v in (10 ** rng.uniform(-3, 2, n), rng.uniform(0.06, 0.95, n),
                                                    10 ** rng.uniform(-3, 1, n)))  # fmt: skip
        for rate in (None, lam):
            fast = log_density(y, 0.0, A, B, alpha, 1.0, dim=d, tempering=0.0 if rate is None else rate)
            slow = mixture_torch.log_density(y, A, B, alpha, rate)
            assert float(((fast - slow).abs() / (1 + slow.abs())).max()) <= 1e-10


def test_score_is_the_gradient():
    x, b, factor, D_f, alpha, dt, lam = sample(3)
    D_o = (factor @ factor.T).detach().expand(4, 3, 3).clone().requires_grad_()
    drift = b.detach().expand(4, 3).clone().requires_grad_()
    log_p = log_density(x, drift, D_o, D_f, alpha, dt, dim=3, tempering=lam)
    grads = torch.autograd.grad(log_p.sum(), (drift, D_o, D_f, alpha, lam))
    s = score(x, drift, D_o, D_f, alpha, dt, dim=3, wrt_alpha=True, tempering=lam)
    for ours, theirs in zip((s.b, s.D_o, s.D_f, s.alpha, s.tempering), grads):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_a_matrix_that_is_a_number():
    x, b, _, D_f, alpha, dt, _ = sample(3)
    one = log_density(x, b, 1.3, D_f, alpha, dt, dim=3)
    two = log_density(x, b, 1.3 * torch.eye(3, dtype=D), D_f, alpha, dt, dim=3)
    torch.testing.assert_close(one, two, rtol=1e-14, atol=1e-14)


def test_rotations():
    """Turning the step and the matrix together changes nothing."""
    Q = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=D))[0]
    A, y = torch.tensor(MATRIX[5], dtype=D), along(torch.tensor([0.1, 3.0, 80.0], dtype=D), 5)
    here = log_density(y, 0.0, A, 0.4, 0.3, 1.0, dim=5)
    there = log_density(y @ Q.T, 0.0, Q @ A @ Q.T, 0.4, 0.3, 1.0, dim=5)
    torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def test_shapes_and_vmap():
    x = torch.randn(3, 1, 5, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    D_o = torch.tensor(MATRIX[2], dtype=D).expand(4, 1, 2, 2)
    assert log_density(x, 0.0, D_o, 1.0, 0.3, 0.1, dim=2).shape == (3, 4, 5)
    assert log_density(x.float(), 0.0, D_o.float(), 1.0, 0.3, 0.1, dim=2).dtype == torch.float32
    assert log_density(torch.zeros(0, 2), 0.0, D_o[0, 0], 1.0, 0.3, 0.1, dim=2).shape == (0,)

    def one(D_f, x):
        return log_density(x, 0.0, D_o[0, 0], D_f, 0.3, 0.1, dim=2)

    rates, steps = torch.tensor([0.5, 2.0], dtype=D), x[0, 0]
    slopes = torch.func.vmap(torch.func.grad(one), (None, 0))(rates[0], steps)
    whole = score(steps, 0.0, D_o[0, 0], 0.5, 0.3, 0.1, dim=2).D_f
    torch.testing.assert_close(slopes, whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("center", [0.3, 2.0])
def test_mass_outside_of_a_disc(center):
    """With a matrix: the density integrated over the disc, inside and outside of which the drifted position lies."""
    A, b, c = torch.tensor(MATRIX[2], dtype=D), torch.ones(2, dtype=D), 1.1
    middle = torch.full((2,), center, dtype=D)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    r, w = torch.tensor(0.5 * c * (nodes + 1)), torch.tensor(0.5 * c * weights)
    phi = torch.arange(96, dtype=D) * (2 * math.pi / 96)
    at = middle + r[:, None, None] * torch.stack([phi.cos(), phi.sin()], -1)
    p = log_density(at.reshape(-1, 2), b, A, 2.0, 0.4, 0.1, dim=2).exp().reshape(60, 96)
    inside = float((p * (w * r)[:, None]).sum()) * 2 * math.pi / 96
    found = tail_probability(c, middle, b, A, 2.0, 0.4, 0.1, dim=2)
    assert abs(float(found) - (1 - inside)) <= 1e-9
    given = [t.clone().requires_grad_() for t in (torch.tensor(c, dtype=D), middle, A)]

    def mass(c, m, A):
        return tail_probability(c, m, b, 0.5 * (A + A.T), 2.0, 0.4, 0.1, dim=2)

    assert torch.autograd.gradcheck(mass, given, atol=1e-7)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("center", [0.1, 5.0])  # the drifted position lies inside of the ball, and outside
def test_derivatives_of_the_mass_with_a_matrix(d, center):
    _, b, factor, D_f, alpha, dt, lam = sample(d, 2)
    middle = torch.full((2, d), center, dtype=D)
    middle[1, 0] *= 0.5
    given = [torch.tensor([2.0, 3.0], dtype=D, requires_grad=True), middle.requires_grad_(), factor, D_f, alpha, lam]

    def mass(c, m, factor, D_f, alpha, lam):
        return tail_probability(c, m, b.detach(), factor @ factor.T, D_f, alpha, dt.detach(), dim=d, tempering=lam)

    assert torch.autograd.gradcheck(mass, given, atol=1e-7)


def test_masses_of_many_states_are_those_of_each():
    """Condition numbers from 1 to 1e4, which need different numbers of directions, and alpha of several panels."""
    rng = np.random.default_rng(5)
    n = 12
    angle, ratio = rng.uniform(0, 3, n), 10 ** rng.uniform(0, 4, n)
    Q = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1).reshape(n, 2, 2)
    A = torch.tensor(Q * np.stack([np.ones(n), 1 / ratio], 1)[:, None, :] @ Q.transpose(0, 2, 1))
    c, B, alpha = (
        torch.tensor(v) for v in (rng.uniform(1, 9, n), 10 ** rng.uniform(-2, 1, n), rng.uniform(0.2, 0.9, n))
    )
    A = 0.5 * (A + A.transpose(1, 2))
    center = torch.tensor(rng.standard_normal((n, 2)))
    together = tail_probability(c, center, 0.0, A, B, alpha, 1.0, dim=2)
    for i in range(n):
        alone = tail_probability(c[i], center[i], 0.0, A[i], B[i], alpha[i], 1.0, dim=2)
        assert abs(float(alone / together[i]) - 1) <= 1e-12


@pytest.mark.parametrize(("d", "allowed"), [(2, 0.0), (3, 0.0), (5, 0.01)])
def test_samples_with_a_matrix(d, allowed):
    """The share of samples beyond a distance, against the mass; beyond three dimensions the mass is good to 1 %."""
    n, A = 100_000, torch.tensor(MATRIX[d], dtype=D)
    step = LevyStep(torch.ones(d, dtype=D), A, 1.5, 0.4, 0.1, dim=d)
    x = step.sample((n,), generator=torch.Generator().manual_seed(d))
    for threshold in (0.5, 3.0, 40.0):
        p = float(tail_probability(threshold, torch.zeros(d, dtype=D), step.b, A, 1.5, 0.4, 0.1, dim=d))
        share = float((x.norm(dim=-1) > threshold).double().mean())
        assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / n) + allowed * p
    score_mean = score(x[:20_000], step.b, A, 1.5, 0.4, 0.1, dim=d).D_o.reshape(20_000, -1)
    assert float((score_mean.mean(0) / (score_mean.std(0) / math.sqrt(20_000))).abs().max()) < 4.5


def test_step_as_a_distribution():
    A = torch.tensor(MATRIX[2], dtype=D)
    step = LevyStep([1.0, 2.0], A, 3.0, 0.4, 0.5, dim=2, tempering=0.7)
    assert (step.batch_shape, step.event_shape) == (torch.Size([]), torch.Size([2]))
    wide = step.expand((4, 2, 2))
    assert wide.log_prob(torch.zeros(4, 2, 2, 2)).shape == (4, 2, 2)
    x = step.sample((100_000,), generator=torch.Generator().manual_seed(1))
    z = (x - step.mean) ** 2
    assert float(((z.mean(0) - step.variance) / (z.std(0) / math.sqrt(100_000))).abs().max()) < 4.5
    scalar = LevyStep(0.0, torch.ones(2, 2, dtype=D), 1.0, 0.4, 0.5, dim=2)
    with pytest.raises(InputError, match=r"positive matrix"):
        LevyStep(0.0, [[1.0, 2.0], [2.0, 1.0]], 1.0, 0.4, 0.5, dim=2)
    assert scalar.event_shape == (2,)
    assert float(cutting_threshold(0.3, 3.0, 0.025, dim=2)) == pytest.approx(9.6486, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"D_o": [[1.0, 0.5], [0.4, 1.0]]}, r"D_o must be a symmetric matrix, found 0.5 at \[0, 1\] and 0.4"),
        ({"D_o": [[1.0, 2.0], [2.0, 1.0]]}, "D_o must be a positive matrix, found one with the eigenvalue -1"),
        ({"D_o": [[math.nan, 0.0], [0.0, 1.0]]}, "D_o must be finite"),
        ({"D_o": -1.0}, "D_o must be finite and >= 0"),
        ({"D_f": 0.0}, "D_f must be finite and > 0"),
        ({"alpha": 0.999}, r"alpha must lie in \[0.01, 0.99\] in several dimensions"),
        ({"alpha": 1.3}, r"alpha must lie in \(0, 1\)"),
        ({"displacement": [[math.inf, 0.0]]}, "displacement must be finite"),
        ({"displacement": np.zeros((2, 2, 2)), "D_o": np.ones((2, 2))}, "D_o must not be ambiguous"),
        ({"displacement": np.zeros((3, 2)), "D_f": np.ones(4)}, "must broadcast"),
        ({"displacement": np.zeros((3, 3))}, "displacement must have 2 components"),
        ({"method": "windowed"}, "dim must be 1 for method 'windowed'"),
    ],
)
def test_refusals(change, message):
    given = dict(displacement=[0.1, 0.2], b=0.0, D_o=1.0, D_f=1.0, alpha=0.3, dt=0.1) | change
    with pytest.raises(InputError, match=message):
        log_density(**given, dim=2)
