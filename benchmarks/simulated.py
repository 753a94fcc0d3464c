"""The simulated law beside the frozen, corrected and exact ones, where coefficients vary along a step:

python benchmarks/simulated.py variable     the variable example, dt = 1/40: unbiased, TCF, conditional likelihood
python benchmarks/simulated.py plane        D_o and D_f in the plane: mean error fields, coverage, time
python benchmarks/simulated.py settings     100 distinct dt, alpha(x), continuous actions, a covariate
python benchmarks/simulated.py network      Adam with the default MLP
python benchmarks/simulated.py all          all of them, seed after seed
python benchmarks/simulated.py summary      the tables, from what the others have written

Every number is a row of a CSV (--results), appended as soon as it is there; rows that are there are not made again.
On the variable example the exact law is fitted to the same data.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
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

Rows = Iterator[tuple[str, float | str]]


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
        for law in ("simulated", "exact"):

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


def read(path: Path) -> dict[tuple[str, ...], dict[str, dict[int, Any]]]:
    """(study, data, trajectories, law) -> quantity -> seed -> value; an array for a field."""
    out: dict[tuple[str, ...], dict[str, dict[int, Any]]] = {}
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


def summary(path: Path) -> None:
    """Markdown."""
    found = read(path)
    print("| study | data | trajectories | law | seeds | b, D_o, D_f | mean error field | coverage | share | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (study, kind, n, law), q in sorted(found.items()):
        errors = ", ".join(f"{100 * np.median(list(q[f'error_{c}'].values())):.2f}" for c in NAMES)
        true, means = true_fields(study, kind), []
        for name in NAMES:
            field = np.mean(list(q[f"field_{name}"].values()), axis=0)
            means.append(f"{100 * np.linalg.norm(field) / float(true[name].norm()):.2f}")
        inside = "-"
        if "coverage_b" in q:
            inside = ", ".join(f"{100 * np.mean(list(q[f'coverage_{c}'].values())):.0f}" for c in NAMES)
        share = "-"
        if "law/simulation_share" in q:
            share = f"{100 * max(q['law/simulation_share'].values()):.1f}"
        seconds = f"{np.median(list(q['seconds'].values())):.0f}"
        cells = [study, kind, n, law, str(len(q["error_b"])), errors, ", ".join(means), inside, share, seconds]
        print("| " + " | ".join(cells) + " |")
    against_exact(found)


def against_exact(found: dict[tuple[str, ...], dict[str, dict[int, Any]]]) -> None:
    """Geometric means over seeds of the errors on the variable example over those of the exact law on the same data."""
    for (study, kind, n, law), q in sorted(found.items()):
        exact = found.get((study, kind, n, "exact"))
        if study != "variable" or law != "simulated" or exact is None:
            continue
        ratios = {
            c: [
                value / exact[f"error_{c}"][seed] for seed, value in q[f"error_{c}"].items() if seed in exact["error_b"]
            ]
            for c in NAMES
        }
        if ratios["b"]:
            each = ", ".join(f"{c} {math.exp(np.mean(np.log(ratios[c]))):.3f}" for c in NAMES)
            whole = math.exp(np.mean([np.mean(np.log(ratios[c])) for c in NAMES]))
            print(
                f"\n{kind}, {n} trajectories, {len(ratios['b'])} seeds: errors over the exact law's: {each}; ", end=""
            )
            print(f"together {whole:.3f}")


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
    command = f"benchmarks/simulated.py {options.study} --seeds {options.seeds} --first {options.first}"
    results = Results(options.results, command)
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
