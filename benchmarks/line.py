"""A state on a line: recovery of the double well, exit problems against closed forms, V against Monte Carlo, speed.

python benchmarks/line.py recovery --seeds 12      b, D_o, D_f of the double well, default settings; rows that are in
                                                   benchmarks/results/line.csv already are not computed again
python benchmarks/line.py exit                     exit times and probabilities with their order of convergence
python benchmarks/line.py value                    V of the double well against Monte Carlo
python benchmarks/line.py coverage                 V of recoveries, with its errors, against that of the truth
python benchmarks/line.py speed                    a large solve, many small ones
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path

import numpy as np
import torch
from scipy.special import betainc

from benchmarks.line_systems import resolvent_on_line
from benchmarks.monte_carlo import monte_carlo_on_line
from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.spaces.line_operator import inner_nodes

WELL = Dynamics.named("double_well")
WINDOW = (-3.0, 3.0)
SUBSTEPS = 40  # of a step of the data: with 10, Euler's error in D_o is 2 % at x = 2.5, where b' = -18
RESULTS = Path(__file__).parent / "results" / "line.csv"


def recovery(options: argparse.Namespace) -> None:
    """Relative L2 errors on the central 98 % of states, and how often the 95 % bands hold the truth there."""
    law, target = options.law or "auto", Path(options.results)
    done = {}
    if target.exists():
        done = {(r["law"], int(r["trajectories"]), int(r["seed"])): r for r in csv.DictReader(target.open())}
    names = ("b", "D_o", "D_f")
    columns = ["law", "trajectories", "seed", *names, *(f"cover_{n}" for n in names), *("used", "left_out", "seconds")]
    print("seed   b %  D_o %  D_f %   cover b D_o D_f   law        left out   seconds", flush=True)
    rows = []
    for seed in range(options.first, options.first + options.seeds):
        row = done.get((law, options.trajectories, seed))
        if row is None:
            row = dict(zip(columns, (law, options.trajectories, seed, *_recovered(seed, law, options.trajectories))))
            fresh = not target.exists()
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a", newline="") as file:
                writer = csv.DictWriter(file, columns)
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
        rows.append([float(row[c]) for c in columns[3:9]])
        shown = " ".join(f"{v:6.2f}" for v in rows[-1][:3]) + "   " + " ".join(f"{v:5.0f}" for v in rows[-1][3:])
        print(
            f"{seed:4d} {shown}   {row['used']:<9s} {int(row['left_out']):9d} {float(row['seconds']):9.1f}", flush=True
        )
    mean = np.mean(rows, axis=0)
    print("mean " + " ".join(f"{v:6.2f}" for v in mean[:3]) + "   " + " ".join(f"{v:5.1f}" for v in mean[3:]))


def _recovered(seed: int, law: str, trajectories: int) -> list:
    """Errors and coverages in per cent, the law that was used, pairs left out, seconds."""
    data = simulate(WELL, trajectories, 100, 1 / 100, seed=seed, substeps=SUBSTEPS).transitions()
    began = time.perf_counter()
    found = recover(data, alpha=0.75, period=None, law=law)
    seconds = time.perf_counter() - began
    low, high = torch.quantile(data.x[:: max(1, len(data) // 100_000)], torch.tensor([0.01, 0.99]).double())
    x = torch.linspace(float(low), float(high), 201, dtype=torch.float64)
    errors, covers = [], []
    for name, std in zip(("b", "D_o", "D_f"), found.std(x)):
        truth = getattr(WELL, name)(x)
        off = getattr(found, name)(x) - truth
        errors.append(round(100 * float(off.norm() / truth.norm()), 3))
        covers.append(round(100 * float((off.abs() < 1.96 * std).double().mean()), 2))
    lost = found.metrics["left_out"].get("outside the window", 0)
    return [*errors, *covers, found.law, lost, round(seconds, 1)]


def exit_problems(options: argparse.Namespace) -> None:
    """Largest relative errors over |x| <= 0.9 of the interval (-1, 1), and the order from halving the spacing."""
    x = torch.linspace(-0.9, 0.9, 37, dtype=torch.float64)
    print("alpha  nodes   exit time  order   exit above  order")
    for alpha in (0.3, 0.5, 0.75):
        system = Dynamics(0.0, 0.0, 1.0, alpha, period=None)
        exact = math.gamma(0.5) / (4**alpha * math.gamma(1 + alpha) * math.gamma(0.5 + alpha)) * (1 - x**2) ** alpha
        above = torch.from_numpy(betainc(alpha, alpha, ((1 + x) / 2).numpy()))
        before = None
        for n in (16, 32, 64, 128, 256):
            time_V = solve_value(system, 1.0, 1e-12, window=(-1, 1), exterior="absorb", n_modes=n)
            side_V = solve_value(system, 0.0, 1e-12, window=(-1, 1), exterior=lambda y: 1.0 * (y > 0), n_modes=n)
            errors = [float((V(x) / truth - 1).abs().max()) for V, truth in ((time_V, exact), (side_V, above))]
            orders = ["     -"] * 2 if before is None else [f"{math.log2(b / e):6.1f}" for b, e in zip(before, errors)]
            print(f"{alpha:5.2f} {n:6d}   {errors[0]:9.1e} {orders[0]}   {errors[1]:10.1e} {orders[1]}")
            before = errors


def value(options: argparse.Namespace) -> None:
    """(V - Monte Carlo) in standard errors, at five states, for the same rule beyond the ends."""
    x = torch.linspace(-2.5, 2.5, 5, dtype=torch.float64)
    for beta in (0.1, 1.0, 10.0):
        V = solve_value(WELL, torch.cos, beta, window=WINDOW)
        dt = min(0.01, 0.05 / beta)
        found = monte_carlo_on_line(WELL, torch.cos, beta, x, WINDOW, n_paths=options.paths, dt=dt, seed=1)
        z = (V(x) - found.V) / found.standard_error
        print(
            f"beta {beta:5g}: V {np.round(V(x).numpy(), 4)}, Monte Carlo {np.round(found.V.numpy(), 4)} "
            f"+- {float(found.standard_error.max()):.1g}, z {np.round(z.numpy(), 1)}",
            flush=True,
        )


def coverage(options: argparse.Namespace) -> None:
    """V of recoveries against V of the truth: share of states within 1.96 V.std, relative L2 error."""
    inside = torch.linspace(-2.2, 2.2, 45, dtype=torch.float64)
    for seed in range(options.first, options.first + options.seeds):
        data = simulate(WELL, options.trajectories, 100, 1 / 100, seed=seed, substeps=SUBSTEPS).transitions()
        found_well = recover(data, alpha=0.75, period=None)
        cells = []
        for beta in (0.1, 1.0, 10.0):
            truth, own = (solve_value(s, torch.cos, beta, window=(-2.5, 2.5)) for s in (WELL, found_well))
            off = own(inside) - truth(inside)
            held = float((off.abs() < 1.96 * own.std(inside)).double().mean())
            cells.append(f"beta {beta:g}: {held:4.0%} {float(off.norm() / truth(inside).norm()):.2%}")
        print(f"seed {seed}: " + "   ".join(cells), flush=True)


def speed(options: argparse.Namespace) -> None:
    """The best of several, to be read on an idle machine."""

    def best(work, n=5):
        times = []
        for _ in range(n):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return min(times)

    A = np.random.default_rng(0).normal(size=(1000, 1000))
    plain = best(lambda: np.linalg.solve(A, A[0]))
    ours = best(lambda: solve_value(WELL, torch.cos, 1.0, window=WINDOW, n_modes=1001))
    print(f"numpy.linalg.solve, 1000 x 1000: {plain:.3f} s; V on 1000 nodes with assembly: {ours:.3f} s", flush=True)
    n = 129
    x = inner_nodes(n, WINDOW)
    factor = 1 + 0.1 * torch.rand((options.batch, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = [c(x) * factor for c in (WELL.b, WELL.D_o, WELL.D_f)]
    began = time.perf_counter()
    resolvent_on_line(n, WINDOW, *own, 0.75, torch.cos(x), 1.0)
    print(f"{options.batch} solves of 128 nodes: {time.perf_counter() - began:.2f} s", flush=True)


def main() -> None:
    parts = {"recovery": recovery, "exit": exit_problems, "value": value, "coverage": coverage, "speed": speed}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--paths", type=int, default=4000, help="of Monte Carlo, per state")
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--law", help="law of the fit; default: that of recover")
    parser.add_argument("--results", default=RESULTS, help="where rows of recovery are kept")
    options = parser.parse_args()
    parts[options.part](options)


if __name__ == "__main__":
    main()
