"""The generator on a torus of two dimensions, applied with fast Fourier transforms; no matrix is ever formed.

    L V = b . grad V + D_o Lap V - D_f (-Lap)^alpha V

On an n_1 x n_2 grid every constant-coefficient operator is a product with its symbol. Where alpha depends on the state,
|k|^(2 alpha) is interpolated in alpha at Chebyshev nodes, so that each node costs one transform.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import fft
from torch import Tensor

from levytorch.errors import InputError

Array = np.ndarray[Any, Any]
_ALPHA_NODES = 16  # exp(2 alpha log|k|) over the whole of (0, 1) and |k| < 1e3: interpolated to 1e-10


class Torus(NamedTuple):
    """A cell [origin, origin + period) in each coordinate."""

    period: tuple[float, float]
    origin: tuple[float, float]

    def axes(self, n: int, shift: float = 0.0) -> tuple[Array, Array]:
        """Grid coordinates; `shift` in spacings."""
        first, second = (o + (np.arange(n) + shift) * (p / n) for o, p in zip(self.origin, self.period))
        return first, second

    def points(self, n: int, shift: float = 0.0) -> Tensor:
        """(n, n, 2) points of the grid."""
        first, second = np.meshgrid(*self.axes(n, shift), indexing="ij")
        return torch.from_numpy(np.stack([first, second], axis=-1))


def torus(source: Any) -> Torus:
    """The cell of a two-dimensional Dynamics or Recovery; refuses what has no finite period."""
    period, origin = (_pair(getattr(source, name)) for name in ("period", "origin"))
    if not all(math.isfinite(p) and p > 0 for p in period):
        raise InputError(f"solve_value needs a finite period in both coordinates, found {period}; set period= in it.")
    return Torus(period, origin)


def _pair(value: Any) -> tuple[float, float]:
    first, second = np.broadcast_to(np.asarray(value, dtype=np.float64), (2,)).tolist()
    return first, second


class Fields(NamedTuple):
    """Coefficients on a grid: b (2, n, n), D_o, D_f (n, n), alpha a number or (n, n)."""

    b: Array
    D_o: Array
    D_f: Array
    alpha: float | Array


def fields(source: Any, x: Tensor) -> Fields:
    """b, D_o, D_f and alpha at the points x (n, n, 2)."""
    with torch.no_grad():
        b = _values(source.b(x), x.shape, "b")
        D_o, D_f = (_values(getattr(source, name)(x), x.shape[:-1], name) for name in ("D_o", "D_f"))
        alpha: float | Array
        if callable(source.alpha):
            alpha = _values(source.alpha_at(x), x.shape[:-1], "alpha")
        else:
            alpha = float(source.alpha)
    for name, value in (("D_o", D_o), ("D_f", D_f)):
        if value.min() < 0:
            raise InputError(f"{name} must not be negative, but {value.min():.3g} occurs; check the coefficients.")
    return Fields(np.moveaxis(b, -1, 0), D_o, D_f, alpha)


def _values(value: Any, shape: tuple[int, ...], name: str) -> Array:
    found = torch.as_tensor(value, dtype=torch.float64).detach()
    if found.shape != shape:
        raise InputError(f"{name}(x) must have shape {tuple(shape)}, found {tuple(found.shape)}; check the dynamics.")
    if not bool(torch.isfinite(found).all()):
        raise InputError(f"{name}(x) must be finite on the cell, found NaN or infinity; check the coefficients.")
    return found.numpy()


class PlaneOperator:
    """L and its parts on an n x n grid, acting on Fourier coefficients (of `scipy.fft.rfft2`)."""

    def __init__(self, cell: Torus, n: int) -> None:
        self.cell, self.n = cell, n
        k_1 = fft.fftfreq(n, 1 / n) * (2 * math.pi / cell.period[0])
        k_2 = fft.rfftfreq(n, 1 / n) * (2 * math.pi / cell.period[1])
        self.square = k_1[:, None] ** 2 + k_2[None, :] ** 2
        # the derivative of the highest cosine of an even grid vanishes at its points
        d_1, d_2 = k_1.copy(), k_2.copy()
        if n % 2 == 0:
            d_1[n // 2] = d_2[n // 2] = 0.0
        self.gradient = (1j * d_1[:, None], 1j * d_2[None, :])
        self.logarithm = np.log(np.where(self.square > 0, self.square, 1.0))

    def forward(self, field: Array) -> Array:
        """Coefficients of a real field on the grid."""
        return fft.rfft2(field)

    def inverse(self, c: Array) -> Array:
        """The field of coefficients."""
        return fft.irfft2(c, s=(self.n, self.n))

    def symbol(self, alpha: float, log_power: int = 0) -> Array:
        """|k|^(2 alpha), or its derivative of order `log_power` in alpha; zero at k = 0."""
        power = np.where(self.square > 0, np.exp(alpha * self.logarithm), 0.0)
        return power * self.logarithm**log_power if log_power else power

    def shifted(self, c: Array, shift: float) -> Array:
        """Coefficients of the field moved by `shift` spacings: what it is between the points of the grid."""
        if not shift:
            return c
        turn_1 = np.exp(2j * math.pi * shift * fft.fftfreq(self.n))
        turn_2 = np.exp(2j * math.pi * shift * fft.rfftfreq(self.n))
        if self.n % 2 == 0:
            turn_1[self.n // 2], turn_2[self.n // 2] = turn_1[self.n // 2].real, turn_2[self.n // 2].real
        return c * turn_1[:, None] * turn_2[None, :]

    def fractional(self, c: Array, alpha: float | Array, log_power: int = 0) -> Array:
        """(-Lap)^alpha of the field (or its derivative in alpha), alpha a number or one per point."""
        if not isinstance(alpha, np.ndarray):
            return self.inverse(c * self.symbol(alpha, log_power))
        low, high = float(alpha.min()), float(alpha.max())
        if high - low < 1e-12:
            return self.inverse(c * self.symbol(low, log_power))
        angle = math.pi * (np.arange(_ALPHA_NODES) + 0.5) / _ALPHA_NODES
        nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
        weights = (-1.0) ** np.arange(_ALPHA_NODES) * np.sin(angle)  # barycentric, Chebyshev points of the first kind
        top, bottom = np.zeros_like(alpha), np.zeros_like(alpha)
        for node, weight in zip(nodes, weights):
            gap = alpha - node
            share = weight / np.where(np.abs(gap) < 1e-14, 1e-14, gap)
            top += share * self.inverse(c * self.symbol(float(node), log_power))
            bottom += share
        return top / bottom

    def apply(self, c: Array, at: Fields) -> Array:
        """L V on the grid where `at` was taken."""
        out = at.b[0] * self.inverse(self.gradient[0] * c)
        out += at.b[1] * self.inverse(self.gradient[1] * c)
        out -= at.D_o * self.inverse(self.square * c)
        return out - at.D_f * self.fractional(c, at.alpha)
