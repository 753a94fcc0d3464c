"""V.std against the truth: recoveries from independent data, each with its own 95 % band."""

from __future__ import annotations

import math

import pytest
import torch

from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.policy.rewards import CosinePower, Manufactured

X = torch.linspace(0.0, 2 * math.pi, 101, dtype=torch.float64)[:-1]


def replicas(n: int, n_trajectories: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(V - truth) and std at X, (n, len(X)) each."""
    truth = Dynamics.named("constant")
    reward = Manufactured(CosinePower(), truth, 0.1)
    errors, stds = [], []
    for seed in range(n):
        data = simulate(truth, n_trajectories, 40, 1 / 40, substeps=1, seed=seed).transitions()
        V = solve_value(recover(data, alpha=0.3, n_basis=1), reward, 0.1, n_modes=33)
        errors.append(V(X) - CosinePower()(X))
        stds.append(V.std(X))
    return torch.stack(errors), torch.stack(stds)


@pytest.mark.long
def test_std_is_the_spread_over_independent_data() -> None:
    errors, stds = replicas(12, 200)
    rms = errors.square().mean().sqrt() / stds.square().mean().sqrt()
    # 12 replicas of three parameters: chi-square with about 36 degrees of freedom, sd of the ratio 1 / sqrt(72)
    assert abs(float(rms) - 1) < 4 / math.sqrt(72)


@pytest.mark.slow
def test_95_percent_band_covers_the_truth() -> None:
    errors, stds = replicas(100, 1000)
    covered = (errors.abs() <= 1.96 * stds).to(torch.float64)
    assert 0.90 <= float(covered.mean()) <= 0.99
