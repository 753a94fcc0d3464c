from __future__ import annotations

import pytest
import torch

from levytorch import solve_value
from levytorch.errors import InputError, NumericalError
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
    z = torch.randn((200, 11), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = torch.stack(
        [solve_value(source.moved(source.theta + factor @ row), smooth_reward, 0.7, n_modes=31)(X) for row in z]
    )
    # a standard deviation from 200 draws has a relative error of 1 / sqrt(400) = 5 %
    assert float((drawn.std(0) / V.std(X) - 1).abs().max()) < 4 * 0.05


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


class ConstantDrift:
    """Known coefficients on a wide cell but for the constant drift, whose standard deviation is `sd`."""

    period, origin, dim, alpha, sd = 100.0, 50.0, 1, 0.72, 0.02
    covariance = torch.tensor([[sd**2]], dtype=torch.float64)

    def b(self, x):
        return torch.full_like(x, 0.001)

    def D_o(self, x):
        return torch.full_like(x, 0.01)

    def D_f(self, x):
        return torch.full_like(x, 0.02)

    def jacobian(self, x):
        zero = x.new_zeros((len(x), 1))
        return torch.ones_like(zero), zero, zero, zero


@pytest.mark.parametrize("window", [(95.0, 105.0), (96.2, 102.7)])
@pytest.mark.parametrize("n_modes", [5, 7, 9, 11])
def test_a_constant_drift_moves_a_linear_reward_by_std_over_beta_squared(window, n_modes) -> None:
    """V = r / beta + b r' / beta^2 but for the jumps, at condition numbers of 1e5 to 1e12."""
    beta = 0.3
    try:
        V = solve_value(ConstantDrift(), lambda x: x - 100, beta, window=window, n_modes=n_modes)
    except NumericalError:
        assert n_modes == 11
        return
    inside = torch.linspace(window[0] + 1, window[1] - 1, 9, dtype=torch.float64)
    exact = torch.full_like(inside, ConstantDrift.sd / beta**2)
    torch.testing.assert_close(V.std(inside), exact, rtol=0.02, atol=0)


@pytest.mark.parametrize("reward", [smooth_reward, lambda x: (x - 2.3).abs()])
@pytest.mark.parametrize("n_modes", [5, 7, 9, 11])
def test_linearisation_on_a_short_window(reward, n_modes: int) -> None:
    """Conditions of 4e3 to 1e9; the reward with a kink leaves a residual of per cents, whose derivative matters."""
    source, case = LinearRecovery(alpha_of_x=True), {"window": (2.0, 3.0), "n_modes": n_modes}
    V = solve_value(source, reward, 0.7, **case)
    x = torch.linspace(2.1, 2.9, 9, dtype=torch.float64)
    columns, h = [], 1e-5
    for step in h * torch.eye(11, dtype=torch.float64):
        up, down = (solve_value(source.moved(source.theta + s * step), reward, 0.7, **case) for s in (1, -1))
        columns.append((up(x) - down(x)) / (2 * h))
    G = torch.stack(columns, dim=1)
    expected = torch.einsum("np,pq,nq->n", G, source.covariance, G).sqrt()
    torch.testing.assert_close(V.std(x), expected, rtol=0.03, atol=0)
