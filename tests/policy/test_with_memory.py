"""V of a fit with memory: against discounted sums of simulated paths, and V at f = 1 where there is no memory."""

import copy
import math

import numpy as np
import pytest
import torch

from levytorch import Trajectories, recover, solve_value
from levytorch.errors import InputError
from levytorch.policy.with_memory import MemoryValue

BETA, DT = 0.1, 1.0


def track(n, seed):
    """On a circle, with steps whose size clusters: large ones make the next ones larger."""
    rng = np.random.default_rng(seed)
    x, m = np.zeros(n + 1), 1.0
    for i in range(n):
        step = 0.15 * m**0.9 * rng.standard_t(4) + 0.1 * math.sin(x[i])
        x[i + 1] = x[i] + step
        m = 0.9 * m + 0.1 * min(abs(step) / 0.15, 8.0)
    return x


@pytest.fixture(scope="module")
def found():
    settings = {"alpha": 0.7, "tempering": 1.0, "n_basis": 3, "law": "frozen", "engine": "fisher"}
    return recover(track(4000, 1), dt=DT, **settings, memory=6.0)


def with_exponent(found, value):
    again = copy.deepcopy(found)
    with torch.no_grad():
        again.head.theta[again.head.part(again.head.clock_row)] = value
    return again


def reward(x):
    return torch.cos(x) + 0.5 * torch.sin(2 * x)


def sums(found, x0, m0, n=4000):
    """Mean discounted sums of the reward along paths from (x0, m0), with their standard error."""
    steps = round(8 / BETA / DT)
    paths = torch.from_numpy(found.simulate(n, steps, x0=x0, m0=m0, seed=5).to_array())
    r = reward(paths)
    gamma = math.exp(-BETA * DT)
    s = torch.linspace(0, DT, 401, dtype=torch.float64)
    weight = torch.exp(-BETA * s)
    w_1 = float(torch.trapezoid(weight * s / DT, s))
    w_0 = float(torch.trapezoid(weight, s)) - w_1
    total = ((w_0 * r[:, :-1] + w_1 * r[:, 1:]) * gamma ** torch.arange(steps)).sum(1)
    return float(total.mean()), float(total.std()) / math.sqrt(n)


@pytest.mark.long
def test_against_discounted_sums(found):
    V = solve_value(found, reward, BETA)
    assert isinstance(V, MemoryValue)
    assert "mean over m of V(x, m)" in repr(V)
    center = math.exp(found.memory.centers[0])
    values = {}
    for x0, factor in ((0.0, 0.4), (0.0, 2.5), (2.0, 0.4), (2.0, 2.5)):
        values[x0, factor] = float(V.given(factor * center)(x0))
        mean, error = sums(found, x0, factor * center)
        assert abs(values[x0, factor] - mean) < 4 * math.hypot(error, 0.05)  # of a V between -11 and 8
    assert values[0.0, 0.4] - values[0.0, 2.5] > 3  # wild times forget the state sooner


def test_without_an_effect_it_is_v_at_f_1(found):
    """At dt = 1 the chain has a V that differs from that of the process only by its steps."""
    plain = with_exponent(found, 0.0)
    V = solve_value(plain, reward, BETA)
    x = torch.linspace(0, 6, 13, dtype=torch.float64)
    calm, wild = V.given(0.5)(x), V.given(2.0)(x)
    scale = float(V(x).abs().max())
    assert float((calm - wild).abs().max()) < 0.05 * scale
    mean, error = sums(plain, 1.0, 1.0, 2000)
    assert abs(float(V(1.0)) - mean) < 4 * math.hypot(error, 0.05)


def test_it_is_saved(found, tmp_path):
    V = solve_value(found, reward, BETA)
    again = MemoryValue.load(V.save(tmp_path / "V.pt"))
    assert float(again(0.3)) == float(V(0.3))
    assert float(again.given(2.0)(0.3)) == float(V.given(2.0)(0.3))
    assert float(V.std(0.3)) > 0
    with pytest.raises(InputError, match="m must be 1 positive number"):
        V.given([1.0, 2.0])


@pytest.mark.long
def test_on_a_line():
    x = track(3000, 3)
    x = np.cumsum(np.diff(x) - 0.1 * np.sin(x[:-1]))  # its steps alone, pulled home
    home = np.zeros(len(x))
    for i, step in enumerate(np.diff(x)):
        home[i + 1] = 0.95 * home[i] + step
    found = recover(
        Trajectories.from_arrays(home[None], dt=DT), alpha=0.7, tempering=1.0, n_basis=4, period=None, memory=6.0
    )
    V = solve_value(found, torch.tanh, BETA)
    low, high = V.window
    assert isinstance(V, MemoryValue)
    assert float(V(high)) > 0 > float(V(low))
    assert float(V.given(0.4)(high)) > float(V.given(2.5)(high))  # calm times stay where the reward is high
    assert torch.isfinite(V.std(torch.linspace(low, high, 9))).all()
