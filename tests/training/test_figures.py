"""Figures return what they drew, accept axes and save both formats."""

import numpy as np
import pytest

from levytorch import Dynamics, recover
from levytorch.figures import coefficients as plots
from levytorch.figures import new_axes, save
from tests.training.problems import ALPHA, constant


@pytest.fixture(scope="module")
def found():
    return recover(constant(5000, 1), alpha=ALPHA, n_basis=3)


def test_coefficients_with_truth_and_band(found, tmp_path):
    curves = plots.coefficient_curves(found, Dynamics.named("constant", alpha=ALPHA), n=51)
    assert set(curves) == {"x", *(f"{k}{s}" for k in ("b", "D_o", "D_f") for s in ("", "_std", "_truth"))}
    fig, axes = plots.coefficients(curves)
    assert len(axes) == 3
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), found.D_o(curves["x"]))
    written = save(fig, tmp_path / "figures" / "coefficients")
    assert sorted(p.suffix for p in written) == [".pdf", ".png"]
    assert all(p.stat().st_size > 1000 for p in written)
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_given_axes_are_used(found):
    fig, grid = new_axes(1, 3)
    drawn, axes = plots.coefficients(plots.coefficient_curves(found, n=21), axes=grid[0])
    assert drawn is fig
    assert all(a is b for a, b in zip(axes, grid[0]))


def test_history(found):
    _, axes = plots.history(found.history, truth={"b": 5.0, "D_o": 4.0, "D_f": 3.0})
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), [e["train/nll"] for e in found.history])
