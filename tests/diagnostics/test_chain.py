"""Pairs that follow each other: angles that were wrapped, and data with a modulation."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Trajectories, Transitions, diagnose, recover, simulate
from levytorch.diagnostics.chain import Chain, follows
from levytorch.errors import LevytorchWarning
from tests.diagnostics.problems import quiet
from tests.training.problems import stable

CIRCLE = Dynamics(
    b=lambda x: 1.5 * torch.sin(x),
    D_o=lambda x: 1.0 + 0.3 * torch.cos(x),
    D_f=lambda x: 0.4 + 0.1 * torch.sin(x),
    alpha=0.7,
)


@pytest.fixture(scope="module")
def angles():
    """The same pairs with x as simulated, and with x in [0, 2 pi)."""
    data = simulate(CIRCLE, 100, 150, 1 / 20, seed=3).transitions()
    wrapped = Transitions(torch.remainder(data.x, 2 * math.pi), data.dx, data.dt, trajectory=data.trajectory)
    return data, wrapped


@pytest.mark.long
def test_wrapped_angles_are_the_same_data(angles):
    data, _ = angles
    found = quiet(recover, data, alpha=0.7, n_basis=5, law="frozen")
    pairs = [Chain.of(found, each) for each in angles]
    assert int(follows(data).sum()) == len(data) - 100
    assert torch.equal(*(follows(each) for each in pairs))
    straight, folded = (quiet(diagnose, found, each, checks=("step_size", "predictive")) for each in angles)
    assert folded.step_size.p_value == pytest.approx(straight.step_size.p_value, rel=1e-3)
    assert set(folded.predictive.parts) == {1, 3, 10, 30}
    assert folded.predictive.windows == straight.predictive.windows
    assert folded.predictive.p_value > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("turn", [2 * math.pi, 360.0])
def test_a_series_of_wrapped_angles(turn):
    """Its displacements are those of the angles without whole turns; a step across the seam is no jump."""
    unit = turn / (2 * math.pi)
    walks = simulate(CIRCLE, 50, 150, 1 / 20, seed=5).to_array() * unit
    straight, folded = (Trajectories.from_arrays(x, dt=1 / 20).transitions() for x in (walks, walks % turn))
    options = {"alpha": 0.7, "n_basis": 5, "law": "frozen", "period": turn}
    first = quiet(recover, straight, **options)
    with pytest.warns(LevytorchWarning, match="displacements are taken the short way round"):
        second = recover(folded, **options)
    x = first.head.grid(16)
    assert bool(((second.D_f(x) - first.D_f(x)).abs() < 0.5 * first.std(x)[2]).all())
    assert bool(((second.D_o(x) - first.D_o(x)).abs() < 0.5 * first.std(x)[1]).all())
    checks = ("fit", "predictive", "step_size")
    unwrapped, wrapped = quiet(diagnose, first, straight, checks=checks), quiet(diagnose, second, folded, checks=checks)
    assert set(wrapped.alarms) == set(unwrapped.alarms) <= {"step_size"}  # the frozen law is off by some errors here
    assert wrapped.predictive.p_value > 1e-3


def test_a_missing_pair_breaks_the_chain(angles):
    _, wrapped = angles
    found = quiet(recover, wrapped, alpha=0.7, n_basis=1, law="frozen")
    keep = torch.ones(len(wrapped), dtype=torch.bool)
    keep[5::40] = False
    links = follows(Chain.of(found, wrapped[keep]))
    assert int((~links).sum()) == 100 + int((~keep).sum())


def volatile_day(seed: int, n: int, memory: float) -> Trajectories:
    """One long walk whose D_o and D_f vary over a day of 48 steps, with a volatility of its own that has a memory."""
    rng = np.random.default_rng(seed)
    dt, hour = 0.05, np.arange(n) % 48 / 2
    m = np.exp(0.7 * np.sin(2 * np.pi * hour / 24))
    level = np.zeros(n)
    for j in range(1, n):
        level[j] = 0.97 * level[j - 1] + math.sqrt(1 - 0.97**2) * memory * rng.standard_normal()
    m = m * np.exp(level)
    dx = (
        0.4 * dt
        + np.sqrt(2 * 0.5 * m * dt) * rng.standard_normal(n)
        + (0.2 * m * dt) ** (1 / 1.4) * stable(1.4, n, rng)
    )
    x = np.concatenate([[0.0], np.cumsum(dx)])
    return Trajectories.from_arrays(x[None], dt=dt, action=np.append(hour, n % 48 / 2)[None])


def checked(memory: float):
    data = volatile_day(1, 12_000, memory).transitions()
    found = quiet(recover, data, alpha=0.7, n_basis=1, modulation=24.0, n_modulation=5)
    return quiet(diagnose, found, data, checks=("fit", "predictive", "step_size"))


@pytest.mark.long
def test_modulated_pairs_follow_each_other():
    found = checked(0.0)
    assert {1, 3, 10, 30} <= set(found.predictive.parts)
    assert found.predictive.p_value > 1e-3
    assert found.step_size.p_value > 1e-3
    assert found.fit.sign is not None


@pytest.mark.long
def test_a_misfit_beside_a_modulation_raises_an_alarm():
    found = checked(1.0)
    assert {"predictive", "misfit"} <= set(found.alarms)
