"""V on a torus against manufactured and closed-form solutions, at points off the grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, LevytorchWarning, solve_value
from levytorch.errors import NumericalError
from levytorch.law.jumps import jumps_of
from levytorch.policy import ValueFunction
from levytorch.spaces import Circle, Product
from levytorch.spaces.torus import TorusOperator

PERIOD = (2 * math.pi, 5.0)
W = 2 * math.pi / 5.0
BETA = 0.1


def system(alpha=0.3) -> Dynamics:
    def b(x):
        u, v = x[..., 0], W * x[..., 1]
        return torch.stack([torch.sin(u) + torch.cos(v), 1 + 0.5 * torch.cos(u)], -1)

    return Dynamics(
        b,
        lambda x: torch.exp(torch.sin(x[..., 0] + 1) * torch.cos(W * x[..., 1])),
        lambda x: 2 + torch.sin(x[..., 0]) * torch.sin(W * x[..., 1]),
        alpha,
        period=PERIOD,
        dim=2,
        origin=(0.5, -1.0),
    )


def V(x):
    return torch.cos(x[..., 0]) ** 3 * torch.sin(W * x[..., 1])


def reward(dynamics):
    """beta V - L V in closed form: cos^3 u = (3 cos u + cos 3u) / 4."""

    def r(x):
        u, v = x[..., 0], W * x[..., 1]
        alpha, b = dynamics.alpha_at(x), dynamics.b(x)
        out = torch.zeros_like(u)
        for a, m in ((0.75, 1), (0.25, 3)):
            square = m * m + W * W
            f = a * torch.cos(m * u) * torch.sin(v)
            out += BETA * f + dynamics.D_o(x) * square * f + dynamics.D_f(x) * square**alpha * f
            out += b[..., 0] * a * m * torch.sin(m * u) * torch.sin(v) - b[..., 1] * a * W * torch.cos(
                m * u
            ) * torch.cos(v)
        return out

    return r


@pytest.fixture
def anywhere():
    generator = torch.Generator().manual_seed(0)
    return 60 * torch.rand(500, 2, generator=generator, dtype=torch.float64) - 30


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, lambda x: 0.4 + 0.2 * torch.sin(x[..., 0])])
@pytest.mark.parametrize("n_modes", [None, 33, 48])
def test_manufactured_solution(alpha, n_modes, anywhere):
    dynamics = system(alpha)
    found = solve_value(dynamics, reward(dynamics), BETA, n_modes=n_modes)
    assert isinstance(found, ValueFunction)
    # 1e-8 is asked for; these systems are solved to rounding
    assert float((found(anywhere) - V(anywhere)).abs().max()) < 1e-11
    assert found.residual < 1e-9
    assert found.converged


def test_gradient_against_closed_form(anywhere):
    dynamics = system()
    found = solve_value(dynamics, reward(dynamics), BETA, n_modes=40)
    u, v = anywhere[:, 0], W * anywhere[:, 1]
    truth = torch.stack(
        [-3 * torch.cos(u) ** 2 * torch.sin(u) * torch.sin(v), W * torch.cos(u) ** 3 * torch.cos(v)], -1
    )
    torch.testing.assert_close(found.gradient(anywhere), truth, rtol=0, atol=1e-10)


def test_one_coordinate_alone_agrees_with_the_line():
    line = Dynamics.named("asymptotic", alpha=0.4)
    plane = Dynamics(
        lambda x: torch.stack([line.b(x[..., 0]), torch.full_like(x[..., 1], 0.7)], -1),
        lambda x: line.D_o(x[..., 0]),
        lambda x: line.D_f(x[..., 0]),
        0.4,
        dim=2,
    )
    one = solve_value(line, torch.cos, 0.5, n_modes=64)
    two = solve_value(plane, lambda x: torch.cos(x[..., 0]), 0.5, n_modes=64)
    x = torch.rand(100, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 6
    torch.testing.assert_close(two(x), one(x[:, 0]), rtol=1e-9, atol=1e-9)


def test_constant_reward_and_zero_reward():
    plane = Dynamics.named("plane")
    x = torch.tensor([[0.3, 1.0], [1e9, -2e8]], dtype=torch.float64)
    assert solve_value(plane, 2.0, 0.5, n_modes=16)(x).tolist() == pytest.approx([4.0, 4.0], abs=1e-11)
    assert solve_value(plane, 0.0, 0.5, n_modes=16)(x).tolist() == [0.0, 0.0]


def test_resolution_grows_with_the_reward():
    plane = Dynamics.named("plane")
    smooth = solve_value(plane, lambda x: torch.cos(x[..., 0]), 0.5)
    sharp = solve_value(plane, lambda x: torch.exp(40 * torch.cos(x[..., 0] - x[..., 1]) - 40), 0.5)
    assert smooth.n_modes < sharp.n_modes
    assert sharp.converged
    assert sharp.change < 1e-6
    with pytest.warns(LevytorchWarning, match="still changes"):
        solve_value(plane, lambda x: torch.exp(40 * torch.cos(x[..., 0] - x[..., 1]) - 40), 0.5, max_modes=32)


def test_fractional_laplacian_with_alpha_of_x():
    operator = TorusOperator(Product((Circle(), Circle())), 24, jumps_of(0.0))
    x = operator.cell.grid(24, 0.0).numpy()
    f = np.cos(2 * x[..., 0] + 3 * x[..., 1])
    alpha = 0.5 + 0.45 * np.sin(x[..., 0])
    np.testing.assert_allclose(operator.fractional(operator.forward(f), alpha), 13**alpha * f, atol=1e-11)


def test_saved_and_loaded(tmp_path, anywhere):
    dynamics = system()
    found = solve_value(dynamics, reward(dynamics), BETA, n_modes=20)
    again = ValueFunction.load(found.save(tmp_path / "value.pt"))
    assert torch.equal(again(anywhere), found(anywhere))
    assert (again.period, again.origin, again.beta) == (found.period, found.origin, found.beta)
    (tmp_path / "other.pt").write_bytes(b"not a value function")
    with pytest.raises(InputError, match="must be a value function"):
        ValueFunction.load(tmp_path / "other.pt")
    with pytest.raises(InputError, match="no such file"):
        ValueFunction.load(tmp_path / "absent.pt")


def test_shapes_of_calls(anywhere):
    plane = Dynamics.named("plane")
    found = solve_value(plane, lambda x: torch.sin(x[..., 1]), 0.5, n_modes=16)
    assert found([0.1, 0.2]).shape == ()
    assert found(anywhere.reshape(5, 100, 2).numpy()).shape == (5, 100)
    assert found(torch.zeros(0, 2)).shape == (0,)
    height = found(anywhere[:6].reshape(2, 3, 2))
    assert float(height[1, 2]) == pytest.approx(float(found(anywhere[5])), abs=1e-14)
    with pytest.raises(InputError, match="coordinates last"):
        found(torch.zeros(3))


class Perturbed:
    """Coefficients with one parameter: D_o scaled by theta, theta ~ N(1, 0.1^2)."""

    dim, period, origin, alpha = 2, 2 * math.pi, 0.0, 0.3
    covariance = torch.tensor([[0.01]], dtype=torch.float64)

    def __init__(self, theta: float = 1.0) -> None:
        self.base, self.theta = Dynamics.named("plane"), theta
        self.b, self.D_f = self.base.b, self.base.D_f

    def D_o(self, x):
        return self.theta * self.base.D_o(x)

    def jacobian(self, x):
        zero = torch.zeros(len(x), 1, dtype=torch.float64)
        return torch.zeros(len(x), 2, 1, dtype=torch.float64), self.base.D_o(x)[:, None], zero, zero


def test_standard_deviation_is_the_derivative_times_that_of_the_parameter():
    r = lambda x: torch.cos(x[..., 0]) + torch.sin(x[..., 1])  # noqa: E731
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 6
    up, down = (solve_value(Perturbed(1 + h), r, 0.5, n_modes=32)(x) for h in (1e-4, -1e-4))
    found = solve_value(Perturbed(), r, 0.5, n_modes=32).std(x)
    torch.testing.assert_close(found, 0.1 * ((up - down) / 2e-4).abs(), rtol=1e-4, atol=1e-7)
    with pytest.raises(InputError, match="must have the covariance"):
        solve_value(Dynamics.named("plane"), r, 0.5, n_modes=16).std(x)


def test_bad_input_is_refused():
    plane = Dynamics.named("plane")
    r = lambda x: torch.cos(x[..., 0])  # noqa: E731
    with pytest.raises(InputError, match="one value per point"):
        solve_value(plane, torch.cos, 0.5)
    with pytest.raises(InputError, match="period"):
        solve_value(plane, lambda x: x[..., 1], 0.5)
    with pytest.raises(InputError, match="beta"):
        solve_value(plane, r, -1.0)
    with pytest.raises(InputError, match="n_modes"):
        solve_value(plane, r, 0.5, n_modes=2)
    with pytest.raises(InputError, match="window"):
        solve_value(plane, r, 0.5, window=(0.0, 1.0))
    with pytest.raises(InputError, match="finite"):
        solve_value(plane, lambda x: x[..., 0] * math.nan, 0.5)
    with pytest.raises(InputError, match=r"window must be \(low, high\) for a coordinate without a period"):
        solve_value(Dynamics((0.0, 0.0), 1.0, 1.0, 0.5, dim=2, period=math.inf), 1.0, 0.5)


@pytest.mark.long
def test_a_system_gmres_cannot_solve_is_said_so():
    # almost no diffusion, fast rotation: what is left is not what the preconditioner inverts
    hard = Dynamics(
        lambda x: 1e4 * torch.stack([torch.sin(x[..., 1]), torch.sin(x[..., 0])], -1), 1e-9, 1e-9, 0.3, dim=2
    )
    with pytest.raises(NumericalError, match="GMRES stopped"):
        solve_value(hard, lambda x: torch.cos(x[..., 0]), 1e-3, n_modes=16)
