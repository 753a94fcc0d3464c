"""Files that cannot be used: one sentence with file, column, row and remedy."""

import numpy as np
import polars as pl
import pytest

from levytorch import Trajectories
from levytorch.errors import InputError


def wild(*shape):
    return np.random.default_rng(0).standard_cauchy(shape)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "t,x\n0,1\n1,2\n",
            dict(value="y", dt=1.0),
            r"value must be a column of the file, found no 'y' among 't', 'x'",
        ),
        ("t,x\n0,1\n1,2\n", dict(time="when"), "time must be a column of the file, found no 'when'"),
        ("a,b\n0,1\n1,2\n", dict(dt=1.0), "value must name the column of x, found 'a', 'b'; pass value='...'"),
        ("x\n1\n2\n", dict(), "dt or time must be given, found neither"),
        ("t,x\n0,1\n1,two\n", dict(time="t"), "column 'x', row 2: there must be a number, found 'two'"),
        ("t,x\n0,1\nlate,2\n", dict(time="t"), "column 't', row 2: times must be numbers or dates, found 'late'"),
        ("t,x\n0,1\n,2\n", dict(time="t"), "column 't', row 2: there must be a time, found none"),
        (
            "t,x\n0,1\n1,\n2,3\n",
            dict(time="t"),
            "column 'x', row 2: there must be a number, found none; .*missing='drop'",
        ),
        ("t,x\n0,1\n1,\n2,3\n", dict(dt=1.0, value="x", missing="drop"), "row 2: .*needs one"),
        ("t,x\n0,1\n1,inf\n", dict(time="t"), "column 'x', row 2: there must be a finite number, found inf"),
        ("t,x\n0,1\n2,2\n1,3\n", dict(time="t"), "column 't', row 3: times must increase .* row 2; .*sort=True"),
        ("t,x\n0,1\n1,2\n1,3\n", dict(time="t"), "column 't', row 3: times must differ .* row 2 twice; remove one"),
        (
            "id,time,x\na,0,1\na,1,2\nb,0,1\n",
            dict(),
            "row 3: a trajectory must have at least two points, found one in .* 'b'",
        ),
        ("id,time,x\na,0,1\n,1,2\n", dict(), "column 'id', row 2: there must be a trajectory's id"),
        ("time,x\n0,1\n1,1\n", dict(), "column 'x' must vary within trajectories, found a constant series"),
        (
            "time,x\n0,1\n1,-1\n",
            dict(log=True),
            "column 'x', row 2: there must be a positive number .* found -1.0; use log=False",
        ),
        ("time,x,reward\n0,1,1\n1,2,\n", dict(), "column 'reward', row 2: there must be a reward"),
        ("dt,x\n1,1\n2,2\n", dict(), "column 'dt', row 2: dt must be the same throughout, found 2 after 1"),
        ("time,x\n2024-01-01,1\n2024-01-02,2\n", dict(), "time_unit must be given for dates"),
        ("time,x\n0,1\n1,2\n", dict(time_unit="h"), "time_in must be given for a column of numbers"),
        ("time,x\n0,1\n1,2\n", dict(time_in="h"), "time_unit must be given with time_in"),
        ("time,x\n0,1\n1,2\n", dict(time_unit="month"), "time_unit must be one of ns, us"),
        ("time,x\n", dict(), "there must be rows below the header, found none"),
        ("time,x\n0,1\n1,2,3\n", dict(), "must be a readable .csv table"),
        ("x,y\n1,2\n3,4\n", dict(layout="rows"), "dt or time must be given"),
        ("x,y\n1,2\n3,4\n", dict(layout="wide", id="x", dt=1.0), "id must be left out of layout 'wide'"),
        ("x,y\n,\n,\n", dict(layout="wide", dt=1.0), "'x', 'y' must hold numbers, found none"),
        ("x,y\n1,2\n,4\n3,6\n", dict(layout="wide", dt=1.0), "column 'x', row 2: there must be a number, found none"),
        ("x\n1\n2\n", dict(layout="tall"), "layout must be one of long, wide, rows, found 'tall'"),
        ("x\n1\n2\n", dict(missing="guess"), "missing must be one of error, drop"),
        ("x\n1\n2\n", dict(short="keep"), "short must be one of error, drop"),
        ("x\n1\n2\n", dict(dt=0), "dt must be a positive number, found 0"),
        ("t,x\n1,1\n2,2\n", dict(dt=1.0, time="t"), "dt and time must not both be given"),
        ("", dict(dt=1.0), "the file must not be empty"),
        ("time,x\n03/04/2024,1\n04/04/2024,2\n", dict(time_unit="day"), "row 1: times .* '03/04/2024'; .*time_format"),
        ("time,x\n2024-04-03,1\n04/04/2024,2\n", dict(time_unit="day"), "row 2: times .* found '04/04/2024'"),
        (
            "time,x\n0,1\n1e400,2\n2,3\n",
            dict(time_in="s", time_unit="h"),
            "column 'time', row 2: there must be a finite time",
        ),
        (
            "x\n1\n2\n",
            dict(dt=30, time_in="min", time_unit="h"),
            "the unit of a column, found 'min' beside",
        ),
        (
            "time,u\n0,1\n1,2\n",
            dict(value=["u", "u"]),
            "each once, found 'u', 'u'",
        ),
    ],
)
def test_bad_tables(tmp_path, text, options, message):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        Trajectories.from_file(file, **options)
    assert "\n" not in str(caught.value)
    named = ("layout", "missing", "short", "dt must", "time_unit must be", "time_in must be", "dt and time")
    assert "bad.csv" in str(caught.value) or str(caught.value).startswith(named)


def test_files_that_are_not_what_they_say(tmp_path):
    x = wild(2, 3)
    np.save(tmp_path / "a.npy", x)
    pl.DataFrame({"x": [1.0, 2.0]}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    for source, wrong, message in (
        ("a.npy", "b.npz", "must be a .npz file, found other content"),
        ("a.csv", "b.parquet", "must be a .parquet file, found other content"),
        ("a.csv", "b.npy", "must be a .npy file, found other content"),
        ("a.parquet", "b.csv", "must be text, as .csv files are, found binary content"),
        ("a.npy", "b.tsv", "must be text"),
        ("a.csv", "b.xlsx", "the suffix must be one of .npz"),
    ):
        (tmp_path / wrong).write_bytes((tmp_path / source).read_bytes())
        with pytest.raises(InputError, match=message):
            Trajectories.from_file(tmp_path / wrong, dt=1.0)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match=r"must be a .npz file of plain arrays"):
        Trajectories.from_file(tmp_path / "cut.npz", dt=1.0)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"must be a readable .parquet table"):
        Trajectories.from_file(tmp_path / "cut.parquet", dt=1.0)
    with pytest.raises(InputError, match="a file must exist there, found none"):
        Trajectories.from_file(tmp_path / "none.csv", dt=1.0)


def test_bad_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", p=wild(2, 3), q=wild(2, 3))
    np.save(tmp_path / "a.npy", np.array([[1.0, -1.0]]))
    np.savez(tmp_path / "steps.npz", x=wild(2, 3), dt=np.array([1.0, 2.0]))
    np.savez(tmp_path / "cuts.npz", x=np.arange(5.0), offsets=np.array([0, 2, 99]), dt=1.0)
    np.savez(tmp_path / "half.npz", x=np.arange(5.0), offsets=np.array([0.0, 2.0, 5.0]), dt=1.0)
    np.savez(tmp_path / "dates.npz", x=wild(1, 2), times=np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]"))
    np.savez(tmp_path / "text.npz", x=np.array(["a", "b"]), dt=1.0)
    np.save(tmp_path / "o.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    for name, options, message in (
        ("a.npz", dict(dt=1.0), "value must name the array of x, found p, q"),
        ("a.npz", dict(value="z", dt=1.0), "value must name one of p, q, found 'z'"),
        ("a.npz", dict(value="p"), "dt must be given"),
        ("a.npz", dict(value="p", dt="q"), "dt must be a number for .npz files"),
        ("a.npy", dict(), "dt must be given"),
        ("a.npy", dict(dt=1.0, log=True), r"x must be positive for log=True, found -1.0 at index \(0, 1\)"),
        ("a.npy", dict(dt=1.0, sort=True), "sort must be left out for .npy files, found True; prepare the arrays"),
        ("a.npy", dict(dt=1.0, layout="wide"), "layout must be left out for .npy files, found 'wide'"),
        ("steps.npz", dict(), r"dt must be one number, found shape \(2,\)"),
        ("cuts.npz", dict(), r"offsets must be integers that rise from 0 to the 5 points of x, found \[0, 2, 99\]"),
        ("half.npz", dict(), "offsets must be integers"),
        ("dates.npz", dict(), "time_unit must be given for dates"),
        ("text.npz", dict(log=True), "x must be numeric"),
        ("o.npy", dict(dt=1.0), "must be a .npy file of plain arrays"),  # never unpickled
    ):
        with pytest.raises(InputError, match=message) as caught:
            Trajectories.from_file(tmp_path / name, **options)
        assert name in str(caught.value)


def test_unknown_options_list_the_known_ones(tmp_path):
    (tmp_path / "a.csv").write_text("time,x\n0,1\n1,2\n")
    with pytest.raises(InputError, match=r"a\.csv: options must be among action, .*, found 'val'; use value, or"):
        Trajectories.from_file(tmp_path / "a.csv", val="x")


def test_bad_destination(tmp_path):
    with pytest.raises(InputError, match=r"the suffix must be one of .npz, .csv"):
        Trajectories.from_arrays([[0.0, 1.0]], dt=1.0).to_file(tmp_path / "a.npy")
