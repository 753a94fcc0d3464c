"""max_dt travels with the data: a gap that was known when a file was written is one when it is read back."""

import numpy as np
import polars as pl
import pytest

from levytorch import Trajectories
from levytorch.errors import InputError

TIMES = np.array([0.0, 0.1, 0.2, 50.0, 50.1])
X = np.array([0.0, 1.0, 0.5, 9.0, 7.0])
KINDS = (".npz", ".csv", ".tsv", ".parquet")


def with_gap(**options):
    return Trajectories.from_arrays(X[None], times=TIMES, **options)


@pytest.mark.parametrize(
    ("suffix", "disk"), [*((suffix, False) for suffix in KINDS), (".npz", True), (".parquet", True)]
)
def test_gaps_come_back_as_gaps(tmp_path, suffix, disk):
    options = {"on_disk": tmp_path / "cache"} if disk else {}
    file = tmp_path / f"a{suffix}"
    with_gap(max_dt=1 / 3).to_file(file)
    back = Trajectories.from_file(file, **options)
    assert (back.max_dt, back.dim, back.x.tolist()) == (1 / 3, 1, X.tolist())
    assert back.transitions().dropped == {"across a gap": 1}
    assert Trajectories.from_file(file, max_dt=60.0, **options).transitions().dropped == {}  # an option wins
    hours = Trajectories.from_file(file, time_in="h", time_unit="min", **options)
    assert hours.max_dt == pytest.approx(20.0)  # in the unit of the times, like dt
    assert hours.transitions().dropped == {"across a gap": 1}


@pytest.mark.parametrize("suffix", KINDS)
def test_files_without_max_dt_have_no_gaps(tmp_path, suffix):
    file = tmp_path / f"a{suffix}"
    with_gap().to_file(file)
    back = Trajectories.from_file(file)
    assert (back.max_dt, back.transitions().dropped) == (None, {})
    if suffix == ".npz":
        assert "max_dt" not in np.load(file)
    elif suffix == ".csv":
        assert file.read_text().startswith("id,time,x\n")


def test_two_dimensions_with_dt_come_back_with_max_dt(tmp_path):
    paths = Trajectories.from_arrays(np.random.default_rng(0).normal(size=(2, 4, 2)), dt=0.5, max_dt=0.75)
    for suffix in KINDS:
        paths.to_file(tmp_path / f"a{suffix}")
        back = Trajectories.from_file(tmp_path / f"a{suffix}")
        assert (back.dt, back.max_dt, back.dim) == (0.5, 0.75, 2)
        np.testing.assert_array_equal(back.x, paths.x)


@pytest.mark.parametrize("disk", [False, True])
def test_max_dt_must_be_one_number(tmp_path, disk):
    options = {"on_disk": tmp_path / "cache"} if disk else {}
    file = tmp_path / "a.parquet"
    table = pl.DataFrame({"time": TIMES, "x": X, "max_dt": [1.0, 1.0, 1.0, 2.0, 1.0]})
    table.write_parquet(file)
    message = r"a\.parquet, column 'max_dt', row 4: max_dt must be the same throughout, found 2 after 1; make it one"
    with pytest.raises(InputError, match=message):
        Trajectories.from_file(file, **options)
    assert Trajectories.from_file(file, max_dt=1.0, **options).transitions().dropped == {"across a gap": 1}
    table.with_columns(max_dt=pl.lit(-1.0)).write_parquet(file)
    with pytest.raises(InputError, match=r"column 'max_dt' must be a positive number, found -1.0"):
        Trajectories.from_file(file, **options)
    np.savez(tmp_path / "a.npz", x=X, times=TIMES, max_dt=[1.0, 2.0])
    with pytest.raises(InputError, match=r"a\.npz: max_dt must be one number, found shape \(2,\); save one, or pass"):
        Trajectories.from_file(tmp_path / "a.npz", **options)


def test_a_column_called_max_dt_may_be_named_as_something_else(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("time,max_dt\n0,1\n1,3\n2,2\n")
    paths = Trajectories.from_file(file, value="max_dt")
    assert (paths.max_dt, paths.x.tolist()) == (None, [1, 3, 2])
    with pytest.raises(InputError, match="value must name the column of x, found none; pass value="):
        Trajectories.from_file(file)
