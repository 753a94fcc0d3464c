"""Several coordinates, each on a space of its own; on a torus V is a multiple Fourier series."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.errors import InputError
from levytorch.spaces.basis import TensorBasis, check_basis
from levytorch.spaces.circle import Circle
from levytorch.spaces.interval import Interval

_CHUNK = 1 << 21  # numbers at once
_LEAST_NODES = 4  # of a coordinate, in a file


@dataclass(frozen=True)
class Product:
    """States [..., d] with one coordinate on each of the spaces.

    >>> Product((Circle(2.0), Interval(0.0, 1.0))).wrap(torch.tensor([[3.0, 3.0]]))
    tensor([[1., 3.]])
    """

    spaces: tuple[Circle | Interval, ...]

    @property
    def dim(self) -> int:
        return len(self.spaces)

    @property
    def repeats(self) -> bool:
        """Whether every coordinate has a period."""
        return all(space.repeats for space in self.spaces)

    @property
    def period(self) -> tuple[float | None, ...]:
        return tuple(space.period for space in self.spaces)

    @property
    def origin(self) -> tuple[float, ...]:
        return tuple(space.origin for space in self.spaces)

    @cached_property
    def _cell(self) -> tuple[Tensor, Tensor]:
        lengths = [space.length for space in self.spaces]
        return torch.tensor(self.origin, dtype=torch.float64), torch.tensor(lengths, dtype=torch.float64)

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """The two ends of every coordinate."""
        return tuple(space.ends for space in self.spaces)

    def wrap(self, x: Tensor) -> Tensor:
        """States reduced to the cell."""
        if self.repeats:  # all coordinates at once
            origin, length = self._cell
            return torch.remainder(x - origin.to(x), length.to(x)) + origin.to(x)
        return torch.stack([space.wrap(x[..., i]) for i, space in enumerate(self.spaces)], dim=-1)

    def inside(self, x: Tensor) -> Tensor:
        """The states of the cell, or between the ends, that have the same coefficients."""
        return torch.stack([space.inside(x[..., i]) for i, space in enumerate(self.spaces)], dim=-1)

    def from_low(self, x: Tensor) -> Tensor:
        """`inside(x)`, counted from the low ends."""
        return torch.stack([space.from_low(x[..., i]) for i, space in enumerate(self.spaces)], dim=-1)

    def grid(self, n: int, shift: float = 0.5) -> Tensor:
        """(n, ..., n, d): n even states per coordinate, `shift` spacings from the low ends."""
        return torch.stack(torch.meshgrid(*(s.grid(n, shift) for s in self.spaces), indexing="ij"), dim=-1)

    def bins(self, x: Tensor, n: int) -> Tensor:
        """Which of the n^d states of `grid(n)` is nearest to states [..., d]; the last coordinate varies fastest."""
        index = torch.zeros(x.shape[:-1], dtype=torch.int64)
        for i, space in enumerate(self.spaces):
            index = index * n + space.bins(x[..., i], n)
        return index

    def basis(self, n: int, truncation: str = "total") -> TensorBasis:
        """Products of n functions of every coordinate."""
        for space in self.spaces:
            if isinstance(space, Circle):
                check_basis(n, space.period, space.origin)
        return TensorBasis(self.dim, n, truncation=truncation, lines=[space.basis(n) for space in self.spaces])

    def functions(self, coefficients: Tensor) -> ProductFunctions:
        """What V is a sum of: waves with coefficients (n, ..., n // 2 + 1, ...), or polynomials and waves with values
        (m_1, ..., m_d, ...) at nodes, where there is an interval.
        """
        if self.repeats:
            return TorusFunctions(self, coefficients.shape[0])
        return NodeFunctions(self, coefficients.shape[0] - (not self.spaces[0].repeats))

    def beyond(self, x: Tensor) -> Tensor:
        """Which of states [..., d] lie beyond the end of an interval."""
        out = torch.zeros(x.shape[:-1], dtype=torch.bool)
        for i, (low, high) in enumerate(self.ends):
            if not self.spaces[i].repeats:
                out |= (x[..., i] < low) | (x[..., i] > high)
        return out

    def config(self) -> dict[str, Any]:
        return {"kind": "product", "spaces": [space.config() for space in self.spaces]}


@dataclass(frozen=True)
class ProductFunctions(ABC):
    """What V on a product is a sum of; n: how many functions, or intervals between nodes, a coordinate has."""

    space: Product
    n: int
    highest: ClassVar[int]  # order of a derivative

    def at(self, x: Tensor, columns: Tensor, order: tuple[int, ...] | int = 0) -> Tensor:
        """Fields with coefficients (..., k), or derivatives of them, at states (..., d): (..., k)."""
        d = self.space.dim
        orders = (0,) * d if isinstance(order, int) and order == 0 else order
        if not isinstance(orders, tuple) or len(orders) != d:
            raise InputError(f"order must be one per coordinate in {d} dimensions, found {order!r}; use V.gradient(x).")
        for one in orders:
            whole_number("order", one, 0, self.highest, "give the order of the derivative")
        if x.ndim == 0 or x.shape[-1] != d:
            raise InputError(f"x must have shape [..., {d}], found {tuple(x.shape)}; put the coordinates last.")
        flat, k = x.reshape(-1, d), columns.shape[-1]
        size = max(1, _CHUNK // self._numbers(columns))
        parts = [self._part(part, columns, orders) for part in flat.split(size)]
        return (torch.cat(parts) if parts else flat.new_zeros((0, k))).reshape(*x.shape[:-1], k)

    def gradient(self, x: Tensor, columns: Tensor) -> Tensor:
        """(..., k, d)."""
        d = self.space.dim
        return torch.stack([self.at(x, columns, tuple(int(a == b) for a in range(d))) for b in range(d)], dim=-1)

    @abstractmethod
    def _numbers(self, columns: Tensor) -> int:
        """How many numbers are held per state."""

    @abstractmethod
    def _part(self, x: Tensor, columns: Tensor, order: tuple[int, ...]) -> Tensor:
        """`at` of a few states (m, d)."""

    @abstractmethod
    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        """Whether what a file holds can be V and its errors."""


class TorusFunctions(ProductFunctions):
    """Waves on an n x ... x n grid; coefficients are those of `rfftn`, divided by n^d: (n, ..., n // 2 + 1) complex."""

    highest = 32

    def _numbers(self, columns: Tensor) -> int:
        return int(self.n ** (self.space.dim - 1))

    def _part(self, x: Tensor, columns: Tensor, order: tuple[int, ...]) -> Tensor:
        n, last = self.n, self.space.dim - 1
        waves = []
        for axis, circle in enumerate(self.space.spaces):
            assert isinstance(circle, Circle)
            # |x| may be 1e10: reduced to the cell first, or the phases lose their argument
            unit = 2 * math.pi / circle.period
            harmonics = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
            harmonics = harmonics if axis < last else torch.arange(n // 2 + 1, dtype=torch.float64)
            angle = (torch.remainder(x[:, axis] - circle.origin, circle.period) * unit)[:, None] * harmonics
            wave = torch.polar(torch.ones_like(angle), angle)
            if order[axis]:
                wave = wave * (1j * harmonics * unit) ** order[axis]
            if n % 2 == 0:
                wave[:, n // 2] = wave[:, n // 2].real.to(wave.dtype)  # the highest mode of an even grid is a cosine
            waves.append(wave)
        weight = torch.full((n // 2 + 1,), 2.0, dtype=torch.float64)  # the other half of a real field's modes
        weight[0] = 1.0
        if n % 2 == 0:
            weight[-1] = 1.0
        waves[-1] = waves[-1] * weight
        return torch.stack([self._sum(waves, c) for c in columns.unbind(-1)], dim=-1)

    @staticmethod
    def _sum(waves: list[Tensor], c: Tensor) -> Tensor:
        """The field at each of m states, (m,), coordinate by coordinate."""
        found = waves[0] @ c.reshape(c.shape[0], -1)
        for wave in waves[1:]:
            n, size = wave.shape[1], found.shape[1]
            found = (wave.unsqueeze(-1) * found.reshape(len(wave), n, size // n)).sum(1)
        return found[:, 0].real

    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        d = self.space.dim
        return _is_spectrum(coefficients, d, d) and (factor is None or _is_spectrum(factor, d, d + 1))


def _is_spectrum(c: Any, dim: int, ndim: int) -> bool:
    if not (isinstance(c, Tensor) and c.is_complex() and c.ndim == ndim):
        return False
    n = c.shape[0]
    return tuple(c.shape[:dim]) == (n,) * (dim - 1) + (n // 2 + 1,)


class NodeFunctions(ProductFunctions):
    """Values (m_1, ..., m_d) at the nodes of every coordinate: n of a circle, n + 1 of an interval, beyond whose ends
    they stay.
    """

    highest = 2

    def _numbers(self, columns: Tensor) -> int:
        return max(1, columns[0].numel())

    def _part(self, x: Tensor, columns: Tensor, order: tuple[int, ...]) -> Tensor:
        found: Tensor | None = None
        for axis, space in enumerate(self.space.spaces):
            own = torch.from_numpy(space.on_nodes(self.n).interpolation(x[:, axis].numpy(), order[axis]))
            if found is None:
                found = (own @ columns.reshape(columns.shape[0], -1)).reshape(len(x), *columns.shape[1:])
            else:
                found = torch.einsum("ma,ma...->m...", own, found)
        assert found is not None
        return found

    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        def sound(values: Any, more: int) -> bool:
            d = self.space.dim
            if not (isinstance(values, Tensor) and values.dtype == torch.float64 and values.ndim == d + more):
                return False
            n = values.shape[0] - (not self.space.spaces[0].repeats)
            return n >= _LEAST_NODES and all(m == n + (not s.repeats) for m, s in zip(values.shape, self.space.spaces))

        return sound(coefficients, 0) and (factor is None or sound(factor, 1))
