"""Networks beside Fourier series: errors, coverage, convergence and processor time, one row per fit.

python -m benchmarks.networks --quick      the smaller data sets
python -m benchmarks.networks              all of them; rows that are in the file already are not computed again

Rows are appended to benchmarks/results/networks.csv as they are made.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levytorch import Dynamics, Recovery, recover, simulate, solve_value

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
    "V",
    "V_covers",
]
FIELDS += ["law", "converged", "steps", "log_likelihood", "cpu_seconds", "commit", "command"]
ALPHA = 0.3


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
QUICK = ("variable 2,000", "variable 40,000", "variable 40,000 short")


def relative(found: Tensor, true: Tensor) -> float:
    return 100 * float((found - true).norm() / true.norm())


def measure(system: Dynamics, found: Recovery, x: Tensor, with_V: bool) -> dict[str, Any]:
    """Errors in %, and the share of the cell that the 95 % bands cover."""
    row: dict[str, Any] = {}
    for name, std in zip(("b", "D_o", "D_f"), found.std(x)):
        value, true = getattr(found, name)(x), getattr(system, name)(x)
        row |= {
            name: relative(value, true),
            f"cover_{name}": float(((value - true).abs() < 1.96 * std).double().mean()),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller data sets only")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    command = f"python -m benchmarks.networks{' --quick' * options.quick} --seeds {options.seeds}"
    x = 2 * torch.pi * (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    known = done(options.file)
    for seed in range(options.seeds):
        for case, (make, pairs, steps, dt, heads) in CASES.items():
            missing = [head for head in heads if (case, head, str(seed)) not in known]
            if not missing or (options.quick and case not in QUICK):
                continue
            system = make()
            data = simulate(system, pairs // steps, steps, dt, seed=seed, substeps=20).transitions()
            for head in missing:
                began = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = recover(data, alpha=system.alpha, **heads[head])
                    spent = time.process_time() - began
                    row = measure(system, found, x, with_V=case.startswith("variable"))
                row |= {"case": case, "head": head, "seed": seed, "pairs": pairs, "dt": dt, "law": found.law}
                row |= {"converged": found.converged, "steps": found.metrics["steps"], "cpu_seconds": spent}
                row |= {"log_likelihood": found.log_likelihood, "commit": commit.strip(), "command": command}
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
