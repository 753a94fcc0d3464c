"""P-values that are uniform when the model is true."""

import math

import numpy as np
import pytest
from scipy.stats import binom, kstest

from levytorch import recover
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.components import legendre
from tests.diagnostics.problems import p_value, paths, quiet
from tests.training.problems import ALPHA, DT, steps


@pytest.mark.parametrize("kind", ["none", "tcf", pytest.param("strata", marks=pytest.mark.slow)])
def test_p_values_are_not_extreme_when_the_model_is_true(kind):
    p = np.array([p_value(kind, 3000, seed) for seed in range(8)])
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (p < 0.05).sum() <= binom.ppf(0.999, len(p), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n"), [("none", 2000), ("tcf", 8000), ("strata", 8000), ("TRT", 4000)])
def test_p_values_are_uniform_when_the_model_is_true(kind, n):
    p = np.array([p_value(kind, n, seed) for seed in range(1000, 1200)])
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (p < 0.01).sum() <= binom.ppf(0.999, len(p), 0.01)


@pytest.mark.slow
def test_step_size_p_values_are_uniform_when_coefficients_do_not_change():
    p = []
    for seed in range(200):
        data = paths("constant", 50, DT, 5000 + seed).transitions()
        found = recover(data, alpha=ALPHA, n_basis=1)
        p.append(quiet(diagnose, found, data, checks=("step_size",)).step_size.p_value)
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (np.array(p) < 0.01).sum() <= binom.ppf(0.999, len(p), 0.01)


@pytest.mark.slow
def test_without_the_correction_the_test_would_sleep():
    """Squared means of the polynomials at the fitted law, as if it had been given: the fit has made them small."""
    statistics = []
    for seed in range(8):
        data = steps(1500, seed)
        found = recover(data, alpha=ALPHA, n_basis=1)
        u = quiet(diagnose, found, data, checks=("fit",)).fit.u.u
        statistics.append(float((legendre(u, 6).mean(1) ** 2).sum()) * len(u))
    # six of mean one each, of which three parameters take about three
    assert np.mean(statistics) < 6 - 2 * math.sqrt(12 / len(statistics))
