"""The compiled kernel of the lattice against its own Python source."""

import math

import numpy as np
import pytest

from levytorch import Transitions
from levytorch.data import lattice_grid
from levytorch.data.lattice_grid import accumulate, choose_grid, empty_sums, fold, lagrange, node_map

numba = pytest.importorskip("numba")
rng = np.random.default_rng(0)
X = rng.uniform(-10, 20, 700)
DX = np.concatenate([rng.standard_cauchy(696), [0.0, 1e10, -1e10, 1e200]])
SHEETS = rng.integers(0, 2, 700).astype(np.uint8)


def sums(period, order, sheets):
    t = Transitions(X, DX, 0.1)
    grid = choose_grid(t, period=period, order=order)
    nodes = node_map(grid, 0.1, 0, grid.n_x or 60, 0.1, 2.0, 1e100, 50.0)
    found = empty_sums(nodes, 2)
    loose = accumulate(np.array([0, 300, 301]), np.array([290, 301, 700]), X, DX, sheets, 1, nodes, found)
    return (*found, loose)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # 1e200 squared, in numpy with a warning
@pytest.mark.parametrize("period", [2 * math.pi, None])
@pytest.mark.parametrize("order", [4, 6])
@pytest.mark.parametrize("sheets", [SHEETS, SHEETS[:0]])
def test_compiled_is_what_is_written(monkeypatch, period, order, sheets):
    compiled = sums(period, order, sheets)
    assert compiled[0].sum() > 100
    assert len(compiled[3]) > 5
    assert compiled[2][0] >= (len(sheets) == 0)
    with monkeypatch.context() as patch:
        patch.setattr(lattice_grid, "scatter", lattice_grid.scatter.py_func)
        patch.setattr(lattice_grid, "_lagrange", lagrange)
        patch.setattr(lattice_grid, "fast_log", math.log)
        written = sums(period, order, sheets)
    np.testing.assert_allclose(compiled[0], written[0], rtol=0, atol=1e-11)
    for a, b in zip(compiled[1:], written[1:]):
        assert np.array_equal(a, b)


def test_many_loose_pairs_are_handed_back(monkeypatch):
    """More than fit into one call."""
    t = Transitions(np.full(100_000, 0.5), np.linspace(-1, 1, 100_000), 0.1)
    lattice = t.lattice(reach=0.1)
    assert len(lattice.loose.x) == 90_000
    assert np.array_equal(np.sort(lattice.loose.dx), t.dx.numpy()[np.abs(t.dx.numpy() - lattice.mu) > 0.1])


def test_weights_of_lagrange():
    f = np.linspace(0, 1, 11)
    nodes = np.arange(-2.0, 4.0)
    for order in (4, 6):
        weights = np.empty((6, len(f)))
        lagrange(f, order, weights)
        for power in range(order):
            np.testing.assert_allclose(nodes**power @ weights, f**power, atol=1e-13)


def test_fold_returns_what_sticks_out():
    tile = np.arange(2.0 * 3 * 14).reshape(2, 3, 14)
    inner = fold(tile)
    assert inner.shape == (2, 3, 8)
    assert inner.sum() == tile.sum()
    assert inner[0, 0, 0] == tile[0, 0, 3] + tile[0, 0, 11]
    assert inner[0, 0, 7] == tile[0, 0, 10] + tile[0, 0, 2]
