"""Tempered jumps on a line: what stands beside |t|^(-1 - 2 alpha) in their density, and the mass beyond a distance.

    D_f ((lam^2 - Lap)^alpha - lam^(2 alpha))  has jumps of density  c |t|^(-1 - 2 alpha) m(lam |t|),
    m(z) = 2^(1 - nu) / Gamma(nu) z^nu K_nu(z),  nu = alpha + 1/2,  m(0) = 1,

c that of the fractional Laplacian. Both functions are read off splines, since a matrix of n^2 Bessel functions would
take longer than the solve.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, kve

from levytorch.convert import Array

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

_LOW, _HIGH = np.log(1e-7), np.log(600.0)  # of lam |t|: below, m is one to rounding; above, nothing is left
_NODES = 3000
_GAUSS = 5  # points per interval
_AROUND = (-0.04, -0.02, 0.02, 0.04)


def log_factor(z: Array, alpha: float) -> Array:
    """log m(z)."""
    nu = alpha + 0.5
    return np.asarray((1 - nu) * np.log(2.0) - gammaln(nu) + nu * np.log(z) + np.log(kve(nu, z)) - z)


class TemperedJumps:
    """m(lam |t|), and int_d^inf t^(-1 - 2 alpha) m(lam t) dt, for one alpha and lam."""

    def __init__(self, alpha: float, lam: float) -> None:
        self.alpha, self.lam = alpha, lam
        self._factor, self._mass = _splines(alpha)

    def factor(self, distance: Array) -> Array:
        """m at distances >= 0."""
        z = self.lam * distance
        return np.exp(self._factor(np.log(np.clip(z, 1e-7, 600.0)))) * (z < 600.0)

    @property
    def nearby(self) -> list[tuple[float, float]]:
        """(share, alpha): alpha itself; close to 1/2, where the powers of `even` meet the others, some around it."""
        if abs(self.alpha - 0.5) >= _AROUND[2]:
            return [(1.0, self.alpha)]
        at = [0.5 + d for d in _AROUND]
        return [(float(np.prod([(self.alpha - q) / (p - q) for q in at if q != p])), p) for p in at]

    def even(self, distance: Array, alpha: float) -> Array:
        """The even powers of m(z) near zero; the others, z^(1 + 2 alpha) (1 + ...), undo the singularity of jumps."""
        nu, z2 = alpha + 0.5, (self.lam * distance) ** 2
        return np.asarray(1 + z2 / (4 * (1 - nu)) * (1 + z2 / (8 * (2 - nu))))

    def beyond(self, distance: Array) -> Array:
        """The mass of jumps of one sign beyond distances > 0, but for the factor c."""
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
