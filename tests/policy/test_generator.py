from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch.policy.generator import operators, resolvent_coefficients, resolvent_matrix
from levytorch.spaces.basis import FourierBasis
from tests.policy.problems import smooth

ALPHA = torch.tensor(0.3, dtype=torch.float64)


def random_coefficients(batch: int, n: int, seed: int = 0) -> list[torch.Tensor]:
    u = torch.rand((4, batch, n), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [u[0] - 0.5, 0.5 + u[1], 0.5 + u[2], u[3]]


def test_agrees_with_spectral_matrices_built_by_fft() -> None:
    """An independent construction: every operator as F^-1 diag(symbol) F with complex exponentials on the points."""
    n, period, origin, beta = 33, 5.0, -2.0, 0.4
    basis = FourierBasis(n, period, origin)
    b, D_o, D_f, r = (t[0] for t in random_coefficients(1, n))
    k = 2 * math.pi / period * np.fft.fftfreq(n, 1 / n)
    F = np.fft.fft(np.eye(n), axis=0)

    def spectral(symbol: np.ndarray) -> np.ndarray:
        return np.real(np.fft.ifft(symbol[:, None] * F, axis=0))

    L = b.numpy()[:, None] * spectral(1j * k) - D_o.numpy()[:, None] * spectral(k**2)
    L -= D_f.numpy()[:, None] * spectral(np.abs(k) ** 0.6)
    expected = np.linalg.solve(beta * np.eye(n) - L, r.numpy())
    found = basis.matrix(basis.points()) @ resolvent_coefficients(basis, b, D_o, D_f, ALPHA, r, beta)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [16, 17])
@pytest.mark.parametrize("alpha_of_x", [False, True])
def test_a_batch_is_the_same_as_one_at_a_time(n: int, alpha_of_x: bool) -> None:
    basis = FourierBasis(n)
    b, D_o, D_f, r = random_coefficients(6, n)
    alpha = 0.3 + 0.4 * torch.rand((6, n), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = resolvent_coefficients(basis, b, D_o, D_f, alpha if alpha_of_x else ALPHA, r, 0.2)
    for i in range(6):
        own = alpha[i] if alpha_of_x else ALPHA
        torch.testing.assert_close(whole[i], resolvent_coefficients(basis, b[i], D_o[i], D_f[i], own, r[i], 0.2))


def test_batches_longer_than_a_chunk_and_of_several_dimensions() -> None:
    n = 64
    basis = FourierBasis(n)
    b, D_o, D_f, r = (t.reshape(3, 200, n) for t in random_coefficients(600, n))
    whole = resolvent_coefficients(basis, b, D_o, D_f, ALPHA, r, 0.2)
    assert whole.shape == (3, 200, n)
    torch.testing.assert_close(
        whole[2, 150], resolvent_coefficients(basis, b[2, 150], D_o[2, 150], D_f[2, 150], ALPHA, r[2, 150], 0.2)
    )


def test_alpha_of_x_that_is_constant_is_the_constant() -> None:
    basis = FourierBasis(15)
    b, D_o, D_f, r = (t[0] for t in random_coefficients(1, 15))
    one = resolvent_coefficients(basis, b, D_o, D_f, ALPHA, r, 0.2)
    many = resolvent_coefficients(basis, b, D_o, D_f, ALPHA.expand(15).clone(), r, 0.2)
    torch.testing.assert_close(one, many)


def test_gradients() -> None:
    n = 6
    basis = FourierBasis(n, period=3.0)
    arguments = [t.requires_grad_() for t in random_coefficients(2, n)]
    alpha = torch.full((n,), 0.4, dtype=torch.float64, requires_grad=True)
    r = arguments.pop()

    def f(b: torch.Tensor, D_o: torch.Tensor, D_f: torch.Tensor, alpha: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return resolvent_coefficients(basis, b, D_o, D_f, alpha, r, 0.5)

    assert torch.autograd.gradcheck(f, (*arguments, alpha, r))


def test_generator_annihilates_constants() -> None:
    basis, d = FourierBasis(21), smooth()
    x = basis.points()
    A = resolvent_matrix(operators(basis, x, ALPHA), d.b(x), d.D_o(x), d.D_f(x), beta=0.0)
    assert float(A[:, 0].abs().max()) == 0.0
