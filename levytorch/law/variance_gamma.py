"""Variance gamma jumps: Brownian motion at the times of a gamma process (Madan and Seneta 1990).

    E exp(i k . L_t) = (1 + |k|^2 / decay^2)^(-t),    psi = log(1 + |k|^2 / decay^2).

D_f is how fast the gamma process runs. There are infinitely many small jumps, but fewer than of any stable law, and
jumps beyond 1 / decay are exponentially rare: on a line their density is exp(-decay |t|) / |t|. They have no alpha of
their own; where one is asked for it is 0, half their index. Tempered stable jumps with D_f / alpha instead of D_f tend
to them as alpha -> 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import exp1
from torch import Tensor

from levytorch.convert import Array, positive_number
from levytorch.law.jumps import Jumps, TimedJumps


@dataclass(frozen=True)
class VarianceGamma(TimedJumps):
    """psi = log(1 + |k|^2 / decay^2), given in the place of alpha.

    Args:
        decay: a rate per unit of length: longer jumps than its inverse are exponentially rare.

    Example:
        >>> from levytorch import Dynamics, solve_value
        >>> system = Dynamics(b=0.0, D_o=0.5, D_f=1.0, alpha=VarianceGamma(decay=1.0))
        >>> V = solve_value(system, torch.cos, beta=1.0)
        >>> round(float(V(0.0)) * (1.0 + 0.5 + np.log(2.0)), 9)
        1.0
    """

    decay: float
    parameters: ClassVar[tuple[str, ...]] = ("alpha", "decay")
    index: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", positive_number("decay", self.decay, "give a rate per unit of length"))

    def symbol(self, square: Tensor, alpha: Tensor, order: int = 0) -> Tensor:
        return (torch.log1p(square / self.decay**2) if order == 0 else torch.zeros_like(square)) + 0.0 * alpha

    def symbol_derivatives(self, square: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        by_decay = -2.0 * square / (self.decay * (self.decay**2 + square)) + 0.0 * alpha
        return torch.zeros_like(by_decay), by_decay

    def time(self, alpha: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return gamma_variable(scale, generator) / self.decay**2

    def intensity(self, t: Array, alpha: Any) -> Any:
        return np.exp(-(self.decay**2) * t)

    def longer(self, t: float, alpha: Any) -> Any:
        return exp1(self.decay**2 * t)

    def shorter(self, t: float, alpha: Any) -> Any:
        return t

    def density(self, alpha: Tensor, length: float) -> LaplaceDensity:
        return LaplaceDensity(self.decay * length)

    def growth(self, alpha: Tensor) -> float:
        return math.inf

    def holds(self, alpha: Tensor) -> Tensor:
        return alpha == self.index

    def varied(self, h: float) -> tuple[tuple[Jumps, Jumps, float], ...]:
        lam = self.decay
        return ((VarianceGamma(lam * (1 + h)), VarianceGamma(lam * (1 - h)), 2 * h * lam),)

    def log_time_density(self, log_t: Tensor, B: Tensor) -> Tensor:
        log_z = log_t + 2.0 * math.log(self.decay)
        return B * log_z - torch.exp(log_z) - torch.lgamma(B)

    def time_range(self, square: Tensor, B: Tensor, drop: float) -> tuple[Tensor, Tensor]:
        size = B + self.decay * square.sqrt()
        return (size + drop + (2.0 * drop * size).sqrt()) / self.decay**2, size


class LaplaceDensity:
    """exp(-lam |t|) / |t|."""

    nearby = ((1.0, 0.0),)

    def __init__(self, lam: float) -> None:
        self.lam, self.index, self.constant = lam, np.zeros(1), np.ones(1)

    def damped(self, weights: Array, distance: Array) -> Array:
        return np.asarray(weights * np.exp(-self.lam * distance))

    def beyond(self, distance: Array) -> Array:
        return np.asarray(exp1(self.lam * distance))

    def even_powers(self, distance: Array, index: float) -> Array:
        z2 = (self.lam * distance) ** 2
        return np.asarray(1.0 + z2 / 2.0 * (1.0 + z2 / 12.0))


@torch.no_grad()
def gamma_variable(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One gamma variable per entry, of this shape parameter and scale 1 (Marsaglia and Tsang 2000).

    A variable of shape + 1 is drawn by rejection; times U^(1 / shape) it has the shape asked for.
    """

    def uniform(n: int) -> Tensor:
        return 1.0 - torch.rand(n, generator=generator, dtype=torch.float64)

    a = shape.reshape(-1)
    d = a + 2.0 / 3.0
    out = torch.zeros_like(a)
    left = torch.arange(len(a))
    while len(left):
        own = d[left]
        normal = torch.randn(len(left), generator=generator, dtype=torch.float64)
        v = (1.0 + normal / (9.0 * own).sqrt()) ** 3
        log_v = torch.log(v.clamp_min(1e-300))
        good = (v > 0) & (uniform(len(left)).log() < 0.5 * normal**2 + own * (1.0 - v + log_v))
        out[left[good]] = torch.log(own[good]) + log_v[good]
        left = left[~good]
    return torch.exp(out + uniform(len(a)).log() / a).reshape(shape.shape)
