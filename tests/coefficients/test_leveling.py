"""Steps of states of different scale, brought to one scale before a learned alpha is judged by them."""

import math

import pytest
import torch

from levytorch.coefficients import AlphaSpec, initial_guess
from levytorch.coefficients.fourier import FourierHead
from levytorch.coefficients.head import Units
from levytorch.coefficients.init import group_states
from levytorch.coefficients.spline import SplineHead
from levytorch.law import LevyStep

DT = 1e-2


def pooled(alpha, n=40_000):
    """Steps whose width grows thirtyfold over the states, and the D_o behind them."""
    torch.manual_seed(3)
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    scale = torch.exp(3.4 * x)
    D_o, D_f = scale**2, 0.5 * scale ** (2 * alpha)
    return x, LevyStep(torch.zeros_like(x), D_o, D_f, alpha, DT).sample().to(torch.float64), D_o


@pytest.mark.parametrize("alpha", [0.35, 0.55, 0.75])
def test_alpha_and_D_o_survive_states_of_different_scale(alpha):
    x, dx, D_o = pooled(alpha)
    at = (dx, torch.tensor(DT), 0.0, AlphaSpec("constant"))
    together = initial_guess(*at)
    assert together.alpha - alpha > 0.09 or together.D_o < 1e-3  # what pooled steps look like
    apart = initial_guess(*at, groups=group_states(x, [(0.0, None)]))
    assert abs(apart.alpha - alpha) < 0.11  # candidates are 0.1 apart
    profile = apart.profile
    order = torch.argsort(profile.x)
    middle = torch.searchsorted(x, profile.x[order])
    assert (profile.D_o[order] / D_o[middle]).log().abs().max() < math.log(2.0)  # it grows by a factor of 900


def test_heads_start_as_smooth_curves_through_the_groups():
    x, dx, D_o = pooled(0.55)
    guess = initial_guess(dx, torch.tensor(DT), 0.0, AlphaSpec("constant"), groups=group_states(x, [(0.0, None)]))
    head = SplineHead(21, (0.0, 1.0), alpha=AlphaSpec("constant", guess.alpha), units=Units(guess.units.length, DT))
    guess.apply(head)
    inner = (x > 0.05) & (x < 0.95)
    with torch.no_grad():
        ratio = head(x).D_o / D_o
    assert ratio[inner].log().abs().max() < math.log(2.0)  # a constant would be off by a factor of 30
    constant = SplineHead(1, (0.0, 1.0), alpha=AlphaSpec("constant", guess.alpha))
    guess.apply(constant)
    with torch.no_grad():
        assert float(constant(x[:1]).D_o) == pytest.approx(guess.D_o, rel=1e-6)


def test_states_are_folded_into_their_cell():
    x = torch.linspace(-20, 20, 4000, dtype=torch.float64)
    groups = group_states(x, [(1.0, 2.0)])
    assert len(groups) == 12
    assert ((groups.centers > 1.0) & (groups.centers < 3.0)).all()
    again = group_states(x + 2.0, [(1.0, 2.0)])
    assert (groups.index == again.index).double().mean() > 0.99
    guess = initial_guess(
        torch.randn(4000, dtype=torch.float64), torch.tensor(DT), 0.0, AlphaSpec("constant"), groups=groups
    )
    guess.apply(FourierHead(5, period=2.0, origin=1.0, alpha=AlphaSpec("constant")))


def test_a_plane_and_too_few_states():
    torch.manual_seed(0)
    x = torch.randn((5000, 2), dtype=torch.float64)
    groups = group_states(x, [(0.0, None)] * 2)
    assert groups.centers.shape == (16, 2)
    assert int(groups.index.max()) == 15
    assert group_states(x[:150, 0], [(0.0, None)]) is None
    assert group_states(torch.zeros(5000, dtype=torch.float64), [(0.0, None)]) is None  # one state
