"""Lattices of many files on Dask: those of one process, whatever happens to workers and files."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from distributed import WorkerPlugin

from levytorch import Dynamics, InputError, Lattice, Trajectories, recover, simulate
from levytorch.distributed import lattice
from levytorch.distributed.tree import Tree

from .conftest import write_files

PERIOD = 2 * np.pi


def in_one_process(names, n_blocks=None, **options):
    """The same files in the same order, without Dask and without anything of levytorch.distributed but the tree."""
    first = Trajectories.from_file(names[0]).transitions().lattice(n_blocks=1, **options)
    period = options.get("period", PERIOD)
    parts = [Trajectories.from_file(name).transitions().lattice(like=first.empty(), period=period) for name in names]
    groups = n_blocks or 1
    trees = [Tree(len(parts[g::groups]), Lattice.__add__) for g in range(groups)]
    for k, part in enumerate(parts):
        trees[k % groups].give(k // groups, part)
    return Lattice.side_by_side([tree.total for tree in trees])


def same(one: Lattice, other: Lattice) -> bool:
    """To the bit."""
    tables = [(a, b) for x, y in ((one.weights, other.weights), (one.states, other.states)) for a, b in zip(x, y)]
    tables += list(zip(one.loose, other.loose))
    return all(np.array_equal(a, b) for a, b in tables) and one.facts() == other.facts() and one.grid == other.grid


class Watch:
    """What a run said of its progress."""

    def __init__(self):
        self.last, self.calls = None, 0

    def __call__(self, progress):
        self.last, self.calls = progress, self.calls + 1


def test_the_bits_of_one_process(files, client):
    watch = Watch()
    for options in ({}, {"n_blocks": 3}, {"CT": 2.0, "TRT": 20.0, "reach": 15.0, "n_blocks": 3}):
        found = lattice(files, client, progress=watch, **options)
        assert same(found, in_one_process(files, **options))
        assert watch.last.read == watch.last.n_files == len(files)
    assert watch.calls == 3 * len(files)
    one, other = (recover(x, alpha=0.3, n_basis=3, law="frozen") for x in (found, in_one_process(files, **options)))
    assert torch.equal(one.theta, other.theta)


@pytest.mark.slow
def test_all_pairs_at_once_give_the_same_fit(files, client):
    """Another order of the sums: to 1e-12."""
    whole = Lattice.from_blocks([Trajectories.from_file(name).transitions() for name in files])
    options = {"alpha": 0.3, "n_basis": 3, "law": "frozen", "tolerance": 1e-22}
    one, other = recover(whole, **options), recover(lattice(files, client), **options)
    scale = one.covariance.diagonal().sqrt()
    assert float(((one.theta - other.theta) / scale).abs().max()) < 1e-12 * len(whole)
    torch.testing.assert_close(one.theta, other.theta, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_patterns_directories_and_urls(files, client):
    pytest.importorskip("fsspec")
    place = Path(files[0]).parent
    expected = lattice(files, client)
    for paths in (f"{place}/*.parquet", place, f"file://{place}/*.parquet"):
        assert same(lattice(paths, client), expected)


def test_a_lattice_that_it_adds_to(files, client):
    today = lattice(files[:2], client, n_blocks=2)
    tomorrow = lattice(files[2:], client, like=today)
    assert len(today + tomorrow) == len(lattice(files, client, n_blocks=2))
    with pytest.raises(InputError, match="CT must be left out beside like"):
        lattice(files, client, like=today, CT=3.0)


@pytest.mark.long
def test_only_new_files_are_read_again(files, client, tmp_path):
    watch, keep = Watch(), tmp_path / "keep"
    first = lattice(files[1:], client, checkpoint=keep, n_blocks=3, progress=watch)
    assert (watch.last.read, watch.last.kept) == (5, 0)
    assert same(lattice(files[1:], client, checkpoint=keep, n_blocks=3, progress=watch), first)
    assert (watch.last.read, watch.last.kept) == (0, 5)
    lattice(files, client, checkpoint=keep, n_blocks=3, progress=watch)  # one more, in front of the others
    assert (watch.last.read, watch.last.kept) == (1, 5)
    os.utime(files[3], (1, 1))  # it has changed
    lattice(files, client, checkpoint=keep, n_blocks=3, progress=watch)
    assert (watch.last.read, watch.last.kept) == (1, 5)
    lattice(files, client, checkpoint=keep, n_blocks=3, CT=2.0, progress=watch)  # other options
    assert (watch.last.read, watch.last.kept) == (6, 0)
    damaged = next(path for path in keep.iterdir() if path.suffix == ".safetensors")
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert len(lattice(files, client, checkpoint=keep, n_blocks=3)) == 6000
    assert not list(keep.glob(".*"))  # nothing half-written


@pytest.mark.long
def test_bad_files_are_told_in_one_sentence_and_lose_nothing(files, client, tmp_path):
    good = lattice([files[0], *files[2:]], client)
    content = Path(files[1]).read_bytes()
    watch, keep = Watch(), tmp_path / "keep"
    for damage in (content[: len(content) // 2], b"", None):
        shutil.rmtree(keep, ignore_errors=True)
        if damage is None:
            Path(files[1]).unlink()
        else:
            Path(files[1]).write_bytes(damage)
        with pytest.raises(InputError, match=r"part01\.parquet.*found"):
            lattice(files, client)
        with pytest.raises(InputError, match=r"all 6 files must be usable, found 1 that are not \(the first: .*part01"):
            lattice(files, client, checkpoint=keep, progress=watch)
        assert watch.last.read == 5
        found = lattice(files, client, checkpoint=keep, bad_files="skip", progress=watch)
        torch.testing.assert_close(
            found.batch().weight, good.batch().weight, rtol=1e-12, atol=1e-12
        )  # in another order
        assert (watch.last.kept, list(watch.last.failed)) == (5, [files[1]])
        assert watch.last.metrics()["failures"][files[1]]
    Path(files[0]).unlink()  # the one that would decide the grid
    assert len(lattice(files, client, bad_files="skip")) == 4000


def test_other_dt_and_other_columns_are_refused(files, client):
    simulate(Dynamics.named("variable"), 40, 25, 1 / 10, seed=9).to_file(files[2])
    with pytest.raises(InputError, match=r"dt must be that of the lattice"):
        lattice(files, client)


def test_errors_of_the_network_are_tried_again(files, client, monkeypatch, tmp_path):
    from levytorch.distributed import lattices

    count = tmp_path / "count"
    monkeypatch.setattr(lattices, "read_part", _flaky(str(count), 2))
    watch = Watch()
    assert same(lattice(files[:1], client, progress=watch), in_one_process(files[:1]))
    assert sum(watch.last.retried.values()) == 2
    count.unlink()
    monkeypatch.setattr(lattices, "read_part", _flaky(str(count), 1000))
    with pytest.raises(
        InputError, match=r"part00\.parquet must be readable by a worker, found OSError \(gone\) after 2"
    ):
        lattice(files[:1], client, retries=1)


def _flaky(count: str, failures: int):
    def read(*arguments):
        from levytorch.distributed.parts import read_part

        with open(count, "a+") as file:
            file.write("x")
            file.seek(0)
            if len(file.read()) <= failures:
                raise OSError("gone")
        return read_part(*arguments)

    return read


# ------------------------------------------------------------------------------------------- trajectories across files


def cut_up(directory: Path, named: bool) -> tuple[list[str], Trajectories]:
    """Two long trajectories, cut into three files."""
    whole = simulate(Dynamics.named("variable"), 2 if named else 1, 60, 1 / 40, seed=3)
    x, t, names = whole.to_array(), np.arange(61) / 40, []
    for k, rows in enumerate((slice(0, 20), slice(20, 45), slice(45, 61))):
        ids = ["a", "b"] if named else None
        part = Trajectories.from_arrays(x[:, rows], times=t[rows], ids=ids)
        names.append(str(directory / f"{k}.csv"))
        part.to_file(names[-1])
        if not named:
            lines = [line.partition(",")[2] for line in Path(names[-1]).read_text().splitlines()]
            Path(names[-1]).write_text("\n".join(lines) + "\n")
    return names, whole


@pytest.mark.parametrize("named", [True, False])
def test_trajectories_that_cross_files(named, client, tmp_path):
    names, whole = cut_up(tmp_path, named)
    options = {"time": "time", "value": "x"} | ({"id": "id"} if named else {})
    with pytest.raises(InputError, match=r"a trajectory must lie in one file, found one that continues from .*0\.csv"):
        lattice(names, client, **options)
    n = len(whole.transitions())
    watch = Watch()
    joined = lattice(names, client, across="join", progress=watch, **options)
    assert len(joined) == n
    assert watch.last.joined == (4 if named else 2)
    assert len(lattice(names, client, across="apart", **options)) == n - watch.last.joined
    whole = Trajectories.from_arrays(whole.to_array(), times=np.arange(61) / 40).transitions().lattice(like=joined)
    a, b = joined.batch(), whole.batch()
    assert torch.equal(a.x, b.x)
    torch.testing.assert_close(a.weight, b.weight, rtol=1e-9, atol=1e-9)


def test_names_of_other_trajectories_are_no_crossing(client, tmp_path):
    """Every file counts its trajectories from 0, and its times begin at 0."""
    names = []
    for k in range(2):
        names.append(str(tmp_path / f"{k}.parquet"))
        paths = simulate(Dynamics.named("variable"), 5, 20, 1 / 40, seed=k)
        times = np.arange(21) / 40
        Trajectories.from_arrays(paths.to_array(), times=times).to_file(names[-1])
    assert len(lattice(names, client, time="time", id="id", value="x")) == 200
    for k, name in enumerate(names):  # without times nobody can tell
        simulate(Dynamics.named("variable"), 5, 20, 1 / 40, seed=k).to_file(name)
    with pytest.raises(InputError, match="names of trajectories must differ between files without times"):
        lattice(names, client)
    assert len(lattice(names, client, across="apart")) == 200


# ------------------------------------------------------------------------------------------------------ dying workers


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(tmp_path):
    """kill -9 in the middle: the same bits, and only files that it was working at are read again."""
    kill_and_compare(tmp_path, n_files=8, moments=[0.4])


@pytest.mark.slow
def test_a_worker_killed_at_ten_moments(tmp_path):
    kill_and_compare(tmp_path, n_files=64, moments=np.random.default_rng(5).uniform(0.05, 0.9, 10).tolist())


def kill_and_compare(tmp_path, n_files, moments):
    from distributed import Client, LocalCluster

    names = write_files(tmp_path, n_files, 40)
    expected, log = in_one_process(names), tmp_path / "log"
    for moment in moments:
        log.unlink(missing_ok=True)
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as started, Client(started) as own:
            pids = list(own.run(os.getpid).values())
            watch = Killer(pids[0], round(moment * n_files))
            own.register_plugin(Logged(str(log)))
            found = lattice(names, own, progress=watch)
            assert watch.killed
        assert same(found, expected), moment
        reads = [line.split(" ", 1) for line in log.read_text().splitlines()]
        assert {name for _, name in reads} == set(names)
        # the first file is read twice, because it decides the grid
        repeated = [name for name in names[1:] if sum(one == name for _, one in reads) > 1]
        by_the_killed = {name for pid, name in reads if int(pid) == pids[0]}
        assert set(repeated) <= by_the_killed
        assert sum(watch.last.retried.values()) <= len(by_the_killed)


class Killer(Watch):
    """Kills a worker when so many files are done."""

    def __init__(self, pid, when):
        super().__init__()
        self.pid, self.when, self.killed = pid, max(when, 1), False

    def __call__(self, progress):
        super().__call__(progress)
        if not self.killed and progress.done >= self.when:
            os.kill(self.pid, signal.SIGKILL)
            self.killed = True


class Logged(WorkerPlugin):
    """Every worker, also one that is started again, writes down which files it reads."""

    def __init__(self, log: str) -> None:
        self.log = log

    def setup(self, worker):
        from levytorch.distributed import parts

        original = parts.data_file

        def noted(name):
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()} {name}\n")
            return original(name)

        parts.data_file = noted


@pytest.mark.slow
def test_without_a_client_there_is_a_local_cluster(files):
    found = lattice(files[:2])
    assert same(found, in_one_process(files[:2]))


def test_nonsense_is_refused(files, client):
    for options, words in [
        ({"client": 5}, "client must be a dask"),
        ({"retries": -1}, "retries"),
        ({"across": "x"}, "across"),
        ({"bad_files": 1}, "bad_files"),
        ({"like": 3}, "like must be a Lattice"),
        ({"n_blocks": 0}, "n_blocks"),
        ({"checkpoint": 5}, "path must be"),
        ({"colour": "red"}, "colour"),
    ]:
        with pytest.raises(InputError, match=words):
            lattice(files, **({"client": client} | options))
    with pytest.raises(InputError, match="none"):
        lattice("/nowhere/*.csv", client)
