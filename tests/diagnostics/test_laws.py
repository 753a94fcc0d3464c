"""The table of laws: the true one wins, the numbers are SciPy's, and goodness of fit knows tempered jumps."""

import numpy as np
import pytest
from scipy import stats

from levytorch import Dynamics, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.laws import compare_laws


@pytest.fixture(scope="module")
def data():
    return simulate(Dynamics(0.2, 0.1, 1.0, 0.6, tempering=0.6), 500, 20, 0.25, seed=1).transitions()


@pytest.fixture(scope="module")
def table(data):
    return compare_laws(data, engine="fisher")


@pytest.mark.slow
def test_table(data, table):
    rows = {row.model: row for row in table.rows}
    assert set(rows) == {"stable", "tempered", "without jumps", "Student t", "NIG"}
    assert rows["tempered"].log_likelihood > rows["stable"].log_likelihood > rows["without jumps"].log_likelihood
    assert rows["tempered"].aic < rows["stable"].aic
    assert rows["tempered"].parameters == 5
    for row in table.rows:
        assert row.aic == pytest.approx(2 * row.parameters - 2 * len(data) * row.log_likelihood, rel=1e-9)


@pytest.mark.slow
def test_other_laws_are_scipys(data, table):
    """Their maxima: no smaller than what SciPy's own fits reach."""
    rows = {row.model: row for row in table.rows}
    dx = data.dx.numpy()
    student = stats.t.logpdf(dx, *stats.t.fit(dx)).mean()
    assert rows["Student t"].log_likelihood == pytest.approx(student, abs=1e-5)
    sigma = dx.std()
    for a in (0.3, 1.0, 3.0):  # at any parameters the fitted law is at least as likely
        some = stats.norminvgauss.logpdf(dx, a, 0.0, np.median(dx), sigma * np.sqrt(a)).mean()
        assert rows["NIG"].log_likelihood >= some - 1e-9


@pytest.mark.slow
def test_goodness_of_fit(data):
    """A right model is not called wrong, and the stable law of the same alpha is."""
    right = recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher")
    wrong = recover(data, alpha=0.6, n_basis=1, engine="fisher")
    assert diagnose(right, data).fit.p_value > 0.001
    assert diagnose(wrong, data).fit.p_value < 0.001
