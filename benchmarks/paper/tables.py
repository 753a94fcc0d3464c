"""Tables of an experiment: errors per arm and size, bias of D_f, calibration of standard errors, value functions.

Shown as Markdown, readable in a terminal as well: shares as per cent, columns that say nothing left out.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.paper import prices
from benchmarks.paper.collect import COEFFICIENTS, Array, Record, Runs, outliers
from benchmarks.paper.rates import FIT_BELOW
from benchmarks.paper.style import arm_label, arm_order
from levytorch.untrusted import read_csv

if TYPE_CHECKING:
    import polars as pl

LIMIT = 1.959963984540054  # 95 % of a normal law lies within so many sd
# runs that agree in these are replicas of each other
GROUP = ("experiment", "alpha_true", "dt", "reach", "literal", "arm", "n_trajectories")
SIZELESS = GROUP[:-1]
KEEP = ("arm", "n_trajectories", "coefficient", "engine", "law", "holds")  # columns that tables of runs always show
_SHARES = ("_median", "_mean", "_worst", "_bias", "_bias_std", "coverage")
_NAMES = {"n_trajectories": "trajectories", "alpha_true": "alpha", "literal": "engine"}


def frame(rows: Sequence[Any]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(list(rows), infer_schema_length=None)


def groups(runs: Runs, keys: tuple[str, ...] = GROUP) -> list[tuple[dict[str, Any], Runs]]:
    """Runs that agree in `keys` together, sorted by them (arms as in the figures, a missing value first)."""
    arms = arm_order(runs.unique("arm"))

    def order(values: tuple[Any, ...]) -> list[Any]:
        known = [arms.index(value) if key == "arm" else value for key, value in zip(keys, values)]
        return [(value is not None, 0 if value is None else value) for value in known]

    found = sorted(dict.fromkeys(runs.table.select(keys).rows()), key=order)
    return [(dict(zip(keys, values)), runs.where(**dict(zip(keys, values)))) for values in found]


def errors(runs: Runs) -> pl.DataFrame:
    """Relative L2 errors of b, D_o, D_f: median, mean and worst over the replicas, and the number of outliers."""
    rows = []
    for key, own in groups(runs):
        row = dict(key) | {"replicas": len(own)}
        for name in COEFFICIENTS:
            row |= _spread(name, own.errors(name))
        bias = np.array([run.signed_error("D_f") for run in own])
        row["D_f_bias"] = float(bias.mean())
        row["D_f_bias_std"] = float(bias.std(ddof=1) / np.sqrt(len(bias))) if len(bias) > 1 else None
        row["not_converged"] = sum(not run.metrics.get("converged", True) for run in own)
        rows.append(row)
    return frame(rows)


def _spread(name: str, e: Array) -> dict[str, Any]:
    out = {f"{name}_median": np.median(e), f"{name}_mean": e.mean(), f"{name}_worst": e.max()}
    return out | {f"{name}_outliers": int(outliers(e).sum())}


class Calibration(NamedTuple):
    """Standardised errors (estimate - truth) / standard error beside the standard normal."""

    n: int
    mean: float
    sd: float
    coverage: float
    p_value: float


def calibration(z: Array) -> Calibration:
    """Mean, sd, share within 1.96, and the Kolmogorov-Smirnov p-value against N(0, 1)."""
    from scipy.stats import kstest

    z = np.asarray(z, dtype=float)
    z = z[np.isfinite(z)]
    if z.size < 2:
        nan = float("nan")
        return Calibration(int(z.size), nan, nan, nan, nan)
    coverage = float(np.mean(np.abs(z) <= LIMIT))
    return Calibration(z.size, float(z.mean()), float(z.std(ddof=1)), coverage, float(kstest(z, "norm").pvalue))


def calibrations(runs: Runs, keys: tuple[str, ...] = GROUP) -> pl.DataFrame:
    """Standard errors against what happened, per group and coefficient.

    coverage: share of the cell (and replicas) where the truth is within the 95 % band. Constants also: mean, sd and
    Kolmogorov-Smirnov p-value of z = (estimate - truth) / standard error, which has one law whatever the size, so that
    `SIZELESS` may be given for `keys`.
    """
    rows = []
    for key, own in groups(runs, keys):
        constant = all(run.setting("coefficients.n_basis") == 1 for run in own)
        for name in COEFFICIENTS:
            if not all(f"{name}_std" in run.curves and f"{name}_truth" in run.curves for run in own):
                continue
            z = [_z(run.curves, name) for run in own]
            coverage = float(np.mean([np.mean(np.abs(one) <= LIMIT) for one in z]))
            row: dict[str, Any] = dict(key) | {"coefficient": name, "runs": len(own), "coverage": coverage}
            result = calibration(np.array([one[0] for one in z])) if constant else None
            row |= {"z_mean": result.mean if result else None, "z_sd": result.sd if result else None}
            rows.append(row | {"ks_p": result.p_value if result else None})
    return frame(rows)


def _z(curves: dict[str, Any], name: str) -> Any:
    """Standardised errors over the cell, its end point (the first one again) left out."""
    return ((curves[name] - curves[f"{name}_truth"]) / np.maximum(curves[f"{name}_std"], 1e-300))[:-1]


class Rate(NamedTuple):
    """Slope of log(rms error) over log(size), with its standard error."""

    slope: float
    std: float


def pooled_rate(errors: Mapping[int, Array], *, draws: int = 1000, seed: int = 0) -> Rate:
    """One slope for several coefficients, each with a level of its own.

    Args:
        errors: per size an array (replicas, coefficients); replica i is the same seed at every size.
        draws: of the bootstrap over replicas, which keeps what sizes and coefficients of one seed share.
    """
    sizes = sorted(errors)
    stacked = np.stack([np.asarray(errors[n], dtype=float) for n in sizes])  # (sizes, replicas, coefficients)
    u = np.log(sizes) - np.mean(np.log(sizes))

    def slope(chosen: Array) -> float:
        level = 0.5 * np.log(np.mean(stacked[:, chosen] ** 2, axis=1))  # (sizes, coefficients)
        return float(np.mean(u @ level) / (u @ u))

    replicas = stacked.shape[1]
    generator = np.random.default_rng(seed)
    samples = [slope(chosen) for chosen in generator.integers(replicas, size=(draws, replicas))]
    return Rate(slope(np.arange(replicas)), float(np.std(samples, ddof=1)))


def rates(runs: Runs) -> pl.DataFrame:
    """Slope of log(rms error) over log(number of trajectories), pooled over b, D_o, D_f; maximum likelihood: -1/2."""
    rows = []
    for key, own in groups(runs, SIZELESS):
        sizes = own.unique("n_trajectories")
        by_size = {n: {run.setting("seed"): run for run in own.where(n_trajectories=n)} for n in sizes}
        seeds = sorted(set.intersection(*map(set, by_size.values()))) if by_size else []
        if len(sizes) < 2 or len(seeds) < 2:
            continue
        by = {n: np.array([[by_size[n][s].number(f"error_{c}") for c in COEFFICIENTS] for s in seeds]) for n in sizes}
        found = {"pooled": pooled_rate(by)}
        found |= {name: pooled_rate({n: e[:, i : i + 1] for n, e in by.items()}) for i, name in enumerate(COEFFICIENTS)}
        row = dict(key) | {"sizes": len(sizes), "replicas": len(seeds)}
        for name, rate in found.items():
            row |= {f"slope_{name}": rate.slope, f"slope_{name}_std": rate.std}
        rows.append(row)
    return frame(rows)


def values(runs: Runs) -> pl.DataFrame:
    """Relative L2 errors of V per arm and size, and in how many replicas an arm beats the one without correction."""
    rows = []
    for key, own in groups(Runs(tuple(run for run in runs if "error_V" in run.metrics))):
        shape = np.array([run.shape_error() for run in own])
        row = dict(key) | {"replicas": len(own)} | _spread("V", own.errors("V"))
        row |= {"V_shape_median": np.median(shape), "V_shape_worst": shape.max()}
        rivals = {run.setting("seed"): run for run in runs.where(**{**key, "arm": "none"})}
        pairs = [(run, rivals[run.setting("seed")]) for run in own if run.setting("seed") in rivals]
        better = sum(one.number("error_V") < other.number("error_V") for one, other in pairs)
        compared = key["arm"] != "none" and bool(pairs)
        row |= {"better_than_none": better if compared else None, "compared": len(pairs) if compared else None}
        rows.append(row)
    return frame(rows)


def price_rows(runs: Runs) -> pl.DataFrame:
    """Section 4.3: every estimate of V from prices beside the paper's."""
    return frame(
        [{"experiment": panel.experiment} | row for panel in prices.panels(runs) for row in prices.rows(panel)]
    )


def all_tables(runs: Runs) -> dict[str, pl.DataFrame]:
    """Every table that these runs have something for."""

    def known(run: Record) -> bool:
        return all(f"error_{name}" in run.metrics for name in COEFFICIENTS)

    with_truth = Runs(tuple(run for run in runs if known(run)), runs.studies)
    made = {"errors": errors, "calibration": calibrations, "rates": rates, "values": values}
    found = {name: make(with_truth) for name, make in made.items()} | {"prices": price_rows(runs)}
    return {name: table for name, table in found.items() if len(table)}


class RateCurve(NamedTuple):
    """Mean error and its 5 % and 95 % quantiles per eps, for one kind of perturbation and one norm."""

    perturbation: str
    norm: str
    eps: Array
    mean: Array
    low: Array
    high: Array

    @property
    def slope(self) -> float:
        """Least-squares slope of log(mean error) over log(eps), eps <= `FIT_BELOW`."""
        small = self.eps <= FIT_BELOW * (1 + 1e-9)
        if small.sum() < 2:
            return math.nan
        return float(np.polyfit(np.log(self.eps[small]), np.log(self.mean[small]), 1)[0])


def read_rates(directory: Path) -> list[RateCurve]:
    """All curves of the error-bound study that evaluate.py wrote, in the order of the file."""
    texts, numbers = ("perturbation", "norm"), ("eps", "mean", "q05", "q95")
    table = read_csv(directory / "rates.csv", (*texts, *numbers), texts)
    curves = []
    for perturbation, norm in dict.fromkeys(zip(table["perturbation"], table["norm"])):
        own = np.flatnonzero((table["perturbation"] == perturbation) & (table["norm"] == norm))
        own = own[np.argsort(table["eps"][own])]
        curves.append(RateCurve(str(perturbation), str(norm), *(table[name][own] for name in numbers)))
    return curves


def markdown(table: pl.DataFrame | Sequence[Any], *, keep: tuple[str, ...] | None = None) -> str:
    """A Markdown table; with `keep`, other columns of one value only are dropped, and empty ones always."""
    table = frame(table) if isinstance(table, Sequence) else table
    columns = list(table.columns)
    if keep is not None and len(table) > 1:
        columns = [name for name in columns if name in keep or table[name].n_unique() > 1]
        columns = [name for name in columns if table[name].null_count() < len(table)]
    lines = ["| " + " | ".join(_NAMES.get(name, name.replace("_", " ")) for name in columns) + " |"]
    lines[0] = lines[0].replace("D o", "D_o").replace("D f", "D_f")
    right = [table[name].dtype.is_numeric() for name in columns]
    lines.append("|" + "|".join("---:" if numeric else "---" for numeric in right) + "|")
    rows = table.select(columns).rows(named=True)
    lines += ["| " + " | ".join(_cell(name, value) for name, value in row.items()) + " |" for row in rows]
    return "\n".join(lines)


def _cell(column: str, value: Any) -> str:
    """A value as text: what the column means decides how."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if column == "arm":
        return arm_label(str(value))
    if column == "literal":
        return "Algorithm B.1" if value else "levytorch"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if column.endswith(_SHARES) and not column.startswith("z_"):
            return percent(value, signed=column.endswith("_bias"))
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def percent(share: float, *, signed: bool = False) -> str:
    """Three significant digits at most, two decimals at most."""
    value = 100 * share
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:{'+' if signed else ''}.{digits}f} %"


def cells(line: str) -> list[str]:
    """Of one line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def largest(table: str) -> str:
    """A Markdown table with the largest number of trajectories of each group only."""
    head, line, *rows = table.splitlines()
    names = cells(head)
    if "trajectories" not in names:
        return table
    size = names.index("trajectories")
    group = [k for k, name in enumerate(names) if name in ("alpha", "engine", "reach", "arm")]
    found: dict[tuple[str, ...], str] = {}

    def number(row: str) -> int:
        return int(cells(row)[size].replace(",", ""))

    for row in rows:
        key = tuple(cells(row)[k] for k in group)
        found[key] = max(found.get(key, row), row, key=number)
    return "\n".join([head, line, *found.values()])


def default_reach(table: str) -> str:
    """A Markdown table without the rows of ranges other than the default one, where it has such rows."""
    head, line, *rows = table.splitlines()
    names = cells(head)
    if "reach" not in names:
        return table
    kept = [row for row in rows if cells(row)[names.index("reach")] == "–"]
    return "\n".join([head, line, *kept]) if kept else table


def as_csv(table: str) -> str:
    """A Markdown table as CSV, with the same text in its cells."""
    text = io.StringIO()
    head, _, *rows = table.splitlines()
    csv.writer(text, lineterminator="\n").writerows(map(cells, (head, *rows)))
    return text.getvalue()
