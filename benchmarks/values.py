"""V by every method of `value_from_data` on the same data, the variable example (`docs/compare.md`):

python benchmarks/values.py measure --seeds 12                      dt = 1/40, whole and censored data
python benchmarks/values.py measure --seeds 12 --dt 0.0025          dt = 1/400
python benchmarks/values.py summary                                 the tables, also into docs/compare.md

10,000 trajectories of 40 steps, 40 substeps each, alpha known, K = 21. Every number is a row of a CSV (--results),
appended as soon as it is there; rows that are there are not made again. Fits are kept in a directory (--fits).
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from levytorch import Dynamics, Recovery, Transitions, recover, simulate, solve_value
from levytorch.errors import LevytorchWarning
from levytorch.policy.bases import CircleBasis
from levytorch.policy.estimation import Estimation
from levytorch.policy.reference import relative_error
from levytorch.policy.reward_functions import CosinePower, Manufactured
from levytorch.training.resampling import blocks_from

ALPHA, SUBSTEPS, N_BASIS = 0.3, 40, 21
FUNCTIONS = CircleBasis(N_BASIS)
TRUTH = Dynamics.named("variable", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]
DATA = {"whole": None, "censored": {"CT": 8.0, "TRT": 20.0, "method": "tcf"}}
REWARDS, BETAS = ("cosine", "manufactured"), (0.1, 1.0, 10.0)
ALONE = {"lstd": {}, "phibe 1": {}, "phibe 2": {"order": 2}, "brownian": {}}  # methods without a model, their options
WITH_MODEL = ("model", "hybrid", "corrected")
LAWS = ("auto", "frozen")
PENALTIES = ("harmonics", "evidence")  # of the models' fits; the first is what recover does
KEY = ("data", "dt", "trajectories", "seed", "penalty")
FIELDS = (*KEY, "reward", "beta", "method", "law", "quantity", "value")
HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "values.csv", HERE.parent / "docs" / "compare.md"
BEGIN, END = "<!-- begin: benchmarks/values.py summary -->", "<!-- end: benchmarks/values.py summary -->"
NAMES = {
    ("model", "auto"): "model",
    ("corrected", "auto"): "corrected",
    ("hybrid", "auto"): "hybrid",
    ("lstd", ""): "LSTD",
    ("phibe 1", ""): "PhiBE 1",
    ("phibe 2", ""): "PhiBE 2",
    ("brownian", ""): "Brownian",
    ("model", "frozen"): "model, frozen law",
    ("hybrid", "frozen"): "hybrid, frozen law",
    ("corrected", "frozen"): "corrected, frozen law",
}
Row = tuple[str, str, str, str, str, float]


def made(x: Tensor) -> Tensor:
    """The value function whose reward is manufactured."""
    return torch.cos(2 * x) ** 3


def reward_of(name: str, beta: float) -> Callable[[Tensor], Tensor]:
    return Manufactured(made, TRUTH, beta) if name == "manufactured" else CosinePower(power=3, frequency=1)


@cache
def truth_of(name: str, beta: float) -> Tensor:
    return solve_value(TRUTH, reward_of(name, beta), beta)(X)


def fitted(data: Transitions, kind: str, law: str, penalty: str, file: Path) -> tuple[Recovery, float]:
    """The model, kept; and the seconds that it took."""
    if file.is_file():
        found = Recovery.load(file)
        found.blocks = blocks_from(found, data)
        return found, math.nan
    start = time.perf_counter()
    found = recover(data, alpha=ALPHA, n_basis=N_BASIS, engine="evidence", penalty=penalty, law=law, tail=DATA[kind])
    seconds = time.perf_counter() - start
    file.parent.mkdir(parents=True, exist_ok=True)
    found.save(file)
    return found, seconds


def one(data: Transitions, kind: str, models: dict[str, Recovery]) -> Iterator[Row]:
    """Error, its standard error and the coverage of every V; seconds of methods that need no fit."""
    # passes over the data, which all have in common
    shared = Estimation(data, torch.cos, 1.0, FUNCTIONS).moments
    moved = {order: Estimation(data, torch.cos, 1.0, FUNCTIONS, order=order).displacements for order in (1, 2)}
    for name in REWARDS:
        for beta in BETAS:
            reward = reward_of(name, beta)
            true = truth_of(name, beta)
            asked = [(method, "", options, None) for method, options in ALONE.items()]
            asked += [(method, law, {}, found) for law, found in models.items() for method in WITH_MODEL]
            by_law: dict[str, Estimation] = {}
            for method, law, options, found in asked:
                if law not in by_law or options:
                    by_law[law] = asking = Estimation(data, reward, beta, FUNCTIONS, found, **options)
                    asking.moments, asking.displacements = shared, moved[asking.order]
                start = time.perf_counter()
                V = by_law[law].value(method.split()[0])
                seconds = time.perf_counter() - start
                got, std = V(X), V.std(X)
                key = (name, f"{beta:g}", method, law)
                yield (*key, "error", relative_error(got, true))
                yield (*key, "std", float(std.norm() / true.norm()))
                yield (*key, "coverage", float(((got - true).abs() <= 1.96 * std).double().mean()))
                yield (*key, "seconds", seconds)
                if V.share is not None:
                    yield (*key, "share of level", V.share[0])
                    yield (*key, "share of rest", V.share[1])


def measure(options: argparse.Namespace) -> None:
    path = options.results
    done = {tuple(row[k] for k in KEY) for row in read(path)}
    for seed in range(options.first, options.first + options.seeds):
        for dt in options.dt:
            whole = None
            for kind in options.data:
                key = (kind, f"{dt:g}", str(options.trajectories), str(seed), options.penalty)
                if key in done:
                    continue
                start = time.perf_counter()
                if whole is None:
                    whole = simulate(TRUTH, options.trajectories, 40, dt, substeps=SUBSTEPS, seed=seed).transitions()
                data = whole if DATA[kind] is None else whole.censor(CT=8.0, TRT=20.0, seed=seed)
                models, rows = {}, []
                for law in LAWS:
                    file = options.fits / f"{'_'.join(key)}_{law}.pt"
                    models[law], seconds = fitted(data, kind, law, options.penalty, file)
                    rows.append(("", "", "fit", law, "seconds", seconds))
                rows += one(data, kind, models)
                path.parent.mkdir(parents=True, exist_ok=True)
                new = not path.is_file()
                with path.open("a", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    if new:
                        writer.writerow(FIELDS)
                    writer.writerows([*key, *row[:-1], f"{row[-1]:.5g}"] for row in rows)
                print(*key, f"{time.perf_counter() - start:.1f} s", flush=True)


def read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- tables -----------------------------------------------------------------------------------------------------------
Found = dict[tuple[str, ...], dict[int, float]]


def collected(path: Path, quantity: str) -> Found:
    """(data, dt, reward, beta, method, law) -> seed -> value; with the penalty that is shown of the step."""
    out: Found = defaultdict(dict)
    rows = read(path)
    shown = penalties(rows)
    for row in rows:
        if row["quantity"] == quantity and row["penalty"] == shown[row["dt"]]:
            key = tuple(row[k] for k in ("data", "dt", "reward", "beta", "method", "law"))
            out[key][int(row["seed"])] = float(row["value"])
    return out


def penalties(rows: list[dict[str, str]]) -> dict[str, str]:
    """dt -> the penalty with the most data sets, of several the first of PENALTIES."""
    sets: dict[str, dict[str, set[tuple[str, ...]]]] = defaultdict(lambda: {name: set() for name in PENALTIES})
    for row in rows:
        sets[row["dt"]][row["penalty"]].add((row["data"], row["seed"]))
    return {dt: max(PENALTIES, key=lambda name: len(of[name])) for dt, of in sets.items()}


def mean_of_logs(values: dict[int, float]) -> float:
    return math.exp(float(np.mean([math.log(v) for v in values.values()])))


def errors_table(found: Found, columns: list[tuple[str, str]]) -> list[str]:
    """Geometric means over seeds, in %, for every beta, the best method of each in bold."""
    lines = ["| data | dt | reward | " + " | ".join(NAMES[c] for c in columns) + " |"]
    lines.append("|---" * (3 + len(columns)) + "|")
    over: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for (kind, dt, name), betas in by_reward(found):
        cells: dict[tuple[str, str], list[str]] = {c: [] for c in columns}
        for beta in betas:
            means = {c: mean_of_logs(found[kind, dt, name, beta, *c]) for c in columns}
            best = min(means.values())
            for c, mean in means.items():
                over[dt][c].append(mean / best)
                cells[c].append(f"**{100 * mean:.2f}**" if mean <= best else f"{100 * mean:.2f}")
        joined = " | ".join(", ".join(cells[c]) for c in columns)
        lines.append(f"| {kind} | 1/{1 / float(dt):g} | {name} | {joined} |")
    for dt, of in over.items():
        worst = [f"{math.exp(np.mean(np.log(of[c]))):.2f}, {max(of[c]):.2f}" for c in columns]
        lines.append(f"| over the best: mean, worst | 1/{1 / float(dt):g} | | " + " | ".join(worst) + " |")
    return lines


def by_reward(found: Found) -> list[tuple[tuple[str, str, str], list[str]]]:
    """Data, dt and reward, each with its discount rates."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for *key, beta in rows_of(found):
        groups.setdefault(tuple(key), []).append(beta)  # type: ignore[arg-type]
    return list(groups.items())


def rows_of(found: Found) -> list[tuple[str, str, str, str]]:
    return sorted(
        {key[:4] for key in found if key[2]},  # type: ignore[misc]
        key=lambda k: (-float(k[1]), list(DATA).index(k[0]), k[2], float(k[3])),
    )


def ratios_table(found: Found, mine: tuple[str, str], others: list[tuple[str, str]]) -> list[str]:
    """Geometric means of the ratio of errors over seeds, plus or minus two standard errors, for every beta."""
    lines = [f"| data | dt | reward | {' | '.join(f'{NAMES[mine]} / {NAMES[o]}' for o in others)} |"]
    lines.append("|---" * (3 + len(others)) + "|")
    for (kind, dt, name), betas in by_reward(found):
        cells = [
            ", ".join(ratio(found[kind, dt, name, beta, *mine], found[kind, dt, name, beta, *other]) for beta in betas)
            for other in others
        ]
        lines.append(f"| {kind} | 1/{1 / float(dt):g} | {name} | " + " | ".join(cells) + " |")
    return lines


def ratio(one: dict[int, float], two: dict[int, float]) -> str:
    """Mean ratio of two errors seed by seed, and its interval of two standard errors where there are two seeds."""
    logs = [math.log(one[s] / two[s]) for s in sorted(set(one) & set(two))]
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return f"{math.exp(mean):.2f}"
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} ({math.exp(mean - 2 * error):.2f}–{math.exp(mean + 2 * error):.2f})"


def coverage_table(covered: Found, columns: list[tuple[str, str]]) -> list[str]:
    lines = ["| data | dt | seeds | " + " | ".join(NAMES[c] for c in columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for kind, dt in sorted(
        {key[:2] for key in covered if key[2]}, key=lambda k: (-float(k[1]), list(DATA).index(k[0]))
    ):
        cells, seeds = [], set()
        for method, law in columns:
            shares = [v for key, v in covered.items() if key[:2] == (kind, dt) and key[4:] == (method, law)]
            values = [x for share in shares for x in share.values()]
            seeds |= {s for share in shares for s in share}
            cells.append(f"{100 * np.mean(values):.0f}" if values else "")
        lines.append(f"| {kind} | 1/{1 / float(dt):g} | {len(seeds)} | " + " | ".join(cells) + " |")
    return lines


def tables(path: Path) -> str:
    found, covered = collected(path, "error"), collected(path, "coverage")
    first = [c for c in NAMES if c[1] != "frozen"]
    frozen = [("model", "frozen"), ("hybrid", "frozen"), ("corrected", "frozen"), ("lstd", "")]
    by_dt = penalties(read(path))
    used = ", ".join(f"`{name}` at dt = 1/{1 / float(dt):g}" for dt, name in by_dt.items())
    used = f"`{next(iter(by_dt.values()))}`" if len(set(by_dt.values())) == 1 else used
    seeds = len({seed for values in found.values() for seed in values})
    parts = [
        f"Penalty of the models' fits: {used}. {seeds} seeds. Cells have the values for beta = 0.1, 1, 10.",
        *("", "Relative L2 errors of V in %, geometric means over seeds, the best method in bold:"),
        *("", *errors_table(found, first), ""),
        "The same errors if the model is wrong, because it was fitted under the frozen law:",
        *("", *errors_table(found, frozen), ""),
        "Share of the cell, in %, on which 95 % bands contain the true V, over rewards, betas and seeds:",
        *("", *coverage_table(covered, first), ""),
    ]
    return "\n".join(parts)


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """A page with other text between two marks."""
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"


def summary(options: argparse.Namespace) -> None:
    made = tables(options.results)
    ratios = ratios_table(collected(options.results, "error"), ("corrected", "auto"), [("model", "auto"), ("lstd", "")])
    print(made, "Ratios of errors over seeds, in brackets the interval of two standard errors:", *ratios, sep="\n")
    if PAGE.is_file():
        PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["measure", "summary"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--fits", type=Path, default=HERE.parent / "outputs" / "values")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--dt", type=float, nargs="+", default=[1 / 40])
    parser.add_argument("--penalty", choices=PENALTIES, default=PENALTIES[0])
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    {"measure": measure, "summary": summary}[options.study](options)


if __name__ == "__main__":
    main()
