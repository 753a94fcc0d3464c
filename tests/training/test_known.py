"""D_o and D_f as known constants: what is left is recovered, with the errors that are right then."""

import math

import pytest
import torch

from levytorch import Dynamics, Recovery, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.settings import make_settings


@pytest.fixture(scope="module")
def jumps():
    """No Brownian part."""
    return simulate(Dynamics(1.0, 0.0, 1.0, 0.45, tempering=0.4), 500, 20, 0.25, seed=2).transitions()


@pytest.mark.long
def test_jumps_alone(jumps, tmp_path):
    found = recover(jumps, alpha="learn", tempering="learn", n_basis=1, D_o=0)
    assert float(found.D_o(0.3)) == 0.0
    b, D_o, D_f = found.std(0.3)
    assert float(D_o) == 0.0
    assert found.theta.numel() == 4  # b, D_f, alpha and tempering
    estimates = [(found.b(0.3), 1.0, b), (found.D_f(0.3), 1.0, D_f), (found.alpha, 0.45, found.alpha_std)]
    for value, truth, std in [*estimates, (found.tempering, 0.4, found.tempering_std)]:
        assert abs(float(value) - truth) < 4 * float(std)
    assert "vanishing_loss" not in found.metrics
    again = Recovery.load(found.save(tmp_path / "known.pt"))
    assert again.head.known == {"D_o": 0.0}
    assert torch.equal(again.theta, found.theta)


def test_known_jumps_and_the_units_of_the_data():
    """D_f in the units of the data, whatever alpha is: its internal unit depends on a learned alpha."""
    data = simulate(Dynamics(0.5, 1.0, 0.8, 0.6), 400, 20, 0.1, seed=3).transitions()
    free = recover(data, alpha="learn", n_basis=1)
    found = recover(data, alpha="learn", n_basis=1, D_f=0.8)
    assert float(found.D_f(1.0)) == pytest.approx(0.8, rel=1e-12)
    assert abs(float(found.D_o(1.0)) - 1.0) < 4 * float(found.std(1.0)[1])
    assert float(found.std(1.0)[1]) < float(free.std(1.0)[1])  # it knows more
    assert found.log_likelihood <= free.log_likelihood + 1e-6
    # the maximum under that constraint: the gradient in what is left vanishes
    from levytorch.likelihood.frozen import FrozenLaw

    log_p = FrozenLaw("contour").log_prob(found.head, data.x, data.dx, data.dt).sum()
    (gradient,) = torch.autograd.grad(log_p, [found.head.theta])
    assert float(gradient @ found.covariance @ gradient) < 1e-4


@pytest.mark.long
def test_functions_of_x_smoothed_and_checked():
    truth = Dynamics(torch.sin, 0.5, lambda x: 1 + 0.4 * torch.cos(x), 0.5)
    data = simulate(truth, 400, 20, 0.05, seed=4).transitions()
    found = recover(data, alpha=0.5, n_basis=7, D_o=0.5, law="frozen")
    x = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)
    assert torch.equal(found.D_o(x), torch.full_like(x, 0.5))
    z = (found.D_f(x) - truth.D_f(x)) / found.std(x)[2]
    assert float(z.abs().max()) < 5
    assert isinstance(found.metrics["penalty_strengths"], list)
    report = diagnose(found, data, checks=["fit", "jumps"])
    assert report.fit.p_value > 1e-4
    assert report.jumps.needed


def test_networks_and_lost_tails():
    data = simulate(Dynamics.named("constant"), 400, 40, 1 / 40, seed=5).transitions()
    cut = data.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=1)
    found = recover(cut, alpha=0.3, n_basis=1, D_o=4.0, tail={"CT": 8.0, "TRT": 20.0})
    assert found.tcf > 0
    assert abs(float(found.D_f(0.0)) - 3.0) < 4 * float(found.std(0.0)[2])
    head = {"name": "mlp", "width": 2, "depth": 1}
    with pytest.warns(LevytorchWarning, match="converged"):
        net = recover(data, alpha=0.3, coefficients=head, D_o=4.0, max_steps=2, law="frozen")
    assert set(net.head.nets) == {"b", "D_f"}
    assert float(net.D_o(1.0)) == 4.0


def test_refusals(jumps):
    for bad in (-1.0, math.nan, "yes", True):
        with pytest.raises(InputError, match="D_o"):
            make_settings(alpha=0.4, D_o=bad)
    with pytest.raises(InputError, match="D_f must be >= 0 where it is known"):
        make_settings(alpha=0.4, D_f=-1.0)
    with pytest.raises(InputError, match="D_o and D_f must not both be zero"):
        make_settings(alpha=0.4, D_o=0.0, D_f=0.0)
    with pytest.raises(InputError, match="alpha must be given where D_f is zero"):
        make_settings(alpha="learn", D_f=0.0)
    from tests.coefficients.own_head import Pull

    with pytest.raises(InputError, match="left to a head of your own"):
        make_settings(alpha=0.4, coefficients=Pull(), D_o=1.0)
