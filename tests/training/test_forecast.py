"""Paths and forecasts of a recovery."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, LevyStep, recover, simulate
from levytorch.figures.forecasts import fan


@pytest.fixture(scope="module")
def found():
    return recover(simulate(Dynamics.named("constant"), 300, 40, 1 / 40, seed=3).transitions(), alpha=0.3, n_basis=1)


def test_a_forecast_has_the_quantiles_of_the_law(found):
    n = 20_000
    ahead = found.forecast(1.0, 0.5, n_steps=2, levels=(0.25, 0.5, 0.9), n_paths=n, seed=1)
    assert ahead.times.tolist() == [0.0, 0.25, 0.5]
    assert ahead.quantiles.shape == (3, 3)
    assert ahead.quantiles[0].tolist() == [1.0, 1.0, 1.0]
    for time, row in zip(ahead.times[1:], ahead.quantiles[1:]):
        law = LevyStep(*(float(v) for v in found.coefficients(0.0)), time)
        u = law.cdf(torch.from_numpy(row - 1.0)).numpy()
        for level, got in zip(ahead.levels, u):
            assert abs(got - level) < 4 * math.sqrt(level * (1 - level) / n)


def test_paths_are_those_of_the_recovered_system(found):
    got = found.simulate(5, 10, 0.1, seed=4, x0=0.0)
    expected = simulate(found.dynamics(), 5, 10, 0.1, seed=4, x0=0.0)
    assert np.array_equal(got.to_array(), expected.to_array())


@pytest.mark.long
def test_the_fan_is_drawn(found, tmp_path):
    ahead = found.forecast(0.0, 1.0, n_paths=200)
    assert "200 paths" in repr(ahead)
    fig, axes = fan(ahead, observed=(ahead.times, ahead.quantiles[:, 3]))
    fig.savefig(tmp_path / "fan.png")
    assert len(axes) == 1
    plane = recover(simulate(Dynamics.named("plane"), 50, 20, 1 / 40, seed=1).transitions(), alpha=0.3, n_basis=1)
    ahead = plane.forecast([0.0, 1.0], 0.5, n_steps=3, n_paths=100)
    assert ahead.quantiles.shape == (4, 7, 2)
    assert len(fan(ahead)[1]) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (([0.0, 1.0], 1.0), {}, "x0 must be one state"),
        ((0.0, -1.0), {}, "horizon"),
        ((0.0, 1.0), {"levels": (0.0, 0.5)}, "levels"),
        ((0.0, 1.0), {"n_paths": 3}, "n_paths"),
        ((math.nan, 1.0), {}, "x0"),
    ],
)
def test_bad_arguments(found, arguments, options, said):
    with pytest.raises(InputError, match=said):
        found.forecast(*arguments, **options)
