"""The one LightningModule: a head, a law, an engine and the treatment of lost tails.

Constructor arguments are plain numbers, strings and dicts, so that checkpoints load with weights-only semantics and a
module can be rebuilt from its checkpoint alone.
"""

from __future__ import annotations

import time
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, build_head
from levytorch.data import LevyDataModule, Pools
from levytorch.errors import NumericalError
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import pair_counts
from levytorch.likelihood.masses import TailMasses
from levytorch.likelihood.plan import make_masses
from levytorch.likelihood.tail import parse_tail
from levytorch.ranks import DRIFTED, Ranks, fingerprint
from levytorch.training.engines import build_engine

_FEW_BINS = 64  # states at which a mini-batch engine averages the tail mass each step


class LevyModule(L.LightningModule):
    """Maximises the likelihood of transitions.

    head, engine, tail: plain settings (see `build_head`, `build_engine`, `parse_tail`); seed drives the engine's own
    randomness; log_every: steps between two entries of the log.
    """

    def __init__(
        self,
        head: dict[str, Any],
        engine: dict[str, Any],
        tail: dict[str, Any] | None = None,
        density: str = "auto",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.head: Head = build_head(head)
        self.engine = build_engine(engine)
        self.engine.accepts(self.head)
        self.tail = parse_tail(tail)
        if density == "auto":
            # the law's own "auto" depends on what was evaluated before, and a resumed run has not done that
            density = "contour" if self.head.learns_alpha else "table"
        self.law = FrozenLaw(density, self.head.dim)
        self.seed, self.log_every = seed, log_every
        self.history: list[dict[str, float]] = []
        self._masses: TailMasses | None = None
        self._counts: tuple[Tensor, Tensor] | None = None
        self._clock: tuple[int, float] = (0, time.perf_counter())
        self.began = False  # whether a checkpoint, if there was one, has been taken in

    # -- surroundings -------------------------------------------------------------------------------------------------
    @property
    def data(self) -> LevyDataModule:
        return cast(LevyDataModule, self.trainer.datamodule)  # type: ignore[attr-defined]

    @property
    def pools(self) -> Pools:
        return self.data.pools

    @property
    def ranks(self) -> Ranks:
        """This process among those of the fit."""
        return Ranks.of(self.trainer)

    @property
    def masses(self) -> TailMasses:
        """Tail masses for engines that do not keep their own."""
        if self._masses is None:
            n_bins = 512 if self.engine.full_batch else _FEW_BINS
            self._masses = make_masses(self.head, self.pools, self.tail, self.law, n_bins)
        return self._masses

    def counts(self) -> tuple[Tensor, Tensor]:
        """Pairs of the main and of the tail pool on each state bin (conditional likelihood, full-batch engines)."""
        if self._counts is None:
            self._counts = pair_counts(self.masses.bins, self.pools)
        return self._counts

    def R_theta(self) -> float:
        """Tail mass beyond CT under the current parameters."""
        optimizer = self.torch_optimizer()
        accepted = getattr(optimizer, "accepted", None)
        if accepted is not None and accepted.R_theta is not None:
            return float(accepted.R_theta)
        return self.masses.R_theta(self.head)

    def torch_optimizer(self) -> Optimizer:
        """The optimiser itself, without Lightning's wrapper."""
        return cast(Optimizer, self.optimizers(use_pl_optimizer=False))

    # -- Lightning ----------------------------------------------------------------------------------------------------
    def configure_optimizers(self) -> Optimizer:
        return self.engine.optimizer(self)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Pairs are where they should be already; a full batch is only a handle."""
        return batch

    def on_train_start(self) -> None:
        self.began = True
        self._clock = (self.trainer.global_step, time.perf_counter())

    def training_step(self, batch: Any, batch_idx: int) -> None:
        nll = self.engine.step(self, batch)
        step = self.trainer.global_step
        if self.engine.full_batch or step % self.log_every == 0:
            self._log(step, float(nll))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            nll = -(batch.weight * self.log_prob(batch.x, batch.dx, batch.dt)).sum()
        # the weights of all chunks sum to one; every rank sees all of them
        self.log("val/nll", nll, batch_size=batch.x.shape[0], on_epoch=True, prog_bar=True, reduce_fx="sum")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["history"] = list(self.history)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history = list(checkpoint.get("history", []))

    # -- likelihood ---------------------------------------------------------------------------------------------------
    def log_prob(self, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p of transitions; conditional on |dx - mu| being kept when the tail settings say so."""
        log_p = self.law.log_prob(self.head, x, dx, dt)
        if self.tail.method == "conditional":
            log_p = log_p - self._log_kept(x, dx, dt)
        return log_p

    def _log_kept(self, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log of the kept mass per pair: for mini-batches (full-batch engines sum over state bins instead)."""
        masses = self.masses
        c = self.head(x)
        uniform = self.pools.main.uniform_dt
        vector = self.head.dim > 1
        center = self.pools.mu if uniform else self.pools.mu * (dt.unsqueeze(-1) if vector else dt)
        node = masses.bins.index(x, dt)
        beyond_TRT = 0.0 if masses.TRT is None else self.law.exceedance(c, masses.TRT[node], center, dt)
        if masses.CT is None:
            return torch.log1p(-cast(Tensor, beyond_TRT))
        CT = masses.CT[node]
        beyond_CT = self.law.exceedance(c, CT, center, dt)
        core = ((dx - center).norm(dim=-1) if vector else (dx - center).abs()) <= CT
        middle = (beyond_CT - beyond_TRT).clamp(min=1e-300)
        return torch.where(core, torch.log1p(-beyond_CT), torch.log(middle))

    def check_finite(self, nll: Tensor, log_p: Tensor, batch: Any) -> None:
        """Stop before the parameters are touched, and say which sample it was."""
        if torch.isfinite(nll):
            return
        nll = nll.detach()
        bad = torch.nonzero(~torch.isfinite(log_p.detach())).reshape(-1)
        i = int(bad[0]) if bad.numel() else 0
        raise NumericalError(
            f"the loss must be finite, found {float(nll)} at step {self.trainer.global_step} from sample {i} "
            f"(x = {batch.x[i].tolist()}, dx = {batch.dx[i].tolist()}, log p = {float(log_p.detach()[i]):.6g}); "
            "the parameters of the step before are kept: resume with a smaller learning rate."
        )

    def average(self, nll: Tensor, problem: NumericalError | None = None) -> Tensor:
        """Means over ranks: of the loss, and of the gradient in the head's parameters, in one exchange.

        A problem on any rank is raised on all of them, and so are parameters or TCFs that have drifted apart.
        """
        if self.ranks.world == 1:
            self.ranks.check(problem)
            return nll
        world, parameters = self.ranks.world, list(self.head.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        state = torch.cat([self.head.flat(), torch.tensor([self.data.tcf], dtype=torch.float64)])
        failed = torch.tensor([float(problem is not None)], dtype=torch.float64)
        failed, total, marks, *sums = self.ranks.sum([failed, nll, fingerprint(state), *gradients])
        if failed:
            self.ranks.check(problem)
        if world * marks[1] != marks[0] ** 2:
            self.ranks.check(NumericalError(DRIFTED))
        for p, g in zip(parameters, sums):
            p.grad = g / world
        return total / world

    # -- log ----------------------------------------------------------------------------------------------------------
    def _log(self, step: int, nll: float) -> None:
        previous, then = self._clock
        now = time.perf_counter()
        self._clock = (step, now)
        # fisher knows the TCF of the parameters it has just accepted; the data module gets it after the step
        accepted = getattr(self.torch_optimizer(), "accepted", None)
        tcf = float(self.data.tcf if accepted is None else accepted.tcf)
        values = {"train/nll": nll, "tail/TCF": tcf, "tail/R_sample": self.pools.R_sample}
        if self.tail.method == "tcf":
            values["tail/R_theta"] = values["tail/TCF"] * (1 - self.pools.R_sample) + self.pools.R_sample
        values |= self.mean_coefficients()
        if step > previous:
            seconds = (now - then) / (step - previous)
            batch = self.pools.n_main if self.engine.full_batch else self.data.batch_size * self.ranks.world
            values |= {"time/step_ms": 1e3 * seconds, "time/samples_per_s": batch / seconds}
        self.history.append({"step": float(step), **values})
        # self.log costs about half a millisecond per metric: only what the progress bar and checkpoints need goes there
        shown = ("train/nll", "tail/TCF") if self.tail.method == "tcf" else ("train/nll",)
        self.log_dict({k: values[k] for k in shown}, prog_bar=True, logger=False)
        for logger in self.loggers:
            logger.log_metrics(values, step=step)

    def mean_coefficients(self) -> dict[str, float]:
        """Means over one cell; a cheap summary of where the fit is."""
        with torch.no_grad():
            x = self.head.grid(32 if self.head.dim == 1 else 256)
            c = self.head(x[:1] if self.head.is_constant else x)
        means = {f"mean/{name}": float(v.mean()) for name, v in zip(c._fields, c) if v.dim() < 2}
        if self.head.dim > 1:
            means |= {f"mean/b_{i + 1}": float(v) for i, v in enumerate(c.b.mean(0))}
        return means
