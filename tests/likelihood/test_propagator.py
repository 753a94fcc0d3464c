"""exp(L_k) and its derivatives, against torch's own exponential and finite differences."""

import math

import pytest
import torch

from levytorch.coefficients import Coefficients
from levytorch.likelihood.propagator import propagator_slopes, propagators

D = torch.float64


def system(n):
    x = 2 * math.pi * torch.arange(n, dtype=D) / n
    return 0.1 * torch.cos(x), 0.3 * torch.exp(0.3 * torch.sin(x)), 0.2 + 0.1 * torch.cos(x + 1)


def coefficients(n, alpha):
    return Coefficients(*system(n), torch.as_tensor(alpha, dtype=D))


def generator(n, k, alpha):
    """L_k written out mode by mode: complex k approaches the imaginary axis from the right."""
    x = 2 * math.pi * torch.arange(n, dtype=D) / n
    m = torch.arange(-(n // 2), n // 2 + 1, dtype=D)
    xi = m + k
    power = torch.where(xi.real >= 0, xi, -xi) ** (2 * alpha)
    b, D_o, D_f = (c[:, None] for c in system(n))
    symbol = 1j * b * xi - D_o * xi**2 - D_f * power
    return (symbol * torch.exp(1j * m * x[:, None])) @ torch.exp(-1j * m[:, None] * x) / n


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_exponential_of_the_generator(alpha):
    n, k, tau = 21, torch.tensor([1e-6, 0.2, 0.5], dtype=D), torch.tensor([0.05, 0.7, 3.0], dtype=D)
    P = propagators(coefficients(n, alpha), k, tau)
    for found, node in zip(P.core, k):
        expected = torch.linalg.matrix_exp(generator(n, torch.complex(node, node * 0), alpha))
        assert float((found - expected).abs().max()) < 1e-13
    for side, sign in enumerate((-1.0, 1.0)):
        for found, node in zip(P.tail[side], tau):
            expected = torch.linalg.matrix_exp(generator(n, torch.complex(node * 0, sign * node), alpha)).imag
            assert float((found + sign * expected).abs().max()) < 1e-12 * float(expected.abs().max() + 1)


def test_imaginary_part_keeps_its_digits_however_small():
    """To first order in tau^(2 alpha) it is proportional to it."""
    tau = torch.tensor([1e-14, 1e-12], dtype=D)
    small, large = propagators(coefficients(21, 0.4), torch.full((1,), 0.5, dtype=D), tau).tail[0]
    assert torch.allclose(small * 100**0.8, large, rtol=1e-7, atol=0.0)


def test_gradient():
    k, alpha = torch.tensor([0.01, 0.4], dtype=D), torch.tensor(0.3, dtype=D)
    tau = torch.tensor([0.3, 2.0], dtype=D)

    def real_parts(*inputs):
        P = propagators(Coefficients(*inputs[:4]), k, inputs[4])
        return torch.view_as_real(P.core), P.tail

    inputs = [t.clone().requires_grad_() for t in (*system(7), alpha, tau)]
    assert torch.autograd.gradcheck(real_parts, inputs, atol=1e-8)


def test_slopes_along_many_directions_converge_to_differences():
    """Simpson's rule: twice the intervals leave a sixteenth of the error, once they follow the fastest mode."""
    n, alpha = 9, torch.tensor(0.6, dtype=D)
    k, tau = torch.tensor([0.1, 0.5], dtype=D), torch.tensor([0.3, 2.0], dtype=D)
    directions = torch.randn((5, 3, n), generator=torch.Generator().manual_seed(0), dtype=D)

    def moved(direction, size):
        return propagators(Coefficients(*(v + size * d for v, d in zip(system(n), direction)), alpha), k, tau)

    exact = []
    for direction in directions:
        pairs = [[moved(direction, sign * size) for sign in (1, -1)] for size in (1e-3, 2e-3)]
        slopes = [[(up - down) / (2 * size) for up, down in zip(*pair)] for pair, size in zip(pairs, (1e-3, 2e-3))]
        exact.append([(4 * fine - coarse) / 3 for fine, coarse in zip(*slopes)])  # of fourth order
    errors = []
    for intervals in (12, 24, 48):
        found = propagator_slopes(coefficients(n, alpha), k, tau, directions, intervals)
        off = [(found[part][a] - one[part]).abs().max() for a, one in enumerate(exact) for part in (0, 1)]
        errors.append(float(torch.stack(off).max()))
    size = max(float(part.abs().max()) for one in exact for part in one)
    assert errors[0] < 2e-3 * size
    assert errors[1] < errors[0] / 12
    assert errors[2] < errors[1] / 12
