"""Models compared on the same data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from levytorch import InputError, Recovery, Transitions, compare
from tests.data.folds import fold
from tests.training.problems import constant, steps, variable
from tests.training.problems import frozen_recover as recover

PAPER = {"CT": 8.0, "TRT": 20.0}


def test_the_right_alpha_is_preferred_held_out():
    fits = {f"alpha {a}": recover(constant(), alpha=a, n_basis=1) for a in (0.3, 0.45)}
    found = compare(fits)
    assert found.held_out
    assert found.preferred == "alpha 0.3"
    assert found.rows[1].difference < -5 * found.rows[1].difference_std
    assert found.rows[0].aic < found.rows[1].aic
    assert "standard errors" in found.sentence
    assert "alpha 0.3" in repr(found)


def test_useless_functions_do_not_win():
    data = constant()
    found = compare([recover(data, alpha=0.3, n_basis=K) for K in (1, 5)])
    by_size = {row.parameters: row for row in found.rows}
    # 12 useless parameters cost about 6 of log-likelihood held out, with a scatter of (2 * 12)^(1/2)
    assert by_size[3].log_likelihood > by_size[15].log_likelihood - 6 / len(data)
    simplest = found.rows[0] if found.rows[0].parameters == 3 else found.rows[1]
    assert simplest.model in found.sentence


@pytest.mark.long
def test_held_out_likelihood_is_that_of_folds():
    lattice = variable().lattice(n_blocks=20)
    found = compare([recover(lattice, alpha=0.3, n_basis=5)])
    total = 0.0
    for k in range(5):
        train, held = fold(lattice, k, 5)
        fitted, batch = recover(train, alpha=0.3, n_basis=5), held.batch()
        with torch.no_grad():
            log_p = fitted.blocks.law.log_prob(fitted.head, batch.x, batch.dx, batch.dt)
        total += float((batch.weight * log_p).sum())
    assert found.rows[0].log_likelihood * len(lattice) == pytest.approx(total, abs=0.05)


def test_given_data_includes_a_law_without_jumps():
    data = constant()
    found = compare({"jumps": recover(data, alpha=0.3, n_basis=1)}, data)
    assert [row.model for row in found.rows] == ["jumps", "without jumps"]
    assert not found.held_out
    assert found.rows[1].parameters == 2
    assert found.rows[0].log_likelihood * len(data) == pytest.approx(-found.rows[0].aic / 2 + 3)
    assert found.rows[1].difference < -5 * found.rows[1].difference_std


def test_a_system_without_jumps_is_not_said_to_have_them():
    rng = np.random.default_rng(0)
    data = Transitions(rng.uniform(0, 6, 20_000), 0.1 + 0.3 * rng.standard_normal(20_000), 0.1)
    with pytest.warns(match="D_f is estimated as zero"):
        fitted = recover(data, alpha=0.3, n_basis=1)
    found = compare({"jumps": fitted}, data)
    plain = next(row for row in found.rows if row.model == "without jumps")
    assert plain.aic < next(row for row in found.rows if row.model == "jumps").aic
    assert "without jumps" in found.sentence


@pytest.mark.long
def test_treatments_of_tails_are_compared_on_what_they_share():
    data = steps(60_000, 1).censor(seed=2)
    fits = {
        "tcf": recover(data, alpha=0.3, n_basis=1, tail=PAPER),
        "none": recover(data, alpha=0.3, n_basis=1),
    }
    with pytest.raises(InputError, match="treat lost tails in the same way"):
        compare(fits)
    found = compare(fits, data)
    rows = {row.model: row for row in found.rows}
    assert set(rows) == {"tcf", "none", "without jumps"}
    # D_f without correction is too small by a tenth and more: the core alone tells
    assert rows["tcf"].log_likelihood > rows["none"].log_likelihood
    held = compare({"tcf": fits["tcf"], "wrong": recover(data, alpha=0.6, n_basis=1, tail=PAPER)})
    assert held.preferred == "tcf"


def test_refusals(tmp_path):
    found = recover(constant(), alpha=0.3, n_basis=1)
    for wrong in ([], {}, "a", [1], found):
        with pytest.raises(InputError, match="recoveries must"):
            compare(wrong)
    loaded = Recovery.load(found.save(tmp_path / "r.pt"))
    with pytest.raises(InputError, match="pass transitions"):
        compare([found, loaded])
    assert len(compare([found, loaded], constant()).rows) == 3
    with pytest.raises(InputError, match="same data"):
        compare([found, recover(constant(30_000), alpha=0.3, n_basis=1)])
    with pytest.raises(InputError, match="Transitions"):
        compare([found], [1, 2])
