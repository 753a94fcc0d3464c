"""The same law over time and in all trajectories: calibrated when it is, awake when it is not."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from levytorch import Dynamics, Transitions, recover, simulate
from levytorch.data.transitions import Membership
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.sample import _places
from tests.diagnostics.problems import quiet

DT = 1 / 20


def system(pull):
    return Dynamics(
        b=lambda x: pull * torch.sin(x),
        D_o=lambda x: 1.0 + 0.3 * torch.cos(x),
        D_f=lambda x: 0.6 + 0.2 * torch.sin(x),
        alpha=0.6,
    )


def walks(pull, n, steps, seed):
    return simulate(system(pull), n, steps, DT, seed=seed).transitions()


def differing(seed, n=20, steps=600):
    """b = 0 in one half of the trajectories, 1.6 sin x in the other."""
    parts = [walks(pull, n // 2, steps, 2 * seed + k) for k, pull in enumerate((0.0, 1.6))]
    ids = torch.cat([parts[0].trajectory, parts[1].trajectory + n // 2])
    return Transitions(torch.cat([p.x for p in parts]), torch.cat([p.dx for p in parts]), DT, trajectory=ids)


def growing(seed, n=20, pieces=5, steps=120):
    """b grows from 0 to 1.6 sin x within every trajectory; each piece goes on from where the last one ended."""
    parts, x0 = [], None
    for k in range(pieces):
        paths = simulate(system(1.6 * k / (pieces - 1)), n, steps, DT, x0=x0, seed=1000 * seed + k)
        x0 = paths.to_array()[:, -1]
        parts.append(paths.transitions())
    order = torch.cat([p.trajectory for p in parts]).argsort(stable=True)
    x, dx, ids = (torch.cat([getattr(p, name) for p in parts])[order] for name in ("x", "dx", "trajectory"))
    return Transitions(x, dx, DT, trajectory=ids)


def checked(data, seed, **options):
    found = quiet(recover, data, **{"alpha": 0.6, "n_basis": 5, "law": "frozen"} | options)
    return quiet(diagnose, found, data, checks=("time", "trajectories"), seed=seed)


@pytest.mark.parametrize("law", ["frozen", pytest.param("exact", marks=pytest.mark.slow)])
def test_trajectories_that_differ(law):
    found = [checked(differing(seed), seed, law=law) for seed in (1, 2)]
    assert all("drift differs between trajectories" in each.alarms["trajectories"] for each in found)
    assert not any("time" in each.alarms for each in found)


@pytest.mark.long
def test_a_drift_that_grows():
    found = [checked(growing(seed), seed) for seed in (1, 2)]
    assert all("drift changes over time" in each.alarms["time"] for each in found)
    assert not any("trajectories" in each.alarms for each in found)


@pytest.mark.long
def test_two_dimensions():
    data = simulate(Dynamics.named("plane"), 30, 60, DT, seed=2).transitions()
    found = checked(data, 0, alpha=float(Dynamics.named("plane").alpha), n_basis=3)
    assert 1e-3 < found.time.p_value < 1
    assert 1e-3 < found.trajectories.p_value < 1


@pytest.mark.slow
def test_p_values_are_not_extreme_when_the_law_is_the_same():
    found = [checked(walks(0.8, 20, 150, seed), seed) for seed in range(8)]
    for name in ("time", "trajectories"):
        assert kstest([getattr(each, name).p_value for each in found], "uniform").pvalue > 1e-3


@pytest.mark.long
def test_a_single_trajectory_is_not_compared_with_others():
    found = checked(walks(0.8, 1, 3000, 1), 0)
    assert found.trajectories is None
    assert found.time.p_value > 1e-3


def test_places_in_trajectories():
    ids = np.array([3, 3, 1, 1, 1, 3, 2])
    assert _places(Membership(ids=ids), np.arange(7)).tolist() == [0, 1, 0, 1, 2, 2, 0]
    assert _places(Membership(np.array([2, 0, 3])), np.array([0, 1, 3, 4])).tolist() == [0, 1, 1, 2]
