"""expected_dt: a file of another resolution is refused in one sentence, before anything is computed."""

import numpy as np
import polars as pl
import pytest

from levytorch.data.sources import FromFile, selected
from levytorch.errors import InputError

OPTIONS = {"time": "timestamp", "value": "open", "time_in": "s", "time_unit": "h"}


def prices(tmp_path, seconds, name="prices.parquet"):
    open_ = 40000 + np.cumsum(np.random.default_rng(0).standard_normal(len(seconds)))
    file = tmp_path / name
    pl.DataFrame({"timestamp": np.asarray(seconds, dtype=np.int64), "open": open_}).write_parquet(file)
    return file


def refusal(file, **more):
    with pytest.raises(InputError) as caught:
        FromFile(file, expected_dt=0.05, **{**OPTIONS, **more})()
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    return message


def test_the_right_resolution_passes(tmp_path):
    file = prices(tmp_path, 180 * np.arange(50))
    data = FromFile(file, expected_dt=0.05, **OPTIONS)()
    assert len(data.transitions) == 49
    assert float(data.transitions.dt[0]) == pytest.approx(0.05)


def test_five_minute_bars_are_refused(tmp_path):
    message = refusal(prices(tmp_path, 300 * np.arange(50)))
    assert "0.05 h" in message
    assert "0.0833333" in message
    assert "expected_dt" in message


def test_a_wrong_unit_is_refused(tmp_path):
    file = prices(tmp_path, 180 * np.arange(50))
    assert "time_in" in refusal(file, time_in="ms")


def test_gaps_are_refused_unless_they_are_known(tmp_path):
    seconds = 180 * np.arange(50)
    seconds[30:] += 3600
    file = prices(tmp_path, seconds)
    message = refusal(file)
    assert "found 1 others, the first 1.05" in message
    assert "max_dt=0.05" in message
    data = FromFile(file, expected_dt=0.05, max_dt=0.05, **OPTIONS)()
    assert data.transitions.dropped["across a gap"] == 1


def test_another_resolution_is_no_file_full_of_gaps(tmp_path):
    message = refusal(prices(tmp_path, 300 * np.arange(50)), max_dt=0.05)
    assert "found mostly 0.0833333" in message


def test_observations_in_between_are_refused(tmp_path):
    seconds = np.sort(np.append(180 * np.arange(50), 90))
    assert "remove the observations in between" in refusal(prices(tmp_path, seconds))


def test_doubled_stamps_are_refused(tmp_path):
    seconds = np.sort(np.append(180 * np.arange(50), 180 * 7))
    message = refusal(prices(tmp_path, seconds))
    assert "row" in message


def test_other_columns_are_named(tmp_path):
    file = tmp_path / "bars.csv"
    file.write_text("Time,Close\n" + "\n".join(f"{180 * k},{k % 7 + 1}" for k in range(30)))
    message = refusal(file)
    assert "'Time'" in message
    assert "'Close'" in message


def test_a_number_of_dt_is_judged_too(tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.random.default_rng(0).standard_normal(30).cumsum())
    assert len(FromFile(file, dt=0.05, expected_dt=0.05)().transitions) == 29
    with pytest.raises(InputError, match=r"found mostly 0\.1"):
        FromFile(file, dt=0.1, expected_dt=0.05)()


@pytest.mark.parametrize("value", [0, -1.0, "3 min", float("nan")])
def test_expected_dt_must_be_positive(tmp_path, value):
    with pytest.raises(InputError, match="expected_dt"):
        FromFile(tmp_path / "x.csv", expected_dt=value)


def test_many_trajectories_are_judged_within(tmp_path):
    file = tmp_path / "many.csv"
    rows = [f"{k},{180 * j},{(3 * j + k) % 5}" for k in range(3) for j in range(10)]
    file.write_text("id,timestamp,open\n" + "\n".join(rows))
    assert len(FromFile(file, expected_dt=0.05, **OPTIONS)().transitions) == 27


def test_selected_is_what_the_source_takes(tmp_path):
    file = prices(tmp_path, 180 * np.arange(200))
    everything = FromFile(file, **OPTIONS)().transitions
    n = len(everything)
    drawn = np.sort(np.random.default_rng(3).permutation(n)[:20])
    for choice, rows in (({"first": 20}, np.arange(20)), ({"sample": 20, "sample_seed": 3}, drawn)):
        found = FromFile(file, **choice, **OPTIONS)().transitions
        np.testing.assert_array_equal(found.dx, everything.dx[rows])
        again = selected(n, choice.get("first"), choice.get("sample"), choice.get("sample_seed", 0))
        np.testing.assert_array_equal(everything.dx[again], everything.dx[rows])
    assert selected(10, None, None) is None
