"""Functions of a state on a line, for V from data: smooth waves on a window, constant beyond it.

They are the splines of the coefficients (`coefficients.spline`): 1, a straight line, waves of rising frequency,
orthonormal over the window. Constant beyond it is what `solve_value` takes V for by default: a jump past an end lands
on it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients.spline import SplineBasis

_GAUSS = 4  # nodes between two knots: products of two cubics are integrated exactly


class LineBasis:
    """`n_modes` functions on the window (low, high)."""

    period = None

    def __init__(self, n_modes: int, window: tuple[float, float]) -> None:
        self.n_modes, self.window = n_modes, window
        self.spline = SplineBasis(n_modes, window)
        self.origin, self.length = window[0], window[1] - window[0]
        breaks = np.array([0.0, 1.0]) if n_modes == 1 else self.spline.breaks.numpy()
        nodes, weights = np.polynomial.legendre.leggauss(_GAUSS)
        lengths = np.diff(breaks)[:, None]
        self._u = torch.from_numpy((breaks[:-1, None] + lengths * (nodes + 1) / 2).ravel())
        self.weights = torch.from_numpy((lengths * weights / 2).ravel())

    @property
    def size(self) -> int:
        return self.n_modes

    def harmonic_numbers(self) -> Tensor:
        return self.spline.harmonic_numbers()

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (m,) -> (n, m)."""
        return self.spline.rows(x)

    def matrix(self, x: Tensor, order: int = 0) -> Tensor:
        """Functions at states, or a derivative of them, (m, n)."""
        if order == 0:
            return self.rows(x).T
        if self.n_modes == 1:
            return torch.zeros((len(x), 1), dtype=torch.float64)
        u = (x - self.origin) / self.length
        index = torch.bucketize(u.clamp(0.0, 1.0), self.spline.breaks[1:-1], right=True)
        t = u - self.spline.breaks[index]
        cubic, square, line, _ = (piece[:, index] for piece in self.spline.pieces)
        found = 3 * cubic * t**2 + 2 * square * t + line if order == 1 else 6 * cubic * t + 2 * square
        return (torch.where((u >= 0) & (u <= 1), found, torch.zeros_like(found)) / self.length**order).T

    def points(self) -> Tensor:
        """States whose values make a series: nodes of Gauss and Legendre between knots."""
        return self.origin + self.length * self._u

    def series(self, values: Tensor) -> Tensor:
        """Values at the points, (m, ...), as coefficients (n, ...): the nearest function."""
        return (self.rows(self.points()) * self.weights) @ values

    def grid(self, n: int) -> Tensor:
        """`n` even states of the window, half a spacing from its ends."""
        return self.origin + (torch.arange(n, dtype=torch.float64) + 0.5) * (self.length / n)
