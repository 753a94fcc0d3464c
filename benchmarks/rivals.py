"""Recovery beside the nonlocal Kramers-Moyal method (NKM), on the double wells its authors publish.

python benchmarks/rivals.py run --pairs 1000000 --seeds 6    every system, every method; rows that are in
                                                             benchmarks/results/rivals.csv already are not made again
python benchmarks/rivals.py summary                          medians over seeds; writes its section of docs/compare.md

dX = (x - x^3) dt + Sigma dW + sigma dL on (-2, 2), Sigma^2 = 2 + 2 x + x^2, sigma = 1 - x + x^2 or 1 / (1 + x^2 / 2),
L symmetric and a-stable with a = 1.5 or 1.05: pairs that start anywhere in (-2, 2) and end h = 1/1000 later, by one
step of Euler's rule, as published, or by twenty steps (--data sde). Methods: `levytorch`, recover(alpha="learn") as it
comes; `nkm`, and `nkm dense` without sparse regression (kramers_moyal.py); `km`, the classical estimator; `torchsde`, a
neural SDE, where that is installed.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from cramer_rao import least_errors
from kramers_moyal import Array, Estimate, kramers_moyal, nonlocal_kramers_moyal
from neural_sde import installed, neural_sde

from levytorch import Trajectories, recover
from levytorch.errors import LevytorchWarning

ENDS, H = (-2.0, 2.0), 1e-3
SIGMAS: dict[str, Callable[[Array], Array]] = {
    "1-x+x^2": lambda x: 1 - x + x**2,
    "1/(1+x^2/2)": lambda x: 1 / (1 + x**2 / 2),
}
SHOWN = {"1-x+x^2": "1 − x + x²", "1/(1+x^2/2)": "1 / (1 + x² / 2)"}
INDICES = (1.5, 1.05)
METHODS = ("levytorch", "nkm", "nkm dense", "km", "torchsde")
X = np.linspace(*ENDS, 401)
KEY = ("data", "sigma", "index", "pairs", "seed", "method")
SUBSTEPS = {"euler": 1, "sde": 20}
ERRORS = ("error_index", "error_sigma", "error_Sigma2", "error_b")
FIELDS = (*KEY, *ERRORS, "seconds", "converged", "note")
RESULTS = Path(__file__).parent / "results" / "rivals.csv"
PAGE = Path(__file__).parents[1] / "docs" / "compare.md"
BEGIN, END = "<!-- begin: benchmarks/rivals.py summary -->", "<!-- end: benchmarks/rivals.py summary -->"


def drift(x: Array) -> Array:
    return x - x**3


def Sigma2(x: Array) -> Array:
    return 2 + 2 * x + x**2


def stable(a: float, n: int, rng: np.random.Generator) -> Array:
    """Chambers, Mallows and Stuck: E exp(i k S) = exp(-|k|^a)."""
    u, w = rng.uniform(-np.pi / 2, np.pi / 2, n), rng.exponential(size=n)
    return np.sin(a * u) / np.cos(u) ** (1 / a) * (np.cos((1 - a) * u) / w) ** ((1 - a) / a)


def pairs_of(sigma: str, a: float, n: int, seed: int, substeps: int = 1) -> tuple[Array, Array]:
    """x and dx of n pairs; substeps: 1 is Euler's rule, more follow the equation (its drift exactly) along the step."""
    rng = np.random.default_rng([seed, INDICES.index(a), list(SIGMAS).index(sigma)])
    x = rng.uniform(*ENDS, n)
    y, h = x.copy(), H / substeps
    for _ in range(substeps):
        noise = np.sqrt(Sigma2(y) * h) * rng.standard_normal(n) + SIGMAS[sigma](y) * h ** (1 / a) * stable(a, n, rng)
        moved = y + drift(y) * h if substeps == 1 else y * np.exp(h) / np.sqrt(1 + y**2 * np.expm1(2 * h))
        y = moved + noise
    return x, y - x


def estimate(method: str, x: Array, dx: Array, seed: int) -> tuple[Estimate, str, str]:
    """What a method finds, whether it has converged, and what it said."""
    if method == "levytorch":
        return recovered(x, dx)
    if method == "km":
        return kramers_moyal(x, dx, H, ENDS), "", ""
    if method == "torchsde":
        return neural_sde(x, dx, H, seed), "", ""
    return nonlocal_kramers_moyal(x, dx, H, ENDS, sparse=method == "nkm"), "", ""


def recovered(x: Array, dx: Array) -> tuple[Estimate, str, str]:
    data = Trajectories.from_arrays(np.stack([x, x + dx], axis=1), dt=H).transitions()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LevytorchWarning)
        found = recover(data, alpha="learn", period=None)
    a = 2 * float(found.alpha)
    curves = Estimate(
        lambda at: found.b(at).numpy(),
        lambda at: 2 * found.D_o(at).numpy(),
        a,
        lambda at: found.D_f(at).numpy() ** (1 / a),
    )
    law = found.law
    said = [f"law {law}", f"{found.metrics['steps']} steps", *(str(one.message) for one in told)]
    return curves, str(int(found.converged)), "; ".join(said)


def errors(found: Estimate, sigma: str, a: float) -> Iterator[float | None]:
    """Of a itself; of the functions relative, in L2 on (-2, 2)."""
    yield None if found.index is None else abs(found.index - a)
    for got, true in ((found.sigma, SIGMAS[sigma]), (found.Sigma2, Sigma2), (found.b, drift)):
        yield None if got is None else float(np.linalg.norm(got(X) - true(X)) / np.linalg.norm(true(X)))


def run(options: argparse.Namespace) -> None:
    done = {tuple(row[k] for k in KEY) for row in read(options.results)}
    methods = [m for m in options.methods if m != "torchsde" or installed()]
    if len(methods) < len(options.methods):
        print("torchsde is not installed: no neural SDE in this run", flush=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first, options.first + options.seeds)
    for n, seed, sigma, a in itertools.product(options.pairs, seeds, SIGMAS, INDICES):
        keys = {m: (options.data, sigma, f"{a:g}", str(n), str(seed), m) for m in methods}
        if all(key in done for key in keys.values()):
            continue
        x, dx = pairs_of(sigma, a, n, seed, SUBSTEPS[options.data])
        for method, key in keys.items():
            if key not in done:
                append(options.results, key, one(method, x, dx, sigma, a, seed))


def one(method: str, x: Array, dx: Array, sigma: str, a: float, seed: int) -> list[str]:
    began = time.perf_counter()
    found, converged, note = estimate(method, x, dx, seed)
    seconds = time.perf_counter() - began
    cells = ["" if e is None else f"{e:.6g}" for e in errors(found, sigma, a)]
    return [*cells, f"{seconds:.2f}", converged, note]


def append(path: Path, key: tuple[str, ...], cells: list[str]) -> None:
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(FIELDS)
        writer.writerow([*key, *cells])
    print(" ".join((*key, *cells)), flush=True)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open())) if path.exists() else []


def summary(options: argparse.Namespace) -> None:
    text = section(read(options.results))
    print(text)
    page = PAGE.read_text() if PAGE.exists() else "# Side by side\n"
    if BEGIN in page:
        before, rest = page.split(BEGIN, 1)
        page = before + text + "\n" + rest.split(END, 1)[1].lstrip("\n")
    else:
        page = page.rstrip("\n") + "\n\n" + text
    PAGE.write_text(page)


INTRODUCTION = """## Recovery beside the nonlocal Kramers-Moyal method

The systems are the published examples of the nonlocal Kramers-Moyal method (NKM; Li and Duan, arXiv:2601.19223):
dX = (x − x³) dt + Σ dW + σ dL on (−2, 2) with Σ² = 2 + 2x + x², L symmetric and a-stable (a = 2 alpha). The pairs are
h = 1/1000 apart and start uniformly in (−2, 2).

- **Data.** `euler` is one step of Euler's rule, as published: coefficients do not change within it. `sde` has twenty
  substeps, which follow the equation.
- **levytorch** is `recover(data, alpha="learn", period=None)` with default settings. It detects which of the two kinds
  the data are ([method.md](method.md#the-simulated-law)) and chooses the smoothness of b by the evidence.
- **NKM** is given that b is a cubic. It is [re-implemented](../benchmarks/kramers_moyal.py) from its formulas with its
  authors' choices, with and without (dense) its sparse regression on polynomials, which include the true b and Σ².

Cells have the medians over seeds for levytorch, NKM and NKM dense: the absolute error of a, the relative L2 errors in %
on (−2, 2), and the seconds on a busy machine with two cores. `benchmarks/results/rivals.csv` also has 100,000 and
10,000,000 pairs. `python benchmarks/rivals.py run` makes the rows, `python benchmarks/rivals.py summary` this section.
"""
SHOWN_PAIRS = 1_000_000  # in the first table; the other tables and the CSV file have all sizes
SIDE_BY_SIDE = ("levytorch", "nkm", "nkm dense")


def section(rows: list[dict[str, str]]) -> str:
    """The tables, between their markers, for all systems that levytorch has been run on."""
    lines = [
        BEGIN,
        INTRODUCTION,
        "| data | pairs | σ | a | seeds | error of a | σ | Σ² | b | seconds | converged |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    every = grouped(rows)
    groups = {key: own for key, own in every.items() if (*key[:4], "levytorch") in every}
    systems = sorted(
        {key[:4] for key in groups if int(key[1]) == SHOWN_PAIRS},
        key=lambda k: (k[0], int(k[1]), list(SIGMAS).index(k[2]), -float(k[3])),
    )
    for key in systems:
        data, n, sigma, a = key
        shown = [groups.get((*key, method), []) for method in SIDE_BY_SIDE]
        cells = [", ".join(number(median(own, name), name) for own in shown) for name in (*ERRORS, "seconds")]
        good = [row["converged"] for row in shown[0]]
        converged = f"{sum(map(int, good))} of {len(good)}"
        head = [data, f"{int(n):,}", SHOWN[sigma], a, str(len(shown[0]))]
        lines.append("| " + " | ".join([*head, *cells, converged]) + " |")
    return "\n".join([*lines, "", others(groups), "", *ratios(groups), "", *bounds(groups), "", END, ""])


def number(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    if name == "error_index":
        return f"{value:.4f}"
    return f"{value:.2g}" if name == "seconds" else f"{100 * value:.3g}"


def others(groups: Rows) -> str:
    """The ranges of the methods that have no column of their own."""
    parts = []
    for method, name in (
        ("km", "The classical Kramers-Moyal estimator from binned moments"),
        ("torchsde", "A neural SDE (torchsde; `euler`, a million pairs, one seed)"),
    ):
        found = {e: [median(own, e) for key, own in groups.items() if key[4] == method] for e in ERRORS[2:]}
        if not all(found.values()):
            continue
        low, high = ({e: pick(v) for e, v in found.items()} for pick in (min, max))  # type: ignore[type-var]
        text = (f"{100 * low[e]:.3g} to {upper(high[e])} % in {sign}" for e, sign in zip(ERRORS[2:], ("Σ²", "b")))  # type: ignore[operator]
        parts.append(f"{name} has errors of {' and '.join(text)}.")
    return " ".join(parts)


def upper(error: float | None) -> str:
    assert error is not None
    return "more than 1000" if error > 10 else f"{100 * error:.3g}"


Rows = dict[tuple[str, ...], list[dict[str, str]]]


def grouped(rows: list[dict[str, str]]) -> Rows:
    """By all but the seed."""
    groups: Rows = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in ("data", "pairs", "sigma", "index", "method")), []).append(row)
    return groups


def ratios(groups: Rows) -> list[str]:
    """Errors of levytorch over those of NKM, medians over the same seeds, as a geometric mean over all systems."""
    lines = [
        "Errors of levytorch over those of NKM, NKM dense (medians over the same seeds, geometric mean over systems):",
        "",
        "| data | pairs | a | σ | Σ² | b |",
        "|---|---|---|---|---|---|",
    ]
    for data, n in sorted({key[:2] for key in groups}, key=lambda k: (k[0], int(k[1]))):
        columns = []
        for method in ("nkm", "nkm dense"):
            logs = []
            for key, mine in groups.items():
                theirs = groups.get((*key[:4], method))
                if (*key[:2], key[4]) == (data, n, "levytorch") and theirs is not None:
                    shared = {row["seed"] for row in mine} & {row["seed"] for row in theirs}
                    one, two = ([row for row in rows if row["seed"] in shared] for rows in (mine, theirs))
                    logs.append([np.log(median(one, e) / median(two, e)) for e in ERRORS])
            if len(logs) == len(SIGMAS) * len(INDICES):
                columns.append([f"{np.exp(v):.2f}" for v in np.mean(logs, axis=0)])
        if columns:
            lines.append(f"| {data} | {int(n):,} | " + " | ".join(", ".join(cells) for cells in zip(*columns)) + " |")
    return lines


BOUNDS = """\
The Cramér-Rao bound ([cramer_rao.py](../benchmarks/cramer_rao.py)) is the smallest possible error of an unbiased
estimate from pairs made by Euler's rule, if it is known that b and Σ² are cubics and σ a quartic (NKM assumes this).
Cells have the root mean square errors over the seeds as multiples of that bound, for levytorch, NKM and NKM dense; in
brackets the same for levytorch and the bound of eight polynomials for each function, which does not assume the cubics.
By chance alone (95 %, six seeds) a method at the bound has 0.45 to 1.55 for a, and 0.7 to 1.3 for b."""
CLASSES = ((4, 4, 5), (8, 8, 8))  # functions of b, Sigma^2 and sigma
FEW = 6  # seeds: fewer say little about a mean square


def bounds(groups: Rows) -> list[str]:
    """Errors over the Cramér-Rao bound; of steps by Euler's rule, whose law is that of the density."""
    lines = [
        *BOUNDS.splitlines(),
        "",
        "| pairs | σ | a | seeds | bound of a, σ, Σ², b | a | σ | Σ² | b |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    systems = sorted(
        {key[1:4] for key, own in groups.items() if (key[0], key[4]) == ("euler", "levytorch") and len(own) >= FEW},
        key=lambda k: (int(k[0]), list(SIGMAS).index(k[1]), -float(k[2])),
    )
    for n, sigma, a in systems:
        least, wide = (
            least_errors(drift, Sigma2, SIGMAS[sigma], float(a), H, int(n), ENDS, sizes) for sizes in CLASSES
        )
        own = [groups[("euler", n, sigma, a, method)] for method in METHODS[:3]]
        bound = ", ".join([f"{least[0]:.4f}", *(f"{100 * v:.3g} %" for v in least[1:])])
        cells = []
        for k, name in enumerate(ERRORS):
            rms = [float(np.sqrt(np.mean([float(row[name]) ** 2 for row in rows]))) for rows in own]
            ratios = [f"{v / least[k]:.2f}" for v in rms]
            cells.append(f"{ratios[0]} ({rms[0] / wide[k]:.2f}), {', '.join(ratios[1:])}")
        head = [f"{int(n):,}", SHOWN[sigma], a, str(len(own[0])), bound]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    return lines


def median(rows: list[dict[str, str]], name: str) -> float | None:
    values = [float(row[name]) for row in rows if row[name]]
    return float(np.median(values)) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["run", "summary"])
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--data", choices=list(SUBSTEPS), default="euler", help="one step of Euler's rule, or twenty")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    {"run": run, "summary": summary}[options.part](options)


if __name__ == "__main__":
    main()
