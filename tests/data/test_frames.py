"""Frames of pandas, polars and pyarrow, dates as times, and trajectories as frames."""

import datetime

import numpy as np
import polars as pl
import pytest

from levytorch import Trajectories
from levytorch.errors import InputError

X = [1.0, 2.0, 3.0, 5.0]
HOURS = np.array(["2024-03-31T00:00", "2024-03-31T02:00", "2024-03-31T01:00", "2024-03-31T04:00"], dtype="M8[ns]")
NAMES = {"id": "animal", "time": "t", "value": "x", "time_unit": "h"}


def as_frame(library):
    """Two animals whose clock passes the start of summer time in Berlin (02:00 does not exist there that night)."""
    if library == "dict":
        return {"animal": ["a", "a", "b", "b"], "t": HOURS, "x": X}
    if library == "polars":
        frame = pl.DataFrame({"animal": ["a", "a", "b", "b"], "t": HOURS, "x": X})
        zone = pl.col("t").dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
        return frame.with_columns(pl.col("animal").cast(pl.Categorical), zone)
    pd = pytest.importorskip("pandas")
    stamps = pd.Series(HOURS).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    frame = pd.DataFrame({"animal": pd.Categorical(["a", "a", "b", "b"]), "t": stamps, "x": X})
    return frame if library == "pandas" else pytest.importorskip("pyarrow").Table.from_pandas(frame)


@pytest.mark.parametrize("library", ["dict", "polars", "pandas", "pyarrow"])
def test_every_library_gives_the_same_trajectories(library):
    t = Trajectories.from_frame(as_frame(library), **NAMES)
    assert t.ids == ("a", "b")
    np.testing.assert_array_equal(t.times, [0.0, 2.0, 1.0, 4.0])
    np.testing.assert_array_equal(t.transitions().dt, [2.0, 3.0])
    np.testing.assert_array_equal(t.x, X)


def test_there_and_back():
    x = np.random.default_rng(0).normal(size=(3, 5, 2))
    t = Trajectories.from_arrays(x, 0.25, reward=x[..., 0], action=np.arange(15).reshape(3, 5) % 2, max_dt=1.0)
    for kind in ("polars", "dict"):
        back = Trajectories.from_frame(t.to_frame(kind))
        for name in ("x", "offsets", "reward", "action"):
            np.testing.assert_array_equal(getattr(back, name), getattr(t, name))
        assert (back.dt, back.max_dt, back.actions) == (0.25, 1.0, (0, 1))
    pytest.importorskip("pandas")
    np.testing.assert_array_equal(Trajectories.from_frame(t.to_frame("pandas")).x, t.x)
    with pytest.raises(InputError, match=r"kind must be one of polars, pandas, dict, found 'excel'"):
        t.to_frame("excel")


def test_pandas_gaps_indices_and_nullable_columns():
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2024-01-01", periods=4, freq="30min", tz="US/Eastern")
    series = pd.Series([1.0, 2.0, 0.0, 1.0], index=index)
    np.testing.assert_array_equal(Trajectories.from_frame(series, time_unit="min").times, [0, 30, 60, 90])
    frame = pd.DataFrame({"x": pd.array([1, None, 3, 4], dtype="Int64")}, index=index)
    with pytest.raises(InputError, match=r"the frame, column 'x', row 2: there must be a number, found none"):
        Trajectories.from_frame(frame, time_unit="h")
    dropped = Trajectories.from_frame(frame, time_unit="h", missing="drop")
    assert dropped.dropped == {"row without a value": 1}
    np.testing.assert_array_equal(dropped.times, [0.0, 1.0, 1.5])
    text = pd.DataFrame({"time": ["0", "1", "2"], "x": ["1", "2", "x"]})
    with pytest.raises(InputError, match=r"column 'x', row 3: there must be a number, found 'x'"):
        Trajectories.from_frame(text)


def test_dates_as_times_of_arrays():
    days = [datetime.datetime(2024, 1, k, tzinfo=datetime.UTC) for k in (1, 2, 4)]
    for times in (days, np.array([d.replace(tzinfo=None) for d in days], dtype="M8[s]")):
        t = Trajectories.from_arrays([1.0, 2.0, 4.0], times=times, time_unit="day")
        np.testing.assert_array_equal(t.times, [0.0, 1.0, 3.0])
    later = [d + datetime.timedelta(hours=12) for d in days[:2]]
    t = Trajectories.from_arrays([[1.0, 2.0, 4.0], [1.0, 2.0]], times=[days, later], time_unit="h")
    np.testing.assert_array_equal(t.times, [0, 24, 72, 12, 36])
    with pytest.raises(InputError, match="time_unit must be given for dates"):
        Trajectories.from_arrays([1.0, 2.0, 4.0], times=days)
    with pytest.raises(InputError, match="times must be dates where time_unit is given"):
        Trajectories.from_arrays([1.0, 2.0, 4.0], times=[0.0, 1.0, 2.0], time_unit="h")


def test_what_is_no_frame_and_what_is_one():
    with pytest.raises(InputError, match=r"x must be an array, .* found a DataFrame with columns; use Traj"):
        Trajectories.from_arrays(pl.DataFrame({"t": range(41), "x": range(41)}), 1.0)
    with pytest.raises(InputError, match=r"a frame must be one of pandas"):
        Trajectories.from_frame([1.0, 2.0])
    with pytest.raises(InputError, match=r"found 'idd'; use id, or remove it"):
        Trajectories.from_frame({"x": X, "dt": 1.0}, idd="x")


def test_rewards_of_pairs_of_unequal_episodes():
    rows = [[1.0, 2.0, 3.0], [1.0, 2.0]]
    t = Trajectories.from_arrays(rows, 0.1, reward=[[1.0, 2.0], [3.0]]).transitions()
    np.testing.assert_array_equal(t.reward, [1.0, 2.0, 3.0])
    one = Trajectories.from_arrays([1.0, 2.0, 3.0], 0.1, reward=[5.0, 6.0]).transitions()
    np.testing.assert_array_equal(one.reward, [5.0, 6.0])
    with pytest.raises(InputError, match="reward must have one number per point"):
        Trajectories.from_arrays(rows, 0.1, reward=[[1.0, 2.0], [3.0, 4.0, 5.0]])
