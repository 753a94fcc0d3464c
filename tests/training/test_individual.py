"""One fit per trajectory: a table, whether all are alike, and those that are too short."""

import datetime

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Trajectories, simulate
from levytorch.errors import InputError
from levytorch.files import write_csv
from levytorch.training.individual import recover_each
from levytorch.untrusted import read_csv


def paths():
    """Two alike, one with four times their D_o, and one that is too short."""
    slow, fast = (Dynamics(1.0, D_o, 0.5, 0.6) for D_o in (1.0, 4.0))
    alike = simulate(slow, 2, 1500, 0.02, seed=1).to_array()
    other = simulate(fast, 1, 1500, 0.02, seed=2).to_array()
    return Trajectories.from_arrays([*alike, *other, np.arange(5.0) ** 2], dt=0.02, ids=["Ada", "Bo", "Cy", "Di"])


def test_a_table_of_individuals(tmp_path):
    found = recover_each(paths(), alpha=0.6, n_basis=1)
    assert list(found) == ["Ada", "Bo", "Cy"]
    assert "at least 20 pairs" in found.refused["Di"]
    assert [row.pairs for row in found.rows] == [1500] * 3
    for row, truth in zip(found.rows, (1.0, 1.0, 4.0)):
        assert abs(row.mean["D_o"] - truth) < 4 * row.std["D_o"]
    assert found.same("D_o")[1] < 1e-6
    assert found.same("b")[1] > 1e-3
    assert np.isnan(found.same("alpha")[1])
    assert "Cy" in str(found)
    assert "refused: transitions must hold at least 20 pairs" in str(found)
    table = read_csv(found.to_csv(tmp_path / "animals.csv"), ("pairs", "D_o", "D_o_std"), ("id",))
    assert table["D_o"].tolist() == [row.mean["D_o"] for row in found.rows]
    pairs = recover_each(paths().transitions(), alpha=0.6, n_basis=1)
    assert list(pairs) == [0, 1, 2]


def test_ids_of_any_kind_are_written(tmp_path):
    """Dates, tuples and numbers of NumPy's, as a table of Parquet brings them."""
    columns = {
        "id": [datetime.date(2024, 5, 1), ("a", 1), np.int64(3), None],
        "value": [0.1, np.float64(0.2), torch.tensor(0.25), True],
    }
    write_csv(tmp_path / "ids.csv", columns)
    lines = (tmp_path / "ids.csv").read_text().splitlines()
    assert lines == ["id,value", "2024-05-01,0.1", "\"('a', 1)\",0.2", "3,0.25", ",true"]


def test_nothing_to_fit_is_refused():
    with pytest.raises(InputError, match="at least one trajectory must be fitted, found none of 1"):
        recover_each(Trajectories.from_arrays(np.arange(5.0) ** 2, dt=0.1), alpha=0.6, n_basis=1)
