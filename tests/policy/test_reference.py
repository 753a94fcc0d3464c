"""V against the values of a file: references, CRL, coverage and the numbers reported."""

import math
import types

import numpy as np
import pytest
import torch

from levytorch.data import Trajectories
from levytorch.policy.reference import Bootstrap, compare_with_data, empirical_reference
from levytorch.spaces.basis import FourierBasis

BETA, DT, PERIOD = 0.5, 0.1, 10.0
BASIS = FourierBasis(3, PERIOD)


def reward(x):
    return 2 + torch.cos(2 * math.pi * x / PERIOD)


@pytest.fixture(scope="module")
def walks():
    """Two trajectories that leave the cell."""
    rng = np.random.default_rng(0)
    x = np.cumsum(0.3 * rng.standard_normal((2, 600)), axis=1) + 5
    return Trajectories.from_arrays(x, dt=DT)


@pytest.fixture(scope="module")
def comparison(walks):
    chosen = torch.zeros(len(walks.transitions()), dtype=torch.bool)
    chosen[:300] = True
    return compare_with_data(walks, reward, BETA, BASIS, chosen=chosen, n_terms=200)


def curve(value, std=None, factor=None):
    """A flat V with what a value function tells about itself."""

    class V:
        n_modes, residual, condition, covariance_factor = 1, 0.0, 1.0, factor

        def __call__(self, x):
            return torch.full_like(x, value)

        def std(self, x):
            return torch.full_like(x, std)

    return V()


def test_states_of_other_periods_are_counted_in_the_cell(walks):
    found = empirical_reference(walks, reward, BETA, BASIS, n_terms=200)
    assert float(torch.as_tensor(walks.x).max() - torch.as_tensor(walks.x).min()) > PERIOD
    assert float(found.values.x.min()) >= 0
    assert float(found.values.x.max()) < PERIOD


def test_the_paper_s_sum_exceeds_the_exact_one_by_half_a_step(comparison):
    ratio = comparison.values.V / comparison.exact.V
    expected = BETA * DT / -math.expm1(-BETA * DT)
    torch.testing.assert_close(ratio, torch.full_like(ratio, expected), rtol=1e-9, atol=0)


def test_crl_has_seen_what_the_fit_has(walks, comparison):
    """The first 300 transitions are those of the first trajectory's first 300 points."""
    values = comparison.values
    seen = values.number < 300
    A = BASIS.matrix(values.x[seen])
    expected = torch.linalg.lstsq(A, values.V[seen, None]).solution[:, 0]
    x = torch.linspace(0, PERIOD, 7, dtype=torch.float64)
    torch.testing.assert_close(comparison.crl(x), BASIS.matrix(x) @ expected, rtol=1e-8, atol=1e-8)
    states = np.remainder(walks.x[:300], PERIOD)
    assert comparison.seen == pytest.approx((states.min(), states.max()))


def test_without_a_choice_there_is_no_crl(walks):
    whole = compare_with_data(walks, reward, BETA, BASIS, n_terms=200, window=(2.0, 8.0))
    assert whole.crl is None
    assert whole.interval == (2.0, 8.0)
    assert "crl" not in whole.curves()
    assert set(whole.numbers(curve(4.0))["baselines"]) == {"trivial"}


def test_numbers_of_a_flat_V(comparison):
    level, width = float(comparison.values.V.median()), float(comparison.values.V.std())
    numbers = comparison.numbers(curve(level, width, factor=torch.zeros(1)))
    low, high = comparison.interval
    x = torch.linspace(low, high, 20001, dtype=torch.float64)
    reference = comparison.reference(x)
    assert numbers["relative_l2"] == pytest.approx(float((level - reference).norm() / reference.norm()), rel=1e-3)
    inside = ((comparison.values.V - level).abs() <= width).double().mean()
    assert numbers["coverage_std"] == pytest.approx(float(inside), abs=1e-9)
    assert numbers["n_values"] == len(comparison.values.x)
    trivial = numbers["baselines"]["trivial"]["relative_l2"]
    assert trivial == pytest.approx(float((reward(x) / BETA - reference).norm() / reference.norm()), rel=1e-3)
    assert "bootstrap" not in numbers


def test_numbers_of_refits(comparison):
    refits = [types.SimpleNamespace(alpha=alpha, tcf=tcf) for alpha, tcf in ((0.4, 0.0), (0.6, 0.02))]
    level = float(comparison.values.V.mean())
    bootstrap = Bootstrap([curve(level - 0.1), curve(level + 0.1)], refits, 50, 1, 0)
    numbers = comparison.numbers(curve(level), bootstrap)
    assert "coverage_std" not in numbers  # this V knows no standard error of its own
    assert 0 < numbers["coverage_bootstrap"] < 1
    assert numbers["bootstrap"]["replicas"] == 2
    assert numbers["bootstrap"]["failed"] == 1
    assert numbers["bootstrap"]["alpha_sd"] == pytest.approx(0.2 / math.sqrt(2))
    assert numbers["bootstrap"]["tcf_sd"] == pytest.approx(0.02 / math.sqrt(2))
    errors = [comparison.errors(V)["relative_l2"] for V in bootstrap.values]
    assert numbers["bootstrap"]["relative_l2_mean"] == pytest.approx(np.mean(errors))
    refits[0].alpha = torch.cos  # a function of x has no standard deviation
    assert "alpha_sd" not in bootstrap.numbers()
