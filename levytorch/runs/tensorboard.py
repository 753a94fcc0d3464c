"""What TensorBoard shows of a run.

CUSTOM SCALARS has every quantity in groups, the likelihood first; IMAGES the coefficients with their bands as the fit
moved them, a slider over its steps; HISTOGRAMS the parameters of networks; TEXT the settings; HPARAMS the settings that
tell runs apart and the results. It opens with the first five columns by name; the rest is chosen on its left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import yaml  # type: ignore[import-untyped]
from lightning.pytorch.loggers import TensorBoardLogger

from levytorch.coefficients import LinearHead
from levytorch.errors import ConfigError
from levytorch.figures import base, planes
from levytorch.figures import coefficients as plots
from levytorch.training.module import LevyModule
from levytorch.untrusted import lookup

FORMATS = ("png", "pdf")  # that figures can have
COEFFICIENTS = "fit/coefficients"  # the image whose slider shows the fit
LAYOUT: dict[str, dict[str, list[str]]] = {
    "likelihood": {"negative log-likelihood per pair": ["train/nll", "val/nll"]},
    "cross-validation": {
        "candidate": ["prepare/candidate"],
        "log-likelihood per held-out pair": ["prepare/held_out"],
    },
    "tail": {"TCF": ["tail/TCF"], "mass beyond CT": ["tail/R_theta", "tail/R_sample"]},
    "coefficients": {
        "alpha": ["mean/alpha"],
        "mean b": ["mean/b", "mean/b_1", "mean/b_2", "mean/b_3"],
        "mean D_o and D_f": ["mean/D_o", "mean/D_f"],
    },
    "optimizer": {
        "norm of the gradient": ["optimizer/gradient_norm"],
        "learning rate": ["optimizer/learning_rate"],
        "damping": ["optimizer/damping"],
        "log-likelihood still to be gained, times two": ["optimizer/decrement"],
        "standard errors to go (corrected law)": ["fit/distance"],
    },
    "progress": {"phase": ["fit/phase"], "ms per step": ["time/step_ms"], "pairs per second": ["time/samples_per_s"]},
}
# column -> where it stands in the configuration; the first that exists
SETTINGS: dict[str, tuple[str, ...]] = {
    "6 tail": ("tail.method",),
    "7 n_basis": ("coefficients.n_basis", "coefficients.width"),
    "8 alpha": ("alpha",),
    "9 seed": ("seed",),
    "arm": ("arm",),
    "data": ("data.path", "dynamics.name"),
    "density": ("density.method",),
    "dt": ("data.dt",),
    "experiment": ("experiment",),
    "lr": ("engine.lr",),
    "n_trajectories": ("data.n_trajectories",),
    "period": ("coefficients.period",),
}
# column -> field of metrics.json: what was used, whatever the settings left open
USED: dict[str, str] = {"0 engine": "engine", "1 coefficients": "head", "law": "law"}
# likewise of results; log_likelihood is per pair, or runs of different sizes could not be compared
RESULTS: dict[str, str] = {
    "2 error b": "error_b",
    "3 error D_o": "error_D_o",
    "4 error D_f": "error_D_f",
    "5 log-likelihood per pair": "log_likelihood",
    "converged": "converged",
    "error V": "error_V",
    "found alpha": "alpha",
    "found TCF": "tcf",
    "steps": "steps",
    "seconds": "seconds",
}
FEW, SELDOM = 10, 5000  # steps of full-batch engines, and of others, between two images, unless given
DOUBLED = {True: range(1, 17), False: range(64, 4097)}  # steps whose powers of two have images, by the same kinds
_RGB = 3


class TensorBoard(TensorBoardLogger):
    """Events in tensorboard/ of the run directory, which is the one place they may go to."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory, name="tensorboard", version="", default_hp_metric=False)

    def go_on_after(self, step: int) -> None:
        """Of a resumed run: what was logged after this step is dropped, since the steps are taken again."""
        self._kwargs["purge_step"] = step + 1


def open_board(loggers: Sequence[Any], config: Mapping[str, Any], resumed: bool) -> None:
    """The layout of the custom scalars and the settings as text, before the first step of a run."""
    if resumed:
        return  # they are there
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            charts = {
                group: {name: ["Multiline", tags] for name, tags in charts.items()} for group, charts in LAYOUT.items()
            }
            logger.experiment.add_custom_scalars(charts)
            text = yaml.safe_dump(dict(config), sort_keys=False)
            logger.experiment.add_text("settings", "\n".join("    " + line for line in text.splitlines()))


class CoefficientFigures(L.Callback):
    """Draws b, D_o, D_f with their bands while a fit runs, against the truth when it is known.

    After steps 1, 2, 4, 8 and so on, and every multiple of `every`. Of networks the parameters become histograms then.

    every: None: 10 steps of a full-batch engine, 5000 of a mini-batch engine. files: what the figures at the end of the
    run are written to; sweeps of hundreds of runs want none, the numbers are in the CSV files.
    """

    def __init__(self, every: int | None = None, files: Sequence[str] = ("png",)) -> None:
        if not isinstance(files, (list, tuple)) or not all(isinstance(f, str) and f in FORMATS for f in files):
            raise ConfigError(
                f"callbacks.figures.files must be a list of {', '.join(FORMATS)}, found {files!r}; [] draws no figures."
            )
        self.every, self.files = every, tuple(files)
        self.truth: Any = None  # known once there is data
        self._aside: ThreadPoolExecutor | None = None  # the fit goes on while images are drawn

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._aside = ThreadPoolExecutor(1)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._aside is not None:
            self._aside.shutdown()
            self._aside = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not boards or not trainer.is_global_zero or pl_module.fit.done or not self._due(pl_module):
            return  # the last step is drawn with everything else at the end
        fit, step = pl_module.fit, pl_module.fit.n_steps
        if not isinstance(fit.head, LinearHead):
            for board in boards:
                for name, values in fit.head.named_parameters():
                    board.experiment.add_histogram(f"parameters/{name}", values.detach(), step)
        recovery = fit.recovery()
        draw: Callable[[], tuple[Any, Any]]
        if recovery.dim == 1:
            draw = partial(plots.coefficients, plots.coefficient_curves(recovery, self.truth))
        elif recovery.dim == 2:
            draw = partial(planes.fields, planes.coefficient_fields(recovery, self.truth))
        else:
            return
        assert self._aside is not None
        self._aside.submit(lambda: add_image(boards, COEFFICIENTS, base.draw(draw()[0]), step))

    def _due(self, module: LevyModule) -> bool:
        step, full = module.fit.n_steps, module.engine.full_batch
        every = self.every or (FEW if full else SELDOM)
        if step == 0:  # nothing has been fitted
            return False
        if step in DOUBLED[full]:
            return step & (step - 1) == 0 or (self.every is not None and step % every == 0)
        return step % every == 0


def add_image(loggers: Sequence[Any], tag: str, drawn: base.Drawn, step: int) -> None:
    """To every TensorBoard among the loggers; others have no common way of taking a figure."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            write_image(logger.experiment, tag, drawn, step)


def write_image(writer: Any, tag: str, drawn: base.Drawn, step: int = 0) -> None:
    """The PNG as it is: `writer.add_image` would take its pixels and compress them again, which takes longer."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    image = Summary.Image(height=drawn.height, width=drawn.width, colorspace=_RGB, encoded_image_string=drawn.png)
    _open(writer).add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
    writer.flush()  # also the last figure of a run must reach the disk


def _open(writer: Any) -> Any:
    """What a SummaryWriter writes with, opened again where Lightning has closed it at the end of a fit."""
    return writer._get_file_writer()


def log_results(loggers: Sequence[Any], config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Settings and results of a finished run, in the table of hyperparameters where there is one.

    Results are columns like the settings: as metrics of that table they would be scalars, each a page with one point.
    """
    from torch.utils.tensorboard.summary import hparams

    row, results = settings_row(config, metrics), results_row(metrics)
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            shown = {"train/nll": 0.0} | ({"val/nll": 0.0} if "val/nll" in metrics else {})
            for summary in hparams(row | results, shown):
                _open(logger.experiment).add_summary(summary)
        else:
            logger.log_hyperparams(row)
            logger.log_metrics({f"final/{name.split(' ', 1)[-1].replace(' ', '_')}": v for name, v in results.items()})
        logger.save()


def settings_row(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of SETTINGS that this configuration has, and of USED."""
    row = {column: metrics[key] for column, key in USED.items() if isinstance(metrics.get(key), str)}
    for column, keys in SETTINGS.items():
        value = next((found for key in keys if (found := lookup(config, key)) is not None), None)
        if value is not None:
            row[column] = value if isinstance(value, (int, float, str, bool)) else str(value)
    return row


def results_row(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The columns of RESULTS that this run has, as finite numbers."""
    row = {}
    for column, key in RESULTS.items():
        value = metrics.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            row[column] = float(value) / (metrics.get("n_main", 1) if key == "log_likelihood" else 1)
    return row
