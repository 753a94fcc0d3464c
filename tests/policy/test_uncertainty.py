from __future__ import annotations

import pytest
import torch

from levytorch import solve_value
from levytorch.errors import InputError
from tests.policy.problems import LinearRecovery, smooth_reward

X = torch.linspace(1.2, 4.8, 40, dtype=torch.float64)
CASES = [
    {"window": None, "n_modes": 31},
    {"window": (1.0, 5.0), "n_modes": 9},  # so few modes that the residual, and its own derivative, matter
    {"window": (1.0, 5.0), "n_modes": 17},
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alpha_of_x", [False, True])
def test_linearisation_is_exact(case: dict, alpha_of_x: bool) -> None:
    """std(x)^2 = g^T cov g with g = dV/dtheta by central differences of the whole solve."""
    source = LinearRecovery(alpha_of_x=alpha_of_x)
    V = solve_value(source, smooth_reward, 0.7, **case)
    h, columns = 1e-5, []
    for p in range(11):
        step = torch.zeros(11, dtype=torch.float64)
        step[p] = h
        up, down = (solve_value(source.moved(source.theta + s * step), smooth_reward, 0.7, **case) for s in (1, -1))
        columns.append((up(X) - down(X)) / (2 * h))
    G = torch.stack(columns, dim=1)
    expected = torch.einsum("np,pq,nq->n", G, source.covariance, G).sqrt()
    torch.testing.assert_close(V.std(X), expected, rtol=1e-5, atol=0)


def test_std_is_the_spread_of_solutions_with_drawn_parameters() -> None:
    source = LinearRecovery(sd=0.005)
    V = solve_value(source, smooth_reward, 0.7, n_modes=31)
    factor = torch.linalg.cholesky(source.covariance)
    z = torch.randn((400, 11), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = torch.stack(
        [solve_value(source.moved(source.theta + factor @ row), smooth_reward, 0.7, n_modes=31)(X) for row in z]
    )
    # a standard deviation from 400 draws has a relative error of 1 / sqrt(800) = 3.5 %
    assert float((drawn.std(0) / V.std(X) - 1).abs().max()) < 4 * 0.036


def test_std_of_derivatives_and_after_loading(tmp_path) -> None:
    V = solve_value(LinearRecovery(), smooth_reward, 0.7, n_modes=31)
    W = type(V).load(V.save(tmp_path / "V.pt"))
    assert torch.equal(V.std(X, order=1), W.std(X, order=1))
    h = 1e-4  # cov of V' from cov of V at two points: the factor S says it all
    S = (V.basis.matrix(X + h) - V.basis.matrix(X - h)) @ V.covariance_factor / (2 * h)
    torch.testing.assert_close(V.std(X, order=1), S.norm(dim=1), rtol=1e-6, atol=0)


def test_parameters_that_are_known_add_nothing() -> None:
    source = LinearRecovery()
    source.covariance = torch.zeros_like(source.covariance)
    assert float(solve_value(source, smooth_reward, 0.7).std(X).max()) == 0.0


def test_without_a_covariance_there_is_no_std() -> None:
    source = LinearRecovery()
    source.covariance = None
    with pytest.raises(InputError, match="covariance"):
        solve_value(source, smooth_reward, 0.7).std(X)


def test_a_broken_covariance_is_refused() -> None:
    source = LinearRecovery()
    source.covariance = torch.full((11, 11), torch.nan)
    with pytest.raises(InputError, match="finite square matrix"):
        solve_value(source, smooth_reward, 0.7)
