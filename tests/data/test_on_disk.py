"""Data larger than memory: the same pairs, numbers and refusals as in memory, under a limit that memory cannot meet."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levytorch import Dynamics, Trajectories, simulate
from levytorch.data import (
    FromFile,
    LevyDataModule,
    columns,
    make_pools,
    numpy_files,
    pairing,
    quantiles,
    store,
)
from levytorch.errors import InputError
from levytorch.likelihood import sums
from tests.training.problems import frozen_recover as recover
from tests.training.problems import stable

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Every loop over blocks takes several turns."""
    monkeypatch.setattr(columns, "_ROWS", 700)
    monkeypatch.setattr(pairing, "_BLOCK", 600)
    monkeypatch.setattr(numpy_files, "_BLOCK", 900)
    monkeypatch.setattr(quantiles, "_MOST", 200)
    monkeypatch.setattr(quantiles, "BLOCK", 500)
    monkeypatch.setattr(store, "_BYTES", 1 << 10)


@pytest.fixture(scope="module")
def paths():
    return simulate(Dynamics.named("variable"), 60, 40, 1 / 40, seed=1)


@pytest.fixture(scope="module")
def uneven():
    """A long table in two dimensions: gaps, empty cells, a trajectory of one point, a reward."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(60):
        n = 1 if k == 7 else int(rng.integers(20, 60))
        times = np.cumsum(rng.choice([1.0, 1.0, 1.0, 2.0, 9.0], n))
        u, v, r = rng.normal(size=n).tolist(), rng.standard_cauchy(n).tolist(), rng.normal(size=n).tolist()
        rows += [(f"t{k}", t, None if rng.random() < 0.03 else a, b, c) for t, a, b, c in zip(times, u, v, r)]
    return pl.DataFrame(rows, schema=["id", "time", "u", "v", "reward"], orient="row")


def check_same(here, there):
    assert there.stored is not None
    assert here.stored is None
    for name in ("x", "dx", "dt", "mu", "trajectory"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert (here.uniform_dt, here.dropped, here.n_trajectories) == (
        there.uniform_dt,
        there.dropped,
        there.n_trajectories,
    )
    assert (here.reward is None) == (there.reward is None)
    if here.reward is not None:
        assert torch.equal(here.reward, there.reward)
    assert here.median_dt == there.median_dt
    assert here.describe() == there.describe()


def both(file, cache, **options):
    return Trajectories.from_file(file, **options), Trajectories.from_file(file, on_disk=cache, **options)


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".npy"])
def test_the_same_pairs_as_in_memory(tmp_path, paths, suffix):
    file = tmp_path / f"paths{suffix}"
    if suffix == ".npy":
        np.save(file, paths.to_array())
    else:
        paths.to_file(file)
    here, there = both(file, tmp_path / "cache", **({"dt": 1 / 40} if suffix == ".npy" else {}))
    assert here.ids == there.ids
    check_same(here.transitions(), there.transitions())
    censored = [t.transitions().censor(TRT=5.0, CT=2.0) for t in (here, there)]
    check_same(*censored)
    check_same(*(make_pools(t, 1.0, 4.0, min_tail=10).main for t in censored))
    check_same(*(t[t.x > 3] for t in censored))
    check_same(*(t[100:900].censor(TRT=5.0, CT=2.0) for t in censored))


@pytest.mark.parametrize("dates", [False, True])
def test_uneven_tables(tmp_path, uneven, dates):
    options = {"value": ["u", "v"], "missing": "drop", "short": "drop", "max_dt": 4.0}
    if dates:
        micro = (pl.col("time") * 1e6).cast(pl.Int64) + 10**15
        uneven = uneven.with_columns(pl.from_epoch(micro, time_unit="us").alias("time"))
        options |= {"time_unit": "min", "max_dt": 0.05}
    uneven.write_parquet(tmp_path / "t.parquet")
    here, there = (t.transitions() for t in both(tmp_path / "t.parquet", tmp_path / "cache", **options))
    assert set(here.dropped) == {"row without a value", "trajectory of one point", "across a gap"}
    check_same(here, there)
    ours, theirs = (sums._dt_groups(t.dt) for t in (here, there))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_pairs_that_floats_do_not_resolve(tmp_path):
    x = np.cumsum(np.random.default_rng(1).normal(size=(4, 500)), axis=1)
    x[2] += 1e14
    np.save(tmp_path / "x.npy", x)
    here, there = (t.transitions() for t in both(tmp_path / "x.npy", tmp_path / "cache", dt=1.0))
    assert here.dropped["beyond float resolution"] == 499
    check_same(here, there)


@pytest.mark.parametrize("shared", [True, False])
def test_times_of_arrays(tmp_path, shared):
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.uniform(0.5, 2.0, (1 if shared else 5, 400)), axis=1)
    np.savez(tmp_path / "t.npz", x=rng.normal(size=(5, 400, 2)), times=times[0] if shared else times)
    check_same(*(t.transitions() for t in both(tmp_path / "t.npz", tmp_path / "cache")))


@pytest.mark.parametrize("engine", ["fisher", "lbfgs", "adam"])
def test_the_same_fit(tmp_path, paths, engine):
    paths.to_file(tmp_path / "paths.parquet")
    options = {"max_steps": 40, "window": 20, "batch_size": 20} if engine == "adam" else {"max_steps": 3}
    tail = {"CT": 2.0, "TRT": 20.0, "min_tail": 20, "start": 10}
    found = [
        recover(t.transitions().censor(), alpha=0.3, n_basis=3, engine=engine, tail=tail, **options)
        for t in both(tmp_path / "paths.parquet", tmp_path / "cache")
    ]
    assert found[0].tcf > 0
    assert torch.equal(found[0].theta, found[1].theta)
    assert torch.equal(found[0].covariance, found[1].covariance)


def test_parts_of_a_file(tmp_path, paths):
    file = tmp_path / "paths.parquet"
    paths.to_file(file)
    for part in ({"first": 1000}, {"sample": 500, "sample_seed": 3}):
        here, there = (FromFile(file, **part, **more)().transitions for more in ({}, {"on_disk": tmp_path / "cache"}))
        assert torch.equal(here.x, there.x)
        assert torch.equal(here.mu, there.mu)
        assert torch.equal(here.trajectory, there.trajectory)
        assert here.dropped == there.dropped
    here, there = (LevyDataModule(t.transitions(), validation=0.2, seed=5) for t in both(file, tmp_path / "cache"))
    check_same(here.transitions, there.transitions)
    check_same(here.held_out, there.held_out)


def test_what_was_made_is_used_again(tmp_path, paths):
    file, cache = tmp_path / "paths.parquet", tmp_path / "cache"
    paths.to_file(file)
    Trajectories.from_file(file, on_disk=cache).transitions().censor()
    made = {p: p.stat().st_mtime_ns for p in cache.rglob("*")}
    assert len([p for p in made if p.name == store.RECORD]) == 3  # points, pairs, censored
    Trajectories.from_file(file, on_disk=cache).transitions().censor()
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*")} == made
    Trajectories.from_file(file, on_disk=cache, log=False, value="x")  # other options: another entry
    os.utime(file, ns=(1, 1))  # and so is another file under the same name
    Trajectories.from_file(file, on_disk=cache)
    assert len(list(cache.iterdir())) == 5


def test_an_entry_is_there_whole_or_not_at_all(tmp_path):
    def fails(writer):
        writer.append("x", np.zeros(10))
        raise InputError("on the way")

    with pytest.raises(InputError, match="on the way"):
        store.make(tmp_path, {"a": 1}, fails)
    assert list(tmp_path.iterdir()) == []
    entry = store.make(tmp_path, {"a": 1}, lambda writer: writer.append("x", np.arange(10.0)) or {"n": 10})
    assert entry.record == {"n": 10}
    assert np.array_equal(entry.array("x"), np.arange(10.0))
    with pytest.raises(ValueError, match="read-only"):
        entry.array("x")[0] = 1.0


def of_shapes(name, change):
    """A change of the form of one column, where there is such a column."""

    def tamper(content):
        if name in content["shapes"]:
            change(content["shapes"][name])
        return content

    return tamper


def of_record(**values):
    def tamper(content):
        for key in set(values) & set(content["record"]):
            content["record"][key] = values[key]
        return content

    return tamper


TAMPERED = {
    "objects": of_shapes("x", lambda form: form.__setitem__(0, "|O")),
    "lengths as objects": of_shapes("lengths", lambda form: form.__setitem__(0, "|O")),
    "pairs as objects": of_shapes("dx", lambda form: form.__setitem__(0, "|O")),
    "a structure": of_shapes("x", lambda form: form.__setitem__(0, [["a", "|O"]])),
    "smaller numbers": of_shapes("x", lambda form: form.__setitem__(0, "<f4")),
    "other numbers": of_shapes("lengths", lambda form: form.__setitem__(0, "<f8")),
    "integers as states": of_shapes("dx", lambda form: form.__setitem__(0, "<i8")),
    "too long": of_shapes("lengths", lambda form: form.__setitem__(1, 10**6)),
    "too short": of_shapes("dx", lambda form: form.__setitem__(1, 3)),
    "negative": of_shapes("x", lambda form: form.__setitem__(1, -1)),
    "a fraction": of_shapes("x", lambda form: form.__setitem__(1, 1.5)),
    "a truth value": of_shapes("x", lambda form: form.__setitem__(1, True)),
    "text": of_shapes("x", lambda form: form.__setitem__(1, "9")),
    "no end": of_shapes("x", lambda form: form.__setitem__(1, 10**60)),
    "nothing of much": of_shapes("x", lambda form: form.__setitem__(slice(1, 9), [0, 2**62])),
    "dimensions": of_shapes("x", lambda form: form.extend([1, 1, 1])),
    "another shape": of_shapes("x", lambda form: form.__setitem__(slice(1, 9), [form[1] // 3, 3])),
    "no form": of_shapes("x", lambda form: form.clear()),
    "a foreign file": lambda content: {**content, "shapes": {**content["shapes"], "../x": ["<f8", 1]}},
    "no shapes": lambda content: {"record": content["record"]},
    "no columns": lambda content: {**content, "shapes": {}},
    "shapes of a kind": lambda content: {**content, "shapes": [1]},
    "no record": lambda content: {"shapes": content["shapes"]},
    "no mapping": lambda content: [content],
    "an empty record": lambda content: {**content, "record": {}},
    "dt as text": of_record(dt="0.1"),
    "dt below zero": of_record(dt=-1.0),
    "dropped as text": of_record(dropped="none"),
    "counts as text": of_record(dropped={"row": "x"}),
    "too few ids": of_record(ids=["a"]),
    "ids as lists": of_record(ids=[[]] * 60),
    "ids as text": of_record(ids="x" * 60),
}


@pytest.mark.parametrize("kind", [*TAMPERED, "no JSON", "deep JSON", "no file", "other counts", "other lengths"])
def test_a_cache_that_was_tampered_with(tmp_path, paths, kind):
    file, cache = tmp_path / "paths.parquet", tmp_path / "cache"
    paths.to_file(file)
    Trajectories.from_file(file, on_disk=cache).transitions().censor()
    for record in cache.glob(f"*/{store.RECORD}"):
        if kind in TAMPERED:
            record.write_text(json.dumps(TAMPERED[kind](json.loads(record.read_text()))))
        elif kind == "no file":
            (record.parent / "x").unlink()
        elif "JSON" in kind:
            record.write_text("{" if kind == "no JSON" else "[" * 100_000)
        elif (record.parent / kind[6:]).exists():
            np.array([2**62, -5] * 30).tofile(record.parent / kind[6:])
    with pytest.raises(
        InputError, match=r"must be as on_disk wrote it, found .*; delete .*cache, and it is made again"
    ):
        Trajectories.from_file(file, on_disk=cache).transitions().censor()


def test_a_directory_that_cannot_be_used(tmp_path, paths):
    paths.to_file(tmp_path / "paths.npz")
    for place in (True, 3, tmp_path / "paths.npz"):
        with pytest.raises(InputError, match="on_disk must be a directory"):
            Trajectories.from_file(tmp_path / "paths.npz", on_disk=place)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda t: t.with_columns(u=pl.lit(None, pl.Float64)), {"missing": "drop"}, "a number somewhere"),
        (lambda t: t, {}, "fill the cell, or pass missing='drop'"),
        (lambda t: t, {"missing": "drop"}, "at least two points, found one in trajectory 't7'"),
        (
            lambda t: t.with_columns(u=pl.when(pl.int_range(pl.len()) == 1500).then(np.inf).otherwise("u")),
            {"missing": "drop"},
            "inf",
        ),
        (lambda t: t.reverse(), {"missing": "drop", "short": "drop"}, "an earlier one than in row"),
        (lambda t: t.with_columns(time=pl.lit(1.0)), {"missing": "drop", "short": "drop"}, "must differ within"),
        (lambda t: t.with_columns(time=pl.lit(None, pl.Float64)), {}, "row 1: there must be a time"),
        (lambda t: t, {"value": "w"}, "found no 'w'"),
        (lambda t: t, {"value": "v", "log": True, "short": "drop"}, "a positive number"),
        (lambda t: t.drop("time"), {"missing": "drop"}, "dt or time must be given"),
    ],
)
def test_tables_are_refused_as_in_memory(tmp_path, uneven, change, options, words):
    change(uneven).write_parquet(tmp_path / "t.parquet")
    said = []
    for more in ({}, {"on_disk": tmp_path / "cache"}):
        with pytest.raises(InputError, match=words) as error:
            Trajectories.from_file(tmp_path / "t.parquet", **{"value": "u", **options, **more})
        said.append(str(error.value))
    assert said[0] == said[1]
    assert not list((tmp_path / "cache").glob(".*"))  # nothing half made is left


def test_what_needs_memory_is_refused(tmp_path, uneven):
    uneven.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "mixed.parquet")
    with pytest.raises(InputError, match="must follow each other"):
        Trajectories.from_file(tmp_path / "mixed.parquet", on_disk=tmp_path / "c", value="v", short="drop")
    with pytest.raises(InputError, match="sort=True"):
        Trajectories.from_file(tmp_path / "mixed.parquet", on_disk=tmp_path / "c", value="v", sort=True)
    uneven.write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match="sink_parquet"):
        Trajectories.from_file(tmp_path / "t.csv", on_disk=tmp_path / "c", value="v")


# ---------------------------------------------------------------------------------------------------- quantiles


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=60), st.integers(1, 7))
def test_order_statistics_are_those_of_numpy(values, most):
    array = np.array(values)
    kept, quantiles._MOST = quantiles._MOST, most
    try:
        found = quantiles.order_statistics(quantiles.cut(array), range(len(array)))
        assert np.array_equal(found, np.sort(array))
    finally:
        quantiles._MOST = kept


@pytest.mark.parametrize("ties", [False, True])
def test_quantiles_and_median_have_the_bits_of_numpy(ties):
    rng = np.random.default_rng(3)
    for n in (1, 2, 7, 2000, 2001):
        values = rng.standard_cauchy(n) * 1e6
        if ties:
            values = np.where(rng.random(n) < 0.6, 0.0, np.round(values, -5))
        levels = (0.0, 0.001, 0.05, 0.25, 0.5, 0.75, 0.999, 1.0)
        assert np.array_equal(quantiles.quantiles(quantiles.cut(values), n, levels), np.quantile(values, levels))
        assert quantiles.median(quantiles.cut(values), n) == np.median(values)


# ------------------------------------------------------------------------------------------------------- memory


def test_memory_is_asked_for_only_where_there_is_some(monkeypatch):
    monkeypatch.setattr(store, "available_memory", lambda: 2.0**30)
    store.require_memory(Path("t.parquet"), 10_000_000, 3)
    with pytest.raises(InputError, match=r"1\.9 GiB for 50,000,000 rows, found 1\.0 GiB left; pass on_disk"):
        store.require_memory(Path("t.parquet"), 50_000_000, 3)
    with pytest.raises(InputError, match="on_disk"), store.within_memory(__file__):
        raise MemoryError
    assert 0 < store.available_memory()


def walk(path, n, seed=0):
    """One long trajectory of the constant example, written block by block."""
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n,))
    rng, last = np.random.default_rng(seed), 0.0
    for low in range(0, n, 1 << 18):
        m = min(1 << 18, n - low)
        dx = 5 / 40 + np.sqrt(8 / 40) * rng.standard_normal(m)
        jumps = (3 / 40) ** (1 / 0.6) * stable(0.6, m, rng)
        x[low : low + m] = last + np.cumsum(dx + np.where(np.abs(jumps) < 1e6, jumps, 0.0))
        last = x[low + m - 1]


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc as Linux has them")
@pytest.mark.parametrize(
    ("n", "limit", "engine", "suffix"),
    [
        pytest.param(8_000_000, 64, "fisher", ".npy", marks=pytest.mark.slow),
        pytest.param(8_000_000, 64, "adam", ".npy", marks=pytest.mark.slow),
        pytest.param(32_000_000, 256, "fisher", ".npy", marks=pytest.mark.slow),
        pytest.param(32_000_000, 256, "fisher", ".parquet", marks=pytest.mark.slow),
    ],
)
def test_twice_as_much_data_as_memory(tmp_path, n, limit, engine, suffix):
    """The pairs (x and dx, 16 bytes each) are twice the limit."""
    walk(tmp_path / "walk.npy", n)
    file = tmp_path / f"walk{suffix}"
    if suffix == ".parquet":
        pl.DataFrame({"x": np.load(tmp_path / "walk.npy"), "dt": np.full(n, 1 / 40)}).write_parquet(file)
    result = tmp_path / "result.json"
    arguments = [str(file), str(tmp_path / "cache"), engine, str(limit), str(result)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.data.limited", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=3000,
        # one arena: the limit counts what every thread's would reserve and not use
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(result.read_text())
    assert "on_disk=<directory>" in facts["refusal"]
    here, there = facts["memory"], facts["disk"]
    assert here["steps"] == there["steps"]
    assert here["theta"] == pytest.approx(there["theta"], rel=1e-10, abs=1e-10)
    for name in ("mu", "describe"):
        assert here[name] == there[name]
    assert here["log_likelihood"] == pytest.approx(there["log_likelihood"], rel=1e-12)
    assert there["anonymous"] < limit * 2**20 < here["anonymous"]


def test_what_another_machine_is_making_is_left_alone(tmp_path, monkeypatch):
    """Process numbers say nothing about another machine that shares the directory."""
    made = []

    def build(writer):
        made.append(sorted(p.name for p in tmp_path.iterdir()))
        writer.append("x", np.arange(3.0))
        return {}

    entry = store.make(tmp_path, {"a": 1}, build)
    name = entry.directory.name
    ours = made[0][0]
    assert ours.startswith(f".{name}.")
    host = ours.split(".")[2].split("-")[0]
    store.shutil.rmtree(entry.directory)
    dead = 2**22 + 1  # no process has that number
    mine, theirs = (tmp_path / f".{name}.{h}-00000000.{dead}.tmp" for h in (host, "ffffffff"))
    for place in (mine, theirs):
        place.mkdir()
    store.make(tmp_path, {"a": 1}, build)
    assert not mine.exists()
    assert theirs.exists()
