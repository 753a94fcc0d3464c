"""Samples per second of the law of one step, every row in the same run: `python benchmarks/density.py`.

The yardstick is torch.distributions.Normal, log_prob forward and backward: what a Brownian-only model costs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import torch
from scipy.stats import levy_stable

import levytorch
from levytorch import log_density
from levytorch.law.table import Table

D = torch.float64
YARDSTICK = "torch.distributions.Normal"  # checks its arguments, as log_density does


def best(function: Callable[[], object], repeats: int) -> float:
    """Smallest wall time over the repeats, after one call that compiles and caches."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def problem(n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def around(value: float) -> torch.Tensor:
        return (value * (1 + 0.1 * torch.rand(n, generator=generator, dtype=D))).requires_grad_()

    step = levytorch.LevyStep(5.0, 4.0, 3.0, 0.3, 1 / 40)
    alpha = (0.1 + 0.85 * torch.rand(n, generator=generator, dtype=D)).requires_grad_()
    return {
        "x": step.sample((n,), generator=generator),
        "b": around(5.0),
        "D_o": around(4.0),
        "D_f": around(3.0),
        "alpha": alpha,
        "lam": around(0.3),
        "loc": around(0.1),
        "scale": around(0.4),
    }


def rows(p: dict[str, torch.Tensor], repeats: int) -> dict[str, float]:
    """Seconds per call, value and all derivatives."""

    def clear() -> None:
        for tensor in p.values():
            tensor.grad = None

    def normal(validate: bool) -> Callable[[], None]:
        def run() -> None:
            torch.distributions.Normal(p["loc"], p["scale"], validate_args=validate).log_prob(p["x"]).sum().backward()
            clear()

        return run

    def ours(alpha: float | torch.Tensor, method: str) -> Callable[[], None]:
        def run() -> None:
            log_density(p["x"], p["b"], p["D_o"], p["D_f"], alpha, 1 / 40, method=method).sum().backward()
            clear()

        return run

    def tempered() -> None:
        log_density(p["x"], p["b"], p["D_o"], p["D_f"], p["alpha"], 1 / 40, tempering=p["lam"]).sum().backward()
        clear()

    calls = {
        YARDSTICK: normal(True),
        "the same with validate_args=False": normal(False),
        "table, one alpha": ours(0.3, "table"),
        "contour, one alpha": ours(0.3, "contour"),
        "contour, alpha per sample, with d/dalpha": ours(p["alpha"], "contour"),
        "tempered, alpha and lam per sample, with d/dalpha and d/dlam": tempered,
    }
    # interleaved, so that a noisy moment hits every row
    seconds = {name: best(call, 1) for name, call in calls.items()}
    for _ in range(repeats - 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def slow_rows(p: dict[str, torch.Tensor]) -> dict[str, tuple[float, int]]:
    """(seconds, samples) of what is too slow for the full size."""
    x = p["x"][:2000].detach()
    out = {"windowed (the paper's quadrature), one alpha": (best(lambda: windowed(x), 1), len(x))}
    few = x[:200].numpy()
    out["scipy.stats.levy_stable.pdf (value only, no Gaussian part)"] = (
        best(lambda: levy_stable.pdf(few, 0.6, 0.0), 1),
        200,
    )
    if importlib.util.find_spec("pyro"):
        from pyro.distributions import Stable

        def stable() -> None:
            loc = torch.zeros(len(x), dtype=D, requires_grad=True)
            Stable(torch.tensor(0.6, dtype=D), torch.tensor(0.0, dtype=D), torch.tensor(1.0, dtype=D), loc).log_prob(
                x
            ).sum().backward()

        out["pyro Stable.log_prob (no Gaussian part)"] = (best(stable, 1), len(x))
    return out


def windowed(x: torch.Tensor) -> None:
    D_f = torch.full_like(x, 3.0).requires_grad_()
    log_density(x, 5.0, 4.0, D_f, 0.3, 1 / 40, method="windowed").sum().backward()


def memory(n: int) -> float:
    """GB above inputs and outputs while n samples are evaluated with derivatives, in a process of its own."""
    code = (
        "import resource, torch, levytorch, psutil, os\n"
        f"n = {n}\n"
        "x = torch.randn(n, dtype=torch.float64)\n"
        "levytorch.score(x[:30000], 5.0, 4.0, 3.0, 0.3, 1 / 40, method='table')\n"
        "before = psutil.Process().memory_info().rss\n"
        "s = levytorch.score(x, 5.0, 4.0, 3.0, 0.3, 1 / 40, method='table')\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "print(peak - before - 4 * 8 * n)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", type=int, default=16_000_000, help="samples of the memory row; 0 leaves it out")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, load {psutil.getloadavg()[0]:.1f}, float64"
    )
    for n, repeats in ((options.n, options.repeats), (100, 60 * options.repeats)):
        p = problem(n)
        seconds = rows(p, repeats)
        unit = seconds[YARDSTICK]
        print(f"\nn = {n}: log p and derivatives in b, D_o, D_f, forward + backward\n")
        print(f"{'':60s}{'us / call':>12s}{'us / sample':>13s}{'M / s':>9s}{'x Normal':>10s}")
        for name, t in seconds.items():
            print(f"{name:60s}{t * 1e6:12.0f}{t / n * 1e6:13.4f}{n / t / 1e6:9.2f}{t / unit:10.2f}")
        if n == options.n:
            for name, (t, m) in slow_rows(p).items():
                print(f"{name:60s}{t * 1e6:12.0f}{t / m * 1e6:13.4f}{m / t / 1e6:9.4f}{t / m / (unit / n):10.1f}")
    print("\ntable for a new alpha (three columns of log c, as one data set needs):")
    for alpha in (0.3012, 0.6012, 0.9012):
        start = time.perf_counter()
        Table(alpha).build([37, 38, 39])
        print(f"  alpha {alpha}: {time.perf_counter() - start:.2f} s")
    if options.memory:
        print(
            f"\nmemory over inputs and outputs, {options.memory:,} samples: {max(0.0, memory(options.memory)):.2f} GB"
        )


if __name__ == "__main__":
    main()
