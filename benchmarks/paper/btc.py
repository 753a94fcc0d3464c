"""Figure 9 and its table from finished Bitcoin runs: section 4.3 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.btc_checks import number
from benchmarks.paper.btc_collect import ARMS, EXPERIMENTS, Array, Panel, panels
from benchmarks.paper.btc_run import SHOWN
from benchmarks.paper.plain import read_csv
from levytorch.errors import InputError
from levytorch.figures.base import new_axes
from levytorch.figures.values import Band, value_bands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# relative L2 error, its standard deviation over 8 tests, coverage (all in %), as printed in the paper
PAPER = {
    ("btc_first6000", "tcf"): (11.86, 8.46, 99.68),
    ("btc_first6000", "none"): (12.04, 11.83, 65.91),
    ("btc_random60000", "tcf"): (3.76, 0.92, 61.42),
    ("btc_random60000", "none"): (4.48, 1.83, 21.80),
}


def full_batch_bands(panel: Panel) -> list[Band]:
    """With and without TCF and conditional: V +- the standard deviation of the bootstrap, else of the Fisher matrix."""
    bands = []
    for tail, label in ARMS.items():
        for run in panel.group(False, tail, panel.n_basis)[:1]:
            table = read_csv(run.path / "value.csv", ("x",))
            kind = "bootstrap_sd" if "V_bootstrap_sd" in table else "std"
            if f"V_{kind}" not in table:
                continue
            width = table[f"V_{kind}"]
            if width.shape != run.V.shape:
                raise InputError(
                    f"{run.path / 'value.csv'} must have the {len(run.V)} rows of the other runs, found {len(width)}; "
                    "run the experiment again."
                )
            covered = number(
                run.path / "metrics.json",
                run.metrics,
                f"empirical.{'coverage_bootstrap' if kind == 'bootstrap_sd' else 'coverage_std'}",
            )
            note = "block bootstrap" if kind == "bootstrap_sd" else "from the Fisher matrix"
            bands.append(Band(label, run.V, width, f"± sd, {note}; covers {covered:.1%}"))
    return bands


def adam_bands(panel: Panel) -> list[Band]:
    """The paper's: mean +- standard deviation over random starts of Algorithm B.1."""
    bands = []
    for tail in ("tcf", "none"):
        runs = panel.group(True, tail, panel.n_basis)
        if len(runs) > 1:
            mean, sd = replicate_band(runs)
            note = f"{len(runs)} random starts, mean ± sd; covers {panel.coverage(mean, sd):.1%}"
            bands.append(Band(ARMS[tail], mean, sd, note))
    return bands


def replicate_band(runs: list[Any]) -> tuple[Array, Array]:
    curves = np.stack([run.V for run in runs])
    return curves.mean(0), curves.std(0, ddof=1)


def figure(found: list[Panel], bands: Any = full_batch_bands) -> tuple[Figure, list[Axes]]:
    """Figure 9: a column per experiment, V above, differences from the reference below."""
    shown = [(panel, own) for panel in found if (own := bands(panel))]
    if not shown:
        raise InputError("figure 9 needs finished Bitcoin runs with bands, found none; run the experiments first.")
    fig, axes = new_axes(2, len(shown), width=6.2, height=3.1)
    for column, (panel, own) in enumerate(shown):
        x, V = panel.samples
        baselines = {"r / beta": panel.curves["trivial"]}
        if panel.experiment == "btc_first6000":
            baselines["CRL (model-free)"] = panel.curves["crl"]
        value_bands(
            panel.curves["x"],
            own,
            reference=panel.curves["reference"],
            reference_label="reference",
            baselines=baselines,
            samples=(x[:SHOWN], V[:SHOWN]),
            support=panel.seen,
            axes=[axes[0, column], axes[1, column]],
        )
        title = EXPERIMENTS[panel.experiment]
        axes[0, column].text(0.98, 0.05, title, transform=axes[0, column].transAxes, ha="right")
        axes[1, column].set_xlabel("price (USD)")
    return fig, list(axes.ravel())


def rows(panel: Panel) -> list[dict[str, str]]:
    """The table of one experiment, a row per estimate."""
    out = []
    K = panel.n_basis
    for tail, label in ARMS.items():
        paper = PAPER.get((panel.experiment, tail))
        out += [_row(label, run, paper) for run in panel.group(False, tail, K)[:1]]
    out += [_row("constants (K = 1), without TCF", run, None) for run in panel.group(False, "none", 1)[:1] if K > 1]
    for tail in ("tcf", "none"):
        runs = panel.group(True, tail, K)
        if len(runs) > 1:
            out.append(_adam_row(panel, tail, runs))
    for name, label in (("crl", "CRL (model-free)"), ("trivial", "r / beta")):
        errors = panel.baselines[name]
        cells = {"relative L2 error": _percent(errors["relative_l2"]), "exact": _percent(errors["relative_l2_exact"])}
        out.append({"estimate": label, **cells})
    keys = ("estimate", "relative L2 error", "exact", "coverage, sd", "coverage, bootstrap", "alpha", "TCF", "paper")
    return [{key: row.get(key, "") for key in keys} for row in out]


def _row(label: str, run: Any, paper: tuple[float, float, float] | None) -> dict[str, str]:
    numbers = run.metrics["empirical"]
    row = {
        "estimate": label if run.metrics.get("converged") else f"{label} (not converged)",
        "relative L2 error": _percent(numbers["relative_l2"]),
        "exact": _percent(numbers["relative_l2_exact"]),
        "coverage, sd": _percent(numbers.get("coverage_std")),
        "coverage, bootstrap": _percent(numbers.get("coverage_bootstrap")),
        "alpha": f"{run.alpha:.3f}",
        "TCF": f"{run.metrics['tcf']:.5f}" if run.metrics["tail_method"] == "tcf" else "",
    }
    if "bootstrap" in numbers:
        row["relative L2 error"] += f" ± {100 * numbers['bootstrap']['relative_l2_sd']:.2g}"
    if paper is not None:
        row["paper"] = f"{paper[0]} ± {paper[1]} %, covers {paper[2]:.2f} %"
    return row


def _adam_row(panel: Panel, tail: str, runs: list[Any]) -> dict[str, str]:
    mean, sd = replicate_band(runs)
    errors, exact = (np.array([panel.error(run.V, key) for run in runs]) for key in ("reference", "reference_exact"))
    paper = PAPER[panel.experiment, tail]
    tcf = [run.metrics["tcf"] for run in runs]
    return {
        "estimate": f"Algorithm B.1 (Adam), {len(runs)} random starts, {ARMS[tail]}",
        "relative L2 error": f"{100 * errors.mean():.2f} ± {100 * errors.std(ddof=1):.2f} %",
        "exact": f"{100 * exact.mean():.2f} ± {100 * exact.std(ddof=1):.2f} %",
        "coverage, sd": _percent(panel.coverage(mean, sd)),
        "alpha": f"{np.mean([run.alpha for run in runs]):.3f}",
        "TCF": f"{np.mean(tcf):.4f}" if tail == "tcf" else "",
        "paper": f"{paper[0]} ± {paper[1]} %, covers {paper[2]:.2f} %",
    }


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}".replace("%", " %") if value < 10 else f"{100 * value:.1e} %"


def text_table(panel: Panel) -> str:
    """The table for a terminal."""
    table = rows(panel)
    lines = [list(table[0]), *[list(row.values()) for row in table]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def section(root: Path, page: Any) -> str | None:
    """The part of the results page; None when `root` holds no Bitcoin run."""
    from benchmarks.paper.btc_text import section_text

    found = panels(Path(root))
    return section_text(found, page) if found else None
