"""Splines and polynomials on a line, against SciPy's B-splines and numpy's Legendre polynomials."""

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.interpolate import BSpline, make_lsq_spline

from levytorch.coefficients import (
    AlphaSpec,
    MLPHead,
    PolynomialBasis,
    PolynomialHead,
    SplineBasis,
    SplineHead,
    build_head,
)
from levytorch.errors import InputError

WINDOW = (-2.0, 3.0)
UNEVEN = [-1.7, -1.0, -0.8, 0.5, 1.0, 1.1, 2.0]


@pytest.mark.parametrize(("n", "knots"), [(4, None), (9, None), (11, UNEVEN)])
def test_the_functions_are_all_cubic_splines_orthonormal_with_orthogonal_bends(n, knots):
    basis = SplineBasis(n, WINDOW, knots)
    inner = np.linspace(*WINDOW, n - 2)[1:-1] if knots is None else np.array(knots)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    breaks = np.r_[WINDOW[0], inner, WINDOW[1]]
    x = torch.from_numpy(np.concatenate([(a + b) / 2 + (b - a) / 2 * nodes for a, b in itertools.pairwise(breaks)]))
    weights = np.concatenate([(b - a) / 5 * weights for a, b in itertools.pairwise(breaks)])
    rows = basis.rows(x).numpy()
    assert np.allclose((rows * weights / 2) @ rows.T, np.eye(n), atol=1e-12)
    assert np.ptp(rows[0]) < 1e-13
    assert abs(rows[0, 0] - 1) < 1e-13
    # every cubic spline with these knots, one of SciPy's, is a combination of them
    t = np.r_[[WINDOW[0]] * 4, inner, [WINDOW[1]] * 4]
    spline = BSpline(t, np.random.default_rng(0).normal(size=n), 3)
    found = np.linalg.lstsq(rows.T, spline(x.numpy()), rcond=None)[0]
    assert np.allclose(found @ rows, spline(x.numpy()), atol=1e-10)
    again = make_lsq_spline(x.numpy(), found @ rows, t, 3)
    bent = sum(quad(lambda s: again.derivative(2)(s) ** 2, *ends)[0] for ends in zip(np.r_[-2, inner], np.r_[inner, 3]))
    roughness = float((basis.harmonic_numbers() ** 4 * torch.from_numpy(found) ** 2).sum())
    assert roughness * (2 * np.pi) ** 4 == pytest.approx(bent * 5**3, rel=1e-6)  # per window, in units of its length


def test_beyond_the_window_functions_stay_or_go_on_straight():
    stay, straight = SplineBasis(8, WINDOW), SplineBasis(8, WINDOW, continuation="linear")
    x = torch.tensor([-9.0, -2.0, 3.0, 4.5, 7.0], dtype=torch.float64)
    assert torch.equal(stay.rows(x)[:, 0], stay.rows(x)[:, 1])
    assert torch.equal(stay.rows(x)[:, 4], stay.rows(x)[:, 2])
    slope = (straight.rows(x[2:3]) - straight.rows(x[2:3] - 1e-6))[:, 0] / 1e-6
    assert torch.allclose(straight.rows(x)[:, 3] - straight.rows(x)[:, 2], 1.5 * slope, rtol=1e-4, atol=1e-4)
    assert torch.allclose(straight.rows(x)[:, 4] - straight.rows(x)[:, 2], 4.0 * slope, rtol=1e-4, atol=1e-4)


def test_polynomials_are_legendres():
    x = torch.linspace(-5, 6, 23, dtype=torch.float64)
    rows = PolynomialBasis(4, WINDOW).rows(x).numpy()
    s = (x.numpy() - 0.5) / 2.5
    for k, row in enumerate(rows):
        assert np.allclose(row, np.sqrt(2 * k + 1) * np.polynomial.legendre.Legendre.basis(k)(s), rtol=1e-12)


def test_free_cubics():
    low, high = WINDOW
    x = torch.linspace(low, high, 4001, dtype=torch.float64)
    lines, cubics = SplineBasis(12, WINDOW), SplineBasis(12, WINDOW, free="cubics")
    rows = cubics.rows(x)
    weight = torch.tensor([2.0, 4.0] * 2000 + [1.0], dtype=torch.float64) / 12000  # Simpson's rule
    weight[0] /= 2
    assert torch.allclose(rows * weight @ rows.T, torch.eye(12, dtype=torch.float64), atol=1e-7)
    # the same functions, other coordinates
    turn = torch.linalg.lstsq(lines.rows(x).T, rows.T).solution
    assert torch.allclose(lines.rows(x).T @ turn, rows.T, atol=1e-9)
    # a cubic is free
    theta = torch.linalg.lstsq(rows.T, (x - x**3)[:, None]).solution[:, 0]
    assert theta[4:].abs().max() < 1e-9
    assert (cubics.harmonic_numbers()[:4] == 0).all()
    assert (cubics.harmonic_numbers()[4:].diff() > 0).all()
    # any other function is charged for the integral of its squared second derivative, less that of the nearest cubic
    theta = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, h = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000, 1e-4
    before, here, after = (theta @ cubics.rows(low + (high - low) * (u + step)) for step in (-h, 0.0, h))
    second = (before - 2 * here + after) / h**2
    line = torch.stack([torch.ones_like(u), u])
    rest = second - torch.linalg.lstsq(line.T, second[:, None]).solution[:, 0] @ line
    charged = float((rest**2).mean()) / (2 * np.pi) ** 4
    assert float((cubics.harmonic_numbers() ** 4 * theta**2).sum()) == pytest.approx(charged, rel=1e-4)
    assert SplineBasis(4, WINDOW, free="cubics").harmonic_numbers().tolist() == [0.0] * 4


def test_cubics_as_free_as_the_evidence_says():
    x = torch.linspace(*WINDOW, 200, dtype=torch.float64)
    cubics, auto = SplineBasis(12, WINDOW, free="cubics"), SplineBasis(12, WINDOW, free="auto")
    assert torch.equal(cubics.rows(x), auto.rows(x))
    # charged for what they are: the integral of the squared second derivative of a Legendre polynomial
    for k, charged in zip((2, 3), auto.harmonic_numbers()[auto.apart] ** 4):
        bend = np.polynomial.legendre.Legendre.basis(k, domain=[0, 1]).deriv(2)
        expected = (2 * k + 1) * (bend**2).integ()(1.0) - (2 * k + 1) * (bend**2).integ()(0.0)
        assert float(charged) == pytest.approx(expected / (2 * np.pi) ** 4, rel=1e-12)
    assert torch.equal(auto.harmonic_numbers()[4:], cubics.harmonic_numbers()[4:])
    assert SplineBasis(1, WINDOW, free="auto").harmonic_numbers().tolist() == [0.0]
    assert SplineHead(5, [WINDOW, (0.0, 1.0)], dim=2).free == "lines"


HEADS = [
    SplineHead(9, WINDOW),
    SplineHead(9, WINDOW, free="cubics"),
    SplineHead(9, WINDOW, free="lines"),
    SplineHead(9, WINDOW, UNEVEN[:5], "linear"),
    SplineHead(5, [WINDOW, (0.0, 1.0)], dim=2),
    SplineHead(7, WINDOW, alpha=AlphaSpec("function", 0.6)),
    PolynomialHead(5, n_basis=6, window=WINDOW, alpha=AlphaSpec("constant", 0.4)),
    MLPHead(4, 1, period=None, window=WINDOW),
    MLPHead(4, 1, period=None, window=[WINDOW, (0.0, 1.0)], dim=2),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda h: f"{type(h).__name__}{h.dim}")
def test_a_head_is_what_its_settings_say(head):
    same = build_head(head.config())
    head.set_flat(head.flat() + 0.1 * torch.arange(head.flat().numel()).cos())
    same.set_flat(head.flat())
    x = torch.linspace(-4, 5, 40, dtype=torch.float64).reshape(-1, head.dim).squeeze(-1)
    for one, other in zip(head(x), same(x)):
        assert torch.equal(one, other)
    assert head.config() == same.config()
    assert head.period is None
    # the analytic Jacobian is autograd's
    for own, general in zip(head.jacobian(head.grid(5)), super(type(head), head).jacobian(head.grid(5))):
        assert torch.allclose(own, general, atol=1e-12)
    if head.dim == 1 and not isinstance(head, PolynomialHead) and getattr(head, "continuation", "") != "linear":
        assert torch.equal(head(torch.tensor([3.0])).b, head(torch.tensor([1e9])).b)


def test_a_polynomial_drift_holds_everywhere():
    head = PolynomialHead(3, n_basis=4, window=WINDOW)
    x = torch.linspace(-2, 3, 50, dtype=torch.float64)
    with torch.no_grad():
        head.theta[:4] = torch.linalg.lstsq(head.drift.rows(x).T, (x - x**3)[:, None]).solution[:, 0]
    far = torch.tensor([-50.0, 1e3], dtype=torch.float64)
    assert torch.allclose(head(far).b, far - far**3, rtol=1e-10)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"name": "spline", "n_basis": 3}, "1 .constants. or at least 4, found 3"),
        ({"name": "spline", "window": [1.0, 1.0]}, "low < high"),
        ({"name": "spline", "window": [0.0, 1.0], "n_basis": 6, "knots": [0.5, 0.5]}, "2 ascending states"),
        ({"name": "spline", "knots": "random"}, "even, quantiles"),
        ({"name": "spline", "continuation": "periodic"}, "constant, linear"),
        ({"name": "spline", "free": "quintics"}, "lines, cubics"),
        ({"name": "spline", "free": "cubics", "dim": 2}, "free must be lines for dim = 2"),
        ({"name": "spline", "period": 3.0}, "period"),
        ({"name": "polynomial", "degree": 99}, "degree"),
        ({"name": "polynomial", "dim": 2}, "one-dimensional"),
        ({"name": "mlp", "window": [0.0, 1.0]}, "must be left out beside a period"),
    ],
)
def test_refusals(config, match):
    with pytest.raises(InputError, match=match):
        build_head(config)
