"""Reward functions r(x), each a function of a tensor: cosines, the reward of a given V (manufactured), tables.

On a line x has any shape; in the plane it is [..., 2].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import path_of, positive_number, real_array, real_number, real_tensor
from levytorch.errors import InputError
from levytorch.law.jumps import jumps_in
from levytorch.policy.checks import check_beta, circle_of, coefficients_at, torus_of
from levytorch.policy.generator import jump_symbol
from levytorch.policy.value import ValueFunction
from levytorch.spaces.basis import per_coordinate
from levytorch.spaces.torus import TorusOperator

_PLANE_MODES = 256  # per coordinate, of a V that a reward in the plane is made for
States = Tensor | np.ndarray | Sequence[float] | float


@dataclass(frozen=True)
class CosinePower:
    """amplitude * cos^power(2 pi frequency (x - shift) / period).

    The paper's: cos^3(2x) has power 3, frequency 2, period 2 pi.
    """

    power: int = 3
    frequency: int = 2
    shift: float = 0.0
    period: float = 2 * math.pi
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        for name in ("power", "frequency", "shift", "period", "amplitude"):
            value = getattr(self, name)
            object.__setattr__(self, name, real_number(name, value, "give one, as in conf/reward"))
        if int(self.power) != self.power or self.power < 0 or int(self.frequency) != self.frequency:
            raise InputError(
                f"power and frequency must be whole numbers, found {self.power!r} and {self.frequency!r}; "
                "other values would not have the period."
            )
        positive_number("period", self.period, "give the length of the cell")
        if self.power > 1e6 or not abs(2 * math.pi * self.frequency / self.period) < 1e150:
            raise InputError(
                f"power must be at most 1e6 and frequency / period moderate, found {self.power:g} and "
                f"{self.frequency:g} / {self.period:g}; lower them."
            )

    def __call__(self, x: States) -> Tensor:
        x = real_tensor("x", x)
        angle = torch.remainder(x - self.shift, self.period) * (2 * math.pi * self.frequency / self.period)
        return self.amplitude * angle.cos() ** self.power


class CosineProduct:
    """The same in the plane: the product over both coordinates, each with its period (2 pi on a line); the amplitude
    once.
    """

    def __init__(self, period: Any, amplitude: float = 1.0, **options: Any) -> None:
        lengths = [2 * math.pi if p is None or math.isinf(p) else p for p in per_coordinate("period", period, 2)]
        self.factors = [CosinePower(period=length, **options) for length in lengths]
        self.amplitude = amplitude

    def __call__(self, x: Tensor) -> Tensor:
        return self.amplitude * self.factors[0](x[..., 0]) * self.factors[1](x[..., 1])


class Manufactured:
    """r = beta V - L V for a given V and the true dynamics (section 4.2), so that V is the value function of r."""

    def __init__(self, V: Callable[[Tensor], Tensor], dynamics: Any, beta: float, max_modes: int = 1025) -> None:
        circle = circle_of(dynamics)
        self.V, self.dynamics, self.beta = V, dynamics, check_beta(beta)
        half = 32
        while True:
            self.basis = circle.basis(2 * half + 1)
            Phi = self.basis.matrix(self.basis.points())
            # discrete orthogonality: the inverse of Phi is its transpose, rescaled
            c = (Phi.T @ V(self.basis.points())) / (Phi**2).sum(0)
            size = c.abs().max()
            if float(c[-half // 4 :].abs().max()) <= 1e-13 * float(size):
                break
            half *= 2
            if 2 * half + 1 > max_modes:
                raise InputError(
                    f"the manufactured V must be smooth with the period {circle.period:g}, found one that {max_modes} "
                    "Fourier modes do not resolve; choose a smoother one."
                )
        self.coefficients = torch.where(c.abs() < 1e-15 * size, 0.0, c)  # rounding, which L would multiply by k^2

    def __call__(self, x: States) -> Tensor:
        x = real_tensor("x", x)
        at = coefficients_at(self.dynamics, x)
        c = self.coefficients
        V, V1, V2 = (self.basis.matrix(x, order) @ c for order in (0, 1, 2))
        jump = (self.basis.matrix(x) * jump_symbol(self.basis.wavenumbers, at.alpha, at.jumps) * c).sum(-1)
        return self.beta * V - at.b * V1 - at.D_o * V2 + at.D_f * jump


class PlaneManufactured:
    """The same on a torus of two or three circles, where D_o may be a matrix."""

    def __init__(self, V: Any, dynamics: Any, beta: float) -> None:
        if callable(dynamics.alpha):
            raise InputError(
                "alpha must be a constant for a manufactured reward on a torus, found alpha(x); give a number."
            )
        space = torus_of(dynamics)
        self.dynamics, self.beta = dynamics, float(beta)
        n = 32
        while True:
            operator = TorusOperator(space, n, jumps_in(dynamics))
            c = operator.forward(V(space.grid(n, 0.0)).numpy()) / n**space.dim
            size = abs(c).max()
            outer = operator.square > 0.25 * operator.square.max()
            if abs(c[outer]).max() < 1e-13 * size:
                break
            n *= 2
            if n > _PLANE_MODES:
                raise InputError("the manufactured V must be smooth and periodic, found one that is not; change it.")
        c[abs(c) < 1e-15 * size] = 0.0  # rounding, which L would multiply by |k|^2
        self.places = [(i, j) for i in range(space.dim) for j in range(space.dim)]
        symbols = (1.0, operator.symbol(dynamics.alpha), *(operator.bend(i, j) for i, j in self.places))
        self.V, self.fractional, *self.hessian = (
            ValueFunction(torch.from_numpy(c * s), space, self.beta) for s in symbols
        )

    def __call__(self, x: Tensor) -> Tensor:
        d = self.dynamics
        out = self.beta * self.V(x) - (d.b(x) * self.V.gradient(x)).sum(-1) + d.D_f(x) * self.fractional(x)
        D_o = d.D_o(x)
        D_o = D_o if D_o.dim() > x.dim() - 1 else D_o[..., None, None] * torch.eye(x.shape[-1], dtype=x.dtype)
        for (i, j), bend in zip(self.places, self.hessian):
            out = out - D_o[..., i, j] * bend(x)
        return out


class Tabulated:
    """Linear interpolation in a table of (x, r).

    With a period, x is reduced to it first and a table of a whole period is closed.
    """

    def __init__(self, x: Any, r: Any, period: float | None = None) -> None:
        table_x, table_r = (real_array(name, a).reshape(-1) for name, a in (("x", x), ("r", r)))
        if len(table_x) != len(table_r) or len(table_x) < 2:
            raise InputError(
                f"the reward table must have at least two pairs (x, r), found {len(table_x)} x and {len(table_r)} r; "
                "complete it."
            )
        if not (np.isfinite(table_x).all() and np.isfinite(table_r).all()):
            raise InputError("the reward table must be finite, found NaN or infinite entries; fill or remove them.")
        order = np.argsort(table_x, kind="stable")
        table_x, table_r = table_x[order], table_r[order]
        if bool((np.diff(table_x) == 0).any()):
            twice = table_x[np.flatnonzero(np.diff(table_x) == 0)[0]]
            raise InputError(
                f"every x must occur once in the reward table, found {twice:g} twice; remove or average duplicates."
            )
        if period is not None:
            period = positive_number("period", period, "give the length of the cell")
            if table_x[-1] - table_x[0] > period * (1 + 1e-12):
                raise InputError(
                    f"the reward table must fit in one period of {period:g}, found a span of "
                    f"{table_x[-1] - table_x[0]:g}; cut it."
                )
            spacing = float(np.diff(table_x).max())
            if table_x[0] + period - table_x[-1] <= 1.5 * spacing:  # the whole cell is tabulated: close it
                table_x, table_r = (
                    np.concatenate([[table_x[-1] - period], table_x, [table_x[0] + period]]),
                    np.concatenate([[table_r[-1]], table_r, [table_r[0]]]),
                )
        self.x, self.r, self.period = table_x, table_r, period

    @classmethod
    def from_csv(cls, path: str | Path, period: float | None = None, x: str = "x", r: str = "r") -> Tabulated:
        """Read the columns `x` and `r` of a CSV file with a header."""
        file = path_of(path)
        if not file.is_file():
            raise InputError(
                f"{file} must be a CSV file with columns {x} and {r}, found that there is none; check reward.path."
            )
        from levytorch.data.columns import column_numbers, load_table

        table = load_table(file)
        for name in (x, r):
            if name not in table.columns:
                raise InputError(
                    f"{file} must have the columns {x} and {r}, found {', '.join(table.columns)}; name them with "
                    "reward.x= and reward.r=."
                )
        try:
            return cls(column_numbers(file, table[x]), column_numbers(file, table[r]), period=period)
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith(str(file)) else f"{file}: {text}") from None

    def check_covers(self, low: float, high: float, what: str) -> None:
        """Refuse to be solved with where the table ends before the interval does; `what` the interval is."""
        start, slack = low, 1e-9 * (high - low)
        if self.period is not None:
            if self.x[-1] - self.x[0] >= self.period:
                return
            # slack on both sides: an interval that begins with the table must not end up a period later
            start = self.x[0] - slack + float(np.remainder(low - self.x[0] + slack, self.period))
        if start < self.x[0] - slack or start + (high - low) > self.x[-1] + slack:
            raise InputError(
                f"the reward table must cover the {what}, [{low:g}, {high:g}], found x from {self.x[0]:g} to "
                f"{self.x[-1]:g}; widen the table, or solve on a window inside it (window=[low, high])."
            )

    def __call__(self, x: States) -> Tensor:
        at = asked = real_array("x", x)
        if self.period is not None:
            # Into the period that begins with the table, whatever cell the caller counts from
            at = self.x[0] + np.remainder(at - self.x[0], self.period)
        outside = (at < self.x[0]) | (at > self.x[-1])
        if bool(outside.any()):
            raise InputError(
                f"x must lie within the reward table, [{self.x[0]:g}, {self.x[-1]:g}], found "
                f"{asked[outside].flat[0]:g}; extend the table or solve on a window inside it."
            )
        return torch.as_tensor(np.interp(at, self.x, self.r))
