"""Observation noise: are s, b, D_o and D_f as good as the data allow, and is noise that is not there dropped?

python benchmarks/noise.py run --seeds 12         adds rows to the results
python benchmarks/noise.py table                  prints the table of docs/noise.md
python benchmarks/noise.py time                   100,000 steps, on as many threads as torch has

100 trajectories of 400 steps of dt = 1/40, from seed 100 on, of the double well (on a line) and of the variable example
(on a circle, alpha = 0.3), with Gaussian errors of 0, 0.1, 0.5 and 1 median |dx|. Steps are simulated so finely that
their own error is far below the errors of a fit. Errors of coefficients are root mean squares over the observed states,
relative to the truth's. The bound is the root mean square of the standard errors, from the outer product of the
filter's scores and the smoothing; without smoothing it would be larger. Without noise the same data
are fitted without the option, too: "moved" is the largest difference of the two fits in standard errors. Every row
holds the seed, the commit and the command that made it; rows that are there already are not computed again.
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

from levytorch import Dynamics, Recovery, Trajectories, recover, simulate

RESULTS = Path(__file__).parent / "results" / "noise.csv"
NAMES = ("b", "D_o", "D_f")
COLUMNS = ["system", "noise", "seed", "true_s", "s", "s_std"]
COLUMNS += [f"{name}_{what}" for name in NAMES for what in ("error", "bound", "cover")]
COLUMNS += ["gain", "AIC_difference", "moved", "law", "steps", "converged", "seconds", "commit", "command"]
DT, TRAJECTORIES, STEPS, FIRST = 1 / 40, 100, 400, 100
SIZES = (0.5, 1.0, 0.1, 0.0)  # of the noise, in median |dx|
SYSTEMS: dict[str, tuple[Dynamics, dict[str, Any]]] = {
    "double well": (Dynamics.named("double_well"), {"period": None}),
    "variable": (Dynamics.named("variable", alpha=0.3), {}),
}


def noisy(truth: Dynamics, size: float, seed: int, n: int = TRAJECTORIES) -> tuple[Trajectories, float]:
    """Observed trajectories, and the standard deviation of their errors."""
    accurate = {"substeps": 100} if truth is SYSTEMS["double well"][0] else {"order": 2}
    x = simulate(truth, n, STEPS, DT, seed=seed, **accurate).to_array()
    dx = np.diff(x, axis=1)
    s = size * float(np.median(np.abs(dx - np.median(dx))))
    y = x + s * np.random.default_rng([seed, 1]).standard_normal(x.shape)
    return Trajectories.from_arrays(y, dt=DT), s


def against(found: Recovery, truth: Dynamics) -> dict[str, float]:
    """Errors and bounds, relative to the truth, and how often intervals of 95 % hold it."""
    x, row = found.states, {}
    for name, std in zip(NAMES, found.std(x)):
        true = torch.as_tensor(getattr(truth, name)(x)).expand(len(x))
        apart, size = getattr(found, name)(x) - true, float(true.square().mean().sqrt())
        row[f"{name}_error"] = float(apart.square().mean().sqrt()) / size
        row[f"{name}_bound"] = float(std.square().mean().sqrt()) / size
        row[f"{name}_cover"] = float((apart.abs() < 1.96 * std).double().mean())
    return row


def fit_one(system: str, size: float, seed: int) -> dict[str, Any]:
    truth, options = SYSTEMS[system]
    data, s = noisy(truth, size, seed)
    options = {"alpha": truth.alpha, **options}
    began = time.process_time()
    found = recover(data, observation_noise="learn", **options)
    row: dict[str, Any] = {"seconds": time.process_time() - began, "true_s": s, "s": found.observation_noise}
    row |= {"s_std": found.observation_noise_std, "law": found.law, "converged": found.converged}
    row |= against(found, truth) | {"steps": found.metrics["steps"]}
    if size == 0.0:
        plain = recover(data, **options)
        x = plain.states
        pairs = zip(NAMES, plain.std(x))
        apart = [(getattr(found, name)(x) - getattr(plain, name)(x)).abs() / std for name, std in pairs]
        row["moved"] = max(float(v.max()) for v in apart)
        row["gain"] = found.log_likelihood - plain.log_likelihood
        row["AIC_difference"] = found.aic - plain.aic
    return row


def run(options: argparse.Namespace) -> None:
    target, done = Path(options.results), set[tuple[str, float, int]]()
    if target.exists():
        with target.open() as file:
            done = {(r["system"], float(r["noise"]), int(r["seed"])) for r in csv.DictReader(file)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = shlex.join(["python", "benchmarks/noise.py", *sys.argv[1:]])
    for size in SIZES:
        for seed in range(FIRST, FIRST + options.seeds):
            for name in SYSTEMS:
                if (name, size, seed) in done:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = fit_one(name, size, seed)
                row = {"system": name, "noise": size, "seed": seed, "commit": commit, "command": command} | found
                fresh = not target.exists()
                with target.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if fresh:
                        writer.writeheader()
                    writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def table(options: argparse.Namespace) -> None:
    """Root mean square errors over seeds, in those of the bound, and coverage in %."""
    with Path(options.results).open() as file:
        rows = list(csv.DictReader(file))
    print("| system | noise in median abs(dx) | seeds | s | b | D_o | D_f |\n|---|---|---|---|---|---|---|")
    for system in SYSTEMS:
        for size in sorted(SIZES):
            own = [r for r in rows if r["system"] == system and float(r["noise"]) == size]
            if not own:
                continue

            def mean(name: str, power: int = 1, own: list[dict[str, str]] = own) -> float:
                return sum(float(r[name]) ** power for r in own) / len(own)

            cells = []
            if size:
                errors = [float(r["s"]) - float(r["true_s"]) for r in own]
                inside = [abs(e) < 1.96 * float(r["s_std"]) for e, r in zip(errors, own)]
                ratio = math.sqrt(sum(e * e for e in errors) / len(own) / max(mean("s_std", 2), 1e-300))
                cells.append(f"{ratio:.2f}, {100 * sum(inside) / len(own):.0f} %")
            else:
                cells.append(f"dropped in {sum(float(r['s']) == 0.0 for r in own)} of {len(own)}")
            for name in NAMES:
                ratio = math.sqrt(mean(f"{name}_error", 2) / mean(f"{name}_bound", 2))
                cells.append(f"{ratio:.2f}, {100 * mean(f'{name}_cover'):.0f} %")
            print(f"| {system} | {size:g} | {len(own)} | {' | '.join(cells)} |")
    for system in SYSTEMS:
        own = [r for r in rows if r["system"] == system and float(r["noise"]) == 0.0]
        if own:
            without = sum(float(r["AIC_difference"]) >= 0.0 for r in own)
            moved = max(float(r["moved"]) for r in own)
            print(
                f"\n{system}, without noise: AIC prefers none in {without} of {len(own)}, moved by at most {moved:.2g}"
            )


def clock(options: argparse.Namespace) -> None:
    """The time of a whole fit of 100,000 steps."""
    for name, (truth, given) in SYSTEMS.items():
        data, _ = noisy(truth, 0.5, FIRST, 250)
        began, cpu = time.perf_counter(), time.process_time()
        found = recover(data, observation_noise="learn", alpha=truth.alpha, **given)
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        print(f"{name}: {wall:.0f} s, {used:.0f} s of processor time, {torch.get_num_threads()} threads, {found.law}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "time"))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args()
    {"run": run, "table": table, "time": clock}[options.what](options)


if __name__ == "__main__":
    main()
