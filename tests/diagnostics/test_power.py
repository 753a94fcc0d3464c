"""Alarms when the model is not true, and whether the data needs jumps."""

import math

import numpy as np
import pytest

from levytorch import Trajectories, Transitions, recover
from levytorch.diagnostics import diagnose
from levytorch.errors import LevytorchWarning
from tests.diagnostics.problems import TAILS, data_of, quiet
from tests.training.problems import ALPHA, DT, stable, steps


@pytest.mark.long
def test_a_wrong_alpha_is_noticed():
    data = steps(30_000, 1)
    with pytest.warns(LevytorchWarning, match="large steps"):
        diagnosis = diagnose(recover(data, alpha=0.45, n_basis=1), data, checks=("fit",))
    assert diagnosis.fit.p_value < 1e-6
    assert "misfit" in diagnosis.alarms
    assert not diagnosis.ok


@pytest.mark.long
def test_lost_tails_that_nobody_mentioned_are_noticed():
    data = data_of("tcf", 30_000, 2)
    assert quiet(diagnose, recover(data, alpha=ALPHA, n_basis=1), data, checks=("fit",)).fit.p_value < 1e-6


@pytest.mark.long
def test_asymmetric_jumps_are_noticed():
    rng = np.random.default_rng(0)
    n = 20_000
    jumps = stable(2 * ALPHA, n, rng)
    jumps = np.where((jumps < 0) & (rng.uniform(size=n) < 0.6), -jumps, jumps)  # four of five go up
    dx = 5 * DT + np.sqrt(8 * DT) * rng.standard_normal(n) + (3 * DT) ** (1 / (2 * ALPHA)) * jumps
    data = Transitions(rng.uniform(0, 2 * np.pi, n), dx, DT)
    diagnosis = quiet(diagnose, recover(data, alpha=ALPHA, n_basis=1), data, checks=("fit",))
    assert diagnosis.fit.p_value < 1e-6
    assert diagnosis.fit.parts["tails"][0] < 1e-6


def test_coefficients_that_depend_on_x_are_noticed_by_a_constant_fit():
    data = steps(5000, 3, D_o=lambda x: 4 + np.cos(2 * x))
    diagnosis = quiet(diagnose, recover(data, alpha=ALPHA, n_basis=1), data, checks=("fit",))
    assert diagnosis.fit.parts["state"][0] < 1e-4


@pytest.mark.long
def test_steps_with_a_memory_are_noticed():
    rng = np.random.default_rng(1)
    quiet_or_wild = np.repeat(rng.choice([1.0, 16.0], 200), 50)  # volatility that stays for a while
    dx = np.sqrt(2 * quiet_or_wild * DT) * rng.standard_normal(10_000)
    data = Trajectories.from_arrays(np.concatenate([[0.0], np.cumsum(dx)]), dt=DT).transitions()
    found = quiet(recover, data, alpha=0.8, n_basis=1)
    assert quiet(diagnose, found, data, checks=("fit",)).fit.parts["memory"][0] < 1e-6


@pytest.mark.long
def test_anisotropic_steps_are_noticed():
    rng = np.random.default_rng(2)
    n = 4000
    dx = rng.standard_normal((n, 2)) * [0.6, 0.4] + 0.02 * stable(1.2, n, rng)[:, None]
    data = Transitions(rng.uniform(0, 2 * np.pi, (n, 2)), dx, DT)
    found = quiet(recover, data, alpha=0.6, n_basis=1)
    assert quiet(diagnose, found, data, checks=("fit",)).fit.parts["direction"][0] < 1e-6


@pytest.mark.long
def test_gaussian_data_need_no_jumps():
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 2 * np.pi, 8000)
    data = Transitions(x, np.sin(x) * DT + np.sqrt(2 * (2 + np.cos(x)) * DT) * rng.standard_normal(8000), DT)
    found = quiet(recover, data, alpha=0.5, n_basis=3, law="frozen", D_f=1e-12)
    with pytest.warns(LevytorchWarning, match="without jumps"):
        diagnosis = diagnose(found, data, checks=("jumps",))
    assert not diagnosis.jumps.needed
    assert diagnosis.jumps.extra == 0  # both laws are Gaussian, fitted in two ways
    assert abs(diagnosis.jumps.gain) < 1  # the check compares sums over bins of x
    found = quiet(recover, data, alpha="learn", n_basis=3, law="frozen")
    assert "D_f" in found.metrics["at_zero"]
    diagnosis = diagnose(found, data, checks=("fit", "jumps"))
    assert "no jumps" in diagnosis.jumps.reason
    assert not diagnosis.alarms


@pytest.mark.parametrize("kind", ["none", "tcf", "TRT"])
def test_jumps_are_needed_where_there_are_any(kind):
    data = data_of(kind, 5000, 5)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
    jumps = quiet(diagnose, found, data, checks=("jumps",)).jumps
    assert jumps.needed
    assert jumps.bic > 50
    if kind == "none":
        # the Gaussian's own maximum in closed form, however huge its width
        variance = float(data.dx.var(unbiased=False))
        expected = found.log_likelihood + 0.5 * len(data) * (math.log(2 * math.pi * variance) + 1)
        assert jumps.gain == pytest.approx(expected, rel=1e-6)
