import math

import pytest
from scipy.stats import chi2

from levytorch.diagnostics.components import chi_squared_isf, chi_squared_sf


@pytest.mark.parametrize("df", [1, 2, 32, 63])
def test_chi_squared_is_that_of_scipy(df):
    for statistic in (0.0, 0.3, 37.5, 400.0, 2000.0):
        assert chi_squared_sf(statistic, df) == pytest.approx(float(chi2.sf(statistic, df)), rel=1e-12)
    for p in (0.9, 1e-3, 1e-6):
        assert chi_squared_isf(p, df) == pytest.approx(float(chi2.isf(p, df)), rel=1e-12)


def test_nothing_is_said_without_degrees_of_freedom():
    assert math.isnan(chi_squared_sf(1.0, 0))
    assert math.isnan(chi_squared_sf(math.nan, 3))
