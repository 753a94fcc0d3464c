"""Small data sets to try things on: three made by `levytorch.simulate`, whose truth is known, and readers for public
ones that you have downloaded yourself.

>>> from levytorch.datasets import load_track
>>> track = load_track()
>>> len(track.trajectories.x), track.truth.alpha
(8001, 0.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from levytorch.data import Trajectories, Transitions
from levytorch.dynamics import Dynamics
from levytorch.simulation import simulate

__all__ = ["Dataset", "load_btc_3min", "load_buffalo", "load_double_well", "load_eurusd_m5", "load_phase", "load_track"]


@dataclass(frozen=True)
class Dataset:
    """Trajectories with their origin.

    Args:
        trajectories: the paths.
        description: one sentence about them.
        truth: the dynamics that made them; None for real data.

    Example:
        >>> load_track().description
        'one track of 2,000 hours, every 15 minutes, drawn to x = 50, with jumps'
    """

    trajectories: Trajectories
    description: str
    truth: Dynamics | None = None

    def transitions(self) -> Transitions:
        """The pairs."""
        return self.trajectories.transitions()

    def to_frame(self, kind: str = "polars") -> Any:
        """A long table: see `Trajectories.to_frame`."""
        return self.trajectories.to_frame(kind)


def load_track() -> Dataset:
    """A position that is drawn to x = 50 and jumps now and then, observed every quarter of an hour: 8,000 pairs.

    b(x) = -16 sin(2 pi (x - 50) / 1000), which is -0.1 (x - 50) near 50; D_o = 2, D_f = 0.3, alpha = 0.5. On a line.

    Returns:
        A Dataset with its truth.

    Example:
        >>> len(load_track().transitions())
        8000
    """

    def pull(x: torch.Tensor) -> torch.Tensor:
        return -16.0 * torch.sin(2 * math.pi * (x - 50.0) / 1000.0)

    truth = Dynamics(b=pull, D_o=2.0, D_f=0.3, alpha=0.5, period=1000.0)
    paths = simulate(truth, 1, 8000, 0.25, x0=50.0, seed=1)
    return Dataset(paths, "one track of 2,000 hours, every 15 minutes, drawn to x = 50, with jumps", truth)


def load_double_well() -> Dataset:
    """Two wells, at x = -1 and x = 1, and jumps between them: 100 trajectories of 100 steps of 1/100.

    b = x - x^3, D_o = (2 + 2 x + x^2) / 2, sigma = 1 / (1 + x^2 / 2), alpha = 0.75. On a line.

    Returns:
        A Dataset with its truth.

    Example:
        >>> len(load_double_well().transitions())
        10000
    """
    truth = Dynamics.named("double_well")
    return Dataset(simulate(truth, 100, 100, 1 / 100, seed=0), "100 short paths in a double well, with jumps", truth)


def load_phase() -> Dataset:
    """An angle in radians whose drift and noise depend on it: 500 trajectories of 40 steps of 1/40.

    The variable example of the paper, alpha = 0.3: jumps so heavy that steps have no mean. On a circle of 2 pi.

    Returns:
        A Dataset with its truth.

    Example:
        >>> len(load_phase().transitions())
        20000
    """
    truth = Dynamics.named("variable")
    return Dataset(simulate(truth, 500, 40, 1 / 40, seed=0), "500 short paths of an angle, with large jumps", truth)


def load_buffalo(path: Any, **options: Any) -> Dataset:
    """Tracks of buffalo, as a table with columns id, t (s), x and y: two coordinates, dt in hours.

    Args:
        path: of the file that you have downloaded.
        options: further options of `Trajectories.from_file`.

    Returns:
        A Dataset without a truth.

    Example:
        >>> load_buffalo("buffalo.csv").transitions()  # doctest: +SKIP
    """
    given: dict[str, Any] = {"id": "id", "time": "t", "value": ["x", "y"], "max_dt": 3}
    given |= {"time_in": "s", "time_unit": "h"}
    return Dataset(Trajectories.from_file(path, **given | options), "tracks of buffalo, dt in hours")


def load_btc_3min(path: Any, **options: Any) -> Dataset:
    """Prices of bitcoin every three minutes, as a table with columns timestamp (s) and open: dt in hours.

    Args:
        path: of the file that you have downloaded.
        options: further options of `Trajectories.from_file`.

    Returns:
        A Dataset without a truth.

    Example:
        >>> load_btc_3min("btc_3min.parquet").transitions()  # doctest: +SKIP
    """
    given: dict[str, Any] = {"time": "timestamp", "value": "open", "time_in": "s", "time_unit": "h"}
    return Dataset(Trajectories.from_file(path, **given | options), "prices of bitcoin, dt in hours")


def load_eurusd_m5(path: Any, **options: Any) -> Dataset:
    """Rates of the euro in dollars every five minutes, as a table with columns Time and Close: log x, dt in minutes.

    Steps across nights and weekends are gaps.

    Args:
        path: of the file that you have downloaded.
        options: further options of `Trajectories.from_file`.

    Returns:
        A Dataset without a truth.

    Example:
        >>> load_eurusd_m5("eurusd_m5.csv").transitions()  # doctest: +SKIP
    """
    given: dict[str, Any] = {"time": "Time", "value": "Close", "time_unit": "min", "log": True, "max_dt": 5}
    return Dataset(Trajectories.from_file(path, **given | options), "logarithm of the rate of EUR/USD, dt in minutes")
