"""Stable and tempered jumps: the symbol, its derivatives, and samples that have it."""

import math

import pytest
import torch

from levytorch.law.jumps import Stable, Tempered, jumps_of

D = torch.float64
SQUARE = torch.tensor([0.0, 1e-6, 0.3, 1.0, 40.0, 1e7], dtype=D)


@pytest.mark.parametrize("lam", [0.0, 0.7, 30.0])
def test_symbol_and_its_derivatives(lam):
    jumps, alpha = jumps_of(lam), torch.tensor(0.3, dtype=D, requires_grad=True)
    symbol = jumps.symbol(SQUARE, alpha)
    exact = (SQUARE + lam**2) ** 0.3 - lam**0.6
    torch.testing.assert_close(symbol.detach(), exact, rtol=1e-12, atol=1e-12 * max(1.0, lam**0.6))
    assert float(symbol[0].detach()) == 0.0
    by_alpha, *by_lam = jumps.symbol_derivatives(SQUARE, alpha.detach())
    for i, slope in enumerate(by_alpha):
        (found,) = torch.autograd.grad(symbol[i], alpha, retain_graph=True)
        torch.testing.assert_close(slope, found, rtol=1e-10, atol=1e-12)
    assert len(by_lam) == len(jumps.parameters) - 1
    for slope in by_lam:
        h = 1e-5 * lam
        high, low = (Tempered(lam + side * h).symbol(SQUARE, alpha.detach()) for side in (1, -1))
        torch.testing.assert_close(slope, (high - low) / (2 * h), rtol=1e-6, atol=1e-8)


def test_tempering_vanishes():
    alpha = torch.tensor([0.3, 0.8], dtype=D)[:, None]
    assert jumps_of(0.0) == Stable()
    torch.testing.assert_close(
        Tempered(1e-9).symbol(SQUARE[2:], alpha), Stable().symbol(SQUARE[2:], alpha), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_times_have_the_symbol(lam, alpha):
    """E exp(-s T) = exp(-B psi(s)): means of 40,000 draws within 4.5 standard errors."""
    n, B, jumps = 40_000, 0.7, jumps_of(lam)
    draw = torch.Generator().manual_seed(3)
    T = jumps.time(torch.full((n,), alpha, dtype=D), torch.full((n,), B, dtype=D), draw)
    for s in (0.1, 1.0, 10.0):
        found = torch.exp(-s * T)
        exact = math.exp(-B * float(jumps.symbol(torch.tensor(s, dtype=D), torch.tensor(alpha, dtype=D))))
        assert abs(float(found.mean()) - exact) < 4.5 * float(found.std()) / math.sqrt(n)
