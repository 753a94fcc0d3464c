"""The Fourier basis of section 3.1: 1, cos(k x), sin(k x), k = 1 ... N, for any period and origin.

In d > 1 dimensions: products of such functions, one factor per coordinate. Every operator of the generator acts on the
basis in closed form, (-Lap)^alpha by |k|^(2 alpha).
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from levytorch.convert import choice, real_number, shown, whole_number
from levytorch.errors import InputError

MOST = 9999  # functions of a coefficient: far more than data can determine
MOST_MODES = 1 << 14  # functions of V: n_modes^2 numbers are held at once, 2 GB
FARTHEST = 1e9  # periods: x then has a resolution of 1e-7 of the cell
TRUNCATIONS = ("total", "box")
MAX_SIZE = 4000  # functions per coefficient in d > 1; beyond, a matrix of all parameters no longer fits into memory


class Basis(Protocol):
    """What a linear head asks of its functions; the first of them is the constant 1."""

    @property
    def size(self) -> int: ...

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) or (n, d) -> (size, n)."""
        ...

    def harmonic_numbers(self) -> Tensor:
        """(size,): fourth roots of what a roughness penalty charges for a coefficient of one; 0 is free."""
        ...

    def in_units(self, length: float) -> Basis:
        """The same functions of states that are measured in units of this length."""
        ...


class NoBasis:
    """No functions at all: of a coefficient that is known."""

    size = 0

    def rows(self, x: Tensor) -> Tensor:
        return x.new_zeros((0, x.shape[0]))

    def harmonic_numbers(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)

    def in_units(self, length: float) -> NoBasis:
        return self


@dataclass(frozen=True)
class FourierBasis:
    """`n_modes` functions 1, cos k_1 s, sin k_1 s, cos k_2 s, ... with s = x - origin and k_m = 2 pi m / period.

    An even `n_modes` ends with a cosine. x is reduced modulo the period first: |x| reaches 1e10 on heavy-tailed paths,
    where sin(k x) of the raw argument would amplify the rounding of x k-fold.
    """

    n_modes: int = 21
    period: float = 2 * math.pi
    origin: float = 0.0

    def __post_init__(self) -> None:
        # plain numbers, also of a tensor or a NumPy number
        n_modes = whole_number("n_modes", self.n_modes, 1, MOST_MODES, "give the number of Fourier modes")
        period = real_number("period", self.period, "give the length of the cell")
        origin = real_number("origin", self.origin, "give the left end of the cell")
        if not period > 0:
            raise InputError(f"period must be a positive number, found {period!r}; give the length of the cell.")
        for name, value in (("n_modes", n_modes), ("period", period), ("origin", origin)):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.n_modes

    def harmonic_numbers(self) -> Tensor:
        """0, 1, 1, 2, 2, ..., (n_modes,)."""
        return (torch.arange(1, self.n_modes + 1, dtype=torch.float64) // 2).to(torch.float64)

    def in_units(self, length: float) -> FourierBasis:
        """The same functions of states that are measured in units of this length."""
        return replace(self, period=self.period / length, origin=self.origin / length)

    @property
    def wavenumbers(self) -> Tensor:
        """k of every function, (n_modes,)."""
        return self.harmonic_numbers() * (2 * math.pi / self.period)

    def points(self) -> Tensor:
        """Collocation points, (n_modes,): equally spaced, starting at the origin."""
        return self.origin + torch.arange(self.n_modes, dtype=torch.float64) * (self.period / self.n_modes)

    def grid(self, n: int) -> Tensor:
        """`n` equally spaced points of the cell, half a spacing away from the origin."""
        return self.origin + (torch.arange(n, dtype=torch.float64) + 0.5) * (self.period / n)

    def rows(self, x: Tensor) -> Tensor:
        """A few functions at many states, (n,) -> (n_modes, n): one sine and one cosine, the rest is a rotation."""
        if self.n_modes == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        phase = torch.remainder(x - self.origin, self.period) * (2 * math.pi / self.period)
        cos, sin = torch.cos(phase), torch.sin(phase)
        rows = [torch.ones_like(cos), cos, sin]
        z = power = torch.complex(cos, sin)
        for _ in range(3, self.n_modes, 2):
            power = power * z
            rows += [power.real, power.imag]
        return torch.stack(rows[: self.n_modes])

    def matrix(self, x: Tensor, order: int = 0) -> Tensor:
        """Many functions at a few points, or their derivatives of the given order: (...) -> (..., n_modes).

        Every sine by itself: the rotation of `rows` would round some thousand times.
        """
        s = torch.remainder(x - self.origin, self.period)
        k = self.wavenumbers.to(x.device)
        angle = s[..., None] * k[1::2]
        cos, sin = angle.cos(), angle.sin()
        turned = (cos, -sin, -cos, sin)  # the derivatives of cos in turn; the third is sin itself
        out = x.new_zeros((*x.shape, self.n_modes))
        if order == 0:
            out[..., 0] = 1.0
        out[..., 1::2] = turned[order % 4]
        out[..., 2::2] = turned[(order + 3) % 4][..., : (self.n_modes - 1) // 2]
        return out if order == 0 else out * k**order


class TensorBasis:
    """phi_k(x) = prod_i phi_{k_i}(x_i) in d > 1 coordinates; `n_basis` functions each, constant first.

    lines: the functions of each coordinate, None for those of Fourier. truncation "total" keeps products whose harmonic
    numbers add up to at most N = (n_basis - 1) / 2, "box" all of them.
    """

    def __init__(
        self,
        dim: int,
        n_basis: int = 5,
        period: float | Sequence[float] = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        truncation: str = "total",
        lines: Sequence[Basis] | None = None,
    ) -> None:
        choice("truncation", truncation, TRUNCATIONS)
        self.dim, self.n_basis, self.truncation = dim, n_basis, truncation
        if lines is None:
            self.period, self.origin = per_coordinate("period", period, dim), per_coordinate("origin", origin, dim)
            for p, o in zip(self.period, self.origin):
                check_basis(n_basis, p, o)
            lines = [FourierBasis(n_basis, p, o) for p, o in zip(self.period, self.origin)]
        self.lines = list(lines)
        found = n_basis**dim if truncation == "box" else products_kept(dim, n_basis, MAX_SIZE)
        if found > MAX_SIZE:
            raise InputError(
                f"n_basis must give at most {MAX_SIZE} functions per coefficient, found more with {n_basis} in {dim} "
                "dimensions; it counts per coordinate: use fewer, or truncation total."
            )
        highest = dim * n_basis if truncation == "box" else (n_basis - 1) // 2
        kept = sorted(_products(dim, n_basis, highest), key=_harmonics)  # stable: the constant is first
        self.index = torch.tensor(kept, dtype=torch.int64).T.contiguous()  # (d, K)
        own = [line.harmonic_numbers()[self.index[i]] for i, line in enumerate(self.lines)]
        self.harmonics = torch.stack(own, dim=1)  # (K, d)

    @property
    def size(self) -> int:
        """Number of functions K."""
        return int(self.index.shape[1])

    def rows(self, x: Tensor) -> Tensor:
        """Functions at x: (n, d) -> (K, n)."""
        if self.size == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        out: Tensor | None = None
        for i, line in enumerate(self.lines):
            factor = line.rows(x[:, i].contiguous())[self.index[i]]
            out = factor if out is None else out.mul_(factor)
        assert out is not None
        return out

    def harmonic_numbers(self) -> Tensor:
        """Euclidean length of each function's harmonics, (K,): what a roughness penalty weighs."""
        lengths: Tensor = self.harmonics.norm(dim=1)
        return lengths

    def in_units(self, length: float) -> TensorBasis:
        """The same functions of states that are measured in units of this length."""
        new = copy.copy(self)
        new.lines = [line.in_units(length) for line in self.lines]
        for name in ("period", "origin"):
            if hasattr(self, name):
                setattr(new, name, tuple(value / length for value in getattr(self, name)))
        return new


def _harmonics(index: Sequence[int]) -> int:
    """The sum of the harmonic numbers of a product of functions."""
    return sum((k + 1) // 2 for k in index)


def _products(dim: int, n_basis: int, highest: int) -> list[tuple[int, ...]]:
    """The products whose harmonic numbers add up to at most `highest`, the last coordinate varying fastest."""
    if dim == 0:
        return [()]
    return [
        (k, *rest)
        for k in range(n_basis)
        if (k + 1) // 2 <= highest
        for rest in _products(dim - 1, n_basis, highest - (k + 1) // 2)
    ]


def products_kept(dim: int, n_basis: int, most: int) -> int:
    """How many products of n_basis functions "total" keeps in dim coordinates; more than `most` is `most` + 1."""
    highest = (n_basis - 1) // 2
    ways = [1] + [0] * highest  # to have each sum of harmonic numbers
    for _ in range(dim):
        ways = [ways[s] + sum(2 * ways[s - j] for j in range(1, s + 1)) for s in range(highest + 1)]
    return min(sum(ways), most + 1)


def fourier_basis(
    dim: int, n_basis: int, period: Any, origin: Any, truncation: str = "total"
) -> FourierBasis | TensorBasis:
    """The basis of one coefficient in any dimension."""
    if dim > 1:
        return TensorBasis(dim, n_basis, period, origin, truncation)
    check_basis(n_basis, period, origin)
    return FourierBasis(n_basis, period, origin)


def per_coordinate(name: str, given: Any, dim: int) -> tuple[float, ...]:
    """One number for all coordinates, or one each, as a tuple of floats."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * dim
    if len(values) != dim:
        raise InputError(f"{name} must be one number or {dim}, found {len(values)}; give one per coordinate.")
    return tuple(float(v) if isinstance(v, int) else v for v in values)


def check_basis(n_basis: object, period: object, origin: object = 0.0) -> None:
    """Refuse what cannot be the basis of a coefficient: whole frequencies, on a cell whose states can be resolved."""
    if isinstance(n_basis, bool) or not isinstance(n_basis, int) or not 1 <= n_basis <= MOST or n_basis % 2 == 0:
        raise InputError(
            f"n_basis must be an odd integer from 1 to 9999 (1, then a cosine and a sine per frequency), found "
            f"{shown(n_basis)}; use 1 for constants, 21 for the paper's variable example."
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
            "floating-point numbers cannot resolve the states of such a cell: move x or widen the cell."
        )


def _is_finite(value: object) -> bool:
    """Whether a value is an int or a float that float64 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max
