"""Heads whose D_o and D_f are multiplied by a function of covariates: derivatives, files, tails, several dimensions."""

import math

import pytest
import torch

from levytorch import LevyStep, Recovery, Transitions, recover
from levytorch.coefficients import FourierHead, LinearHead, build_head
from levytorch.coefficients.clock import Clock, ClockedHead, Covariate
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.data.batches import Batch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, sweep
from levytorch.likelihood.sums import InputBins, assemble


def a_head():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((400, 2), generator=generator, dtype=torch.float64) * torch.tensor([24.0, 3.0])
    clock = Clock.of([Covariate("hour", 24.0, 2), Covariate("log size")], inputs)
    plain = FourierHead(3, alpha=AlphaSpec("constant", 0.6), tempering=TemperingSpec.build("learn", 0.5))
    head = ClockedHead(plain, clock)
    moves = 0.2 * torch.randn(head.theta.numel(), generator=generator, dtype=torch.float64)
    head.set_flat(head.flat() + moves)
    x = 6 * torch.rand((400, 1), generator=generator, dtype=torch.float64)
    return head, torch.cat([x, inputs], dim=1)


def test_the_jacobian_is_the_derivative():
    head, x = a_head()
    for states in (x[:5], x[:5, 0]):
        for own, expected in zip(head.jacobian(states), super(LinearHead, head).jacobian(states)):
            torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-12)


def test_scores_are_the_derivative_of_the_likelihood():
    head, x = a_head()
    dx = LevyStep(*head(x)[:4], 0.1).sample(generator=torch.Generator().manual_seed(1)).detach()
    dt = torch.full((400,), 0.1, dtype=torch.float64)
    law, one = FrozenLaw("contour"), torch.ones(400, dtype=torch.float64)
    log_p = law.log_prob(head, x, dx, dt)
    (expected,) = torch.autograd.grad(log_p.sum(), head.theta)
    bins = InputBins(head, dt[:1], x[:, 1:], 64)
    sums = sweep(head, law, Batch(x, dx, dt, one), bins, hessian=True)
    torch.testing.assert_close(sums.gradient, expected, rtol=1e-8, atol=1e-8)
    assert float(sums.log_p) == pytest.approx(float(log_p.detach().sum()), rel=1e-12)
    # second derivatives of pairs in their cells, beside differences of the gradient
    assert sums.hessian is not None
    found = assemble(head, sums.hessian, head.design(bins.x)).diagonal()
    for i in (0, 3, 10, 11, 12):
        ends = []
        for sign in (1, -1):
            head.theta.data[i] += sign * 1e-5
            ends.append(sweep(head, law, Batch(x, dx, dt, one), bins).gradient[i])
            head.theta.data[i] -= sign * 1e-5
        assert float(found[i]) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=0.05, abs=2.0)


def test_a_state_without_covariates_has_the_mean_of_f():
    head, x = a_head()
    head.clock = head.clock.referring_to(head.gamma.detach(), x[:, 1:])
    log_f = head.gamma @ head.clock.functions(x[:, 1:]) - head.gamma[2] * head.clock.functions(x[:, 1:])[2]
    plain, kept = head.without_clock()
    at = torch.tensor([0.3, 2.0], dtype=torch.float64)
    assert int(kept.sum()) == plain.flat().numel() == head.flat().numel() - 3
    torch.testing.assert_close(head(at).D_f, plain(at).D_f * log_f.exp().mean(), rtol=1e-12, atol=0)
    again = build_head(head.config())
    again.set_flat(head.flat())
    for one, other in zip(head(x), again(x)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_a_clock_from_a_file_is_checked():
    head, _ = a_head()
    plain = head.clock.plain()
    for changes in (
        {"centers": [1.0]},
        {"log_mean": math.inf},
        {"covariates": [["hour", -1.0, 3]]},
        {"covariates": [["size", None, 3]]},
    ):
        with pytest.raises(InputError):
            Clock.from_plain(plain | changes)


def data(dim, tempering=0.0):
    generator = torch.Generator().manual_seed(2)
    hour = 24 * torch.rand(4000, generator=generator, dtype=torch.float64)
    f = torch.exp(0.7 * torch.sin(2 * math.pi * hour / 24))
    b = 1.0 if dim == 1 else torch.ones((4000, dim), dtype=torch.float64)
    dx = LevyStep(b, 0.5 * f, 0.5 * f, 0.6, 0.05, dim, tempering).sample(generator=generator)
    return Transitions(torch.zeros_like(dx), dx, 0.05, action=hour), hour, f / f.mean()


@pytest.mark.parametrize("options", [{}, {"tail": {"method": "conditional", "CT": 1.0, "TRT": 4.0}}, {"dim": 2}])
def test_it_comes_out_with_lost_tails_and_in_the_plane(options, tmp_path):
    options = dict(options)
    dim = options.pop("dim", 1)
    pairs, hour, f = data(dim)
    if options:
        pairs = pairs.censor(TRT=4.0, CT=1.0, drop_tail=0.5, seed=0)
    found = recover(pairs, alpha=0.6, n_basis=1, modulation=24.0, n_modulation=3, **options)
    every = torch.argsort(hour)[::400]
    z = (found.modulation(hour[every]) - f[every]) / found.modulation.std(hour[every])
    assert float(z.abs().max()) < 4.5
    at = torch.zeros(dim, dtype=torch.float64) if dim > 1 else 0.0
    truth = 0.5 * float(torch.exp(0.7 * torch.sin(2 * math.pi * hour / 24)).mean())
    assert abs(float(found.D_f(at)) - truth) < 4.5 * float(found.std(at)[2])
    again = Recovery.load(found.save(tmp_path / "clocked.pt"))
    assert torch.equal(again.modulation(hour), found.modulation(hour))
    assert torch.equal(again.D_f(at), found.D_f(at))
