"""What an evaluation leaves behind: figures (PNG, PDF, TensorBoard), metrics.json, curves.csv, values/*.pt, a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from levytorch.atomic import check_place, move_directory
from levytorch.errors import InputError
from levytorch.figures import save
from levytorch.figures.values import error_boxes, rates, value_bands
from levytorch.policy.rates import RateStudy
from levytorch.runs.directories import MARKER
from levytorch.runs.evaluation import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_SAMPLES = 5000  # the paper's number of orange dots


def check_output(out: str | Path) -> Path:
    """The directory asked for, which must be empty or absent: earlier results are never written over."""
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"out={target} must be a new or empty directory, but something is there; choose another name.")
    return target


def planned_output(out: str | Path | None) -> Path:
    """Where the results go: `out`, or outputs/<date>/<time>-evaluation. Nothing is made yet."""
    if out is not None:
        target = check_output(out)
    else:
        now = datetime.now()
        target = Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-evaluation"
    check_place(target)
    return target


def publish(written: Path, target: Path) -> Path:
    """Put a complete directory in its place, or beside what another evaluation has put there in the meantime."""
    for number in range(1000):
        place = target.with_name(target.name + (f"-{number}" if number else ""))
        try:
            move_directory(written, place)
        except FileExistsError:
            continue
        return place
    raise InputError(f"A free name was expected beside {target}, but a thousand are taken; give out=.")


def write_marker(out: Path, settings: Mapping[str, Any]) -> None:
    """The resolved settings, first of all files: it also tells that this directory is an evaluation."""
    import yaml  # type: ignore[import-untyped]

    (out / MARKER).write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")


def write_evaluation(result: Evaluation, out: Path, *, support: tuple[float, float] | None = None) -> dict[str, Figure]:
    """Figures, numbers and value functions into `out`; returns the figures for TensorBoard."""
    _write_json(out / "metrics.json", result.metrics)
    _write_csv(out / "curves.csv", result.curves())
    for number, V in enumerate(result.values):
        V.save(out / "values" / f"run{number}.pt")
    reference = result.reference
    samples = None
    if reference is not None and reference.values is not None:
        few = torch.randperm(len(reference.values.x), generator=torch.Generator().manual_seed(0))[:_SHOWN_SAMPLES]
        x, V_empirical = reference.values.x[few], reference.values.V[few]
        inside = (x >= result.interval[0]) & (x <= result.interval[1])
        samples = (x[inside].numpy(), V_empirical[inside].numpy())
    x = result.x
    figures: dict[str, Figure] = {}
    figures["value"], _ = value_bands(
        x.numpy(),
        result.bands(),
        reference=None if reference is None else reference.curve(x).numpy(),
        reference_label="reference" if reference is None else reference.label,
        baselines={name: curve(x).numpy() for name, curve in result.baselines.items()} if samples is not None else None,
        samples=samples,
        support=support,
    )
    # in the order of the bands, so that a group has one colour in both figures
    errors = {
        label: [run["relative_l2"] for run in result.metrics["runs"] if run["group"] == label]
        for label in result.metrics["groups"]
        if reference is not None
    }
    if sum(map(len, errors.values())) > 1:
        shown = {} if samples is None else result.metrics["baselines"]
        figures["errors"], _ = error_boxes(errors, baselines=shown)
    return _save(figures, out)


def write_rates(studies: Sequence[RateStudy], out: Path) -> dict[str, Figure]:
    """The error-bound study: rates.csv (mean and quantiles per eps), slopes in rates.json, the log-log figure."""
    columns: dict[str, list[Any]] = {name: [] for name in ("perturbation", "eps", "norm", "mean", "q05", "q95")}
    for study in studies:
        for norm, errors in (("C0", study.error_c0), ("C2", study.error_c2)):
            for eps, row in zip(study.eps.tolist(), errors.numpy()):
                low, high = np.quantile(row, [0.05, 0.95])
                for name, value in zip(columns, (study.perturbation, eps, norm, float(row.mean()), low, high)):
                    columns[name].append(value)
    _write_csv(out / "rates.csv", columns)
    _write_json(
        out / "rates.json",
        {
            study.perturbation: {
                "slope_C0": study.slope_c0,
                "slope_C2": study.slope_c2,
                "n_modes": study.n_modes,
                "n_trials": study.error_c0.shape[1],
            }
            for study in studies
        },
    )
    return _save({"rates": rates(studies)[0]}, out)


def write_tensorboard(figures: Mapping[str, Figure], metrics: Mapping[str, Any] | None, out: Path) -> None:
    """The figures (already saved: TensorBoard closes them) and one scalar per group."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out / "tensorboard")) as writer:
        for name, fig in figures.items():
            writer.add_figure(f"evaluation/{name}", fig)
        for label, group in (metrics or {}).get("groups", {}).items():
            for key in ("relative_l2_mean", "coverage"):
                if group[key] is not None and math.isfinite(group[key]):
                    writer.add_scalar(f"evaluation/{key}/{label.replace(' ', '_')}", group[key])


def table(metrics: Mapping[str, Any]) -> str:
    """The result as text: a line per group, then the baselines."""

    def percent(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{100 * value:.3g} %"

    rows = [("group", "runs", "relative L2 error", "sd", "of the mean", "coverage")]
    for label, g in metrics["groups"].items():
        numbers = [percent(g[k]) for k in ("relative_l2_mean", "relative_l2_sd", "relative_l2_of_mean", "coverage")]
        rows.append((label, str(g["runs"]), *numbers))
    names = {"trivial": "trivial r / beta", "CRL": "CRL (model-free)"}
    rows += [(names.get(name, name), "", percent(error), "", "", "") for name, error in metrics["baselines"].items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    low, high = metrics["interval"]
    reference = metrics["reference"] or "none (errors are not known)"
    return "\n".join([f"reference: {reference}; beta = {metrics['beta']:g}; x in [{low:g}, {high:g}]", *lines])


def _save(figures: dict[str, Figure], out: Path) -> dict[str, Figure]:
    for name, fig in figures.items():
        save(fig, out / "figures" / name)
    return figures


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    import polars as pl

    pl.DataFrame({name: list(values) for name, values in columns.items()}).write_csv(path)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(_plain(content), indent=2) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """JSON has no NaN: unknown numbers are null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
