"""Lattices of many Parquet files on Dask: time, memory per worker, killed workers, and runs with one file more.

    python -m benchmarks.distributed --pairs 160000000 --files 64 --directory /tmp/levytorch_files
    python -m benchmarks.distributed --pairs 400000 --files 8 --kills 2        # a small version

Rows are appended to benchmarks/results/distributed.csv as they are known, with the commit and the seed. Times mean
something only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "distributed.csv"
COLUMNS = ("what", "pairs", "files", "workers", "threads", "seconds", "peak_mb", "note", "seed", "commit", "command")
STEPS, DT, N_BLOCKS = 40, 1 / 40, 60
READING = {"value": "x", "id": "id", "dt": DT, "across": "apart"}
ALONE = """
import itertools, sys, time
from levytorch import Lattice
from levytorch.data import transition_blocks
began = time.perf_counter()
files = (transition_blocks(path, value="x", id="id", dt=1 / 40) for path in sys.argv[1:])
lattice = Lattice.from_blocks(itertools.chain.from_iterable(files), n_blocks=60)
print(len(lattice), time.perf_counter() - began)
"""


def write_files(directory: Path, pairs: int, files: int, seed: int) -> list[str]:
    """Parquet files with columns id and x; those that are there already are kept."""
    import polars as pl

    from levytorch import Dynamics, simulate

    directory.mkdir(parents=True, exist_ok=True)
    n, names = pairs // files // STEPS, []
    if shutil.disk_usage(directory).free < 24 * pairs:
        raise SystemExit(f"{directory} must have {24 * pairs >> 30} GiB of room, found less; choose another.")
    for k in range(files):
        target = directory / f"{pairs}_{files}_{seed}_{k:03d}.parquet"
        if not target.exists():
            paths = simulate(Dynamics.named("variable"), n, STEPS, DT, seed=1000 * seed + k, substeps=1)
            ids = np.repeat(np.arange(n, dtype=np.int32), STEPS + 1)
            table = pl.DataFrame({"id": ids, "x": paths.to_array().ravel()})
            table.write_parquet(target.with_suffix(".part"), row_group_size=1 << 18)
            os.replace(target.with_suffix(".part"), target)
        names.append(str(target))
    return names


class Rows:
    """The table of results, which grows."""

    def __init__(self, target: Path, **facts: Any) -> None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        command = " ".join(["python -m benchmarks.distributed", *sys.argv[1:]])
        self.target, self.facts = target, facts | {"commit": commit.stdout.strip(), "command": command}

    def add(self, **values: Any) -> None:
        new = not self.target.exists()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        with self.target.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            if new:
                writer.writeheader()
            writer.writerow(self.facts | values)
        print({key: value for key, value in values.items() if value != ""}, flush=True)


def alone(names: list[str], threads: int) -> tuple[int, float]:
    """One process, with so many threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, *names],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pairs, seconds = done.stdout.split()
    return int(pairs), float(seconds)


def peak_mb() -> float:
    """Of this process."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def warm(name: str) -> float:
    """On a worker: everything is imported and compiled, and the peak of memory until then."""
    import levytorch.distributed.parts
    from levytorch.data.lattice import Lattice  # noqa: F401

    before = peak_mb()
    recipe = levytorch.distributed.parts.Recipe({"value": "x", "id": "id", "dt": DT}, {}, 1)
    levytorch.distributed.parts.read_part(name, recipe, None)
    return before


def on_cluster(names: list[str], workers: int, small: str, kill_after: int | None = None, **options: Any) -> Any:
    """The lattice, seconds, the largest growth of a worker above its imports, and the progress at the end."""
    from distributed import Client, LocalCluster

    from levytorch.distributed import lattice

    last: list[Any] = []
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as own,
    ):
        before = own.run(warm, small)
        victim = next(iter(own.run(os.getpid).values()))

        def see(progress: Any) -> None:
            last[:] = [progress]
            if kill_after is not None and progress.done == kill_after:
                os.kill(victim, signal.SIGKILL)

        began = time.perf_counter()
        found = lattice(names, own, n_blocks=N_BLOCKS, progress=see, **READING, **options)
        seconds = time.perf_counter() - began
        after = own.run(peak_mb)
        growth = max((after[w] - before[w] for w in after if w in before), default=float("nan"))
    return found, seconds, growth, last[0]


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    tables = itertools.chain(
        zip(one.weights, other.weights), zip(one.states, other.states), zip(one.loose, other.loose)
    )
    return all(np.array_equal(a, b) for a, b in tables)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=160_000_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "levytorch_files")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    names = write_files(chosen.directory, chosen.pairs, chosen.files, chosen.seed)
    small = write_files(chosen.directory / "small", 4000, 1, chosen.seed)[0]
    rows = Rows(chosen.results, pairs=chosen.pairs, files=chosen.files, seed=chosen.seed)
    for threads in (1, 2):
        alone([small], threads)
        _, seconds = alone(names, threads)
        rows.add(what="one process", workers=0, threads=threads, seconds=round(seconds, 2))
    reference = None
    for workers in (1, 2):
        found, seconds, growth, _ = on_cluster(names, workers, small)
        note = "" if reference is None else f"same bits as one worker: {same(found, reference)}"
        reference = reference or found
        numbers = {"seconds": round(seconds, 2), "peak_mb": round(growth)}
        rows.add(what="Dask", workers=workers, threads=1, note=note, **numbers)
    for moment in np.random.default_rng(chosen.seed).uniform(0.05, 0.9, chosen.kills):
        when = max(1, round(float(moment) * len(names)))
        found, seconds, _, progress = on_cluster(names, 2, small, kill_after=when)
        note = f"killed after {when} files; same bits: {same(found, reference)}; tried again: {progress.retried}"
        rows.add(what="worker killed", workers=2, threads=1, seconds=round(seconds, 2), note=note)
    with tempfile.TemporaryDirectory() as keep:
        for part, what in ((names[:-1], "all but one file, kept"), (names, "one file added")):
            _, seconds, _, progress = on_cluster(part, 2, small, checkpoint=keep)
            note = f"read {progress.read}, from the checkpoint {progress.kept}"
            rows.add(what=what, workers=2, threads=1, seconds=round(seconds, 2), note=note)


if __name__ == "__main__":
    main()
