"""What freezing the coefficients does to the drift, against the exact law; whether steps show that they are held."""

from __future__ import annotations

import pytest
import torch

from levytorch import Dynamics, simulate
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.data.batches import Batch
from levytorch.likelihood.corrected import frozen_scores
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.held_steps import drift_bias, kappa, shown_by_steps

D = torch.float64


@pytest.mark.parametrize("wave", [5, 8], ids=["D_o", "D_f"])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.75])
def test_against_the_exact_law(alpha, wave):
    head = FourierHead(n_basis=3, alpha=AlphaSpec("fixed", alpha))
    head.set_constants(0.0, 1.0, 2.0)
    theta = head.flat()
    theta[wave] = 0.02  # a wave of D_o or D_f so weak that one order is enough, and far longer than a step
    head.set_flat(theta)
    dt = 0.004
    rows = expected_scores(ExactLaw(), head, dt, scores=False)
    s = frozen_scores(head, FrozenLaw(), rows, dt)[0]
    mean, square = (
        torch.zeros(len(rows.states), dtype=D).index_add_(0, rows.which, rows.p * v) for v in (s, s.square())
    )
    bias, information = drift_bias(head, rows.states, torch.full_like(rows.states, dt))
    assert torch.allclose(information, square, rtol=1e-3)
    found = mean / square
    # what is left is of second order: the size of the wave, and the square of a step's width over its length
    assert float((found - bias).abs().max()) < 0.02 * float(bias.abs().max())
    assert float(bias.abs().max()) > 1e-4


def test_no_jumps_no_bias():
    for dim in (1, 2, 3):
        factor, information, _ = kappa(torch.tensor([1e-9], dtype=D), 0.4, dim)
        assert abs(float(factor)) < 1e-4
        assert float(information) == pytest.approx(0.5, rel=1e-4)  # of a Gaussian of variance 2


@pytest.mark.parametrize(("substeps", "expected"), [(1, 0.0), (16, 1.0)])
def test_steps_show_whether_coefficients_are_followed(substeps, expected):
    head = FourierHead(n_basis=3, alpha=AlphaSpec("fixed", 0.6))
    head.set_constants(0.5, 1.0, 0.5)
    theta = head.flat()
    theta[5], theta[7] = 0.8, 0.5
    head.set_flat(theta)
    system = Dynamics(*(lambda x, k=k: head(x.reshape(-1))[k].detach().reshape(x.shape) for k in range(3)), alpha=0.6)
    data = simulate(system, 60_000, 1, 0.01, substeps=substeps, seed=3).transitions()
    S, J = shown_by_steps(head, Batch(data.x, data.dx, data.dt, torch.ones_like(data.x)))
    error = float(J) ** -0.5
    assert error < 0.2
    # one order in the width of a step, a tenth of a wave here: what is beyond it is a part of that
    assert float(S / J) == pytest.approx(expected, abs=3.5 * error)
