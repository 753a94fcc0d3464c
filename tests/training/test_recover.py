"""recover(): truths recovered, lost tails corrected, and the facts that are known about them."""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch

import levytorch
from levytorch import log_density, tail_probability
from levytorch.coefficients.build import OPTIONS
from levytorch.data import Transitions
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import LevyStep
from levytorch.training.engines.base import ENGINES, engine_options
from levytorch.training.settings import _NOT_OPTIONS, DATA_OPTIONS, FIT_OPTIONS, Options
from tests.training.problems import ALPHA, D_F, D_O, DT, B, constant, truth, variable
from tests.training.problems import frozen_recover as recover

PAPER = {"CT": 8.0, "TRT": 20.0}


def population(n: int = 90_000, drop: int = 1) -> Transitions:
    """Quantiles of the law in place of a sample, cut at TRT; of those beyond CT only every drop-th is kept."""
    grid = np.sinh(np.linspace(-6, 6, 6001))
    law = LevyStep(0.0, D_O, D_F, ALPHA, DT)
    cdf = law.cdf(torch.from_numpy(grid)).numpy()
    inside = float(law.cdf(torch.tensor(20.0))) - float(law.cdf(torch.tensor(-20.0)))
    u = float(law.cdf(torch.tensor(-20.0))) + inside * (np.arange(n) + 0.5) / n
    dx = np.interp(u, cdf, grid)
    tail = np.flatnonzero(np.abs(dx) > 8.0)
    keep = np.ones(n, dtype=bool)
    for side in (dx[tail] < 0, dx[tail] > 0):
        keep[np.delete(tail[side], np.s_[::drop])] = False
    return Transitions(np.zeros(keep.sum()), dx[keep], DT, mu=0.0)


def test_unbiased_constants_within_their_errors():
    found = recover(constant(), alpha=ALPHA, n_basis=1)
    for value, std, expected in zip((found.b(0.0), found.D_o(0.0), found.D_f(0.0)), found.std(0.0), (B, D_O, D_F)):
        assert abs(float(value) - expected) < 4 * float(std)
    assert found.converged
    assert found.tcf == 0.0
    assert found.alpha == ALPHA
    assert found.alpha_std == 0.0
    assert math.isfinite(found.log_likelihood)


def test_lost_tails_bias_D_f_and_both_corrections_remove_it():
    data = constant(100_000, 3).censor()
    plain = recover(data, alpha=ALPHA, n_basis=1)
    assert 0.25 < 1 - float(plain.D_f(0.0)) / D_F < 0.32
    for method in ("tcf", "conditional"):
        found = recover(data, alpha=ALPHA, n_basis=1, tail={**PAPER, "method": method})
        assert abs(float(found.D_f(0.0)) - D_F) < 4 * float(found.std(0.0)[2])
        assert abs(float(found.D_f(0.0)) - D_F) < 0.06 * D_F


@pytest.mark.parametrize("drop", [1, 2, 5])
def test_fixed_point_of_the_tcf_does_not_depend_on_what_was_dropped(drop):
    found = recover(population(drop=drop), alpha=ALPHA, n_basis=1, tail=PAPER)
    assert float(found.D_f(0.0)) == pytest.approx(2.992, abs=0.004)
    assert found.metrics["R_theta"] == pytest.approx(0.0164, abs=2e-4)


@pytest.mark.parametrize("drop", [1, 2, 5])
def test_conditional_likelihood_is_exact_whatever_was_dropped(drop):
    found = recover(population(drop=drop), alpha=ALPHA, n_basis=1, tail={**PAPER, "method": "conditional"})
    assert float(found.D_f(0.0)) == pytest.approx(D_F, abs=0.004)
    assert float(found.D_o(0.0)) == pytest.approx(D_O, abs=0.004)


def test_conditional_likelihood_learns_alpha_from_cut_data():
    found = recover(population(), alpha="learn", n_basis=1, tail={"TRT": 20.0, "method": "conditional"})
    assert found.alpha == pytest.approx(ALPHA, abs=0.002)


def test_learning_alpha_with_the_tcf_is_refused():
    with pytest.raises(InputError, match="conditional"):
        recover(constant(), alpha="learn", n_basis=1, tail=PAPER)


def test_fixed_point_needs_few_passes():
    found = recover(constant(100_000, 3).censor(), alpha=ALPHA, n_basis=1, tail=PAPER)
    assert found.metrics["steps"] <= 12


def test_variable_coefficients_within_their_bands():
    found = recover(variable(), alpha=ALPHA, n_basis=5)
    x = torch.linspace(0, 2 * math.pi, 60, dtype=torch.float64)
    values = (found.b(x), found.D_o(x), found.D_f(x))
    for value, std, expected in zip(values, found.std(x), truth(x)):
        z = (value - expected) / std
        assert float(z.abs().max()) < 4.5
        assert float((z.abs() < 2).double().mean()) > 0.6


def test_prices_and_small_positions_give_the_same_answer():
    data = constant()
    base = recover(data, alpha=ALPHA, n_basis=3)
    scale = 1e5
    scaled = Transitions(data.x * scale, data.dx * scale, DT)
    found = recover(scaled, alpha=ALPHA, n_basis=3, period=2 * math.pi * scale)
    x = torch.tensor([0.3, 2.0], dtype=torch.float64)
    torch.testing.assert_close(found.b(x * scale) / scale, base.b(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.D_o(x * scale) / scale**2, base.D_o(x), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.D_f(x * scale) / scale ** (2 * ALPHA), base.D_f(x), rtol=1e-6, atol=0)


def test_origin_only_names_the_cell():
    base = recover(variable(20_000, 1), alpha=ALPHA, n_basis=5)
    moved = recover(variable(20_000, 1), alpha=ALPHA, n_basis=5, origin=-1.3)
    x = torch.linspace(0, 6, 7, dtype=torch.float64)
    torch.testing.assert_close(moved.D_f(x), base.D_f(x), rtol=1e-5, atol=1e-5)


def test_uneven_sampling():
    rng = np.random.default_rng(0)
    parts = [constant(20_000, 5)]
    from tests.training.problems import steps

    parts.append(steps(20_000, 6, dt=3 * DT))
    x, dx = (torch.cat([getattr(p, k) for p in parts]) for k in ("x", "dx"))
    dt = torch.cat([p.dt for p in parts])
    order = torch.from_numpy(rng.permutation(40_000))
    data = Transitions(x[order], dx[order], dt[order])
    for tail in (None, {"CT": 8.0}):
        found = recover(data, alpha=ALPHA, n_basis=1, tail=tail)
        for value, std, expected in zip((found.b(0.0), found.D_o(0.0), found.D_f(0.0)), found.std(0.0), (B, D_O, D_F)):
            assert abs(float(value) - expected) < 4 * float(std)


def test_auto_tail_names_a_threshold_beyond_the_gaussian():
    found = recover(constant(), alpha=ALPHA, n_basis=1, tail="auto")
    assert found.metrics["CT"] > 3 * math.sqrt(2 * D_O * DT)
    assert abs(float(found.D_f(0.0)) - D_F) < 4 * float(found.std(0.0)[2])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["half lost beyond 8", "cut at 20", "whole"])
def test_a_guessed_threshold_does_not_bias_a_learned_alpha(kind):
    """Steps lost beyond 8 lie in the middle of the stratum beyond a guessed CT of 2.3: alpha came out as 0.48."""
    data = constant(80_000, 5)
    if kind != "whole":
        data = data.censor() if kind == "half lost beyond 8" else data.censor(CT=None, drop_tail=0.0)
    said = "all of those are left out" if kind == "half lost beyond 8" else "none are assumed"
    with pytest.warns(LevytorchWarning, match=said):
        found = recover(data, alpha="learn", n_basis=1, tail="auto")
    assert abs(found.alpha - ALPHA) < 4 * found.alpha_std
    assert found.metrics["region"] == "TRT"
    assert (found.metrics["TRT"] < 8) == (kind == "half lost beyond 8")


def test_a_tail_that_is_cut_and_not_corrected_is_said():
    with pytest.warns(LevytorchWarning, match="pairs lie beyond tail.TRT = 3 and are left out without a correction"):
        found = recover(constant(), alpha=ALPHA, n_basis=1, tail={"method": "none", "TRT": 3.0})
    assert float(found.D_f(0.0)) < 0.5 * D_F  # what the sentence is about
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recover(constant().censor(), alpha=ALPHA, n_basis=1, tail={"method": "none", "TRT": 20.0})  # none are left


@pytest.mark.parametrize("region", ["strata", "TRT", "CT"])
def test_the_region_is_what_was_conditioned_on(region):
    tail = {**PAPER, "method": "conditional", "region": region}
    found = recover(constant().censor(), alpha=ALPHA, n_basis=1, tail=tail)
    assert found.metrics["region"] == ("TRT" if region == "CT" else region)  # CT plays TRT's part
    assert found.metrics["TRT"] == (8.0 if region == "CT" else 20.0)


@pytest.mark.long
@pytest.mark.parametrize("tail", [None, PAPER, {**PAPER, "method": "conditional", "region": "strata"}], ids=str)
@pytest.mark.parametrize("engine", ["adam", "lbfgs"])
def test_the_likelihood_of_an_mlp_is_that_of_all_pairs(engine, tail):
    data = constant(12_000, 1).censor()
    options = {"max_steps": 60, "window": 30} if engine == "adam" else {"max_steps": 3}
    if isinstance(tail, dict):
        tail = {**tail, "start": 0, "min_tail": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(data, alpha=ALPHA, coefficients="mlp", engine=engine, tail=tail, **options)
    c, step = found.coefficients(data.x), data.dx - data.mu
    law = {"D_o": c.D_o, "D_f": c.D_f, "alpha": ALPHA, "dt": DT}
    log_p = log_density(data.dx, b=c.b, **law)
    beyond = lambda threshold: tail_probability(threshold, data.mu, b=c.b, **law)  # noqa: E731
    middle = step.abs() > 8.0
    weight = torch.ones_like(log_p)
    if tail is not None and tail.get("method") == "conditional":
        assert found.metrics["region"] == "strata"
        kept = torch.where(middle, torch.log(beyond(8.0) - beyond(20.0)), torch.log1p(-beyond(8.0)))
        log_p = log_p - kept
    elif tail is not None:
        beyond_CT = step.abs() > found.metrics["CT"]
        weight = (1 - found.tcf) * weight + found.tcf * beyond_CT * len(data) / beyond_CT.sum()
    expected = float((weight * log_p).sum())
    # kept masses are those of 512 states instead of every one
    assert found.log_likelihood == pytest.approx(expected, rel=1e-6 if tail is None else 1e-4)


@pytest.mark.parametrize("batch_size", [1000, 2000])
def test_strata_keep_their_threshold_whatever_the_batch(batch_size):
    tail = {**PAPER, "method": "conditional", "region": "strata", "min_tail": 20}
    options = {"engine": "adam", "max_steps": 3, "window": 2, "batch_size": batch_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(constant(20_000, 1).censor(), alpha=ALPHA, n_basis=1, tail=tail, **options)
        few = recover(constant(4000, 1).censor(), alpha=ALPHA, n_basis=1, tail={**PAPER, "min_tail": 5}, **options)
    assert (found.metrics["CT"], few.metrics["CT"]) == (8.0, 8.0)


def test_alpha_as_a_function_of_x():
    found = recover(constant(20_000, 2), alpha="function", n_basis=1, n_basis_alpha=3)
    x = torch.linspace(0, 6, 5, dtype=torch.float64)
    assert callable(found.alpha)
    z = (found.alpha_at(x) - ALPHA) / found.alpha_std(x)
    assert float(z.abs().max()) < 4.5


def test_hardly_separable_parts_are_reported():
    from tests.training.problems import steps

    with pytest.warns(LevytorchWarning, match="separable"):
        recover(steps(3000, 1, alpha=0.97), alpha=0.97, n_basis=1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_basis": 4}, "odd"),
        ({"n_basis": 0}, "odd"),
        ({"period": 0.0}, "period"),
        ({"period": -2.0}, "period"),
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": "free"}, "alpha"),
        ({"coefficients": "wavelet"}, "fourier, spline, periodic_spline, polynomial, product, mlp"),
        ({"coefficients": "mlp", "engine": "fisher", "penalty": "harmonics"}, "Fourier head"),
        ({"engine": "sgd"}, "adam"),
        ({"tail": "cut"}, "tail"),
        ({"tail": {"CT": 30.0, "TRT": 20.0}}, "below TRT"),
        ({"tail": {"CT": -1.0}}, "CT"),
        ({"tail": {"ct": 8.0}}, "ct"),
        ({"tail": {"method": "magic"}}, "magic"),
        ({"tail": {"method": "conditional"}}, "CT or TRT must be given"),
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"init": "zeros"}, "init"),
        ({"seed": -1}, "seed"),
        ({"penalty": "some"}, "penalty"),
        ({"coefficients": "mlp", "periodic": False, "period": 3.0}, "window"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(options, match):
    with pytest.raises(InputError, match=match) as error:
        recover(constant(), **{"alpha": ALPHA, "n_basis": 1, **options})
    assert "\n" not in str(error.value)


def test_too_little_data_is_refused():
    with pytest.raises(InputError, match="pairs"):
        recover(constant()[:30], alpha=ALPHA, n_basis=21)
    with pytest.raises(InputError, match="dt or times must be given, found neither"):
        recover(constant().x, alpha=ALPHA)


def test_every_keyword_of_recover_is_told():
    """`Options` has what heads, engines and batches take, and nothing else."""
    named = set(inspect.signature(levytorch.recover).parameters)
    heads = set().union(*OPTIONS.values()) - _NOT_OPTIONS
    engines = set().union(*(engine_options(name) for name in ENGINES))
    assert set(Options.__annotations__) == (heads | engines | DATA_OPTIONS | FIT_OPTIONS) - named
