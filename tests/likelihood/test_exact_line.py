"""The exact law on a line, against the law of an Ornstein-Uhlenbeck process with jumps, which is known."""

import math

import pytest
import torch

from levytorch import Dynamics, log_density, transition_density
from levytorch.coefficients import AlphaSpec, SplineHead
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw

PULL, D_O, D_F, ALPHA, DT = 8.0, 1.0, 0.5, 0.6, 0.04


def ornstein_uhlenbeck():
    """b = -PULL x as splines on (-3, 3): the straight line is one of them."""
    head = SplineHead(4, (-3.0, 3.0), alpha=AlphaSpec("fixed", ALPHA))
    head.set_constants(0.0, D_O, D_F)
    theta = head.flat()
    theta[1] = -PULL * 6 / math.sqrt(12)  # the second function is sqrt(12) (u - 1/2)
    head.set_flat(theta)
    return head


def known(x, dx):
    """dX = -PULL X dt + ...: every part of the noise decays on its way to the end of the step."""
    decay = math.exp(-PULL * DT)
    D_o = D_O * (1 - decay**2) / (2 * PULL * DT)
    D_f = D_F * (1 - decay ** (2 * ALPHA)) / (2 * ALPHA * PULL * DT)
    return log_density(dx, x * (decay - 1) / DT, D_o, D_f, ALPHA, DT)


def test_log_density():
    head = ornstein_uhlenbeck()
    with torch.no_grad():
        assert torch.allclose(head(torch.tensor([0.5]).double()).b, torch.tensor([-4.0]).double())
        x, dx = torch.meshgrid(
            torch.linspace(-1.5, 1.5, 7).double(), torch.linspace(-1.2, 1.2, 9).double(), indexing="ij"
        )
        found = ExactLaw().log_prob(head, x.reshape(-1), dx.reshape(-1), torch.tensor(DT).double())
        frozen = log_density(dx, -PULL * x, D_O, D_F, ALPHA, DT)
    truth = known(x, dx)
    off = (found.reshape(x.shape) - truth).abs()
    assert float(off[(x + dx).abs() <= 2.01].max()) < 1e-3
    # next to the end of the window, where many come back from jumps beyond it, for whom the pull is the padding's
    assert float(off.max()) < 0.06
    assert float((frozen - truth).abs().max()) > 0.3


def test_masses():
    head = ornstein_uhlenbeck()
    x, c = torch.tensor([-1.0, 0.0, 1.0]).double(), torch.zeros(3).double()
    with torch.no_grad():
        found = ExactLaw().mass_beyond(head, torch.full((3,), 2.0).double(), c, x, torch.tensor(DT).double())
    grid = torch.linspace(-2, 2, 4001).double()
    inside = torch.trapezoid(known(x[:, None], grid).exp(), grid)
    assert torch.allclose(found, 1 - inside, rtol=0.05)


@pytest.mark.long
def test_transition_density():
    system = Dynamics(lambda x: -PULL * x, D_O, D_F, ALPHA, period=None, window=(-3.0, 3.0))
    x, dx = torch.tensor([[-1.0], [0.0], [0.5]]).double(), torch.linspace(-1, 1, 5).double()
    assert torch.allclose(transition_density(system, x, dx, DT), known(x, dx).exp(), rtol=1e-3)
    with pytest.raises(InputError, match="x must lie in the window of the system"):
        transition_density(system, 4.0, 0.0, DT)
    with pytest.raises(InputError, match="must have a period or a window"):
        transition_density(Dynamics(0.0, 1.0, 1.0, 0.5, period=None), 0.0, 0.0, DT)
