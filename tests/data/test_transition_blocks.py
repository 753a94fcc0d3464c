"""Transitions of a file block by block: the same pairs as at once, refusals included, in memory that stays flat."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from levytorch import Trajectories
from levytorch.data import columns, numpy_files, pairing, transition_blocks
from levytorch.errors import InputError, LevytorchWarning
from tests.data.test_on_disk import uneven  # noqa: F401

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(columns, "_ROWS", 700)
    monkeypatch.setattr(columns, "_BYTES", 5000)
    monkeypatch.setattr(numpy_files, "_BLOCK", 900)


def check_union(file, **options):
    """All blocks together are the transitions of the file."""
    whole = Trajectories.from_file(file, **options).transitions()
    stream = transition_blocks(file, block=500, **options)
    for _ in range(2):  # as often as you like
        parts = list(stream)
        assert max(len(part) for part in parts) <= 500
        for name in ("x", "dx", "dt", "trajectory"):
            union = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(union, getattr(whole, name)), name
        if whole.reward is None:
            assert parts[0].reward is None
        else:
            assert torch.equal(torch.cat([part.reward for part in parts]), whole.reward)
        assert {part.uniform_dt for part in parts} == {whole.uniform_dt}
        assert parts[0].dropped == stream.dropped == whole.dropped
        assert not any(part.dropped for part in parts[1:])
    assert len(stream) == len(whole)
    assert torch.equal(stream.mu, whole.mu)
    return parts


def written(table, file, **options):
    if file.suffix == ".parquet":
        table.write_parquet(file)
    else:
        table.write_csv(file, separator="\t" if file.suffix == ".tsv" else ",", **options)
    return file


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_uneven_tables(tmp_path, uneven, suffix):  # noqa: F811
    file = written(uneven, tmp_path / f"t{suffix}")
    options = {"value": ["u", "v"], "missing": "drop", "short": "drop"}
    assert len(check_union(file, **options)) > 4
    check_union(file, max_dt=4.0, **options)
    check_union(file, max_dt=1.0, **options)  # one dt is left


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_dates(tmp_path, uneven, suffix):  # noqa: F811
    micro = (pl.col("time") * 1e6).cast(pl.Int64) + 10**15
    table = uneven.with_columns(pl.from_epoch(micro, time_unit="us").alias("time"))
    options = {"value": "v", "short": "drop", "time_unit": "min", "max_dt": 0.05}
    check_union(written(table, tmp_path / f"t{suffix}"), **options)


@pytest.mark.parametrize("last", ["", ".5"])
def test_text_of_whole_numbers_until_the_last_block(tmp_path, last):
    """Whether times are integers is known only at the end, and decides how they are rounded."""
    file = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    times = 1_700_000_000 + np.cumsum(rng.integers(1, 90, 3000))
    lines = [f"{t},{x!r}" for t, x in zip(times.tolist(), rng.normal(size=3000).tolist())]
    lines[-1] = lines[-1].replace(",", f"{last},")
    file.write_text("time,x\n" + "\n".join(lines))
    check_union(file, time_in="s", time_unit="day")


def test_lines_that_go_on_inside_quotes(tmp_path):
    rows = "".join(f'"a\nname {k // 50}",{k},{k * k % 17}\n' for k in range(1000))
    (tmp_path / "t.csv").write_text("id,time,x\n" + rows, newline="\n")
    assert transition_blocks(tmp_path / "t.csv").n_trajectories == 20
    check_union(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("shape", [(40, 60), (1, 2500), (30, 50, 2)])
def test_arrays_and_what_to_file_writes(tmp_path, suffix, shape):
    file = tmp_path / f"t{suffix}"
    x = np.cumsum(np.random.default_rng(1).normal(size=shape), axis=1)
    if suffix == ".npy":
        np.save(file, x)
    else:
        Trajectories.from_arrays(x, dt=0.025, max_dt=0.5, reward=x[..., 0] if len(shape) > 2 else x).to_file(file)
    check_union(file, **({"dt": 0.025} if suffix == ".npy" else {}))


@pytest.mark.parametrize("shared", [True, False])
def test_times_of_arrays(tmp_path, shared):
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.uniform(0.5, 2.0, (1 if shared else 5, 400)), axis=1)
    np.savez(tmp_path / "t.npz", x=rng.normal(size=(5, 400, 2)), times=times[0] if shared else times)
    check_union(tmp_path / "t.npz")
    check_union(tmp_path / "t.npz", max_dt=1.5)


def test_many_pairs_and_gaps(tmp_path, monkeypatch):
    """The width of dx is estimated from every so many-th pair, counted without the gaps."""
    monkeypatch.setattr(pairing, "_LOOK_AT", 100)
    rng = np.random.default_rng(4)
    x = np.cumsum(rng.normal(size=(4, 700)), axis=1)
    x[2] += 1e14
    times = np.cumsum(rng.choice([1.0, 1.0, 5.0], (4, 700)), axis=1)
    np.savez(tmp_path / "t.npz", x=x, times=times)
    check_union(tmp_path / "t.npz", max_dt=2.0)
    stream = transition_blocks(tmp_path / "t.npz")
    assert stream.dropped == {"beyond float resolution": 699}


def test_what_cannot_be_read_in_blocks_is_cut(tmp_path, uneven):  # noqa: F811
    table = uneven.sample(fraction=1.0, shuffle=True, seed=1)
    options = {"value": "v", "short": "drop", "sort": True}
    check_union(written(table, tmp_path / "t.parquet"), **options)
    mixed = pl.DataFrame({"id": [0, 1] * 800, "time": np.arange(1600), "x": np.random.default_rng(0).normal(size=1600)})
    check_union(written(mixed, tmp_path / "m.csv"))
    wide = pl.DataFrame(np.random.default_rng(0).normal(size=(600, 3)), schema=["a", "b", "c"])
    check_union(written(wide, tmp_path / "w.csv"), layout="wide", dt=1.0)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda t: t, {}),
        (lambda t: t, {"missing": "drop"}),
        (lambda t: t.reverse(), {"missing": "drop", "short": "drop"}),
        (lambda t: t.with_columns(time=pl.lit(1.0)), {"missing": "drop", "short": "drop"}),
        (lambda t: t, {"value": "w"}),
        (lambda t: t, {"missing": "drop", "short": "drop", "max_dt": 0.5}),
        (lambda t: t.with_columns(u=pl.lit(1.0)), {"short": "drop"}),
        (lambda t: t.with_columns(u=pl.lit("n.a.")), {"short": "drop"}),
        (lambda t: t.drop("time").with_columns(dt=pl.lit(2.0)), {"value": "v", "short": "drop", "max_dt": 1.0}),
        (lambda t: t.drop("time").with_columns(dt=pl.int_range(pl.len())), {"value": "v", "short": "drop"}),
        (lambda t: t.with_columns(v=pl.col("v") * 1e308), {"value": "v", "short": "drop"}),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_refused_as_at_once(tmp_path, uneven, change, options, suffix):  # noqa: F811
    file = written(change(uneven), tmp_path / f"t{suffix}")
    said = []
    for read in (lambda **more: Trajectories.from_file(file, **more).transitions(), blocks_of(file)):
        with pytest.raises(InputError) as error:
            read(**{"value": "u", **options})
        said.append(str(error.value))
    assert said[0] == said[1]


def blocks_of(file):
    return lambda **options: list(transition_blocks(file, **options))


def test_there_is_no_store(tmp_path):
    with pytest.raises(InputError, match=r"options must be among .*, found 'on_disk'"):
        transition_blocks(tmp_path / "x.npy", on_disk=tmp_path)


def test_standing_still_is_worth_a_warning(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0.0, 1.0], [2.0, 2.0], [0.0, 3.0]]))
    with pytest.warns(LevytorchWarning, match="1 of 3 trajectories never move, trajectory 1 first"):
        transition_blocks(tmp_path / "x.npy", dt=1.0)


SCRIPT = """
import json, sys, threading, time
from tests.data.limited import Peak, status
from levytorch.data import pairing, transition_blocks
pairing._LOOK_AT = 10_000  # pairs that are kept, whatever the size of the file
small, large, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def taken(file):
    peak = Peak()
    peak.start()
    n = sum(len(part) for part in transition_blocks(file, **options))
    peak.stop = True
    peak.join()
    return n, peak.anonymous
taken(small)  # libraries and their pools
print(json.dumps([taken(small), taken(large)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc as Linux has it")
@pytest.mark.parametrize("suffix", [*(pytest.param(s, marks=pytest.mark.slow) for s in (".csv", ".parquet")), ".npy"])
def test_memory_stays_flat(tmp_path, suffix):
    """Two million points more, 16 MB of x alone and 32 of pairs, take no more memory."""
    for name, n in (("small", 1_000_000), ("large", 3_000_000)):
        x = np.round(np.cumsum(np.random.default_rng(0).normal(size=n)), 3)
        file = tmp_path / f"{name}{suffix}"
        if suffix == ".npy":
            np.save(file, x)
        else:
            written(pl.DataFrame({"time": np.arange(n), "x": x}), file)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(str(tmp_path / f"{name}{suffix}") for name in ("small", "large")),
         json.dumps({"dt": 1.0} if suffix == ".npy" else {})],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    small, large = json.loads(done.stdout)
    assert (small[0], large[0]) == (999_999, 2_999_999)
    assert large[1] - small[1] < 12 * 2**20
