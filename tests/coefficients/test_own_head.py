"""A user's own head: what the base class adds to a bare forward, and what it refuses."""

import copy
import math

import pytest
import torch

from levytorch import Dynamics, Recovery, simulate, solve_value
from levytorch.coefficients import AlphaSpec, check_head
from levytorch.errors import InputError
from tests.coefficients.own_head import D, Pull
from tests.training.problems import frozen_recover as recover


@pytest.mark.parametrize(("learn", "mode"), [(None, "fixed"), ("constant", "constant"), ("function", "function")])
def test_alpha_is_read_off_forward(learn, mode):
    head = Pull(0.6, learn)
    check_head(head)
    assert head.alpha_spec.mode == mode
    assert head.alpha_spec.value == pytest.approx(0.6, abs=1e-3)
    assert head.learns_alpha is (learn is not None)
    assert (head.dim, head.period, head.origin, head.is_constant) == (1, 2 * math.pi, 0.0, False)


@pytest.mark.parametrize("learn", [None, "constant", "function"])
def test_jacobian_against_differences(learn):
    head = Pull(0.4, learn)
    x, theta, h = head.grid(7), head.flat(), 1e-6
    found = head.jacobian(x)
    for p in range(len(theta)):
        moved = []
        for sign in (1, -1):
            other = copy.deepcopy(head)
            other.set_flat(theta + sign * h * torch.eye(len(theta), dtype=D)[p])
            with torch.no_grad():
                c = other(x)
            moved.append([c.b, c.D_o, c.D_f, c.alpha.expand(x.shape)])
        for slope, up, down in zip(found, *moved):
            torch.testing.assert_close(slope[:, p], (up - down) / (2 * h), rtol=0, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("learn", [None, "constant"])
def test_recover_finds_the_truth_with_it(learn):
    truth = Dynamics(b=lambda x: -2.0 * torch.sin(x - 0.7), D_o=0.5, D_f=0.8, alpha=0.6)
    data = simulate(truth, 400, 50, 0.02, seed=3).transitions()
    head = Pull(0.6 if learn is None else 0.5, learn)
    found = recover(data, alpha=0.6 if learn is None else "learn", coefficients=head)
    assert found.converged
    assert float(found.head.k.detach()) == pytest.approx(2.0, abs=0.25)
    assert float(found.head.m.detach()) == pytest.approx(0.7, abs=0.12)
    assert float(found.D_o(0.0)) == pytest.approx(0.5, rel=0.05)
    assert float(found.D_f(0.0)) == pytest.approx(0.8, rel=0.05)
    assert found.alpha == pytest.approx(0.6, abs=1e-12 if learn is None else 0.05)
    assert solve_value(found, torch.cos, 0.5).converged


def test_what_it_leaves_out():
    head = Pull()
    before = head.flat()
    head.set_constants(1.0, 2.0, 3.0)  # it starts where its parameters are
    assert torch.equal(head.flat(), before)
    with pytest.raises(InputError, match="must be one of levytorch's own to be written to a file, found Pull"):
        head.config()
    head.alpha_spec = AlphaSpec("fixed", 0.25)
    assert head.alpha_spec.value == 0.25


def test_a_fit_is_saved_by_its_parameters(tmp_path):
    truth = Dynamics(b=lambda x: -2.0 * torch.sin(x - 0.7), D_o=0.5, D_f=0.8, alpha=0.6)
    found = recover(simulate(truth, 40, 50, 0.02, seed=3).transitions(), alpha=0.6, coefficients=Pull(0.6))
    path = found.save(tmp_path / "recovery.pt")
    back = Recovery.load(path, head=Pull(0.6))
    assert torch.equal(back.theta, found.theta)
    assert float(back.D_f(0.0)) == float(found.D_f(0.0))
    with pytest.raises(InputError, match=r"the head must be given for a fit with one of your own.*none for 'Pull'"):
        Recovery.load(path)
    other = recover(simulate(truth, 40, 50, 0.02, seed=3).transitions(), alpha=0.6, n_basis=1).save(tmp_path / "b.pt")
    with pytest.raises(InputError, match="found one beside its description"):
        Recovery.load(other, head=Pull(0.6))


def returning(**changes):
    class Broken(Pull):
        def forward(self, x):
            return Pull.forward(self, x)._replace(**changes)

    return Broken()


class Empty(Pull):
    def parameters(self, recurse=True):
        return iter(())


class Bare(Pull):
    def forward(self, x):
        return tuple(Pull.forward(self, x))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            returning(D_o=torch.tensor(1.0, dtype=D)),
            r"D_o of a head must have shape \(16,\) at .* found \(\)",
        ),
        (returning(D_f=torch.zeros(16, dtype=D)), "D_f of a head must be finite and > 0, found 0"),
        (returning(D_o=torch.full((16,), -1.0, dtype=D)), "D_o of a head must be finite and >= 0, found -1"),
        (returning(b=torch.full((16,), math.nan, dtype=D)), "b of a head must be finite, found nan"),
        (returning(alpha=torch.tensor(1.2, dtype=D)), r"alpha of a head must be within \(0, 1\), found 1.2"),
        (returning(b=torch.zeros(16)), "b of a head must be float64, found torch.float32; call head.double"),
        (Empty(), "a head must have parameters, found none in Empty"),
        (Bare(), "forward.x. must return Coefficients.b, D_o, D_f, alpha., found tuple"),
    ],
)
def test_refused(head, message):
    with pytest.raises(InputError, match=message):
        check_head(head)
