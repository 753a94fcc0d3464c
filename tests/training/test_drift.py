"""b as the mean of a step: against least squares by hand, and where the location misses the way home."""

import copy

import numpy as np
import pytest
import torch

from levytorch import Recovery, Trajectories, Transitions, recover
from levytorch.coefficients.links import TemperingSpec
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.drift import with_mean

HOME = 0.05  # share of the distance from home that is walked per hour, in the mean


def track(n, seed):
    """An animal that rests in four of five hours and walks in the others, then towards home in the mean."""
    rng = np.random.default_rng(seed)
    x = np.zeros(n + 1)
    for i in range(n):
        rests = rng.random() < 0.8
        x[i + 1] = x[i] + (0.01 * rng.standard_normal() if rests else rng.normal(-5 * HOME * x[i], 1.0))
    return x


SETTINGS = {"dt": 1.0, "alpha": 0.3, "tempering": "learn", "period": None, "n_basis": 4, "engine": "fisher"}
HEAD = {"coefficients": {"name": "polynomial", "degree": 1}}


@pytest.fixture(scope="module")
def found():
    return recover(track(4000, 1), **SETTINGS, **HEAD, drift="mean")


def slope(recovery, at=1.0):
    return float(recovery.b(at) - recovery.b(-at)) / (2 * at)


@pytest.mark.long
def test_the_way_home(found):
    """The location sees a tenth of it at most; the mean has it within its errors."""
    assert slope(recover(track(4000, 1), **SETTINGS, **HEAD)) > -0.3 * HOME
    b, std = found.b([-1.0, 1.0]), found.std([-1.0, 1.0])[0]
    assert bool(((b - torch.tensor([HOME, -HOME])).abs() < 3 * std).all())
    assert bool((std < 0.3 * HOME).all())
    assert "b is the mean of a step" in str(found.summary())


def test_it_is_least_squares(found):
    x = track(4000, 1)
    pairs = Trajectories.from_arrays(x[None], dt=1.0).transitions()
    inside = (pairs.x >= found.metrics["x_min"]) & (pairs.x <= found.metrics["x_max"])
    at, dx = pairs.x[inside], pairs.dx[inside]
    c = found.coefficients(at)
    weight = 1 / (c.D_o + c.alpha * c.D_f * c.tempering ** (2 * c.alpha - 2))
    residual = dx - c.b
    rows = torch.stack([torch.ones_like(at), at])
    moments = (weight * residual * rows).sum(1) / (weight * dx.abs() * rows.abs()).sum(1)
    assert float(moments.abs().max()) < 1e-9


def test_it_is_saved(found, tmp_path):
    again = Recovery.load(found.save(tmp_path / "mean.pt"))
    assert float(again.b(0.7)) == float(found.b(0.7))
    with pytest.raises(InputError, match='found drift "mean"'):
        found.std(0.0, kind="robust")


def test_jumps_without_an_end_have_no_mean(found):
    """Of a fit whose tempering has run to zero b stays the location."""
    again = copy.deepcopy(found)
    again.head.tempering_spec = TemperingSpec()
    before = float(again.b(1.0))
    with pytest.warns(LevytorchWarning, match="must have tempered jumps"):
        with_mean(again, Trajectories.from_arrays(track(300, 2)[None], dt=1.0).transitions())
    assert float(again.b(1.0)) == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tempering": 0.0}, "found no tempering"),
        ({"drift": "middle"}, "drift"),
        ({"law": "simulated"}, "found law simulated"),
        ({"coefficients": "mlp"}, "found a MLP"),
        ({"tail": {"CT": 1.0, "TRT": 3.0, "method": "conditional"}, "alpha": 0.5, "tempering": 0.1}, "tail.method"),
    ],
)
def test_refusals(options, match):
    with pytest.raises(InputError, match=match):
        recover(track(300, 2), **SETTINGS | {"drift": "mean"} | options)


@pytest.mark.parametrize("action", [np.resize(["left", "right"], 300), np.linspace(0.0, 1.5, 300)])
def test_data_without_pairs_of_one_kind_are_refused(action):
    pairs = Trajectories.from_arrays(track(300, 2)[None], dt=1.0).transitions()
    with pytest.raises(InputError, match='drift "mean"'):
        recover(pairs.lattice(), **{k: v for k, v in SETTINGS.items() if k != "dt"}, drift="mean")
    labelled = Transitions(pairs.x, pairs.dx, 1.0, action=action)
    with pytest.raises(InputError, match='drift "mean"'):
        recover(labelled, alpha=0.5, tempering=1.0, period=None, n_basis=4, drift="mean")
