"""The one LightningModule: a Fit, advanced by one step for every training step, and what is logged of it.

Checkpoints hold the arguments of the module as plain numbers, strings and dicts, and the state of the Fit, so that they
load with weights-only semantics and a module can be rebuilt from its checkpoint alone. A head or an engine of the
user's own is passed again, and so is a law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from levytorch.coefficients import Head, build_head
from levytorch.coefficients.build import HEADS
from levytorch.data import LevyDataModule
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.laws import Law, check_law
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.tail import TailSettings, parse_tail
from levytorch.ranks import Ranks, check_processes
from levytorch.training.engines.base import ENGINES, Engine, build_engine, engine_class
from levytorch.training.fit import Fit


class FitSteps(Optimizer):
    """Lightning counts the steps of an optimiser; a step of this one is a step of a Fit."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(list(fit.head.parameters()), {})

    def step(self, closure: Any = None) -> Any:
        return closure()


class LevyModule(L.LightningModule):
    """Maximises the likelihood of weighted batches: those of a LevyDataModule, or of any loader of (x, dx, dt, weight).

    head, engine, tail: a Head, an Engine and TailSettings, or plain settings of them (`build_head`, `build_engine`,
    `parse_tail`); law: its name, or a Law; density: how log p is computed under the frozen law; seed drives the
    engine's own randomness; log_every: steps between two entries of the log.
    """

    def __init__(
        self,
        head: dict[str, Any] | Head,
        engine: dict[str, Any] | Engine,
        tail: dict[str, Any] | TailSettings | None = None,
        law: str | Law = "auto",
        density: str = "auto",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.head: Head = head if isinstance(head, Head) else build_head(head)
        self.engine: Engine = engine if isinstance(engine, Engine) else build_engine(engine)
        if not isinstance(law, str):
            check_law(law)
        self.fit = Fit(self.head, self.engine, parse_tail(tail), law, density, seed, log_every)
        self.save_hyperparameters(self._plain(density, seed, log_every))
        self.began = False  # whether a checkpoint, if there was one, has been read
        self._logged = 0  # entries of the history that loggers have had
        self._stopping = False  # before validation
        self._held_out: float | None = None  # what validation has summed up so far

    @classmethod
    def of(cls, fit: Fit) -> LevyModule:
        """The module of a fit that has data of its own."""
        module = cls(fit.head, fit.engine, fit.tail, fit.law, fit.density, fit.seed, fit.log_every)
        module.fit = fit
        return module

    def follow(self) -> None:
        """Take over what the fit works with: another head once it is prepared, or once a coefficient has vanished."""
        fit = self.fit
        if fit.head is not self.head or fit.engine is not self.engine:
            self.head, self.engine = fit.head, fit.engine
            self.hparams.update(self._plain(fit.density, fit.seed, fit.log_every))

    @property
    def likelihood(self) -> Likelihood:
        """Of the present phase of the fit."""
        return self.fit.likelihood

    @property
    def history(self) -> list[dict[str, float]]:
        """What was logged of every step."""
        return self.fit.history

    def _plain(self, density: str, seed: int, log_every: int) -> dict[str, Any]:
        """The arguments of a module like this one, untrained, as far as they are levytorch's own."""
        tail = {key: value for key, value in asdict(self.fit.tail).items() if value is not None}
        plain = {"tail": tail, "density": density, "seed": seed, "log_every": log_every}
        if type(self.head) in HEADS.values():
            plain["head"] = self.head.config()
        if self.engine.name in ENGINES and type(self.engine) is engine_class(self.engine.name):
            plain["engine"] = self.engine.config()
        if isinstance(self.fit.law, str):
            plain["law"] = self.fit.law
        return plain

    # -- Lightning ----------------------------------------------------------------------------------------------------
    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.fit.ranks = Ranks.of(self.trainer)
            check_processes(self.fit.ranks.world, self.engine.name, self.engine.full_batch)

    def on_fit_start(self) -> None:
        # not in setup, after which a checkpoint may still change the pools of a data module
        if self.fit.settings is not None:
            return
        if self.fit.law == "corrected":
            raise InputError(
                'law "corrected" must have all of the data, found a loader of batches; use `recover` or train.py, or '
                'law="frozen".'
            )
        self.likelihood.ranks = self.fit.ranks
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, LevyDataModule):
            data.correction = self.likelihood.correction
            self.likelihood.observe(data.observed, self.engine.n_bins)

    def configure_optimizers(self) -> Optimizer:
        return FitSteps(self.fit)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Mini-batches go where the head is; phases that see all pairs stay on the CPU, and take the head there."""
        if self.fit.phase.engine.full_batch:
            self.head.cpu()
            return batch
        self.fit.phase.head.to(device)  # also one that was made after Lightning has moved the first
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_train_start(self) -> None:
        self.began, self._logged = True, len(self.history)
        for logger in self.loggers:
            if self.history and hasattr(logger, "go_on_after"):
                logger.go_on_after(int(self.history[-1]["step"]))
        if any("val/nll" in entry for entry in self.history) and "val/nll" not in self.history[-1]:
            # a run that was stopped between a step and its validation
            data = getattr(self.trainer, "datamodule", None)
            held_out: Any = self.trainer.val_dataloaders if data is None else data.val_dataloader()
            self.history[-1]["val/nll"] = sum((float(self._nll(batch)) for batch in held_out), 0.0)

    def training_step(self, batch: Batch | FullBatch | Sequence[torch.Tensor], batch_idx: int) -> None:
        if not self.fit.phase.counted:
            self.fit.step(_as_batch(batch))
            return
        steps: Any = self.optimizers()
        report = steps.step(closure=lambda: self.fit.step(_as_batch(batch)))
        if report.values:
            # self.log costs about half a millisecond per metric: only what checkpoints need goes there
            self.log("train/nll", report.nll, prog_bar=True, logger=False)
            if "tail/TCF" in report.values and self.fit.tail.method == "tcf":
                self.log("tail/TCF", report.values["tail/TCF"], prog_bar=True, logger=False)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Hand the loggers those entries of the history that they have not had: the same steps everywhere."""
        for entry in self.history[self._logged :]:
            values = {key: value for key, value in entry.items() if key != "step"}
            for logger in self.loggers:
                logger.log_metrics(values, step=int(entry["step"]))
        self._logged = len(self.history)

    def on_validation_epoch_start(self) -> None:
        self._held_out = None
        self._stopping = self.trainer.should_stop

    def on_validation_epoch_end(self) -> None:
        if self.history and self._held_out is not None:
            self.history[-1]["val/nll"] = self._held_out
            if self._logged == len(self.history):
                for logger in self.loggers:
                    logger.log_metrics({"val/nll": self._held_out}, step=int(self.history[-1]["step"]))

    def on_validation_end(self) -> None:
        """Lightning's EarlyStopping ends the mini-batches of a fit, which then continues with its next phase."""
        trainer, fit = self.trainer, self.fit
        by_validation = trainer.state.fn == TrainerFn.FITTING and trainer.should_stop and not self._stopping
        if by_validation and not fit.done and fit.settings is not None and not self.engine.full_batch:
            if not fit.phase.engine.full_batch:
                fit.phase.stop()
            trainer.should_stop = False

    def _nll(self, batch: Batch | Sequence[torch.Tensor]) -> torch.Tensor:
        x, dx, dt, weight = batch[:4]
        with torch.no_grad():
            return (weight * self.fit.nll_of(x, dx, dt)).sum()

    def validation_step(self, batch: Batch | Sequence[torch.Tensor], batch_idx: int) -> None:
        nll = self._nll(batch)
        self._held_out = (self._held_out or 0.0) + float(nll)
        # the weights of all chunks sum to one; every process sees all of them
        # within a fit loggers have it with the step it belongs to; Trainer.validate returns what loggers would get
        alone = self.trainer.state.fn != TrainerFn.FITTING
        size = batch[0].shape[0]
        self.log("val/nll", nll, batch_size=size, on_epoch=True, prog_bar=True, reduce_fx="sum", logger=alone)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["fit"] = self.fit.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "fit" in checkpoint:
            self.fit.load_state_dict(checkpoint["fit"])
            self.follow()
            return
        if self._trainer is not None:
            raise InputError(
                "a run must be resumed with the version of levytorch that started it, found a checkpoint of an older "
                "version; start a new run."
            )
        before = checkpoint.get("callbacks", {}).get("TailCorrection")  # where version 0.1 kept it at first
        correction = checkpoint.get("correction", before)
        if correction is not None:
            self.likelihood.correction.load_state_dict(correction)
        self.fit.history = list(checkpoint.get("history", []))


def _as_batch(batch: Batch | FullBatch | Sequence[torch.Tensor]) -> Batch | FullBatch:
    """Torch's own loaders collate a batch into a list."""
    return batch if isinstance(batch, (Batch, FullBatch)) else Batch(*batch)
