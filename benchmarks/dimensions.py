"""Figures in two and three dimensions: speed of the law, recovery of constants over seeds, value function on a grid.

python benchmarks/dimensions.py                        everything
python benchmarks/dimensions.py law recovery value     some of it; also from_data, and what is kept in
                                                       results/dimensions.csv: matrix, products, many
python benchmarks/dimensions.py recovery --seeds 2
"""

from __future__ import annotations

import argparse
import csv
import math
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.errors import LevytorchWarning
from levytorch.law import LevyStep, score
from levytorch.policy.from_data import METHODS, prepare

PAPER = {"CT": 8.0, "TRT": 20.0}
RESULTS = Path(__file__).parent / "results" / "dimensions.csv"
FIELDS = ("part", "case", "seed", "quantity", "value", "command", "commit")
TRUTH = np.array([5.0, -3.0, 4.0, 3.0])  # b_1, b_2, D_o, D_f


def law(_: int, n: int = 1_000_000, repeats: int = 7) -> None:
    """One transition = log p and its derivatives in b, D_o, D_f from the table of a shared alpha; best of `repeats`."""
    torch.manual_seed(0)
    work = []
    for dim in (1, 2, 3):
        vector = (n, dim) if dim > 1 else (n,)
        b = torch.full(vector, 5.0, dtype=torch.float64)
        dx = LevyStep(b[0], 4.0, 3.0, 0.3, 1 / 40, dim=dim).sample((n,))
        D_o, D_f = (torch.full((n,), v, dtype=torch.float64) for v in (4.0, 3.0))
        work.append((dim, dx, b, D_o, D_f))
    best = dict.fromkeys((1, 2, 3), math.inf)
    for _ in range(repeats + 1):  # taken in turn, so that a busy machine disturbs all alike; the first builds tables
        for dim, dx, b, D_o, D_f in work:
            began = time.perf_counter()
            score(dx, b, D_o, D_f, 0.3, 1 / 40, dim=dim, method="table")
            best[dim] = min(best[dim], time.perf_counter() - began)
    for dim, seconds in best.items():
        print(f"law d = {dim}: {1e9 * seconds / n:6.1f} ns per transition, {seconds / best[1]:.2f} of d = 1")


def recovery(seeds: int) -> None:
    """Constants in the plane, dt = 1/40, 10,000 trajectories of 40 steps: unbiased, and censored with the TCF."""
    for alpha in (0.3, 0.6):
        dynamics = Dynamics((5.0, -3.0), 4.0, 3.0, alpha, dim=2)
        errors: dict[str, list[np.ndarray]] = {"unbiased": [], "censored, no correction": [], "censored, TCF": []}
        for seed in range(seeds):
            data = simulate(dynamics, 10_000, 40, 1 / 40, seed=seed).transitions()
            cut = data.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=10_000)
            for arm, (given, tail) in zip(errors, ((data, None), (cut, None), (cut, PAPER))):
                found = recover(given, alpha=alpha, n_basis=1, tail=tail)
                c = found.coefficients([0.0, 0.0])
                errors[arm].append(np.array([*c.b.tolist(), float(c.D_o), float(c.D_f)]) / TRUTH - 1)
        print(
            f"recovery d = 2, alpha {alpha}, {seeds} seeds: mean signed error (largest |error|) of b_1, b_2, D_o, D_f"
        )
        for arm, rows in errors.items():
            e = np.array(rows)
            cells = "  ".join(f"{m:+.2%} ({w:.2%})" for m, w in zip(e.mean(0), np.abs(e).max(0)))
            print(f"  {arm:24} {cells}", flush=True)


def keep(part: str, case: str, seed: int, found: dict[str, float]) -> None:
    """Append figures to the table, and print them."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    command = " ".join(["benchmarks/dimensions.py", *sys.argv[1:]])
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(FIELDS)
        for name, number in found.items():
            writer.writerow([part, case, seed, name, f"{number:.6g}", command, commit.stdout.strip()])
    print(part, case, seed, *(f"{name} {number:.4g}" for name, number in found.items()), flush=True)


def matrix(seeds: range, n_trajectories: int = 10_000, n_frozen: int = 3) -> None:
    """`rotor`, whose D_o is a matrix, dt = 1/40, 40 steps: relative L2 errors in %, share of the torus within bands.

    The triangular factor of D_o has cos(2 (u + v)), so that its products of functions must reach (2, 2): "box". The
    first seeds are fitted under the frozen law too.
    """
    truth = Dynamics.named("rotor", alpha=0.5)
    x = truth.points(4000)
    for seed in seeds:
        data = simulate(truth, n_trajectories, 40, 1 / 40, seed=seed, order=2).transitions()
        for law in ("simulated", "frozen")[: 2 if seed - seeds[0] < n_frozen else 1]:
            began = time.perf_counter()
            found = recover(data, alpha=0.5, n_basis=5, truncation="box", noise="matrix", law=law)
            row = {"seconds": time.perf_counter() - began, "converged": float(found.converged)}
            row["steps"] = float(found.metrics["steps"])
            for name, std in zip(("b", "D_o", "D_f"), found.std(x)):
                estimate, true = getattr(found, name)(x), getattr(truth, name)(x)
                off = (estimate - true).abs()
                row[f"error_{name}"] = 100 * float(off.norm() / true.norm())
                row[f"covered_{name}"] = 100 * float((off < 1.96 * std).double().mean())
            keep("matrix", f"{n_trajectories} trajectories {law}", seed, row)


def products(seeds: range, n_paths: int = 10_000, steps: int = 600, horizon: float = 6.0) -> None:
    """V on circle x line and line x line with absorbing ends, beside the mean reward of simulated paths.

    Paths are looked at at discrete times, by which some leave and come back unseen: they count as gone 0.5826 widths of
    a step before the end, which makes up for that (Broadie, Glasserman and Kou 1997).
    """
    D_o, beta = torch.tensor([[0.8, 0.3], [0.3, 0.6]], dtype=torch.float64), 1.0
    states = ([0.5, 0.2], [-1.0, 0.9], [1.2, -0.6])
    h = horizon / steps

    def drift(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.cos(x[..., 1]), -x[..., 1]], dim=-1)

    def reward(x: torch.Tensor) -> torch.Tensor:
        return 2 + torch.cos(x[..., 0]) * x[..., 1]

    for case, period in (("circle x line", [2 * math.pi, math.inf]), ("line x line", None)):
        window = [(-2.0, 2.0), (-1.5, 1.5)]
        system = Dynamics(drift, D_o, 0.5, 0.6, period=period, dim=2, window=window)
        began = time.perf_counter()
        V = solve_value(system, reward, beta, exterior="absorb")
        seconds = time.perf_counter() - began
        lines = [1] if period else [0, 1]
        for seed in seeds:
            for k, x0 in enumerate(states):
                x = torch.from_numpy(
                    simulate(system, n_paths, steps, h, x0=x0, seed=100 * seed + k, substeps=1).to_array()
                )
                gone = torch.zeros(x.shape[:2], dtype=torch.bool)
                for axis in lines:
                    ends = window[axis][1] - 0.5826 * math.sqrt(2 * float(D_o[axis, axis]) * h)
                    gone |= x[..., axis].abs() > ends
                t = h * (torch.arange(steps + 1, dtype=torch.float64))
                paths = torch.trapezoid(torch.exp(-beta * t) * reward(x) * (gone.cumsum(1) == 0), dx=h, dim=1)
                mean, error = float(paths.mean()), float(paths.std()) / math.sqrt(n_paths)
                row = {"V": float(V(x0)), "mean": mean, "standard_error": error, "z": (mean - float(V(x0))) / error}
                row |= {"error_percent": 100 * error / mean, "n_modes": V.n_modes, "seconds": seconds}
                keep("products", f"{case} at {x0[0]:g} {x0[1]:g}", seed, row)


def many(seeds: range) -> None:
    """V in four to ten coordinates that share only their jumps, against sums of V in one coordinate, at 300 states.

    b_i = -sin x_i or cos(x_i) / 2 on circles, -x_i on lines (-2, 2); D_o from 0.5 to 1, D_f = 0.4, alpha = 0.7,
    r = sum of (1 + 0.3 i) cos x_i, beta = 1.
    """
    for case, dim, bounded in (("4 circles", 4, False), ("5 lines", 5, True), ("10 circles", 10, False)):
        drifts = [torch.sin if i == 0 else torch.cos for i in range(dim)]
        shares = [-1.0 if i == 0 else 0.5 for i in range(dim)]
        parts = [lambda u, f=f, c=c: c * f(u) for f, c in zip(drifts, shares)]
        parts = [lambda u: -u] * dim if bounded else parts
        D = torch.linspace(0.5, 1.0, dim, dtype=torch.float64)
        place = {"period": None, "window": [(-2.0, 2.0)] * dim} if bounded else {"period": 2 * math.pi}
        alone = {"period": None, "window": (-2.0, 2.0)} if bounded else place
        system = Dynamics(
            lambda x, parts=parts: torch.stack([f(v) for f, v in zip(parts, x.unbind(-1))], dim=-1),
            torch.diag(D),
            0.4,
            0.7,
            dim=dim,
            **place,
        )
        rewards = [lambda u, i=i: (1 + 0.3 * i) * torch.cos(u) for i in range(dim)]
        began = time.process_time()
        V = solve_value(system, lambda x, rewards=rewards: sum(r(v) for r, v in zip(rewards, x.unbind(-1))), 1.0)
        seconds = time.process_time() - began
        low, high = (-2.0, 2.0) if bounded else (0.0, 2 * math.pi)
        for seed in seeds:
            draw = torch.Generator().manual_seed(seed)
            x = low + (high - low) * torch.rand((300, dim), generator=draw, dtype=torch.float64)
            truth = sum(
                solve_value(Dynamics(f, float(D[i]), 0.4, 0.7, **alone), rewards[i], 1.0)(x[:, i])
                for i, f in enumerate(parts)
            )
            error, scale = V(x) - truth, float(truth.abs().max())
            keep(
                "many",
                case,
                seed,
                {
                    "largest error, %": 100 * float(error.abs().max()) / scale,
                    "mean std, %": 100 * float(V.std(x).mean()) / scale,
                    "error in std": float((error / V.std(x)).square().mean().sqrt()),
                    "seconds": seconds,
                },
            )


def value(_: int) -> None:
    """A manufactured V = cos^3 u cos^3 v of the system `plane` on a 128 x 128 grid."""
    from levytorch.policy.reward_functions import CosineProduct, PlaneManufactured

    plane = Dynamics.named("plane")
    V = CosineProduct(plane.period, frequency=1)
    r = PlaneManufactured(V, plane, 0.1)
    began = time.perf_counter()
    found = solve_value(plane, r, 0.1, n_modes=128)
    seconds = time.perf_counter() - began
    x = 2 * math.pi * torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = float((found(x) - V(x)).abs().max())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"value 128 x 128: {seconds:.1f} s, {found.iterations} GMRES iterations, error {error:.1e}, residual "
        f"{found.residual:.1e}, peak memory of the process {memory:.2f} GB"
    )


def from_data(seeds: int) -> None:
    """V of `plane` from 4,000 trajectories by every method: errors, standard errors, share of the cell within 95 %."""
    truth, told = Dynamics.named("plane", alpha=0.3), {}
    g = torch.arange(24, dtype=torch.float64) * (2 * math.pi / 24)
    x = torch.stack(torch.meshgrid(g, g, indexing="ij"), dim=-1)

    def reward(at: torch.Tensor) -> torch.Tensor:
        return torch.cos(at[..., 0]) * torch.sin(at[..., 1]) + 0.5 * torch.cos(at[..., 1])

    true = solve_value(truth, reward, 1.0)(x)
    for seed in range(seeds):
        data = simulate(truth, 4000, 40, 1 / 40, seed=seed).transitions()
        asked = prepare(data, reward, 1.0, recover(data, alpha=0.3, n_basis=5))
        for method in METHODS:
            V = asked.value(method)
            off, std = (V(x) - true).abs(), V.std(x)
            row = [float(off.norm() / true.norm()), float(std.norm() / true.norm())]
            told.setdefault(V.name, []).append([*row, float((off < 1.96 * std).double().mean())])
    for name, rows in told.items():
        (error, std), covered = np.exp(np.log(np.array(rows)[:, :2]).mean(0)), np.mean(rows, axis=0)[2]
        print(f"V from data d = 2, {seeds} seeds, {name}: error {error:.2%}, its own {std:.2%}, covered {covered:.0%}")


def main() -> None:
    parts = {
        "value": value,
        "law": law,
        "recovery": recovery,
        "from_data": from_data,
        "matrix": matrix,
        "products": products,
        "many": many,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=list(parts)[:4])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=100, help="the first seed, of parts that are kept")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    for name in arguments.parts:
        kept = range(arguments.first, arguments.first + arguments.seeds)
        parts[name](kept if name in ("matrix", "products", "many") else arguments.seeds)


if __name__ == "__main__":
    main()
