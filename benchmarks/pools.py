"""Pools of 16 million transitions (time and memory) and the cost of a batch.

    python benchmarks/pools.py [--pairs 16000000]

Prints the best of 5 for numpy's median over dx and for building the pools with thresholds (mu included), interleaved in
one process; the peak memory of building them, in a process of its own; and the time of a stratified batch of 100.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import psutil
import torch

from levytorch.data import LevyDataModule, Transitions, make_pools

DT, CT, TRT = 1 / 40, 8.0, 20.0


def make_data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """x and dx, heavy-tailed like the paper's example: 1.6 % beyond CT, 1 % beyond TRT; filled block by block."""
    rng = np.random.default_rng(0)
    x, dx = np.empty(n), np.empty(n)
    for i in range(0, n, 1 << 13):
        m = min(1 << 13, n - i)
        x[i : i + m] = rng.uniform(0, 2 * np.pi, m)
        jump = 0.00843 * rng.uniform(size=m) ** (-1 / 0.6)
        dx[i : i + m] = 0.125 + 0.447 * rng.standard_normal(m) + jump * rng.choice([-1.0, 1.0], m)
    return x, dx


def build(x: np.ndarray, dx: np.ndarray) -> object:
    return make_pools(Transitions(x, dx, DT), CT, TRT)


def time_pools(n: int) -> None:
    x, dx = make_data(n)
    median, pools = [], []
    for _ in range(5):
        start = time.perf_counter()
        np.median(dx)
        median.append(time.perf_counter() - start)
        start = time.perf_counter()
        built = build(x, dx)
        pools.append(time.perf_counter() - start)
        del built
    ratio = min(pools) / min(median)
    print(f"numpy median {min(median):.3f} s   pools {min(pools):.3f} s   ratio {ratio:.2f} (goal: at most 3)")


def memory_child(n: int) -> None:
    make_pools(Transitions(*make_data(1000), DT), CT, TRT, min_tail=1)  # whatever is loaded on first use
    baseline = psutil.Process().memory_info().rss
    x, dx = make_data(n)
    pools = build(x, dx)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    data = x.nbytes + dx.nbytes
    print(
        f"memory above imports {(peak - baseline) / 1e6:.0f} MB for {data / 1e6:.0f} MB of x and dx: "
        f"{(peak - baseline) / data:.3f} x (goal: at most 2); R_sample {pools.R_sample:.4f}"  # type: ignore[attr-defined]
    )


def time_batch(n: int) -> None:
    x, dx = make_data(n)
    module = LevyDataModule(Transitions(x, dx, DT), CT=CT, TRT=TRT, batch_size=100)
    module.tcf = 0.013
    best, steps = np.inf, 5 * 1024
    for repeat in range(5):
        start = time.perf_counter()
        for step in range(repeat * steps, (repeat + 1) * steps):
            module.draw(step)
        best = min(best, (time.perf_counter() - start) / steps)
    print(f"stratified batch of 100 from {n:,} pairs: {1e6 * best:.1f} us (goal: at most 60)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=16_000_000)
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_child:
        memory_child(args.pairs)
        return
    print(f"{torch.get_num_threads()} threads, {args.pairs:,} pairs")
    time_pools(args.pairs)
    subprocess.run([sys.executable, __file__, "--memory-child", "--pairs", str(args.pairs)], check=True)
    time_batch(args.pairs)


if __name__ == "__main__":
    main()
