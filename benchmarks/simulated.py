"""The simulated law beside the frozen, corrected and exact ones, where coefficients vary along a step:

python benchmarks/simulated.py variable     the variable example, dt = 1/40: unbiased, TCF, conditional likelihood
python benchmarks/simulated.py plane        D_o and D_f in the plane: mean error fields, coverage, time
python benchmarks/simulated.py settings     100 distinct dt, alpha(x), continuous actions, a covariate
python benchmarks/simulated.py network      Adam with the default MLP
python benchmarks/simulated.py all          all of them, seed after seed
python benchmarks/simulated.py summary      the tables, from what the others have written

Every number is a row of a CSV (--results), appended as soon as it is there; rows that are there are not made again.
On the variable example the exact law is fitted to the same data, and to whole data the frozen and the corrected one.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch import ControlledDynamics, Dynamics, Transitions, recover, simulate
from levytorch.errors import LevytorchWarning

ALPHA, DT, N_BASIS = 0.3, 1 / 40, 21
THRESHOLDS = {"CT": 8.0, "TRT": 20.0}
TAILS = {
    "unbiased": None,
    "tcf": {**THRESHOLDS, "method": "tcf"},
    "conditional": {**THRESHOLDS, "method": "conditional"},
}
TRUTH = Dynamics.named("variable", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]
SIDE = (torch.arange(32, dtype=torch.float64) + 0.5) * (2 * math.pi / 32)
PLANE_X = torch.stack(torch.meshgrid(SIDE, SIDE, indexing="ij"), dim=-1).reshape(-1, 2)
PLANE = Dynamics(
    b=lambda x: torch.stack([torch.cos(x[..., 0]), torch.sin(x[..., 1])], -1),
    D_o=lambda x: torch.exp(0.7 * torch.sin(x[..., 0]) + 0.5 * torch.cos(x[..., 1])),
    D_f=2.0,
    alpha=ALPHA,
    dim=2,
)
NAMES = ("b", "D_o", "D_f")
KEY = ("study", "data", "trajectories", "seed", "law")
FIELDS = (*KEY, "quantity", "value", "command", "commit")
HERE = Path(__file__).parent / "results" / "simulated.csv"
FIELD = 64  # states at which mean error fields are kept, in one dimension

LAWS = ("frozen", "corrected", "simulated", "exact")

Rows = Iterator[tuple[str, float | str]]
Quantities = dict[str, dict[int, Any]]


class Results:
    """The rows of a CSV file."""

    def __init__(self, path: Path, command: str) -> None:
        self.path, self.command = path, command
        rows = list(csv.DictReader(path.open())) if path.exists() else []
        self.done = {tuple(row[k] for k in KEY) for row in rows}
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        self.commit = found.stdout.strip()

    def make(self, key: tuple[object, ...], rows: Callable[[], Rows]) -> None:
        """Append the rows of a key, unless they are there."""
        text = tuple(str(v) for v in key)
        if text in self.done:
            return
        found = list(rows())
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(FIELDS)
            writer.writerows([*text, name, written(value), self.command, self.commit] for name, value in found)
        self.done.add(text)
        print(*text, *(f"{name} {value:.4g}" for name, value in found if not isinstance(value, str)), flush=True)


def written(value: float | str) -> str:
    """A number, or the values of a field, which are one text."""
    return value if isinstance(value, str) else f"{value:.6g}"


def curves(got: list[Tensor], true: list[Tensor], stds: list[Tensor] | None, every: int) -> Rows:
    """Relative errors, coverage of the bands, and the error fields at some states."""
    for i, (name, a, t) in enumerate(zip(NAMES, got, true)):
        t = torch.as_tensor(t, dtype=torch.float64).expand(a.shape)
        yield f"error_{name}", float((a - t).norm() / t.norm())
        if stds is not None:
            yield f"coverage_{name}", float(((a - t).abs() <= 1.96 * stds[i]).double().mean())
            yield f"std_{name}", float(stds[i].norm() / t.norm())
        yield f"field_{name}", " ".join(f"{v:.4g}" for v in (a - t).reshape(-1)[::every].tolist())


def facts(found, seconds: float) -> Rows:
    yield "seconds", seconds
    yield "converged", float(found.converged)
    for name in ("law/simulations", "law/substeps", "law/simulation_share", "law/rounds", "law/seconds"):
        if name in found.metrics:
            yield name, float(found.metrics[name])


def timed(fit: Callable[[], object]) -> tuple[object, float]:
    start = time.perf_counter()
    found = fit()
    return found, time.perf_counter() - start


def variable(results: Results, n: int, seed: int, kinds: list[str]) -> None:
    @cache
    def pairs() -> Transitions:
        return simulate(TRUTH, n, 40, DT, substeps=20, order=2, seed=seed).transitions()

    for kind in kinds:
        for law in ("simulated", "exact", *(("corrected", "frozen") if kind == "unbiased" else ())):

            def rows(kind: str = kind, law: str = law) -> Rows:
                data = pairs() if kind == "unbiased" else pairs().censor(**THRESHOLDS, seed=seed)
                how = {"engine": "evidence", "penalty": "harmonics", "law": law, "tail": TAILS[kind]}
                found, seconds = timed(lambda: recover(data, alpha=ALPHA, n_basis=N_BASIS, seed=seed, **how))
                true = [getattr(TRUTH, name)(X) for name in NAMES]
                yield from curves(list(found.coefficients(X)[:3]), true, list(found.std(X)), len(X) // FIELD)
                yield from facts(found, seconds)

            results.make(("variable", kind, n, seed, law), rows)


def plane(results: Results, n: int, seed: int) -> None:
    for law in ("simulated", "frozen"):

        def rows(law: str = law) -> Rows:
            data = simulate(PLANE, n, 40, DT, substeps=20, order=2, seed=seed).transitions()
            found, seconds = timed(lambda: recover(data, alpha=ALPHA, n_basis=7, law=law, seed=seed))
            true = [PLANE.b(PLANE_X), PLANE.D_o(PLANE_X), torch.tensor(2.0)]
            yield from curves(list(found.coefficients(PLANE_X)[:3]), true, list(found.std(PLANE_X)), 4)
            yield from facts(found, seconds)

        results.make(("plane", "unbiased", n, seed, law), rows)


def many_dt(n: int, seed: int) -> tuple[Transitions, dict]:
    """100 distinct dt around 1/40, n / 100 trajectories of each."""
    parts = [
        simulate(TRUTH, n // 100, 40, float(dt), substeps=20, order=2, seed=1000 * seed + k).transitions()
        for k, dt in enumerate(np.linspace(0.8 * DT, 1.2 * DT, 100))
    ]
    x, dx, dt = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "dx", "dt"))
    return Transitions(x, dx, dt), {"alpha": ALPHA}


def varying_alpha(n: int, seed: int) -> tuple[Transitions, dict]:
    system = Dynamics(TRUTH.b, TRUTH.D_o, TRUTH.D_f, alpha=lambda x: 0.4 + 0.1 * torch.sin(x))
    return simulate(system, n, 40, DT, substeps=200, seed=seed).transitions(), {"alpha": "function"}


def covariate(n: int, seed: int) -> tuple[Transitions, dict]:
    """m(c) = exp(0.5 sin(2 pi c / 24)), scaled to mean one, c held over a step."""
    hours = np.random.default_rng(seed).uniform(0, 24, (n, 40))
    groups = 48
    centers = (np.arange(groups) + 0.5) * (24 / groups)
    m = np.exp(0.5 * np.sin(2 * np.pi * centers / 24))
    m /= m.mean()
    start = simulate(TRUTH, n, 1, 1.0, substeps=100, order=2, seed=10_000 + seed).to_array()[:, -1]
    which = (hours[:, 0] / (24 / groups)).astype(int)
    x, dx, c = [], [], []
    for g in range(groups):
        system = Dynamics(TRUTH.b, lambda x, f=m[g]: f * TRUTH.D_o(x), lambda x, f=m[g]: f * TRUTH.D_f(x), alpha=ALPHA)
        rows = np.flatnonzero(which == g)
        states = np.repeat(np.asarray(start)[rows].reshape(len(rows), -1)[:, 0], 40)
        states = states + np.random.default_rng(seed + g).uniform(0, 2 * np.pi, len(states))
        steps = simulate(system, len(states), 1, DT, substeps=20, order=2, x0=states, seed=100 * seed + g).transitions()
        x, dx, c = [*x, steps.x], [*dx, steps.dx], [*c, np.full(len(states), centers[g])]
    pairs = Transitions(torch.cat(x), torch.cat(dx), DT, action=np.concatenate(c))
    return pairs, {"alpha": ALPHA, "modulation": 24.0, "n_modulation": 5}


def settings(results: Results, n: int, seed: int, kinds: list[str]) -> None:
    made = {"many dt": many_dt, "alpha(x)": varying_alpha, "covariate": covariate}
    for kind in kinds:
        for law in ("simulated", "frozen"):

            def rows(kind: str = kind, law: str = law) -> Rows:
                if kind == "actions":
                    yield from actions(n, seed, law)
                    return
                data, options = made[kind](n, seed)
                found, seconds = timed(lambda: recover(data, n_basis=N_BASIS, law=law, seed=seed, **options))
                true = [getattr(TRUTH, name)(X) for name in NAMES]
                yield from curves(list(found.coefficients(X)[:3]), true, list(found.std(X)), len(X) // FIELD)
                yield from facts(found, seconds)

            results.make(("settings", kind, n, seed, law), rows)


def actions(n: int, seed: int, law: str) -> Rows:
    """b + a and D_o exp(a / 4), a uniform on (-1, 1); curves at a = 0.5."""
    system = ControlledDynamics(
        lambda x, a: TRUTH.b(x) + a,
        lambda x, a: TRUTH.D_o(x) * torch.exp(a / 4),
        lambda x, a: TRUTH.D_f(x) + 0 * a,
        alpha=ALPHA,
        action_range=(-1.0, 1.0),
    )
    data = simulate(system, "uniform", n, 40, DT, substeps=20, order=2, seed=seed).transitions()
    found, seconds = timed(lambda: recover(data, alpha=ALPHA, n_basis=N_BASIS, law=law, seed=seed))
    a = torch.full_like(X, 0.5)
    true = [TRUTH.b(X) + 0.5, TRUTH.D_o(X) * math.exp(0.125), TRUTH.D_f(X)]
    got = [getattr(found, name)(X, a) for name in NAMES]
    yield from curves(got, true, None, len(X) // FIELD)
    yield from facts(found, seconds)


def network(results: Results, n: int, seed: int) -> None:
    for law in ("simulated", "frozen"):

        def rows(law: str = law) -> Rows:
            data = simulate(TRUTH, n, 40, DT, substeps=20, order=2, seed=seed).transitions()
            how = {"engine": "adam", "batch_size": 4096, "max_steps": 3000, "window": 1000, "lr": 5e-3}
            fit = lambda: recover(data, alpha=ALPHA, coefficients="mlp", law=law, seed=seed, **how)  # noqa: E731
            found, seconds = timed(fit)
            true = [getattr(TRUTH, name)(X) for name in NAMES]
            yield from curves(list(found.coefficients(X)[:3]), true, None, len(X) // FIELD)
            yield from facts(found, seconds)

        results.make(("network", "unbiased", n, seed, law), rows)


# -- tables ------------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[tuple[str, ...], Quantities]:
    """(study, data, trajectories, law) -> quantity -> seed -> value; an array for a field."""
    out: dict[tuple[str, ...], Quantities] = {}
    for row in csv.DictReader(path.open()):
        key = (row["study"], row["data"], row["trajectories"], row["law"])
        values = [float(v) for v in row["value"].split()]
        value = np.array(values) if row["quantity"].startswith("field") else values[0]
        out.setdefault(key, {}).setdefault(row["quantity"], {})[int(row["seed"])] = value
    return out


def true_fields(study: str, kind: str) -> dict[str, Tensor]:
    if study == "plane":
        values = [PLANE.b(PLANE_X), PLANE.D_o(PLANE_X), torch.full((len(PLANE_X),), 2.0, dtype=torch.float64)]
        return {name: v.reshape(-1)[::4] for name, v in zip(NAMES, values)}
    values = [torch.as_tensor(getattr(TRUTH, name)(X)) for name in NAMES]
    if kind == "actions":
        values = [values[0] + 0.5, values[1] * math.exp(0.125), values[2]]
    return {name: v[:: len(X) // FIELD] for name, v in zip(NAMES, values)}


def percents(values: Iterable[float], digits: int) -> str:
    return ", ".join(f"{100 * v:.{digits}f}" for v in values)


def summary(path: Path) -> None:
    """Markdown: a table per study, and what its figures are compared with."""
    found = read(path)
    for study in sorted({key[0] for key in found}):
        print(f"\n{study}: errors are medians over seeds; in brackets the part of the mean error field that is noise\n")
        print("| data | trajectories | law | seeds | b, D_o, D_f | mean error field | coverage | added | seconds |")
        print("|---|---|---|---|---|---|---|---|---|")
        of_study = [(key, q) for key, q in found.items() if key[0] == study]
        for (_, kind, n, law), q in sorted(of_study, key=lambda item: (*item[0][:3], LAWS.index(item[0][3]))):
            errors = percents((np.median(list(q[f"error_{c}"].values())) for c in NAMES), 2)
            means, noises = zip(*(mean_field(q, c, true_fields(study, kind)[c]) for c in NAMES))
            inside, added = "-", "-"
            if "coverage_b" in q:
                inside = percents((np.mean(list(q[f"coverage_{c}"].values())) for c in NAMES), 0)
            if "law/simulation_share" in q:
                added = percents([max(q["law/simulation_share"].values())], 1)
            seconds = f"{np.median(list(q['seconds'].values())):.0f}"
            fields = f"{percents(means, 2)} ({percents(noises, 2)})"
            print("|", " | ".join([kind, n, law, str(len(q["error_b"])), errors, fields, inside, added, seconds]), "|")
    print()
    for (study, kind, n, law), q in sorted(found.items()):
        other = "exact" if study == "variable" else "frozen"
        if law == "simulated" and (study, kind, n, other) in found:
            against(f"{study}, {kind}, {n} trajectories", q, other, found[study, kind, n, other])


def mean_field(q: Quantities, name: str, true: Tensor) -> tuple[float, float]:
    """Relative L2 norm of the mean over seeds of an error field, and what it would be by the scatter of seeds alone."""
    fields = np.array(list(q[f"field_{name}"].values()))
    size = float(true.norm())
    noise = fields.var(axis=0, ddof=1).sum() / len(fields) if len(fields) > 1 else math.inf
    return float(np.linalg.norm(fields.mean(axis=0))) / size, math.sqrt(noise) / size


def against(title: str, q: Quantities, law: str, other: Quantities) -> None:
    """Geometric means over seeds of errors and seconds over those of another law on the same data."""
    logs = {}
    for name in (*(f"error_{c}" for c in NAMES), "seconds"):
        seeds = sorted(set(q[name]) & set(other[name]))
        logs[name] = np.array([math.log(q[name][s] / other[name][s]) for s in seeds])
    logs["together"] = np.mean([logs[f"error_{c}"] for c in NAMES], axis=0)
    each = []
    for name, values in logs.items():
        spread = 2 * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        low, mean, high = (math.exp(min(values.mean() + k * spread, 99)) for k in (-1, 0, 1))
        each.append(f"{name} {mean:.3f} ({low:.2f}-{high:.2f})" if len(values) > 1 else f"{name} {mean:.3f}")
    print(f"{title}, {len(logs['seconds'])} seeds, over those of law {law}: {', '.join(each)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["variable", "plane", "settings", "network", "all", "summary"])
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--trajectories", type=int, help="100,000 on the variable example, 10,000 elsewhere")
    parser.add_argument("--data", nargs="+", help="which of the kinds of data of a study")
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    if options.study == "summary":
        summary(options.results)
        return
    results = Results(options.results, " ".join(["benchmarks/simulated.py", *sys.argv[1:]]))
    for seed in range(options.first, options.first + options.seeds):
        if options.study in ("variable", "all"):
            variable(results, options.trajectories or 100_000, seed, options.data or list(TAILS))
        if options.study in ("plane", "all"):
            plane(results, options.trajectories or 10_000, seed)
        if options.study in ("settings", "all"):
            kinds = ["many dt", "alpha(x)", "actions", "covariate"]
            settings(results, options.trajectories or 10_000, seed, options.data or kinds)
        if options.study in ("network", "all"):
            network(results, options.trajectories or 10_000, seed)


if __name__ == "__main__":
    main()
