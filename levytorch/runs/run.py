"""A configured run: data, fit, and everything that ends up in the run directory. train.py is a thin shell around it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.convert import known_keys
from levytorch.data import SourceData
from levytorch.diagnostics import Diagnosis, diagnose
from levytorch.diagnostics.checks import check_options
from levytorch.errors import ConfigError, InputError, LevytorchWarning
from levytorch.figures import coefficients as plots
from levytorch.figures import save
from levytorch.figures.diagnostics import drawings
from levytorch.ranks import Ranks, processes
from levytorch.runs import plane_report
from levytorch.runs.hparams import results_row, settings_row
from levytorch.tables import write_csv, write_json
from levytorch.training.callbacks import Checkpoints
from levytorch.training.cell import check_cell
from levytorch.training.fit import fit
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings, make_settings

log = logging.getLogger("levytorch.train")
FORMATS = ("png", "pdf")  # of figures


@dataclass
class Outcome:
    """What a finished run has: the recovery, its source, its numbers and where they are."""

    recovery: Recovery
    source: SourceData
    metrics: dict[str, Any]
    directory: Path
    loggers: list[Any] = field(default_factory=list)
    formats: tuple[str, ...] = FORMATS
    diagnosis: Diagnosis | None = None

    def publish(self, name: str, draw: Callable[[], Any]) -> None:
        """A figure into figures/ and TensorBoard; not even drawn when it is wanted in neither."""
        if not (self.formats or self.loggers):
            return
        fig = draw()
        save(fig, self.directory / "figures" / name, formats=self.formats)
        for logger in self.loggers:
            logger.experiment.add_figure(f"final/{name}", fig, int(self.recovery.metrics["steps"]), close=False)
            logger.experiment.flush()  # also the last figure of a run must reach the disk


def settings_of(config: Mapping[str, Any]) -> FitSettings:
    """The part of a configuration that `recover` would take as arguments."""
    formats_of(config)
    coefficients = dict(config["coefficients"])
    if "period" not in coefficients or "method" not in config["density"]:
        raise ConfigError("coefficients.period and density.method must be given, found one missing; add it.")
    period = coefficients.pop("period")
    n_basis = coefficients.pop("n_basis", 1)
    tail = dict(config["tail"])
    if tail.get("method") == "auto":
        # data=file leaves thresholds open, which is no setting of theirs
        given = [key for key, value in tail.items() if value is not None]
        known_keys("the settings of tail=auto", given, ("method",), ConfigError)
    engine = dict(config["engine"])
    try:
        check_diagnostics(config["diagnostics"])
        return make_settings(
            alpha=config["alpha"],
            coefficients=coefficients,
            n_basis=n_basis,
            period=period,
            tail="auto" if tail.get("method") == "auto" else tail,
            engine=engine,
            seed=config["seed"],
            density=config["density"]["method"],
            init=config["init"],
            units=config["units"],
            log_every=config["trainer"].get("log_every", 50),
            progress=config["trainer"].get("progress", True),
            **{str(key): value for key, value in config["batch"].items()},
        )
    except InputError as error:
        raise ConfigError(str(error)) from error


def check_diagnostics(options: Mapping[str, Any]) -> None:
    """Refuse what `Recovery.diagnose` would stumble over after the fit."""
    if set(options) != {"checks", "max_pairs"}:
        raise ConfigError(
            f"diagnostics must have checks and max_pairs, found {', '.join(map(str, options)) or 'neither'}; use "
            "diagnostics=default or diagnostics=none."
        )
    check_options(**options)


def formats_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The files a figure is written to; sweeps of hundreds of runs want none, the numbers are in the CSV files."""
    formats = config["callbacks"]["figures"].get("files", FORMATS)
    if not isinstance(formats, (list, tuple)) or not all(isinstance(f, str) and f in FORMATS for f in formats):
        raise ConfigError(
            f"callbacks.figures.files must be a list of {', '.join(FORMATS)}, found {formats!r}; [] draws no figures."
        )
    return tuple(formats)


def run(
    config: Mapping[str, Any], source: SourceData, directory: Path, *, checkpoint: Path | None = None
) -> Outcome | None:
    """Fit and write recovery.pt, metrics.json, curves.csv, history.csv, figures/ and tensorboard/ into `directory`.

    With several processes the first one writes; the others are done after the fit and return None.
    """
    from lightning.pytorch.loggers import TensorBoardLogger

    from levytorch.runs.progress_figures import CoefficientFigures

    settings = settings_of(config)
    several = processes(config["trainer"])
    directory.mkdir(parents=True, exist_ok=True)
    options = config["callbacks"]
    callbacks = [
        CoefficientFigures(options["figures"]["every"], source.dynamics),
        Checkpoints(directory / "checkpoints", options["checkpoints"]["every"]),
    ]
    loggers: list[Any] = []
    if config["logger"]["tensorboard"]:
        loggers.append(TensorBoardLogger(directory, name="tensorboard", version="", default_hp_metric=False))
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LevytorchWarning)
        found = fit(
            source.transitions,
            settings,
            callbacks=callbacks,
            trainer=several
            | {"logger": loggers or False, "default_root_dir": str(directory), "enable_checkpointing": True},
            resume=None if checkpoint is None else str(checkpoint),
        )
        Ranks.of(found.trainer).barrier()
        if not found.trainer.is_global_zero:
            return None
        recovery = found.recovery
        seconds = time.perf_counter() - began
        recovery.save(directory / "recovery.pt")  # whatever the checks run into, the fit is there
        if source.dynamics is None and recovery.dim == 1:
            check_cell(recovery.head, recovery.metrics["x_min"], recovery.metrics["x_max"])
        diagnosis = None
        if config["diagnostics"]["checks"]:
            diagnosis = diagnose(recovery, source.transitions, seed=config["seed"], **config["diagnostics"])
    doubts = list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, LevytorchWarning)))
    for doubt in doubts:
        log.warning(doubt)
    metrics = dict(recovery.metrics) | summary(recovery, source.dynamics)
    metrics |= {"seconds_fit": seconds, "warnings": doubts, "seed": config["seed"]}
    if diagnosis is not None:
        metrics |= diagnosis.metrics() | {"diagnosis": diagnosis.text().splitlines()}
    outcome = Outcome(recovery, source, metrics, directory, loggers, formats_of(config), diagnosis)
    write_report(outcome, config)
    return outcome


def summary(recovery: Recovery, truth: Any) -> dict[str, Any]:
    """Means over the cell, their standard errors, and relative L2 errors when the truth is known."""
    if recovery.dim > 1:
        return plane_report.summary(recovery, truth)
    curves = plots.coefficient_curves(recovery, truth, 1025)
    out: dict[str, Any] = {}
    for name in ("b", "D_o", "D_f"):
        out[f"mean_{name}"] = float(np.mean(curves[name][:-1]))
        if f"{name}_std" in curves:
            out[f"mean_std_{name}"] = float(np.mean(curves[f"{name}_std"][:-1]))
        if truth is not None:
            reference = curves[f"{name}_truth"][:-1]
            difference = curves[name][:-1] - reference
            out[f"error_{name}"] = float(np.sqrt(np.mean(difference**2) / np.mean(reference**2)))
    if not callable(recovery.alpha):
        out["alpha"] = recovery.alpha
        if recovery.covariance is not None:
            out["alpha_std"] = recovery.alpha_std
    return out


def write_report(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """Numbers first, then the figures made of them, then TensorBoard."""
    recovery, directory = outcome.recovery, outcome.directory
    if recovery.dim > 1:
        figures = plane_report.write_fields(recovery, outcome.source.dynamics, directory)
    else:
        curves = plots.coefficient_curves(recovery, outcome.source.dynamics)
        write_csv(directory / "curves.csv", curves)
        figures = {"coefficients": lambda: plots.coefficients(curves)[0]}
    if recovery.history:
        keys = [k for k in recovery.history[-1] if all(k in entry for entry in recovery.history)]
        write_csv(directory / "history.csv", {k: [entry[k] for entry in recovery.history] for k in keys})
    write_json(directory / "metrics.json", outcome.metrics)
    if len(recovery.history) > 1:
        figures["history"] = lambda: plots.history(recovery.history)[0]
    if outcome.diagnosis is not None:
        figures |= drawings(outcome.diagnosis)
    for name, draw in figures.items():
        outcome.publish(name, draw)
    for logger in outcome.loggers:
        logger.log_hyperparams(settings_row(config), results_row(outcome.metrics))
        logger.save()


def table(metrics: Mapping[str, Any]) -> str:
    """The summary a terminal shows."""
    lines = [f"{'':6}{'mean':>12}{'std error':>12}{'rel. L2 error':>16}"]
    for name in plane_report.rows(dict(metrics)):
        cells = [metrics.get(f"mean_{name}"), metrics.get(f"mean_std_{name}"), metrics.get(f"error_{name}")]
        shown = ["-" if v is None else f"{v:.4g}" for v in cells[:2]] + ["-" if cells[2] is None else f"{cells[2]:.2%}"]
        lines.append(f"{name:6}{shown[0]:>12}{shown[1]:>12}{shown[2]:>16}")
    if metrics.get("alpha") is not None:
        error = metrics.get("alpha_std")
        lines.append(f"{'alpha':6}{metrics['alpha']:>12.4g}{'-' if not error else format(error, '.4g'):>12}")
    lines.append(
        f"engine {metrics['engine']}, {metrics['steps']} steps in {metrics['seconds']:.1f} s, "
        f"{'converged' if metrics['converged'] else 'NOT converged'}; {metrics['n_main']} pairs, "
        f"tail {metrics['tail_method']}, TCF {metrics['tcf']:.4g}, "
        f"log-likelihood per pair {metrics['log_likelihood'] / metrics['n_main']:.6g}"
    )
    if metrics.get("left_out"):
        lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in metrics["left_out"].items()))
    return "\n".join([*lines, *metrics.get("diagnosis", [])])
