"""Memory of fits to data in memory, and time and memory of fits to Parquet files that are read block by block.

Parts of benchmarks/recovery.py: `memory` and `parquet`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PEAK = "lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024"
FIT = f"""
import json, resource, sys, warnings
import numpy as np
from levytorch import Transitions, recover
warnings.simplefilter("ignore")
peak, rng, n, tail = {PEAK}, np.random.default_rng(0), 16_000_000, json.loads(sys.argv[1])
small = Transitions(rng.uniform(0, 6, 400_000), 0.4 * rng.standard_normal(400_000) + rng.standard_cauchy(400_000), 0.1)
recover(small, alpha=0.3, tail=tail, law="frozen")  # compiled code and tables
x, dx = rng.uniform(0, 6.28, n), np.empty(n)
for low in range(0, n, 1 << 20):
    part = dx[low : low + (1 << 20)]
    part[:] = 0.4 * rng.standard_normal(len(part)) + 0.05 * rng.standard_cauchy(len(part))
data = Transitions(x, dx, 0.1)
before = peak()
found = recover(data, alpha=0.3, tail=tail, law="frozen")
print(json.dumps([peak() - before, found.metrics["left_out"], found.metrics["steps"]]))
"""
READ = f"""
import itertools, json, resource, sys, time, warnings
from levytorch import Lattice, recover
from levytorch.data import transition_blocks
warnings.simplefilter("ignore")
peak, start = {PEAK}, time.perf_counter()
files = (transition_blocks(path, value="x", id="id", dt=1 / 40) for path in sys.argv[1:])
lattice = Lattice.from_blocks(itertools.chain.from_iterable(files), n_blocks=60)
read = time.perf_counter() - start
found = recover(lattice, alpha=0.3, n_basis=21, engine="fisher", law="frozen")
seconds = time.perf_counter() - start
print(json.dumps([len(lattice), read, seconds, peak(), found.converged]))
"""


def _alone(code: str, *arguments: str) -> list:
    """What a program in a process of its own prints."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory(seeds: int) -> None:
    """Peak memory of fits to 16 million transitions above what was resident with imports and data."""
    for name, tail in (("nothing removed", None), ("TRT", {"CT": 8.0, "TRT": 20.0})):
        more, left_out, steps = _alone(FIT, json.dumps(tail))
        print(
            f"memory, {name}: {more:.0f} MB above the data's 244 MB ({steps} steps; left out: {left_out})", flush=True
        )


def parquet(seeds: int, n_trajectories: int = 400_000) -> None:
    """K = 21 from Parquet files, one of 16 million transitions and ten: the ratio of times, and peak memory."""
    import polars as pl

    from levytorch import Dynamics, simulate

    system = Dynamics.named("variable", alpha=0.3)
    with tempfile.TemporaryDirectory(dir=".") as directory:
        files = []
        for k in range(10):
            x = simulate(system, n_trajectories, 40, 1 / 40, seed=k, substeps=1).to_array()
            ids = np.repeat(np.arange(n_trajectories, dtype=np.int32), x.shape[1])
            files.append(Path(directory) / f"{k}.parquet")
            pl.DataFrame({"id": ids, "x": x.ravel()}).write_parquet(files[-1], row_group_size=1 << 18)
            del x, ids
        _alone(READ, str(files[0]))  # compiled code, tables and the file's pages
        results = []
        for chosen in (files[:1], files):
            results.append(_alone(READ, *map(str, chosen)))
            pairs, read, seconds, peak, converged = results[-1]
            print(
                f"parquet: {pairs} transitions of {len(chosen)} files in {seconds:.1f} s ({read:.1f} s of them for the "
                f"lattice), peak {peak:.0f} MB, converged {converged}",
                flush=True,
            )
    (_, _, one, small, _), (_, _, ten, large, _) = results
    print(f"parquet: ten times the data in {ten / one:.1f} times the time, {large - small:+.0f} MB")
