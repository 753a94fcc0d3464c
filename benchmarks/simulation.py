"""simulate() against a plain Euler loop in NumPy with scipy.stats.levy_stable, and the memory of a large run.

    python benchmarks/simulation.py [--trajectories 20000]

Both sides sample the same number of substeps in one process, interleaved, best of 5; the large run (400,000
trajectories x 40 steps x 10 substeps) has a process of its own and reports its peak memory.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from scipy.stats import levy_stable

from levytorch import Dynamics, simulate

STEPS, SUBSTEPS, DT, ALPHA = 40, 10, 1 / 40, 0.3


def coefficients(name: str, x: np.ndarray) -> tuple[np.ndarray | float, np.ndarray | float, np.ndarray | float]:
    """The paper's coefficients, as someone would write them in NumPy."""
    if name == "constant":
        return 5.0, 4.0, 3.0
    x = x % (2 * math.pi)
    b = 4 * np.abs(x - math.pi) - 2 * math.pi
    return b, np.exp(np.sin(x + 1) + 1), 2 + np.exp(np.sin(2 * x) * np.cos(3 * x))


def plain(name: str, n: int) -> np.ndarray:
    """Euler-Maruyama as one would write it with NumPy and SciPy."""
    rng = np.random.default_rng(0)
    h = DT / SUBSTEPS
    x = rng.uniform(0, 2 * math.pi, n)
    out = np.empty((n, STEPS + 1))
    out[:, 0] = x
    for step in range(1, STEPS + 1):
        for _ in range(SUBSTEPS):
            b, D_o, D_f = coefficients(name, x)
            jump = levy_stable.rvs(2 * ALPHA, 0.0, size=n, random_state=rng)
            x = x + b * h + np.sqrt(2 * D_o * h) * rng.standard_normal(n) + (D_f * h) ** (1 / (2 * ALPHA)) * jump
        out[:, step] = x
    return out


def compare(name: str, n: int) -> None:
    dynamics = Dynamics.named(name, alpha=ALPHA)
    simulate(dynamics, 64, 1, DT)  # compilation, once per machine
    ours, theirs = [], []
    for _ in range(5):
        start = time.perf_counter()
        simulate(dynamics, n, STEPS, DT, substeps=SUBSTEPS)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        plain(name, n)
        theirs.append(time.perf_counter() - start)
    each = n * STEPS * SUBSTEPS
    print(
        f"{name:<9} {n:,} trajectories: simulate {min(ours):.3f} s ({1e9 * min(ours) / each:.0f} ns per substep)   "
        f"NumPy + SciPy {min(theirs):.3f} s   ratio {min(theirs) / min(ours):.1f} (goal: at least 5)"
    )


def large(name: str) -> None:
    start = time.perf_counter()
    simulate(Dynamics.named(name, alpha=ALPHA), 400_000, STEPS, DT, substeps=SUBSTEPS)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{name:<9} 400,000 trajectories: {seconds:.1f} s, peak memory {peak:.2f} GB in all (goal: at most 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--large", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.large:
        large(args.large)
        return
    print(f"{torch.get_num_threads()} threads, alpha {ALPHA}, {STEPS} steps x {SUBSTEPS} substeps")
    for name in ("constant", "variable"):
        compare(name, args.trajectories)
    for name in ("constant", "variable"):
        subprocess.run([sys.executable, __file__, "--large", name], check=True)


if __name__ == "__main__":
    main()
