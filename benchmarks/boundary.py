"""Coefficients at their boundary: does a fit stay right, or say that it is not?

python benchmarks/boundary.py run --seeds 20      adds rows to the results
python benchmarks/boundary.py table                 prints the table of docs/method.md

"line": Ornstein-Uhlenbeck with D_o = 0.3, D_f = 0.2 and alpha = 0.8, 10,000 pairs, alpha learned: D_o and the jumps can
hardly be told from each other. "circle": b = sin x, D_o = 0.3 and D_f = 0.01, 2,000 pairs, alpha learned: few or no
jumps. V is compared with that of the true system. Every row holds the seed, the commit and the command that made it;
rows that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from levytorch import Dynamics, Transitions, diagnose, recover, simulate, solve_value
from levytorch.errors import LevytorchError, LevytorchWarning

RESULTS = Path(__file__).parent / "results" / "boundary.csv"
COLUMNS = ["system", "seed", "D_o", "D_o_std", "D_f", "D_f_std", "alpha", "alpha_std", "converged", "law"]
COLUMNS += ["V", "V_std", "V_true", "z", "warned", "alarms", "error", "seconds", "commit", "command"]
DT = 1 / 20
LINE = Dynamics(b=lambda x: -x, D_o=0.3, D_f=0.2, alpha=0.8, period=None)
CIRCLE = Dynamics(b=torch.sin, D_o=0.3, D_f=0.01, alpha=0.6)
BETA = 1.0
FAR = 3.0  # standard errors of V, beyond which a row must have an alarm


def line(seed: int) -> Transitions:
    start = 0.6 * torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return simulate(LINE, 100, 100, DT, seed=seed, x0=start).transitions()


def circle(seed: int) -> Transitions:
    return simulate(CIRCLE, 20, 100, DT, seed=seed).transitions()


def bump(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * x * x)


# data, options of recover, the system, a reward, and the state at which V is compared
SYSTEMS: dict[str, tuple[Any, dict[str, Any], Dynamics, Any, float]] = {
    "line": (line, {"alpha": "learn", "period": None}, LINE, bump, 0.0),
    "circle": (circle, {"alpha": "learn"}, CIRCLE, torch.cos, 1.0),
}


def fit_one(name: str, seed: int) -> dict[str, Any]:
    """One data set: what was found, and what was said about it."""
    make, options, truth, reward, x = SYSTEMS[name]
    data, row = make(seed), {}
    began = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", LevytorchWarning)
        try:
            found = recover(data, **options)
            V = solve_value(found, reward, BETA)
        except LevytorchError as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"raw {type(error).__name__}: {error}"}
    # wide enough for paths of the true system to return into the data
    window = {"window": (-30.0, 30.0)} if name == "line" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        true = float(solve_value(truth, reward, BETA, **window)(x))
    std = [float(v) for v in found.std(x)[:3]]
    row |= {"D_o": float(found.D_o(x)), "D_o_std": std[1], "D_f": float(found.D_f(x)), "D_f_std": std[2]}
    row |= {"alpha": found.alpha, "alpha_std": found.alpha_std, "converged": found.converged}
    row |= {"law": found.metrics["law"], "V": float(V(x)), "V_std": float(V.std(x)), "V_true": true}
    row["z"] = (row["V"] - true) / row["V_std"] if row["V_std"] > 0 else math.inf
    row["warned"] = " | ".join(dict.fromkeys(str(w.message)[:60] for w in said))
    if abs(row["z"]) > FAR:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row["alarms"] = " ".join(diagnose(found, data, seed=seed).alarms)
    row["seconds"] = time.process_time() - began
    return row


def run(options: argparse.Namespace) -> None:
    target, done = Path(options.results), set[tuple[str, int]]()
    if target.exists():
        with target.open() as file:
            done = {(r["system"], int(r["seed"])) for r in csv.DictReader(file)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = shlex.join(["python", "benchmarks/boundary.py", *sys.argv[1:]])
    for seed in range(options.first, options.first + options.seeds):
        for name in options.systems:
            if (name, seed) in done:
                continue
            row = {"system": name, "seed": seed, "commit": commit, "command": command} | fit_one(name, seed)
            fresh = not target.exists()
            with target.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if fresh:
                    writer.writeheader()
                writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def table(results: Path = RESULTS) -> None:
    """One row per system, over all data sets of the file."""
    with results.open() as file:
        rows = list(csv.DictReader(file))
    stds = ("D_o_std", "D_f_std", "alpha_std", "V_std")
    head = ["system", "data sets", "raw exceptions", "standard errors of zero", "not converged", "stopped"]
    head += [f"V off by > {FAR:g} std", "of these without an alarm", "most", "V.std, median and largest"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in SYSTEMS:
        own = [r for r in rows if r["system"] == name]
        fitted = [r for r in own if not r["error"]]
        raw = sum(r["error"].startswith("raw") for r in own)
        zero = sum(any(float(r[key]) == 0 for key in stds) for r in fitted)
        z = [abs(float(r["z"])) for r in fitted]
        unsaid = sum(abs(float(r["z"])) > FAR and not r["alarms"] for r in fitted)
        std = sorted(float(r["V_std"]) for r in fitted)
        cells = [name, len({r["seed"] for r in own}), raw, zero, sum(r["converged"] != "True" for r in fitted)]
        cells += [len(own) - len(fitted) - raw, sum(v > FAR for v in z), unsaid, f"{max(z):.1f}"]
        print("| " + " | ".join(map(str, [*cells, f"{std[len(std) // 2]:.2g}, {std[-1]:.2g}"])) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    else:
        table(Path(options.results))


if __name__ == "__main__":
    main()
