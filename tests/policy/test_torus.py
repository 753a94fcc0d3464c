"""V on tori of two and three circles with a matrix D_o: manufactured solutions, errors, Monte Carlo, files."""

import math

import pytest
import torch

from levytorch import Dynamics, Recovery, simulate, solve_value
from levytorch.coefficients import FourierHead
from levytorch.policy.value import ValueFunction

WAVES = torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 1.0], [2.0, -1.0, 0.0]], dtype=torch.float64)
SIZES = (1.0, -0.5, 0.3)


def matrix(x):
    """L L^T with entries that depend on the state."""
    d = x.shape[-1]
    rows = [
        torch.exp(0.2 * torch.sin(x[..., i])) if i == j else 0.4 * torch.cos(x[..., j] + i) * (j < i)
        for i in range(d)
        for j in range(d)
    ]
    L = torch.stack(rows, dim=-1).unflatten(-1, (d, d))
    return L @ L.mT


def system(d: int, tempering: float = 0.0) -> Dynamics:
    return Dynamics(
        lambda x: torch.sin(x.roll(1, -1)), matrix, lambda x: 1 + 0.5 * torch.cos(x[..., 0]), 0.6, dim=d,
        tempering=tempering,
    )  # fmt: skip


def manufactured(dynamics: Dynamics, beta: float):
    """V, a sum of three waves, and its reward, both in closed form."""
    K, lam, alpha = WAVES[:, : dynamics.dim], dynamics.tempering, 0.6

    def V(x):
        return sum(a * torch.cos(x @ k + 0.3) for a, k in zip(SIZES, K))

    def reward(x):
        b, D_o, D_f = dynamics.b(x), dynamics.D_o(x), dynamics.D_f(x)
        out = beta * V(x)
        for a, k in zip(SIZES, K):
            cos, sin = torch.cos(x @ k + 0.3), torch.sin(x @ k + 0.3)
            psi = (lam**2 + k @ k) ** alpha - lam ** (2 * alpha)
            out = out + a * ((b @ k) * sin + ((D_o @ k) @ k) * cos + D_f * psi * cos)
        return out

    return V, reward


@pytest.mark.parametrize(("d", "n_modes", "tempering"), [(2, 24, 0.0), (2, 24, 1.0), (3, 20, 0.0), (3, 20, 0.7)])
def test_manufactured(d, n_modes, tempering):
    dynamics = system(d, tempering)
    V, reward = manufactured(dynamics, 0.5)
    found = solve_value(dynamics, reward, 0.5, n_modes=n_modes)
    x = 7 * torch.randn((200, d), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(found(x), V(x), rtol=0, atol=1e-8)
    slope = torch.autograd.functional.jacobian(lambda at: V(at).sum(), x[:5])
    torch.testing.assert_close(found.gradient(x[:5]), slope, rtol=0, atol=1e-7)


def test_refined_in_space_and_saved(tmp_path):
    dynamics = system(3)
    V, reward = manufactured(dynamics, 1.0)
    found = solve_value(dynamics, reward, 1.0)
    assert found.converged
    again = ValueFunction.load(found.save(tmp_path / "V.pt"))
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert float(again(x)) == float(found(x))
    assert abs(float(found(x) - V(x))) < 1e-6
    assert float(found.derivative(x, (0, 1, 0))) == pytest.approx(float(found.gradient(x)[1]), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["diagonal", "matrix"])
def test_errors_are_derivatives_in_the_parameters(noise):
    """cov(V) = dV cov(theta) dV^T with dV by differences."""
    torch.manual_seed(0)
    head = FourierHead(3, dim=2, noise=noise)
    head.set_flat(head.flat() + 0.1 * torch.randn(head.flat().shape, dtype=torch.float64))
    P = head.flat().numel()
    found = Recovery(head, covariance=torch.eye(P, dtype=torch.float64))
    x = torch.tensor([[1.0, 2.0], [4.0, 0.5]], dtype=torch.float64)

    def reward(at):
        return torch.cos(at[..., 0]) + torch.sin(at[..., 1])

    def V():
        return solve_value(Recovery(head), reward, 1.0, n_modes=24)(x)

    start, h, slopes = head.flat(), 1e-4, []
    for p in range(P):
        ends = []
        for sign in (1, -1):
            moved = start.clone()
            moved[p] += sign * h
            head.set_flat(moved)
            ends.append(V())
        slopes.append((ends[0] - ends[1]) / (2 * h))
    head.set_flat(start)
    expected = torch.stack(slopes, dim=-1).norm(dim=-1)
    torch.testing.assert_close(solve_value(found, reward, 1.0, n_modes=24).std(x), expected, rtol=1e-4, atol=0)


@pytest.mark.slow
def test_monte_carlo():
    """V at a state is the mean discounted reward of simulated paths."""
    dynamics, beta, horizon, steps = system(3), 1.0, 12.0, 240
    x0 = [0.5, 1.0, 2.0]
    V = solve_value(dynamics, lambda x: 2 + torch.cos(x[..., 0]) * torch.sin(x[..., 1]) + torch.cos(x[..., 2]), beta)
    x = torch.from_numpy(simulate(dynamics, 20_000, steps, horizon / steps, x0=x0, seed=1, order=2).to_array())
    r = 2 + torch.cos(x[..., 0]) * torch.sin(x[..., 1]) + torch.cos(x[..., 2])
    t = torch.linspace(0, horizon, steps + 1, dtype=torch.float64)
    paths = torch.trapezoid(torch.exp(-beta * t) * r, t, dim=1)
    error = float(paths.std()) / math.sqrt(len(paths))
    assert error < 0.003 * abs(float(V(x0)))
    assert abs(float(paths.mean()) - float(V(x0))) < 3 * error + 3 * math.exp(-beta * horizon) + 1e-3
