"""The objective on counted pairs, against the pairs themselves and against the fit."""

import pytest
import torch

from benchmarks.paper.landscape import metropolis_run, pairs_of, surfaces, transitions_of
from levytorch import Recovery, log_density, tail_probability
from levytorch.data import make_pools


@pytest.fixture(scope="module")
def record(runs):
    found = metropolis_run(runs)
    assert (found.experiment, found.arm) == ("censored_mcmc", "tcf")
    return found


@pytest.fixture(scope="module")
def pairs(record):
    return pairs_of(record)[0]


def test_objective_is_that_of_the_pairs(record, pairs):
    """Mean log p over all pairs of both pools, evaluated one by one by the contour integral."""
    transitions = transitions_of(record)
    pools = make_pools(transitions, record.metrics["CT"], record.metrics["TRT"])
    D_o, D_f, TCF = 3.7, 2.5, 0.01
    log_p = log_density(pools.main.dx, 5.0, D_o, D_f, 0.3, 1 / 40, method="contour")
    expected = -((1 - TCF) * log_p.mean() + TCF * log_p[pools.tail].mean())
    found = pairs.objective(torch.tensor(D_o, dtype=torch.float64), torch.tensor(D_f, dtype=torch.float64), TCF)
    assert float(found) == pytest.approx(float(expected), abs=2e-5)


def test_minimiser_is_the_lowest_point_of_the_surface(pairs):
    _, _, main, tail = surfaces(pairs, (4.0, 3.0), n=21)
    lowest = pairs.minimiser(0.005, (4.0, 3.0))
    height = -(0.995 * main + 0.005 * tail)
    value = float(pairs.objective(*(torch.tensor(v, dtype=torch.float64) for v in lowest), 0.005))
    assert value <= height.min()
    assert height.shape == (21, 21)


def test_fixed_point_is_the_one_the_fit_found(record, pairs):
    """The run fits b as well, so that both differ by a small part of the standard error, no more."""
    found = Recovery.load(record.path)
    TCF = pairs.fixed_point((4.0, 3.0))
    D_o, D_f = pairs.minimiser(TCF, (4.0, 3.0))
    _, sd_o, sd_f = (float(s) for s in found.std(0.0))
    assert abs(D_o - float(found.D_o(0.0))) < 0.3 * sd_o
    assert abs(D_f - float(found.D_f(0.0))) < 0.3 * sd_f
    assert TCF == pytest.approx(found.tcf, rel=0.05)


def test_rounds_start_at_zero_and_end_at_the_fixed_point(pairs):
    TCFs, thetas = pairs.iterate((4.0, 3.0), most=60)
    assert TCFs[0] == 0.0
    assert thetas.shape == (len(TCFs), 2)
    assert TCFs[-1] == pytest.approx(pairs.fixed_point((4.0, 3.0)), abs=1e-5)
    R = float(tail_probability(pairs.CT, pairs.mu, 5.0, *thetas[0], 0.3, 1 / 40))
    assert TCFs[1] == pytest.approx((R - pairs.R_sample) / (1 - pairs.R_sample))
