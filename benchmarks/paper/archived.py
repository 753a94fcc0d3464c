"""Sections of the page that are no runs of train.py: Algorithm B.1 on unbiased data, the error bound, the TCF's rounds.

Their numbers are tables in benchmarks/results, written by `python -m benchmarks.paper literal` and `contraction`; the
error bound is what evaluate.py leaves in a study's directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper import contraction, literal, pictures
from benchmarks.paper.claim import Claim
from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.figures import bound_figure
from benchmarks.paper.statistics import DEFINITION, outliers
from benchmarks.paper.tables import FIT_BELOW, markdown, percent, read_rates
from levytorch.figures.base import COLORS, panels
from levytorch.policy.rates import CORRELATION
from levytorch.untrusted import read_json

RESULTS = Path(__file__).parents[1] / "results"
LITERAL, TCF, BOUND = (
    "Algorithm B.1 on unbiased data (Examples 4.2 and 4.3)",
    "Convergence of the TCF",
    "The error bound (section 4.2.2)",
)
Rows = list[dict[str, Any]]
_LITERAL = """\
What the paper's tail correction is motivated by: unbiased data with small alpha made some of its replicas outliers.
Here its own algorithm, with no tail removed and no TCF: Adam, batches of 100, a moving average over the second half
of the steps, random start, clamp. Law of a step: frozen. The accurate density is the table, the windowed one the
paper's quadrature (Algorithms E.1 to E.3, in the corrected form of `levytorch.law.windowed`), evaluated where |y| >
1e5; up to there their scores differ by less than 1e-7. Both see the same data, start and draws. Relative L2 errors,
median (worst) over the replicas; outliers of b/D_o/D_f/V: {definition}."""
_TCF = """\
The paper leaves open whether its iteration of coefficients and TCF converges, and how fast. One round fits theta at
a held TCF and takes the TCF which that theta asks for. Near the fixed point a round multiplies the distance by
kappa = ∇R · J⁻¹ (s_tail − s_core) ([method.md](method.md), where it is derived): it converges when kappa is below
1, and where nothing was removed beyond TRT kappa is a squared correlation and always is. *Measured*: the ratio of
the last two changes of the TCF in the library's own iteration; *derived*: the formula, from the density alone. (b,
D_o, D_f) = (5, 4, 3), law of a step: frozen (exact for constants); the data is the law itself, by quadrature, so
that there is no noise in either."""
_BOUND = """\
b = sin⁴ x, D_o = cos² x + |sin x|, D_f = sin 4x + 2, alpha = 0.3, beta = 0.1, V = cos³(2x); {trials:,} perturbed
problems for every eps from {low:g} to {high:g}, solved by collocation with {modes} modes; nothing is fitted. The
slopes are those of log(mean error) over log(eps) at eps = {used}; larger eps show where the dependence stops being
linear. C0 is max |V^ − V|, C2 the sum of the maxima of V^ − V and of its first two derivatives, the norm of Theorem
3.1 but for its Hölder part. *noise* is a Gaussian process of standard deviation eps, correlated over {share:g} of
the period (covariance exp(−d² / (2 l²)), l = {length:.3f}): its Hölder norms exist, and the level C does not depend
on the grid. *gaussian* and *wedge* are bumps of height eps; *white* draws every collocation point by itself, and
its level falls with the number of points."""


def sections(results: Path, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Title and blocks, none where there is no table."""
    file = results / literal.RESULTS.name
    yield LITERAL, _literal(literal.read_study(file)) if file.is_file() else []
    file = results / contraction.RESULTS.name
    yield TCF, _contraction(list(contraction.read_study(file)), out) if file.is_file() else []


def claims(results: Path) -> list[Claim]:
    """The paper's outliers, with its own algorithm."""
    file = results / literal.RESULTS.name
    found = []
    for (example, density), rows in _groups(literal.read_study(file) if file.is_file() else []):
        n, size = len(rows), int(rows[0]["trajectories"])
        how = (f"Algorithm B.1, {density} density", "frozen")
        far = _outliers(rows, *COEFFICIENTS)
        said = "unbiased data: some replicas are outliers"
        found.append(Claim(example, *how, said, f"{far} of {n} at {size:,} trajectories", far > 0))
        if example == "4.3":
            far = _outliers(rows, "V")
            said = "3 of 12 value functions from unbiased data are outliers (400,000 trajectories)"
            found.append(Claim("4.2.1", *how, said, f"{far} of {n} at {size:,}", far > 0))
    return found


def _groups(rows: list[dict[str, str]]) -> list[tuple[tuple[str, str], list[dict[str, str]]]]:
    keys = list(dict.fromkeys((row["example"], row["density"]) for row in rows))
    return [(key, [row for row in rows if (row["example"], row["density"]) == key]) for key in sorted(keys)]


def _values(rows: list[dict[str, str]], name: str) -> Any:
    return np.array([float(row[name]) for row in rows])


def _outliers(rows: list[dict[str, str]], *names: str) -> int:
    return int(np.any([outliers(_values(rows, name)) for name in names], axis=0).sum())


def _literal(rows: list[dict[str, str]]) -> list[str]:
    shown: Rows = []
    for (example, density), own in _groups(rows):
        row: dict[str, Any] = {"example": example, "density": density, "replicas": len(own)}
        row |= {"trajectories": int(own[0]["trajectories"]), "steps": int(own[0]["steps"])}
        for name in (*COEFFICIENTS, "V"):
            e = _values(own, name)
            row[name] = f"{percent(np.median(e))} ({percent(e.max())})"
        row["outliers"] = "/".join(str(_outliers(own, name)) for name in (*COEFFICIENTS, "V"))
        row["windowed, flagged"] = "–"
        if density == "windowed":
            row["windowed, flagged"] = f"{_values(own, 'far').sum():,.0f}, {_values(own, 'flagged').sum():,.0f}"
        shown.append(row | {"s per replica": f"{_values(own, 'seconds').mean():.0f}"})
    text = _LITERAL.format(definition=DEFINITION)
    return [text, _command("literal"), markdown(shown), _closeness(rows)]


def _closeness(rows: list[dict[str, str]]) -> str:
    """How far apart the two densities leave the same replica."""
    by = {key: {row["seed"]: row for row in own} for key, own in _groups(rows)}
    parts = []
    for example in dict.fromkeys(key[0] for key in by):
        one, other = by.get((example, "accurate"), {}), by.get((example, "windowed"), {})
        both = [seed for seed in one if seed in other]
        if both:
            apart = max(abs(float(one[s][name]) - float(other[s][name])) for s in both for name in COEFFICIENTS)
            parts.append(f"{apart:.0e} ({example})")
    if not parts:
        return ""
    told = ", ".join(parts)
    return f"The same replica's errors of b, D_o and D_f differ between the two densities by at most {told}."


def _command(name: str) -> str:
    return f"```bash\npython -m benchmarks.paper {name}\n```"


def _contraction(rows: list[dict[str, float]], out: Path) -> list[str]:
    shown: Rows = []
    for row in rows:
        learned = "learned" if row["learned"] else f"{row['alpha']:g}"
        TRT = "–" if math.isinf(row["TRT"]) else f"{row['TRT']:g}"
        cells = {"alpha": learned, "CT": f"{row['CT']:g}", "dt": f"1/{1 / row['dt']:.0f}", "TRT": TRT}
        cells |= {"dropped": f"{row['dropped']:.0%}".replace("%", " %"), "tail mass R": f"{row['R']:.3g}"}
        cells |= {"TCF": f"{row['TCF']:.3g}", "D_f": f"{row['D_f']:.4f}", "rounds to 1e-6": f"{row['rounds']:.0f}"}
        shown.append(cells | {"measured": f"{row['measured']:.6f}", "derived": f"{row['derived']:.6f}"})
    fig, _ = _figure(rows)
    caption = "Contraction of the TCF's iteration per round: dots measured, lines derived."
    return [_TCF, _command("contraction"), markdown(shown), *pictures.shown(fig, "contraction", caption, out)]


def _figure(rows: list[dict[str, float]]) -> Any:
    """kappa over alpha, CT, dt, and the share that was dropped, all else as in the paper's example."""
    base = {"alpha": 0.3, "CT": 8.0, "dt": 1 / 40, "dropped": 0.5, "TRT": 20.0, "learned": 0.0}
    names = {"alpha": r"$\alpha$", "CT": "CT", "dt": r"$\Delta t$", "dropped": "share of the tail dropped"}
    fig, axes = panels(None, 4, width=2.7, height=2.7)
    for ax, (name, label) in zip(axes, names.items()):
        others = {key: value for key, value in base.items() if key != name}
        own = [row for row in rows if all(math.isclose(row[key], value) for key, value in others.items())]
        own.sort(key=lambda row: row[name])
        x = [row[name] for row in own]
        ax.plot(x, [row["derived"] for row in own], color=COLORS["D_f"], linewidth=1.5, label="derived")
        ax.plot(x, [row["measured"] for row in own], "o", color="black", markersize=4, label="measured")
        if name in ("CT", "dt"):
            ax.set_xscale("log")
            ax.set_xticks(x, [f"{v:g}" if name == "CT" else f"1/{1 / v:.0f}" for v in x], minor=False)
            ax.minorticks_off()
        ax.set_xlabel(label)
        ax.set_ylim(0, 1)
        ax.grid(alpha=0.3, linewidth=0.5)
    axes[0].set_ylabel(r"contraction per round $\kappa$")
    axes[0].legend(frameon=False, fontsize="small")
    return fig, axes


def bound(runs: Runs, out: Path) -> list[str]:
    """The error of V against that of the coefficients, in both norms."""
    if not runs.studies:
        return []
    study = runs.studies[-1]
    facts = read_json(study / "rates.json")
    curves = read_rates(study)
    shown: Rows = []
    for kind in dict.fromkeys(curve.perturbation for curve in curves):
        own = {curve.norm: curve for curve in curves if curve.perturbation == kind}
        row: dict[str, Any] = {"perturbation": kind}
        for norm, curve in own.items():
            row[f"slope, {norm}"] = f"{curve.slope:.4f}"
            row[f"C = error / eps, {norm}"] = f"{curve.mean[0] / curve.eps[0]:.3g}"
        shown.append(row)
    eps, first = curves[0].eps, next(iter(facts.values()))
    used = ", ".join(f"{e:g}" for e in eps[eps <= FIT_BELOW * (1 + 1e-9)])
    text = _BOUND.format(
        trials=first["n_trials"], low=eps.min(), high=eps.max(), modes=first["n_modes"], used=used,
        share=CORRELATION, length=2 * math.pi * CORRELATION,
    )  # fmt: skip
    fig, _ = bound_figure(runs)
    caption = "Error of V against the size of the perturbation, in C0 (left) and C2 (right); mean and 5–95 %."
    command = "```bash\npython evaluate.py experiment=rate_study\n```"
    picture = pictures.shown(fig, "bound", caption, out, "Figure 8 of the paper, right. ")
    return [text, command, markdown(shown), *picture]
