"""PlaneValue: V on a torus of two dimensions as a Fourier series: called, differentiated, saved and loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import real_tensor
from levytorch.errors import InputError
from levytorch.policy import saved

_FORMAT = "levytorch.plane_value.1"


@dataclass(frozen=True, repr=False)
class PlaneValue:
    """V(x), x in the plane, with beta V = r + b . grad V + D_o Lap V - D_f (-Lap)^alpha V.

    Call it at any x of shape [..., 2]; a float64 tensor [...] comes back. `residual` is max |(beta - L) V - r| between
    the points of the grid, relative to max |r|; `change` how much V moved when the resolution was last doubled (None
    when n_modes was given); `iterations` of GMRES on the last grid.
    """

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

    def on_grid(self, n: int = 128) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinates (n,), (n,) of a regular grid of the cell and V on it, (n, n)."""
        first, second = (o + torch.arange(n, dtype=torch.float64) * (p / n) for o, p in zip(self.origin, self.period))
        return first, second, self(torch.stack(torch.meshgrid(first, second, indexing="ij"), dim=-1))

    def std(self, x: Any) -> Tensor:
        """Standard deviation of V at x, from the covariance of the recovered coefficients (delta method)."""
        factor = self.covariance_factor
        if factor is None:
            raise InputError(
                "V.std needs the covariance of recovered coefficients, but this V comes from coefficients without one; "
                "solve from a Recovery whose engine gives standard errors (engine='fisher')."
            )
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

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only); an earlier one is replaced once the new one is complete."""
        return saved.save(self, _FORMAT, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PlaneValue:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        return saved.load(cls, _FORMAT, path, _is_sound)


def _is_sound(content: Mapping[str, Any]) -> bool:
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
