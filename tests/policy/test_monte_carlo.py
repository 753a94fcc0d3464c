from __future__ import annotations

import math

import pytest
import torch

from benchmarks.monte_carlo import draw_noise, monte_carlo_value, stable_draw
from levytorch import Dynamics, solve_value
from levytorch.errors import InputError
from tests.policy.problems import smooth, smooth_reward

STARTS = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_increments_have_the_stable_law(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    _, angle, wait = draw_noise(40_000, generator)
    S = stable_draw(alpha, angle, wait)
    for k in (0.5, 1.0, 2.0):
        cosines = torch.cos(k * S)
        error = float(cosines.mean()) - math.exp(-(k ** (2 * alpha)))
        assert abs(error) < 4 * float(cosines.std()) / math.sqrt(40_000)


@pytest.mark.parametrize("alpha", [0.3, "function"])
def test_agrees_with_the_spectral_solution(alpha) -> None:
    d = smooth(0.3 if alpha == 0.3 else (lambda x: 0.5 + 0.3 * torch.cos(x)))
    V = solve_value(d, smooth_reward, 2.0)
    found = monte_carlo_value(d, smooth_reward, 2.0, STARTS, n_paths=4000, dt=0.1, seed=1)
    assert found.truncation < 0.1 * float(found.standard_error.min())
    assert float(((found.V - V(STARTS)) / found.standard_error).abs().max()) < 3.0
    assert float((found.standard_error / found.V).max()) < 0.01  # tight enough to mean something


def test_seed_and_standard_error() -> None:
    d = Dynamics.named("constant")
    first, second = (monte_carlo_value(d, torch.cos, 5.0, 0.0, n_paths=500, dt=0.1, seed=s) for s in (0, 0))
    assert torch.equal(first.V, second.V)
    more = monte_carlo_value(d, torch.cos, 5.0, 0.0, n_paths=8000, dt=0.1, seed=1)
    assert float(first.standard_error / more.standard_error) == pytest.approx(4.0, rel=0.2)


def test_refuses() -> None:
    with pytest.raises(InputError, match="beta"):
        monte_carlo_value(smooth(), 1.0, 0.0, 0.0)
    with pytest.raises(InputError, match="paths"):
        monte_carlo_value(smooth(), 1.0, 1.0, 0.0, n_paths=1)
    with pytest.raises(InputError, match="horizon must be a positive number, found -1"):
        monte_carlo_value(smooth(), 1.0, 1.0, 0.0, horizon=-1.0)
    with pytest.raises(InputError, match="x0"):
        monte_carlo_value(smooth(), 1.0, 1.0, math.nan)
