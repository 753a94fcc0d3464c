"""Coefficient figures into TensorBoard while a fit runs (the final ones, with bands, come with the report)."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from levytorch.figures import coefficients as plots
from levytorch.figures import planes
from levytorch.training.module import LevyModule
from levytorch.training.recovery import Recovery


class CoefficientFigures(L.Callback):
    """Draws b, D_o, D_f every `every` steps of a mini-batch engine, against the truth when it is known."""

    def __init__(self, every: int = 10_000, truth: Any = None) -> None:
        self.every, self.truth = every, truth

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        if pl_module.engine.full_batch or self.every < 1 or trainer.global_step % self.every:
            return
        if not trainer.is_global_zero:
            return
        recovery = Recovery(pl_module.head)
        if recovery.dim > 2:
            return
        if recovery.dim == 2:
            fig, _ = planes.fields(planes.coefficient_fields(recovery, self.truth))
        else:
            fig, _ = plots.coefficients(plots.coefficient_curves(recovery, self.truth))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure("coefficients/progress", fig, trainer.global_step, close=False)
