"""Fits to a lattice: the numbers of the samples, data that keeps arriving, and what a lattice cannot do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from levytorch import InputError, Lattice, Transitions
from tests.training.problems import frozen_recover as recover
from tests.training.problems import steps, variable

PAPER = {"CT": 8.0, "TRT": 20.0}
SYSTEMS = {
    "constant": (lambda: steps(100_000, 1), {"alpha": 0.3, "n_basis": 1}),
    "constant, alpha learned": (lambda: steps(100_000, 1), {"alpha": "learn", "n_basis": 1}),
    "variable": (lambda: variable(100_000, 1), {"alpha": 0.3, "n_basis": 9}),
    "tcf": (lambda: variable(100_000, 1).censor(seed=1), {"alpha": 0.3, "n_basis": 5, "tail": PAPER}),
    "conditional": (
        lambda: variable(100_000, 1).censor(seed=1),
        {"alpha": 0.3, "n_basis": 5, "tail": {**PAPER, "method": "conditional", "region": "strata"}},
    ),
}


def apart(a, b) -> float:
    """Largest difference of parameters, in standard errors; of heads in the same units."""
    assert a.head.units == b.head.units
    return float(((a.theta - b.theta).abs() / b.covariance.diagonal().sqrt()).max())


def coefficients_apart(a, b) -> float:
    """Largest difference of the coefficients over the cell, in standard errors: whatever the internal units are."""
    x = torch.linspace(0, 2 * np.pi, 33, dtype=torch.float64)
    pairs = zip((a.b(x), a.D_o(x), a.D_f(x)), (b.b(x), b.D_o(x), b.D_f(x)), b.std(x))
    return max(float(((one - two).abs() / std).max()) for one, two, std in pairs)


@pytest.mark.long
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_estimates_are_those_of_the_samples(name):
    make, options = SYSTEMS[name]
    data = make()
    samples = recover(data, **options, engine="fisher", lattice="never")
    by_lattice = recover(data, **options, engine="fisher", lattice="always")
    assert apart(by_lattice, samples) < 0.02
    assert by_lattice.log_likelihood == pytest.approx(samples.log_likelihood, abs=0.01)
    thresholds = {k: v for k, v in options.get("tail", {}).items() if k in PAPER}
    alone = recover(data.lattice(**thresholds), **options, engine="fisher")
    assert coefficients_apart(alone, samples) < 0.02
    assert alone.tcf == pytest.approx(samples.tcf, abs=1e-4)
    assert alone.metrics["n_main"] == samples.metrics["n_main"]
    assert alone.metrics["n_tail"] == samples.metrics["n_tail"]


@pytest.mark.long
def test_today_is_added_to_yesterday(tmp_path):
    both = variable(80_000, 2)
    cut = 30_000
    yesterday, today = both[:cut], both[cut:]
    first = yesterday.lattice()
    first.save(tmp_path / "yesterday.npz")
    later = Lattice.load(tmp_path / "yesterday.npz")
    summed = recover(later + today.lattice(like=later), alpha=0.3, n_basis=5)
    at_once = recover(both.lattice(like=first), alpha=0.3, n_basis=5)
    assert coefficients_apart(summed, at_once) < 1e-3
    assert coefficients_apart(summed, recover(both, alpha=0.3, n_basis=5, lattice="never")) < 0.02
    assert summed.log_likelihood == pytest.approx(at_once.log_likelihood, rel=1e-10)


def test_what_a_lattice_cannot_do_is_refused():
    lattice = variable(20_000).lattice()
    for options, words in (
        ({"engine": "adam"}, "cannot be drawn from"),
        ({"validation": 0.2}, "must be the pairs themselves for validation"),
        ({"tail": PAPER}, "that of the lattice"),
        ({"period": 3.0}, "cell of the lattice"),
    ):
        with pytest.raises(InputError, match=words):
            recover(lattice, alpha=0.3, n_basis=3, **options)
    with pytest.raises(InputError, match="tail pool"):
        recover(lattice, alpha=0.3, n_basis=3, tail={"method": "tcf", "CT": "auto"})
    with pytest.raises(InputError, match="Transitions, Trajectories, a Lattice"):
        recover(1.0, alpha=0.3)


def test_lattices_of_other_pools_do_not_add():
    data = variable(20_000)
    with pytest.raises(InputError, match="same pools"):
        data.lattice() + data.lattice(CT=8.0)


@pytest.mark.long
def test_blocks_of_a_lattice_serve_all_uses():
    """Made once with blocks, a lattice gives robust errors, K and comparisons without the pairs."""
    x = np.repeat(np.arange(500), 100)
    pairs = variable(50_000, 4)
    lattice = Transitions(pairs.x, pairs.dx, pairs.dt, trajectory=x).lattice(n_blocks=20)
    found = recover(lattice, alpha=0.3, n_basis="auto")
    ratio = torch.stack(found.std(1.0, kind="robust")) / torch.stack(found.std(1.0))
    assert 0.3 < float(ratio.min()) <= float(ratio.max()) < 2.0  # 20 blocks: 16 % each


@pytest.mark.long
def test_a_fit_on_a_lattice_copies_no_pairs(monkeypatch):
    """What lies beyond TRT is left out by its weight: a copy of the rest would be as large as the data."""
    data = variable(100_000, 1)
    options = {"alpha": 0.3, "n_basis": 3, "tail": PAPER, "engine": "fisher"}
    samples = recover(data, **options, lattice="never")

    def refuse(*arguments):
        raise AssertionError("pairs were copied")

    monkeypatch.setattr(Transitions, "_without", refuse)
    found = recover(data, **options, lattice="always")
    assert found.metrics["left_out"] == samples.metrics["left_out"]
    assert found.metrics["left_out"]["beyond TRT"] > 100
    assert apart(found, samples) < 0.02
    assert found.log_likelihood == pytest.approx(samples.log_likelihood, abs=0.01)
