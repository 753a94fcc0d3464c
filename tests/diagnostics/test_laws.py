"""The tables of laws, by themselves and among the checks: the true one wins, also on held-out pairs, the numbers are
SciPy's, first order is enough for pairs left out, and goodness of fit knows tempered jumps.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from levytorch import Dynamics, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.laws import compare_laws, table_of_laws
from levytorch.diagnostics.sample import Region
from levytorch.errors import ConfigError, LevytorchWarning
from levytorch.runs.settings import diagnostics_options


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


# -- among the checks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tempered():
    return simulate(Dynamics(0.2, 0.1, 1.0, 0.6, tempering=0.6), 200, 20, 0.25, seed=1).transitions()


@pytest.mark.long
def test_tempered_data(tempered):
    found = recover(tempered, alpha="learn", n_basis=1)
    with pytest.warns(LevytorchWarning, match='tempering="learn"'):
        report = diagnose(found, tempered, checks=["laws"])
    laws = report.laws
    rows = {row.model: row for row in laws.rows}
    assert set(rows) == {"Gaussian", "stable", "stable, noise", "tempered", "Student t", "NIG"}
    assert laws.held_out
    assert rows["tempered"].log_likelihood > rows["stable"].log_likelihood > rows["Gaussian"].log_likelihood
    # D_o has vanished from both fits with jumps: b, D_f and alpha are left, and the tempering
    assert [rows[name].parameters for name in ("Gaussian", "stable", "tempered", "NIG")] == [2, 3, 4, 3]
    n = len(tempered)
    for row in laws.rows:  # what was held out is a little less likely than what was seen, by about its parameters
        seen = (2 * row.parameters - row.aic) / 2
        assert -0.5 < seen - n * row.log_likelihood < 6 * row.parameters
    assert (2 * 3 - rows["stable"].aic) / 2 == pytest.approx(found.log_likelihood, abs=0.01)
    metrics = report.metrics()
    assert [law["model"] for law in metrics["laws"]] == [row.model for row in laws.rows]
    assert "held-out log p per pair" in report.text()


@pytest.mark.long
def test_gaussian_held_out_by_refits(tempered):
    """The mean and variance of the other blocks in closed form: first order gives the same likelihood of a block."""
    laws = table_of_laws(recover(tempered, alpha=0.6, n_basis=1).head, tempered, Region())
    row = next(row for row in laws.rows if row.model == "Gaussian")
    dx, fold = tempered.dx.numpy(), tempered.trajectory.numpy() % 60 % 5
    total = 0.0
    for k in range(5):
        other = dx[fold != k]
        total += stats.norm.logpdf(dx[fold == k], other.mean(), other.std()).sum()
    assert row.log_likelihood == pytest.approx(total / len(dx), abs=2e-4)


@pytest.mark.long
def test_functions_of_x_and_a_penalty():
    truth = Dynamics(torch.sin, 0.3, lambda x: 1 + 0.4 * torch.cos(x), 0.5)
    data = simulate(truth, 200, 20, 0.1, seed=2).transitions()
    found = recover(data, alpha=0.5, n_basis=7, law="frozen")
    laws = diagnose(found, data, checks=["laws"]).laws
    rows = {row.model: row for row in laws.rows}
    assert set(rows) == {"Gaussian", "stable", "stable, noise", "tempered"}  # the others are for constants
    assert rows["stable"].parameters < 22
    assert abs(rows["tempered"].log_likelihood - rows["stable"].log_likelihood) * len(data) < 5
    assert np.isfinite([row.std for row in laws.rows]).all()


@pytest.mark.slow
def test_lost_tails_are_not_held_out(tempered):
    cut = tempered.censor(TRT=3.0, CT=2.0, drop_tail=0.0, seed=1)
    tail = {"method": "conditional", "TRT": 3.0}
    found = recover(cut, alpha=0.6, n_basis=1, tail=tail)
    laws = diagnose(found, cut, checks=["laws"]).laws
    assert not laws.held_out
    assert {row.model for row in laws.rows} == {"Gaussian", "stable", "tempered"}


def test_when_train_makes_it():
    options = {"checks": ["fit"], "max_pairs": 1000, "laws": "auto"}
    assert diagnostics_options(options, truth_known=False)["checks"] == ["fit", "laws"]
    assert diagnostics_options(options, truth_known=True)["checks"] == ["fit"]
    assert diagnostics_options(options | {"laws": True}, truth_known=True)["checks"] == ["fit", "laws"]
    assert diagnostics_options(options | {"checks": []}, truth_known=False)["checks"] == []
    with pytest.raises(ConfigError, match=r"diagnostics\.laws must be auto, true or false"):
        diagnostics_options(options | {"laws": "yes"}, truth_known=True)
