"""The error-bound study that evaluate.py wrote (rates.csv), as arrays for the figure and slopes for the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levytorch.errors import InputError

Array = np.ndarray[Any, Any]
FIT_BELOW = 0.03  # the slope is fitted where the dependence is linear, as in `levytorch.policy.rates`


class RateCurve(NamedTuple):
    """Mean error and its 5 % and 95 % quantiles per eps, for one kind of perturbation and one norm."""

    perturbation: str
    norm: str
    eps: Array
    mean: Array
    low: Array
    high: Array

    @property
    def slope(self) -> float:
        """Least-squares slope of log(mean error) over log(eps), eps <= `FIT_BELOW`."""
        small = self.eps <= FIT_BELOW * (1 + 1e-9)
        if small.sum() < 2:
            return float("nan")
        return float(np.polyfit(np.log(self.eps[small]), np.log(self.mean[small]), 1)[0])


def read_rates(directory: Path) -> list[RateCurve]:
    """All curves of a study, in the order of the file."""
    import polars as pl

    file = directory / "rates.csv"
    try:
        table = pl.read_csv(file)
        keys = table.select("perturbation", "norm").unique(maintain_order=True).rows()
        curves = []
        for perturbation, norm in keys:
            rows = table.filter((pl.col("perturbation") == perturbation) & (pl.col("norm") == norm)).sort("eps")
            numbers = [rows[name].cast(pl.Float64).to_numpy() for name in ("eps", "mean", "q05", "q95")]
            curves.append(RateCurve(str(perturbation), str(norm), *numbers))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"{file} must be what evaluate.py rates.enabled=true writes, but cannot be read ({type(error).__name__})."
        ) from error
    return curves
