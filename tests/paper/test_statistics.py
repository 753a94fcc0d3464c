"""Outliers, rates and calibration against numbers known otherwise."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.paper.collect import outliers
from benchmarks.paper.tables import calibration, pooled_rate


def test_three_wild_replicas_of_twelve_are_outliers_and_only_they():
    rng = np.random.default_rng(0)
    errors = 0.05 * (1 + 0.2 * rng.standard_normal(12))
    errors[[2, 5, 11]] = 0.6, 2.0, np.nan
    assert list(np.flatnonzero(outliers(errors))) == [2, 5, 11]


def test_replicas_of_one_law_are_seldom_called_outliers():
    """Errors |N(0, 1)|: a group of twelve has an outlier in 1.3 % of cases; 4000 groups, five standard errors."""
    rng = np.random.default_rng(1)
    share = np.mean([outliers(np.abs(rng.standard_normal(12))).any() for _ in range(4000)])
    assert share < 0.0133 + 5 * np.sqrt(0.0133 / 4000)


def test_nothing_is_an_outlier_among_equal_errors_and_everything_that_is_not_finite_is():
    assert not outliers(np.full(12, 0.1)).any()
    assert outliers(np.full(3, np.nan)).all()


def test_rate_of_an_exact_power_law_is_exact():
    levels = np.array([[3.0, 1.0, 0.2], [2.0, 4.0, 0.1]])  # two replicas, three coefficients with levels of their own
    rate = pooled_rate({n: levels * n**-0.7 for n in (10, 100, 1000)})
    assert rate.slope == pytest.approx(-0.7, abs=1e-12)
    assert rate.std == pytest.approx(0.0, abs=1e-12)


def test_rate_of_noisy_errors_and_its_standard_error():
    """True slope -1/2: the estimate is within its own standard error's reach, and that has the size theory gives."""
    rng = np.random.default_rng(2)
    sizes, replicas = (1000, 3000, 10_000, 30_000), 40
    rate = pooled_rate({n: rng.standard_normal((replicas, 3)) / np.sqrt(n) for n in sizes})
    u = np.log(sizes) - np.mean(np.log(sizes))
    theory = 1 / np.sqrt(2 * replicas * 3 * np.sum(u**2))  # sd of log rms of m normals: 1 / sqrt(2 m)
    assert abs(rate.slope + 0.5) < 4 * theory
    assert 0.6 * theory < rate.std < 1.6 * theory


def test_calibration_is_that_of_scipy_and_sees_a_shift():
    z = np.random.default_rng(3).standard_normal(200)
    result = calibration(z)
    assert result.p_value == pytest.approx(stats.kstest(z, stats.norm.cdf).pvalue)
    assert (result.mean, result.sd) == (pytest.approx(z.mean()), pytest.approx(z.std(ddof=1)))
    assert result.coverage == np.mean(np.abs(z) < stats.norm.ppf(0.975))
    assert result.p_value > 0.01 > calibration(z + 0.5).p_value


def test_calibration_of_too_few_is_not_a_number():
    assert np.isnan(calibration(np.array([0.1, np.nan])).p_value)
