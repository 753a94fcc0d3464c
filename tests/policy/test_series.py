from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy import empirical
from levytorch.policy.empirical import fit_fourier
from levytorch.spaces.basis import FourierBasis


def test_fit_is_the_least_squares_solution_whatever_the_chunks(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    basis = FourierBasis(7, period=3.0, origin=1.0)
    x = 1.0 + 3.0 * torch.rand(500, generator=generator, dtype=torch.float64)
    y = torch.exp(torch.cos(x)) + torch.randn(500, generator=generator, dtype=torch.float64)
    expected, _, _, _ = np.linalg.lstsq(basis.matrix(x).numpy(), y.numpy(), rcond=None)
    one = fit_fourier(x, y, basis)
    monkeypatch.setattr(empirical, "_CHUNK", 37)
    many = fit_fourier(x, y, basis)
    for found in (one, many):
        np.testing.assert_allclose(found.coefficients.numpy(), expected, rtol=1e-10)
    assert one.support == (float(x.min()), float(x.max()))
    torch.testing.assert_close(many(x), one(x))


def test_what_the_data_does_not_determine_is_said() -> None:
    x = torch.linspace(0.0, 0.1, 300, dtype=torch.float64)
    with pytest.warns(LevytorchWarning, match="condition number"):
        fit = fit_fourier(x, torch.cos(x), FourierBasis(15))
    torch.testing.assert_close(fit(x), torch.cos(x), atol=1e-6, rtol=0)


def test_refuses() -> None:
    basis = FourierBasis(3)
    with pytest.raises(InputError, match="pairs"):
        fit_fourier(torch.zeros(3), torch.zeros(4), basis)
    with pytest.raises(InputError, match="finite"):
        fit_fourier(torch.zeros(3), torch.full((3,), math.nan), basis)
