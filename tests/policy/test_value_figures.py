from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from benchmarks.paper.rates import RateStudy, figure
from levytorch.figures import new_axes
from levytorch.figures.base import ARMS
from levytorch.figures.values import Band, baselines, error_boxes, value_bands

X = np.linspace(0.0, 6.0, 50)


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_value_bands_shows_bands_and_differences() -> None:
    bands = [Band("with TCF", np.cos(X), 0.1 * np.ones(50)), Band("without TCF", 0.9 * np.cos(X))]
    wild = {"CRL": 1e6 * np.cos(X)}
    fig, (upper, lower) = value_bands(X, bands, reference=np.cos(X) + 0.5, baselines=wild, support=(1.0, 2.0))
    assert labels(upper) == ["range of the data", "with TCF (mean ± sd)", "without TCF", "CRL", "reference"]
    # a baseline that runs away does not set the scale, the bands fit in
    assert upper.get_ylim()[1] < 2.0
    assert lower.get_ylim()[0] < -0.6
    np.testing.assert_allclose(lower.lines[0].get_ydata(), -0.5)
    assert fig is upper.figure


def test_baselines_stand_beside_v_and_do_not_set_its_scale() -> None:
    own = Band("with TCF", np.cos(X), 0.1 * np.ones(50), "95 % band")
    others = {"LSTD": (0.9 * np.cos(X), 0.2 * np.ones(50)), "PhiBE": (1e6 * np.cos(X), np.ones(50))}
    fig, (upper, lower) = baselines(X, [own], others, reference=np.cos(X) + 0.5, reference_label="true V")
    assert labels(upper) == ["LSTD", "PhiBE", "with TCF (95 % band)", "true V"]
    colors = [line.get_color() for line in upper.lines]
    assert len(set(colors)) == 4
    assert colors[2] == ARMS["with TCF"]
    assert [line.get_color() for line in lower.lines[:3]] == colors[:3]
    assert upper.get_ylim()[1] < 40
    np.testing.assert_allclose(lower.lines[0].get_ydata(), -0.1 * np.cos(X) - 0.5)
    assert len(upper.collections) == 3
    _, (only,) = baselines(X, [own], others)
    assert labels(only)[:2] == ["LSTD", "PhiBE"]
    assert fig is upper.figure


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_few_replicas_are_curves_and_not_a_band_that_pinches(n: int) -> None:
    curves = [np.cos(X) + k * np.sin(X) for k in range(n)]
    band = Band("with TCF", np.mean(curves, axis=0), np.std(curves, axis=0, ddof=1), curves=curves)
    _, (upper, lower) = value_bands(X, [band], reference=np.cos(X))
    drawn = [line.get_ydata() for line in upper.lines]
    if n < 4:
        assert labels(upper) == [f"with TCF ({n} runs)", "reference"]
        assert not upper.collections
        assert not lower.collections
        np.testing.assert_array_equal(drawn[:n], curves)
        np.testing.assert_allclose(lower.lines[n - 1].get_ydata(), curves[-1] - np.cos(X))
        assert upper.get_ylim()[1] > max(map(np.max, curves))
    else:
        assert labels(upper) == ["with TCF (mean ± sd)", "reference"]
        assert len(upper.collections) == len(lower.collections) == 1


def test_given_axes_are_used() -> None:
    fig, grid = new_axes(1, 1)
    found, axes = value_bands(X, [Band("V", np.sin(X))], axes=[grid[0, 0]])
    assert found is fig
    assert axes == [grid[0, 0]]


def test_error_boxes_are_percentages() -> None:
    _, (ax,) = error_boxes({"a": [0.1, 0.2, 0.3], "b": [0.5]}, baselines={"trivial": 0.05})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b"]
    assert max(line.get_ydata()[0] for line in ax.lines if len(line.get_ydata()) == 1) == pytest.approx(50.0)


def test_rates_are_drawn_per_norm() -> None:
    eps = torch.tensor([0.1, 0.01, 0.001], dtype=torch.float64)
    errors = eps[:, None] * torch.rand((3, 20), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, axes = figure([RateStudy(eps, errors, 5 * errors, 1.0, 0.99, 64, "noise")])
    assert labels(axes[0]) == ["noise: slope 1.000", "slope 1"]
    assert labels(axes[1]) == ["noise: slope 0.990", "slope 1"]
    assert axes[0].get_xscale() == axes[0].get_yscale() == "log"
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), 5 * errors.mean(1).flip(0))


def test_no_figure_is_left_in_pyplot() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = [] if pyplot is None else pyplot.get_fignums()
    value_bands(X, [Band("V", np.sin(X))])
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert (pyplot.get_fignums() if pyplot else []) == before
