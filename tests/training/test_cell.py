"""What a fit says about data that it folds, hardly touches, or has not seen."""

import warnings

import numpy as np
import pytest

from levytorch import Trajectories, Transitions
from levytorch.coefficients.build import build_head
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.problem import check_cell
from levytorch.training.start import cells_differ
from tests.training.problems import ALPHA, steps
from tests.training.problems import frozen_recover as recover


def head(**options):
    return build_head({"name": "fourier", "n_basis": 5, "period": 6.28, "alpha_mode": "fixed", "alpha": 0.3, **options})


def test_data_wider_than_the_cell():
    with pytest.warns(LevytorchWarning, match="x runs from 95 to 105, farther than the period 6.28"):
        check_cell(head(), 95.0, 105.0)


def circling(seed, pull):
    """A walk over some twenty periods; with `pull`, one that is drawn to zero, which does not repeat itself."""
    rng = np.random.default_rng(seed)
    x = np.zeros((40, 401))
    for j in range(400):
        drift = 1.5 * np.sin(x[:, j]) - pull * x[:, j]
        x[:, j + 1] = x[:, j] + 0.05 * drift + np.sqrt(0.1 * (1.2 + np.cos(x[:, j]))) * rng.standard_normal(40)
    return Trajectories.from_arrays(x, dt=0.05).transitions()


@pytest.mark.parametrize("seed", range(5))
def test_an_unwrapped_angle_is_not_warned_of(seed):
    data = circling(seed, 0.0)
    assert float(data.x.max() - data.x.min()) > 4 * np.pi
    assert not cells_differ(head(), data)


def test_a_line_that_was_given_a_period():
    data = circling(0, 0.3)
    assert cells_differ(head(period=2.0), data)
    with pytest.warns(LevytorchWarning, match="steps one period apart differ"):
        recover(data, alpha=ALPHA, n_basis=5, period=2.0)


def test_data_that_hardly_touches_the_cell():
    with pytest.warns(LevytorchWarning, match=r"which is only 4e-05 of the period 256000"):
        check_cell(head(period=256000.0), 95.0, 105.0)


@pytest.mark.parametrize(
    ("options", "high"), [({}, 101.0), ({"n_basis": 1}, 1e9), ({"period": 256000.0, "n_basis": 1}, 95.1)]
)
def test_nothing_to_say(options, high):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_cell(head(**options), 95.0, high)


@pytest.mark.long
def test_what_the_fit_has_not_seen_is_counted():
    data = steps(4000, 0)
    beyond = int((np.abs(np.asarray(data.dx) - float(data.mu)) >= 1.0).sum())
    with pytest.warns(LevytorchWarning, match=f"{beyond} pairs lie beyond TRT and {4000 - beyond} within it"):
        found = recover(data, alpha=ALPHA, n_basis=1, tail={"method": "conditional", "TRT": 1.0})
    assert found.metrics["left_out"] == {"beyond TRT": beyond}
    data = Transitions(data.x, data.dx, data.dt, dropped={"across a gap": 7})
    assert recover(data, alpha=ALPHA, n_basis=1).metrics["left_out"] == {"across a gap": 7}


def test_words_of_the_command_line_work_in_python():
    data = steps(3000, 0)
    by_name = recover(data, alpha=ALPHA, n_basis=3, engine="evidence")
    spelled = recover(data, alpha=ALPHA, n_basis=3, engine="fisher", penalty="harmonics", max_steps=200)
    assert by_name.theta.tolist() == spelled.theta.tolist()
    with pytest.raises(
        ValueError, match=r"CT or TRT must be given for the conditional likelihood, found neither; give tail\.TRT"
    ):
        recover(data, alpha=ALPHA, tail="conditional")


def test_a_tail_that_is_everything_is_refused():
    dx = np.r_[np.full(100, -5.0), np.full(100, 5.0)]
    with pytest.raises(InputError, match="CT must leave pairs below it, found all 200 within TRT beyond it"):
        recover(Transitions(np.zeros(200), dx, 0.1, mu=0.0), alpha=ALPHA, n_basis=1, tail={"CT": 1.0})
