"""comparison.html: the runs of a sweep beside each other. Errors where the truth is known, likelihood, curves, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.errors import InputError
from levytorch.figures import base
from levytorch.figures.comparison import overlaid
from levytorch.files import write_csv
from levytorch.runs.page import code, document, heading, html_table, paragraph, picture
from levytorch.runs.reading import Run, read_run, run_directories

NAME = "comparison.html"
MOST = 24  # runs that can be distinguished in one figure
ERRORS = {"b": "error_b", "D_o": "error_D_o", "D_f": "error_D_f", "V": "error_V"}


@dataclass(frozen=True)
class Row:
    """One run. held_out: log-likelihood per pair that it was not fitted to, behind it the standard error of the
    difference to the best run where both were judged on the same blocks of data; None: not known.
    """

    label: str
    metrics: Mapping[str, Any]
    held_out: float | None
    difference_std: float | None = None


def write_comparison(directory: Path) -> Path | None:
    """The page of all finished runs of a sweep, comparison.csv beside it; None where there are not two of them."""
    runs = []
    for path in run_directories(directory):
        try:
            runs.append(read_run(path))
        except InputError:
            continue  # a run that has failed has said why
    if not 2 <= len(runs) <= MOST:
        return None
    names = labels([_overrides(run) for run in runs])
    rows = [_row(name, run, runs) for name, run in zip(names, runs)]
    best = max((row.held_out for row in rows if row.held_out is not None), default=None)
    ordered = sorted(zip(rows, runs), key=lambda pair: -np.inf if pair[0].held_out is None else -pair[0].held_out)
    parts = [
        paragraph(f"{len(runs)} runs of {directory}, the largest held-out likelihood first."),
        html_table(*_table([row for row, _ in ordered], best)),
        paragraph(_note(rows)),
    ]
    curves = {row.label: run.curves for row, run in ordered if _in_one_dimension(run)}
    if len(curves) > 1:
        periods = {run.recovery.period for _, run in ordered}
        figure, _ = overlaid(curves, period=periods.pop() if len(periods) == 1 else None)
        drawn = base.draw(figure)
        base.write(drawn, figure, directory / "comparison", ("png",))
        text = "The coefficients of all runs with their 95 % bands; dashed: the truth, if it is known."
        parts += [heading("Coefficients"), picture(base.svg_parts(figure), "comparison", text)]
    places = "\n".join(f"{row.label}: {run.path}" for row, run in ordered)
    parts += [heading("The runs themselves"), code(places)]
    _write_csv(directory / "comparison.csv", [row for row, _ in ordered])
    return document(directory / NAME, "levytorch comparison", *parts)


def labels(overrides: Sequence[Sequence[str]]) -> list[str]:
    """What tells every run from the others: those of its settings that not all have."""
    shared = set.intersection(*(set(own) for own in overrides))
    differing = [[o for o in run if o not in shared] for run in overrides]
    keys = {o.partition("=")[0] for run in differing for o in run}
    if len(keys) == 1:  # one setting was swept: its values say it all
        differing = [[o.partition("=")[2] for o in run] for run in differing]
    own = [", ".join(run) or "defaults" for run in differing]
    return [name if own.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(own)]


def _overrides(run: Run) -> list[str]:
    import yaml  # type: ignore[import-untyped]

    file = run.path / ".hydra" / "overrides.yaml"
    stored = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else []
    return [str(override) for override in stored or []]


def _in_one_dimension(run: Run) -> bool:
    return (run.path / "curves.csv").is_file() and "b" in run.curves and "x" in run.curves


def _row(label: str, run: Run, runs: Sequence[Run]) -> Row:
    metrics = run.metrics
    blocks = metrics.get("held_out")
    if isinstance(blocks, Mapping):
        return Row(label, metrics, float(blocks["per_pair"]), _paired(run, runs))
    val = metrics.get("val/nll")
    return Row(label, metrics, -float(val) if isinstance(val, int | float) else None)


def _paired(run: Run, runs: Sequence[Run]) -> float | None:
    """The standard error of the difference per pair to the best run, over the blocks that both were judged on."""
    judged = [one.metrics["held_out"] for one in runs if isinstance(one.metrics.get("held_out"), Mapping)]
    best, own = max(judged, key=lambda one: one["per_pair"]), run.metrics["held_out"]
    if own is best or own["pairs"] != best["pairs"]:
        return None
    pairs = np.asarray(own["pairs"])
    difference = np.asarray(own["blocks"]) - np.asarray(best["blocks"])
    rest = difference - pairs * difference.sum() / pairs.sum()
    n = int((pairs > 0).sum())
    return float(np.sqrt(n / max(n - 1, 1) * np.square(rest).sum()) / pairs.sum())


def _table(rows: Sequence[Row], best: float | None) -> tuple[list[str], list[list[str]]]:
    known = {name: key for name, key in ERRORS.items() if any(key in row.metrics for row in rows)}
    head = ["run", *(f"error {name}" for name in known), "held-out log p", "difference", "seconds", "law", "engine"]
    body = []
    for row in rows:
        m = row.metrics
        errors = [f"{100 * m[key]:.1f} %" if isinstance(m.get(key), int | float) else "-" for key in known.values()]
        held = "-" if row.held_out is None else f"{row.held_out:.5f}"
        apart = "-"
        if row.held_out is not None and best is not None:
            apart = "best" if row.held_out == best else f"{row.held_out - best:.5f}"
            apart += "" if row.difference_std is None else f" ± {row.difference_std:.5f}"
        engine = str(m.get("engine", "-")) + ("" if m.get("converged") else ", not converged")
        seconds = m.get("seconds_fit", m.get("seconds", 0.0))
        body.append([row.label, *errors, held, apart, f"{seconds:.1f}", str(m.get("law", "-")), engine])
    return head, body


def _note(rows: Sequence[Row]) -> str:
    text = "Errors are relative, in L2. Log p is per held-out pair, under a fit adjusted to the other folds; "
    text += "differences to the best run have their standard errors. Seconds are those of the fit."
    if any(row.held_out is None for row in rows):
        text += " A dash: not known; batch.validation=0.2 holds out trajectories for every engine."
    return text


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    columns: dict[str, list[Any]] = {"run": [row.label for row in rows]}
    for name, key in ERRORS.items():
        if any(key in row.metrics for row in rows):
            columns[f"error_{name}"] = [row.metrics.get(key, float("nan")) for row in rows]
    columns["held_out_per_pair"] = [float("nan") if row.held_out is None else row.held_out for row in rows]
    columns["seconds"] = [row.metrics.get("seconds_fit", float("nan")) for row in rows]
    write_csv(path, columns)
