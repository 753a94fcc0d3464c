"""Networks beside Fourier series: errors, coverage, convergence and processor time, one row per fit.

python -m benchmarks.networks                                       all cases, the smallest first
python -m benchmarks.networks --cases "variable 2,000" --seeds 12   some of them
python -m benchmarks.networks --summary                             the tables, from the rows that are there

Rows are appended to benchmarks/results/networks.csv as they are made; rows that are there are not made again. Seeds
begin at 100: lower ones were used to choose defaults.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from levytorch import Dynamics, Recovery, Transitions, recover, simulate, solve_value

FILE = Path(__file__).parent / "results" / "networks.csv"
FIELDS = [
    "case",
    "head",
    "seed",
    "pairs",
    "dt",
    "b",
    "D_o",
    "D_f",
    "cover_b",
    "cover_D_o",
    "cover_D_f",
    "std_b",
    "std_D_o",
    "std_D_f",
    "V",
    "V_covers",
]
FIELDS += ["law", "converged", "steps", "log_likelihood", "cpu_seconds", "commit", "command"]
ALPHA = 0.3
NAMES = ("b", "D_o", "D_f")


def variable() -> Dynamics:
    return Dynamics.named("variable", alpha=ALPHA)


def sharp() -> Dynamics:
    """Where a series must fail: a step of b and a peak of D_f."""
    return Dynamics(
        lambda x: 3 * torch.tanh(torch.sin(x) / 0.05),
        torch.ones_like,
        lambda x: 1 + 4 * torch.exp(-(((torch.remainder(x, 2 * torch.pi) - 3) / 0.1) ** 2)),
        0.5,
    )


# case -> system, pairs, steps of a trajectory, dt, heads (name and options of recover)
FOURIER: dict[str, dict[str, Any]] = {"fourier": {}, "mlp": {"coefficients": "mlp"}}
Case = tuple[Callable[[], Dynamics], int, int, float, dict[str, dict[str, Any]]]
CASES: dict[str, Case] = {
    "variable 2,000": (variable, 2_000, 20, 1 / 40, FOURIER),
    "variable 40,000": (variable, 40_000, 40, 1 / 40, FOURIER),
    "variable 400,000": (variable, 400_000, 40, 1 / 40, FOURIER),
    "variable 40,000 short": (variable, 40_000, 40, 1 / 400, FOURIER),
    "variable 400,000 short": (variable, 400_000, 40, 1 / 400, FOURIER),
    "sharp 400,000": (
        sharp,
        400_000,
        40,
        1 / 400,
        {f"fourier {K}": {"n_basis": K} for K in (21, 41, 81)} | {"mlp": {"coefficients": "mlp", "width": 32}},
    ),
}


def relative(found: Tensor, true: Tensor) -> float:
    return 100 * float((found - true).norm() / true.norm())


def measure(system: Dynamics, found: Recovery, x: Tensor, with_V: bool) -> dict[str, Any]:
    """Errors in %, and the share of the cell that the 95 % bands cover."""
    row: dict[str, Any] = {}
    for name, std in zip(NAMES, found.std(x)):
        value, true = getattr(found, name)(x), getattr(system, name)(x)
        row |= {
            name: relative(value, true),
            f"cover_{name}": float(((value - true).abs() < 1.96 * std).double().mean()),
            f"std_{name}": relative(true + std, true),
        }
    if with_V:
        V, true = (solve_value(one, lambda y: torch.cos(y) ** 3, 1.0) for one in (found, system))
        row["V"] = relative(V(x), true(x))
        row["V_covers"] = float(((V(x) - true(x)).abs() < 1.96 * V.std(x)).double().mean())
    return row


def done(file: Path) -> set[tuple[str, str, str]]:
    if not file.exists():
        return set()
    with file.open() as stream:
        return {(row["case"], row["head"], row["seed"]) for row in csv.DictReader(stream)}


def fit(system: Dynamics, data: Transitions, **options: Any) -> tuple[Recovery, float]:
    """A fit with default settings but for its head, and its processor time."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = recover(data, alpha=system.alpha, **options)
    return found, time.process_time() - began


def run(case: str, seed: int, heads: Iterable[str], command: str, commit: str) -> Iterator[dict[str, Any]]:
    """Rows of some heads on the data of a seed."""
    make, pairs, steps, dt, options = CASES[case]
    system = make()
    x = 2 * torch.pi * (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    data = simulate(system, pairs // steps, steps, dt, seed=seed, substeps=20).transitions()
    for head in heads:
        found, spent = fit(system, data, **options[head])
        row = measure(system, found, x, with_V=case.startswith("variable"))
        row |= {"case": case, "head": head, "seed": seed, "pairs": pairs, "dt": dt, "law": found.law}
        row |= {"converged": found.converged, "steps": found.metrics["steps"], "cpu_seconds": spent}
        yield row | {"log_likelihood": found.log_likelihood, "commit": commit, "command": command}


def summary(file: Path) -> None:
    """Geometric means of errors, means of coverage, fits that did not converge, and ratios to the Fourier series."""
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    print(f"{'case':24} {'head':12} seeds   b    D_o    D_f  %   covers      V %  covers  unconverged  cpu s")
    for case in CASES:
        for head in CASES[case][4]:
            of = [row for row in rows if row["case"] == case and row["head"] == head]
            if not of:
                continue
            errors = [geometric(float(row[name]) for row in of) for name in NAMES]
            covers = [fmean(float(row[f"cover_{name}"]) for row in of) for name in NAMES]
            V = [float(row["V"]) for row in of if row["V"]]
            with_V = f"{geometric(V):5.2f} {fmean(float(row['V_covers']) for row in of):5.2f}" if V else " " * 11
            print(
                f"{case:24} {head:12} {len(of):3}  {' '.join(f'{e:6.2f}' for e in errors)}  "
                f"{' '.join(f'{c:4.2f}' for c in covers)}  {with_V}  {sum(row['converged'] != 'True' for row in of):6}"
                f"       {fmean(float(row['cpu_seconds']) for row in of):6.1f}"
            )


def geometric(values: Iterable[float]) -> float:
    return math.exp(fmean(math.log(v) for v in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--heads", nargs="*", help="of each case; all unless given")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if options.summary:
        return summary(options.file)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    known = done(options.file)
    for case in options.cases:
        command = f'python -m benchmarks.networks --cases "{case}" --first {options.first} --seeds {options.seeds}'
        for seed in range(options.first, options.first + options.seeds):
            wanted = [head for head in CASES[case][4] if options.heads is None or head in options.heads]
            missing = [head for head in wanted if (case, head, str(seed)) not in known]
            if missing:
                for row in run(case, seed, missing, command, commit.strip()):
                    write(options.file, row)


def write(file: Path, row: dict[str, Any]) -> None:
    new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow({key: f"{v:.5g}" if isinstance(v, float) else v for key, v in row.items()})


if __name__ == "__main__":
    main()
