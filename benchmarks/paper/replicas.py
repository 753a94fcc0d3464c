"""Replicas of one setting: their curves on one grid, their errors per size."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.paper.collect import Runs
from levytorch.errors import InputError

Array = np.ndarray[Any, Any]


def need(runs: Runs, what: str, **wanted: Any) -> Runs:
    """The runs with these settings; a figure without them is refused."""
    chosen = runs.where(**wanted) if wanted else runs
    if not len(chosen):
        shown = ", ".join(f"{key}={value}" for key, value in wanted.items())
        raise InputError(f"{what} needs runs with {shown}, found none among {len(runs)}; give the runs it is made of.")
    return chosen


def alike(runs: Runs, *columns: str) -> Runs:
    """The same runs, when all of them agree in these columns: curves of different problems do not belong together."""
    for column in columns:
        values = runs.unique(column)
        if len(values) > 1:
            shown = ", ".join(map(str, values))
            raise InputError(f"the runs of this figure must have one {column}, found {shown}; give the runs of one.")
    return runs


def own(runs: Runs) -> Runs:
    """Runs of levytorch's own engines; all of them when every run is Algorithm B.1 to the letter."""
    return runs.where(literal=False) if len(runs.where(literal=False)) else runs


def largest(runs: Runs) -> int:
    """The largest number of trajectories at which every arm has been run (the largest of all, if there is none)."""
    per_arm = [set(runs.where(arm=arm).unique("n_trajectories")) for arm in runs.unique("arm")]
    common = set.intersection(*per_arm) if per_arm else set()
    return max(common or set().union(*per_arm))


def stack(runs: Runs, name: str) -> tuple[Array, Array, Array | None]:
    """x (m,), the curves of all runs (n, m) and the truth (m,) of a coefficient, or of V."""
    tables = [record.values() if name == "V" else record.curves() for record in runs]
    x = tables[0]["x"]
    for record, table in zip(runs, tables):
        if table["x"].shape != x.shape or not np.allclose(table["x"], x):
            raise InputError(f"all runs of a figure must have one cell, but {record.path} has another; draw it apart.")
    truth = tables[0].get(f"{name}_truth")
    return x, np.stack([table[name] for table in tables]), truth


def errors_by_size(runs: Runs, name: str) -> dict[int, Array]:
    """Relative L2 errors of a coefficient (or "V") per number of trajectories, in the order of the seeds."""
    table = runs.table.sort("seed")
    sizes = runs.unique("n_trajectories")
    return {n: table.filter(table["n_trajectories"] == n)[f"error_{name}"].drop_nulls().to_numpy() for n in sizes}


def signed_by_size(runs: Runs, name: str) -> dict[int, Array]:
    """(mean estimate - mean truth) / mean truth over the cell, per number of trajectories: errors that keep a sign."""
    out: dict[int, list[float]] = {n: [] for n in runs.unique("n_trajectories")}
    for record in runs:
        n = record.setting("data.n_trajectories")
        if n in out:
            out[n].append(signed_error(record, name))
    return {n: np.array(values) for n, values in out.items()}


def signed_error(record: Any, name: str) -> float:
    """Relative error, with sign, of the mean of a coefficient over the cell."""
    curves = record.curves()
    truth = curves.get(f"{name}_truth")
    if truth is None:
        return float("nan")
    reference = float(np.mean(truth[:-1]))  # the last point of the cell is the first one again
    return float(np.mean(curves[name][:-1]) - reference) / reference if reference else float("nan")


def shape_error(record: Any) -> float:
    """Relative L2 error of V after both curves have lost their means over the cell."""
    if not (record.path / "value.csv").is_file():
        return float("nan")
    values = record.values()
    if "V_truth" not in values:
        return float("nan")
    V, truth = (values[name][:-1] - values[name][:-1].mean() for name in ("V", "V_truth"))
    size = float(np.mean(truth**2))
    return float(np.sqrt(np.mean((V - truth) ** 2) / size)) if size else float("nan")
