"""What the exact law of a step gains over the frozen one, on the variable example:

python benchmarks/exact_fit.py recovery    b, D_o, D_f and the coverage of their bands: 100,000 trajectories
python benchmarks/exact_fit.py slope       the same errors from 10,000 to 400,000 trajectories
python benchmarks/exact_fit.py value       V of 10,000 trajectories, beside model-free LSTD
python benchmarks/exact_fit.py long        steps of 1/10 and 1/4
python benchmarks/exact_fit.py speed       seconds of fits to 16 million pairs
python benchmarks/exact_fit.py summary     the tables, from what the others have written

Every number is a row of a CSV (--results), appended as soon as it is there; rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from levytorch import Dynamics, Recovery, Transitions, recover, simulate, solve_value
from levytorch.errors import LevytorchWarning
from levytorch.policy.generator import operators, resolvent_matrix
from levytorch.policy.reference import relative_error
from levytorch.policy.rewards import CosinePower, Manufactured
from levytorch.spaces.basis import FourierBasis

ALPHA, THRESHOLDS = 0.3, {"CT": 8.0, "TRT": 20.0}
TRUTH = Dynamics.named("variable", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]
TAILS = {
    "unbiased": None,
    "tcf": {**THRESHOLDS, "method": "tcf"},
    "conditional": {**THRESHOLDS, "method": "conditional"},
}
BETAS = (0.1, 1.0, 10.0)
KEY = ("study", "data", "dt", "trajectories", "seed", "law")
FIELDS = (*KEY, "quantity", "value")
PER_TIME = 800  # substeps of second order; those of Euler's rule err visibly even when there are twice as many
N_BASIS = 21
HERE = Path(__file__).parent / "results" / "exact_fit.csv"


def made(x: Tensor) -> Tensor:
    """The value function whose reward is manufactured."""
    return torch.cos(2 * x) ** 3


def reward(name: str, beta: float):
    return Manufactured(made, TRUTH, beta) if name == "manufactured" else CosinePower(power=3, frequency=1)


def stationary(system, n: int = 257) -> tuple[Tensor, Tensor]:
    """States and the weights of the stationary distribution on them: the left null vector of the generator."""
    basis = FourierBasis(n)
    x = basis.points()
    ops = operators(basis, x, torch.tensor(ALPHA, dtype=torch.float64))
    A = resolvent_matrix(ops, *(torch.as_tensor(f(x)).expand(n) for f in (system.b, system.D_o, system.D_f)), 0.0)
    L = torch.linalg.solve(basis.matrix(x).T, A.T).T  # acts on values, not on coefficients
    w = torch.linalg.svd(L.T).Vh[-1]
    return x, w / w.sum()


def coefficient_rows(found: Recovery) -> Iterator[tuple[str, float]]:
    stds = found.std(X)
    for name, std in zip(("b", "D_o", "D_f"), stds):
        got, true = getattr(found, name)(X), torch.as_tensor(getattr(TRUTH, name)(X))
        yield f"error_{name}", relative_error(got, true)
        yield f"coverage_{name}", float(((got - true).abs() <= 1.96 * std).double().mean())
        yield f"std_{name}", float(std.norm() / true.norm())


def value_rows(found: Recovery) -> Iterator[tuple[str, float]]:
    """Errors of V, of its shape, its level under the stationary law, and what these should be."""
    x, w = stationary(TRUTH)
    mine = stationary(found)[1]
    for name in ("cosine", "manufactured"):
        for beta in BETAS:
            r = reward(name, beta)
            V, true = solve_value(found, r, beta), solve_value(TRUTH, r, beta)
            got, want = V(X), true(X)
            end = f"{name}_{beta:g}"
            yield f"V_{end}", relative_error(got, want)
            yield f"shape_{end}", relative_error(got - got.mean(), want - want.mean())
            size = float(want.norm()) / math.sqrt(len(X))
            yield f"level_{end}", float((w * (V(x) - true(x))).sum()) / size
            yield f"level_stationary_{end}", float(((mine - w) * r(x)).sum()) / beta / size
            if V.covariance_factor is not None:
                yield f"level_std_{end}", float((w @ V.basis.matrix(x) @ V.covariance_factor).norm()) / size


def lstd(data: Transitions, r, beta: float, dt: float, n_basis: int = 21) -> FourierBasis:
    """Coefficients c of V = Phi c with E[phi (phi - e^{-beta dt} phi')] c = E[phi R], the reward linear in between."""
    basis = FourierBasis(n_basis)
    A, g = torch.zeros((n_basis, n_basis), dtype=torch.float64), torch.zeros(n_basis, dtype=torch.float64)
    decay = math.exp(-beta * dt)
    whole = (1 - decay) / beta
    late = (whole - dt * decay) / (beta * dt)  # int of e^{-beta s} s / dt
    period = 2 * math.pi
    for rows in data.blocks():
        x, y = data.x[rows], data.x[rows] + data.dx[rows]
        phi, then = basis.matrix(torch.remainder(x, period)), basis.matrix(torch.remainder(y, period))
        A += phi.T @ (phi - decay * then)
        g += phi.T @ ((whole - late) * r(x) + late * r(y))
    return basis, torch.linalg.solve(A, g)


def lstd_rows(data: Transitions, dt: float) -> Iterator[tuple[str, float]]:
    for name in ("cosine", "manufactured"):
        for beta in BETAS:
            r = reward(name, beta)
            basis, c = lstd(data, r, beta, dt)
            got, want = basis.matrix(X) @ c, solve_value(TRUTH, r, beta)(X)
            yield f"V_{name}_{beta:g}", relative_error(got, want)
            yield f"shape_{name}_{beta:g}", relative_error(got - got.mean(), want - want.mean())


class Results:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = list(csv.DictReader(path.open())) if path.exists() else []
        self.done = {tuple(row[k] for k in KEY) for row in rows}

    def key(self, *key: object) -> tuple[str, ...]:
        return tuple(f"{v:g}" if isinstance(v, float) else str(v) for v in key)

    def add(self, key: tuple[str, ...], rows: Iterator[tuple[str, float]]) -> None:
        found = list(rows)
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(FIELDS)
            writer.writerows([*key, name, f"{value:.6g}"] for name, value in found)
        self.done.add(key)
        shown = " ".join(f"{name} {value:.4g}" for name, value in found[:12])
        print(" ".join(key), shown, flush=True)


def simulated(n: int, dt: float, seed: int, substeps: int | None) -> Transitions:
    parts = substeps or max(4, math.ceil(PER_TIME * dt))
    return simulate(TRUTH, n, 40, dt, substeps=parts, order=2, seed=seed).transitions()


def fits(options: argparse.Namespace, study: str, dts: list[float], counts: list[int], kinds: list[str]) -> None:
    results = Results(options.results)
    study += "" if options.n_basis == N_BASIS else f" K={options.n_basis}"
    study += "" if options.penalty == "harmonics" else f" {options.penalty}"
    study += "" if options.substeps is None else f" substeps={options.substeps}"
    for seed in range(options.first, options.first + options.seeds):
        for dt in dts:
            for n in counts:
                keys = {
                    (kind, law): results.key(study, kind, dt, n, seed, law) for kind in kinds for law in options.laws
                }
                if all(key in results.done for key in keys.values()):
                    continue
                whole = simulated(n, dt, seed, options.substeps)
                for (kind, law), key in keys.items():
                    if key not in results.done:
                        tail = TAILS[kind]
                        data = whole if tail is None else whole.censor(**THRESHOLDS, seed=seed)
                        results.add(key, one(data, law, tail, dt, study, options))


def one(data: Transitions, law: str, tail: dict | None, dt: float, study: str, options: argparse.Namespace):
    if law == "lstd":
        yield from lstd_rows(data, dt)
        return
    start = time.perf_counter()
    std = "frozen" if law == "frozen" else options.std
    how = {"engine": "evidence", "penalty": options.penalty, "law": law, "std": std, "tail": tail}
    found = recover(data, alpha=ALPHA, n_basis=options.n_basis, **how)
    seconds = time.perf_counter() - start
    yield from coefficient_rows(found)
    yield "seconds", seconds
    yield "converged", float(found.converged)
    if law == "exact":
        yield "evaluations", found.metrics["law/evaluations"]
        yield "log_p_error", found.metrics["law/log_p_error"]
    if not study.startswith("slope"):
        yield from value_rows(found)


def read(path: Path) -> dict[tuple[str, ...], dict[str, dict[int, float]]]:
    """(study, data, dt, trajectories, law) -> quantity -> seed -> value."""
    out: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for row in csv.DictReader(path.open()):
        key = tuple(row[k] for k in KEY if k != "seed")
        out.setdefault(key, {}).setdefault(row["quantity"], {})[int(row["seed"])] = float(row["value"])
    return out


def summary(options: argparse.Namespace) -> None:
    """Markdown, as in docs/exact_law.md."""
    found = read(options.results)
    print("| study | trajectories | dt | data | law | seeds | b | D_o | D_f | coverage of b, D_o, D_f |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for key, quantities in sorted(found.items(), key=lambda item: (item[0][0], float(item[0][2]), int(item[0][3]))):
        study, kind, dt, n, law = key
        if "error_b" not in quantities or study.startswith("value"):
            continue
        errors = [100 * float(np.median(list(quantities[f"error_{c}"].values()))) for c in ("b", "D_o", "D_f")]
        inside = [100 * float(np.mean(list(quantities[f"coverage_{c}"].values()))) for c in ("b", "D_o", "D_f")]
        shown = " | ".join(f"{e:.2f} %" for e in errors)
        print(
            f"| {study} | {int(n):,} | 1/{1 / float(dt):g} | {kind} | {law} | {len(quantities['error_b'])} | {shown} | "
            + ", ".join(f"{c:.0f}" for c in inside)
            + " % |"
        )
    slopes(found)
    print("\n| data | dt | penalty | reward | seeds | frozen | corrected or exact | LSTD | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind, dt in sorted({(k[1], k[2]) for k in found if k[0] == "value"}):
        for name in ("cosine", "manufactured"):
            rows = [value_cells(found, kind, dt, f"V_{name}_{beta:g}") for beta in BETAS]
            penalty, seeds = rows[0][0], rows[0][1]
            joined = [", ".join(cells) for cells in zip(*(row[2:] for row in rows))]
            print(f"| {kind} | 1/{1 / float(dt):g} | {penalty} | {name} | {seeds} | " + " | ".join(joined) + " |")


def value_cells(found: Found, kind: str, dt: str, quantity: str) -> list[str]:
    """Penalty, seeds, median errors in % of the frozen law, of the better one and of LSTD, and the last ratio.

    The penalty is the default one, or the other while that has more seeds.
    """
    tables = {p: of_value(found, kind, dt, p, quantity) for p in ("harmonics", "evidence")}
    penalty = max(tables, key=lambda p: len(seeds_of(tables[p])))
    laws, shared = tables[penalty], seeds_of(tables[penalty])
    better = "exact" if "exact" in laws else "corrected"
    medians = [
        f"{100 * np.median([laws[law][s] for s in shared]):.2f}" if law in laws and shared else "–"
        for law in ("frozen", better, "lstd")
    ]
    return [penalty, str(len(shared)), *medians, against_lstd(laws, shared)]


Found = dict[tuple[str, ...], dict[str, dict[int, float]]]
Laws = dict[str, dict[int, float]]


def of_value(found: dict[tuple[str, ...], dict[str, dict[int, float]]], *which: str) -> Laws:
    """law -> seed -> error of V; LSTD, which has no penalty, beside them."""
    kind, dt, penalty, quantity = which
    study = "value" if penalty == "harmonics" else f"value {penalty}"
    rows = {k[4]: q[quantity] for k, q in found.items() if k[:3] == (study, kind, dt) and k[4] != "lstd"}
    return rows | {k[4]: q[quantity] for k, q in found.items() if k[:3] == ("value", kind, dt) and k[4] == "lstd"}


def seeds_of(laws: Laws) -> list[int]:
    """Those of all of at least two."""
    return sorted(set.intersection(*(set(v) for v in laws.values()))) if len(laws) > 1 else []


def against_lstd(laws: Laws, seeds: list[int]) -> str:
    """Geometric mean over seeds of the error of the best law that is there over LSTD's, between two standard errors."""
    mine = laws.get("exact", laws.get("corrected"))
    if mine is None or "lstd" not in laws or len(seeds) < 2:
        return ""
    logs = [math.log(mine[s] / laws["lstd"][s]) for s in seeds]
    mean, error = np.mean(logs), np.std(logs, ddof=1) / math.sqrt(len(logs))
    low, high = math.exp(mean - 2 * error), math.exp(mean + 2 * error)
    return f"{math.exp(mean):.2f} ({low:.2f}–{high:.2f})"


def slopes(found: dict[tuple[str, ...], dict[str, dict[int, float]]]) -> None:
    """d log error / d log n, from medians, with its standard error over resampled seeds."""
    draws = np.random.default_rng(0)
    for study, kind, dt, law in sorted({(*k[:3], k[4]) for k in found if k[0].startswith("slope")}):
        sizes = sorted((int(k[3]), q) for k, q in found.items() if (*k[:3], k[4]) == (study, kind, dt, law))
        if len(sizes) < 2:
            continue
        logs, text = np.log([n for n, _ in sizes]), []
        for c in ("b", "D_o", "D_f"):
            errors = [np.array(list(q[f"error_{c}"].values())) for _, q in sizes]
            again = [[np.median(draws.choice(e, len(e))) for e in errors] for _ in range(1000)]
            slope = np.polyfit(logs, np.log([np.median(e) for e in errors]), 1)[0]
            text.append(f"{c} {slope:.2f} ± {np.polyfit(logs, np.log(again).T, 1)[0].std():.2f}")
        print(f"\nd log error / d log n, {study}, {kind}, dt = {dt}, {law}: {', '.join(text)}.")


def speed(options: argparse.Namespace) -> None:
    """Seconds, and seconds of processor time, which tell more on a machine that has other things to do."""
    count, dt = (options.trajectories or [400_000])[0], (options.dt or [1 / 40])[0]
    data = simulated(count, dt, options.first, options.substeps)
    print(
        f"{len(data):,} pairs, dt = {dt:g}, K = {options.n_basis}, evidence; load {os.getloadavg()[0]:.1f}", flush=True
    )
    for law in options.laws or ["frozen", "corrected", "exact"]:
        for std in ("frozen", "auto"):
            start, work = time.perf_counter(), time.process_time()
            found = recover(data, alpha=ALPHA, n_basis=options.n_basis, engine="evidence", law=law, std=std)
            seconds, work = time.perf_counter() - start, time.process_time() - work
            print(
                f"law {law:9} standard errors {found.metrics.get('covariance', 'frozen'):9} {seconds:6.1f} s, "
                f"processor {work:6.1f} s, grid {found.metrics.get('law/grid', 0)}, "
                f"evaluations {found.metrics.get('law/evaluations', 0)}",
                flush=True,
            )
            if law == "frozen":
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["recovery", "slope", "value", "long", "speed", "summary"])
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--n-basis", type=int, default=N_BASIS)
    parser.add_argument("--penalty", default="harmonics", choices=["evidence", "harmonics"])
    parser.add_argument("--substeps", type=int, help="of the simulation")
    parser.add_argument("--std", default="auto", choices=["auto", "frozen"], help="standard errors of exact fits")
    parser.add_argument("--trajectories", type=int, nargs="+")
    parser.add_argument("--dt", type=float, nargs="+")
    parser.add_argument("--data", nargs="+", choices=list(TAILS))
    parser.add_argument("--laws", nargs="+", choices=["frozen", "corrected", "exact", "lstd"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    if options.study == "summary":
        summary(options)
        return
    if options.study == "speed":
        speed(options)
        return
    dt, counts, kinds, laws = {
        "recovery": ([1 / 40], [100_000], ["unbiased"], ["frozen", "exact"]),
        "slope": ([1 / 40], [10_000, 40_000, 400_000], ["unbiased"], ["frozen", "exact"]),
        "value": ([1 / 40], [10_000], ["unbiased", "tcf"], ["frozen", "exact", "lstd"]),
        "long": ([1 / 10, 1 / 4], [100_000], ["unbiased"], ["frozen", "exact"]),
    }[options.study]
    options.laws = options.laws or laws
    fits(options, options.study, options.dt or dt, options.trajectories or counts, options.data or kinds)


if __name__ == "__main__":
    main()
