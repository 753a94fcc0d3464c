"""Heads on a line whose drift is a polynomial: the double well x - x^3 is the standard example.

The polynomial holds beyond the window too, which is what confines a particle there; D_o and D_f are splines, constant
beyond it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.basis import Basis
from levytorch.coefficients.spline import SplineHead, check_spline_window
from levytorch.convert import shown, whole_number
from levytorch.errors import InputError

MOST = 15


class PolynomialBasis:
    """Legendre polynomials up to a degree, orthonormal over the window; none is penalised."""

    def __init__(self, degree: int = 3, window: tuple[float, float] = (0.0, 1.0)) -> None:
        self.degree = whole_number("degree of the drift", degree, 0, MOST, "3 is that of a double well")
        self.window = check_spline_window(window)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.degree + 1

    def harmonic_numbers(self) -> Tensor:
        """Zeros: a polynomial of low degree is smooth enough."""
        return torch.zeros(self.size, dtype=torch.float64)

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) -> (size, n)."""
        low, high = self.window
        s = (2 * x - (low + high)) / (high - low)
        rows = [torch.ones_like(s), s]
        for k in range(1, self.degree):
            rows.append(((2 * k + 1) * s * rows[k] - k * rows[k - 1]) / (k + 1))
        return torch.stack([math.sqrt(2 * k + 1) * row for k, row in enumerate(rows[: self.size])])


class PolynomialHead(SplineHead):
    """b a polynomial of `degree`, on the whole line; D_o and D_f splines as in a SplineHead."""

    def __init__(self, degree: int = 3, dim: int = 1, **options: Any) -> None:
        if dim != 1:
            raise InputError(f"a polynomial drift must be one-dimensional, found dim = {shown(dim)}; use splines.")
        self.degree = degree
        super().__init__(dim=dim, **options)

    def _drift(
        self, windows: list[tuple[float, float]], basis: Any, same: Basis, continuation: str, n: int, inner: Any
    ) -> Basis:
        return PolynomialBasis(self.degree, windows[0])

    def config(self) -> dict[str, Any]:
        plain = super().config() | {"name": "polynomial", "degree": self.degree}
        del plain["continuation"], plain["free"]
        return plain
