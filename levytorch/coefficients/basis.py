"""The Fourier basis of section 3.1: 1, cos(k x), sin(k x), k = 1 ... N, for any period and origin."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from levytorch.coefficients import kernels
from levytorch.convert import shown
from levytorch.errors import InputError

MOST = 9999  # functions: far more than data can determine
FARTHEST = 1e9  # periods: x then has a resolution of 1e-7 of the cell


def check_basis(n_basis: object, period: object, origin: object = 0.0) -> None:
    """Refuse what cannot be a real Fourier basis on a period."""
    if isinstance(n_basis, bool) or not isinstance(n_basis, int) or not 1 <= n_basis <= MOST or n_basis % 2 == 0:
        raise InputError(
            f"n_basis must be an odd integer from 1 to 9999 (1, then a cosine and a sine per frequency), found "
            f"{shown(n_basis)}; "
            "use 1 for constants, 21 for the paper's variable example."
        )
    if not _is_finite(period) or period <= 0:  # type: ignore[operator]
        raise InputError(
            f"period must be a positive finite number, found {shown(period)}; pass the length of one cell in x."
        )
    if not _is_finite(origin):
        raise InputError(f"origin must be a finite number, found {shown(origin)}; pass the left end of the cell in x.")
    if abs(origin) > FARTHEST * period:  # type: ignore[operator,arg-type]
        raise InputError(
            f"origin must lie within {FARTHEST:.0e} periods of zero, found {shown(origin)} and period {shown(period)}; "
            "floating point cannot tell the states of such a cell apart, so move x or widen the cell."
        )


def _is_finite(value: object) -> bool:
    """Whether a value is an int or a float that float64 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


class FourierBasis:
    """`n_basis` = 2N + 1 functions on a cell of length `period` that starts at `origin`.

    x is reduced modulo the period first: |x| reaches 1e10 on heavy-tailed paths, where sin(k x) of the raw argument
    would amplify the rounding of x k-fold. Only one sine and one cosine are computed; the rest is a rotation.
    """

    def __init__(self, n_basis: int = 21, period: float = 2 * math.pi, origin: float = 0.0) -> None:
        check_basis(n_basis, period, origin)
        self.n_basis, self.period, self.origin = n_basis, float(period), float(origin)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.n_basis

    @property
    def frequency(self) -> float:
        """Angular frequency of the first harmonic."""
        return 2 * math.pi / self.period

    def phase(self, x: Tensor) -> Tensor:
        """Position within the cell as an angle in [0, 2 pi)."""
        return torch.remainder(x - self.origin, self.period) * self.frequency

    def evaluate(self, x: Tensor) -> Tensor:
        """Basis functions at x: (n,) -> (n, K). The memory behind it is (K, n), so that rows stay contiguous."""
        return self.rows(x).T

    def rows(self, x: Tensor) -> Tensor:
        """The same transposed: (n,) -> (K, n)."""
        if self.n_basis == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        phase = self.phase(x)
        return kernels.harmonics(torch.cos(phase), torch.sin(phase), self.n_basis)

    def derivative(self, x: Tensor, order: int = 1) -> Tensor:
        """d^order phi_k / dx^order at x: (n, K); used by roughness measures and figures, not on the hot path."""
        phi = self.evaluate(x).clone()
        for _ in range(order):
            cos, sin = phi[:, 1::2].clone(), phi[:, 2::2].clone()
            k = self.wavenumbers()[1::2]
            phi[:, 0] = 0.0
            phi[:, 1::2], phi[:, 2::2] = -k * sin, k * cos
        return phi

    def wavenumbers(self) -> Tensor:
        """Angular wave number of each basis function: 0, w, w, 2w, 2w, ..."""
        return self.frequency * self.harmonic_numbers()

    def harmonic_numbers(self) -> Tensor:
        """0, 1, 1, 2, 2, ..., N, N."""
        return torch.div(torch.arange(self.n_basis) + 1, 2, rounding_mode="floor").to(torch.float64)
