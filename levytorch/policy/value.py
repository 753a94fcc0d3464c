"""V, called, differentiated, with its error: as a Fourier series on a cell (ValueFunction) and on a torus (PlaneValue),
as values on the nodes of a window of a line (LineValue).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from levytorch import files
from levytorch.coefficients import FourierBasis
from levytorch.convert import path_of, real_tensor, whole_number
from levytorch.errors import InputError
from levytorch.plots import plotted
from levytorch.policy.line_operator import HALF, differences, distances, inner_nodes, line_grid, positions
from levytorch.untrusted import load_tensors

NO_ERRORS = (
    "V.std must have the covariance of recovered coefficients, found coefficients without one; solve from a Recovery "
    "whose engine gives standard errors (engine='fisher')."
)


class Stored:
    """Saved as one file: the fields of its dataclass, plain tensors and numbers, read without executing any."""

    _format = ""  # what a file says it holds
    _no_errors = NO_ERRORS

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only); an earlier one is replaced once the new one is complete."""
        target = path_of(path)
        content = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        files.save_tensors({"format": self._format, **content}, target)
        return target

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): V with its 95 % band; options of `levytorch.figures.values.value`: reference, axes, units."""
        return plotted("value", self, **options)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        target = path_of(path)
        if not target.is_file():
            raise InputError(f"{target} must be a saved value function, found no such file; check the path.")
        try:
            content: Any = load_tensors(target)
        except Exception:  # pickle, zip, torch and I/O errors of foreign files have no common base
            content = None
        if (
            not isinstance(content, dict)
            or content.pop("format", None) != cls._format
            or set(content) != {f.name for f in fields(cls)}  # type: ignore[arg-type]
            or not cls._is_sound(content)
        ):
            raise InputError(
                f"{target} must be a value function saved by levytorch, found something else; give a file of "
                f"{cls.__name__}.save."
            )
        return cls(**content)

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        """Whether the fields of a file are what they should be."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class ValueFunction(Stored):
    """V(x) = sum_m c_m phi_m(x) with beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V.

    Call it at any x (tensor, array or number; a float64 tensor of x's shape comes back). On a `window` it means
    something inside the window only. `residual` is max |(beta - L) V - r| between the collocation points, relative to
    max |r|; `change` how much V moved when the resolution was last doubled (None when n_modes was given).
    """

    _format = "levytorch.value.1"

    coefficients: Tensor
    period: float
    origin: float
    beta: float
    window: tuple[float, float] | None = None
    residual: float = float("nan")
    condition: float = float("nan")
    change: float | None = None
    converged: bool = True
    # V's covariance is Phi S S^T Phi^T: exact and positive semi-definite, and no larger than the parameters ask for
    covariance_factor: Tensor | None = None

    def __repr__(self) -> str:
        where = f"period={self.period:g}" if self.window is None else "window=({:g}, {:g})".format(*self.window)
        return (
            f"ValueFunction(n_modes={self.n_modes}, {where}, beta={self.beta:g}, residual={self.residual:.2g}, "
            f"converged={self.converged})"
        )

    @property
    def n_modes(self) -> int:
        return int(self.coefficients.shape[-1])

    @property
    def basis(self) -> FourierBasis:
        return FourierBasis(self.n_modes, self.period, self.origin)

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        return self.derivative(x, order=0)

    def derivative(self, x: Tensor | np.ndarray | float, order: int = 1) -> Tensor:
        """d^order V / dx^order at x."""
        order = _order(order)
        return self._chunked(x, lambda part: self.basis.matrix(part, order) @ self.coefficients)

    def std(self, x: Tensor | np.ndarray | float, order: int = 0) -> Tensor:
        """Standard deviation of V (or of a derivative) at x, from the covariance of the recovered coefficients (delta
        method).
        """
        order = _order(order)
        return self._chunked(x, lambda part: self.deviations(part, order).norm(dim=-1))

    def deviations(self, x: Tensor, order: int = 0) -> Tensor:
        """S(x) [..., P] with cov(V(x), V(y)) = S(x) S(y)^T."""
        if self.covariance_factor is None:
            raise InputError(self._no_errors)
        return self.basis.matrix(x, order) @ self.covariance_factor

    def _chunked(self, x: Tensor | np.ndarray | float, f: Callable[[Tensor], Tensor]) -> Tensor:
        at = real_tensor("x", x)
        flat = at.reshape(-1)
        # 800,000 empirical points times 1000 modes would be 6 GB at once
        step = max(1, (1 << 22) // self.n_modes)
        if flat.numel() <= step:
            return f(at)
        return torch.cat([f(part) for part in flat.split(step)]).reshape(at.shape)

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        coefficients, factor = content["coefficients"], content["covariance_factor"]
        return (
            isinstance(coefficients, Tensor)
            and coefficients.ndim == 1
            and _is_factor(factor, coefficients)
            and all(isinstance(content[name], float) for name in ("period", "origin", "beta"))
        )


def _is_factor(factor: Any, values: Tensor) -> bool:
    return factor is None or (isinstance(factor, Tensor) and factor.ndim == 2 and len(factor) == len(values))


def _order(order: int) -> int:
    return whole_number("order", order, 0, 32, "give the order of the derivative")


@dataclass(frozen=True, repr=False)
class PlaneValue(Stored):
    """V(x), x in the plane, with beta V = r + b . grad V + D_o Lap V - D_f (-Lap)^alpha V.

    Call it at any x of shape [..., 2]; a float64 tensor [...] comes back. `residual` is max |(beta - L) V - r| between
    the points of the grid, relative to max |r|; `change` how much V moved when the resolution was last doubled (None
    when n_modes was given); `iterations` of GMRES on the last grid.
    """

    _format = "levytorch.plane_value.1"

    coefficients: Tensor  # of numpy's rfft2, divided by n^2: (n, n // 2 + 1) complex
    period: tuple[float, float]
    origin: tuple[float, float]
    beta: float
    residual: float = float("nan")
    change: float | None = None
    iterations: int = 0
    converged: bool = True
    # (n', n' // 2 + 1, P) complex: V's covariance is Phi S S^T Phi^T, from that of the recovered coefficients
    covariance_factor: Tensor | None = None

    def __repr__(self) -> str:
        period = "({:g}, {:g})".format(*self.period)
        return (
            f"PlaneValue(n_modes={self.n_modes}, period={period}, beta={self.beta:g}, residual={self.residual:.2g}, "
            f"converged={self.converged})"
        )

    @property
    def n_modes(self) -> int:
        """Modes, and grid points, per coordinate."""
        return int(self.coefficients.shape[0])

    @property
    def dim(self) -> int:
        return 2

    def __call__(self, x: Any) -> Tensor:
        return self._sum(x, self.coefficients)

    def gradient(self, x: Any) -> Tensor:
        """grad V at x: [..., 2]."""
        parts = [self._sum(x, self.coefficients, order) for order in ((1, 0), (0, 1))]
        return torch.stack(parts, dim=-1)

    def std(self, x: Any) -> Tensor:
        """Standard deviation of V at x, from the covariance of the recovered coefficients (delta method)."""
        factor = self.covariance_factor
        if factor is None:
            raise InputError(self._no_errors)
        at = self._points(x)
        square = torch.zeros(at.shape[:-1], dtype=torch.float64)
        for p in range(factor.shape[-1]):
            square += self._sum(at, factor[..., p]) ** 2
        return square.sqrt()

    def _points(self, x: Any) -> Tensor:
        at = real_tensor("x", x)
        if at.ndim == 0 or at.shape[-1] != 2:
            raise InputError(f"x must have shape [..., 2], found {tuple(at.shape)}; put the coordinates last.")
        return at

    def _sum(self, x: Any, c: Tensor, order: tuple[int, int] = (0, 0)) -> Tensor:
        at = self._points(x)
        flat = at.reshape(-1, 2)
        n = c.shape[0]
        step = max(1, (1 << 21) // n)
        parts = [self._part(part, c, order) for part in flat.split(step)] if len(flat) else [flat.new_zeros(0)]
        return torch.cat(parts).reshape(at.shape[:-1])

    def _part(self, x: Tensor, c: Tensor, order: tuple[int, int]) -> Tensor:
        n = c.shape[0]
        harmonics = (torch.fft.fftfreq(n, 1 / n, dtype=torch.float64), torch.arange(n // 2 + 1, dtype=torch.float64))
        waves = []
        for axis in range(2):
            # |x| may be 1e10: reduced to the cell first, or the phases lose their argument
            s = torch.remainder(x[:, axis] - self.origin[axis], self.period[axis]) * (2 * math.pi / self.period[axis])
            angle = s[:, None] * harmonics[axis]
            wave = torch.polar(torch.ones_like(angle), angle)
            if order[axis]:
                wave = wave * (1j * harmonics[axis] * (2 * math.pi / self.period[axis]))
            if n % 2 == 0:
                wave[:, n // 2] = wave[:, n // 2].real.to(wave.dtype)  # the highest mode of an even grid is a cosine
            waves.append(wave)
        weight = torch.full((n // 2 + 1,), 2.0, dtype=torch.float64)  # the other half of a real field's modes
        weight[0] = 1.0
        if n % 2 == 0:
            weight[-1] = 1.0
        return ((waves[0] @ c) * waves[1] * weight).sum(-1).real

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        factor = content["covariance_factor"]
        return (
            _is_spectrum(content["coefficients"], 2)
            and (factor is None or _is_spectrum(factor, 3))
            and all(_is_pair(content[name]) for name in ("period", "origin"))
            and isinstance(content["beta"], float)
        )


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and [type(v) for v in value] == [float, float]


def _is_spectrum(c: Any, ndim: int) -> bool:
    return isinstance(c, Tensor) and c.is_complex() and c.ndim == ndim and c.shape[1] == c.shape[0] // 2 + 1


@dataclass(frozen=True, repr=False)
class LineValue(Stored):
    """V on `window`, with beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V there and what `exterior` says elsewhere.

    values: (n + 1,) at the nodes, both ends included. `change`: how much V moved when the number of nodes was last
    doubled, None when n_modes was given. outside: V beyond the ends where it is given, at distances from them.
    """

    _format = "levytorch.line_value.1"

    values: Tensor
    window: tuple[float, float]
    beta: float
    exterior: str = "constant"
    change: float | None = None
    converged: bool = True
    outside: Tensor | None = None
    covariance_factor: Tensor | None = None  # S with cov(values) = S S^T, (n + 1, P)

    def __repr__(self) -> str:
        return (
            f"LineValue({self.n_modes} nodes, window=({self.window[0]:g}, {self.window[1]:g}), beta={self.beta:g}, "
            f"exterior={self.exterior}, converged={self.converged})"
        )

    period = None

    @property
    def origin(self) -> float:
        return self.window[0]

    @property
    def n_modes(self) -> int:
        """Intervals between nodes."""
        return len(self.values) - 1

    @property
    def x(self) -> Tensor:
        """(n + 1,) the nodes."""
        low, high = torch.tensor(self.window, dtype=torch.float64).split(1)
        return torch.cat([low, inner_nodes(self.n_modes, self.window), high])

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        return self.derivative(x, order=0)

    def derivative(self, x: Tensor | np.ndarray | float, order: int = 1) -> Tensor:
        """d^order V / dx^order at x, order 0, 1 or 2."""
        order = whole_number("order", order, 0, 2, "give the order of the derivative")
        at = real_tensor("x", x)
        if order == 0:
            return self._between(at, self.values[:, None])[..., 0] + self._outside(at)
        return self._between(at, _derivative(self.values, self.window, order)[:, None])[..., 0]

    def std(self, x: Tensor | np.ndarray | float) -> Tensor:
        """Standard deviation of V at x, from the covariance of the recovered coefficients (delta method)."""
        return self.deviations(real_tensor("x", x)).norm(dim=-1)

    def deviations(self, x: Tensor) -> Tensor:
        """S(x) [..., P] with cov(V(x), V(y)) = S(x) S(y)^T."""
        if self.covariance_factor is None:
            raise InputError(self._no_errors)
        return self._between(x, self.covariance_factor)

    def _between(self, x: Tensor, columns: Tensor) -> Tensor:
        """(n + 1, k) values on the nodes -> (..., k) at x, by 8-point interpolation in u; what is constant outside
        stays, anything else is zero there.
        """
        low, high = self.window
        half = 0.5 * (high - low)
        flat = x.reshape(-1).clamp(low, high)
        place = positions((flat - low) / half, (high - flat) / half, self.n_modes)
        first = place.floor().long() - HALF + 1
        offsets = torch.arange(2 * HALF)
        index = (first[:, None] + offsets).clamp(0, self.n_modes)  # beyond the last node V is what it is there
        weights = torch.ones((len(flat), 2 * HALF), dtype=torch.float64)
        t = place - first
        for i in range(2 * HALF):
            for j in range(2 * HALF):
                if i != j:
                    weights[:, i] *= (t - j) / (i - j)
        out = torch.einsum("nk,nkp->np", weights, columns[index])
        if self.exterior != "constant":
            beyond = (x.reshape(-1) < low) | (x.reshape(-1) > high)
            out = torch.where(beyond[:, None], torch.zeros_like(out), out)
        return out.reshape(*x.shape, columns.shape[1])

    def _outside(self, x: Tensor) -> Tensor:
        """What is given beyond the ends; zero inside."""
        if self.outside is None:
            return torch.zeros_like(x)
        low, high = self.window
        half, known = 0.5 * (high - low), distances().log().numpy()
        out = np.zeros(x.shape)
        for values, away in zip(self.outside.numpy(), ((low - x) / half, (x - high) / half)):
            beyond = away.numpy() > 0
            out[beyond] = np.interp(np.log(away.numpy()[beyond]), known, values)
        return torch.from_numpy(out)

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        values, factor, outside, window = (content[k] for k in ("values", "covariance_factor", "outside", "window"))
        return (
            isinstance(values, Tensor)
            and values.ndim == 1
            and values.dtype == torch.float64
            and 16 <= len(values) - 1 <= 1 << 14
            and _is_pair(window)
            and window[0] < window[1]
            and _is_factor(factor, values)
            and (outside is None or (isinstance(outside, Tensor) and outside.shape == (2, len(distances()))))
            and isinstance(content["beta"], float)
            and content["exterior"] in ("constant", "absorb", "given")
        )


def _derivative(values: Tensor, window: tuple[float, float], order: int) -> Tensor:
    """At the nodes, (n + 1,); that of an end is that of the node next to it."""
    n = len(values) - 1
    grid = line_grid(n)
    padded = np.concatenate([np.full(HALF, values[0]), values.numpy(), np.full(HALF, values[-1])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF + 1)[1:-1]
    first, second = (windows @ w / grid.h ** (k + 1) for k, w in enumerate(differences()))
    slope, bend = grid.slope[grid.inner], grid.bend[grid.inner]
    found = first / slope if order == 1 else (second - bend * first) / slope**2
    half = 0.5 * (window[1] - window[0])
    return torch.from_numpy(np.concatenate([found[:1], found, found[-1:]]) / half**order)
