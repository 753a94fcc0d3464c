"""Trajectories: shapes, lengths, gaps, float resolution, and what is refused."""

import math

import numpy as np
import pytest
import torch

from levytorch import Trajectories
from levytorch.data.pairing import first_points, float_limit, single_dt
from levytorch.errors import InputError, LevytorchWarning

RNG = np.random.default_rng(0)


def test_pairs_of_an_array():
    x = RNG.normal(size=(4, 6))
    paths = Trajectories.from_arrays(torch.from_numpy(x), dt=0.5)
    np.testing.assert_array_equal(paths.to_array(), x)
    t = paths.transitions()
    np.testing.assert_array_equal(t.x, x[:, :-1].ravel())
    np.testing.assert_array_equal(t.dx, np.diff(x, axis=1).ravel())
    assert t.uniform_dt
    assert t.dt.tolist() == [0.5] * 20
    assert t.trajectory.tolist() == np.repeat(np.arange(4), 5).tolist()
    assert (len(t), t.n_trajectories, t.dim, t.dropped) == (20, 4, 1, {})


def test_several_coordinates():
    x = RNG.normal(size=(4, 6, 2))
    paths = Trajectories.from_arrays(x, dt=1.0)
    np.testing.assert_array_equal(paths.to_array(), x)
    t = paths.transitions()
    assert (t.dim, t.dx.shape) == (2, (20, 2))
    np.testing.assert_array_equal(t.dx, np.diff(x, axis=1).reshape(-1, 2))
    assert Trajectories.from_arrays(x[..., :1], dt=1.0).dim == 1  # a single column is one dimension


def test_one_trajectory_as_a_plain_array():
    assert Trajectories.from_arrays([1.0, 2.0, 4.0], dt=1.0).to_array().shape == (1, 3)


def test_different_lengths():
    parts = [RNG.normal(size=(n, 3)) for n in (2, 7, 4)]
    paths = Trajectories.from_arrays(parts, dt=0.1, ids=["a", "b", "c"])
    t = paths.transitions()
    np.testing.assert_array_equal(t.dx, np.concatenate([np.diff(p, axis=0) for p in parts]))
    assert torch.bincount(t.trajectory).tolist() == [1, 6, 3]
    with pytest.raises(InputError, match="must have one length for to_array, found 2 to 7 points"):
        paths.to_array()


def test_times_of_any_form():
    x, clock = RNG.normal(size=(3, 4)), np.array([0.0, 0.5, 1.5, 1.75])
    shared = Trajectories.from_arrays(x, times=clock).transitions()
    each = Trajectories.from_arrays(x, times=clock + np.array([[0.0], [7.0], [9.0]])).transitions()
    ragged = Trajectories.from_arrays([x[0], x[1, :3]], times=[clock, clock[:3]]).transitions()
    assert not shared.uniform_dt
    assert shared.dt.tolist() == [0.5, 1.0, 0.25] * 3
    assert each.dt.tolist() == pytest.approx([0.5, 1.0, 0.25] * 3)
    assert ragged.dt.tolist() == [0.5, 1.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("dt", [0.05, 1 / 40, 180.0, 1e-3])
def test_even_times_are_recognised_in_spite_of_rounding(dt):
    t = Trajectories.from_arrays(RNG.normal(size=(1, 5000)), times=np.arange(5000) * dt + 1e4 * dt).transitions()
    assert t.uniform_dt
    assert float(t.dt[0]) == dt


def test_even_means_even():
    assert single_dt(1.0, 1.00001, 1.00000333, 3.0) is None
    assert single_dt(1.0, 1.0 + 1e-12, 1.0 + 1e-12 / 3, 3.0) == pytest.approx(1.0, abs=1e-12)


def test_gaps_are_dropped_and_counted():
    paths = Trajectories.from_arrays([RNG.normal(size=6)], times=[np.array([0.0, 1.0, 2.0, 9.0, 10.0, 11.5])])
    t = paths.transitions(max_dt=1.0)
    assert t.dropped == {"across a gap": 2}
    assert t.uniform_dt  # what remains is even
    assert len(t) == 3
    assert "2  across a gap" in t.describe()
    stored = Trajectories.from_arrays([paths.x], times=[paths.times], max_dt=1.0).transitions()
    assert stored.dropped == t.dropped
    with pytest.raises(InputError, match="at least one pair must remain, found none of 5"):
        paths.transitions(max_dt=0.1)


def test_mu_is_that_of_the_usable_pairs():
    x = np.array([0.0, 1.0, 2.0, 102.0, 103.0, 203.0, 303.0])
    t = Trajectories.from_arrays(x, times=np.array([0.0, 1, 2, 50, 51, 90, 130])).transitions(max_dt=1.0)
    assert float(t.mu) == 1.0


def test_pairs_beyond_float_resolution_are_dropped_by_x_alone():
    dx = RNG.normal(size=2000)
    x = np.concatenate([[0.0], np.cumsum(dx)])
    far = x + 2.0**53  # floats are 2 apart there
    t = Trajectories.from_arrays([x, far], dt=1.0).transitions()
    assert t.dropped == {"beyond float resolution": 2000}
    np.testing.assert_allclose(t.dx, dx, atol=1e-12)
    there_and_back = np.array([0.0, 1e17, 0.5, 1.0])
    t = Trajectories.from_arrays([x, there_and_back], dt=1.0).transitions()
    assert t.dropped == {"beyond float resolution": 1}  # the step that starts at 1e17, not the jump to it
    assert float(t.dx.max()) == 1e17


@pytest.mark.parametrize("width", [1e-9, 0.37, 1.0, 5e4])
def test_the_limit_of_resolution(width):
    dx = width * np.array([-1.0, -1.0, 1.0, 1.0])  # half the interquartile range is width
    limit = float_limit(dx)
    assert np.spacing(limit) > 1e-3 * width >= np.spacing(np.nextafter(limit, 0))


def test_prices_that_mostly_stand_still_have_a_limit():
    assert float_limit(np.array([0.0] * 9 + [0.5])) == float_limit(np.array([0.5, -0.5] * 5))
    assert float_limit(np.zeros(5)) == math.inf


def test_reward_is_carried_along():
    x, r = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))
    t = Trajectories.from_arrays(x, dt=1.0, reward=r).transitions()
    np.testing.assert_array_equal(t.reward, r[:, :-1].ravel())
    t = Trajectories.from_arrays([x[0], x[1, :2]], dt=1.0, reward=[r[0], r[1, :2]]).transitions()
    np.testing.assert_array_equal(t.reward, [*r[0, :3], r[1, 0]])
    assert "reward" in t.describe()


def test_standing_still_is_worth_a_warning():
    with pytest.warns(LevytorchWarning, match="1 of 3 trajectories never move, trajectory 1 first"):
        Trajectories.from_arrays([[0.0, 1.0], [2.0, 2.0], [0.0, 3.0]], dt=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=[[0.0, 1.0]]), "dt or times must be given, found neither"),
        (dict(x=[[0.0, 1.0]], dt=1.0, times=[0.0, 1.0]), "dt and times must not both be given"),
        (dict(x=[[0.0, 1.0]], dt=0.0), "dt must be a positive number, found 0.0"),
        (dict(x=[[0.0, 1.0]], dt=1.0, max_dt=-1), "max_dt must be a positive number"),
        (dict(x=[[0.0, math.nan, 1.0]], dt=1.0), "x must be finite, found nan at point 1 of trajectory 0"),
        (dict(x=[[0.0, 1.0], [2.0, math.inf]], dt=1.0), "found inf at point 1 of trajectory 1"),
        (dict(x=[[0.0, 1.0], [2.0]], dt=1.0, ids=["a", "b"]), "at least two points, found 1 in trajectory 'b'"),
        (dict(x=[[1.0, 1.0], [2.0, 2.0]], dt=1.0), "constant series"),
        (dict(x=np.array([[[0.0, 1.0], [1.0, 1.0]]]), dt=1.0), "coordinate 1 of x must vary"),
        (dict(x=[np.zeros((3, 2)), np.zeros((3, 1))], dt=1.0), "with one d, found shapes"),
        (dict(x=np.zeros((2, 2, 2, 2)), dt=1.0), r"found \(2, 2, 2, 2\)"),
        (dict(x=np.zeros((0, 3)), dt=1.0), "hold numbers, found"),
        (dict(x="walk", dt=1.0), "x must be numeric, found str"),
        (dict(x=[[0.0, 1.0, 2.0]], times=[0.0, 2.0, 1.0]), "times must increase strictly within a trajectory, found 2"),
        (dict(x=[[0.0, 1.0, 2.0]], times=[0.0, 1.0, 1.0]), "found 1 followed by 1 at point 1 of trajectory 0"),
        (dict(x=[[0.0, 1.0, 2.0]], times=[0.0, 1.0]), "times must have one number per point"),
        (dict(x=[[0.0, 1.0]], times=[0.0, math.nan]), "times must be finite"),
        (dict(x=[[0.0, 1.0]], dt=1.0, reward=[[1.0, 2.0, 3.0]]), "reward must have one number per point"),
        (dict(x=[[0.0, 1.0]], dt=1.0, ids=["a", "b"]), "ids must name 1 trajectories, found 2"),
        (dict(x=[[0.0, 1.0], [1.0, 3.0]], dt=1.0, ids=["a", "a"]), "ids must differ, found 'a' twice"),
        (dict(x=np.array([[1j, 2.0]]), dt=1.0), "x must be numeric, found complex128"),
        (
            dict(x=[[0.0, 1.0]], times=np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]")),
            "time_unit must be given for dates, found None",
        ),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        Trajectories.from_arrays(**arguments)


def test_max_dt_below_dt():
    with pytest.raises(InputError, match="max_dt must not be below dt"):
        Trajectories.from_arrays([[0.0, 1.0]], dt=1.0).transitions(max_dt=0.5)


def test_the_points_that_pairs_begin_at():
    rng = np.random.default_rng(0)
    paths = [rng.normal(size=n).cumsum() for n in (5, 2, 7)]
    times = [np.sort(rng.uniform(0, n, size=n)) for n in (5, 2, 7)]
    for t in (
        Trajectories.from_arrays(paths, dt=0.1),
        Trajectories.from_arrays(paths, times=times, max_dt=1.0),
        Trajectories.from_arrays(paths[0], dt=0.1),
    ):
        pairs = t.transitions()
        rows = first_points(t, pairs)
        np.testing.assert_array_equal(t.x[rows], pairs.x)
        np.testing.assert_array_equal(t.x[rows + 1], pairs.x + pairs.dx)
