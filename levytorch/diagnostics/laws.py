"""Which law of steps describes the data: Gaussian, stable, tempered, and two that are not this package's model.

Student's t and the normal inverse Gaussian law, both fitted with a location and a scale by SciPy, stand beside constant
coefficients: where they describe the steps better, independent steps of this model class are not what the data is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import optimize, special, stats
from torch import Tensor

from levytorch.data import Trajectories, Transitions
from levytorch.diagnostics.compare import Comparison, Extra, compare_on
from levytorch.diagnostics.sample import Sample
from levytorch.training.api import recover
from levytorch.training.recovery import Recovery


def compare_laws(data: Transitions | Trajectories, *, n_basis: int = 1, **options: Any) -> Comparison:
    """Fit and compare the laws on the same pairs: log-likelihood per pair with its standard error, and AIC.

    Args:
        data: transitions or trajectories.
        n_basis: of the coefficients; 1 gives constants, for which Student's t and the normal inverse Gaussian law
            (d = 1, all dt alike, no lost tails) are compared, too.
        options: of `recover`, without alpha and tempering, which are learned.

    >>> from levytorch import Dynamics, simulate
    >>> steps = simulate(Dynamics(0.0, 0.1, 1.0, 0.45, tempering=0.4), 400, 20, 0.25, seed=1)
    >>> found = compare_laws(steps)
    >>> min(found.rows, key=lambda row: row.aic).model
    'tempered'
    """
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    named: dict[str, Recovery] = {
        "stable": recover(transitions, alpha="learn", n_basis=n_basis, **options),
        "tempered": recover(transitions, alpha="learn", tempering="learn", n_basis=n_basis, **options),
    }
    constants = n_basis == 1 and transitions.dim == 1 and transitions.uniform_dt
    return compare_on(named, transitions, _others if constants else None)


def _others(sample: Sample) -> list[Extra]:
    if bool((sample.label != 0).any()):  # strata: these laws know nothing of lost tails
        return []
    dx = sample.dx.numpy()
    center, width = float(np.median(dx)), float(np.percentile(np.abs(dx - np.median(dx)), 60))
    z = (dx - center) / (width or 1.0)
    shift = np.log(width or 1.0)
    rows = []
    for name, law, start in (("Student t", _student, (0.0, 0.0, 1.0)), ("NIG", _nig, (0.0, 0.0, 0.0))):
        found = optimize.minimize(
            lambda p, law=law: -float(law(z, p).mean()), start, method="Nelder-Mead", options=_FIT
        )
        log_p: Tensor = torch.from_numpy(law(z, found.x) - shift)
        rows.append(Extra(name, log_p, 3.0))
    return rows


_FIT = {"maxiter": 400, "xatol": 1e-4, "fatol": 1e-10}


def _student(z: np.ndarray, p: np.ndarray) -> np.ndarray:
    """log p at location p[0], log scale p[1] and log degrees of freedom p[2]."""
    return stats.t.logpdf(z, np.exp(np.clip(p[2], -5.0, 12.0)), p[0], np.exp(p[1]))


def _nig(z: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Symmetric: a delta / pi exp(delta a) K_1(a s) / s, s = sqrt(z^2 + delta^2), delta and a from p[1] and p[2]."""
    delta, a = np.exp(np.clip(p[1:], -20.0, 20.0))
    s = np.hypot(z - p[0], delta)
    return np.log(a * delta / np.pi) + np.log(special.k1e(a * s)) - a * (s - delta) - np.log(s)
