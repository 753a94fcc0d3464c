"""Tempered jumps: recovery, coverage, the boundary lam = 0, and price series against other laws.

python benchmarks/tempered.py                      everything (half an hour on 2 cores)
python benchmarks/tempered.py constants prices     some of: constants functions coverage boundary prices
python benchmarks/tempered.py prices --files a.parquet b.csv     series with a column of prices at even steps
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from levytorch import Dynamics, LevyStep, Recovery, Trajectories, recover, simulate
from levytorch.diagnostics.laws import compare_laws
from levytorch.errors import LevytorchWarning

B, D_O, D_F, ALPHA, LAM = 1.0, 0.1, 1.0, 0.45, 0.4


def constant(n: int, seed: int, lam: float = LAM):
    return simulate(Dynamics(B, D_O, D_F, ALPHA, tempering=lam), n, 20, 0.25, seed=seed).transitions()


def row(found: Recovery) -> tuple[list[float], list[float]]:
    b, D_o, D_f = (float(v) for v in found.std(0.0))
    values = [float(found.b(0.0)), float(found.D_o(0.0)), float(found.D_f(0.0)), float(found.alpha), found.tempering]
    return values, [b, D_o, D_f, float(found.alpha_std), found.tempering_std]


def summary(name: str, values: np.ndarray, truth: np.ndarray) -> None:
    """Mean over the seeds, its standard error, and how many of these it is from the truth."""
    mean, error = values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values))
    cells = "  ".join(f"{m:.4f} ({e:.4f}, {(m - t) / e:+.1f})" for m, e, t in zip(mean, error, truth))
    print(f"{name}: {cells}", flush=True)


def constants(seeds: int) -> None:
    rows = []
    for seed in range(seeds):
        start = time.perf_counter()
        values, stds = row(
            recover(constant(10_000, seed), alpha="learn", tempering="learn", n_basis=1, engine="fisher")
        )
        rows.append(values)
        shown = "  ".join(f"{v:.4f}+-{s:.4f}" for v, s in zip(values, stds))
        print(f"constants seed {seed}: {shown}  {time.perf_counter() - start:.1f} s", flush=True)
    truth = np.array([B, D_O, D_F, ALPHA, LAM])
    summary(f"constants, {seeds} seeds, b D_o D_f alpha lam: mean (se, z)", np.array(rows), truth)


def functions(seeds: int) -> None:
    """K = 11, all three functions of x, dt short enough for the frozen law."""
    D_f = lambda x: 1.0 + 0.3 * torch.cos(x)  # noqa: E731
    truth = Dynamics(torch.sin, lambda x: 0.1 + 0.03 * torch.sin(x), D_f, ALPHA, tempering=LAM)
    x = torch.linspace(0, 2 * math.pi, 257, dtype=torch.float64)[:-1]
    rows = []
    for seed in range(seeds):
        start = time.perf_counter()
        data = simulate(truth, 10_000, 20, 0.02, seed=seed).transitions()
        found = recover(data, alpha="learn", tempering="learn", n_basis=11, engine="evidence")
        off = float((found.D_f(x) - D_f(x)).square().mean().sqrt() / D_f(x).square().mean().sqrt())
        rows.append([float(found.D_f(x).mean()), float(found.alpha), found.tempering])
        shown = "  ".join(f"{v:.4f}" for v in rows[-1])
        print(f"K = 11 seed {seed}: {shown}, D_f off {off:.1%}  {time.perf_counter() - start:.1f} s", flush=True)
    summary(f"K = 11, {seeds} seeds, mean D_f, alpha, lam: mean (se, z)", np.array(rows), np.array([1.0, ALPHA, LAM]))


def coverage(seeds: int) -> None:
    truth = np.array([B, D_O, D_F, ALPHA, LAM])
    inside = []
    for seed in range(seeds):
        data = constant(2000, 1000 + seed)
        values, stds = row(recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher"))
        inside.append(np.abs(np.array(values) - truth) < 1.96 * np.array(stds))
        if seed % 10 == 9:
            print(f"coverage after {seed + 1}: {np.mean(inside, 0)} of b D_o D_f alpha lam", flush=True)


def boundary(seeds: int) -> None:
    """No tempering: how often AIC prefers the stable law, and how often the bound of 95 % is passed by."""
    preferred, told = [], []
    for seed in range(seeds):
        data = constant(1000, 2000 + seed, lam=0.0)
        stable = recover(data, alpha="learn", n_basis=1, engine="fisher")
        tempered = recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher")
        preferred.append(tempered.log_likelihood - stable.log_likelihood < 1.0)
        told.append(tempered.metrics["tempering_told_from_zero"])
        print(
            f"lam = 0 after {seed + 1}: stable by AIC {np.mean(preferred):.0%}, told from 0 {np.mean(told):.0%}",
            flush=True,
        )


def series(path: Path) -> Trajectories:
    if path.suffix == ".parquet":
        import polars

        prices = polars.read_parquet(path)["open"].to_numpy()
    else:
        prices = np.genfromtxt(path, skip_header=1, usecols=-2)
    return Trajectories.from_arrays(1e3 * np.log(prices)[None], dt=1.0)


def quantile(found: Recovery, p: float) -> float:
    step = LevyStep(
        float(found.b(0.0)), float(found.D_o(0.0)), float(found.D_f(0.0)), found.alpha, 1.0, 1, found.tempering
    )
    low, high = -1e4, 1e4
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(step.cdf(middle)) < p else (low, middle)
    return high


def prices(paths: list[Path]) -> None:
    """Log returns in thousandths per step, constants: the laws, and one-step quantiles of 0.1 % of fit and data."""
    for path in paths:
        data = series(path).transitions()
        start = time.perf_counter()
        table = compare_laws(data)
        print(f"{path.name}, {len(data)} steps ({time.perf_counter() - start:.0f} s)\n{table}", flush=True)
        for name, options in (("stable", {}), ("tempered", {"tempering": "learn"})):
            found = recover(data, alpha="learn", n_basis=1, **options)
            for p in (0.001, 0.999):
                fit, seen = quantile(found, p), float(np.quantile(data.dx.numpy(), p))
                print(f"  {name}: quantile {p}: fit {fit:.4g}, data {seen:.4g}, ratio {fit / seen:.3f}", flush=True)
            print(f"  {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["constants", "functions", "coverage", "boundary", "prices"])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--coverage", type=int, default=100)
    parser.add_argument("--boundary", type=int, default=25)
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    for part in options.parts:
        if part == "prices":
            prices(options.files)
        else:
            counts = {"coverage": options.coverage, "boundary": options.boundary}
            globals()[part](counts.get(part, options.seeds))


if __name__ == "__main__":
    main()
