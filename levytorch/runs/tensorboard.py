"""What TensorBoard shows of a run: its logger, coefficient figures while a fit runs, and the table of hyperparameters.

That table opens with five settings and five results, in the order of their names, so that few columns are told and the
ones that tell runs apart come first; .hydra/config.yaml and metrics.json have everything.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from levytorch.errors import ConfigError
from levytorch.figures import base, planes
from levytorch.figures import coefficients as plots
from levytorch.training.module import LevyModule
from levytorch.training.recovery import Recovery
from levytorch.untrusted import lookup

FORMATS = ("png", "pdf")  # that figures can have
# column -> where it stands in the configuration; the first that exists
SETTINGS: dict[str, tuple[str, ...]] = {
    "1 engine": ("engine.name",),
    "2 tail": ("tail.method",),
    "3 n_basis": ("coefficients.n_basis", "coefficients.width"),
    "4 alpha": ("alpha",),
    "5 seed": ("seed",),
    "arm": ("arm",),
    "coefficients": ("coefficients.name",),
    "data": ("data.path", "dynamics.name"),
    "density": ("density.method",),
    "dt": ("data.dt",),
    "experiment": ("experiment",),
    "lr": ("engine.lr",),
    "max_steps": ("engine.max_steps",),
    "n_trajectories": ("data.n_trajectories",),
    "period": ("coefficients.period",),
}
# column -> field of metrics.json; log_likelihood is per pair, or runs of different sizes could not be compared
RESULTS: dict[str, str] = {
    "error_b": "error_b",
    "error_D_o": "error_D_o",
    "error_D_f": "error_D_f",
    "log_likelihood_per_pair": "log_likelihood",
    "converged": "converged",
    "alpha": "alpha",
    "tcf": "tcf",
    "mean_b": "mean_b",
    "mean_D_o": "mean_D_o",
    "mean_D_f": "mean_D_f",
    "steps": "steps",
    "seconds": "seconds",
}


class TensorBoard(TensorBoardLogger):
    """Events in tensorboard/ of the run directory, which is the one place they may go to."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory, name="tensorboard", version="", default_hp_metric=False)


class CoefficientFigures(L.Callback):
    """Draws b, D_o, D_f every `every` steps of a mini-batch engine, against the truth when it is known.

    files: what the figures at the end of the run are written to; sweeps of hundreds of runs want none, the numbers are
    in the CSV files.
    """

    def __init__(self, every: int = 10_000, files: Sequence[str] = ("png",)) -> None:
        if not isinstance(files, (list, tuple)) or not all(isinstance(f, str) and f in FORMATS for f in files):
            raise ConfigError(
                f"callbacks.figures.files must be a list of {', '.join(FORMATS)}, found {files!r}; [] draws no figures."
            )
        self.every, self.files = every, tuple(files)
        self.truth: Any = None  # known once there is data

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        if pl_module.engine.full_batch or trainer.global_step % self.every or not trainer.is_global_zero:
            return
        recovery = Recovery(pl_module.head)
        if recovery.dim > 2:
            return
        if recovery.dim == 2:
            fig, _ = planes.fields(planes.coefficient_fields(recovery, self.truth))
        else:
            fig, _ = plots.coefficients(plots.coefficient_curves(recovery, self.truth))
        add_image(trainer.loggers, "coefficients/progress", base.draw(fig), trainer.global_step)


def add_image(loggers: Sequence[Any], tag: str, drawn: base.Drawn, step: int) -> None:
    """To every TensorBoard among the loggers; others have no common way of taking a figure."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            write_image(logger.experiment, tag, drawn, step)


def write_image(writer: Any, tag: str, drawn: base.Drawn, step: int = 0) -> None:
    from PIL import Image

    writer.add_image(tag, np.asarray(Image.open(io.BytesIO(drawn.png))), step, dataformats="HWC")
    writer.flush()  # also the last figure of a run must reach the disk


def log_results(loggers: Sequence[Any], config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Settings and results of a finished run, in the table of hyperparameters where there is one."""
    settings, results = settings_row(config), results_row(metrics)
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(settings, results)
        else:
            logger.log_hyperparams(settings)
            logger.log_metrics(results)
        logger.save()


def settings_row(config: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of SETTINGS that this configuration has."""
    row = {}
    for column, keys in SETTINGS.items():
        value = next((found for key in keys if (found := lookup(config, key)) is not None), None)
        if value is not None:
            row[column] = value if isinstance(value, (int, float, str, bool)) else str(value)
    return row


def results_row(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The columns of RESULTS that this run has, as finite numbers under final/."""
    row = {}
    for column, key in RESULTS.items():
        value = metrics.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            pairs = metrics.get("n_main", 1) if column == "log_likelihood_per_pair" else 1
            row[f"final/{column}"] = float(value) / pairs
    return row
