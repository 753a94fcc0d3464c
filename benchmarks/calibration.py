"""P-values of `diagnose` when the model is true: are they uniform, and how often does a run raise an alarm?

python benchmarks/calibration.py run circle line --seeds 200 --checks time trajectories    adds rows to the results
python benchmarks/calibration.py summary                                                   shares below 0.05 and 0.01

Every row holds the command, the commit and the seed that made it; rows that are there already are not computed again.
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

import numpy as np
import torch
from scipy.stats import kstest

from levytorch import Dynamics, Trajectories, Transitions, diagnose, recover, simulate

RESULTS = Path(__file__).parent / "results" / "calibration.csv"
COLUMNS = ["regime", "seed", "check", "p_value", "alarms", "seconds", "commit", "command"]
ALPHA, DT = 0.6, 1 / 20
CIRCLE = Dynamics(
    b=torch.sin, D_o=lambda x: 1.0 + 0.3 * torch.cos(x), D_f=lambda x: 0.8 + 0.3 * torch.sin(x), alpha=ALPHA
)
CHECKS = ("fit", "step_size", "predictive", "time", "trajectories", "tails")


def circle(seed: int, **options: Any) -> tuple[Transitions, dict[str, Any]]:
    data = simulate(CIRCLE, 40, 100, DT, seed=seed).transitions()
    return data, {"alpha": ALPHA, "n_basis": 5} | options


def circle_learned(seed: int) -> tuple[Transitions, dict[str, Any]]:
    return circle(seed, alpha="learn")


def circle_wrapped(seed: int) -> tuple[Transitions, dict[str, Any]]:
    data, options = circle(seed)
    return Transitions(torch.remainder(data.x, 2 * math.pi), data.dx, DT, trajectory=data.trajectory), options


def line(seed: int, **options: Any) -> tuple[Transitions, dict[str, Any]]:
    """Ornstein-Uhlenbeck with jumps."""
    rng, steps, fine = np.random.default_rng(seed), 100, 10
    x = np.zeros((40, steps + 1))
    at = rng.normal(0, 0.8, 40)
    x[:, 0] = at
    for j in range(steps):
        for _ in range(fine):
            h = DT / fine
            angle, wait = rng.uniform(-np.pi / 2, np.pi / 2, 40), rng.exponential(size=40)
            a = 2 * 0.8
            jump = np.sin(a * angle) / np.cos(angle) ** (1 / a) * (np.cos((1 - a) * angle) / wait) ** ((1 - a) / a)
            at = at - h * at + np.sqrt(2 * 0.3 * h) * rng.standard_normal(40) + (0.2 * h) ** (1 / a) * jump
        x[:, j + 1] = at
    return Trajectories.from_arrays(x, dt=DT).transitions(), {"alpha": 0.8, "period": None, "n_basis": 5} | options


def line_learned(seed: int) -> tuple[Transitions, dict[str, Any]]:
    return line(seed, alpha="learn")


def plane(seed: int) -> tuple[Transitions, dict[str, Any]]:
    system = Dynamics.named("plane")
    return simulate(system, 40, 60, DT, seed=seed).transitions(), {"alpha": float(system.alpha), "n_basis": 3}


def tails(seed: int) -> tuple[Transitions, dict[str, Any]]:
    """Half of all steps beyond CT are lost."""
    data = simulate(CIRCLE, 200, 100, DT, seed=seed).transitions()
    return data.censor(TRT=20.0, CT=2.0, drop_tail=0.5, seed=seed), {
        "alpha": ALPHA,
        "n_basis": 5,
        "tail": {"CT": 2.0, "TRT": 20.0, "min_tail": 20},
        "law": "frozen",
    }


REGIMES = {f.__name__: f for f in (circle, circle_learned, circle_wrapped, line, line_learned, plane, tails)}


def run(options: argparse.Namespace) -> None:
    target = Path(options.results)
    done: set[tuple[str, int, str]] = set()
    if target.exists():
        with target.open() as file:
            done = {(r["regime"], int(r["seed"]), r["check"]) for r in csv.DictReader(file)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = shlex.join(["python", "benchmarks/calibration.py", *sys.argv[1:]])
    warnings.simplefilter("ignore")
    for seed in range(options.first, options.first + options.seeds):
        for name in options.regimes:
            wanted = [c for c in options.checks if (name, seed, c) not in done and (c != "tails" or name == "tails")]
            if not wanted:
                continue
            began = time.process_time()
            data, settings = REGIMES[name](seed)
            found = diagnose(recover(data, **settings), data, checks=wanted, seed=seed)
            seconds = f"{time.process_time() - began:.1f}"
            checks = {c: getattr(getattr(found, c), "p_value", None) for c in wanted}
            rows = [(name, seed, c, f"{p:.6g}", " ".join(found.alarms)) for c, p in checks.items() if p is not None]
            fresh = not target.exists()
            with target.open("a", newline="") as file:
                writer = csv.writer(file)
                if fresh:
                    writer.writerow(COLUMNS)
                writer.writerows([(*row, seconds, commit, command) for row in rows])


def summary(options: argparse.Namespace) -> None:
    with Path(options.results).open() as file:
        rows = list(csv.DictReader(file))
    print("regime            check          n   < 0.05   < 0.01   < 0.001   KS p")
    for name in dict.fromkeys(r["regime"] for r in rows):
        for check in CHECKS:
            p = np.array([float(r["p_value"]) for r in rows if r["regime"] == name and r["check"] == check])
            if len(p):
                shares = "   ".join(f"{(p < level).mean():6.3f}" for level in (0.05, 0.01, 0.001))
                print(f"{name:17s} {check:13s} {len(p):3d}   {shares}   {kstest(p, 'uniform').pvalue:.3f}")
        runs: dict[str, set[str]] = {}
        for r in rows:
            if r["regime"] == name:
                runs.setdefault(r["seed"], set()).update(r["alarms"].split())
        alarmed = sum(bool(alarms) for alarms in runs.values())
        print(f"{name:17s} runs with any alarm: {alarmed} of {len(runs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("regimes", nargs="*", default=list(REGIMES))
    parser.add_argument("--checks", nargs="+", default=list(CHECKS), choices=CHECKS)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args()
    {"run": run, "summary": summary}[options.what](options)


if __name__ == "__main__":
    main()
