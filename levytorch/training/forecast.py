"""Where a recovered system will be: quantiles of many paths of it from one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from levytorch.convert import positive_number, real_array, whole_number
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.simulation import simulate

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Forecast:
    """A fan of quantiles: times (T,) from 0 to the horizon, levels (L,), quantiles (T, L) of x, one more axis for the
    coordinates in more than one dimension. What the coefficients' own errors add is not in it."""

    times: np.ndarray
    levels: np.ndarray
    quantiles: np.ndarray
    n_paths: int

    def __repr__(self) -> str:
        return (
            f"Forecast(to {self.times[-1]:g} in {len(self.times) - 1} steps, {len(self.levels)} levels, "
            f"{self.n_paths} paths)"
        )


def forecast(
    dynamics: Dynamics,
    x0: Any,
    horizon: float,
    *,
    n_steps: int = 50,
    levels: Sequence[float] = LEVELS,
    n_paths: int = 10_000,
    substeps: int = 10,
    seed: int = 0,
) -> Forecast:
    """Quantiles of n_paths paths from x0 (a number; d of them in d dimensions), at n_steps times up to the horizon."""
    steps, paths = whole_number("n_steps", n_steps, 1), whole_number("n_paths", n_paths, 100)
    until = positive_number("horizon", horizon, "pass a length of time")
    chosen = real_array("levels", levels)
    if chosen.ndim != 1 or not chosen.size or not bool(((chosen > 0) & (chosen < 1)).all()):
        raise InputError(f"levels must be numbers in (0, 1), found {levels!r}; pass (0.05, 0.5, 0.95).")
    start = real_array("x0", x0)
    if start.shape not in ((), (dynamics.dim,)) or (dynamics.dim > 1 and start.ndim == 0):
        raise InputError(
            f"x0 must be one state of {dynamics.dim} coordinate{'s' * (dynamics.dim > 1)}, found shape {start.shape}; "
            "make one forecast per state."
        )
    begin = float(start.reshape(())) if dynamics.dim == 1 else start
    x = simulate(dynamics, paths, steps, until / steps, substeps=substeps, x0=begin, seed=seed).to_array()
    quantiles = np.moveaxis(np.quantile(x, chosen, axis=0), 0, 1)
    return Forecast(np.linspace(0.0, until, steps + 1), chosen, quantiles, paths)
