"""Several steps ahead: calibrated when the model is true, awake when steps depend on each other."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest

from levytorch import Dynamics, LevyStep, Trajectories, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.chain import Chain, follows
from levytorch.diagnostics.predictive import paths_of, windows_of
from levytorch.diagnostics.sample import Region
from levytorch.errors import LevytorchWarning
from tests.diagnostics.problems import TAILS, data_of, paths, quiet, walk
from tests.training.problems import ALPHA, DT, stable


def volatile(seed: int, spread: float = 1.0, n: int = 80, steps: int = 200) -> Trajectories:
    """Stochastic volatility: the logarithm of D_o is autoregressive, 0.97 from step to step, with standard deviation
    `spread`; jumps besides."""
    rng = np.random.default_rng(seed)
    level = spread * rng.standard_normal(n)
    x = np.zeros((n, steps + 1))
    for j in range(steps):
        gauss = np.sqrt(2 * np.exp(level) * DT) * rng.standard_normal(n)
        x[:, j + 1] = x[:, j] + gauss + (0.05 * DT) ** (1 / 1.6) * stable(1.6, n, rng)
        level = 0.97 * level + math.sqrt(1 - 0.97**2) * spread * rng.standard_normal(n)
    return Trajectories.from_arrays(x, dt=DT)


def p_value(seed: int, spread: float) -> float:
    data = volatile(seed, spread).transitions()
    found = quiet(recover, data, alpha="learn", n_basis=1)
    return quiet(diagnose, found, data, checks=("predictive",), seed=seed).predictive.p_value


def test_windows_share_no_pair_and_follow_the_data():
    data = paths("constant", 30, DT, 1).transitions()
    mask = torch.ones(len(data), dtype=torch.bool)
    mask[45::77] = False
    data = data[mask]
    fit = walk()[1]
    chain = Chain.of(fit, data)
    found = windows_of(fit.head, chain, Region(), (1, 3, 10), 1000, torch.Generator().manual_seed(0))
    linked, used = follows(data), torch.zeros(len(data), dtype=torch.int64)
    for k, windows in found.items():
        assert len(windows.x) > 10
        for x, moved in zip(windows.x, windows.moved):
            (row,) = torch.nonzero(data.x == x).reshape(-1)[:1]
            rows = torch.arange(int(row), int(row) + k)
            assert bool(linked[rows[1:]].all())
            assert float(data.dx[rows].sum()) == pytest.approx(float(moved))
            used[rows] += 1
        assert int(used.max()) == 1  # within a length
        used.zero_()


def test_paths_have_the_law_of_the_fit():
    """Constants: a path of k steps is one of k dt, and frozen or followed coefficients are the same."""
    data, found = walk()
    chain = Chain.of(found, data)
    windows = windows_of(found.head, chain, Region(), (10,), 200, torch.Generator().manual_seed(0))[10]
    one_step = found.coefficients(windows.x[:1])
    law = LevyStep(*(float(v) for v in one_step), 10 * DT)
    for substeps in (1, 3):
        moved, kept = paths_of(found.head, windows, Region(), substeps, 10, torch.Generator().manual_seed(1))
        assert bool(kept.all())
        u = law.cdf(moved.reshape(-1))
        assert kstest(u.numpy(), "uniform").pvalue > 1e-3
    moved, kept = paths_of(found.head, windows, Region(inner=8.0), 1, 10, torch.Generator().manual_seed(1))
    beyond = 1 - (1 - float(1 - LevyStep(*(float(v) for v in one_step), DT).cdf(torch.tensor(8.0)).double()) * 2) ** 10
    rate = 1 - float(kept.double().mean())
    assert abs(rate - beyond) < 4 * math.sqrt(beyond / kept.numel()) + 0.01  # the center is not b dt


@pytest.mark.long
def test_volatility_that_comes_and_goes_is_seen_ahead():
    data = volatile(0).transitions()
    found = quiet(recover, data, alpha="learn", n_basis=1)
    with pytest.warns(LevytorchWarning, match="step spread of the fit is"):
        diagnosis = diagnose(found, data)
    assert diagnosis.predictive.p_value < 1e-3
    assert diagnosis.predictive.ratio[10] > 1.1  # heavy steps taken as independent spread too far
    assert "large steps follow large ones" in diagnosis.alarms["step_size"]
    assert "shorter steps" not in str(diagnosis)
    assert "steps depend on the step before" in diagnosis.alarms["misfit"]
    assert diagnosis.metrics()["fit_correlation_sizes"] > 0.05


@pytest.mark.long
def test_noise_of_the_observations_is_told_apart():
    walks = paths("constant", 200, DT, 4).to_array()
    noise = 0.4 * np.random.default_rng(0).standard_normal(walks.shape)
    data = Trajectories.from_arrays(np.where(np.abs(walks) > 1e6, walks, walks + noise), dt=DT).transitions()
    found = quiet(recover, data, alpha=ALPHA, n_basis=1)
    diagnosis = quiet(diagnose, found, data)
    assert "partly undone by the next" in diagnosis.alarms["step_size"]
    assert diagnosis.fit.sign[0] < -0.05


@pytest.mark.parametrize("kind", ["none", "tcf", "TRT"])
def test_lost_tails_raise_no_alarm(kind):
    data = paths("constant", 400, DT, 8).transitions()
    cut = {"tcf": {"CT": 8.0, "drop_tail": 0.5}, "TRT": {"CT": None, "drop_tail": 0.0}}
    data = data if kind == "none" else data.censor(TRT=20.0, **cut[kind])
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
    ahead = quiet(diagnose, found, data, checks=("predictive",)).predictive
    assert ahead.p_value > 1e-3
    assert set(ahead.parts) >= {1, 3, 10}


def test_single_pairs_are_compared_one_step_ahead():
    data = data_of("none", 3000, 5)
    found = recover(data, alpha=ALPHA, n_basis=1)
    ahead = quiet(diagnose, found, data, checks=("predictive",)).predictive
    assert set(ahead.parts) == {1}
    assert ahead.p_value > 1e-3


def test_two_dimensions():
    data = simulate(Dynamics.named("plane"), 100, 40, DT, seed=2).transitions()
    found = quiet(recover, data, alpha=float(Dynamics.named("plane").alpha), n_basis=1)
    ahead = quiet(diagnose, found, data, checks=("predictive",)).predictive
    assert set(ahead.parts) == {1, 3, 10, 30}


@pytest.mark.slow
def test_p_values_are_uniform_when_the_model_is_true():
    p = []
    for seed in range(200):
        data = paths("constant", 100, DT, 3000 + seed).transitions()
        found = recover(data, alpha=ALPHA, n_basis=1)
        p.append(quiet(diagnose, found, data, checks=("predictive",), seed=seed).predictive.p_value)
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (np.array(p) < 0.01).sum() <= binom.ppf(0.999, len(p), 0.01)


@pytest.mark.slow
def test_power_against_stochastic_volatility():
    assert sum(p_value(seed, 1.0) < 1e-3 for seed in range(20)) >= 19
    assert sum(p_value(seed, 0.0) < 1e-3 for seed in range(20)) <= 2


@pytest.mark.long
def test_a_fit_that_wanders_off_does_not_range_like_the_data():
    """Its drift is a fiftieth of the right one: thirty steps hardly differ, a thousand do."""
    system = Dynamics(b=lambda x: -x, D_o=0.3, D_f=0.2, alpha=0.8, period=None)
    data = simulate(system, 6, 1000, 0.05, seed=100, x0=0.0).transitions()
    found = quiet(recover, data, alpha=0.8, period=None, n_basis=4, law="frozen")
    right = quiet(diagnose, found, data, checks=("predictive",)).predictive
    assert right.p_value > 1e-3
    assert (right.range.steps, right.range.stretches) == (1000, 6)
    assert abs(math.log(right.range.ratio)) < 4 * right.range.ratio_std / right.range.ratio
    theta = found.theta
    theta[found.head.part(0)] *= 0.02
    found.head.set_flat(theta)
    found.covariance = 1e-8 * torch.eye(len(theta), dtype=torch.float64)
    with pytest.warns(LevytorchWarning, match=r"over 1000 steps the states of the fit range over \d"):
        loose = diagnose(found, data, checks=("predictive",)).predictive
    assert loose.range.p_value < 1e-3
    assert loose.range.ratio > 2


def test_windows_do_not_begin_at_regular_places():
    """One long run: steps at full hours were all that windows of ten saw."""
    data = simulate(Dynamics.named("constant"), 1, 6000, DT, seed=100).transitions()
    fit = walk()[1]
    chain = Chain.of(fit, data)
    found = windows_of(fit.head, chain, Region(), (1, 3, 10, 30), 480, torch.Generator().manual_seed(0))
    for windows in found.values():
        rows = torch.searchsorted(torch.arange(len(data)), torch.nonzero(torch.isin(data.x, windows.x)).reshape(-1))
        phases = torch.bincount(rows % 10, minlength=10).double()
        assert float(phases.max()) < 0.25 * float(phases.sum())


@pytest.mark.long
def test_errors_of_the_spread_are_of_the_time_that_was_seen():
    """The scale of the steps changes every 600 of them: the spread is known to no more than so many numbers."""
    rng = np.random.default_rng(100)
    scale = np.repeat(np.exp(0.5 * rng.standard_normal(20)), 600)
    x = np.concatenate([[0.0], np.cumsum(0.1 * scale * rng.standard_normal(12_000))])
    data = Trajectories.from_arrays(x, dt=DT).transitions()
    found = quiet(recover, data, alpha=0.8, n_basis=1)
    ahead = quiet(diagnose, found, data, checks=("predictive",)).predictive
    assert ahead.ratio_std[3] / ahead.ratio[3] > 0.5 * 0.5 / math.sqrt(20)
