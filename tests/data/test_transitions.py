"""Transitions: mu, selections, censoring, the summary."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Trajectories, Transitions, cutting_threshold, simulate
from levytorch.errors import InputError

DT = 1 / 40


@pytest.fixture(scope="module")
def paper():
    return simulate(Dynamics.named("constant"), 10_000, 40, DT, seed=1).transitions()


def heavy(n=1001, dim=1, seed=0):
    return np.random.default_rng(seed).standard_cauchy(size=n if dim == 1 else (n, dim))


def test_mu_is_the_median():
    dx = heavy(1000)
    assert float(Transitions(dx, dx, 0.1).mu) == np.median(dx)
    plane = heavy(999, dim=2)
    np.testing.assert_array_equal(Transitions(plane, plane, 0.1).mu, np.median(plane, axis=0))


def test_mu_of_uneven_steps_is_a_rate():
    dx, dt = heavy(), np.random.default_rng(1).uniform(0.5, 2, 1001)
    t = Transitions(dx, dx, dt)
    assert not t.uniform_dt
    assert float(t.mu) == np.median(dx / dt)
    np.testing.assert_allclose(t.deviation, np.abs(dx - np.median(dx / dt) * dt), rtol=1e-12)


def test_deviation_is_a_norm_in_several_dimensions():
    dx, dt = heavy(50_000, dim=3), np.random.default_rng(1).uniform(0.5, 2, 50_000)
    for steps, drift in ((0.5, np.median(dx, axis=0)), (dt, np.median(dx / dt[:, None], axis=0) * dt[:, None])):
        t = Transitions(dx, dx, steps)
        expected = np.linalg.norm(dx - drift, axis=1)
        np.testing.assert_allclose(t.deviation, expected, rtol=1e-12)
        np.testing.assert_array_equal(t.beyond(10.0), np.flatnonzero(t.deviation > 10.0))


def test_beyond_agrees_with_the_deviation():
    t = Transitions(heavy(50_000), heavy(50_000), 0.5)
    np.testing.assert_array_equal(t.beyond(3.0), np.flatnonzero(t.deviation > 3.0))
    exact = float(t.deviation[123])
    assert 123 not in t.beyond(exact)
    assert 123 in t.beyond(exact, included=True)


def test_selections_keep_mu_and_trajectories():
    ids = np.repeat([0, 1, 2], [3, 4, 2])
    t = Transitions(np.arange(9.0), heavy(9), 1.0, trajectory=ids, reward=np.arange(9.0))
    for which in (slice(2, 8), np.arange(9) % 2 == 0, [5, 0, 7], slice(None, None, 3)):
        part = t[torch.tensor(which) if isinstance(which, list) else which]
        np.testing.assert_array_equal(part.x, np.arange(9.0)[which])
        np.testing.assert_array_equal(part.trajectory, ids[which])
        np.testing.assert_array_equal(part.reward, np.arange(9.0)[which])
        assert float(part.mu) == float(t.mu)
    assert t[4].x.tolist() == [4.0]
    assert t[-1].x.tolist() == [8.0]
    assert t[np.int64(4)].x.tolist() == [4.0]
    assert [float(pair.x) for pair in t] == list(range(9))
    with pytest.raises(IndexError, match="the number of a pair must lie from -9 to 8, found 9"):
        t[9]


@pytest.mark.parametrize("which", [slice(35, 130), slice(0, 40), "mask", [3, 99, 41]])
def test_compact_trajectory_numbers_follow_a_selection(paper, which):
    full = paper.trajectory
    if which == "mask":
        which = torch.rand(len(paper), generator=torch.Generator().manual_seed(0)) < 0.01
    np.testing.assert_array_equal(paper[which].trajectory, full[which])


def test_uneven_selection_keeps_its_dt():
    dt = np.linspace(1, 2, 5)
    assert Transitions(heavy(5), heavy(5), dt)[1:3].dt.tolist() == dt[1:3].tolist()


def test_the_papers_censoring(paper):
    kept = paper.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=10_000)
    deviation = (paper.dx - paper.mu).abs()
    removed, tail = int((deviation >= 20).sum()), int(((deviation > 8) & (deviation < 20)).sum())
    assert kept.dropped == {"beyond TRT": removed, "tail dropped by censoring": round(tail / 2)}
    assert len(kept) == len(paper) - removed - round(tail / 2)
    assert float(kept.mu) == float(paper.mu)
    left = (kept.dx - paper.mu).abs()
    assert float(left.max()) < 20
    assert int((left <= 8).sum()) == int((deviation <= 8).sum())
    R_sample = float((left > 8).double().mean())
    assert R_sample == pytest.approx(0.0035, abs=4 * math.sqrt(0.0035 / len(kept)))
    np.testing.assert_array_equal(kept.trajectory, paper.trajectory[torch.isin(paper.dx, kept.dx)])


def test_censoring_depends_on_its_seed_alone(paper):
    part = paper[:40_000]
    same, again, other = (part.censor(seed=s).dx for s in (3, 3, 4))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


@pytest.mark.parametrize("kind", [int, np.float32, np.int64, np.array, torch.tensor])
def test_thresholds_are_numbers_of_any_kind(paper, kind):
    part = paper[:40_000]
    assert torch.equal(part.censor(TRT=kind(20), CT=kind(8)).dx, part.censor(TRT=20.0, CT=8.0).dx)


def test_a_threshold_of_the_law_censors(paper):
    CT = cutting_threshold(0.3, 3.0, 1 / 40)
    kept = paper[:40_000].censor(TRT=None, CT=CT, drop_tail=1.0)
    assert float(kept.deviation.max()) <= float(CT)


def test_censoring_nothing_and_everything():
    t = Transitions(heavy(), heavy(), 1.0)
    assert len(t.censor(TRT=None, CT=1.0, drop_tail=0.0)) == len(t)
    assert len(t.censor(TRT=None, CT=1.0, drop_tail=1.0)) == int((t.deviation <= 1.0).sum())
    with pytest.raises(InputError, match="TRT must leave some of 1000 pairs"):
        Transitions(heavy(1000), heavy(1000), 1.0).censor(TRT=1e-9, CT=None, drop_tail=0.0)


def test_censoring_with_rewards_uneven_steps_and_several_dimensions():
    n = 40_000
    dx, dt = heavy(n, dim=2), np.random.default_rng(2).uniform(0.5, 2, n)
    t = Transitions(dx, dx, dt, reward=np.arange(n), trajectory=np.arange(n) % 7)
    kept = t.censor(TRT=lambda dt: 20 * dt, CT=lambda dt: 5 * dt, drop_tail=0.25, seed=1)
    rows = kept.reward.long().numpy()
    np.testing.assert_array_equal(kept.dx, dx[rows])
    np.testing.assert_array_equal(kept.dt, dt[rows])
    np.testing.assert_array_equal(kept.trajectory, rows % 7)
    assert bool((kept.deviation < 20 * kept.dt).all())


def test_the_summary_tells_what_matters(paper):
    kept = paper.censor(seed=10_000)
    text = kept.describe()
    assert f"{len(kept):,} transitions of" in text
    assert f"dropped   {len(paper) - len(kept):,} of {len(paper):,} pairs" in text
    for fact in ("10,000 trajectories", "0.025 for every pair", "beyond TRT", "tail dropped by censoring", "99.9%"):
        assert fact in text
    uneven = Transitions(heavy(), heavy(), np.random.default_rng(0).uniform(1, 2, 1001)).describe()
    assert "within 5 % of the median" in uneven
    assert "median of dx / dt" in uneven
    assert len(text.splitlines()) < 40


def test_a_constant_dt_array_is_even():
    assert Transitions([0.0, 1.0], [1.0, 2.0], [0.5, 0.5]).uniform_dt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dx=[1.0]), r"found \(2,\) and \(1,\)"),
        (dict(dt=None), "dt must be given, found None"),
        (dict(dt=0.0), "dt must be positive and finite"),
        (dict(dt=[1.0, 2.0, 3.0]), r"dt must be a number or have shape \(2,\)"),
        (dict(x=[0.0, math.nan]), "x must be finite, found nan at pair 1"),
        (dict(dx=[math.inf, 0.0]), "dx must be finite, found inf at pair 0"),
        (dict(x=[], dx=[]), "at least one pair, found none"),
        (dict(x=["a", "b"]), "x must be numeric"),
        (dict(trajectory=[1]), r"trajectory must have shape \(2,\)"),
        (dict(reward=[1.0]), r"reward must have shape \(2,\)"),
        (dict(reward=[1.0, math.nan]), "reward must be finite, found nan at pair 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        Transitions(**{**dict(x=[0.0, 1.0], dx=[1.0, 2.0], dt=1.0), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(CT=8.0, TRT=8.0), "CT must be smaller than TRT, found CT = 8 and TRT = 8"),
        (dict(CT=-1.0), "CT must be a positive number, found -1.0"),
        (dict(TRT=math.nan), "TRT must be a positive number"),
        (dict(drop_tail=1.5), r"drop_tail must lie in \[0, 1\]"),
        (dict(drop_tail="half"), r"drop_tail must be a finite number, found 'half'"),
        (dict(seed=-1), "seed must be an integer of at least 0 and at most 9223372036854775807, found -1"),
        (dict(seed=0.5), "seed must be an integer of at least 0 and at most 9223372036854775807, found 0.5"),
        (dict(TRT="20"), "TRT must be a positive number, found '20'"),
        (dict(CT=[8.0, 9.0]), "CT must be a positive number"),
        (dict(CT=lambda dt: 9 * dt, TRT=lambda dt: 8 * dt), "CT must be smaller than TRT, found CT = 9 and TRT = 8"),
        (dict(CT=None), "CT must be given when drop_tail > 0"),
    ],
)
def test_bad_censoring(arguments, message):
    with pytest.raises(InputError, match=message):
        Transitions(heavy(), heavy(), 1.0).censor(**arguments)


def test_bad_selections():
    t = Transitions(heavy(), heavy(), 1.0)
    with pytest.raises(InputError, match="mask must have shape"):
        t[torch.zeros(3, dtype=torch.bool)]
    with pytest.raises(InputError, match="at least one of 1001 pairs, found none"):
        t[t.x > 1e300]


def test_wrapped_angles_are_taken_the_short_way_round(tmp_path):
    """As numpy.unwrap does along every series; in one coordinate of two, and of pairs that lie on disk."""
    rng = np.random.default_rng(7)
    walk = np.cumsum(rng.normal(scale=0.4, size=2000))
    wrapped = np.mod(40 * walk, 360.0)
    pairs = Transitions(wrapped[:-1], np.diff(wrapped), 1.0)
    expected = np.diff(np.unwrap(wrapped, period=360.0))
    np.testing.assert_allclose(pairs.unwrapped(360.0).dx, expected, atol=1e-9)
    assert pairs.unwrapped(None) is pairs
    assert pairs.unwrapped(400.0) is pairs  # a cell that is wider than the data
    both = Transitions(np.stack([wrapped, walk], 1)[:-1], np.diff(np.stack([wrapped, walk], 1), axis=0), 1.0)
    np.testing.assert_allclose(both.unwrapped((360.0, None)).dx[:, 0], expected, atol=1e-9)
    assert torch.equal(both.unwrapped((360.0, None)).dx[:, 1], both.dx[:, 1])
    file = tmp_path / "angles.npy"
    np.save(file, wrapped)
    stored = Trajectories.from_file(file, dt=1.0, on_disk=tmp_path / "store").transitions()
    assert stored.stored is not None
    found = stored.unwrapped(360.0)
    assert found.stored is not None
    np.testing.assert_allclose(found.dx, expected, atol=1e-9)
    assert torch.equal(found.x, stored.x)


def test_angles_that_were_not_wrapped_stay_as_they_are():
    rng = np.random.default_rng(8)
    walk = np.cumsum(rng.standard_cauchy(3000) * 0.05)
    unwrapped = Transitions(walk[:-1], np.diff(walk), 1.0)
    assert unwrapped.unwrapped(float(np.ptp(walk)) / 3) is unwrapped
    # a series on a line in a cell that just holds it, with jumps across most of it
    inside = np.clip(np.where(rng.random(3000) < 0.02, rng.uniform(0, 1, 3000), 0.5), 0, 1)
    held = Transitions(inside[:-1], np.diff(inside), 1.0)
    assert held.unwrapped(1.0) is held
