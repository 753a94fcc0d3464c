"""Periodic cubic splines, against SciPy's periodic B-splines and integrals by quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.coefficients import build_head
from levytorch.coefficients.periodic_spline import PeriodicSplineBasis
from levytorch.errors import InputError


@pytest.mark.parametrize("n", [4, 5, 8, 21])
def test_functions_are_orthogonal_periodic_cubic_splines(n):
    basis = PeriodicSplineBasis(n, period=3.0, origin=-1.0)
    knots = -1.0 + 3.0 * np.arange(n + 1) / n
    x = torch.linspace(-1.0, 2.0, 2001, dtype=torch.float64)[:-1]
    rows = basis.rows(x)
    assert torch.allclose(rows, basis.rows(x + 9.0), atol=1e-12)
    assert torch.allclose(rows[0], torch.ones_like(x))
    at_knots = basis.rows(torch.from_numpy(knots[:-1])).numpy()
    nodes, weights = np.polynomial.legendre.leggauss(4)  # exact for products of two cubics
    points = (knots[:-1, None] + np.diff(knots)[:, None] * (nodes + 1) / 2).ravel()
    w = np.tile(weights / 2, n) / n
    splines = [CubicSpline(knots, np.append(values, values[0]), bc_type="periodic") for values in at_knots]
    values = np.stack([s(points) for s in splines])
    bent = np.stack([s(points, 2) for s in splines])
    assert np.allclose(rows.numpy(), np.stack([s(x.numpy()) for s in splines]), atol=1e-12)
    product, roughness = (values * w) @ values.T, (bent * w) @ bent.T
    assert np.allclose(product, np.diag(np.diag(product)), atol=1e-12)
    assert np.allclose(roughness, np.diag(np.diag(roughness)), atol=1e-9)
    found = np.diag(roughness) / np.diag(product) / (2 * math.pi / 3.0) ** 4
    assert np.allclose(basis.harmonic_numbers().numpy() ** 4, found, rtol=1e-9, atol=1e-9)


def test_splines_on_a_circle_have_its_period():
    """They are as good as a Fourier series, and V has them on the whole cell."""
    system = Dynamics(b=torch.sin, D_o=lambda x: 1.0 + 0.3 * torch.cos(x), D_f=0.5, alpha=0.6)
    data = simulate(system, 40, 100, 0.05, seed=0).transitions()
    found = recover(data, alpha=0.6, coefficients="spline", n_basis=9, law="frozen")
    waves = recover(data, alpha=0.6, coefficients="fourier", n_basis=9, law="frozen")
    assert found.period == 2 * math.pi
    x = torch.linspace(0.0, 6.0, 13, dtype=torch.float64)
    assert bool(((found.b(x) - waves.b(x)).abs() < found.std(x)[0]).all())
    V, W = (solve_value(one, torch.cos, 1.0) for one in (found, waves))
    assert bool(((V(x) - W(x)).abs() < W.std(x)).all())
    again = build_head(found.head.config())
    again.set_flat(found.theta)
    assert torch.equal(again(x).b, found.head(x).b)


def test_a_window_means_a_line_and_other_settings_of_one_are_refused():
    from levytorch.training.settings import make_settings

    line = {"name": "spline", "window": (-1.0, 1.0)}
    assert make_settings(alpha=0.6, coefficients=line).head.period is None
    assert make_settings(alpha=0.6, coefficients="spline", window=(-1.0, 1.0)).head.period is None
    assert make_settings(alpha=0.6, coefficients="spline", period=3.0).head.period == 3.0
    with pytest.raises(InputError, match="knots must be left out of a periodic_spline head"):
        make_settings(alpha=0.6, coefficients={"name": "spline", "knots": "quantiles"})
