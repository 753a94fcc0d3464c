"""Files that could be read in more than one way: what was surely not meant is refused, what lies next to it is read."""

import numpy as np
import polars as pl
import pytest

from levytorch import Trajectories
from levytorch.errors import InputError

RNG = np.random.default_rng(0)


def table_file(folder, text, name="a.csv"):
    (folder / name).write_text(text)
    return folder / name


def refused(file, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        Trajectories.from_file(file, **options)
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)


# ------------------------------------------------------------------------------------------ dt beside times


def clocked(folder, suffix, times):
    """Two trajectories of one clock."""
    x = RNG.normal(size=(2, len(times)))
    file = folder / f"a{suffix}"
    if suffix == ".npz":
        np.savez(file, x=x, times=times)
        return file
    table = pl.DataFrame({"id": np.repeat([0, 1], len(times)), "time": np.tile(times, 2), "x": x.reshape(-1)})
    if suffix == ".csv":
        table.write_csv(file)
    else:
        table.write_parquet(file)
    return file


@pytest.mark.parametrize(
    ("suffix", "disk"), [(".csv", False), (".parquet", False), (".npz", False), (".parquet", True), (".npz", True)]
)
def test_dt_must_agree_with_the_times_of_the_file(tmp_path, suffix, disk):
    options = {"on_disk": tmp_path / "cache"} if disk else {}
    even = clocked(tmp_path, suffix, np.arange(50) * 0.025)
    refused(even, r"'times?': these times must be dt = 1 apart, found a step of 0.025; leave dt out", dt=1.0, **options)
    paths = Trajectories.from_file(even, dt=0.025, **options)
    assert (paths.dt, paths.times, len(paths)) == (0.025, None, 2)
    assert Trajectories.from_file(even, **options).transitions().uniform_dt
    late = clocked(tmp_path, suffix, 1.7e9 + np.arange(50) * 0.025)  # rounding of late times is no other dt
    assert Trajectories.from_file(late, dt=0.025, **options).dt == 0.025
    gap = clocked(tmp_path, suffix, np.array([0.0, 1.0, 2.0, 9.0]))
    refused(gap, "found a step of 7; leave dt out", dt=1.0, **options)


def test_dt_beside_dates_needs_even_steps(tmp_path):
    text = "time,x\n2024-01-01,1\n2024-01-02,3\n2024-01-03,2\n"
    file = table_file(tmp_path, text)
    assert Trajectories.from_file(file, dt=1.0, time_unit="day").dt == 1.0
    assert Trajectories.from_file(file, dt=1 / 252).dt == 1 / 252  # nobody said what the unit of dt is
    refused(file, "these times must be dt = 1 apart, found a step of 24", dt=1.0, time_unit="h")
    file = table_file(tmp_path, text + "2024-01-06,5\n")
    refused(
        file, "column 'time': times beside dt = 1 must be evenly spaced, found a step of 259200 s after 86400 s", dt=1.0
    )


def test_dt_beside_the_time_of_a_wide_table(tmp_path):
    file = table_file(tmp_path, "time,u,v\n0,1,4\n2,2,6\n6,4,\n")
    refused(file, "column 'time': these times must be dt = 2 apart, found a step of 4", layout="wide", dt=2.0)
    refused(file, "column 'time': these times must be dt = 0.5 apart", layout="wide", dt=0.5)
    assert Trajectories.from_file(file, layout="wide", value=["v"], dt=2.0).dt == 2.0  # v ends before the longer step


def test_a_column_of_dt_beside_times(tmp_path):
    file = table_file(tmp_path, "time,step,x\n0,1,5\n1,1,7\n2,1,6\n")
    assert Trajectories.from_file(file, dt="step", value="x").dt == 1.0
    file = table_file(tmp_path, "time,step,x\n0,3,5\n1,3,7\n2,3,6\n")
    refused(file, "these times must be dt = 3 apart", dt="step", value="x")


@pytest.mark.parametrize("disk", [False, True])
def test_an_array_called_time(tmp_path, disk):
    options = {"on_disk": tmp_path / "cache"} if disk else {}
    x, file = RNG.normal(size=(3, 4)), tmp_path / "a.npz"
    np.savez(file, x=x, time=np.arange(4) * 0.1)
    refused(file, "array 'time': these times must be dt = 1 apart", dt=1.0, **options)
    assert Trajectories.from_file(file, dt=0.1, **options).dt == 0.1
    assert Trajectories.from_file(file, **options).transitions().dt[0] == pytest.approx(0.1)
    np.savez(file, x=x, time=12.5)  # how long a run took
    assert Trajectories.from_file(file, dt=1.0, **options).dt == 1.0


def test_other_columns_of_times_do_not_count(tmp_path):
    file = table_file(tmp_path, "t,x\n0,1\n3,5\n4,2\n")
    assert Trajectories.from_file(file, value="x", dt=1.0).dt == 1.0


# ------------------------------------------------------------------------------------------ days as numbers

DAYS = [20230131, 20230201, 20230203]
ASK = "found days written as numbers such as 20230131; "


@pytest.mark.parametrize("days", [DAYS, [str(day) for day in DAYS], [float(day) for day in DAYS]])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_days_written_as_numbers_need_a_format(tmp_path, days, suffix):
    table = pl.DataFrame({"time": days, "x": [1.0, 3.0, 2.0]})
    file = tmp_path / f"a{suffix}"
    (table.write_csv if suffix == ".csv" else table.write_parquet)(file)
    refused(file, f"column 'time': .* {ASK}pass time_format='%Y%m%d'")
    refused(file, ASK, time_in="day", time_unit="day")
    if not isinstance(days[0], float):
        t = Trajectories.from_file(file, time_format="%Y%m%d", time_unit="day").transitions()
        assert t.dt.tolist() == [1.0, 2.0]


def test_days_written_as_numbers_on_disk(tmp_path):
    file, options = tmp_path / "a.parquet", {"on_disk": tmp_path / "cache"}
    pl.DataFrame({"time": DAYS, "x": [1.0, 3.0, 2.0]}).write_parquet(file)
    refused(file, ASK, **options)
    t = Trajectories.from_file(file, time_format="%Y%m%d", time_unit="day", **options).transitions()
    assert t.dt.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("disk", [False, True])
def test_arrays_of_days_written_as_numbers(tmp_path, disk):
    options = {"on_disk": tmp_path / "cache"} if disk else {}
    np.savez(tmp_path / "a.npz", x=[1.0, 3.0, 2.0], times=DAYS)
    refused(tmp_path / "a.npz", f"array 'times': .* {ASK}save them as datetime64", **options)
    np.savez(tmp_path / "a.npz", x=[1.0, 3.0, 2.0], times=[20230131, 20230132, 20230133])
    assert Trajectories.from_file(tmp_path / "a.npz", **options).transitions().uniform_dt


@pytest.mark.parametrize(
    "times",
    [
        [20230131, 20230132, 20230133],  # no such days
        [20230228, 20230229, 20230301],  # not a leap year
        [18991231, 19000101, 19000102],
        [20230130.5, 20230131.5, 20230132.5],
        [0, 20230131, 20230201],
        [1700000000, 1700000180, 1700000360],
    ],
)
def test_numbers_that_are_no_days_are_times(tmp_path, times):
    file = table_file(tmp_path, "time,x\n" + "".join(f"{t},{k * k}\n" for k, t in enumerate(times)))
    assert Trajectories.from_file(file).transitions().dt.tolist() == np.diff(times).tolist()


# ------------------------------------------------------------------------------------------ headers

NO_HEADER = "the first line must be a header that names the columns, found the numbers "


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("0.0,1.5\n0.1,1.7\n0.2,1.1\n", dict()),
        ("1.5\n1.7\n1.1\n", dict(dt=1.0)),
        ("0,1\n1,3\n2,2\n", dict(layout="wide", dt=1.0)),
        ("0,1,3\n1,3,1\n2,2,2\n", dict(layout="rows", dt=1.0)),
        ("1.5,1.5\n1.7,1.2\n1.1,1.3\n", dict(layout="wide", dt=1.0)),
        ("-1e3,,.5\n1.7,1.2,3\n1.1,1.3,2\n", dict(layout="wide", dt=1.0)),
        ("2024-01-01,1.5\n2024-01-02,1.7\n2024-01-03,1.6\n", dict(dt=1.0)),
        ("0;1,5;2,5;3\n1;1,7;2,6;5\n2;1,1;2,1;4\n", dict(decimal=",", layout="wide", dt=1.0)),
        (" 0.0 , 1.5\n0.1,1.7\n0.2,1.1\n", dict(time="t")),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_first_line_of_numbers_is_no_header(tmp_path, text, options, name):
    if name == "a.tsv":
        text = text.replace(";" if ";" in text else ",", "\t")
    refused(table_file(tmp_path, text, name), NO_HEADER, **options)


def test_columns_may_be_called_by_numbers(tmp_path):
    file = table_file(tmp_path, "0,1\n0,5\n1,7\n2,6\n")
    assert Trajectories.from_file(file, time="0", value=1).x.tolist() == [5, 7, 6]
    file = table_file(tmp_path, "0,1,2\n1,5,2\n3,7,9\n2,6,4\n")
    for layout in ("wide", "rows"):
        assert len(Trajectories.from_file(file, layout=layout, dt=1.0)) == 3
    file = table_file(tmp_path, "0,0.1,0.2,0.3\n1,5,2,4\n3,7,9,1\n")
    assert len(Trajectories.from_file(file, layout="rows", dt=0.1)) == 2
    file = table_file(tmp_path, "2024-01-01,2024-01-02\n1,5\n3,7\n")
    assert len(Trajectories.from_file(file, layout="rows", dt=1.0)) == 2


# ------------------------------------------------------------------------------------------ an index or a clock as data

WALKS = np.cumsum(RNG.normal(size=(6, 3)), axis=0)


def beside(first, header, walks=WALKS):
    """A table of a column in front of three others."""
    lines = [",".join([str(cell), *(repr(float(v)) for v in row)]) for cell, row in zip(first, walks)]
    return ",".join([header, "u", "v", "w"]) + "\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("layout", ["wide", "rows"])
@pytest.mark.parametrize("header", ["", "Unnamed: 0"])
def test_a_column_without_a_name_is_no_data(tmp_path, layout, header):
    file = table_file(tmp_path, beside([3, 1, 4, 1, 5, 9], header))
    refused(file, f"must have a name in the header, found '{header}'; remove the column", layout=layout, dt=1.0)
    assert Trajectories.from_file(file, layout=layout, value=["u", "v", "w"], dt=1.0).x.size == 18
    assert Trajectories.from_file(file, layout="long", value="u", dt=1.0).x.size == 6


@pytest.mark.parametrize("layout", ["wide", "rows"])
def test_the_index_that_pandas_leaves_in_parquet(tmp_path, layout):
    file = tmp_path / "a.parquet"
    table = pl.DataFrame({"u": WALKS[:, 0], "v": WALKS[:, 1], "__index_level_0__": [3, 1, 4, 1, 5, 9]})
    table.write_parquet(file)
    refused(file, "found '__index_level_0__'", layout=layout, dt=1.0)


def test_an_empty_column_at_the_end_is_only_empty(tmp_path):
    file = table_file(tmp_path, "u,v,\n1,5,\n3,4,\n2,7,\n")
    assert Trajectories.from_file(file, layout="wide", dt=1.0).lengths.tolist() == [3, 3]
    assert Trajectories.from_file(file, layout="rows", dt=1.0).lengths.tolist() == [2, 2, 2]


@pytest.mark.parametrize("first", [range(6), range(10, 4, -1), [f"{k / 40!r}" for k in range(6)], range(0, 18, 3)])
def test_a_clock_is_no_trajectory(tmp_path, first):
    file = table_file(tmp_path, beside(first, "t"))
    refused(
        file,
        r"column 't': the steps of a trajectory must not all be equal, found .*pass time='t'",
        layout="wide",
        dt=1.0,
    )
    named = Trajectories.from_file(file, layout="wide", value=["t", "u"], dt=1.0)
    assert named.ids == ("t", "u")


def test_wide_tables_that_hold_no_clock(tmp_path):
    clock = table_file(tmp_path, beside(range(6), "t"))
    assert Trajectories.from_file(clock, layout="wide", time="t").ids == ("u", "v", "w")
    for first in ([0, 1, 2, 3, 4, 6], [1700000000, 1700000180, 1700000360, 1700000541, 1700000720, 1700000900]):
        file = table_file(tmp_path, beside(first, "s"))
        assert len(Trajectories.from_file(file, layout="wide", dt=1.0)) == 4
    short = table_file(tmp_path, "u,v\n0,5\n1,7\n2,6\n")  # three points may well be even
    assert len(Trajectories.from_file(short, layout="wide", dt=1.0)) == 2


@pytest.mark.parametrize("first", [range(6), range(1, 7), range(1700000000, 1700000360, 60)])
def test_an_index_of_rows_is_no_first_point(tmp_path, first):
    file = table_file(tmp_path, beside(first, "n"))
    message = "column 'n': the first points of trajectories must not count up, found steps of .*pass id='n'"
    refused(file, message, layout="rows", dt=1.0)
    assert Trajectories.from_file(file, layout="rows", id="n", dt=1.0).x.size == 18
    assert Trajectories.from_file(file, layout="rows", value=["n", "u"], dt=1.0).x.size == 12


def test_trajectories_may_start_on_a_grid(tmp_path):
    start = np.linspace(-3.0, 8.0, 6)
    walks = start[:, None] + np.cumsum(RNG.normal(size=(6, 3)), axis=1)
    file = table_file(tmp_path, beside([repr(float(x)) for x in start], "x0", walks))
    np.testing.assert_array_equal(Trajectories.from_file(file, layout="rows", dt=1.0).to_array()[:, 0], start)
