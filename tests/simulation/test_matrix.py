"""Simulation with a matrix D_o: characteristic functions, agreement with isotropic noise, refusals."""

import math

import numpy as np
import pytest
import torch

from levytorch import ControlledDynamics, Dynamics, simulate
from levytorch.errors import InputError
from levytorch.simulation.substeps import positive_part

MATRIX = np.array([[1.0, 0.6], [0.6, 0.8]])


def correlated(x):
    """Unit variances, a correlation that varies with the first coordinate."""
    c, one = 0.6 * torch.sin(x[..., 0]), torch.ones_like(x[..., 0])
    return torch.stack([one, c, c, one], dim=-1).reshape(*x.shape[:-1], 2, 2)


@pytest.mark.long
@pytest.mark.parametrize("tempering", [0.0, 1.5])
def test_characteristic_function_of_a_step(tempering):
    """E exp(i k (dX - b dt)) = exp(-dt (k D_o k + D_f psi(|k|))), in three directions."""
    alpha, D_f, dt, b = 0.6, 0.4, 0.1, (0.3, -0.2)
    system = Dynamics(b, MATRIX, D_f, alpha, period=None, dim=2, tempering=tempering)
    x = simulate(system, 40_000, 1, dt, x0=(0.0, 0.0), seed=1, substeps=2).to_array()
    y = x[:, 1] - x[:, 0] - dt * np.array(b)
    for k in ([1.5, 0.0], [1.0, 1.0], [2.0, -1.0]):
        square = float(np.dot(k, k))
        jumps = (tempering**2 + square) ** alpha - tempering ** (2 * alpha)
        expected = math.exp(-dt * (np.dot(k, MATRIX @ k) + D_f * jumps))
        found = np.cos(y @ k)
        assert abs(found.mean() - expected) < 4 * found.std() / math.sqrt(len(found))


@pytest.mark.parametrize("order", [1, 2])
def test_a_multiple_of_the_identity_makes_the_isotropic_paths(order):
    def size(x):
        return torch.exp(0.3 * torch.sin(x[..., 0]))

    def matrix(x):
        return size(x)[..., None, None] * torch.eye(2, dtype=torch.float64)

    paths = [
        simulate(Dynamics(torch.sin, D_o, 0.4, 0.6, dim=2), 50, 10, 0.05, seed=3, order=order).to_array()
        for D_o in (size, matrix)
    ]
    np.testing.assert_allclose(paths[1], paths[0], rtol=1e-10)


def test_a_function_and_a_constant_agree_and_chunks_do_not_matter():
    systems = [
        Dynamics(0.0, D_o, 0.4, 0.6, dim=2) for D_o in (MATRIX, lambda x: torch.tensor(MATRIX).expand(len(x), 2, 2))
    ]
    few, many = (simulate(systems[0], n, 4, 0.1, seed=2).to_array() for n in (7, 90))
    np.testing.assert_array_equal(few, many[:7])
    np.testing.assert_array_equal(few, simulate(systems[1], 7, 4, 0.1, seed=2).to_array())


def test_singular_matrices_and_ten_dimensions():
    flat = Dynamics(0.0, np.array([[1.0, 1.0], [1.0, 1.0]]), 1e-12, 0.5, period=None, dim=2)
    x = simulate(flat, 200, 3, 0.1, x0=(0.0, 0.0)).to_array()
    assert np.median(np.abs(x[:, -1, 0] - x[:, -1, 1])) < 1e-5
    wide = Dynamics(0.0, np.diag(np.arange(1.0, 11.0)), 1e-9, 0.9, dim=10)
    x = simulate(wide, 4000, 1, 0.5, x0=np.zeros(10)).to_array()[:, 1]
    np.testing.assert_allclose(x.var(0), np.arange(1.0, 11.0), rtol=6 * math.sqrt(2 / 4000))


def test_actions_with_a_matrix_each():
    def D_o(x, a):
        return MATRIX if a == "left" else np.eye(2)

    system = ControlledDynamics(0.0, lambda x, a: torch.tensor(D_o(x, a)).expand(len(x), 2, 2), 0.1, 0.5,
                                actions=("left", "right"), dim=2)  # fmt: skip
    made = simulate(system, lambda x: torch.tensor([0.5, 0.5]).expand(len(x), 2), 20, 5, 0.1)
    assert np.isfinite(made.to_array()).all()


def test_the_nearest_positive_matrix():
    matrices = np.moveaxis(np.array([[[1.0, 2.0], [2.0, 1.0]], [[2.0, 0.5], [0.5, 1.0]]]), 0, -1)
    out = positive_part(matrices, np.zeros_like(matrices))
    np.testing.assert_allclose(out[..., 0], [[1.5, 1.5], [1.5, 1.5]])
    np.testing.assert_array_equal(out[..., 1], matrices[..., 1])


@pytest.mark.parametrize(
    ("D_o", "dim", "words"),
    [
        (np.array([[1.0, 0.2], [0.1, 1.0]]), 2, "symmetric"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), 2, "positive matrix"),
        (np.eye(3), 2, "one number or 2 x 2"),
        (np.eye(1), 1, "one number"),
        (lambda x: torch.ones(len(x), 1, 1), 1, "shape"),
        (lambda x: -correlated(x), 2, "positive matrix"),
    ],
)
def test_refused(D_o, dim, words):
    with pytest.raises(InputError, match=words):
        Dynamics(0.0, D_o, 1.0, 0.5, dim=dim)


def test_coefficients_have_the_shape_of_the_states():
    system = Dynamics(0.0, correlated, 1.0, 0.5, dim=2)
    assert system.has_matrix
    assert system.D_o(np.zeros((3, 4, 2))).shape == (3, 4, 2, 2)
    assert system.D_o(np.zeros(2)).shape == (2, 2)
    np.testing.assert_array_equal(Dynamics(0.0, MATRIX, 1.0, 0.5, dim=2).D_o(np.zeros((3, 2)))[1], MATRIX)
