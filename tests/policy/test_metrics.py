from __future__ import annotations

import math

import pytest
import torch

from benchmarks.paper.rates import c0_norm, c2_norm
from levytorch.errors import InputError
from levytorch.policy.reference import coverage, relative_l2
from levytorch.spaces.basis import FourierBasis


def test_relative_l2() -> None:
    found = relative_l2(lambda x: 1.1 * torch.sin(x), torch.sin, 0.0, 3.0)
    assert found == pytest.approx(0.1)
    # || 1 || / || x || on (0, 1)
    assert relative_l2(lambda x: x + 1, lambda x: x, 0.0, 1.0) == pytest.approx(math.sqrt(3), rel=1e-5)
    with pytest.raises(InputError, match="must not be zero"):
        relative_l2(torch.sin, torch.zeros_like, 0.0, 1.0)
    with pytest.raises(InputError, match="low must be below high"):
        relative_l2(torch.sin, torch.sin, 1.0, 1.0)


def test_coverage() -> None:
    values = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert coverage(values, torch.zeros(4), torch.tensor([0.0, 1.0, 1.9, 4.0])) == 0.75


def test_norms() -> None:
    basis = FourierBasis(16)  # 16 points: the extrema of cos 2x are among them
    c = torch.zeros((2, 16), dtype=torch.float64)
    c[0, 3] = 1.0
    c[1, 3] = -2.0
    torch.testing.assert_close(c0_norm(basis, c), torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(c2_norm(basis, c), torch.tensor([7.0, 14.0], dtype=torch.float64))
