"""The start from the data's scale lands near the truth in any units."""

import pytest
import torch

from levytorch.coefficients import AlphaSpec, initial_guess
from levytorch.errors import InputError
from levytorch.law import LevyStep


def steps(b, D_o, D_f, alpha, dt, n=60_000):
    torch.manual_seed(5)
    return LevyStep(b, D_o, D_f, alpha, dt).sample((n,)).to(torch.float64)


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-4])
def test_close_to_the_truth_whatever_the_units(scale):
    alpha, dt = 0.3, 1 / 40
    dx = scale * steps(5.0, 4.0, 3.0, alpha, dt)
    guess = initial_guess(dx, torch.tensor(dt), float(dx.median()), AlphaSpec("fixed", alpha))
    assert guess.D_o == pytest.approx(4.0 * scale**2, rel=0.05)
    assert guess.D_f == pytest.approx(3.0 * scale ** (2 * alpha), rel=0.1)
    assert guess.b == pytest.approx(5.0 * scale, rel=0.05)
    assert guess.units.length == pytest.approx(scale * (2 * 4 * dt) ** 0.5, rel=0.2)


def test_alpha_is_picked_by_likelihood():
    dx = steps(0.0, 1.0, 2.0, 0.75, 0.1)
    guess = initial_guess(dx, torch.tensor(0.1), 0.0, AlphaSpec("constant"))
    assert abs(guess.alpha - 0.75) <= 0.1


def test_displacements_without_variation_are_refused():
    with pytest.raises(InputError, match="vary"):
        initial_guess(torch.zeros(50), torch.tensor(0.1), 0.0, AlphaSpec("fixed", 0.5))
