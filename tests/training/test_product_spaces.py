"""States with some coordinates on circles and others on lines, such as an angle and a speed."""

import math
from typing import Any

import pytest
import torch

from levytorch import Dynamics, Recovery, Trajectories, Transitions, diagnose, recover, simulate, solve_value
from levytorch.coefficients import build_head
from levytorch.coefficients.product import ProductHead
from levytorch.errors import InputError

TURN = 2 * math.pi
PENDULUM = Dynamics(
    b=lambda x: torch.stack([x[..., 1], -2 * x[..., 1] - torch.sin(x[..., 0])], -1),
    D_o=lambda x: 0.3 + 0.1 * torch.cos(x[..., 0]),
    D_f=0.2,
    alpha=0.7,
    period=(TURN, None),
    dim=2,
)
OPTIONS: dict[str, Any] = {"alpha": 0.7, "n_basis": 4, "period": (TURN, None), "law": "frozen"}


@pytest.fixture(scope="module")
def paths() -> Trajectories:
    start = torch.Generator().manual_seed(0)
    x0 = torch.rand(100, 2, generator=start, dtype=torch.float64) * torch.tensor([TURN, 1.0]) - torch.tensor([0.0, 0.5])
    return simulate(PENDULUM, 100, 60, 1 / 100, x0=x0, seed=1)


@pytest.fixture(scope="module")
def found(paths: Trajectories) -> Recovery:
    return recover(paths, **OPTIONS)


def within_errors(found: Recovery) -> None:
    x = found.states[::50]
    for name, std in zip(("b", "D_o", "D_f"), found.std(x)):
        error = getattr(found, name)(x) - torch.as_tensor(getattr(PENDULUM, name)(x))
        # pointwise errors of smooth functions: the root mean square of z is 1 but for few effective numbers
        assert float((error / std).square().mean().sqrt()) < 2, name


def test_coefficients_within_their_errors(found: Recovery) -> None:
    assert found.converged
    assert isinstance(found.head, ProductHead)
    within_errors(found)


def test_angles_have_a_period_and_speeds_a_window(found: Recovery, paths: Trajectories) -> None:
    x = torch.tensor([[1.0, 0.1], [1.0 + TURN, 0.1], [1.0 - 3 * TURN, 0.1]], dtype=torch.float64)
    assert float((found.b(x) - found.b(x[:1])).abs().max()) < 1e-12
    cell, (low, high) = found.head.bounds
    assert cell == (0.0, TURN)
    speeds = paths.transitions().x[:, 1]
    assert speeds.min() < low < high < speeds.max()  # excursions are left out, of speeds only
    outside = int(((speeds < low) | (speeds > high)).sum())
    assert 0 < outside <= len(speeds) - found.nobs < 0.05 * len(speeds)
    beyond = torch.tensor([[1.0, high + 1.0], [1.0, high]], dtype=torch.float64)
    assert torch.equal(found.D_o(beyond)[0], found.D_o(beyond)[1])


def test_wrapped_angles_are_the_same_data(found: Recovery, paths: Trajectories) -> None:
    pairs = paths.transitions()
    x = pairs.x.clone()
    x[:, 0] = torch.remainder(x[:, 0], TURN)
    again = recover(Transitions(x, pairs.dx, 1 / 100, trajectory=pairs.trajectory), **OPTIONS)
    assert float((again.theta - found.theta).abs().max()) < 1e-9


@pytest.mark.long
def test_value_function_is_that_of_the_system(found: Recovery) -> None:
    def reward(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x[..., 0]) * torch.exp(-(x[..., 1] ** 2))

    V, truth = solve_value(found, reward, 1.0), solve_value(PENDULUM, reward, 1.0, window=[None, found.head.bounds[1]])
    x = found.states[::500]
    z = (V(x) - truth(x)) / V.std(x)
    assert float(z.square().mean().sqrt()) < 2


def test_files_keep_the_space(found: Recovery, tmp_path: Any) -> None:
    for name in ("found.pt", "found.safetensors"):
        again = Recovery.load(found.save(tmp_path / name))
        assert again.head.periods == (TURN, None)
        assert torch.equal(again.b(found.states), found.b(found.states))


def test_a_head_from_its_settings(found: Recovery) -> None:
    again = build_head(found.head.config())
    again.load_state_dict(found.head.state_dict())
    assert torch.equal(again(found.states).b, found.head(found.states).b)


def test_jacobian(found: Recovery) -> None:
    x, theta, h = found.states[:3], found.head.flat(), 1e-6
    J = found.head.jacobian(x)
    direction = torch.randn(len(theta), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sides = []
    for sign in (1, -1):
        found.head.set_flat(theta + sign * h * direction)
        sides.append(found.head(x))
    found.head.set_flat(theta)
    for part, up, down in zip(J[:3], *(side[:3] for side in sides)):
        torch.testing.assert_close(part @ direction, (up - down).detach() / (2 * h), atol=1e-8, rtol=1e-7)


@pytest.mark.long
def test_networks(paths: Trajectories) -> None:
    found = recover(paths, **OPTIONS | {"coefficients": {"name": "mlp", "width": 8}})
    x = found.states[:5]
    assert float((found.b(x + torch.tensor([TURN, 0.0], dtype=torch.float64)) - found.b(x)).abs().max()) < 1e-9
    within_errors(found)


@pytest.mark.long
def test_checks_of_a_fit(found: Recovery, paths: Trajectories) -> None:
    diagnosis = diagnose(found, paths, seed=0)
    assert not {"misfit", "predictive", "step_size", "time", "trajectories"} & set(diagnosis.alarms)
    assert diagnosis.predictive is not None


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"noise": "matrix"},
        {"tempering": 0.3},
        {"alpha": "learn"},
        {"D_f": 0.2},
        {"n_basis": 1},
        {"period": (TURN, math.inf)},
    ],
)
def test_other_fits(options: dict[str, Any], paths: Trajectories) -> None:
    found = recover(paths, **OPTIONS | options)
    assert found.converged
    assert found.head.periods == (TURN, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coefficients": "fourier"}, "Fourier heads must have a period"),
        ({"coefficients": "polynomial"}, "spline or mlp where some coordinates have a period"),
        ({"period": (TURN, TURN, None)}, "dimension"),
        ({"window": [None, (1.0, -1.0)]}, "low < high"),
        ({"window": [None]}, "dim must be from 1 to 64 and agree"),
    ],
)
def test_what_cannot_be_fitted_is_refused(options: dict[str, Any], words: str, paths: Trajectories) -> None:
    with pytest.raises(InputError, match=words):
        recover(paths, **OPTIONS | options)


def test_a_given_window_of_speeds(paths: Trajectories) -> None:
    found = recover(paths, **OPTIONS | {"window": [None, (-0.5, 0.5)]})
    speeds = paths.transitions().x[:, 1]
    assert found.nobs == int((speeds.abs() <= 0.5).sum())
