"""Numbers about replicas: outliers, convergence rates, calibration of standard errors. Knows arrays only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
FACTOR, DEVIATIONS = 2.0, 8.0
LIMIT = 1.959963984540054  # 95 % of a normal law lies within so many sd
# The paper speaks of outliers without saying what they are. The median and the median absolute deviation stay put when
# up to half of the replicas are outliers; quartiles of 12 replicas do not (3 outliers already move the upper one).
# Of twelve errors |N(0, 1)|, the widest that fits give, these limits find an outlier in 1 group of 75.
DEFINITION = (
    f"an outlier is a replica whose relative L2 error is more than {FACTOR:g} times the median of its group and "
    f"more than {DEVIATIONS:g} robust standard deviations (1.4826 times the median absolute deviation) above it"
)


def outliers(errors: Array) -> Array:
    """Which of a group's errors are outliers (`DEFINITION`); an error that is not finite is one, too."""
    errors = np.asarray(errors, dtype=float)
    finite = np.isfinite(errors)
    if not finite.any():
        return ~finite
    median = np.median(errors[finite])
    spread = 1.4826 * np.median(np.abs(errors[finite] - median))
    far = np.zeros(errors.shape, dtype=bool)
    far[finite] = (errors[finite] > FACTOR * median) & (errors[finite] > median + DEVIATIONS * spread)
    return far | ~finite


class Rate(NamedTuple):
    """Slope of log(rms error) over log(size), with its standard error."""

    slope: float
    std: float


def pooled_rate(errors: Mapping[int, Array], *, draws: int = 1000, seed: int = 0) -> Rate:
    """One slope for several coefficients, each with a level of its own.

    Args:
        errors: per size an array (replicas, coefficients); replica i is the same seed at every size.
        draws: of the bootstrap over replicas, which keeps what sizes and coefficients of one seed share.
    """
    sizes = sorted(errors)
    stacked = np.stack([np.asarray(errors[n], dtype=float) for n in sizes])  # (sizes, replicas, coefficients)
    u = np.log(sizes) - np.mean(np.log(sizes))

    def slope(chosen: Array) -> float:
        level = 0.5 * np.log(np.mean(stacked[:, chosen] ** 2, axis=1))  # (sizes, coefficients)
        return float(np.mean(u @ level) / (u @ u))

    replicas = stacked.shape[1]
    generator = np.random.default_rng(seed)
    samples = [slope(chosen) for chosen in generator.integers(replicas, size=(draws, replicas))]
    return Rate(slope(np.arange(replicas)), float(np.std(samples, ddof=1)))


class Calibration(NamedTuple):
    """Standardised errors (estimate - truth) / standard error beside the standard normal."""

    n: int
    mean: float
    sd: float
    coverage: float
    p_value: float


def calibration(z: Array) -> Calibration:
    """Mean, sd, share within 1.96, and the Kolmogorov-Smirnov p-value against N(0, 1)."""
    from scipy.stats import kstest

    z = np.asarray(z, dtype=float)
    z = z[np.isfinite(z)]
    if z.size < 2:
        nan = float("nan")
        return Calibration(int(z.size), nan, nan, nan, nan)
    coverage = float(np.mean(np.abs(z) <= LIMIT))
    return Calibration(z.size, float(z.mean()), float(z.std(ddof=1)), coverage, float(kstest(z, "norm").pvalue))
