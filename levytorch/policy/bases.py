"""The functions that V from data is a sum of, of a state on a circle, on a line, on a torus, or on products of these.

Each knows what depends on where the state lives: derivatives, the nearest sum to values at some points, even states and
the bins around them, and the V that coefficients make. Fewer functions are the first of more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from levytorch.policy.blocked import solution
from levytorch.policy.checks import Reward
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product
from levytorch.spaces.basis import FourierBasis, TensorBasis
from levytorch.spaces.splines import SplineBasis

WIDE = 65  # functions of rewards and of what a model expects
WIDE_PER_COORDINATE = {2: 21, 3: 9}
_GAUSS = 4  # nodes between two knots: products of two cubics are integrated exactly
_NODES = 256  # of V on a line
_KEPT = 1e-7  # of the largest direction of V's errors in a plane: what is smaller is left out


class CircleBasis(FourierBasis):
    """Fourier functions on a circle."""

    dim = 1
    n_modes_of_V = 257  # where a model has no smoothness of its own
    n_bins = 1024
    solver_options: ClassVar[dict[str, Any]] = {}

    @property
    def space(self) -> Circle:
        return Circle(self.period, self.origin)

    @property
    def fit_options(self) -> dict[str, Any]:
        """What `recover` is asked for with as many functions of every coefficient."""
        return {"n_basis": self.n_modes, "period": self.period, "origin": self.origin}

    @property
    def reach(self) -> float:
        """Beyond which a displacement has no direction."""
        return self.period / 2

    def wider(self) -> CircleBasis:
        """What rewards, and what models expect of them, are sums of."""
        return CircleBasis(max(WIDE, 2 * self.n_modes + 1), self.period, self.origin)

    def derivative(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """A derivative of the functions at states, (m, n)."""
        return self.matrix(x, *order)

    def closed(self, n: int) -> int:
        """How many of the functions the derivatives of the first n are sums of: waves of the same frequencies."""
        return n | 1

    def project(self, values: Tensor) -> Tensor:
        """Values at the points, (m, ...), as coefficients (n, ...): by discrete orthogonality."""
        return _nearest(self.matrix(self.points()), values)

    def series(self, f: Reward) -> Tensor:
        """(n,) coefficients of a function of the state, averaged over eight times as many points: a function with a
        jump is not what it is at n of them.
        """
        x = FourierBasis(8 * self.n_modes + 1, self.period, self.origin).points()
        return _nearest(self.matrix(x), f(x))

    def bins(self, x: Tensor) -> Tensor:
        """Which of `grid(n_bins)` is nearest."""
        return self.space.bins(x, self.n_bins)

    def value(self, c: Tensor, beta: float) -> ValueFunction:
        """V of coefficients, of all functions or of the first."""
        return ValueFunction(c, self.space, beta)

    def factor(self, S: Tensor) -> Tensor:
        """The covariance factor of V, where that of the coefficients is S."""
        return S


class LineBasis:
    """`n_modes` functions on the window (low, high), constant beyond it: smooth waves.

    They are the splines of the coefficients (`coefficients.spline`): 1, a straight line, waves of rising frequency,
    orthonormal over the window. Constant beyond it is what `solve_value` takes V for by default: a jump past an end
    lands on it.
    """

    dim, period = 1, None
    n_modes_of_V, n_bins = _NODES, 1024

    def __init__(self, n_modes: int, window: tuple[float, float]) -> None:
        self.n_modes, self.window, self.space = n_modes, window, Interval(*window)
        self.solver_options, self.fit_options = {"window": window}, {"n_basis": n_modes, "period": None}
        self.spline = SplineBasis(n_modes, window)
        self.origin, self.length = window[0], window[1] - window[0]
        self.reach = 0.5 * self.length
        breaks = np.array([0.0, 1.0]) if n_modes == 1 else self.spline.breaks.numpy()
        nodes, weights = np.polynomial.legendre.leggauss(_GAUSS)
        lengths = np.diff(breaks)[:, None]
        self._u = torch.from_numpy((breaks[:-1, None] + lengths * (nodes + 1) / 2).ravel())
        self.weights = torch.from_numpy((lengths * weights / 2).ravel())

    def wider(self) -> LineBasis:
        return LineBasis(max(WIDE, 2 * self.n_modes + 1), self.window)

    def harmonic_numbers(self) -> Tensor:
        return self.spline.harmonic_numbers()

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (m,) -> (n, m)."""
        return self.spline.rows(x)

    def matrix(self, x: Tensor) -> Tensor:
        return self.rows(x).T

    def derivative(self, x: Tensor, order: Sequence[int]) -> Tensor:
        (k,) = order
        if self.n_modes == 1:
            return torch.zeros((len(x), 1), dtype=torch.float64)
        u = (x - self.origin) / self.length
        index = torch.bucketize(u.clamp(0.0, 1.0), self.spline.breaks[1:-1], right=True)
        t = u - self.spline.breaks[index]
        cubic, square, line, _ = (piece[:, index] for piece in self.spline.pieces)
        found = 3 * cubic * t**2 + 2 * square * t + line if k == 1 else 6 * cubic * t + 2 * square
        return (torch.where((u >= 0) & (u <= 1), found, torch.zeros_like(found)) / self.length**k).T

    def closed(self, n: int) -> int:
        """All: derivatives of splines are nearly in the wide space."""
        return self.n_modes

    def points(self) -> Tensor:
        """Nodes of Gauss and Legendre between knots."""
        return self.origin + self.length * self._u

    def project(self, values: Tensor) -> Tensor:
        return (self.rows(self.points()) * self.weights) @ values

    def series(self, f: Reward) -> Tensor:
        return self.project(f(self.points()))

    def grid(self, n: int) -> Tensor:
        """`n` even states of the window, half a spacing from its ends."""
        return self.space.grid(n)

    def bins(self, x: Tensor) -> Tensor:
        return self.space.bins(x, self.n_bins)

    @cached_property
    def _on_nodes(self) -> Tensor:
        """(N + 1, n): the functions at the nodes of V."""
        return self.matrix(self.space.nodes(_NODES))

    def value(self, c: Tensor, beta: float) -> ValueFunction:
        return ValueFunction(self._on_nodes[:, : len(c)] @ c, self.space, beta)

    def factor(self, S: Tensor) -> Tensor:
        return self._on_nodes[:, : len(S)] @ S


class PlaneBasis:
    """Products of Fourier functions whose harmonics add up to at most (n_basis - 1) / 2; see `TensorBasis`."""

    solver_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, n_basis: int, space: Product) -> None:
        self.space, self.period, self.origin, self.dim = space, space.period, space.origin, space.dim
        self.n_modes_of_V, per_coordinate = {2: (64, 64), 3: (32, 16)}[space.dim]
        self.n_bins = per_coordinate**space.dim
        self.functions = space.basis(n_basis)
        self.lines = [part.basis(n_basis) for part in space.spaces]
        self.n_basis, self.n_modes = n_basis, self.functions.size
        self.fit_options = {"n_basis": n_basis, "period": space.period, "origin": space.origin}
        lengths = torch.tensor(space.period, dtype=torch.float64)
        self.reach = float(lengths.min()) / 2
        self.wavenumbers = (2 * torch.pi * self.functions.harmonics / lengths).norm(dim=1)

    def wider(self) -> PlaneBasis:
        return PlaneBasis(max(WIDE_PER_COORDINATE[self.dim], 2 * self.n_basis - 1), self.space)

    def harmonic_numbers(self) -> Tensor:
        return self.functions.harmonic_numbers()

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (m, d) -> (n, m)."""
        return self.functions.rows(x)

    def matrix(self, x: Tensor) -> Tensor:
        return self.derivative(x, (0,) * self.dim)

    def derivative(self, x: Tensor, order: Sequence[int]) -> Tensor:
        of_each = (line.matrix(x[..., i], order[i])[..., self.functions.index[i]] for i, line in enumerate(self.lines))
        return math.prod(of_each, start=torch.ones((), dtype=torch.float64))

    def closed(self, n: int) -> int:
        return n

    def points(self) -> Tensor:
        """(m, d): a grid on which products of two functions are orthogonal or not as they are on the cell."""
        return self._grid(2 * self.n_basis - 1)

    def _grid(self, n: int, shift: float = 0.0) -> Tensor:
        return self.space.grid(n, shift).reshape(-1, self.dim)

    def project(self, values: Tensor) -> Tensor:
        return _nearest(self.matrix(self.points()), values)

    def series(self, f: Reward) -> Tensor:
        """(n,) coefficients of a function of the state, from a grid four times as fine as its functions."""
        x = self._grid(4 * self.n_basis + 1)
        return _nearest(self.matrix(x), f(x))

    def grid(self, n: int) -> Tensor:
        """n states (a power of the dimension), half a spacing from the origin."""
        return self._grid(round(n ** (1 / self.dim)), 0.5)

    def bins(self, x: Tensor) -> Tensor:
        return self.space.bins(x, round(self.n_bins ** (1 / self.dim)))

    def value(self, c: Tensor, beta: float) -> ValueFunction:
        return ValueFunction(self._spectrum(c[:, None])[..., 0], self.space, beta)

    def factor(self, S: Tensor) -> Tensor:
        U, size, _ = torch.linalg.svd(S, full_matrices=False)
        return self._spectrum((U * size)[:, size > _KEPT * size[0]])

    def _spectrum(self, c: Tensor) -> Tensor:
        """Coefficients (K, k) of the functions as those of V on a torus, (n, ..., n // 2 + 1, k)."""
        n, d = self.n_basis, self.dim
        on_grid = (self.matrix(self._grid(n))[:, : len(c)] @ c).reshape(*[n] * d, -1)
        return torch.from_numpy(np.fft.rfftn(on_grid.numpy(), axes=tuple(range(d))) / n**d)


class ProductBasis:
    """Products of the functions of two or three coordinates, some on a line, beyond whose window V is constant."""

    def __init__(self, n_basis: int, space: Product) -> None:
        self.space, self.period, self.origin, self.dim = space, space.period, space.origin, space.dim
        self.window = tuple(part.ends for part in space.spaces)
        self.parts: list[Any] = [
            CircleBasis(n_basis, part.period, part.origin)
            if isinstance(part, Circle)
            else LineBasis(n_basis, part.ends)
            for part in space.spaces
        ]
        self.functions = TensorBasis(space.dim, n_basis, lines=self.parts)
        self.n_basis, self.n_modes = n_basis, self.functions.size
        windows = [None if part.repeats else part.ends for part in space.spaces]
        self.solver_options = {"window": windows}
        self.fit_options = {"n_basis": n_basis, "period": space.period, "origin": space.origin, "window": windows}
        self.reach = min(part.reach for part in self.parts)
        self.n_modes_of_V, self._bins = {2: (48, 64), 3: (20, 16)}[space.dim]
        self.n_bins = self._bins**space.dim

    def wider(self) -> ProductBasis:
        return ProductBasis(max(WIDE_PER_COORDINATE[self.dim], 2 * self.n_basis - 1), self.space)

    def harmonic_numbers(self) -> Tensor:
        return self.functions.harmonic_numbers()

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (m, d) -> (n, m)."""
        return self.functions.rows(x)

    def matrix(self, x: Tensor) -> Tensor:
        return self.rows(x.reshape(-1, self.dim)).T.reshape(*x.shape[:-1], -1)

    def derivative(self, x: Tensor, order: Sequence[int]) -> Tensor:
        of_each = (
            (part.derivative(x[..., i], (k,)) if k else part.matrix(x[..., i]))[..., self.functions.index[i]]
            for i, (part, k) in enumerate(zip(self.parts, order))
        )
        return math.prod(of_each, start=torch.ones((), dtype=torch.float64))

    def closed(self, n: int) -> int:
        """All: derivatives of splines are nearly in the wide space."""
        return self.n_modes

    @cached_property
    def _weights(self) -> Tensor:
        """(m,): of the points, for means over the cell."""
        out = torch.ones(1, dtype=torch.float64)
        for part in self.parts:
            n = len(part.points())
            own = part.weights if isinstance(part, LineBasis) else torch.full((n,), 1.0 / n, dtype=torch.float64)
            out = (out[:, None] * own).reshape(-1)
        return out

    def points(self) -> Tensor:
        """(m, d): on a line nodes of Gauss and Legendre between knots, on a circle even ones."""
        return torch.stack(torch.meshgrid(*(part.points() for part in self.parts), indexing="ij"), -1).flatten(0, -2)

    @cached_property
    def _to_coefficients(self) -> Tensor:
        weighted = self.rows(self.points()) * self._weights
        return solution(weighted @ self.matrix(self.points()), weighted)

    def project(self, values: Tensor) -> Tensor:
        return self._to_coefficients @ values

    def series(self, f: Reward) -> Tensor:
        return self.project(f(self.points()))

    def grid(self, n: int) -> Tensor:
        """n states (a power of the dimension), half a spacing from the ends."""
        return self.space.grid(round(n ** (1 / self.dim))).flatten(0, -2)

    def bins(self, x: Tensor) -> Tensor:
        return self.space.bins(x, self._bins)

    @cached_property
    def _on_nodes(self) -> Tensor:
        """(m_1, ..., m_d, n): the functions at the nodes of V."""
        axes = [torch.from_numpy(part.on_nodes(self.n_modes_of_V).all_x) for part in self.space.spaces]
        x = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        return self.matrix(x.flatten(0, -2)).reshape(*x.shape[:-1], -1)

    def value(self, c: Tensor, beta: float) -> ValueFunction:
        return ValueFunction(self._on_nodes[..., : len(c)] @ c, self.space, beta)

    def factor(self, S: Tensor) -> Tensor:
        return self._on_nodes[..., : len(S)] @ S


Functions = CircleBasis | LineBasis | PlaneBasis | ProductBasis


def _nearest(Phi: Tensor, values: Tensor) -> Tensor:
    """The combination of functions Phi (m, n), orthogonal on the points, that is nearest to values (m, ...)."""
    return (Phi / (Phi**2).sum(0)).T @ values
