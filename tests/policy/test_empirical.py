from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from levytorch import Dynamics, Trajectories, simulate, solve_value
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy.empirical import (
    crl_baseline,
    empirical_values,
    reference_curve,
    trivial_baseline,
)
from levytorch.policy.reference import relative_l2
from levytorch.policy.rewards import CosinePower
from levytorch.spaces.basis import FourierBasis


def series(n: int = 500, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).normal(size=n))


def by_definition(x: np.ndarray, dt: float, beta: float, n_terms: int) -> np.ndarray:
    """Section 4.3, term by term: dt sum_j exp(-beta j dt) r(x_{i+j})."""
    discount = np.exp(-beta * dt * np.arange(n_terms))
    return np.array([dt * discount @ np.cos(x[i : i + n_terms]) for i in range(len(x) - n_terms + 1)])


@pytest.mark.parametrize("beta", [0.01, 0.3, 40.0])
@pytest.mark.parametrize("n_terms", [1, 2, 77, 500])
def test_even_sampling_is_the_papers_sum(beta: float, n_terms: int) -> None:
    x = series()
    found = empirical_values(x, torch.cos, beta, dt=1 / 20, n_terms=n_terms)
    np.testing.assert_allclose(found.V.numpy(), by_definition(x, 1 / 20, beta, n_terms), rtol=1e-9, atol=1e-13)
    assert torch.equal(found.number, torch.arange(500 - n_terms + 1))
    assert torch.equal(found.x, torch.from_numpy(x[: 500 - n_terms + 1]))


def test_long_series_neither_overflow_nor_lose_digits() -> None:
    """beta T = 40,000: one factor exp(beta t) for the whole series would overflow."""
    x = series(20_000)
    found = empirical_values(x, torch.cos, 40.0, dt=1 / 20, n_terms=30)
    np.testing.assert_allclose(found.V.numpy(), by_definition(x, 1 / 20, 40.0, 30), rtol=1e-9, atol=1e-12)


def test_uneven_sampling_integrates_a_held_reward_exactly() -> None:
    rng = np.random.default_rng(1)
    t = np.cumsum(rng.exponential(0.3, 300))
    x = series(300)
    beta, horizon = 0.5, 20.0
    found = empirical_values(x, torch.cos, beta, times=t, horizon=horizon)
    for i in (0, 17, int(found.number[-1])):
        inside = np.flatnonzero((t >= t[i]) & (t <= t[i] + horizon))
        steps = t[inside + 1] - t[inside]
        weights = -np.expm1(-beta * steps) / beta * np.exp(-beta * (t[inside] - t[i]))
        assert float(found.V[i]) == pytest.approx(float(weights @ np.cos(x[inside])), rel=1e-9)
    assert bool((torch.from_numpy(t)[found.number] + horizon <= t[-1] + 1e-9).all())


def test_uneven_sampling_of_a_constant_reward_is_its_integral() -> None:
    t = np.cumsum(np.random.default_rng(2).exponential(1.0, 5000))
    found = empirical_values(series(5000), 2.0, 0.5, times=t)
    # nothing but the truncation at exp(-beta horizon) = 1e-12 is lost
    np.testing.assert_allclose(found.V.numpy(), 2.0 / 0.5, rtol=1e-10)


@pytest.mark.parametrize("beta", [1e-5, 0.5, 3.0])
def test_a_linear_reward_is_integrated_exactly(beta: float) -> None:
    t = np.cumsum(np.random.default_rng(3).uniform(0.5, 2.0, 400))
    found = empirical_values(t, lambda x: x, beta, times=t, horizon=40.0, linear=True)
    for i in (0, 50, int(found.number[-1]) - 2):
        h = t[np.searchsorted(t, t[i] + 40.0, side="right")] - t[i]  # the step in which the horizon ends is complete
        exact = quad(lambda s, i=i: math.exp(-beta * s) * (t[i] + s), 0.0, h, epsabs=0.0, epsrel=1e-11, limit=200)[0]
        assert float(found.V[i]) == pytest.approx(exact, rel=1e-8)


def test_long_steps_are_warned_of_and_mended_by_a_linear_reward() -> None:
    """cos is an eigenfunction: V(0) = 1 / (1 + 0.5 + 0.3), and steps of 0.5 to 2 at beta = 1."""
    rng = np.random.default_rng(4)
    t = np.cumsum(rng.uniform(0.5, 2.0, 40_000))
    even = simulate(Dynamics(b=0.0, D_o=0.5, D_f=0.3, alpha=0.6), 1, 200_000, 0.25, substeps=1, seed=1).x.reshape(-1)
    at = np.unique(np.round(t[t < 49_000] / 0.25).astype(int))
    x, times = np.asarray(even)[at], 0.25 * at
    with pytest.warns(
        LevytorchWarning, match=r"found beta \* dt = 1\.2.*rate beta becomes 5\d% too large.*linear=True"
    ):
        held = empirical_values(x, torch.cos, 1.0, times=times)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear = empirical_values(x, torch.cos, 1.0, times=times, linear=True)
        empirical_values(x, torch.cos, 0.05, times=times)
    with pytest.warns(LevytorchWarning, match="a constant reward becomes 13% too large"):
        left = empirical_values(x, 2.0, 1.0, dt=0.25, horizon=40.0)
    assert float(left.V[0]) == pytest.approx(1.13 * 2.0, rel=0.005)  # and so it does
    truth, zero = 1 / 1.8, torch.zeros(1, dtype=torch.float64)
    assert float(reference_curve(held, FourierBasis(3))(zero)) > 1.35 * truth
    assert float(reference_curve(linear, FourierBasis(3))(zero)) == pytest.approx(truth, rel=0.1)


def test_gaps_end_a_trajectory() -> None:
    x = series(200)
    t = 0.1 * np.arange(200.0)
    t[100:] += 60.0
    held = empirical_values(x, torch.cos, 1.0, times=t, horizon=2.0)
    cut = empirical_values(x, torch.cos, 1.0, times=t, horizon=2.0, max_gap=1.0)
    halves = [by_definition(part, 0.1, 1.0, 21) for part in (x[:100], x[100:])]
    np.testing.assert_allclose(cut.V.numpy(), np.concatenate(halves), rtol=1e-9)
    assert cut.number.tolist() == [*range(80), *range(100, 180)]
    assert len(held.V) > len(cut.V)


def test_trajectories_partial_sums_and_refusals() -> None:
    data = Trajectories.from_arrays([series(50, 1), series(80, 2)], dt=0.5)
    found = empirical_values(data, torch.cos, 1.0, n_terms=60)
    assert found.number.tolist() == list(range(50, 71))
    everything = empirical_values(data, torch.cos, 1.0, n_terms=60, partial=True)
    assert len(everything.V) == 130
    with pytest.raises(InputError, match=r"must last longer than the horizon .*, found 39\.5 at most"):
        empirical_values(data, torch.cos, 1.0, n_terms=100)
    with pytest.raises(InputError, match="both"):
        empirical_values(data, torch.cos, 1.0, n_terms=10, horizon=1.0)
    with pytest.raises(InputError, match="dt or times"):
        empirical_values(series(), torch.cos, 1.0)
    with pytest.raises(InputError, match="beta"):
        empirical_values(data, torch.cos, 0.0)
    with pytest.raises(InputError, match="dt must be a positive number, found 'day'"):
        empirical_values([0.0, 1.0], torch.cos, 1.0, dt="day")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"x\[0\] must be numeric"):
        empirical_values(["a", "b"], torch.cos, 1.0, dt=1.0)
    with pytest.raises(InputError, match="times must increase"):
        empirical_values(series(3), torch.cos, 1.0, times=np.array([0.0, 2.0, 1.0]))
    with pytest.raises(InputError, match="uneven"):
        empirical_values(series(4), torch.cos, 1.0, times=np.array([0.0, 1.0, 3.0, 4.0]), n_terms=2)
    with pytest.raises(InputError, match="finite"):
        empirical_values(data, lambda x: x * math.nan, 1.0, n_terms=10)


@pytest.mark.long
def test_reference_of_a_long_trajectory_is_the_value_function() -> None:
    """E V~(x) = V(x): the fit to one long trajectory agrees with the spectral solution of the system it came from."""
    d = Dynamics(b=lambda x: -torch.sin(x), D_o=1.0, D_f=0.5, alpha=0.7)
    path = simulate(d, 1, 60_000, 0.02, substeps=1, seed=3)
    values = empirical_values(path, torch.cos, 2.0)
    reference = reference_curve(values, FourierBasis(5))
    x = torch.linspace(0.0, 2 * math.pi, 50, dtype=torch.float64)
    V = solve_value(d, torch.cos, 2.0)
    # 1200 time units, values that forget within about one: some 1000 independent values of sd 0.2 among 5 functions
    assert float((reference(x) - V(x)).abs().max()) < 4 * 0.2 * math.sqrt(5 / 1000)


def test_crl_sees_only_what_was_observed() -> None:
    x = 3.0 * np.sin(0.01 * np.arange(3000))
    values = empirical_values(x, torch.cos, 1.0, dt=0.1, n_terms=100)
    basis = FourierBasis(5)
    some = crl_baseline(values, basis, torch.arange(0, 2000, 2))
    chosen = values.x[:2000:2], values.V[:2000:2]
    expected = np.linalg.lstsq(basis.matrix(chosen[0]).numpy(), chosen[1].numpy(), rcond=None)[0]
    np.testing.assert_allclose(some.coefficients.numpy(), expected, rtol=1e-6, atol=1e-9)
    whole = crl_baseline(values, basis)
    assert torch.equal(whole.coefficients, reference_curve(values, basis).coefficients)
    with pytest.raises(InputError, match="some of the observed transitions must have an empirical value"):
        crl_baseline(values, basis, torch.tensor([2999]))


def test_trivial_baseline() -> None:
    assert float(trivial_baseline(torch.cos, 0.25)(0.0)) == 4.0


BTC = Path(__file__).parents[3] / "shared" / "data" / "btc_3min.parquet"


@pytest.mark.skipif(not BTC.is_file(), reason="the price series is not here")
def test_prices_hardly_move_within_the_discount_time() -> None:
    """Section 4.3 on BTC: r / beta is within 0.7 % of the empirical reference (measured independently)."""
    options = {"value": "open", "time": "timestamp", "time_in": "s", "time_unit": "h"}
    prices = Trajectories.from_file(BTC, **options)
    reward = CosinePower(power=3, frequency=1, shift=-128_000.0, period=256_000.0)
    values = empirical_values(prices, reward, 0.3, n_terms=3001)
    assert len(values.V) == len(prices.x) - 3000
    reference = reference_curve(values, FourierBasis(11, 256_000.0, -128_000.0))
    low, high = float(values.x.min()), float(values.x.max())
    assert 0.005 < relative_l2(trivial_baseline(reward, 0.3), reference, low, high) < 0.008


def test_rounding_makes_no_gaps() -> None:
    """Times every 180 s in hours: differences of 0.05 and 0.05000000000000027, and max_dt = 0.05."""
    t = np.arange(2000) * 180.0 / 3600
    x = np.random.default_rng(0).normal(size=2000).cumsum()
    paths = Trajectories.from_arrays(x, times=t, max_dt=0.05)
    assert len(paths.transitions()) == 1999
    assert len(empirical_values(paths, torch.cos, 1.0, horizon=5.0).x) == 2000 - 100


@pytest.fixture
def with_gaps() -> Trajectories:
    """60 observations at steps of 1/20, but for 7 after the 20th and 0.4 after the 45th."""
    steps = np.full(59, 1 / 20)
    steps[19], steps[44] = 7.0, 0.4
    times = np.concatenate([[0.0], np.cumsum(steps)])
    return Trajectories.from_arrays(series(60)[None], times=times, max_dt=1 / 20)


def test_skipped_gaps_are_the_papers_sum_over_rows(with_gaps: Trajectories) -> None:
    """No stretch between gaps is as long as the sum; over the rows, as the paper writes it, there are 21 values."""
    x = with_gaps.x
    found = empirical_values(with_gaps, torch.cos, 0.3, n_terms=40, gaps="skip")
    np.testing.assert_allclose(found.V.numpy(), by_definition(x, 1 / 20, 0.3, 40), rtol=1e-9)
    assert torch.equal(found.number, torch.arange(21))
    with pytest.raises(
        InputError,
        match=r"without a gap must last longer than the horizon .*, found 1\.2 at most; .* gaps hold or skip",
    ):
        empirical_values(with_gaps, torch.cos, 0.3, n_terms=40)


def test_held_gaps_keep_their_length(with_gaps: Trajectories) -> None:
    """The integral of the held reward, discounted at the times as they are: piece by piece."""
    t, r = with_gaps.times, np.cos(with_gaps.x)
    beta, horizon = 0.3, 39 / 20
    found = empirical_values(with_gaps, torch.cos, beta, n_terms=40, gaps="hold")
    for i, V in zip(found.number.tolist(), found.V.tolist()):
        inside = np.flatnonzero((t >= t[i]) & (t <= t[i] + horizon + 1e-9))
        ends = np.append(t[1:], t[-1] + 1 / 20)[inside]
        weights = (np.exp(-beta * (t[inside] - t[i])) - np.exp(-beta * (ends - t[i]))) / beta
        assert pytest.approx(weights @ r[inside], rel=1e-9) == V
    assert len(found.number) > 10


def test_gaps_say_nothing_where_there_are_none() -> None:
    x = series()
    plain = empirical_values(x, torch.cos, 0.3, dt=1 / 20, n_terms=50)
    for gaps in ("end", "hold", "skip"):
        found = empirical_values(x, torch.cos, 0.3, dt=1 / 20, n_terms=50, max_gap=1 / 20, gaps=gaps)
        torch.testing.assert_close(found.V, plain.V, rtol=1e-12, atol=0)
    with pytest.raises(InputError, match="end, hold, skip"):
        empirical_values(x, torch.cos, 0.3, dt=1 / 20, n_terms=50, gaps="bridge")
