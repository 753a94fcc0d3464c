"""Coupled steps: the frozen one has the law of constant coefficients, the other one that of the exact propagator."""

from __future__ import annotations

import math

import pytest
import torch

from levytorch import LevyStep
from levytorch.coefficients import Coefficients
from levytorch.likelihood.exact import ExactLaw
from levytorch.simulation.coupled import coupled_steps, coupled_substeps
from tests.likelihood.systems import smooth

D = torch.float64
N = 40_000


def states(n: int = N, dim: int = 1) -> torch.Tensor:
    x = 2 * math.pi * torch.rand((n, dim), generator=torch.Generator().manual_seed(1), dtype=D)
    return x[:, 0] if dim == 1 else x


def held(dim: int = 1, alpha: float = 0.6, tempering: float = 0.0):
    def field(x: torch.Tensor) -> Coefficients:
        n, one = len(x), torch.ones(len(x), dtype=D)
        b = 0.5 * one if dim == 1 else torch.full((n, dim), 0.5, dtype=D)
        return Coefficients(b, 0.7 * one, 1.3 * one, torch.tensor(alpha, dtype=D), torch.tensor(tempering, dtype=D))

    return field


@pytest.mark.long
@pytest.mark.parametrize("tempering", [0.0, 0.8, 8.0, 4e3], ids=["stable", "tempered", "in parts", "in many"])
@pytest.mark.parametrize("dt", [0.1, 2.0])
def test_of_constants_both_are_the_law_of_a_step(tempering, dt):
    x = states()
    found = coupled_steps(held(tempering=tempering), x, torch.tensor(dt, dtype=D), 4, seed=3)
    assert torch.equal(found.fine, found.frozen)
    # characteristic function at frequencies of the size of a step, each with its Monte Carlo error
    y = found.frozen - 0.5 * dt
    for k in torch.tensor([0.3, 1.0, 3.0], dtype=D) / math.sqrt(dt):
        jumps = 1.3 * ((k**2 + tempering**2) ** 0.6 - tempering**1.2)
        expected = torch.exp(-dt * (0.7 * k**2 + jumps))
        values = torch.cos(k * y)
        assert float((values.mean() - expected).abs() / (values.std() / math.sqrt(N))) < 4


def test_in_the_plane_the_law_is_isotropic():
    x = states(dim=2)
    dt = torch.tensor(0.1, dtype=D)
    found = coupled_steps(held(2), x, dt, 4, dim=2, seed=5)
    assert found.fine.shape == (N, 2)
    y = found.fine - 0.05
    for direction in ((1.0, 0.0), (0.0, 1.0), (0.6, -0.8)):
        values = torch.cos(4.0 * y @ torch.tensor(direction, dtype=D))
        expected = math.exp(-0.1 * (0.7 * 16 + 1.3 * 4**1.2))
        assert float((values.mean() - expected).abs() / (values.std() / math.sqrt(N))) < 4


def test_the_fine_step_has_the_exact_law():
    head, dt, x = smooth(0.5), torch.tensor(1 / 20, dtype=D), states()
    found = coupled_steps(head, x, dt, 8, seed=2)
    law = ExactLaw()
    for threshold in (0.3, 1.0, 4.0):
        expected = law.mass_beyond(head, torch.full_like(x, threshold), torch.zeros_like(x), x, dt)
        beyond = (found.fine.abs() > threshold).to(D)
        error = (expected * (1 - expected)).mean().sqrt() / math.sqrt(N)
        assert float((beyond.mean() - expected.mean()).abs() / error) < 4
        # the coupling: the difference from the frozen step is known far better than the mass itself
        frozen = (found.frozen.abs() > threshold).to(D)
        assert float((beyond - frozen).var()) < 0.5 * float(beyond.var())


def test_the_frozen_step_has_the_coefficients_of_its_start():
    head, dt, x = smooth(0.5), torch.full((N,), 1 / 20, dtype=D), states()
    found = coupled_steps(head, x, dt, 8, seed=2)
    c = head(x)
    u = LevyStep(c.b, c.D_o, c.D_f, c.alpha, dt).cdf(found.frozen)
    assert float((u.sort().values - (torch.arange(N, dtype=D) + 0.5) / N).abs().max()) < 1.95 / math.sqrt(N)  # 0.1 %


def test_a_step_depends_on_its_own_stream_alone():
    head, dt, x = smooth(0.4), torch.tensor(0.1, dtype=D), states(20_000)
    whole = coupled_steps(head, x, dt, 3, seed=7, round=2)
    again = coupled_steps(head, x[5_000:], dt, 3, seed=7, round=2, first=5_000)
    assert torch.equal(whole.fine[5_000:], again.fine)
    assert not torch.equal(coupled_steps(head, x, dt, 3, seed=7, round=3).fine, whole.fine)
    rows = torch.tensor([17_000, 3, 9_999])
    total = sum(one.fine for one in coupled_substeps(head, x[rows], dt, 3, rows, seed=7, round=2))
    assert torch.allclose(total, whole.fine[rows], rtol=1e-12, atol=0)


def test_an_alpha_of_its_own_for_every_state():
    def field(x: torch.Tensor) -> Coefficients:
        one = torch.ones_like(x)
        return Coefficients(0 * one, one, one, 0.5 + 0.2 * torch.sin(x))

    x, dt = states(), torch.tensor(0.1, dtype=D)
    found = coupled_steps(field, x, dt, 4, seed=1)
    c = field(x)
    u = LevyStep(c.b, c.D_o, c.D_f, c.alpha, dt).cdf(found.frozen)
    assert float((u.sort().values - (torch.arange(N, dtype=D) + 0.5) / N).abs().max()) < 1.95 / math.sqrt(N)
    assert float((found.fine - found.frozen).abs().median()) < 0.1 * float(found.fine.abs().median())


@pytest.mark.long
def test_further_columns_are_held():
    def field(x: torch.Tensor) -> Coefficients:
        return Coefficients(10 * x[:, 1], torch.ones(len(x), dtype=D), torch.ones(len(x), dtype=D), torch.tensor(0.5))

    x = torch.stack([states(2000), torch.linspace(-1, 1, 2000, dtype=D)], dim=1)
    found = coupled_steps(field, x, torch.tensor(0.5, dtype=D), 4)
    assert found.fine.shape == (2000,)
    # b depends on the held column only, so that the two steps are the same up to rounding
    assert torch.allclose(found.fine, found.frozen, rtol=1e-12, atol=1e-12)
