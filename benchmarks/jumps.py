"""How often is `levytorch.check` wrong? Its answers to simulated series whose law is known.

python benchmarks/jumps.py run --first 100 --seeds 40     adds rows to the results
python benchmarks/jumps.py summary --first 100

1,000 independent steps of length 1: Gaussian; a Gaussian of variance 1 with stable jumps (alpha = 0.7, D_f = 0.05:
about three steps in a thousand are beyond 4); the same with jumps tempered at 0.2; and Student's t with 4 degrees of
freedom. "few" has a fiftieth of the jumps of "stable". The margins of the check were chosen on seeds 0 to 11. Rows
that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from levytorch import Dynamics, check, simulate
from levytorch.diagnostics.jumps_check import decided

RESULTS = Path(__file__).parent / "results" / "jumps.csv"
LAWS = ("Gaussian", "stable", "tempered", "Student t", "NIG")
COLUMNS = ["system", "steps", "seed", "answer", "best", "other_gap", "other_gap_std", "clustering", "clustering_z"]
COLUMNS += [f"{what} {law}" for what in ("AIC", "log p") for law in LAWS] + ["seconds", "commit", "command"]


def jumping(D_f: float, tempering: float, steps: int, seed: int) -> Any:
    return simulate(Dynamics(0.0, 0.5, D_f, 0.7, period=None, tempering=tempering), 1, steps, 1.0, seed=seed, x0=0.0)


SYSTEMS: dict[str, Any] = {
    "Gaussian": lambda n, seed: np.cumsum(np.random.default_rng(seed).normal(size=n + 1)),
    "stable": lambda n, seed: jumping(0.05, 0.0, n, seed),
    "tempered": lambda n, seed: jumping(0.05, 0.2, n, seed),
    "Student t": lambda n, seed: np.cumsum(np.random.default_rng(seed).standard_t(4.0, size=n + 1)),
    "few": lambda n, seed: jumping(0.001, 0.0, n, seed),
}


def check_one(system: str, steps: int, seed: int) -> dict[str, Any]:
    began, data = time.process_time(), SYSTEMS[system](steps, seed)
    card = check(data, **({"dt": 1.0} if isinstance(data, np.ndarray) else {}))
    rows = {row.model: row for row in card.laws.rows}
    jumps = max((rows[name] for name in ("stable", "tempered")), key=lambda row: row.log_likelihood)
    out: dict[str, Any] = {"answer": card.answer, "best": card.laws.rows[0].model}
    out |= {"other_gap": -jumps.difference, "other_gap_std": jumps.difference_std}
    out |= {"clustering": card.clustering[0], "clustering_z": card.clustering[1]}
    out |= {f"AIC {law}": rows[law].aic for law in LAWS} | {f"log p {law}": rows[law].log_likelihood for law in LAWS}
    return out | {"seconds": time.process_time() - began}


def run(options: argparse.Namespace) -> None:
    target, done = Path(options.results), set[tuple[str, int, int]]()
    if target.exists():
        with target.open() as file:
            done = {(row["system"], int(row["steps"]), int(row["seed"])) for row in csv.DictReader(file)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = shlex.join(["python", "benchmarks/jumps.py", *sys.argv[1:]])
    for seed in range(options.first, options.first + options.seeds):
        for system in options.systems:
            if (system, options.steps, seed) in done:
                continue
            row = {"system": system, "steps": options.steps, "seed": seed, "commit": commit, "command": command}
            row |= check_one(system, options.steps, seed)
            fresh = not target.exists()
            with target.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if fresh:
                    writer.writeheader()
                writer.writerow({k: f"{v:.8g}" if isinstance(v, float) else v for k, v in row.items()})


def summary(options: argparse.Namespace) -> None:
    """Answers per law of the steps, and the gain of jumps in AIC, from which the threshold is read."""
    with Path(options.results).open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["seed"]) >= options.first]
    for system, steps in dict.fromkeys((row["system"], row["steps"]) for row in rows):
        own = [row for row in rows if (row["system"], row["steps"]) == (system, steps)]
        answers = Counter(decided({law: float(row[f"AIC {law}"]) for law in LAWS})[0] for row in own)
        gains = np.array(
            [
                float(row["AIC Gaussian"]) - min(float(row[f"AIC {law}"]) for law in ("stable", "tempered"))
                for row in own
            ]
        )
        said = ", ".join(f"{answer} {answers[answer]}" for answer in ("yes", "no", "unclear"))
        levels = ", ".join(f"{q:.0%} {np.quantile(gains, q):.1f}" for q in (0.05, 0.5, 0.95, 1.0))
        print(f"{system}, {steps} steps, {len(own)} series: {said}; gain of jumps in AIC: {levels}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args()
    {"run": run, "summary": summary}[options.what](options)


if __name__ == "__main__":
    main()
