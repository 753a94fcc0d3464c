"""The methods called plot: thin calls of figures/ that return (fig, axes)."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Trajectories, simulate, solve_value
from levytorch.figures.base import new_axes, pi_text
from levytorch.figures.trajectories import jumps


def texts(axis):
    axis.figure.canvas.draw()
    return [label.get_text() for label in axis.get_xticklabels()]


def test_value():
    V = solve_value(Dynamics.named("constant"), torch.cos, 1.0)
    fig, axes = V.plot()
    assert axes[0].figure is fig
    x, y = axes[0].lines[0].get_data()
    np.testing.assert_allclose(y, V(x))
    shown = texts(axes[0])
    assert "π" in shown
    assert "3π/2" in shown
    _, grid = new_axes(1, 2)
    _, mine = V.plot(axes=grid[0], reference=V)
    assert mine[0] is grid[0, 0]
    window = solve_value(Dynamics.named("double_well"), lambda x: torch.exp(-(x**2)), 1.0)
    _, axes = window.plot()
    assert not any("π" in text for text in texts(axes[0]))


def test_trajectories_with_their_jumps():
    paths = simulate(Dynamics.named("constant"), 3, 200, 1 / 40, seed=2)
    _, axes = paths.plot(2)
    x, y = axes[0].lines[0].get_data()
    np.testing.assert_array_equal(y, paths.x[:201])
    np.testing.assert_allclose(x[-1], 5.0)
    marks = [line for line in axes[0].lines if line.get_marker() == "o"]
    large = [len(jumps(paths.x[:201])), len(jumps(paths.x[201:402]))]
    assert len(marks) == 1
    assert len(marks[0].get_xdata()) == 2 * sum(large) > 0
    _, axes = Trajectories.from_arrays(np.random.default_rng(0).normal(size=(2, 9, 2)), 0.1).plot()
    assert len(axes) == 2


def test_steps_that_are_jumps():
    x = np.cumsum([0.0, 1.0, -1.0, 1.0, 30.0, -1.0, 1.0, -1.0])
    np.testing.assert_array_equal(jumps(x), [3])
    np.testing.assert_array_equal(jumps(np.ones(5)), [])


@pytest.mark.parametrize(("x", "text"), [(0.0, "0"), (0.5, "π/2"), (-0.75, "−3π/4"), (6.0, "6π")])
def test_multiples_of_pi(x, text):
    assert pi_text(x * math.pi) == text
