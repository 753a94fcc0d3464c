"""What happens between the steps of a fit under Lightning: TCF, the next phase, checkpoints, progress.

Checkpoints appear whole or not at all, so that a run killed while writing leaves the one before. They hold plain
tensors and numbers only and load with weights-only semantics. Every one is the state between two steps: a state in the
middle of one could not be gone on with to the same numbers.
"""

from __future__ import annotations

import math
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ProgressBar

from levytorch import interrupts
from levytorch.errors import NumericalError, OutputError
from levytorch.files import replacing
from levytorch.training.module import LevyModule
from levytorch.training.progress import ProgressLine


def fitting(module: L.LightningModule) -> LevyModule:
    """The module of a Trainer whose callbacks these are."""
    assert isinstance(module, LevyModule)
    return module


class UpdateTCF(L.Callback):
    """Algorithm E.6: after a step R_theta from the model, then the TCF of the fit's one TailCorrection.

    Mini-batch engines wait for `tail.start` steps.
    """

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        fitting(pl_module).fit.update_tcf()


class Advance(L.Callback):
    """After a step and its TCF the fit continues with its next phase; `trainer.should_stop` is set when it is done."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if fitting(pl_module).fit.done:
            trainer.should_stop = True  # resumed from the checkpoint of the last step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = fitting(pl_module)
        module.fit.advance()
        module.follow()
        if module.fit.done:
            trainer.should_stop = True


class Checkpoints(Checkpoint):
    """`last.ckpt`, `best.ckpt` and, when something goes wrong, `exception.ckpt`.

    Lightning runs Checkpoint callbacks last, after the TCF and the averages of the step are in place.
    """

    def __init__(self, directory: str | Path, every: int = 1000) -> None:
        self.directory, self.every = Path(directory), max(1, every)
        self.best = float("inf")
        self.judged = 0  # entries of the module's history that a checkpoint before has been judged by
        self.between = False  # whether no step is under way

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        interrupts.defer(True)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.between = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.between = True
        step = trainer.global_step
        stopping = trainer.strategy.reduce_boolean_decision(interrupts.requested(), all=False)
        if (
            fitting(pl_module).fit.phase.engine.full_batch
            or step % self.every == 0
            or step == trainer.max_steps
            or stopping
        ):
            self._write(trainer, "last.ckpt")
        if stopping or trainer.world_size == 1:  # several processes end after the same step
            interrupts.check()
        if stopping:  # another process was asked to end
            raise interrupts.Interrupted(signal.SIGTERM)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, "last.ckpt")
        interrupts.defer(False)
        interrupts.check()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        interrupts.defer(False)
        # engines raise NumericalError before they touch the parameters: that is the last good state. It stops all
        # processes, and writing waits for all of them
        numerical = isinstance(exception, NumericalError)
        good = numerical or (self.between and trainer.world_size == 1)
        if trainer.global_step > 0 and good and isinstance(exception, Exception):
            with suppress(OutputError):  # the exception itself is what matters
                self._write(trainer, "exception.ckpt")

    def _write(self, trainer: L.Trainer, name: str) -> None:
        objective = self._objective(trainer) if name == "last.ckpt" else math.inf
        better = objective < self.best
        if better:
            self.best = objective
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.directory / name)  # writes nothing here, but the first process waits for it
            return
        with replacing(self.directory / name) as temporary:
            trainer.save_checkpoint(temporary)
            if better:
                # before last.ckpt, which says that this is the best one: killed in between, the step is done again
                with replacing(self.directory / "best.ckpt") as copy:
                    shutil.copyfile(temporary, copy)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "judged": self.judged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.judged = state_dict["best"], state_dict["judged"]

    def _objective(self, trainer: L.Trainer) -> float:
        """What `best.ckpt` has the lowest of: the held-out objective when there is one, else that of all pairs.

        Mini-batch engines never see all pairs: there it is the mean of the batches logged since the checkpoint before.
        """
        module = fitting(trainer.lightning_module)
        if trainer.limit_val_batches:
            return float(trainer.callback_metrics.get("val/nll", math.inf))
        new = [entry for entry in module.history[self.judged :] if entry["fit/phase"] > 0]  # 0: of cross-validation
        self.judged = len(module.history)
        if module.engine.full_batch:
            new = new[-1:]
        return sum(entry["train/nll"] for entry in new) / len(new) if new else math.inf


class Progress(ProgressBar):
    """The progress line of the present phase."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self._line: ProgressLine | None = None

    def disable(self) -> None:  # Lightning's way of keeping other processes quiet
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line = ProgressLine(fitting(pl_module).fit) if self.enabled else None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._line is not None and "train/nll" in trainer.progress_bar_metrics:
            self._line.update(fitting(pl_module).fit, float(trainer.progress_bar_metrics["train/nll"]))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
