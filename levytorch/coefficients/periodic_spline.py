"""Heads on a cell made of cubic splines that repeat: between even knots a cubic, smooth across the ends of the cell.

The functions are the splines whose B-spline coefficients are 1, cos(2 pi k j / n), sin(2 pi k j / n): for even knots
these are orthogonal to each other, and so are their second derivatives. They are close to the waves of a Fourier series
and scaled like those, so that parameters, roughness penalties and starts mean the same for both heads; unlike waves,
splines follow a kink without ringing elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.fourier import CellHead
from levytorch.convert import positive_number, real_number
from levytorch.errors import InputError
from levytorch.spaces.basis import FARTHEST, Basis, TensorBasis, per_coordinate
from levytorch.spaces.splines import check_n_basis

# integrals of products of two cubic B-splines, and of their second derivatives, that are 0, 1, 2, 3 knots apart
_PRODUCTS = (2416 / 5040, 1191 / 5040, 120 / 5040, 1 / 5040)
_BENT = (8 / 3, -3 / 2, 0.0, 1 / 6)


class PeriodicSplineBasis:
    """`n_basis` functions with a period: 1, then pairs of spline waves of rising frequency; 1 is the constant alone."""

    def __init__(self, n_basis: int, period: float = 2 * math.pi, origin: float = 0.0) -> None:
        self.n_basis = n = check_n_basis(n_basis)
        self.period = positive_number("period", period, "give the length of the cell")
        self.origin = real_number("origin", origin, "give the left end of the cell")
        if abs(self.origin) > FARTHEST * self.period:
            raise InputError(
                f"origin must lie within {FARTHEST:.0e} periods of zero, found {self.origin:g} and period "
                f"{self.period:g}; move x, or widen the cell."
            )
        waves = torch.arange(1, n + 1) // 2  # 0, 1, 1, 2, 2, ...
        angle = (2 * math.pi / n) * waves.to(torch.float64)
        apart = torch.arange(4, dtype=torch.float64)[:, None] * angle
        twice = torch.tensor([1.0, 2.0, 2.0, 2.0], dtype=torch.float64)
        size, bent = (
            (twice * torch.tensor(own, dtype=torch.float64)) @ apart.cos() for own in (_PRODUCTS, _BENT)
        )  # mean square of a wave of B-spline coefficients, and of its second derivative in knots
        self._harmonics = (bent.clamp(min=0.0) / size) ** 0.25 * (n / (2 * math.pi))
        self._harmonics[0] = 0.0
        at = torch.outer(angle, torch.arange(n, dtype=torch.float64))
        sine = (torch.arange(n) % 2 == 0)[:, None] & (waves > 0)[:, None]
        self.coefficients = torch.where(sine, at.sin(), at.cos()) / size.sqrt()[:, None]  # (K, knots)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.n_basis

    def harmonic_numbers(self) -> Tensor:
        """Periods per cell, as it were: fourth roots of the roughness of each function, (size,)."""
        return self._harmonics

    def in_units(self, length: float) -> PeriodicSplineBasis:
        """The same functions of states that are measured in units of this length."""
        return PeriodicSplineBasis(self.n_basis, self.period / length, self.origin / length)

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) -> (size, n)."""
        if self.n_basis == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        u = torch.remainder(x - self.origin, self.period) * (self.n_basis / self.period)
        first = u.floor()
        t, knot = u - first, first.long()
        s = 1.0 - t
        blend = (s**3, t * t * (3 * t - 6) + 4, s * s * (3 * s - 6) + 4, t**3)
        out = torch.zeros((self.n_basis, x.shape[0]), dtype=x.dtype, device=x.device)
        for offset, weight in enumerate(blend):
            out += self.coefficients[:, (knot + offset - 1) % self.n_basis] * (weight / 6)
        return out


class PeriodicSplineHead(CellHead):
    """Cubic splines with a period, `n_basis` per coefficient; 1 gives constants."""

    name, usual_alpha = "periodic_spline", 4

    def functions(self, n: int, dim: int, period: Any, origin: Any, truncation: str) -> Basis:
        cells = zip(per_coordinate("period", period, dim), per_coordinate("origin", origin, dim))
        lines = [PeriodicSplineBasis(n, *cell) for cell in cells]
        return lines[0] if dim == 1 else TensorBasis(dim, n, truncation=truncation, lines=lines)
