"""The random-walk Metropolis sampler of Example 4.5: its law, its options, and what is refused."""

import inspect

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.paper.metropolis import OPTIONS, _width, metropolis, metropolis_paths
from levytorch import Dynamics, LevyStep, tail_probability
from levytorch.errors import InputError

CONSTANT, VARIABLE = Dynamics.named("constant"), Dynamics.named("variable")
DT = 1 / 40


def test_metropolis_samples_the_law_within_its_range():
    # one increment from each of many chains: independent draws of the law confined to |y| <= reach
    n, reach = 2000, 2.0
    x = metropolis_paths(CONSTANT, n, 1, DT, seed=3, burn_in=150, reach=reach, chains=n, x0=0.0)
    y = x.transitions().dx.numpy() - 5 * DT
    assert np.abs(y).max() <= reach
    law = LevyStep(5.0, 4.0, 3.0, 0.3, DT)
    low, high = (float(law.cdf(torch.tensor(5 * DT + s * reach, dtype=torch.float64))) for s in (-1, 1))

    def confined(v):
        return (law.cdf(torch.as_tensor(v + 5 * DT, dtype=torch.float64)).numpy() - low) / (high - low)

    assert stats.kstest(y, confined).pvalue > 1e-3


def test_metropolis_has_fewer_large_increments_than_the_truth():
    t = metropolis_paths(CONSTANT, 500, 40, DT, seed=1, burn_in=300, proposal_scale=2.0).transitions()
    exact = float(tail_probability(8.0, 5 * DT, 5.0, 4.0, 3.0, 0.3, DT))
    assert 0 < float((t.deviation > 8).double().mean()) < 0.75 * exact
    assert float((t.dx - 5 * DT).abs().max()) <= _width(CONSTANT, DT, 0.99)


def test_metropolis_without_a_range():
    """reach = inf lifts the range: far increments appear that reach = 3 never has."""
    limited, free = (
        metropolis_paths(CONSTANT, 200, 40, DT, seed=1, burn_in=300, reach=reach).transitions()
        for reach in (3.0, float("inf"))
    )
    assert float((limited.dx - 5 * DT).abs().max()) <= 3.0
    assert float((free.dx - 5 * DT).abs().max()) > 6.0


def test_metropolis_defaults_come_from_the_law():
    reach = _width(CONSTANT, DT, 0.99)
    assert float(tail_probability(reach, 0.0, 0.0, 4.0, 3.0, 0.3, DT)) == pytest.approx(0.01, rel=1e-6)


def test_the_options_listed_are_those_of_the_sampler():
    parameters = inspect.signature(metropolis).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == OPTIONS


def test_metropolis_counts_may_be_numpy_integers():
    options = dict(chains=np.int64(2), thinning=np.int32(1))
    few = metropolis_paths(CONSTANT, 2, 2, DT, burn_in=np.int64(3), **options)
    np.testing.assert_array_equal(few.x, metropolis_paths(CONSTANT, 2, 2, DT, burn_in=3, **options).x)


def test_metropolis_is_reproducible_and_handles_rounds():
    options = dict(burn_in=5, chains=4, thinning=2, x0=1.0)
    first = metropolis_paths(VARIABLE, 10, 3, DT, seed=6, **options).to_array()
    np.testing.assert_array_equal(metropolis_paths(VARIABLE, 10, 3, DT, seed=6, **options).to_array(), first)
    assert first.shape == (10, 4)
    assert (first[:, 0] == 1.0).all()
    assert (metropolis_paths(VARIABLE, 10, 3, DT, seed=7, **options).to_array()[:, 1:] != first[:, 1:]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(burn_in=-1), "burn_in must be an integer of at least 0"),
        (dict(chains=0), "chains must be a positive integer"),
        (dict(chains=9), "chains must not exceed the 4 trajectories, found 9"),
        (dict(thinning=0), "thinning must be"),
        (dict(reach=0.0), "reach must be a positive number"),
        (dict(reach="far"), "reach must be a positive number, found 'far'"),
        (dict(burnin=5), "options among burn_in, chains, proposal_scale, reach, thinning, found burnin"),
        (dict(proposal_scale=-1.0), "proposal_scale must be a positive number"),
    ],
)
def test_bad_metropolis_options(options, message):
    with pytest.raises(InputError, match=message):
        metropolis_paths(CONSTANT, 4, 2, DT, **options)
