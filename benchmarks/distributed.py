"""Lattices of many Parquet files on Dask: time, memory per worker, equality, killed workers, a file added, fits.

    python -m benchmarks.distributed times                                  # 160 million pairs in 64 files
    python -m benchmarks.distributed equality kills added fits --pairs 16000000
    python -m benchmarks.distributed summary                                # the tables of docs/scaling.md

Rows are appended to benchmarks/results/distributed.csv as they are known, with commit, seed and load. Times mean
something only on a machine that does nothing else; the load average at the beginning of each says what it did.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.values import replaced

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "distributed.csv"
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = (f"<!-- {which}: benchmarks/distributed.py summary -->" for which in ("begin", "end"))
COLUMNS = [
    "study",
    "what",
    "pairs",
    "files",
    "workers",
    "threads",
    "seconds",
    "load",
    "peak_mb",
    "note",
    "seed",
    "commit",
    "command",
]
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
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
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
    environment = os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS")}
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
    """The lattice, seconds, the largest growth of a worker above its imports, the last progress, and files read."""
    from distributed import Client, LocalCluster, get_task_stream

    from levytorch.distributed import lattice
    from levytorch.distributed.cluster import ONE_THREAD

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, env=ONE_THREAD) as cluster,
        Client(cluster) as own,
    ):
        before = own.run(warm, small)
        victim = next(iter(own.run(os.getpid).values()))

        def see(progress: Any) -> None:
            progresses[:] = [progress]
            if kill_after is not None and progress.done == kill_after:
                os.kill(victim, signal.SIGKILL)

        progresses: list[Any] = []
        with get_task_stream(own) as done:
            began = time.perf_counter()
            found = lattice(names, own, n_blocks=N_BLOCKS, progress=see, **READING, **options)
            seconds = time.perf_counter() - began
        after = own.run(peak_mb)
        growth = max((after[w] - before[w] for w in after if w in before), default=float("nan"))
    readings = sum(str(task["key"]).startswith("read_part") for task in done.data)
    return found, seconds, growth, progresses[0], readings


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    tables = itertools.chain(
        zip(one.weights, other.weights), zip(one.states, other.states), zip(one.loose, other.loose)
    )
    return all(np.array_equal(a, b) for a, b in tables)


class Study:
    """Files of one size, and what is measured with them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.seed = chosen, chosen.seed
        self.names = write_files(chosen.directory, chosen.pairs, chosen.files, chosen.seed)
        self.small = write_files(chosen.directory / "small", 4000, 1, chosen.seed)[0]
        self.rows = Rows(chosen.results, pairs=chosen.pairs, files=chosen.files, seed=chosen.seed)

    def add(self, study: str, what: str, seconds: float, **values: Any) -> None:
        load = round(os.getloadavg()[0], 1)
        self.rows.add(study=study, what=what, seconds=round(seconds, 2), load=load, **values)

    def times(self) -> None:
        """One process without Dask against one and two workers."""
        for threads in (1, 2):
            alone([self.small], threads)
            _, seconds = alone(self.names, threads)
            self.add("times", "one process", seconds, workers=0, threads=threads)
        for workers in (1, 2):
            _, seconds, growth, *_ = on_cluster(self.names, workers, self.small)
            self.add("times", "Dask", seconds, workers=workers, threads=1, peak_mb=round(growth))

    def equality(self) -> None:
        """Two workers against a loop in this process in the same order, and against all blocks in one go."""
        from levytorch import Lattice, recover
        from levytorch.data import transition_blocks

        found, seconds, *_ = on_cluster(self.names, 2, self.small)
        loop = one_after_the_other(self.names)
        self.add(
            "equality", "the same order in one process", seconds, workers=2, note=f"same bits: {same(found, loop)}"
        )
        blocks = (transition_blocks(name, value="x", id="id", dt=DT) for name in self.names)
        whole = Lattice.from_blocks(itertools.chain.from_iterable(blocks), n_blocks=N_BLOCKS)
        began = time.perf_counter()
        fits = [recover(one, alpha=0.3, n_basis=7, law="frozen", tolerance=1e-22).theta for one in (found, loop, whole)]
        seconds = time.perf_counter() - began
        for other, what in ((1, "the same order"), (2, "a lattice on another grid")):
            note = f"largest relative difference: {float(((fits[0] - fits[other]) / fits[other]).abs().max()):.1e}"
            self.add("equality", f"fit, {what}", seconds / 3, note=note)

    def kills(self) -> None:
        """kill -9 of one of two workers at random moments; it is started again by Dask."""
        reference = one_after_the_other(self.names)
        for moment in np.random.default_rng(self.seed).uniform(0.05, 0.9, self.chosen.kills):
            when = max(1, round(float(moment) * len(self.names)))
            found, seconds, _, _, readings = on_cluster(self.names, 2, self.small, kill_after=when)
            again = readings - len(self.names)
            note = f"killed after {when} files; same bits: {same(found, reference)}; files read twice: {again}"
            self.add("kills", "worker killed", seconds, workers=2, threads=1, note=note)

    def added(self) -> None:
        """A checkpoint of all files but one, and then all."""
        with tempfile.TemporaryDirectory() as keep:
            for part, what in ((self.names[:-1], "all but one file, kept"), (self.names, "one file added")):
                _, seconds, _, progress, _ = on_cluster(part, 2, self.small, checkpoint=keep)
                note = f"read {progress.read}, from the checkpoint {progress.kept}"
                self.add("added", what, seconds, workers=2, threads=1, note=note)

    def sizes(self) -> None:
        """What travels: the lattice of a file as one block, and beside it the sum of all files in 60 blocks."""
        from levytorch import Trajectories

        pairs = Trajectories.from_file(self.names[0], value="x", id="id", dt=DT).transitions()
        whole = one_after_the_other(self.names)
        for what, lattice in (("a file, one block", pairs.lattice()), ("all files, 60 blocks", whole)):
            began = time.perf_counter()
            size = len(pickle.dumps(lattice))
            self.add("sizes", what, time.perf_counter() - began, note=f"{size / 1e6:.2f} MB")

    def fits(self) -> None:
        """A fit to the lattice, whose cost does not depend on the number of pairs, and one that ends with the pairs."""
        from distributed import Client, LocalCluster

        from levytorch import recover
        from levytorch.distributed import Files
        from levytorch.distributed.cluster import ONE_THREAD

        lattice = one_after_the_other(self.names)
        for law in ("frozen", "auto"):
            began = time.perf_counter()
            found = recover(lattice, alpha=0.3, law=law)
            self.add("fits", f"lattice, law={law}", time.perf_counter() - began, workers=0, note=found.metrics["law"])
        files = Files(self.names, value="x", id="id", dt=DT, across="apart")
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, env=ONE_THREAD) as cluster,
            Client(cluster) as own,
        ):
            own.run(warm, self.small)
            began = time.perf_counter()
            found = recover(files, alpha=0.3, law="frozen", client=own)
            seconds = time.perf_counter() - began
        note = f"last step over the pairs moved by {found.metrics['lattice_distance']:.1e} standard errors"
        self.add(
            "fits", "files, law=frozen, with the last step over the pairs", seconds, workers=2, threads=1, note=note
        )


def one_after_the_other(names: list[str]) -> Any:
    """The lattice of the files in their order, in this process and without Dask."""
    from levytorch import Lattice, Trajectories
    from levytorch.distributed.lattices import own_blocks
    from levytorch.distributed.tree import Tree

    own = own_blocks(N_BLOCKS, len(names))  # of every file
    groups, like = N_BLOCKS // own, None
    trees: list[Any] = [Tree(len(names[g::groups]), Lattice.__add__) for g in range(groups)]
    for k, name in enumerate(names):
        pairs = Trajectories.from_file(name, value="x", id="id", dt=DT).transitions()
        like = pairs.lattice(n_blocks=own).empty() if like is None else like
        trees[k % groups].give(k // groups, pairs.lattice(like=like, period=like.period))
    return Lattice.side_by_side([tree.total for tree in trees])


def ranges(texts: list[str]) -> str:
    """Texts that differ in their numbers only as one, each such number as a range; others one after the other."""
    number = re.compile(r"\d+(?:\.\d+)?")
    if len({number.sub("#", text) for text in texts}) > 1:
        return "; ".join(dict.fromkeys(texts))
    columns = [sorted(set(found), key=float) for found in zip(*(number.findall(text) for text in texts))]
    shown = iter(found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}" for found in columns)
    return number.sub(lambda _: next(shown), texts[0])


_RUN = ("pairs", "files", "seed", "commit", "command")


def tables(path: Path) -> str:
    """The last rows of every study; repetitions are one row."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    titles = {
        "times": "a lattice of all files",
        "equality": "two workers against one process",
        "kills": "one of two workers killed by `kill -9`",
        "added": "a file added to files with a checkpoint",
        "sizes": "a lattice packed for travelling",
        "fits": "fits",
    }
    out: list[str] = []
    before: tuple[str, ...] = ()
    for study, title in titles.items():
        own = [row for row in rows if row["study"] == study]
        own = [row for row in own if (row["commit"], row["command"]) == (own[-1]["commit"], own[-1]["command"])]
        if not own:
            continue
        last = own[-1]
        facts = tuple(last[name] for name in _RUN)
        if facts != before:
            size = f"{int(last['pairs']):,} pairs in {last['files']} files, seed {last['seed']}"
            load = ranges([row["load"] for row in rows if tuple(row[name] for name in _RUN) == facts])
            heading = "| study | case | workers, threads each | runs | seconds | found |"
            made = f"commit {last['commit']}, load of the machine {load} (`{last['command']}`)"
            out += ["", f"{size}, {made}:", "", heading, "|---" * 6 + "|"]
            before = facts
        cases: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in own:
            cases.setdefault((row["what"], ", ".join(filter(None, (row["workers"], row["threads"])))), []).append(row)
        for (what, workers), same in cases.items():
            found = ranges([row["note"] for row in same])
            if same[0]["peak_mb"]:
                found = f"{ranges([row['peak_mb'] for row in same])} MB per worker above its imports"
            seconds = ranges([row["seconds"] for row in same])
            out.append(f"| {title} | {what} | {workers} | {len(same)} | {seconds} | {found} |")
    return "\n".join([*out[1:], ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies: dict[str, Callable[[Study], None]] = {
        name: getattr(Study, name) for name in ("times", "equality", "kills", "added", "sizes", "fits")
    }
    parser.add_argument("studies", nargs="+", choices=[*studies, "summary"])
    parser.add_argument("--pairs", type=int, default=160_000_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "levytorch_files")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    if chosen.studies == ["summary"]:
        print(told := tables(chosen.results))
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, told))
        return
    warnings.simplefilter("ignore")
    study = Study(chosen)
    for name in chosen.studies:
        studies[name](study)


if __name__ == "__main__":
    main()
