"""Jumps: their symbol and its derivatives, their samples, and their density on a line.

    E exp(i k . L_t) = exp(-t psi(|k|^2)),    psi = |k|^(2 alpha)                              stable,
                                              psi = (|k|^2 + lam^2)^alpha - lam^(2 alpha)      tempered.

The operator that D_f multiplies in the generator has the symbol psi: (-Lap)^alpha, or (lam^2 - Lap)^alpha -
lam^(2 alpha). `jumps_of(tempering)` is the one place that decides between the two.

Samples of the symmetric 2 alpha-stable law are drawn in one dimension by Chambers, Mallows and Stuck (1976), in more by
the sub-Gaussian construction sqrt(2 T) G, with T positive alpha-stable of Laplace transform exp(-s^alpha) (Kanter 1975)
and G a standard Gaussian vector. Tempered jumps are sqrt(2 T) G in any dimension, with T tempered by rejection.

On a line the jumps of D_f psi have the density

    c |t|^(-1 - 2 alpha) m(lam |t|),    c = 4^alpha Gamma(1/2 + alpha) / (sqrt(pi) |Gamma(-alpha)|),
    m(z) = 2^(1 - nu) / Gamma(nu) z^nu K_nu(z),  nu = alpha + 1/2,  m(0) = 1: stable jumps have m = 1.

m and the mass beyond a distance are read off splines, since a matrix of n^2 Bessel functions would take longer than a
solve.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array
from levytorch.errors import InputError

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

LOG_LARGEST = 690.0  # a jump is cut at 1e299 instead of overflowing, which happens for alpha below 0.03
MOST_PARTS = 4096  # parts of a tempered time, each accepted with probability exp(-1) or more
_LOW, _HIGH = np.log(1e-7), np.log(600.0)  # of lam |t|: below, m is one to rounding; above, nothing is left
_NODES = 3000
_GAUSS = 5  # points per interval
_AROUND = (-0.04, -0.02, 0.02, 0.04)


class LineDensity(Protocol):
    """The density of jumps on a line, constant |t|^(-1 - 2 index) m(t), with m(0) = 1; arrays (1,) or (n,)."""

    index: Array
    constant: Array

    def damped(self, weights: Array, distance: Array) -> Array:
        """Weights at distances >= 0, times m there."""
        ...

    def beyond(self, distance: Array) -> Array:
        """The mass of jumps of one sign beyond distances > 0, but for the constant."""
        ...

    @property
    def nearby(self) -> Sequence[tuple[float, Any]]:
        """(share, index): exponents whose corrections of the quadrature next to the singularity are combined."""
        ...

    def even_powers(self, distance: Array, index: Any) -> Array | float:
        """Those of m near zero."""
        ...


class Jumps(ABC):
    """What the generator, the density on a line and simulations ask of jumps.

    L is a Brownian motion at a random time T, which jumps by t with some intensity: E exp(-u T) = exp(-B psi(u)) over a
    time in which D_f adds up to B. A new kind of jumps is a subclass in a file of its own; it is given to `Dynamics` in
    the place of alpha.
    """

    parameters: ClassVar[tuple[str, ...]]
    is_stable: ClassVar[bool] = False  # whether compiled simulations of stable jumps serve

    @abstractmethod
    def symbol(self, square: Tensor, alpha: Tensor, order: int = 0) -> Tensor:
        """psi at |k|^2 >= 0, or its derivative of some order in alpha; both broadcast."""

    @abstractmethod
    def symbol_derivatives(self, square: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        """Those of psi in the parameters."""

    @abstractmethod
    def time(self, alpha: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """T > 0 such that sqrt(2 T) G has the law of the jumps over a time; scale: D_f times that time."""

    @abstractmethod
    def intensity(self, t: Array, alpha: Any) -> Any:
        """t times the intensity of jumps of T by t, for D_f = 1."""

    @abstractmethod
    def longer(self, t: float, alpha: Any) -> Any:
        """The intensity of jumps of T by more than a large t."""

    @abstractmethod
    def shorter(self, t: float, alpha: Any) -> Any:
        """How fast T grows by jumps of less than a small t."""

    @abstractmethod
    def density(self, alpha: Tensor, length: float) -> LineDensity:
        """The density of jumps on a line whose unit is `length`."""

    def growth(self, alpha: Tensor) -> float:
        """The power of |x| from which on the mean of a function after a jump need not exist."""
        return 2 * float(alpha.min())

    def holds(self, alpha: Tensor) -> Tensor:
        """Whether alpha can be that of a generator with these jumps; 1 is a Brownian motion."""
        return (alpha > 0) & (alpha <= 1)

    def varied(self, h: float) -> tuple[tuple[Jumps, Jumps, float], ...]:
        """For every parameter beside alpha: the jumps with more of it, with less of it, and the difference."""
        return ()


class TimedJumps(Jumps):
    """Jumps that know the density of their random time, from which the law of a step is computed
    (`law.subordinated`), and that are given in the place of alpha.
    """

    index: ClassVar[float]  # what stands for alpha

    @abstractmethod
    def log_time_density(self, log_t: Tensor, B: Tensor) -> Tensor:
        """log of the density of log T at log t, B = D_f times the time that has passed."""

    @abstractmethod
    def time_range(self, square: Tensor, B: Tensor, drop: float) -> tuple[Tensor, Tensor]:
        """For steps of squared length `square`: beyond which t no term is above exp(-drop) of the largest one, and the
        largest curvature of the terms in log t.
        """


@dataclass(frozen=True)
class Stable(Jumps):
    """Jumps without an end: psi = |k|^(2 alpha)."""

    parameters: ClassVar[tuple[str, ...]] = ("alpha",)
    is_stable: ClassVar[bool] = True

    def symbol(self, square: Tensor, alpha: Tensor, order: int = 0) -> Tensor:
        """psi at |k|^2 >= 0, or its derivative of some order in alpha; both broadcast.

        >>> Stable().symbol(torch.tensor([0.0, 4.0]), torch.tensor(0.5))
        tensor([0., 2.])
        """
        log = _log(square)
        return _without_zero(square, torch.exp(alpha * log) * log**order)

    def symbol_derivatives(self, square: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        return (self.symbol(square, alpha, 1),)

    def time(self, alpha: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.exp((log_stable_time(alpha, generator) + torch.log(scale) / alpha).clamp_max(LOG_LARGEST))

    def intensity(self, t: Array, alpha: Any) -> Any:
        return alpha / _gamma(1 - alpha) * t**-alpha

    def longer(self, t: float, alpha: Any) -> Any:
        return t**-alpha / _gamma(1 - alpha)

    def shorter(self, t: float, alpha: Any) -> Any:
        return alpha / _gamma(1 - alpha) * t ** (1 - alpha) / (1 - alpha)

    def density(self, alpha: Tensor, length: float) -> LineDensity:
        return StableDensity(alpha.numpy().reshape(-1))


@dataclass(frozen=True)
class Tempered(Jumps):
    """Jumps beyond 1 / tempering are exponentially rare: psi = (|k|^2 + lam^2)^alpha - lam^(2 alpha)."""

    tempering: float
    parameters: ClassVar[tuple[str, ...]] = ("alpha", "tempering")

    def symbol(self, square: Tensor, alpha: Tensor, order: int = 0) -> Tensor:
        """psi at |k|^2 >= 0, or its derivative of some order in alpha; both broadcast.

        >>> Tempered(1.0).symbol(torch.tensor([0.0, 3.0]), torch.tensor(0.5))
        tensor([0., 1.])
        """
        low = 2.0 * math.log(self.tempering)
        rise = torch.log1p((_log(square) - low).exp())
        if order == 0:  # without the difference of two large numbers
            return _without_zero(square, torch.exp(alpha * low) * torch.expm1(alpha * rise))
        high = low + rise
        rest = torch.exp(alpha * high) * high**order - torch.exp(alpha * low) * low**order
        return _without_zero(square, rest)

    def symbol_derivatives(self, square: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        lam, power = self.tempering, alpha - 1.0
        by_lam = 2.0 * alpha * lam * ((square + lam * lam) ** power - torch.exp(2.0 * power * math.log(lam)))
        return self.symbol(square, alpha, 1), by_lam

    def time(self, alpha: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return tempered_time(alpha, scale, torch.full_like(scale, self.tempering), generator)

    def intensity(self, t: Array, alpha: Any) -> Any:
        return Stable().intensity(t, alpha) * np.exp(-(self.tempering**2) * t)

    def longer(self, t: float, alpha: Any) -> Any:
        return Stable().longer(t, alpha) * math.exp(-(self.tempering**2) * t)

    def shorter(self, t: float, alpha: Any) -> Any:
        return Stable().shorter(t, alpha)

    def density(self, alpha: Tensor, length: float) -> LineDensity:
        if alpha.ndim:
            raise InputError(
                f"alpha must be one number for tempered jumps on a line, found a function of x beside tempering "
                f"{self.tempering:g}; give one alpha."
            )
        return TemperedDensity(float(alpha), self.tempering * length)

    def varied(self, h: float) -> tuple[tuple[Jumps, Jumps, float], ...]:
        lam = self.tempering
        return ((Tempered(lam * (1 + h)), Tempered(lam * (1 - h)), 2 * h * lam),)


def jumps_of(tempering: float | Tensor) -> Jumps:
    """The jumps of a law with this tempering: zero, or a rate per unit of length."""
    lam = float(tempering)
    return Tempered(lam) if lam > 0 else Stable()


def jumps_in(system: Any) -> Jumps:
    """The jumps of a Dynamics or a Recovery."""
    return getattr(system, "jumps", None) or jumps_of(getattr(system, "tempering", 0.0))


def _log(square: Tensor) -> Tensor:
    """log |k|^2, 0 where k = 0."""
    return torch.where(square > 0, square, 1.0).log()


def _without_zero(square: Tensor, symbol: Tensor) -> Tensor:
    """Constants are in the kernel of the operator, for every alpha > 0."""
    return torch.where(square > 0, symbol, 0.0)


def symmetric_stable(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One sample per entry of alpha (float64)."""
    angle = math.pi * (_uniform(alpha, generator) - 0.5)
    waiting = _exponential(alpha, generator)
    index = 2.0 * alpha
    log_size = (
        torch.log(torch.sin(index * angle).abs().clamp_min(1e-300))
        - torch.log(torch.cos(angle).clamp_min(1e-300)) / index
        + (torch.log(torch.cos((1.0 - index) * angle).clamp_min(1e-300)) - torch.log(waiting)) * (1.0 - index) / index
    )
    return torch.sign(angle) * torch.exp(log_size.clamp_max(LOG_LARGEST))


def isotropic_stable(alpha: Tensor, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Vectors `[*alpha.shape, dim]`."""
    log_T = log_stable_time(alpha, generator)
    gauss = torch.randn((*alpha.shape, dim), generator=generator, dtype=torch.float64, device=alpha.device)
    return torch.exp(0.5 * (math.log(2.0) + log_T).clamp_max(2.0 * LOG_LARGEST)).unsqueeze(-1) * gauss


def log_stable_time(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """log T, one per entry of alpha: T > 0 with Laplace transform exp(-s^alpha) (Kanter 1975)."""
    angle = math.pi * _uniform(alpha, generator).clamp(1e-16, 1.0 - 1e-16)
    waiting = _exponential(alpha, generator)
    return (
        torch.log(torch.sin(alpha * angle))
        - torch.log(torch.sin(angle).clamp_min(1e-300)) / alpha
        + (torch.log(torch.sin((1.0 - alpha) * angle)) - torch.log(waiting)) * (1.0 - alpha) / alpha
    )


@torch.no_grad()
def tempered_time(alpha: Tensor, B: Tensor, lam: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The tempered stable time T, one per entry (all of one shape):
    E exp(-u T) = exp(-B ((u + lam^2)^alpha - lam^(2 alpha))), B = D_f dt.

    A stable time of Laplace transform exp(-B u^alpha) is accepted with probability exp(-lam^2 T), which happens with
    probability exp(-B lam^(2 alpha)). Where that is small T is the sum of n independent times of B / n: infinitely
    divisible, so that nothing is approximated. Beyond MOST_PARTS parts T is all but a Gaussian, and is drawn from its
    first three cumulants (Cornish and Fisher; what is neglected is of order 1 / MOST_PARTS).
    """
    shape = alpha.shape
    alpha, B, lam = (t.reshape(-1) for t in (alpha, B, lam))
    cost = B * lam ** (2.0 * alpha)
    parts = torch.ceil(cost).clamp_min(1.0)
    out = torch.zeros_like(alpha)
    wide = parts > MOST_PARTS
    if bool(wide.any()):
        a, c, l2 = alpha[wide], cost[wide], lam[wide] ** 2
        gauss = torch.randn(a.shape, generator=generator, dtype=torch.float64, device=a.device)
        spread = torch.sqrt(a * (1.0 - a) * c)
        skewness = (2.0 - a) / spread
        out[wide] = (a * c + spread * (gauss + (gauss * gauss - 1.0) * skewness / 6.0)).clamp_min(0.0) / l2
    counts = torch.where(wide, 0.0, parts).long()
    owner = torch.repeat_interleave(torch.arange(len(out), device=out.device), counts)
    log_scale = torch.log(B / parts) / alpha
    while len(owner):
        log_T = log_stable_time(alpha[owner], generator) + log_scale[owner]
        # alpha of 1e-300 overflows on the way: its times are zero or beyond all numbers
        T = torch.exp(log_T.nan_to_num(-690.0).clamp(-690.0, 690.0))
        good = (torch.log1p(-_uniform(T, generator)) < -(lam[owner] ** 2) * T) | (lam[owner] == 0)
        out.index_add_(0, owner[good], T[good])
        owner = owner[~good]
    return out.reshape(shape)


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64, device=like.device)


def _exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return (-torch.log1p(-_uniform(like, generator))).clamp_min(1e-300)


def _gamma(x: Any) -> Any:
    from scipy.special import gamma

    return gamma(x)


def normalisation(alpha: Array) -> Array:
    """c of the fractional Laplacian in one dimension."""
    return np.asarray(4**alpha * _gamma(0.5 + alpha) / (math.sqrt(math.pi) * np.abs(_gamma(-alpha))))


def log_factor(z: Array, alpha: float) -> Array:
    """log m(z)."""
    from scipy.special import gammaln, kve

    nu = alpha + 0.5
    return np.asarray((1 - nu) * np.log(2.0) - gammaln(nu) + nu * np.log(z) + np.log(kve(nu, z)) - z)


class StableDensity:
    """c |t|^(-1 - 2 alpha), alpha (1,) or one per node."""

    def __init__(self, alpha: Array) -> None:
        self.index, self.constant = alpha, normalisation(alpha)
        self.nearby = [(1.0, alpha)]

    def damped(self, weights: Array, distance: Array) -> Array:
        return weights

    def beyond(self, distance: Array) -> Array:
        return np.asarray(distance ** (-2 * self.index) / (2 * self.index))

    def even_powers(self, distance: Array, index: Any) -> float:
        return 1.0


class TemperedDensity:
    """The density of tempered jumps on a line, c |t|^(-1 - 2 alpha) m(lam |t|), for one alpha and lam."""

    def __init__(self, alpha: float, lam: float) -> None:
        self.alpha, self.lam = alpha, lam
        self.index = np.array([alpha])
        self.constant = normalisation(self.index)
        self._factor, self._mass = _splines(alpha)

    def damped(self, weights: Array, distance: Array) -> Array:
        z = self.lam * distance
        return np.asarray(weights * (np.exp(self._factor(np.log(np.clip(z, 1e-7, 600.0)))) * (z < 600.0)))

    @property
    def nearby(self) -> list[tuple[float, float]]:
        """alpha itself; close to 1/2, where `even_powers` meet the others, some around it."""
        if abs(self.alpha - 0.5) >= _AROUND[2]:
            return [(1.0, self.alpha)]
        at = [0.5 + d for d in _AROUND]
        return [(float(np.prod([(self.alpha - q) / (p - q) for q in at if q != p])), p) for p in at]

    def even_powers(self, distance: Array, index: float) -> Array:
        """The others, z^(1 + 2 alpha) (1 + ...), undo the singularity of jumps."""
        nu, z2 = index + 0.5, (self.lam * distance) ** 2
        return np.asarray(1 + z2 / (4 * (1 - nu)) * (1 + z2 / (8 * (2 - nu))))

    def beyond(self, distance: Array) -> Array:
        s = np.log(self.lam * distance)
        inside = np.exp(self._mass(np.clip(s, _LOW, _HIGH))) * (s < _HIGH)
        power = 2 * self.alpha
        # nearer than the first node m is one
        nearer = np.where(s < _LOW, (np.exp(-power * np.minimum(s, _LOW)) - np.exp(-power * _LOW)) / power, 0.0)
        return np.asarray(self.lam**power * (inside + nearer))


@functools.lru_cache(maxsize=8)
def _splines(alpha: float) -> tuple[CubicSpline, CubicSpline]:
    """log m, and the logarithm of int_z^inf y^(-1 - 2 alpha) m(y) dy, as functions of log z."""
    s = np.linspace(_LOW, _HIGH, _NODES)
    nodes, weights = np.polynomial.legendre.leggauss(_GAUSS)
    half = 0.5 * (s[1] - s[0])
    at = (s[:-1, None] + half) + half * nodes
    pieces = half * (np.exp(log_factor(np.exp(at), alpha) - 2 * alpha * at) * weights).sum(1)
    beyond = np.append(np.cumsum(pieces[::-1])[::-1], pieces[-1] * 1e-3)  # from the far end: every digit counts there
    from scipy.interpolate import CubicSpline  # half a second, which only tempered jumps on a line take

    return CubicSpline(s, log_factor(np.exp(s), alpha)), CubicSpline(s, np.log(beyond))
