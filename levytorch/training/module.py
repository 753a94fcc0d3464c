"""The one LightningModule: a likelihood, an engine, and what is logged.

Checkpoints hold its arguments as plain numbers, strings and dicts, so that they load with weights-only semantics and a
module can be rebuilt from its checkpoint alone; a head or an engine of one's own is handed over again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import lightning as L
import torch
from torch.optim import Optimizer

from levytorch.coefficients import Head, build_head
from levytorch.coefficients.build import HEADS
from levytorch.data import LevyDataModule
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.module import LatticeModule
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.tail import TailSettings, parse_tail
from levytorch.ranks import Ranks
from levytorch.training.engines.base import ENGINES, Clock, Engine, bare, build_engine, engine_class, entry


class LevyModule(L.LightningModule):
    """Maximises the likelihood of weighted batches: those of a LevyDataModule, or of any loader of (x, dx, dt, weight).

    head, engine, tail: a Head, an Engine and TailSettings, or plain settings of them (`build_head`, `build_engine`,
    `parse_tail`); seed drives the engine's own randomness; log_every: steps between two entries of the log.
    """

    def __init__(
        self,
        head: dict[str, Any] | Head,
        engine: dict[str, Any] | Engine,
        tail: dict[str, Any] | TailSettings | None = None,
        density: str = "auto",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.head: Head = head if isinstance(head, Head) else build_head(head)
        self.engine: Engine = engine if isinstance(engine, Engine) else build_engine(engine)
        self.engine.accepts(self.head)
        law = FrozenLaw(steady_method(density, self.head), self.head.dim)
        self.likelihood = Likelihood(self.head, law, parse_tail(tail))
        self.save_hyperparameters(self._plain(density, seed, log_every))
        self.seed, self.log_every = seed, log_every
        self.history: list[dict[str, float]] = []
        self.began = False  # whether a checkpoint, if there was one, has been taken in
        self._clock = Clock()
        self._held_out: float | None = None  # what validation has summed up so far

    def _plain(self, density: str, seed: int, log_every: int) -> dict[str, Any]:
        """The arguments of a module like this one, untrained, as far as they are levytorch's own."""
        tail = {key: value for key, value in asdict(self.likelihood.tail).items() if value is not None}
        plain = {"tail": tail, "density": density, "seed": seed, "log_every": log_every}
        if type(self.head) in HEADS.values():
            plain["head"] = self.head.config()
        if self.engine.name in ENGINES and type(self.engine) is engine_class(self.engine.name):
            plain["engine"] = self.engine.config()
        return plain

    def torch_optimizer(self) -> Optimizer:
        """The optimiser itself, without Lightning's wrapper."""
        return cast(Optimizer, self.optimizers(use_pl_optimizer=False))

    # -- Lightning ----------------------------------------------------------------------------------------------------
    def on_fit_start(self) -> None:
        # not in setup, after which a checkpoint may still change the pools
        self.likelihood.ranks = Ranks.of(self.trainer)
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, (LevyDataModule, LatticeModule)):
            if data.lattice is not None:
                self.likelihood.ranks = Ranks()  # every rank has the sum of all
            data.correction = self.likelihood.correction
            self.likelihood.observe(data.observed, self.engine.n_bins)

    def configure_optimizers(self) -> Optimizer:
        return self.engine.optimizer(self.likelihood)

    def on_train_start(self) -> None:
        self.began = True
        self._clock = Clock(self.trainer.global_step)
        if self.history and "val/nll" in self.history[0] and "val/nll" not in self.history[-1]:
            # a run that was stopped between a step and its validation
            data = getattr(self.trainer, "datamodule", None)
            held_out: Any = self.trainer.val_dataloaders if data is None else data.val_dataloader()
            self.history[-1]["val/nll"] = sum((float(self._nll(batch)) for batch in held_out), 0.0)

    def training_step(self, batch: Batch | FullBatch | Sequence[torch.Tensor], batch_idx: int) -> None:
        batch = _as_batch(batch)
        if self.engine.full_batch and isinstance(batch, Batch):
            batch = FullBatch(batch, None, float(batch.weight.sum()), 0)
        optimizer = cast(Optimizer, self.optimizers())
        nll = self.engine.step(self.likelihood, optimizer, batch, self.trainer.global_step, self.seed)
        step = self.trainer.global_step
        if self.engine.full_batch or step % self.log_every == 0:
            n = batch.n_main if isinstance(batch, FullBatch) else batch[0].shape[0] * self.likelihood.ranks.world
            self._log(step, float(nll), n)

    def on_validation_epoch_start(self) -> None:
        self._held_out = 0.0

    def on_validation_epoch_end(self) -> None:
        if self.history and self._held_out is not None:
            self.history[-1]["val/nll"] = self._held_out

    def _nll(self, batch: Batch | Sequence[torch.Tensor]) -> torch.Tensor:
        batch = cast(Batch, _as_batch(batch))
        with torch.no_grad():
            return -(batch.weight * self.likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum()

    def validation_step(self, batch: Batch | Sequence[torch.Tensor], batch_idx: int) -> None:
        nll = self._nll(batch)
        self._held_out = (self._held_out or 0.0) + float(nll)
        # the weights of all chunks sum to one; every rank sees all of them
        self.log("val/nll", nll, batch_size=batch[0].shape[0], on_epoch=True, prog_bar=True, reduce_fx="sum")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["history"] = list(self.history)
        checkpoint["correction"] = self.likelihood.correction.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history = list(checkpoint.get("history", []))
        before = checkpoint["callbacks"].get("TailCorrection")  # where version 0.1 kept it
        correction = checkpoint.get("correction", before)
        if correction is not None:
            self.likelihood.correction.load_state_dict(correction)

    def _log(self, step: int, nll: float, n: float) -> None:
        values = entry(self.likelihood, bare(self.torch_optimizer()), nll) | self._clock.lap(step, n)
        self.history.append({"step": float(step), **values})
        # self.log costs about half a millisecond per metric: only what the progress bar and checkpoints need goes there
        shown = ("train/nll", "tail/TCF") if self.likelihood.tail.method == "tcf" else ("train/nll",)
        self.log_dict({k: values[k] for k in shown}, prog_bar=True, logger=False)
        for logger in self.loggers:
            logger.log_metrics(values, step=step)


def _as_batch(batch: Batch | FullBatch | Sequence[torch.Tensor]) -> Batch | FullBatch:
    """Torch's own loaders collate a batch into a list."""
    return batch if isinstance(batch, (Batch, FullBatch)) else Batch(*batch)
