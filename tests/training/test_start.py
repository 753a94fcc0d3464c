"""A learned alpha from default settings where the states have different scales, and fits that stop too early."""

import math

import numpy as np
import pytest
import torch

from levytorch import LevytorchWarning, Trajectories, Transitions, recover
from levytorch.law import LevyStep
from levytorch.training.settings import make_settings
from levytorch.training.start import guess_from, starting_head
from levytorch.training.trainer import train as fit

DT = 1e-3


def transitions(x, dx):
    return Trajectories.from_arrays(np.stack([x, x + dx], axis=1), dt=DT).transitions()


def circle(n, alpha, growth, seed=1):
    """Steps whose width varies over the circle by e^(2 growth)."""
    torch.manual_seed(seed)
    x = 2 * math.pi * torch.rand(n, dtype=torch.float64)
    scale = torch.exp(growth * torch.sin(x))
    dx = LevyStep(torch.cos(x), scale**2, 0.5 * scale ** (2 * alpha), alpha, DT).sample().to(torch.float64)
    return transitions(x, dx)


def well(n, alpha, seed=1):
    """A double well on a line, D_o and D_f of which vary by factors of 10 and 18 (at alpha = 3/4)."""
    torch.manual_seed(seed)
    x = 4 * torch.rand(n, dtype=torch.float64) - 2
    D_o, D_f = 1 + x + x**2 / 2, (1 - x + x**2) ** (2 * alpha)
    return transitions(x, LevyStep(x - x**3, D_o, D_f, alpha, DT).sample().to(torch.float64))


@pytest.fixture(scope="module")
def scales():
    """Pooled, these steps look like those of alpha = 0.98 without a Brownian part."""
    return circle(20_000, 0.55, growth=1.3)


@pytest.mark.long
def test_states_of_different_scale_do_not_hide_alpha(scales):
    found = recover(scales, alpha="learn", law="frozen")
    assert found.converged
    assert "not_converged" not in found.metrics
    assert abs(found.alpha - 0.55) < 3 * found.alpha_std < 0.3
    x = torch.linspace(0, 2 * math.pi, 25, dtype=torch.float64)
    off = (found.D_o(x) - torch.exp(2.6 * torch.sin(x))) / found.std(x)[1]
    assert off.abs().max() < 4.5


def test_a_lattice_starts_there_too(scales):
    settings = make_settings(alpha="learn")
    pairs, nodes = (guess_from(data, settings) for data in (scales, scales.lattice()))
    assert abs(pairs.alpha - 0.55) < 0.11  # candidates are 0.1 apart
    assert abs(nodes.alpha - 0.55) < 0.11
    x = torch.linspace(0.5, 6.0, 12, dtype=torch.float64)
    for guess in (pairs, nodes):
        head = starting_head(settings, guess, scales)
        with torch.no_grad():
            assert (head(x).D_o / torch.exp(2.6 * torch.sin(x))).log().abs().max() < 1.0  # varies by e^5


@pytest.mark.slow
def test_fits_of_a_lattice_and_of_train_py(scales):
    found = recover(scales.lattice(), alpha="learn", law="frozen")
    assert found.converged
    assert abs(found.alpha - 0.55) < 3 * found.alpha_std
    trained = fit(scales, make_settings(alpha="learn", law="frozen")).recovery
    assert trained.converged
    assert trained.alpha == pytest.approx(recover(scales, alpha="learn", law="frozen").alpha, abs=1e-6)


def test_a_fit_that_stops_too_early_says_what_is_missing(scales):
    with pytest.warns(LevytorchWarning, match="maximum that was not reached"):
        found = recover(scales, alpha="learn", law="frozen", max_steps=2)
    assert not found.converged
    assert "log-likelihood can still be raised by about" in found.metrics["not_converged"]
    assert found.metrics["not_converged"] in repr(found)


def test_a_D_o_that_is_zero_almost_everywhere_is_named_and_leaving_it_out_helps():
    """Steps in the plane are pure jumps but for a few: D_o falls for ever at the others."""
    x = np.random.default_rng(5).normal(size=(600, 2))
    torch.manual_seed(5)
    dx = LevyStep(0.0, 1e-12, 0.05, 0.3, 1.0, dim=2).sample((600,)).numpy()
    few = x[:, 0] > 1.4
    dx[few] += np.random.default_rng(1).normal(size=(few.sum(), 2))
    options = {"alpha": "learn", "period": None, "n_basis": 4, "law": "frozen"}
    with pytest.warns(LevytorchWarning, match="zero at 9. % of the pairs: use D_o=0 and engine='evidence'"):
        found = recover(Transitions(x, dx, 1.0), **options, max_steps=20)
    assert found.metrics["remedy"] in " ".join(found.report.notes)
    assert recover(Transitions(x, dx, 1.0), **options, D_o=0, engine="evidence").converged


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.525, 0.75])
def test_double_wells_on_a_line(alpha):
    found = recover(well(100_000, alpha), alpha="learn", period=None)
    assert found.converged
    assert found.metrics["steps"] < 60
    assert abs(found.alpha - alpha) < 4 * found.alpha_std
