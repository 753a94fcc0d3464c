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


def test_columns_named_time_and_id_are_never_values_of_wide_tables(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("time,u,v\n0,1,4\n2,2,6\n6,4,9\n")
    assert Trajectories.from_file(file, layout="wide").transitions().dt.tolist() == [2, 4, 2, 4]
    file.write_text("time,u,v\n0,1,4\n0.5,2,6\n1,4,9\n")
    even = Trajectories.from_file(file, layout="wide", dt=0.5)
    assert (even.ids, even.dt, even.times) == (("u", "v"), 0.5, None)
    file.write_text("id,t0,t1\n7,1,2\n8,4,6\n")
    paths = Trajectories.from_file(file, layout="rows", dt=1.0)
    assert (paths.ids, paths.x.tolist()) == (("7", "8"), [1, 2, 4, 6])


def test_decimal_commas(tmp_path):
    file = tmp_path / "preise.csv"
    file.write_text("Zeit;Kurs\n0;99,5\n1;-1e2\n2;,25\n3;1,5e1\n")
    with pytest.raises(InputError, match=r"row 1: there must be a number, found '99,5'; pass decimal=','"):
        Trajectories.from_file(file, time="Zeit", value="Kurs")
    found = Trajectories.from_file(file, time="Zeit", value="Kurs", decimal=",")
    np.testing.assert_array_equal(found.x, [99.5, -100.0, 0.25, 15.0])
    np.testing.assert_array_equal(Trajectories.from_file(file, time="Zeit", value="Kurs", decimal="comma").x, found.x)
    file.write_text("Zeit;Kurs\n0;99,5\n1;1.234\n")
    with pytest.raises(InputError, match=r"row 2: numbers must have a decimal comma, found '1.234'"):
        Trajectories.from_file(file, time="Zeit", value="Kurs", decimal=",")


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
        (
            ["2024-03-31T01:30:00+01:00", "2024-03-31T03:00:00+02:00", "2024-03-31T03:30:00+02:00"],
            dict(time_unit="h"),
            0.5,
        ),
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


@pytest.mark.parametrize("kind", [pl.Int8, pl.Int32, pl.UInt32, pl.Int64, pl.Float64])
def test_times_of_any_integer_width(tmp_path, kind):
    file = tmp_path / "a.parquet"
    pl.DataFrame({"when": pl.Series([0, 30, 120], dtype=kind), "x": [0.0, 1.0, 3.0]}).write_parquet(file)
    t = Trajectories.from_file(file, time="when", time_in="min", time_unit="h").transitions()
    assert t.dt.tolist() == [0.5, 1.5]


def test_a_column_of_dt_is_converted(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x,dt\n1,30\n2,30\n5,30\n")
    assert Trajectories.from_file(file, time_in="min", time_unit="h").dt == 0.5


def test_times_of_npz_files_have_units_too(tmp_path):
    x, seconds = wild(2, 3), np.array([0, 1800, 7200], dtype=np.int32)
    np.savez(tmp_path / "numbers.npz", x=x, times=seconds)
    np.savez(tmp_path / "dates.npz", x=x, times=np.datetime64("2024-01-01T00:00:00", "s") + seconds)
    np.savez(tmp_path / "dt.npz", x=x, dt=1800.0)
    for name, options in (("numbers", dict(time_in="s")), ("dates", {})):
        paths = Trajectories.from_file(tmp_path / f"{name}.npz", time_unit="h", **options)
        assert paths.transitions().dt.tolist() == [0.5, 1.5, 0.5, 1.5]
    assert Trajectories.from_file(tmp_path / "dt.npz", time_unit="h", time_in="s").dt == 0.5


# ------------------------------------------------------------------------------------------ dropped, counted


def test_empty_trajectories_are_counted(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("a,b,c\n1,,2\n3,,4\n")
    paths = Trajectories.from_file(file, layout="wide", dt=1.0)
    assert paths.ids == ("a", "c")
    assert paths.transitions().dropped == {"trajectory without a value": 1}


def test_a_dropped_row_needs_no_reward(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("time,x,reward\n0,1,5\n1,,\n2,3,7\n")
    assert Trajectories.from_file(file, missing="drop").transitions().reward.tolist() == [5.0]


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


def test_comment_lines(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text("# from the field\n# of June\ntime;x\n0;1.0\n# a pause\n0.5;2.0\n1.0;4.0\n")
    found = Trajectories.from_file(path)
    assert found.x.tolist() == [1.0, 2.0, 4.0]
    assert found.dropped == {"comment line": 3}


def test_steps_in_years(tmp_path):
    path = tmp_path / "yearly.csv"
    path.write_text("time,x\n2000-01-01,1.0\n2001-01-01,2.0\n2004-01-01,4.0\n")
    found = Trajectories.from_file(path, time_unit="year")
    assert found.times.tolist() == [0.0, 366 / 365.25, 4 * 365.25 / 365.25]


def test_a_blank_line_above_the_header(tmp_path):
    path = tmp_path / "exported.csv"
    path.write_text("# made by a tracker\n\n# version 2\ntime,x\n0.0,1.0\n0.5,1.5\n1.0,2.5\n")
    assert Trajectories.from_file(path).transitions().dx.tolist() == [0.5, 1.0]


def test_time_of_day_of_milliseconds(tmp_path):
    path = tmp_path / "stamps.csv"
    start = 1_700_000_000_000 - 1_700_000_000_000 % 86_400_000 + 6 * 3_600_000  # 06:00 UTC
    path.write_text("time,x\n" + "".join(f"{start + 1_800_000 * k},{k}\n" for k in range(4)))
    options = {"time": "time", "time_in": "ms", "time_unit": "h"}
    hours = Trajectories.from_file(path, **options, action="time_of_day").transitions()
    assert hours.action.tolist() == [6.0, 6.5, 7.0]
    assert hours.dt.tolist() == [0.5, 0.5, 0.5]


def test_time_of_day_and_of_week(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text("time,x\n2024-01-01 06:30,1.0\n2024-01-01 23:00,2.0\n2024-01-02 01:00,4.0\n")  # a Monday
    day = Trajectories.from_file(path, time_unit="h", action="time_of_day").transitions()
    assert day.action.tolist() == [6.5, 23.0]
    week = Trajectories.from_file(path, time_unit="h", action="time_of_week").transitions()
    assert week.action.tolist() == [6.5 / 24, 23 / 24]
    path.write_text("time,x\n0,1.0\n1,2.0\n2,4.0\n")
    with pytest.raises(InputError, match="found numbers without a unit; pass time_in"):
        Trajectories.from_file(path, action="time_of_day")
