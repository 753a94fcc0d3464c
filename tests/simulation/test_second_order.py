"""simulate(order=2): the law of a step against exponentials of the generator, where Euler's rule visibly errs."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from levytorch import ControlledDynamics, Dynamics, simulate
from levytorch.errors import InputError
from levytorch.simulation.substeps import Extrapolation

DT, X0, N = 1 / 10, 4.0, 300_000
MODES = np.array([1, 2, 3])
VARIABLE = Dynamics.named("variable", alpha=0.3)


def expected(system, symbol, n=64):
    """E exp(i k X) after DT from X0, k in MODES: the matrix exponential of the generator on Fourier modes."""
    k = np.arange(-n, n + 1)
    x = 2 * math.pi * np.arange(4 * n) / (4 * n)
    waves = np.exp(1j * np.outer(x, k))
    b, D_o, D_f = (
        np.broadcast_to(np.asarray(c(torch.from_numpy(x))), x.shape) for c in (system.b, system.D_o, system.D_f)
    )
    L = (
        waves.conj().T
        @ (waves * (1j * np.outer(b, k) - np.outer(D_o, k**2) - np.outer(D_f, symbol(np.abs(k)))))
        / len(x)
    )
    return np.exp(1j * X0 * k) @ expm(DT * L)[:, n + MODES]


def errors(x, truth):
    """|empirical - true| of E exp(i k X), whose standard error is at most 1 / sqrt(N)."""
    return np.abs(np.exp(1j * np.outer(MODES, x)).mean(1) - truth)


def final(system, *under, order, x0=X0):
    return simulate(system, *under, N, 1, DT, substeps=8, x0=x0, seed=5, order=order).to_array()[:, -1]


def check(first, second, truth):
    assert errors(first, truth).max() > 6 / math.sqrt(len(first))  # Euler's rule errs, or there is nothing to see
    assert errors(second, truth).max() < 3.5 / math.sqrt(len(second))  # noise alone exceeds this once in 1e5


def test_the_law_of_a_step():
    truth = expected(VARIABLE, lambda k: k**0.6)
    check(final(VARIABLE, order=1), final(VARIABLE, order=2), truth)


def test_in_the_plane():
    """Coefficients that depend on one coordinate: it moves as alone."""
    plane = Dynamics(
        lambda x: torch.stack([VARIABLE.b(x[..., 0]), torch.zeros_like(x[..., 0])], -1),
        lambda x: VARIABLE.D_o(x[..., 0]),
        lambda x: VARIABLE.D_f(x[..., 0]),
        0.3,
        dim=2,
    )
    truth = expected(VARIABLE, lambda k: k**0.6)
    found = final(plane, order=2, x0=[X0, 1.0])[:, 0]
    assert errors(found, truth).max() < 3.5 / math.sqrt(N)


@pytest.mark.long
def test_with_tempered_jumps():
    """A Brownian motion at a tempered stable time: (k^2 + lam^2)^alpha - lam^(2 alpha) stands for |k|^(2 alpha)."""
    system = Dynamics(VARIABLE.b, VARIABLE.D_o, VARIABLE.D_f, 0.3, tempering=0.5)
    truth = expected(system, lambda k: (k**2 + 0.25) ** 0.3 - 0.25**0.3)
    check(final(system, order=1), final(system, order=2), truth)


@pytest.mark.long
def test_with_an_action_held():
    def b(x, a):
        return VARIABLE.b(x) + a * torch.cos(x)

    system = ControlledDynamics(b, lambda x, a: VARIABLE.D_o(x), lambda x, a: VARIABLE.D_f(x), 0.3, actions=(-1, 2))
    truth = expected(system.of(2), lambda k: k**0.6)
    check(final(system, 2, order=1), final(system, 2, order=2), truth)


def tempered_and_held(**actions):
    def b(x, a):
        return VARIABLE.b(x) + a * torch.cos(x)

    D_o, D_f = (lambda x, a: VARIABLE.D_o(x)), (lambda x, a: VARIABLE.D_f(x))
    return ControlledDynamics(b, D_o, D_f, 0.3, tempering=0.5, **actions)


@pytest.mark.slow
def test_tempered_with_an_action_held():
    labels, scale = tempered_and_held(actions=(-1, 2)), tempered_and_held(action_range=(-1.0, 2.0))
    truth = expected(labels.of(2), lambda k: (k**2 + 0.25) ** 0.3 - 0.25**0.3)
    check(final(labels, 2, order=1), final(labels, 2, order=2), truth)
    assert errors(final(scale, 2.0, order=2), truth).max() < 3.5 / math.sqrt(N)


def test_a_held_action_does_not_change_the_random_numbers():
    labels = tempered_and_held(actions=(-1, 2))
    alone = labels.of(2)
    for order in (1, 2):
        options = {"substeps": 3, "x0": X0, "seed": 5, "order": order}
        one = simulate(labels, 2, 5000, 2, DT, **options).to_array()  # more than a block of them
        np.testing.assert_allclose(one, simulate(alone, 5000, 2, DT, **options).to_array(), rtol=1e-12)


def test_constants_are_not_changed():
    one, two = (simulate(Dynamics.named("constant"), 10, 4, DT, order=order).to_array() for order in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_weights_and_debts():
    ahead = Extrapolation(3)  # w = 3 / 4
    values = [np.array([1.0]), np.array([0.1]), np.array([0.1]), np.array([0.1])]
    frozen = [ahead("D_f", v)[0] for v in values]
    np.testing.assert_allclose(frozen, [1.0, 0.0, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(ahead.owed["D_f"], 0.3 + 0.75 * (0.1 - 1.0))  # what three substeps have not paid off
    np.testing.assert_allclose([ahead("b", v)[0] for v in values], [1.0, 0.1 - 0.675, 0.1, 0.1])
    ahead.restart()
    assert ahead("D_f", values[1])[0] == 0.1


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        (VARIABLE, {"order": 3}, "order must be"),
        (Dynamics(0.0, 1.0, 1.0, lambda x: 0.5 + 0.1 * torch.cos(x)), {"order": 2}, "order=2 must come with"),
        (Dynamics(lambda x: -x, 1.0, 1.0, 0.5, period=None, window=(-2, 2)), {"order": 2}, "order=2 must come with"),
    ],
)
def test_what_is_refused(system, options, message):
    with pytest.raises(InputError, match=message):
        simulate(system, 2, 2, DT, **options)
