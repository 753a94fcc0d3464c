"""Dynamics: the paper's systems, periodicity at huge states, and what is refused."""

import math
import pickle

import numpy as np
import pytest
import torch

from levytorch import Dynamics
from levytorch.errors import InputError

X = np.array([0.0, 0.4, 1.7, 3.3, 5.9])


@pytest.mark.parametrize(
    ("name", "b", "D_o", "D_f"),
    [
        ("constant", 5 + 0 * X, 4 + 0 * X, 3 + 0 * X),
        (
            "variable",
            4 * np.abs(X - math.pi) - 2 * math.pi,
            np.exp(np.sin(X + 1) + 1),
            2 + np.exp(np.sin(2 * X) * np.cos(3 * X)),
        ),
        ("asymptotic", np.sin(X) ** 4, np.cos(X) ** 2 + np.abs(np.sin(X)), np.sin(4 * X) + 2),
    ],
)
def test_named_systems_are_those_of_the_paper(name, b, D_o, D_f):
    system = Dynamics.named(name, alpha=0.6)
    assert system.alpha == 0.6
    assert system.period == pytest.approx(2 * math.pi)
    for found, expected in ((system.b(X), b), (system.D_o(X), D_o), (system.D_f(X), D_f)):
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("far", [1e6, -1e6, 1e10, -3e12])
def test_states_far_away_are_reduced_exactly(far):
    inside = math.fmod(far, 2 * math.pi) % (2 * math.pi)
    system = Dynamics.named("variable")
    for coefficient in (system.b, system.D_o, system.D_f):
        assert float(coefficient(far)) == pytest.approx(float(coefficient(inside)), rel=1e-12)


def test_a_function_sees_states_of_the_cell_only():
    seen = []

    def b(x):
        seen.append((float(x.min()), float(x.max())))
        return x

    system = Dynamics(b, 1.0, 1.0, 0.5, period=3.0, origin=-1.0)
    system.b(torch.linspace(-1e5, 1e5, 1001))
    assert min(low for low, _ in seen) >= -1.0
    assert max(high for _, high in seen) <= 2.0
    assert float(system.b(4.25)) == pytest.approx(1.25)


def test_numbers_arrays_lists_and_tensors_are_accepted():
    system = Dynamics(lambda x: 2.0, 1.0, 0.5, 0.5)
    assert system.b(0.3).shape == ()
    assert system.b([0.1, 0.2]).tolist() == [2.0, 2.0]  # a function may return one number for all
    assert system.D_o(np.zeros((2, 3))).shape == (2, 3)
    assert system.D_f(torch.zeros(4, dtype=torch.float32)).dtype == torch.float64


def test_alpha_may_be_a_function():
    system = Dynamics(0.0, 1.0, 1.0, lambda x: 0.5 + 0.2 * torch.sin(x))
    assert callable(system.alpha)
    assert float(system.alpha_at(math.pi / 2)) == pytest.approx(0.7)
    assert not system.is_constant
    assert Dynamics.named("constant").alpha_at(X).tolist() == [0.3] * 5


def test_two_dimensions():
    system = Dynamics(
        lambda x: -x, lambda x: 1 + x[..., 0] ** 2, 1.0, 0.7, period=(2.0, 5.0), dim=2, origin=(0.0, -1.0)
    )
    x = torch.tensor([[0.5, 3.5], [2.5, 8.5]])
    assert system.wrap(x).tolist() == [[0.5, 3.5], [0.5, 3.5]]
    assert system.b(x).shape == (2, 2)
    assert system.D_o(x).tolist() == [1.25, 1.25]
    assert Dynamics([1.0, 2.0], 1.0, 1.0, 0.7, dim=2).b(x).tolist() == [[1.0, 2.0], [1.0, 2.0]]
    with pytest.raises(InputError, match=r"shape \[..., 2\]"):
        system.b(torch.zeros(3))


def test_no_period_leaves_states_alone():
    assert float(Dynamics(lambda x: -x, 1.0, 0.0, 0.5, period=math.inf).b(123.0)) == -123.0


def test_the_cell_is_filled_evenly():
    points = Dynamics(0.0, 1.0, 1.0, 0.5, period=(2.0, 4.0), dim=2, origin=(1.0, 0.0)).points(4096)
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=8, range=[[1, 3], [0, 4]])
    assert counts.min() >= 56  # 64 expected in each of 64 boxes
    assert counts.max() <= 72


def test_pickle():
    system = pickle.loads(pickle.dumps(Dynamics.named("variable")))
    np.testing.assert_array_equal(system.D_f(X), Dynamics.named("variable").D_f(X))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(alpha=0.0), r"alpha must lie in \(0, 1\), found 0"),
        (dict(alpha=1.2), "half the stability index"),
        (dict(alpha=lambda x: 0.5 + 0 * x + (x > 3)), r"alpha must lie in \(0, 1\), found 1.5"),
        (dict(D_o=-1.0), "D_o must not be negative, found -1"),
        (dict(D_f=lambda x: torch.sin(x)), "D_f must not be negative"),
        (dict(D_o=0.0, D_f=0.0), "must not both vanish"),
        (dict(b=float("nan")), "b must be finite"),
        (dict(b=lambda x: 1 / (x - x)), "b must be finite, found inf at x = .* on the whole cell"),
        (dict(b=lambda x: torch.zeros(3)), r"b\(x\) must return a tensor of shape"),
        (dict(b="fast"), "b must be a number or a function"),
        (dict(b=[1.0, 2.0]), "b as a constant must be one number"),
        (dict(period=0.0), "period must be positive"),
        (dict(period="long"), "period must be one number"),
        (dict(origin=math.inf), "origin must be finite"),
        (dict(dim=65), "dim must be an integer from 1 to 64"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        Dynamics(**{**dict(b=1.0, D_o=1.0, D_f=1.0, alpha=0.5), **arguments})


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        InputError, match="constant, variable, asymptotic, plane, rotor, double_well, found 'quadratic'"
    ):
        Dynamics.named("quadratic")


def test_the_plane_depends_on_both_variables():
    plane = Dynamics.named("plane", alpha=0.6)
    assert (plane.dim, plane.alpha) == (2, 0.6)
    u, v = torch.tensor(0.4, dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
    x = torch.stack([u, v])
    drift = [3 * v.sin() + u.cos(), 2 * u.cos() - (u + v).sin()]
    torch.testing.assert_close(plane.b(x), torch.stack(drift))
    torch.testing.assert_close(plane.D_o(x), torch.exp(0.5 * torch.sin(u + 1) + 0.4 * torch.cos(v)))
    torch.testing.assert_close(plane.D_f(x), 2 + u.sin() * v.cos())
    torch.testing.assert_close(plane.b(x + 2 * math.pi), plane.b(x))
