from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from levytorch import Dynamics, solve_value
from levytorch.figures import AxisNames, new_axes, save
from levytorch.figures.planes import (
    coefficient_fields,
    contours,
    field_columns,
    fields,
    honest_range,
    sample_states,
)

TRUTH = Dynamics.named("plane")
OTHER = Dynamics(TRUTH.b, lambda x: 1.1 * TRUTH.D_o(x), TRUTH.D_f, 0.3, dim=2)


@pytest.mark.long
def test_fields_show_truth_estimate_and_error(tmp_path):
    numbers = coefficient_fields(OTHER, TRUTH, n=20)
    fig, axes = fields(numbers)
    assert axes.shape == (3, 3)
    assert "10.0%" in axes[1, 2].get_title()
    assert "0.0%" in axes[0, 2].get_title()
    left, right = (axes[1, i].collections[0].get_clim() for i in (0, 1))
    assert left == right  # truth and estimate share their colours
    np.testing.assert_allclose(axes[1, 1].collections[0].get_array().T, numbers["D_o"])
    assert all(path.stat().st_size > 1000 for path in save(fig, tmp_path / "fields"))
    assert fig.canvas.manager is None  # no pyplot state


def test_fields_without_truth_and_on_given_axes():
    numbers = coefficient_fields(OTHER, n=8)
    assert fields(numbers)[1].shape == (3, 1)
    fig, grid = new_axes(3, 1)
    found, _ = fields(numbers, axes=grid)
    assert found is fig


def test_columns_name_every_point():
    columns = field_columns(coefficient_fields(OTHER, TRUTH, n=4))
    assert list(columns)[:6] == ["u", "v", "b_1", "b_2", "b_1_truth", "b_2_truth"]
    x = torch.tensor(np.stack([columns["u"], columns["v"]], -1))
    np.testing.assert_allclose(columns["b_2_truth"], TRUTH.b(x)[:, 1])
    np.testing.assert_allclose(columns["D_o"], OTHER.D_o(x))


def test_contours_of_value_reference_and_difference():
    r = lambda x: torch.cos(x[..., 0]) * torch.sin(x[..., 1])  # noqa: E731
    value, reference = (solve_value(d, r, 0.5, n_modes=16) for d in (OTHER, TRUTH))
    _, row = contours(value, reference, n=24)
    assert [ax.get_title() for ax in row] == ["V(x), truth", "V(x), recovered", "difference"]
    difference = row[2].collections[0].get_array()
    assert 0 < np.abs(difference).max() < 0.2
    assert len(contours(value, n=12)[1]) == 1


@pytest.mark.long
def test_figures_leave_pyplot_alone():
    code = "import sys, levytorch.figures.planes; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_constant_field_gets_no_structure_and_no_offset():
    """A field that differs from 4.346 by rounding has one color, and its bar shows numbers as they are."""
    numbers = coefficient_fields(OTHER, n=8)
    numbers["D_f"] = 4.346 + 1e-10 * np.arange(64.0).reshape(8, 8)
    fig, grid = fields(numbers)
    low, high = grid[2, 0].collections[0].get_clim()
    assert high - low == pytest.approx(0.01 * 4.346, rel=1e-3)
    fig.canvas.draw()
    bars = [ax for ax in fig.axes if ax not in set(grid.ravel())]
    assert all(ax.yaxis.get_offset_text().get_text() == "" for ax in bars)
    assert honest_range([np.zeros((2, 2))])[0] < 0 < honest_range([np.zeros((2, 2))])[1]


def test_without_a_truth_there_is_a_map_of_errors_and_the_data_are_dots():
    numbers = coefficient_fields(OTHER, n=8)
    numbers |= {"b_std": 0.1 * np.ones((8, 8, 2)), "D_o_std": 0.2 * np.ones((8, 8)), "D_f_std": np.ones((8, 8))}
    dots = sample_states(np.array([[7.0, -1.0], [0.5, 0.5]]), OTHER)
    np.testing.assert_allclose(dots, [[7.0 - 2 * np.pi, 2 * np.pi - 1.0], [0.5, 0.5]])
    _, grid = fields(numbers, dots=dots, units=AxisNames("east, north", "h"))
    assert grid.shape == (3, 2)
    assert "standard error" in grid[1, 1].get_title()
    np.testing.assert_allclose(grid[0, 1].collections[0].get_array(), np.hypot(0.1, 0.1))
    np.testing.assert_allclose(grid[1, 0].lines[0].get_xydata(), dots)
    assert (grid[0, 0].get_xlabel(), grid[0, 0].get_ylabel()) == ("east", "north")
