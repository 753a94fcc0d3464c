"""Every second observation: what changes, what chance does, what is said."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from levytorch import Trajectories
from levytorch.diagnostics import Diagnosis, checks, diagnose, step_size
from levytorch.diagnostics.refit import block_starts, two_steps
from levytorch.diagnostics.sample import Region
from levytorch.diagnostics.step_size import Skipped, StepCheck, check_step_size, quadratic
from levytorch.errors import LevytorchWarning
from tests.diagnostics.problems import paths, quiet, walk
from tests.training.problems import ALPHA, DT, steps
from tests.training.problems import frozen_recover as recover


def test_every_second_observation():
    x = [np.arange(6.0), np.array([10.0, 11.0, 13.0, 16.0])]
    data = Trajectories.from_arrays(x, dt=0.5).transitions()
    first = block_starts(data)
    long_ = two_steps(data, first)
    assert long_.x.tolist() == [0.0, 2.0, 10.0]
    assert long_.dx.tolist() == [2.0, 2.0, 3.0]
    assert long_.dt.tolist() == [1.0, 1.0, 1.0]
    mask = torch.tensor([True, False, True, True, True, True, True, True])
    assert two_steps(data[mask], block_starts(data[mask])).x.tolist() == [2.0, 10.0]


@pytest.mark.long
def test_constant_coefficients_do_not_change_with_dt():
    data, found = walk()
    diagnosis = diagnose(found, data)
    assert diagnosis.ok
    assert diagnosis.step_size.p_value > 1e-3
    assert diagnosis.step_size.max_z < 4
    assert diagnosis.step_size.pairs == (len(data), len(data) // 2)


@pytest.mark.long
def test_long_steps_through_changing_coefficients_are_noticed():
    data = paths("variable", 500, DT, 1).transitions()
    with pytest.warns(LevytorchWarning, match="every second observation"):
        diagnosis = diagnose(recover(data, alpha=ALPHA, n_basis=7), data, checks=("step_size",))
    assert diagnosis.step_size.p_value < 1e-4
    assert diagnosis.step_size.change["D_o"] > 0.05


def test_the_covariance_of_the_change_agrees_with_hausman():
    """At the maximum of the whole likelihood the estimates differ by var(2 dt) - var(dt)."""
    data, found = walk()
    step = diagnose(found, data, checks=("step_size",)).step_size
    long_ = two_steps(data, block_starts(data))
    again = recover(long_, alpha=ALPHA, n_basis=1)
    for name, index in (("D_o", 1), ("D_f", 2)):
        wide, narrow = float(again.std(0.0)[index]), float(found.std(0.0)[index])
        assert float(step.curves[f"{name}_std"][0]) == pytest.approx(math.sqrt(wide**2 - narrow**2), rel=0.15)
        assert float(step.curves[f"{name}_2dt"][0]) == pytest.approx(float(getattr(again, name)(0.0)), rel=1e-4)


def test_pairs_without_successors_are_not_compared():
    data = steps(3000, 0)
    diagnosis = diagnose(recover(data, alpha=ALPHA, n_basis=1), data, checks=("step_size",))
    assert isinstance(diagnosis.step_size, Skipped)
    assert "successor" in diagnosis.metrics()["step_size_skipped"]


def test_parameters_that_a_strong_penalty_spares_are_still_compared():
    data, _ = walk()
    found = quiet(recover, data, alpha=ALPHA, n_basis=3)
    step = check_step_size(found.head, data, Region(), strengths=[1e16] * 3)
    assert step.df == 3
    assert 1e-3 < step.p_value < 1
    assert step.p_value == pytest.approx(check_step_size(walk()[1].head, data, Region()).p_value, rel=0.05)


def test_nothing_to_compare_is_said_with_a_remedy(monkeypatch):
    data, found = walk()
    monkeypatch.setattr(step_size, "quadratic", lambda *_: (0.0, 0))
    diagnosis = diagnose(found, data, checks=("step_size",))
    assert diagnosis.text().startswith("step size: not checked, nothing is left to compare")
    assert "use fewer basis functions" in diagnosis.metrics()["step_size_skipped"]
    assert "step_size_p_value" not in diagnosis.metrics()


def test_equations_without_a_solution_are_said_in_our_words(monkeypatch):
    def fails(*_, **__):
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge (error code: 20).")

    data, found = walk()
    monkeypatch.setattr(checks, "check_step_size", fails)
    said = diagnose(found, data, checks=("step_size",)).text()
    assert "not checked" in said
    assert "linalg" not in said
    assert "n_basis" in said


@pytest.mark.parametrize("p", [0.557, 1e-5])
def test_the_line_of_the_step_size_does_not_mislead(p):
    change, chance = {"b": 1.873, "D_o": 0.053, "D_f": 0.068}, {"b": 1.7, "D_o": 0.388, "D_f": 0.057}
    step = StepCheck(p, 60.8, 63, 37.1, ("D_f", 3.4), change, (2000, 1000), True, chance=chance)
    said = Diagnosis(step_size=step).text()
    assert "D_o 5.3% (chance alone 38.8%), D_f 6.8% (chance alone 5.7%), b n.s." in said
    assert "187" not in said
    assert ("37.1 standard errors" in said) == (p < 1e-3)
    assert ("no clear change" in said) == (p > 1e-3)
    metrics = Diagnosis(step_size=step).metrics()
    assert (metrics["step_size_max_z"], metrics["step_size_change_b"], metrics["step_size_chance_b"]) == (
        37.1,
        1.873,
        1.7,
    )


def test_a_coefficient_that_vanishes_at_two_steps_has_not_changed_by_many_standard_errors():
    data, found = walk()
    one, two = copy.deepcopy(found.head), copy.deepcopy(found.head)
    two.set_constants([5.0], 4.0, 1e-9, ALPHA)
    spread = torch.eye(found.theta.numel(), dtype=torch.float64)
    curves = step_size._curves(one, two, [spread, spread], SimpleNamespace(kept=data))
    alone = step_size._curves(one, one, [spread, spread], SimpleNamespace(kept=data))
    assert bool((curves["D_f_std"] >= alone["D_f_std"]).all())
    assert step_size._largest(curves, 1)[0] < 10


@pytest.mark.long
def test_the_scatter_of_a_covariance_from_few_terms_is_allowed_for():
    """Scores that are mostly zero, as those of rare jumps: the statistic has the mean of chi squared all the same."""
    draw, P, N, of, repeats, share = torch.Generator().manual_seed(0), 6, 3000, 6000, 400, 0.02
    plain, corrected = [], []
    unit = torch.eye(P, dtype=torch.float64)
    for _ in range(repeats):
        jumps = torch.rand((of, P), dtype=torch.float64, generator=draw) < share
        terms = torch.randn((of, P), dtype=torch.float64, generator=draw) * jumps
        few = terms[:N]
        covariance = few.T @ few * (of / N)
        plain.append(quadratic(terms.sum(0), covariance, unit * of, unit)[0])
        corrected.append(quadratic(terms.sum(0), covariance, unit * of, unit, few=few, of=of)[0])
    told = np.array(corrected)
    error = told.std() / repeats**0.5
    inflation = (1 - N / of) * (3 / share + P - 1) / N  # E d^2 = P (3 / share) + P (P - 1)
    assert abs(told.mean() - P) < 3 * error + 2 * P * inflation**2  # what is left is of second order
    assert np.mean(np.array(plain) - told) == pytest.approx(P * inflation, rel=0.2)  # E d^2 from N terms: a tenth
