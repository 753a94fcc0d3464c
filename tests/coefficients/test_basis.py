"""The Fourier basis against sines and cosines, and its compiled loops against plain torch."""

import math

import numpy as np
import pytest
import torch

from levytorch.coefficients import FourierBasis, kernels
from levytorch.errors import InputError
from levytorch.spaces.basis import fourier_basis

X = torch.linspace(-9.0, 9.0, 41, dtype=torch.float64)


@pytest.mark.parametrize("n", [7, 3000])
@pytest.mark.parametrize(("period", "origin"), [(2 * math.pi, 0.0), (256_000.0, -3.0), (0.7, 11.0)])
def test_functions_are_cosines_and_sines(n, period, origin):
    basis = FourierBasis(21, period, origin)
    x = origin + period * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    phi = basis.rows(x).T
    torch.testing.assert_close(basis.matrix(x), phi, rtol=0, atol=2e-12)  # the other way to the same numbers
    assert phi.shape == (n, 21)
    angle = 2 * math.pi * (x - origin) / period
    for k in range(1, 11):
        torch.testing.assert_close(phi[:, 2 * k - 1], torch.cos(k * angle), rtol=0, atol=2e-12)
        torch.testing.assert_close(phi[:, 2 * k], torch.sin(k * angle), rtol=0, atol=2e-12)


def test_far_states_are_reduced_first():
    basis = FourierBasis(21, 2.0, 0.0)
    x = torch.tensor([0.25, 1.5], dtype=torch.float64)
    far = x + 2.0 * 2.0**40  # exactly representable: the same state 2^40 cells away
    torch.testing.assert_close(basis.rows(far), basis.rows(x), rtol=0, atol=1e-12)


def test_orthogonal_over_a_cell():
    basis = FourierBasis(7, 3.0, 1.0)
    phi = basis.rows(1.0 + 3.0 * torch.arange(64, dtype=torch.float64) / 64).T
    expected = torch.diag(torch.tensor([64.0] + [32.0] * 6, dtype=torch.float64))
    torch.testing.assert_close(phi.T @ phi, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_basis", [0, 2, -1, 2.0, True, None])
def test_even_or_empty_basis_is_refused(n_basis):
    with pytest.raises(InputError, match="odd integer"):
        fourier_basis(1, n_basis, 1.0, 0.0)


@pytest.mark.parametrize("period", [0.0, -1.0, math.inf, math.nan, "x"])
def test_period_must_be_positive(period):
    with pytest.raises(InputError, match="period"):
        fourier_basis(1, 3, period, 0.0)


@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_are_those_of_the_functions(n: int, order: int) -> None:
    basis = FourierBasis(n, period=5.0, origin=-1.5)
    for m in range(n):
        x = X.clone().requires_grad_()
        value = basis.matrix(x)[:, m]
        for _ in range(order):
            grad = torch.autograd.grad(value.sum(), x, create_graph=True, allow_unused=True)[0]
            value = torch.zeros_like(x) if grad is None else grad
            if not value.requires_grad:
                break
        torch.testing.assert_close(basis.matrix(X, order)[:, m], value.detach(), rtol=1e-10, atol=1e-10)


def test_functions_are_periodic_even_far_away() -> None:
    basis = FourierBasis(9)
    far = X + 2 * math.pi * 1e8
    torch.testing.assert_close(basis.matrix(far), basis.matrix(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("n", [9, 10])
def test_collocation_points_determine_the_coefficients(n: int) -> None:
    basis = FourierBasis(n, period=3.0, origin=7.0)
    Phi = basis.matrix(basis.points())
    assert float(torch.linalg.cond(Phi)) < 2.0


@pytest.mark.parametrize(
    "arguments", [{"n_modes": 0}, {"n_modes": 2.5}, {"n_modes": 3, "period": 0.0}, {"n_modes": 3, "origin": math.nan}]
)
def test_refuses(arguments: dict) -> None:
    with pytest.raises(InputError, match=f"{list(arguments)[-1]} must be"):
        FourierBasis(**arguments)


@pytest.mark.parametrize("weighted", [True, False])
def test_interpolation_and_its_adjoint(weighted):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(-50, 50, 20_000))
    nodes = 1.0 + 7.0 * torch.arange(4096, dtype=torch.float64) / 4096
    wave = lambda t: torch.stack([torch.sin(2 * math.pi * k * (t - 1.0) / 7.0 + 0.3) for k in (1, 5, 10)])  # noqa: E731
    found = kernels.interpolate(x, 1.0, 7.0, wave(nodes))
    torch.testing.assert_close(found, wave(x), rtol=0, atol=5e-9)
    scores = list(torch.from_numpy(rng.standard_normal((3, 20_000))))
    one_group = torch.empty(0, dtype=torch.int64)
    weight = torch.from_numpy(rng.uniform(0, 2, 20_000)) if weighted else torch.tensor(0.5, dtype=torch.float64)
    sums, first, second = kernels.scatter(x, 1.0, 7.0, scores, 4096, 512, one_group, 1, weight)
    for row, score in enumerate(scores):
        adjoint = float((sums[row] * wave(nodes)[row]).sum())
        assert adjoint == pytest.approx(float((found[row] * score * weight).sum()), rel=1e-9, abs=1e-8)
    index = torch.from_numpy(np.floor(np.mod(x.numpy() - 1.0, 7.0) * 512 / 7.0).astype(np.int64))
    stacked, shares = torch.stack(scores), weight.expand(20_000)
    for m in (0, 200, 511):
        chosen, share = stacked[:, index == m], shares[index == m]
        torch.testing.assert_close(first[:, m], chosen @ share, rtol=1e-10, atol=1e-9)
        torch.testing.assert_close(second[:, :, m], (chosen * share) @ chosen.T, rtol=1e-10, atol=1e-9)


def test_compiled_sums_keep_groups_of_dt_apart():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.uniform(0, 1, 5000))
    group = torch.from_numpy(rng.integers(0, 3, 5000))
    scores = list(torch.from_numpy(rng.standard_normal((4, 5000))))
    _, first, _ = kernels.scatter(x, 0.0, 1.0, scores, 64, 8, group, 3, torch.tensor(1.0, dtype=torch.float64))
    bin_of = (x * 8).long() + 8 * group
    expected = torch.zeros(24, dtype=torch.float64).index_add_(0, bin_of, scores[3])
    torch.testing.assert_close(first[3], expected, rtol=1e-10, atol=1e-10)


def test_interpolated_coefficients_stay_positive_beside_steep_rises():
    """A cubic through 1e-12, 1e-12, 1e-12, 1 dips below zero; D_f = 0 is none that the law takes."""
    table = torch.full((3, 64), 1e-12, dtype=torch.float64)
    table[:, 32:40] = 1.0
    x = torch.linspace(0, 64, 4001, dtype=torch.float64)
    plain, kept = (kernels.interpolate(x, 0.0, 64.0, table, positive=positive) for positive in (False, True))
    assert float(plain[2].min()) < -0.01
    assert float(kept[1:].min()) > 0
    torch.testing.assert_close(torch.where(plain > 0, plain, kept), kept, rtol=0, atol=0)
