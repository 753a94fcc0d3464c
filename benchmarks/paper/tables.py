"""Tables of an experiment: errors per arm and size, bias of D_f, calibration of standard errors, value functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.collect import COEFFICIENTS, Record, Runs
from benchmarks.paper.replicas import shape_error, signed_error
from benchmarks.paper.statistics import LIMIT, calibration, outliers, pooled_rate
from benchmarks.paper.style import arm_order

if TYPE_CHECKING:
    import polars as pl

# Runs that agree in these are replicas of each other
GROUP = ("experiment", "alpha_true", "dt", "reach", "literal", "arm", "n_trajectories")
SIZELESS = GROUP[:-1]


def groups(runs: Runs, keys: tuple[str, ...] = GROUP) -> list[tuple[dict[str, Any], Runs]]:
    """Runs that agree in `keys` together, sorted by them (arms as in the figures)."""
    found = {tuple(row): None for row in runs.table.select(keys).rows()}
    arms = arm_order(runs.unique("arm"))

    def order(values: tuple[Any, ...]) -> list[Any]:
        named = zip(keys, values)
        return [(True, arms.index(v)) if key == "arm" else (v is not None, v or 0) for key, v in named]

    # a missing value sorts before all others and is never compared with them
    sorted_keys = sorted(found, key=lambda values: [(known, v if known else 0) for known, v in order(values)])
    return [(dict(zip(keys, values)), runs.where(**dict(zip(keys, values)))) for values in sorted_keys]


def errors(runs: Runs) -> pl.DataFrame:
    """Relative L2 errors of b, D_o, D_f: median, mean and worst over the replicas, and the number of outliers."""
    import polars as pl

    rows = []
    for key, own in groups(runs):
        row = dict(key) | {"replicas": len(own)}
        for name in COEFFICIENTS:
            values = np.array([record.number(f"error_{name}") for record in own])
            row |= {f"{name}_median": np.median(values), f"{name}_mean": values.mean(), f"{name}_worst": values.max()}
            row[f"{name}_outliers"] = int(outliers(values).sum())
        row["D_f_bias"], row["D_f_bias_std"] = _mean_and_error([signed_error(record, "D_f") for record in own])
        row["not_converged"] = sum(not record.metrics.get("converged", True) for record in own)
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def calibrations(runs: Runs, keys: tuple[str, ...] = GROUP) -> pl.DataFrame:
    """Standard errors against what happened, per group and coefficient.

    coverage: share of the cell (and replicas) where the truth is within the 95 % band. Constants also: mean, sd and
    Kolmogorov-Smirnov p-value of z = (estimate - truth) / standard error, which has one law whatever the size, so that
    `SIZELESS` may be given for `keys`.
    """
    import polars as pl

    rows = []
    for key, own in groups(runs, keys):
        tables = [record.curves() for record in own]
        constant = all(record.setting("coefficients.n_basis") == 1 for record in own)
        for name in COEFFICIENTS:
            if not all(f"{name}_std" in table and f"{name}_truth" in table for table in tables):
                continue
            z = [_z(table, name) for table in tables]
            coverage = float(np.mean([np.mean(np.abs(one) <= LIMIT) for one in z]))
            row: dict[str, Any] = dict(key) | {"coefficient": name, "runs": len(own), "coverage": coverage}
            result = calibration(np.array([one[0] for one in z])) if constant else None
            row |= {"z_mean": result.mean if result else None, "z_sd": result.sd if result else None}
            row["ks_p"] = result.p_value if result else None
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def rates(runs: Runs) -> pl.DataFrame:
    """Slope of log(rms error) over log(number of trajectories), pooled over b, D_o, D_f; maximum likelihood: -1/2."""
    import polars as pl

    rows = []
    for key, own in groups(runs, SIZELESS):
        sizes = own.unique("n_trajectories")
        by_size = {n: {r.setting("seed"): r for r in own.where(n_trajectories=n)} for n in sizes}
        seeds = sorted(set.intersection(*(set(found) for found in by_size.values()))) if by_size else []
        if len(sizes) < 2 or len(seeds) < 2:
            continue
        by = {n: np.array([[by_size[n][s].number(f"error_{c}") for c in COEFFICIENTS] for s in seeds]) for n in sizes}
        found = {"pooled": pooled_rate(by)}
        found |= {name: pooled_rate({n: e[:, i : i + 1] for n, e in by.items()}) for i, name in enumerate(COEFFICIENTS)}
        row = dict(key) | {"sizes": len(sizes), "replicas": len(seeds)}
        for name, rate in found.items():
            row |= {f"slope_{name}": rate.slope, f"slope_{name}_std": rate.std}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def values(runs: Runs) -> pl.DataFrame:
    """Relative L2 errors of V per arm and size, and in how many replicas an arm beats the one without correction."""
    import polars as pl

    rows = []
    for key, own in groups(Runs(tuple(r for r in runs if "error_V" in r.metrics))):
        e = np.array([record.number("error_V") for record in own])
        row = dict(key) | {"replicas": len(own), "V_median": np.median(e), "V_mean": e.mean(), "V_worst": e.max()}
        row["V_outliers"] = int(outliers(e).sum())
        shape = np.array([shape_error(record) for record in own])
        row |= {"V_shape_median": np.median(shape), "V_shape_worst": shape.max()}
        rivals = {r.setting("seed"): r for r in runs.where(**{**key, "arm": "none"})}
        pairs = [(r, rivals[r.setting("seed")]) for r in own if r.setting("seed") in rivals]
        different = key["arm"] != "none" and bool(pairs)
        row["better_than_none"] = (
            sum(a.number("error_V") < b.number("error_V") for a, b in pairs) if different else None
        )
        row["compared"] = len(pairs) if different else None
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _z(table: dict[str, Any], name: str) -> Any:
    """Standardised errors over the cell, its end point (the first one again) left out."""
    return ((table[name] - table[f"{name}_truth"]) / np.maximum(table[f"{name}_std"], 1e-300))[:-1]


def _mean_and_error(values: list[float]) -> tuple[float, float | None]:
    v = np.array(values)
    return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else None


def all_tables(runs: Runs) -> dict[str, pl.DataFrame]:
    """Every table that these runs have something for."""
    made = {"errors": errors, "calibration": calibrations, "rates": rates, "values": values}
    found = {name: make(_with_truth(runs)) for name, make in made.items()}
    return {name: table for name, table in found.items() if len(table)}


def _with_truth(runs: Runs) -> Runs:
    def known(record: Record) -> bool:
        return all(f"error_{name}" in record.metrics for name in COEFFICIENTS)

    return Runs(tuple(record for record in runs if known(record)), runs.studies)
