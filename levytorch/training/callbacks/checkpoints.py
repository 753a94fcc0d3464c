"""Checkpoints of a run: `last.ckpt`, `best.ckpt` and, when something goes wrong, `exception.ckpt`.

Each is written beside its target and renamed, so that a run killed while writing leaves the one before. They hold plain
tensors and numbers only and load with weights-only semantics.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from levytorch.training.module import LevyModule


class Checkpoints(Checkpoint):
    """Lightning runs Checkpoint callbacks last, after the TCF and the averages of the step are in place."""

    def __init__(self, directory: str | Path, every: int = 1000) -> None:
        self.directory, self.every = Path(directory), max(1, every)
        self.best = float("inf")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        step = trainer.global_step
        if not pl_module.engine.full_batch and step % self.every and step != trainer.max_steps:
            return
        self._write(trainer, "last.ckpt")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, "last.ckpt")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        # engines raise before they touch the parameters: this is the last good state
        if trainer.global_step > 0:
            self._write(trainer, "exception.ckpt")

    def _write(self, trainer: L.Trainer, name: str) -> None:
        monitor = _monitored(trainer)
        better = monitor is not None and monitor < self.best and name == "last.ckpt"
        if better and monitor is not None:
            self.best = monitor
        if not trainer.is_global_zero:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / name
        temporary = self.directory / f".{name}.{os.getpid()}.tmp"
        try:
            trainer.save_checkpoint(temporary)
            os.replace(temporary, target)
            if better:
                shutil.copyfile(target, temporary)
                os.replace(temporary, self.directory / "best.ckpt")
        finally:
            temporary.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


def _monitored(trainer: L.Trainer) -> float | None:
    """The held-out likelihood when there is one, else the training one."""
    for key in ("val/nll", "train/nll"):
        if key in trainer.callback_metrics:
            return float(trainer.callback_metrics[key])
    return None
