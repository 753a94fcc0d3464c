"""Continuous actions: coefficients of (x, a) from pairs drawn from the law itself, closed loops, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from levytorch import Dynamics, InputError, LevyStep, Transitions, improve, recover, solve_value

X = torch.linspace(0.1, 6.2, 25, dtype=torch.float64)


def b(x, a):
    return torch.sin(x) + 2 * a


def D_o(x, a):
    return 1 + 0.4 * torch.cos(x) + 0.3 * a * a


def D_f(x, a):
    return 1.5 + 0.3 * torch.sin(x) + 0 * a


@pytest.fixture(scope="module")
def pairs() -> Transitions:
    torch.manual_seed(0)
    x, a = 2 * math.pi * torch.rand(12_000, dtype=torch.float64), 2 * torch.rand(12_000, dtype=torch.float64) - 1
    return Transitions(x, LevyStep(b(x, a), D_o(x, a), D_f(x, a), 0.6, 1 / 40).sample(), 1 / 40, action=a)


@pytest.fixture(scope="module")
def found(pairs):
    return recover(pairs, alpha=0.6, n_basis=3, engine="fisher")


def test_coefficients_within_their_errors(found):
    assert found.converged
    for action in (-0.8, 0.0, 0.7):
        held = torch.tensor(action, dtype=torch.float64)
        for name, true, std in zip(("b", "D_o", "D_f"), (b, D_o, D_f), found.std(X, action)):
            z = (getattr(found, name)(X, action) - true(X, held)) / std
            # nine functions of (x, a) hold all three coefficients but for softplus's curvature, far below the errors
            assert float(z.square().mean()) < 4.0, name
            assert float(z.abs().max()) < 4.5, name


def test_closed_loop_is_evaluated_with_its_error(found):
    def policy(x):
        return -0.5 * torch.sin(x)

    loop = Dynamics(*(lambda x, f=f: f(x, policy(x)) for f in (b, D_o, D_f)), 0.6)
    V, W = (solve_value(system, torch.cos, 1.0) for system in (found.under(policy), loop))
    assert float(((V(X) - W(X)) / V.std(X)).abs().max()) < 4


def test_a_few_of_the_actions_are_improved(found):
    few = found.on([-0.9, 0.0, 0.9])
    assert float(few.counts.sum()) == pytest.approx(12_000)
    best = improve(few, torch.cos, 1.0)
    assert best.policy(torch.tensor([1.5, 4.7], dtype=torch.float64)).argmax(1).tolist() == [0, 2]  # towards 0
    assert best.gain > 4 * best.gain_std


@pytest.mark.parametrize("policy", [1.5, lambda x: 2 * torch.sin(x)])
def test_actions_beyond_the_logged_range_are_refused(found, policy):
    with pytest.raises(InputError, match="logged range"):
        found.under(policy)


@pytest.mark.parametrize("options", [{"coefficients": "mlp", "engine": "lbfgs"}, {"n_action": 1}])
def test_what_cannot_be_is_refused(pairs, options):
    with pytest.raises(InputError, match=r"actions on a scale must|n_action"):
        recover(pairs, **{"alpha": 0.6, **({} if "coefficients" in options else {"n_basis": 3}), **options})


def test_gaps_in_actions_are_refused(pairs):
    action = pairs.action.clone()
    action[7] = math.nan
    with pytest.raises(InputError, match="found nan at 7"):
        Transitions(pairs.x, pairs.dx, pairs.dt, action=action)
    with pytest.raises(InputError, match="different names"):
        Transitions(pairs.x, pairs.dx, pairs.dt, action=[str(i) for i in range(len(pairs))])
