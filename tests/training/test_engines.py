"""Engines agree where they should: adam and lbfgs against fisher, finite differences against direct gradients."""

import pytest
import torch

from levytorch.errors import LevytorchWarning
from levytorch.training.averaging import MovingAverage, has_settled
from tests.training.problems import ALPHA, constant
from tests.training.problems import frozen_recover as recover

PAPER = {"CT": 8.0, "TRT": 20.0}


def values(found):
    return torch.stack([found.b(0.0), found.D_o(0.0), found.D_f(0.0)])


@pytest.mark.parametrize("tail", [None, PAPER, {**PAPER, "method": "conditional"}], ids=["none", "tcf", "conditional"])
def test_lbfgs_and_fisher_find_the_same_point(tail):
    data = constant(20_000, 1).censor()
    fisher = recover(data, alpha=ALPHA, n_basis=1, tail=tail)
    lbfgs = recover(data, alpha=ALPHA, n_basis=1, tail=tail, engine="lbfgs", tolerance=1e-5)
    torch.testing.assert_close(values(lbfgs), values(fisher), rtol=2e-3, atol=0)


@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="stratified"), pytest.param({"mixing": "bernoulli"}, id="bernoulli", marks=pytest.mark.slow)],
)
def test_adam_comes_close_to_fisher(options):
    data = constant(20_000, 1).censor()
    fisher = recover(data, alpha=ALPHA, n_basis=1, tail=PAPER)
    adam = recover(
        data,
        alpha=ALPHA,
        n_basis=1,
        tail={**PAPER, "start": 200},
        engine="adam",
        max_steps=1500,
        window=1000,
        **options,
    )
    assert adam.metrics["steps"] == 1500
    # noise of 1000 averaged batches of 100: a few standard errors of 100,000 pairs
    for a, f, tolerance in zip(values(adam), values(fisher), (0.08, 0.05, 0.25)):
        assert abs(float(a / f) - 1) < tolerance


@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_paper_literal_settings_run():
    found = recover(
        constant(5000, 1).censor(),
        alpha=ALPHA,
        n_basis=3,
        tail={**PAPER, "R_theta": "mean", "start": 20},
        engine="adam",
        max_steps=60,
        window=20,
        init="random",
        units="none",
        positivity="clamp",
        mixing="bernoulli",
    )
    assert found.metrics["steps"] == 60
    assert found.tcf > 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
@pytest.mark.parametrize("gradient", ["finite_difference", "mixture"])
def test_finite_difference_gradients_climb(gradient):
    data = constant(5000, 1)
    found = recover(data, alpha=ALPHA, n_basis=1, engine="adam", gradient=gradient, max_steps=300, window=100)
    fisher = recover(data, alpha=ALPHA, n_basis=1)
    assert found.log_likelihood > fisher.log_likelihood - 30


@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_mlp_learns_constants():
    data = constant(10_000, 1)
    found = recover(data, alpha=ALPHA, coefficients="mlp", width=4, depth=1, max_steps=8)
    fourier = recover(data, alpha=ALPHA, n_basis=1)
    x = torch.linspace(0, 6, 7, dtype=torch.float64)
    assert float((found.D_o(x) / fourier.D_o(x) - 1).abs().max()) < 0.15
    assert found.log_likelihood > fourier.log_likelihood - 5


def test_short_windows_are_warned_about():
    with pytest.warns(LevytorchWarning, match="n_min / TCF"):
        recover(
            constant(5000, 1).censor(),
            alpha=ALPHA,
            n_basis=1,
            tail={**PAPER, "start": 5},
            engine="adam",
            max_steps=20,
            window=10,
        )


def test_runs_are_reproducible():
    options = {"alpha": ALPHA, "n_basis": 1, "engine": "adam", "max_steps": 50, "window": 20}
    with pytest.warns(LevytorchWarning):
        a, b = recover(constant(5000, 1), **options), recover(constant(5000, 1), **options)
    assert torch.equal(a.theta, b.theta)


def test_moving_average_as_block_sums():
    average = MovingAverage(window=1000)
    thetas = torch.randn(2300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for theta in thetas:
        average.add(theta)
    assert average.steps == 1000
    torch.testing.assert_close(average.average(), thetas[-1000:].mean(0))
    again = MovingAverage(window=1000)
    again.load_state_dict(average.state_dict())
    assert torch.equal(again.average(), average.average())
    for theta in thetas[:7]:
        average.add(theta)
    assert average.steps == 1007
    assert len(average.sums) == 100


def test_convergence_of_the_average():
    noise = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert has_settled(3.0 + 1e-3 * noise, 2e-3)
    assert not has_settled(3.0 + 0.5 * noise, 2e-3)
    assert not has_settled(torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(1) + 1e-3 * noise, 2e-3)
