"""The curve of cross-validation: every candidate is there, the best one is marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from levytorch.figures import new_axes
from levytorch.figures.coefficients import selection
from levytorch.training.selection import Selection


def curve(name: str) -> dict:
    made = Selection(name, pairs=torch.full((5,), 100.0, dtype=torch.float64))
    rng = np.random.default_rng(0)
    for candidate, level in ((1.0, -900.0), (3.0, -120.0), (5.0, -100.0), (7.0, -101.0)):
        made.add(candidate, torch.from_numpy(level + 0.1 * rng.standard_normal(5)))
    return made.summary()


@pytest.mark.parametrize("name", ["n_basis", "penalty"])
def test_candidates_and_choice(name):
    summary = curve(name)
    fig, (ax,) = selection(summary)
    x, y = ax.containers[0].lines[0].get_data()
    assert list(x) == [1.0, 3.0, 5.0, 7.0]
    assert y == pytest.approx(500 * np.array(summary["difference"]))
    assert [float(v) for v in ax.lines[-1].get_data()[0]] == [5.0]
    assert ax.lines[-1].get_data()[1] == pytest.approx([0.0])
    assert "5 chosen" in ax.get_title()
    assert ax.get_xscale() == ("log" if name == "penalty" else "linear")
    fig.canvas.draw()


def test_given_axes_are_drawn_into():
    fig, axes = new_axes(1, 1)
    assert selection(curve("n_basis"), axes=axes[0, 0])[0] is fig
