"""An evaluation from its settings to its directory: runs and data read, V solved, everything written at once.

evaluate.py is a thin shell around `run_evaluation`. A run directory is read as data: nothing named in it is imported or
executed. Results go to a new directory, which becomes visible when it is complete.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from levytorch.data import Trajectories
from levytorch.data.pairing import first_points
from levytorch.dynamics import Dynamics
from levytorch.errors import ConfigError, LevytorchWarning
from levytorch.figures.base import draw, svg_parts
from levytorch.figures.base import write as write_figure
from levytorch.figures.values import baselines, error_boxes, value_bands
from levytorch.files import temporary_directory, write_csv, write_json
from levytorch.policy.checks import check_window
from levytorch.policy.empirical import TooShort
from levytorch.policy.reference import Reference, empirical_reference
from levytorch.policy.rewards import RewardContext, build_reward
from levytorch.runs.directory import planned_output, publish, write_marker
from levytorch.runs.evaluation import EvaluatedRuns, baselines_of, evaluate_runs, true_reference
from levytorch.runs.evaluation_settings import check_settings, texts
from levytorch.runs.page import Shown, write_evaluation_page
from levytorch.runs.policies import write_policies
from levytorch.runs.reading import Run, load_runs
from levytorch.runs.report import write_value
from levytorch.runs.tensorboard import write_image
from levytorch.spaces.basis import FourierBasis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("levytorch.evaluate")
_SHOWN_SAMPLES = 5000  # the paper's number of orange dots


def run_evaluation(settings: dict[str, Any]) -> Path:
    """Everything but hydra: checks, solves, writes, and puts the directory in place when complete; returns it."""
    check_settings(settings)
    if settings["run"] is None:
        raise ConfigError("run must name a run directory or a glob, found none; add run=outputs/<date>/<time>.")
    target = planned_output(None if settings["out"] is None else str(settings["out"]))
    runs = load_runs(texts(settings, "run"))
    if any(run.has_actions for run in runs):
        write = functools.partial(write_policies, settings, runs)
    else:
        if settings.get("policy"):
            raise ConfigError(
                f"policy must be left out of runs without actions, found {', '.join(settings['policy'])}; remove it."
            )
        write = functools.partial(write_results, *evaluate_loaded(settings, runs))
    with temporary_directory(target) as written:
        write_marker(written, settings)
        _show(settings, written, write(written))
        out = publish(written, target)
    log.info(f"written to {out}")
    return out


def _show(settings: Mapping[str, Any], out: Path, shown: Shown) -> None:
    """Figures, TensorBoard, the page and the log."""
    for line in shown.tables:
        log.info(line)
    drawn = {name: draw(fig) for name, fig in shown.figures.items()}
    formats = ("png", "pdf") if settings["figures"]["format"] == "pdf" else ("png",)
    for name, fig in shown.figures.items():
        write_figure(drawn[name], fig, out / "figures" / name, formats)
    if settings["tensorboard"]:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(out / "tensorboard")) as writer:
            for name, one in drawn.items():
                write_image(writer, f"evaluation/{name}", one)
            for tag, value, step in shown.scalars:
                writer.add_scalar(f"evaluation/{tag}", value, step)
    write_evaluation_page(out, settings, shown, {name: svg_parts(fig) for name, fig in shown.figures.items()})


def write_results(result: EvaluatedRuns, support: tuple[float, float] | None, out: Path) -> Shown:
    """The numbers into one directory."""
    shown = Shown()
    shown.figures.update(write_evaluation(result, out, support))
    shown.tables.append(group_table(result.metrics))
    for label, group in result.metrics["groups"].items():
        for key in ("relative_l2_mean", "coverage"):
            if group[key] is not None and math.isfinite(group[key]):
                shown.scalars.append((f"{key}/{label.replace(' ', '_')}", group[key], 0))
    shown.metrics.update(result.metrics)
    return shown


def evaluate_loaded(
    settings: Mapping[str, Any], runs: Sequence[Run]
) -> tuple[EvaluatedRuns, tuple[float, float] | None]:
    """The evaluation, and the range of the data that the model-free baseline has seen (None without data)."""
    beta = float(settings["beta"])
    truth = true_dynamics(settings["truth"], runs)
    period, origin = runs[0].recovery.period, runs[0].recovery.origin
    data = settings["data"]
    trajectories: Any = None
    transitions: Any = None
    if data["path"] is not None:
        check_scale(data["options"], runs)
        given = {key: value for key, value in data["options"].items() if value is not None}
        trajectories = Trajectories.from_file(data["path"], **given)
        transitions = trajectories.transitions()
    reward = build_reward(settings["reward"], RewardContext(period, origin, beta, truth, transitions))
    chosen = "data" if settings["window"] is None and period is None else settings["window"]  # a line has no cell
    window = data_window(chosen, transitions, [run.recovery.support for run in runs])
    reference = observed = support = None
    beside = settings["baselines"] and transitions is not None
    basis = None if period is None else FourierBasis(data["n_basis"], period, origin)
    if truth is not None:
        reference = true_reference(truth, reward, beta, window, settings["tolerance"])
    elif trajectories is not None:
        needed = not beside or data["n_terms"] is not None or data["horizon"] is not None
        reference = _reference_of(data, trajectories, reward, beta, basis, needed=needed)
        if reference is not None:
            observed = observed_points(data, trajectories, transitions)
            seen = transitions.x if observed is None else torch.as_tensor(trajectories.x)[observed]
            if float(seen.max() - seen.min()) < period:
                support = (float(seen.min()), float(seen.max()))
    result = evaluate_runs(
        runs,
        reward,
        beta,
        n_modes=settings["n_modes"],
        window=window,
        tolerance=settings["tolerance"],
        group_by=settings["group_by"],
        reference=reference,
        observed=observed,
        crl_basis=basis,
        from_data=baselines_of(runs, transitions, reward, beta) if beside else None,
    )
    return result, support


def _reference_of(
    data: Mapping[str, Any], trajectories: Any, reward: Any, beta: float, basis: FourierBasis | None, *, needed: bool
) -> Reference | None:
    """The empirical reference; where it cannot be had it is refused if it is needed, else there is none."""
    if basis is None:
        if not needed:
            return None
        raise ConfigError(
            "empirical values must have a period for the basis they are fitted in, found runs on a line; train "
            "with coefficients.period=<length>."
        )
    options = {"n_terms": data["n_terms"], "horizon": data["horizon"], "linear": data["linear"]}
    try:
        return empirical_reference(trajectories, reward, beta, basis, **options)
    except TooShort as short:
        if needed:
            raise
        warnings.warn(f"no empirical values to compare with V: {short}", LevytorchWarning, stacklevel=3)
    return None


def check_scale(options: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """Refuse data that is measured otherwise than what the runs were trained on: beta and V belong to their units."""
    for run in runs:
        for name, value in (run.scale() or {}).items():
            found = options[name]
            if found != value and (found or value):
                raise ConfigError(
                    f"data.options.{name} must be that of the runs, {str(value).lower()}, found {str(found).lower()}; "
                    f"add data.options.{name}={str(value).lower()}."
                )


def true_dynamics(truth: Mapping[str, Any], runs: Sequence[Run]) -> Dynamics | None:
    """The true system: named on the command line, or the one that all runs name in their configuration."""
    known: list[Any] = [run.truth() for run in runs]
    if truth["name"] is not None:
        alphas = {system.alpha for system in known if system is not None}
        own = alphas.pop() if len(alphas) == 1 else 0.3
        return Dynamics.named(str(truth["name"]), alpha=own if truth["alpha"] is None else truth["alpha"])
    named = {repr(system) for system in known}
    if len(named) > 1:
        raise ConfigError("the runs must have one true system, found several; evaluate one by one or give truth.name=.")
    return known[0]


def data_window(
    window: Any, transitions: Any, supports: Sequence[tuple[float, float] | None]
) -> tuple[float, float] | None:
    """The window as two numbers; within the data when there is data.

    "data" without data is what all runs were trained on: every recovery knows the range of its own.
    """
    span = None if transitions is None else (float(transitions.x.min()), float(transitions.x.max()))
    if window == "data":
        return common_support(supports) if span is None else span
    return None if window is None else check_window(window, math.inf, span)


def common_support(supports: Sequence[tuple[float, float] | None]) -> tuple[float, float]:
    """The range that lies within the data of every run."""
    known = [support for support in supports if support is not None]
    if len(known) < len(supports):
        raise ConfigError(
            "every run must know the range of its data for window=data, found one that does not; name its data with "
            "data.path=, or give window=[low,high]."
        )
    low, high = max(low for low, _ in known), min(high for _, high in known)
    if not low < high:
        raise ConfigError(
            "the data of all runs must share a range for window=data, found none; evaluate them one by one, or give "
            "window=[low,high]."
        )
    return low, high


def observed_points(data: Mapping[str, Any], trajectories: Any, transitions: Any) -> torch.Tensor | None:
    """Numbers of the points whose values CRL may see: where the first transitions, or random ones, begin.

    None: there is no CRL.
    """
    n = len(transitions)
    if data["first"] is not None and data["random"] is not None:
        raise ConfigError("data.first and data.random must not both be given, found both; leave one out.")
    wanted = data["first"] if data["first"] is not None else data["random"]
    if wanted is None:
        return None
    if wanted > n:
        raise ConfigError(f"data.first or data.random must not exceed {n} transitions, found {wanted}; lower it.")
    points = torch.from_numpy(first_points(trajectories, transitions))
    if data["first"] is not None:
        return points[:wanted]
    return points[torch.randperm(n, generator=torch.Generator().manual_seed(data["seed"]))[:wanted]]


def write_evaluation(result: EvaluatedRuns, out: Path, support: tuple[float, float] | None) -> dict[str, Figure]:
    """Numbers and value functions into `out`; returns the figures."""
    write_json(out / "metrics.json", result.metrics)
    write_csv(out / "curves.csv", result.curves())
    beside = {} if result.reference is None else {"reference": result.reference.curve}
    for number, V in enumerate(result.values):
        write_value(out / "values" / f"run{number}", V, beside)
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
    if result.from_data:
        alone = len(result.metrics["groups"]) == 1
        others = {name: (V(x).numpy(), 1.96 * V.std(x).numpy()) for name, V in result.from_data.items()}
        figures["baselines"], _ = baselines(
            x.numpy(),
            [band._replace(label="model" if alone else f"model, {band.label}") for band in result.bands()],
            others,
            reference=None if reference is None else reference.curve(x).numpy(),
            reference_label="reference" if reference is None else reference.label,
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
    return figures


def group_table(metrics: Mapping[str, Any]) -> str:
    """The result as text: a line per group, then the baselines."""

    def percent(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{100 * value:.3g} %"

    def level(entry: Mapping[str, Any]) -> str:
        return f"{entry['mean']:.4g}" + ("" if entry["std"] is None else f" ± {entry['std']:.2g}")

    rows: list[tuple[str, ...]]
    if metrics["reference"] is None:
        rows = [("group", "runs", "V, mean over x ± standard error")]
        rows += [(label, str(g["runs"]), level(g["V"])) for label, g in metrics["groups"].items()]
        rows += [(name, "", level(n["V"])) for name, n in metrics["from_data"].items()]
    else:
        rows = [("group", "runs", "relative L2 error", "sd", "of the mean", "coverage")]
        for label, g in metrics["groups"].items():
            numbers = [percent(g[k]) for k in ("relative_l2_mean", "relative_l2_sd", "relative_l2_of_mean", "coverage")]
            rows.append((label, str(g["runs"]), *numbers))
        names = {"trivial": "trivial r / beta", "CRL": "CRL (model-free)"}
        for name, error in metrics["baselines"].items():
            rows.append((names.get(name, name), "", percent(error), "", "", ""))
        for name, n in metrics["from_data"].items():
            rows.append((name, "", percent(n["relative_l2"]), "", "", percent(n["coverage"])))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    low, high = metrics["interval"]
    reference = metrics["reference"] or "none (errors are not known)"
    notes = [f"{name}: {n['note']}" for name, n in metrics["from_data"].items() if n["note"]]
    return "\n".join([f"reference: {reference}; beta = {metrics['beta']:g}; x in [{low:g}, {high:g}]", *lines, *notes])
