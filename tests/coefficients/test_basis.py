"""The Fourier basis against sines and cosines, and its compiled loops against plain torch."""

import math

import numpy as np
import pytest
import torch

from levytorch.coefficients import FourierBasis, kernels
from levytorch.errors import InputError


@pytest.mark.parametrize("n", [7, 3000])
@pytest.mark.parametrize(("period", "origin"), [(2 * math.pi, 0.0), (256_000.0, -3.0), (0.7, 11.0)])
def test_functions_are_cosines_and_sines(n, period, origin):
    basis = FourierBasis(21, period, origin)
    x = origin + period * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    phi = basis.evaluate(x)
    assert phi.shape == (n, 21)
    angle = 2 * math.pi * (x - origin) / period
    for k in range(1, 11):
        torch.testing.assert_close(phi[:, 2 * k - 1], torch.cos(k * angle), rtol=0, atol=2e-12)
        torch.testing.assert_close(phi[:, 2 * k], torch.sin(k * angle), rtol=0, atol=2e-12)


def test_far_states_are_reduced_first():
    basis = FourierBasis(21, 2.0, 0.0)
    x = torch.tensor([0.25, 1.5], dtype=torch.float64)
    far = x + 2.0 * 2.0**40  # exactly representable: the same state 2^40 cells away
    torch.testing.assert_close(basis.evaluate(far), basis.evaluate(x), rtol=0, atol=1e-12)


def test_orthogonal_over_a_cell():
    basis = FourierBasis(7, 3.0, 1.0)
    phi = basis.evaluate(1.0 + 3.0 * torch.arange(64, dtype=torch.float64) / 64)
    expected = torch.diag(torch.tensor([64.0] + [32.0] * 6, dtype=torch.float64))
    torch.testing.assert_close(phi.T @ phi, expected, rtol=0, atol=1e-10)


def test_derivative_against_finite_difference():
    basis = FourierBasis(9, 5.0, -1.0)
    x = torch.linspace(-1, 4, 13, dtype=torch.float64)
    h = 1e-6
    numeric = (basis.evaluate(x + h) - basis.evaluate(x - h)) / (2 * h)
    torch.testing.assert_close(basis.derivative(x), numeric, rtol=0, atol=1e-7)


@pytest.mark.parametrize("n_basis", [0, 2, -1, 2.0, True, None])
def test_even_or_empty_basis_is_refused(n_basis):
    with pytest.raises(InputError, match="odd integer"):
        FourierBasis(n_basis)


@pytest.mark.parametrize("period", [0.0, -1.0, math.inf, math.nan, "x"])
def test_period_must_be_positive(period):
    with pytest.raises(InputError, match="period"):
        FourierBasis(3, period)


def test_bin_sums_against_numpy(monkeypatch):
    rng = np.random.default_rng(0)
    index = torch.from_numpy(rng.integers(0, 5, 20_000))
    scores = torch.from_numpy(rng.standard_normal((3, 20_000)))
    compiled = kernels.bin_sums(index, scores, 5)
    monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    plain = kernels.bin_sums(index, scores, 5)
    for got in (compiled, plain):
        for m in range(5):
            chosen = scores[:, index == m]
            torch.testing.assert_close(got[0][:, m], chosen.sum(1), rtol=1e-10, atol=1e-9)
            torch.testing.assert_close(got[1][:, :, m], chosen @ chosen.T, rtol=1e-10, atol=1e-9)
