"""Files: exact round trips, layouts, clocks, real data, and what is refused (with file, column, row and remedy)."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from levytorch import Trajectories
from levytorch.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data"
RNG = np.random.default_rng(0)


def wild(*shape):
    """Doubles of every size: nothing but an exact format brings them back."""
    return RNG.normal(size=shape) * 10.0 ** RNG.uniform(-200, 200, size=shape)


def ragged():
    lengths = (3, 5, 2)
    return Trajectories.from_arrays(
        [wild(n, 2) for n in lengths],
        times=[np.cumsum(RNG.exponential(size=n)) for n in lengths],
        reward=[RNG.normal(size=n) for n in lengths],
        ids=["north", "south", "west"],
    )


# ------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".tsv", ".parquet"])
def test_round_trips_are_exact(tmp_path, suffix):
    for k, paths in enumerate((Trajectories.from_arrays(wild(4, 7), dt=1 / 3), ragged())):
        file = tmp_path / f"{k}{suffix}"
        paths.to_file(file)
        back = Trajectories.from_file(file)
        assert back.dt == paths.dt
        for name in ("x", "offsets", "times", "reward"):
            np.testing.assert_array_equal(getattr(back, name), getattr(paths, name))
    assert back.ids == ("north", "south", "west")


def test_npy_and_foreign_npz(tmp_path):
    x = wild(3, 4)
    np.save(tmp_path / "a.npy", x)
    np.testing.assert_array_equal(Trajectories.from_file(tmp_path / "a.npy", dt=0.1).to_array(), x)
    clock = np.array([0.0, 1.0, 3.0, 4.0])
    np.savez(tmp_path / "b.npz", path=np.abs(x), clock=clock)
    paths = Trajectories.from_file(tmp_path / "b.npz", value="path", time="clock", log=True)
    np.testing.assert_array_equal(paths.to_array(), np.log(np.abs(x)))
    assert paths.transitions().dt.tolist() == [1.0, 2.0, 1.0] * 3


# ------------------------------------------------------------------------------------------ layouts


def test_long_tables_with_mixed_rows(tmp_path):
    file = tmp_path / "long.csv"
    file.write_text("who,when,here,pay\nb,0,10,1\na,5,1,2\nb,1,11,3\na,6,3,4\na,8,2,5\n")
    paths = Trajectories.from_file(file, id="who", time="when", value="here", reward="pay")
    assert paths.ids == ("b", "a")
    assert paths.x.tolist() == [10, 11, 1, 3, 2]
    t = paths.transitions()
    assert (t.dx.tolist(), t.dt.tolist(), t.reward.tolist()) == ([1, 2, -1], [1, 1, 2], [1, 2, 4])


def test_wide_tables(tmp_path):
    file = tmp_path / "wide.tsv"
    file.write_text("t\tp\tq\n0\t1\t5\n1\t2\t6\n3\t4\t\n")
    paths = Trajectories.from_file(file, layout="wide", time="t")
    assert paths.ids == ("p", "q")
    assert paths.lengths.tolist() == [3, 2]  # a column ends where its cells become empty
    assert paths.transitions().dt.tolist() == [1, 2, 1]
    only = Trajectories.from_file(file, layout="wide", value=["p"], dt=0.5)
    assert only.to_array().tolist() == [[1, 2, 4]]


def test_tables_of_rows(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("name;0;1;2\nu;1;2;3\nv;4;6;\n")
    paths = Trajectories.from_file(file, layout="rows", id="name", dt=0.5)
    assert (paths.ids, paths.lengths.tolist(), paths.x.tolist()) == (("u", "v"), [3, 2], [1, 2, 3, 4, 6])


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_separators_are_found(tmp_path, separator):
    file = tmp_path / "a.csv"
    file.write_text(separator.join("tx") + "\n" + "\n".join(separator.join(p) for p in ("01", "12", "24")) + "\n")
    assert Trajectories.from_file(file, time="t").x.tolist() == [1, 2, 4]


def test_columns_of_other_types(tmp_path):
    file = tmp_path / "a.parquet"
    pl.DataFrame({"x": pl.Series([1, 2, 4], dtype=pl.Int16), "n": ["a", "b", "c"]}).write_parquet(file)
    assert Trajectories.from_file(file, value="x", dt=1.0).x.tolist() == [1.0, 2.0, 4.0]


# ------------------------------------------------------------------------------------------ clocks


@pytest.mark.parametrize(
    ("cells", "options", "dt"),
    [
        (["2024-01-01 00:00:00", "2024-01-01 00:03:00", "2024-01-01 00:06:00"], dict(time_unit="h"), 0.05),
        (["2024-01-01", "2024-01-02", "2024-01-03"], dict(time_unit="h"), 24.0),
        (["2024-01-01T00:00:00Z", "2024-01-01T12:00:00Z", "2024-01-02T00:00:00Z"], dict(time_unit="day"), 0.5),
        (
            ["01.02.2024 10:00", "01.02.2024 10:05", "01.02.2024 10:10"],
            dict(time_unit="min", time_format="%d.%m.%Y %H:%M"),
            5,
        ),
        (["1700000000", "1700000180", "1700000360"], dict(time_unit="h", time_in="s"), 0.05),
        (["1700000000000000000", "1700000000000000010", "1700000000000000020"], dict(time_unit="ns", time_in="ns"), 10),
        (["0.5", "1.0", "1.5"], dict(), 0.5),
        (["0.5", "1.0", "1.5"], dict(time_unit="s", time_in="min"), 30),
    ],
)
def test_times_in_any_form_and_unit(tmp_path, cells, options, dt):
    file = tmp_path / "a.csv"
    file.write_text("when,x\n" + "".join(f"{cell},{k * k}\n" for k, cell in enumerate(cells)))
    t = Trajectories.from_file(file, time="when", **options).transitions()
    assert t.uniform_dt
    assert float(t.dt[0]) == dt


def test_a_datetime_column_of_parquet(tmp_path):
    from datetime import datetime

    file = tmp_path / "a.parquet"
    pl.DataFrame({"when": [datetime(2024, 1, 1, h) for h in (0, 6, 18)], "x": [0.0, 1.0, 3.0]}).write_parquet(file)
    assert Trajectories.from_file(file, time="when", time_unit="day").transitions().dt.tolist() == [0.25, 0.5]


# ------------------------------------------------------------------------------------------ dropped, counted


def test_missing_values_can_be_dropped_and_are_counted(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("t,x\n0,1\n1,NA\n2,3\n3,\n4,5\n5,7\n")
    t = Trajectories.from_file(file, time="t", missing="drop").transitions()
    assert t.dt.tolist() == [2, 2, 1]
    assert t.dropped == {"row without a value": 2}
    assert "2  row without a value" in t.describe()


def test_short_trajectories_can_be_dropped_and_are_counted(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,time,x\na,0,1\na,1,2\nb,0,1\nc,0,1\nc,1,5\n")
    paths = Trajectories.from_file(file, short="drop")
    assert paths.ids == ("a", "c")
    assert paths.transitions().dropped == {"trajectory of one point": 1}


def test_sorting_on_request(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,time,x\na,2,3\nb,0,7\na,1,2\na,0,1\nb,1,9\n")
    assert Trajectories.from_file(file, sort=True).x.tolist() == [1, 2, 3, 7, 9]


# ------------------------------------------------------------------------------------------ real data


def shared(name):
    file = SHARED / name
    if not file.exists():
        pytest.skip(f"{file} is not here")
    return file


def test_btc():
    paths = Trajectories.from_file(
        shared("btc_3min.parquet"), time="timestamp", value="open", time_in="s", time_unit="h"
    )
    t = paths.transitions()
    assert (len(t), t.uniform_dt, float(t.dt[0])) == (801_599, True, 0.05)
    assert (paths.x.min(), paths.x.max()) == (15_565.1, 126_021.6)


def test_eurusd():
    t = Trajectories.from_file(
        shared("eurusd_m5.csv"), time="Time", value="Close", time_unit="min", log=True, max_dt=5
    ).transitions()
    assert t.dropped == {"across a gap": 41}
    assert (len(t), t.uniform_dt, float(t.dt[0])) == (49_958, True, 5.0)


def test_buffalo():
    paths = Trajectories.from_file(
        shared("buffalo.csv"), id="id", time="t", value=["x", "y"], time_in="s", time_unit="h"
    )
    t = paths.transitions()
    assert (len(paths), len(paths.x), t.dim, t.uniform_dt) == (6, 17_342, 2, False)
    assert float(t.dt.median()) == pytest.approx(1.0, rel=1e-6)
    assert float(((t.dt - 1).abs() <= 0.05).double().mean()) == pytest.approx(0.91, abs=0.005)


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "t,x\n0,1\n1,2\n",
            dict(value="y", dt=1.0),
            r"value must be a column of the file, found no 'y' among 't', 'x'",
        ),
        ("t,x\n0,1\n1,2\n", dict(time="when"), "time must be a column of the file, found no 'when'"),
        ("a,b\n0,1\n1,2\n", dict(dt=1.0), "value must name the column of x, found 'a', 'b': pass value='...'"),
        ("x\n1\n2\n", dict(), "dt or time must be given, found neither"),
        ("t,x\n0,1\n1,two\n", dict(time="t"), "column 'x', row 2: a number was expected, found 'two'"),
        ("t,x\n0,1\nlate,2\n", dict(time="t"), "column 't', row 2: times must be numbers or dates, found 'late'"),
        ("t,x\n0,1\n,2\n", dict(time="t"), "column 't', row 2: a time was expected, found none"),
        (
            "t,x\n0,1\n1,\n2,3\n",
            dict(time="t"),
            "column 'x', row 2: a number was expected, found none: .*missing='drop'",
        ),
        ("t,x\n0,1\n1,\n2,3\n", dict(dt=1.0, value="x", missing="drop"), "row 2: .*needs one"),
        ("t,x\n0,1\n1,inf\n", dict(time="t"), "column 'x', row 2: a finite number was expected, found inf"),
        ("t,x\n0,1\n2,2\n1,3\n", dict(time="t"), "column 't', row 3: times must increase .* row 2: .*sort=True"),
        ("t,x\n0,1\n1,2\n1,3\n", dict(time="t"), "column 't', row 3: times must differ .* row 2 again: remove one"),
        (
            "id,time,x\na,0,1\na,1,2\nb,0,1\n",
            dict(),
            "row 3: a trajectory needs at least two points, found one in .* 'b'",
        ),
        ("id,time,x\na,0,1\n,1,2\n", dict(), "column 'id', row 2: a trajectory's id was expected"),
        ("time,x\n0,1\n1,1\n", dict(), "column 'x' must vary within trajectories, found a constant series"),
        ("time,x\n0,1\n1,-1\n", dict(log=True), "column 'x', row 2: a positive number .* found -1.0: use log=False"),
        ("time,x,reward\n0,1,1\n1,2,\n", dict(), "column 'reward', row 2: a reward was expected"),
        ("dt,x\n1,1\n2,2\n", dict(), "column 'dt', row 2: one dt was expected throughout, found 2 after 1"),
        ("time,x\n2024-01-01,1\n2024-01-02,2\n", dict(), "time_unit must be given for dates"),
        ("time,x\n0,1\n1,2\n", dict(time_unit="h"), "time_in must be given for a column of numbers"),
        ("time,x\n0,1\n1,2\n", dict(time_in="h"), "time_unit must be given with time_in"),
        ("time,x\n0,1\n1,2\n", dict(time_unit="year"), "time_unit must be one of ns, us"),
        ("time,x\n", dict(), "rows were expected below the header, found none"),
        ("time,x\n0,1\n1,2,3\n", dict(), "a readable .csv table was expected"),
        ("x,y\n1,2\n3,4\n", dict(layout="rows"), "dt or time must be given"),
        ("x,y\n1,2\n3,4\n", dict(layout="wide", id="x", dt=1.0), "layout 'wide' has no id column"),
        ("x,y\n,\n,\n", dict(layout="wide", dt=1.0), "numbers were expected in 'x', 'y', found none"),
        ("x,y\n1,2\n,4\n3,6\n", dict(layout="wide", dt=1.0), "column 'x', row 2: a number was expected, found none"),
        ("x\n1\n2\n", dict(layout="tall"), "layout must be one of long, wide, rows, found 'tall'"),
        ("x\n1\n2\n", dict(missing="guess"), "missing must be one of error, drop"),
        ("x\n1\n2\n", dict(short="keep"), "short must be one of error, drop"),
        ("x\n1\n2\n", dict(dt=0), "dt must be a positive number, found 0"),
        ("t,x\n1,1\n2,2\n", dict(dt=1.0, time="t"), "only one of dt and time may be given"),
        ("", dict(dt=1.0), "the file must not be empty"),
    ],
)
def test_bad_tables(tmp_path, text, options, message):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        Trajectories.from_file(file, **options)
    assert "\n" not in str(caught.value)
    named = ("layout", "missing", "short", "dt must", "time_unit must be", "time_in must be one")
    assert "bad.csv" in str(caught.value) or str(caught.value).startswith(named)


def test_files_that_are_not_what_they_say(tmp_path):
    x = wild(2, 3)
    np.save(tmp_path / "a.npy", x)
    pl.DataFrame({"x": [1.0, 2.0]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    for source, wrong, message in (
        ("a.npy", "b.npz", "a .npz file was expected"),
        ("a.csv", "b.parquet", "a .parquet file was expected"),
        ("a.csv", "b.npy", "a .npy file was expected"),
        ("a.parquet", "b.csv", "text was expected in a .csv file, found binary content"),
        ("a.npy", "b.tsv", "text was expected"),
        ("a.csv", "b.xlsx", "the suffix must be one of .npz"),
    ):
        (tmp_path / wrong).write_bytes((tmp_path / source).read_bytes())
        with pytest.raises(InputError, match=message):
            Trajectories.from_file(tmp_path / wrong, dt=1.0)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match=r"a .npz file of plain arrays was expected"):
        Trajectories.from_file(tmp_path / "cut.npz", dt=1.0)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"a readable .parquet table was expected"):
        Trajectories.from_file(tmp_path / "cut.parquet", dt=1.0)
    with pytest.raises(InputError, match="a file must exist there, found none"):
        Trajectories.from_file(tmp_path / "none.csv", dt=1.0)


def test_bad_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", p=wild(2, 3), q=wild(2, 3))
    np.save(tmp_path / "a.npy", np.array([[1.0, -1.0]]))
    np.save(tmp_path / "o.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    for name, options, message in (
        ("a.npz", dict(dt=1.0), "value must name the array of x, found p, q"),
        ("a.npz", dict(value="z", dt=1.0), "value must name one of p, q, found 'z'"),
        ("a.npz", dict(value="p"), "dt must be given"),
        ("a.npz", dict(value="p", dt="q"), "dt must be a number for .npz files"),
        ("a.npy", dict(), "dt must be given"),
        ("a.npy", dict(dt=1.0, log=True), r"x must be positive for log=True, found -1.0 at index \(0, 1\)"),
        ("o.npy", dict(dt=1.0), "a .npy file of plain arrays was expected"),  # never unpickled
    ):
        with pytest.raises(InputError, match=message) as caught:
            Trajectories.from_file(tmp_path / name, **options)
        assert name in str(caught.value)


def test_bad_destination(tmp_path):
    with pytest.raises(InputError, match=r"the suffix must be one of .npz, .csv"):
        ragged().to_file(tmp_path / "a.npy")
