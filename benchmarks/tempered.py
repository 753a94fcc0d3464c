"""Tempered jumps: recovery, coverage, the boundary lam = 0, price series against other laws; predictions ahead.

python benchmarks/tempered.py                      everything but prices (half an hour on 2 cores)
python benchmarks/tempered.py constants boundary   some of: constants functions coverage boundary calibration
                                                   power jumpy
python benchmarks/tempered.py prices --files a.parquet b.csv     series with a column of prices at even steps
python benchmarks/tempered.py summary              what the rows of results/tempered.csv come to

Every seed is a row of results/tempered.csv as soon as it is there; seeds that are in it are not computed again.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.stats import kstest

from levytorch import Dynamics, LevyStep, Recovery, Trajectories, recover, simulate
from levytorch.data import Transitions
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.compare import Comparison
from levytorch.diagnostics.laws import compare_laws, table_of_laws
from levytorch.diagnostics.sample import Region
from levytorch.errors import LevytorchWarning

RESULTS = Path(__file__).parent / "results" / "tempered.csv"
COLUMNS = ("part", "seed", "name", "value", "std")
B, D_O, D_F, ALPHA, LAM = 1.0, 0.1, 1.0, 0.45, 0.4
TRUTH = {"b": B, "D_o": D_O, "D_f": D_F, "alpha": ALPHA, "lam": LAM}
SEEDS = {"constants": 12, "functions": 12, "coverage": 100, "boundary": 40}
SEEDS |= {"calibration": 200, "power": 20, "jumpy": 20}
Rows = list[tuple[str, float, float]]  # name, value, standard error


def constant(n: int, seed: int, lam: float = LAM) -> Transitions:
    return simulate(Dynamics(B, D_O, D_F, ALPHA, tempering=lam), n, 20, 0.25, seed=seed).transitions()


def found_constants(found: Recovery) -> Rows:
    stds = [*(float(v) for v in found.std(0.0)), float(found.alpha_std), found.tempering_std]
    values = [float(f(0.0)) for f in (found.b, found.D_o, found.D_f)] + [float(found.alpha), found.tempering]
    return list(zip(TRUTH, values, stds))


def constants(seed: int) -> Rows:
    """10,000 trajectories of 20 steps."""
    data = constant(10_000, seed)
    return found_constants(recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher"))


def functions(seed: int) -> Rows:
    """K = 11, all three functions of x, 10,000 trajectories of 20 steps short enough for the frozen law."""
    D_f = lambda x: 1.0 + 0.3 * torch.cos(x)  # noqa: E731
    truth = Dynamics(torch.sin, lambda x: 0.1 + 0.03 * torch.sin(x), D_f, ALPHA, tempering=LAM)
    x = torch.linspace(0, 2 * math.pi, 257, dtype=torch.float64)[:-1]
    data = simulate(truth, 10_000, 20, 0.02, seed=seed).transitions()
    found = recover(data, alpha="learn", tempering="learn", n_basis=11, engine="evidence", law="frozen")
    off = float((found.D_f(x) - D_f(x)).square().mean().sqrt() / D_f(x).square().mean().sqrt())
    rows = [("D_f", float(found.D_f(x).mean()), math.nan), ("alpha", float(found.alpha), float(found.alpha_std))]
    return [*rows, ("lam", found.tempering, found.tempering_std), ("error of D_f", off, math.nan)]


def coverage(seed: int) -> Rows:
    """2,000 trajectories of 20 steps."""
    data = constant(2000, 1000 + seed)
    return found_constants(recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher"))


def boundary(seed: int) -> Rows:
    """No tempering, 1,000 trajectories of 20 steps: does AIC prefer the stable law; how many passes."""
    data = constant(1000, 2000 + seed, lam=0.0)
    stable = recover(data, alpha="learn", n_basis=1, engine="fisher")
    tempered = recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher")
    gain = tempered.log_likelihood - stable.log_likelihood
    told = float(tempered.metrics["tempering_told_from_zero"])
    rows = [("gain", gain, math.nan), ("told from zero", told, math.nan)]
    return [*rows, ("passes", float(tempered.metrics["steps"]), math.nan)]


def volatile(seed: int, spread: float, D_f: float, alpha: float, dt: float) -> Transitions:
    """80 trajectories of 200 steps; log D_o autoregressive, 0.97 from step to step, standard deviation `spread`."""
    rng = np.random.default_rng(seed)
    log = np.zeros((80, 200))
    log[:, 0] = spread * rng.standard_normal(80)
    for j in range(1, 200):
        log[:, j] = 0.97 * log[:, j - 1] + spread * math.sqrt(1 - 0.97**2) * rng.standard_normal(80)
    torch.manual_seed(seed)
    steps = LevyStep(0.0, torch.from_numpy(np.exp(log)), D_f, alpha, dt).sample()
    x = np.concatenate([np.zeros((80, 1)), np.cumsum(steps.numpy(), axis=1)], axis=1)
    return Trajectories.from_arrays(x, dt=dt).transitions()


def ahead(data: Transitions, seed: int) -> float:
    found = recover(data, alpha="learn", n_basis=1, law="frozen")
    return float(diagnose(found, data, checks=["predictive"], seed=seed).predictive.p_value)  # type: ignore[union-attr]


def calibration(seed: int) -> Rows:
    """20 trajectories of 200 steps of a law with constants and a learned alpha: the p-value several steps ahead."""
    data = simulate(Dynamics(0.2, 0.5, 0.1, 0.7), 20, 200, 0.1, seed=7000 + seed, x0=0.0).transitions()
    return [("p", ahead(data, seed), math.nan)]


def power(seed: int) -> Rows:
    """The same p-value where volatility comes and goes, and where it does not; a few jumps besides."""
    few = (0.05, 0.8, 1 / 40)
    return [(f"p, spread {s:g}", ahead(volatile(9000 + seed, s, *few), seed), math.nan) for s in (1.0, 0.0)]


def jumpy(seed: int) -> Rows:
    """The same with more jumps, which hide some of it."""
    many = (0.2, 0.7, 0.1)
    return [(f"p, spread {s:g}", ahead(volatile(9500 + seed, s, *many), seed), math.nan) for s in (1.0, 0.0)]


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
    """Log returns in thousandths per step, constants: the laws, held out too, and one-step quantiles of 0.1 %."""
    for path in paths:
        data = series(path).transitions()
        start = time.perf_counter()
        laws = compare_laws(data)
        print(f"{path.name}, {len(data)} steps ({time.perf_counter() - start:.0f} s)\n{laws}", flush=True)
        write("prices", path.name, [(f"log p, {row.model}", row.log_likelihood, row.std) for row in laws.rows])
        for name, options in (("stable", {}), ("tempered", {"tempering": "learn"})):
            found = recover(data, alpha="learn", n_basis=1, **options)
            rows = []
            for p in (0.001, 0.999):
                fit, seen = quantile(found, p), float(np.quantile(data.dx.numpy(), p))
                rows.append((f"quantile {p} of {name} over the data's", fit / seen, math.nan))
                print(f"  {name}: quantile {p}: fit {fit:.4g}, data {seen:.4g}, ratio {fit / seen:.3f}", flush=True)
            write("prices", path.name, rows)
            print(f"  {found}", flush=True)
        held = table_of_laws(found.head, data, Region(), most=200_000)
        assert isinstance(held, Comparison)
        print(held, flush=True)
        write("prices", path.name, [(f"held out, {row.model}", row.log_likelihood, row.std) for row in held.rows])


# -- rows -------------------------------------------------------------------------------------------------------------


def read() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def write(part: str, seed: int | str, rows: Rows) -> None:
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows([part, seed, name, f"{value:.8g}", f"{std:.8g}"] for name, value, std in rows)


def run(part: str, work: Callable[[int], Rows], seeds: int) -> None:
    done = {row["seed"] for row in read() if row["part"] == part}
    for seed in range(seeds):
        if str(seed) in done:
            continue
        start = time.perf_counter()
        rows = work(seed)
        write(part, seed, rows)
        shown = "  ".join(f"{name} {value:.4g}" for name, value, _ in rows)
        print(f"{part} {seed}: {shown}  ({time.perf_counter() - start:.1f} s)", flush=True)


def summary() -> None:
    """Means over the seeds with their standard errors, coverage, and shares."""
    columns: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in read():
        columns.setdefault((row["part"], row["name"]), []).append((float(row["value"]), float(row["std"])))
    for (part, name), values in columns.items():
        v, std = np.array(values).T
        told = f"{part}, {name}, {len(v)} seeds: "
        truth = TRUTH.get(name)
        if part in ("constants", "functions") and truth is not None:
            error = v.std(ddof=1) / math.sqrt(len(v))
            told += f"mean {v.mean():.4f}, standard error {error:.4f}, z {(v.mean() - truth) / error:+.1f}"
        elif part == "coverage" and truth is not None:
            told += f"95 % intervals hold the truth in {np.mean(np.abs(v - truth) < 1.96 * std):.0%}"
        elif name == "gain":
            told += f"AIC prefers the stable law in {np.mean(v < 1.0):.0%}"
        elif name.startswith("p"):
            below = "  ".join(f"below {level:g}: {np.mean(v < level):.3g}" for level in (0.001, 0.01, 0.05, 0.5))
            told += f"{below}" if name != "passes" else f"mean {v.mean():.1f}, largest {v.max():.0f}"
            if part == "calibration":
                told += f"  Kolmogorov-Smirnov p {kstest(v, 'uniform').pvalue:.3g}"
        else:
            told += f"mean {v.mean():.4g}"
        print(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(SEEDS))
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    for part in options.parts:
        if part == "prices":
            prices(options.files)
        elif part == "summary":
            summary()
        else:
            run(part, globals()[part], options.seeds or SEEDS[part])


if __name__ == "__main__":
    main()
