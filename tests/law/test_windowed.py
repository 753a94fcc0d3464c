"""The paper's quadrature against the reference values, closed forms and each of its parts against SciPy or mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi, voigt_profile

from levytorch.law import windowed
from tests.law.oracle import random_cases, read_table


def column(rows, name):
    return torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def table():
    rows = [row for row in read_table() if row["d"] == "1"]
    return rows, windowed.evaluate(*(column(rows, k) for k in ("y", "A", "B", "alpha")))


def test_table_log_p_where_converged(table):
    rows, (log_p, *_, converged) = table
    error = (log_p - column(rows, "log_p")).abs()[converged]
    assert converged.sum() > 0.6 * len(rows)
    assert error.max() < 5e-5
    assert error.median() < 1e-12


def test_table_derivatives_where_converged(table):
    """The tolerance is absolute: far out derivatives keep fewer digits, as the module states; d_A (1 / y^2) fewest."""
    rows, (_, d_y, d_A, d_B, converged) = table
    y, A = column(rows, "y").abs(), column(rows, "A")
    center = converged & (y <= 8 * A.sqrt())
    assert center.sum() > 50
    width = (y**2 + 4 * A).sqrt()
    for got, name, power, worst in ((d_y, "d_y", 1, 5e-3), (d_A, "d_A", 2, 1.0), (d_B, "d_B", None, 5e-5)):
        want = column(rows, name)
        scale = want.abs() if power is None else torch.maximum(want.abs(), width**-power)
        error = (got - want).abs() / scale
        assert error[center].max() < 1e-6, name
        assert error[converged & (width > 0)].max() < worst, name


def test_finite_and_flagged_where_the_absolute_tolerance_hides_the_tail(table):
    _, outputs = table
    assert all(torch.isfinite(t).all() for t in outputs[:4])
    y, one = f64(1e12, -1e12), f64(1.0, 1.0)
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(y, one, one * 1e-5, 0.97)
    assert not converged.any()
    # The true log p is -95.6. What is left is the absolute error, an upper bound, and no direction.
    assert (log_p > -95.6).all()
    lost = d_B == 0
    assert all((d[lost] == 0).all() for d in (d_y, d_A))
    assert all(torch.isfinite(t).all() for t in (log_p, d_y, d_A, d_B))


def test_stated_accuracy():
    rows = [row for row in read_table() if row["d"] == "1" and float(row["A"]) > 0]
    log_p, _, _, d_B, converged = windowed.evaluate(*(column(rows, k) for k in ("y", "A", "B", "alpha")))
    error = (log_p - column(rows, "log_p")).abs()[converged]
    assert converged.sum() >= 200
    assert error.median() < 1e-14
    assert error.quantile(0.9) < 1e-7
    assert error.max() < 3e-5
    assert ((d_B / column(rows, "d_B") - 1).abs()[converged]).max() < 3e-5


def test_voigt_profile_and_sign():
    y = torch.linspace(-9.5, 9.5, 41, dtype=torch.float64)
    A, B = torch.full_like(y, 0.1), torch.full_like(y, 0.5)
    log_p, d_y, *_, converged = windowed.evaluate(y, A, B, 0.5)
    want = voigt_profile(y.numpy(), math.sqrt(0.2), 0.5)
    assert converged.all()
    np.testing.assert_allclose(log_p.exp().numpy(), want, rtol=1e-11)
    assert torch.equal(d_y, -windowed.evaluate(-y, A, B, 0.5)[1])
    assert (d_y[:20] > 0).all()


def test_paper_setting_reaches_eleven_digits():
    # Example of the paper: D_o = 4, D_f = 3, alpha = 0.3, dt = 1 / 40; 20 digits by the oracle.
    y = f64(0.0, 0.5, -3.0, 9.9, 10.1)
    with mpmath.workdps(30):
        from tests.law.oracle import evaluate

        want = [evaluate(float(v), 0.1, 0.075, 0.3) for v in y]
    got = windowed.evaluate(y, torch.full_like(y, 0.1), torch.full_like(y, 0.075), 0.3)
    np.testing.assert_allclose(got[0].numpy(), [float(w.log_p) for w in want], rtol=1e-11)
    for k in range(3):
        np.testing.assert_allclose(got[1 + k].numpy(), [float(w.first[k]) for w in want], rtol=1e-9, atol=1e-12)
    assert got[4].all()


@pytest.mark.parametrize("tau", [5e-4, 5e-3, 0.05, 0.9, 1.5, 20.0])
@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5005, 0.95])
def test_integration_with_singularity(alpha, tau):
    y, A = 1.7, 0.4
    got = windowed._singular(f64(y), f64(A), f64(tau), f64(alpha), 1)[0]

    def integral(g):
        # z = x^q makes the weight smooth for mpmath's own rule, which is not the one under test.
        q = 1 / (2 * alpha)
        return mpmath.quad(lambda x: g(x**q) * mpmath.exp(-tau * x - A * x ** (2 * q)) * q * x ** (q - 1), [0, 0.5, 1])

    waves = (
        lambda r: mpmath.cos(y * r),
        lambda r: r * mpmath.sin(y * r),
        lambda r: r * r * mpmath.cos(y * r),
        lambda r: r ** (2 * alpha) * mpmath.cos(y * r),
    )
    with mpmath.workdps(30):
        want = [float(integral(g)) for g in waves]
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=3e-15)


def test_gauss_jacobi_against_scipy():
    beta = f64(0.0, 0.1, 1.0, 7.3, 33.0)
    x, w = windowed._jacobi(beta)
    for row, b in enumerate(beta.tolist()):
        want_x, want_w = roots_jacobi(16, 0.0, b)
        np.testing.assert_allclose(x[row].numpy(), (want_x + 1) / 2, atol=1e-14)
        np.testing.assert_allclose(w[row].numpy(), want_w / 2 ** (b + 1), atol=1e-14)


def test_window():
    z, weight = windowed._panels(80)
    width = 79 / 50  # 50 panels of 16 points
    plain = np.tile(np.polynomial.legendre.leggauss(16)[1] / 2 * width, 50)
    window = weight / plain
    s = 2 * z / 80 - 1
    np.testing.assert_allclose(window[s <= 0], 1, rtol=1e-12)
    inner = (s > 0.05) & (s < 0.9)
    np.testing.assert_allclose(window[inner], np.exp(-2 * np.exp(-1 / s[inner] ** 2) / (1 - s[inner]) ** 2), rtol=1e-12)
    assert window[-1] < 1e-300
    assert len(windowed._panels(160)[0]) == 2 * len(z)


def test_slow_decay_against_mpmath():
    """int_1^inf cos(z) exp(-0.3 z^0.6) dz: decays too slowly for truncation; mpmath's quadosc sums the half-waves."""
    value, converged, _ = windowed._slow(f64(1.0), f64(0.0), f64(0.3), f64(0.3), 0)
    want = mpmath.quadosc(lambda z: mpmath.cos(z) * mpmath.exp(-0.3 * z**0.6), [1, mpmath.inf], omega=1)
    assert converged.all()
    assert abs(float(value) - float(want)) < 5e-14


@pytest.mark.parametrize("lam", [0.2, 2.0])
def test_scaling_law(lam):
    y, A, B, alpha = f64(1.5), f64(0.2), f64(0.7), f64(0.4)
    plain = windowed._integrals(y, A, B, alpha, f64(1.0), 1)[0]
    scaled = windowed._integrals(lam * y, A, B, alpha, f64(lam), 1)[0]
    torch.testing.assert_close(plain, scaled, rtol=1e-12, atol=1e-13)


def test_force_scaling_seam():
    y = f64(10.0, math.nextafter(10.0, 11.0))
    out = windowed.evaluate(y, f64(0.5, 0.5), f64(0.6, 0.6), 0.4)
    for t in out[:4]:
        torch.testing.assert_close(t[0], t[1], rtol=1e-8, atol=0)


def test_large_A_is_scaled():
    y, A, B = f64(0.0, 3.0, 200.0), f64(1e4, 1e4, 1e4), f64(1e-8, 1e-8, 1e-8)
    log_p, d_y, d_A, _, _ = windowed.evaluate(y, A, B, 0.5)
    torch.testing.assert_close(log_p, -(y**2) / (4 * A) - 0.5 * torch.log(4 * math.pi * A), rtol=0, atol=1e-8)
    torch.testing.assert_close(d_y, -y / (2 * A), rtol=1e-8, atol=1e-13)
    torch.testing.assert_close(d_A, (y / (2 * A)) ** 2 - 1 / (2 * A), rtol=1e-8, atol=0)


def test_non_convergence_is_flagged_without_stopping():
    """At y = 0, A = 0 nothing oscillates and exp(-1e-3 r^0.2) has not decayed at r = 5120."""
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(f64(0.0, 0.3), f64(0.0, 0.1), f64(1e-3, 0.5), 0.1)
    assert converged.tolist() == [False, True]
    assert all(torch.isfinite(t).all() for t in (log_p, d_y, d_A, d_B))


def test_batch_does_not_matter():
    cases = random_cases(24, 5)
    y, A, B, alpha = (torch.from_numpy(c) for c in cases)
    whole = windowed.evaluate(y, A, B, alpha)
    for i in range(0, 24, 3):
        single = windowed.evaluate(y[i : i + 1], A[i : i + 1], B[i : i + 1], float(alpha[i]))
        assert bool(single[4]) == bool(whole[4][i])
        if single[4]:
            torch.testing.assert_close(single[3][0], whole[3][i], rtol=1e-4, atol=0)
            torch.testing.assert_close(single[0][0], whole[0][i], rtol=0, atol=1e-5)


def test_the_last_bits_of_a_sum_do_not_decide_about_convergence(monkeypatch):
    """Each sum moved by half of what its rounding can be at worst (8 units): no flag changes.

    Half of the samples have y = 0 and A = 0, where no scaling gives a second attempt.
    """
    y, A, B, alpha = (torch.from_numpy(c) for c in random_cases(120, 5))
    y[:60], A[:60], B[:60] = 0.0, 0.0, torch.logspace(-4, 2, 60, dtype=torch.float64)
    plain = windowed.evaluate(y, A, B, alpha)[4]
    assert 20 < plain[:60].sum() < 60
    sums, generator = windowed._panel_sums, torch.Generator().manual_seed(0)

    def moved(*arguments):
        value, size = sums(*arguments)
        unit = 2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1
        return value + 4 * windowed.ROUNDING * size * unit, size

    monkeypatch.setattr(windowed, "_panel_sums", moved)
    assert torch.equal(windowed.evaluate(y, A, B, alpha)[4], plain)


def test_order_zero_and_chunks(monkeypatch):
    y, A, B, _ = (torch.from_numpy(c) for c in random_cases(20, 6))
    log_p, *_, converged = windowed.evaluate(y, A, B, 0.45)
    value, *derivatives, flags = windowed.evaluate(y, A, B, 0.45, order=0)
    assert derivatives == [None, None, None]
    torch.testing.assert_close(value[converged], log_p[converged], rtol=0, atol=1e-5)
    assert (flags | ~converged).all()
    monkeypatch.setattr(windowed, "BLOCK", 7)
    monkeypatch.setattr(windowed, "CHUNK", 20_000)
    again = windowed.evaluate(y, A, B, 0.45, order=0)[0]
    torch.testing.assert_close(again[converged], log_p[converged], rtol=0, atol=1e-5)
    empty = windowed.evaluate(y[:0], A[:0], B[:0], 0.45)
    assert all(len(t) == 0 for t in empty)
