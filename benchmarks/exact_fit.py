"""What the exact law of a step gains over the frozen one: `python benchmarks/exact_fit.py`.

The variable example: relative L2 errors of b, D_o, D_f on the cell and of the value function, law after law, data
unbiased and censored. Small by default (a minute or two); the documented figures are those of

python benchmarks/exact_fit.py --trajectories 25000 --n-basis 21 --seeds 3
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings

import numpy as np
import torch

from levytorch import Dynamics, Recovery, Transitions, recover, simulate, solve_value
from levytorch.errors import LevytorchWarning
from levytorch.policy.rewards import CosinePower, Manufactured

ALPHA, THRESHOLDS = 0.3, {"CT": 8.0, "TRT": 20.0}
TRUTH = Dynamics.named("variable", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]
DATA = {
    "unbiased": None,
    "tcf": {**THRESHOLDS, "method": "tcf"},
    "conditional": {**THRESHOLDS, "method": "conditional"},
}


def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found - true).norm() / true.norm())


def errors(found: Recovery, beta: float) -> list[float]:
    """b, D_o, D_f, V of the manufactured reward, V of cos^3 and its shape (mean removed)."""
    pairs = ((found.b, TRUTH.b), (found.D_o, TRUTH.D_o), (found.D_f, TRUTH.D_f))
    row = [relative(got(X), true(X)) for got, true in pairs]

    def V(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(2 * x) ** 3

    manufactured, cosine = Manufactured(V, TRUTH, beta), CosinePower(power=3)
    row.append(relative(solve_value(found, manufactured, beta)(X), V(X)))
    got, true = (solve_value(system, cosine, beta)(X) for system in (found, TRUTH))
    return [*row, relative(got, true), relative(got - got.mean(), true - true.mean())]


def run(data: Transitions, law: str, tail: dict | None, n_basis: int, beta: float) -> list[float]:
    start = time.perf_counter()
    found = recover(data, alpha=ALPHA, n_basis=n_basis, engine="evidence", law=law, tail=tail)
    seconds = time.perf_counter() - start
    return [*errors(found, beta), found.metrics.get("law/evaluations", 0), seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=4000)
    parser.add_argument("--n-basis", type=int, default=11)
    parser.add_argument("--dt", type=float, default=1 / 40)
    parser.add_argument("--substeps", type=int, default=100, help="of the simulation")
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    print(
        f"variable, dt = {options.dt:g}, {options.trajectories} trajectories of 40 steps, K = {options.n_basis}, "
        f"evidence, beta = {options.beta:g}; relative L2 errors in %; load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"{'data':12} {'law':7} {'b':>7} {'D_o':>7} {'D_f':>7} {'V made':>7} {'V cos3':>7} {'shape':>7}  evaluations  s"
    )
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for seed in range(options.seeds):
        whole = simulate(TRUTH, options.trajectories, 40, options.dt, substeps=options.substeps, seed=seed)
        for kind in options.data:
            tail = DATA[kind]
            data = whole.transitions() if tail is None else whole.transitions().censor(**THRESHOLDS, seed=seed)
            for law in ("frozen", "exact"):
                row = run(data, law, tail, options.n_basis, options.beta)
                rows.setdefault((kind, law), []).append(row)
                show(kind, law, row)
    if options.seeds > 1:
        print(f"medians over {options.seeds} seeds")
        for (kind, law), found in rows.items():
            show(kind, law, np.median(found, axis=0).tolist())


def show(kind: str, law: str, row: list[float]) -> None:
    cells = " ".join(f"{100 * e:7.2f}" for e in row[:6])
    print(f"{kind:12} {law:7} {cells} {row[6]:12.0f} {row[7]:4.0f}", flush=True)


if __name__ == "__main__":
    main()
