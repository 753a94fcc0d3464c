"""Laws of independent steps that are not this package's: Student's t and the normal inverse Gaussian law.

Each with a location, a scale and a shape, fitted by SciPy to steps of one length. Where they describe the steps better,
constants of this model class are not what the data is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from levytorch.convert import Array

_STEP = 1e-4  # of a parameter, for scores by differences


class OtherLaw(NamedTuple):
    """log p of steps z in units of their width, as a function of three parameters, at which it was fitted."""

    name: str
    log_p: Callable[[Array, Array], Array]
    parameters: Array
    center: float
    width: float

    def log_prob(self, dx: Array, parameters: Array | None = None) -> Array:
        """log p of steps in the units of the data, at the fitted parameters or at others."""
        z = (dx - self.center) / self.width
        return self.log_p(z, self.parameters if parameters is None else parameters) - np.log(self.width)

    def scores(self, dx: Array) -> Array:
        """d log p / d parameters, (3, n), by central differences."""
        p = self.parameters
        rows = [self.log_prob(dx, p + shift) - self.log_prob(dx, p - shift) for shift in _STEP * np.eye(3)]
        return np.stack(rows) / (2 * _STEP)


def other_laws(dx: Array) -> list[OtherLaw]:
    """Both, by maximum likelihood."""
    from scipy.optimize import minimize  # not wanted by every run

    center = float(np.median(dx))
    width = float(np.percentile(np.abs(dx - center), 60)) or 1.0
    z = (dx - center) / width
    found = []
    for name, law, start in (("Student t", _student, (0.0, 0.0, 1.0)), ("NIG", _nig, (0.0, 0.0, 0.0))):
        best = minimize(_mean, start, (law, z), method="BFGS", options={"gtol": 1e-6})
        found.append(OtherLaw(name, law, best.x, center, width))
    return found


def _mean(p: Array, law: Callable[[Array, Array], Array], z: Array) -> float:
    return -float(law(z, p).mean())


def _student(z: Array, p: Array) -> Array:
    """log p at location p[0], log scale p[1] and log degrees of freedom p[2]."""
    df, scale = np.exp(np.clip(p[2], -5.0, 12.0)), np.exp(p[1])
    size = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(df * np.pi) - p[1]
    return np.asarray(size - (df + 1) / 2 * np.log1p(((z - p[0]) / scale) ** 2 / df))


def _nig(z: Array, p: Array) -> Array:
    """Symmetric: a delta / pi exp(delta a) K_1(a s) / s, s = sqrt(z^2 + delta^2), delta and a from p[1] and p[2]."""
    delta, a = np.exp(np.clip(p[1:], -20.0, 20.0))
    s = np.hypot(z - p[0], delta)
    return np.asarray(np.log(a * delta / np.pi) + np.log(special.k1e(a * s)) - a * (s - delta) - np.log(s))
