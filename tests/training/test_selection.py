"""How many basis functions and how strong a penalty, by cross-validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from levytorch import InputError
from levytorch.coefficients import build_head
from levytorch.data.lattice import Lattice
from levytorch.training.blocks import PairBlocks
from levytorch.training.selection import NumberOfFunctions, Selection, folds, padded
from tests.data.folds import fold
from tests.training.problems import constant, steps, truth, variable
from tests.training.problems import frozen_recover as recover

X = torch.linspace(0, 2 * np.pi, 65, dtype=torch.float64)[:-1]


def error(found) -> float:
    """Sum of squared errors of b, D_o, D_f over one cell, each in units of the true function's size."""
    got = (found.b(X), found.D_o(X), found.D_f(X))
    return sum(float((g - t).square().sum() / t.square().sum()) for g, t in zip(got, truth(X)))


def test_constants_need_one_function():
    found = recover(constant(), alpha=0.3, n_basis="auto")
    selection = found.metrics["selection"]
    assert selection["of"] == "n_basis"
    assert selection["chosen"] == found.head.n_basis
    # a useless pair of functions in three coefficients loses about 3 in log-likelihood, with a scatter of as much
    assert found.head.n_basis <= 5
    assert len(selection["candidates"]) < 12  # it has stopped early


@pytest.mark.long
def test_variable_system_gets_the_waves_it_has():
    data = variable()
    found = recover(data, alpha=0.3, n_basis="auto")
    selection = found.metrics["selection"]
    assert found.head.n_basis >= 5  # D_f has a second harmonic
    scores = dict(zip(selection["candidates"], selection["held_out"]))
    assert scores[5] - scores[3] > 0
    assert selection["difference"][selection["candidates"].index(1)] < -3 * selection["difference_std"][0]
    best = min(error(recover(data, alpha=0.3, n_basis=K)) for K in (3, 5, 7, 9, 11))
    assert error(found) <= 1.5 * best


@pytest.mark.long
def test_held_out_scores_are_those_of_fits_to_the_other_folds():
    """The chords end where independent fits do, and the score is the held-out likelihood."""
    lattice = variable().lattice(n_blocks=20)
    found = recover(lattice, alpha=0.3, n_basis="auto")
    selection = found.metrics["selection"]
    for K in (3, 5):
        total = 0.0
        for k in range(5):
            train, held = fold(lattice, k, 5)
            fitted = recover(train, alpha=0.3, n_basis=K, engine="fisher")
            law, batch = fitted.blocks.law, held.batch()
            with torch.no_grad():
                total += float((batch.weight * law.log_prob(fitted.head, batch.x, batch.dx, batch.dt)).sum())
        told = selection["held_out"][selection["candidates"].index(K)] * len(lattice)
        assert told == pytest.approx(total, abs=0.05)  # of thousands; differences between K are of order 1 and more


def test_single_trajectory_is_cut_into_blocks_of_time():
    data = variable(20_000, seed=3)
    assert data.n_trajectories == 1
    blocks = PairBlocks(recover(data, alpha=0.3, n_basis=3).blocks.observed)
    ids = blocks.main.weight
    assert bool((ids[1:] >= ids[:-1]).all())
    assert int(ids.max()) == blocks.n_blocks - 1
    total = sum(held for held, _ in folds(blocks))
    assert bool((total == 1).all())


@pytest.mark.long
def test_penalty_by_cross_validation_smooths_and_fits():
    data = variable(20_000, seed=5)
    plain = recover(data, alpha=0.3, n_basis=21, engine="fisher")
    chosen = recover(data, alpha=0.3, n_basis=21, engine={"name": "fisher", "penalty": "cross_validation"})
    assert chosen.metrics["selection"]["of"] == "penalty"
    assert error(chosen) < 0.7 * error(plain)
    evidence = recover(data, alpha=0.3, n_basis=21, penalty="evidence")
    factor = np.array(chosen.metrics["penalty_strengths"]) / np.array(evidence.metrics["penalty_strengths"])
    assert np.allclose(factor, chosen.metrics["selection"]["chosen"], rtol=0.1)


@pytest.mark.long
def test_constants_of_a_preliminary_fit_leave_nothing_open(monkeypatch):
    """CT of Appendix A is that of constants, whatever is left to cross-validation afterwards."""
    chosen, choose = [], NumberOfFunctions.chosen
    monkeypatch.setattr(NumberOfFunctions, "chosen", lambda self: (chosen.append(self), choose(self))[1])
    data = variable(20_000, seed=5)
    found = recover(data, alpha=0.3, n_basis="auto", tail="auto")
    assert len(chosen) == 1
    assert found.metrics["CT"] == recover(data, alpha=0.3, n_basis=1, tail="auto").metrics["CT"]


def test_padding_changes_no_coefficient():
    small = build_head({"name": "fourier", "n_basis": 3, "period": 6.0, "alpha": 0.4, "alpha_mode": "constant"})
    large = build_head({"name": "fourier", "n_basis": 7, "period": 6.0, "alpha": 0.4, "alpha_mode": "constant"})
    small.set_flat(torch.linspace(-0.5, 0.7, small.flat().numel(), dtype=torch.float64))
    large.set_flat(padded(small, large))
    for a, b in zip(small(X), large(X)):
        torch.testing.assert_close(a, b)


def test_selection_takes_the_simplest_of_equals_and_stops_when_it_has_turned():
    selection = Selection("n_basis", pairs=torch.full((4,), 10.0, dtype=torch.float64))
    for K, value in ((1, -5.0), (3, -4.0), (5, -4.0)):
        selection.add(K, torch.full((4,), value, dtype=torch.float64))
        assert not selection.turned
    assert selection.candidates[selection.best] == 3
    for K in (7, 9):
        selection.add(K, torch.tensor([-4.5, -4.6, -4.4, -4.5], dtype=torch.float64))
    assert selection.turned


@pytest.mark.parametrize("data", [lambda: variable().lattice(n_blocks=1), lambda: variable().lattice(n_blocks=3)])
def test_lattices_without_enough_blocks_are_refused(data):
    lattice: Lattice = data()
    with pytest.raises(InputError, match="n_blocks=60"):
        recover(lattice, alpha=0.3, n_basis="auto")


def test_words_that_mean_nothing_are_refused():
    with pytest.raises(InputError):
        recover(constant(), alpha=0.3, n_basis="many")
    with pytest.raises(InputError):
        recover(constant(), alpha=0.3, engine={"name": "fisher", "penalty": "folds"})


@pytest.mark.slow
def test_two_dimensions_by_samples():
    rng = np.random.default_rng(0)
    from levytorch import Transitions

    n = 1500
    x = rng.uniform(0, 2 * np.pi, (n, 2))
    dx = 0.1 * np.sin(x) + 0.3 * rng.standard_normal((n, 2)) + 0.01 * rng.standard_cauchy((n, 1))
    found = recover(Transitions(x, dx, 0.1), alpha=0.5, n_basis="auto", max_steps=20)
    assert found.head.dim == 2
    assert found.metrics["selection"]["chosen"] == found.head.n_basis


@pytest.mark.slow
def test_selection_under_every_treatment_of_tails():
    data = steps(60_000, 2).censor(seed=1)
    for method in ("tcf", "conditional"):
        found = recover(data, alpha=0.3, n_basis="auto", tail={"CT": 8.0, "TRT": 20.0, "method": method})
        assert found.head.n_basis <= 5
        assert all(np.isfinite(found.metrics["selection"]["held_out"]))
