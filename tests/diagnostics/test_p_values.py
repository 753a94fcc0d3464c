import math

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm

from levytorch.diagnostics.components import chi_squared_isf, chi_squared_sf
from levytorch.diagnostics.diagnosis import LEVEL, TESTS, significant


@pytest.mark.parametrize("df", [1, 2, 32, 63])
def test_chi_squared_is_that_of_scipy(df):
    for statistic in (0.0, 0.3, 37.5, 400.0, 2000.0):
        assert chi_squared_sf(statistic, df) == pytest.approx(float(chi2.sf(statistic, df)), rel=1e-12)
    for p in (0.9, 1e-3, 1e-6):
        assert chi_squared_isf(p, df) == pytest.approx(float(chi2.isf(p, df)), rel=1e-12)


def test_nothing_is_said_without_degrees_of_freedom():
    assert math.isnan(chi_squared_sf(1.0, 0))
    assert math.isnan(chi_squared_sf(math.nan, 3))


def test_all_tests_of_a_run_share_one_level():
    """Holm: the smallest p-value against level / m, the next one against level / (m - 1), until one does not reject."""
    assert significant({}) == set()
    p = {"fit": 0.0021, "time": 0.0019, "step_size": 0.4, "predictive": 0.9, "trajectories": 0.2}
    assert significant(p) == {"fit", "time"}
    assert significant(p | {"time": 0.0021}) == set()  # none below 0.01 / 5
    assert significant({"fit": 0.009}) == {"fit"}


def test_the_shared_level_holds():
    """10,000 runs of six tests of a right model: at most 1 % raise an alarm, independent tests or not."""
    rng = np.random.default_rng(100)
    for shared in (0.0, 0.9):
        common, own = rng.standard_normal((10_000, 1)), rng.standard_normal((10_000, 6))
        p = norm.sf(math.sqrt(shared) * common + math.sqrt(1 - shared) * own)
        alarms = sum(bool(significant(dict(zip(TESTS, row)))) for row in p.tolist())
        assert alarms <= binom.ppf(0.999, 10_000, LEVEL)
