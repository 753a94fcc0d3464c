from __future__ import annotations

import math

import pytest
import torch

from levytorch.errors import InputError
from levytorch.policy.basis import FourierBasis

X = torch.linspace(-9.0, 9.0, 41, dtype=torch.float64)


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


def test_symbol_and_its_derivative_in_alpha() -> None:
    basis = FourierBasis(7, period=4.0)
    alpha = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)
    symbol = basis.symbol(alpha)
    torch.testing.assert_close(symbol[0, 1:], basis.wavenumbers[1:] ** 0.6)
    assert float(symbol[0, 0].detach()) == 0.0
    slope = torch.stack([torch.autograd.grad(symbol[i, -1], alpha, retain_graph=True)[0][i] for i in range(2)])
    torch.testing.assert_close(basis.symbol(alpha.detach(), log_power=1)[:, -1], slope)


@pytest.mark.parametrize(
    "arguments", [{"n_modes": 0}, {"n_modes": 2.5}, {"n_modes": 3, "period": 0.0}, {"n_modes": 3, "origin": math.nan}]
)
def test_refuses(arguments: dict) -> None:
    with pytest.raises(InputError, match=f"{list(arguments)[-1]} must be"):
        FourierBasis(**arguments)
