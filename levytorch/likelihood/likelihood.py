"""The log-likelihood of weighted transitions under a head, a law and a treatment of lost tails.

What engines maximise; it knows batches, never where they came from. Lightning's module and `recover` hold one each.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.inputs import HeadOfInputs
from levytorch.coefficients.layout import scalar_size
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Pools
from levytorch.data.batches import Batch, FullBatch, full_batch
from levytorch.data.lattice import Lattice
from levytorch.data.thresholds import threshold_at
from levytorch.errors import InputError, NumericalError
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.laws import Law
from levytorch.likelihood.network import NetworkObjective, prior_of
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, Strength
from levytorch.likelihood.sums import InputBins, StateBins
from levytorch.likelihood.tail import TailCorrection, TailMasses, TailSettings
from levytorch.ranks import Ranks

N_BINS = 512  # of the states, for full batches


@dataclass
class Likelihood:
    """Everything but the data: `observe` tells it which states were seen, for the masses that lost tails need."""

    head: Head
    law: Law
    tail: TailSettings = field(default_factory=TailSettings)
    correction: TailCorrection = field(default_factory=TailCorrection)
    bins: Any = None  # StateBins, or what stands for them where a state has more columns
    masses: TailMasses | None = None
    ranks: Ranks = field(default_factory=Ranks)

    def observe(self, data: Pools | Lattice, n_bins: int = N_BINS) -> None:
        """The states at which tail masses are averaged, and the thresholds that define them."""
        dt = torch.from_numpy(data.dt) if isinstance(data, Lattice) else shared_dt(data)
        if isinstance(self.head, HeadOfInputs):
            assert isinstance(data, Pools)
            assert data.data.inputs is not None
            self.bins = InputBins(self.head, dt, data.data.inputs, n_bins)
        else:
            self.bins = StateBins(self.head, dt, n_bins)
        self.masses = tail_masses(self.bins, data, self.tail, self.law) if self.tail.active else None

    @property
    def frozen_law(self) -> FrozenLaw:
        """The law, where it is known to be the frozen one."""
        assert isinstance(self.law, FrozenLaw)
        return self.law

    def log_prob(self, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p of transitions; conditional on |dx - mu| being kept when the tail settings say so."""
        log_p = self.law.log_prob(self.head, x, dx, dt)
        if self.tail.method == "conditional":
            log_p = log_p - self.observed_masses().log_kept_of(self.head, x, dx, dt)
        return log_p

    def nll(self, batch: Batch, step: int = 0) -> Tensor:
        """-sum(weight * log p) of a batch; stops before the parameters are touched, and says which sample it was.

        Values are not read from other devices than the CPU.
        """
        log_p = self.log_prob(batch.x, batch.dx, batch.dt)
        nll = -(batch.weight * log_p).sum()
        if nll.device.type == "cpu" and not torch.isfinite(nll):
            bad = torch.nonzero(~torch.isfinite(log_p.detach())).reshape(-1)
            i = int(bad[0]) if bad.numel() else 0
            raise NumericalError(
                f"the loss must be finite, found {float(nll.detach())} at step {step} from sample {i} "
                f"(x = {batch.x[i].tolist()}, dx = {batch.dx[i].tolist()}, log p = {float(log_p.detach()[i]):.6g}); "
                "the parameters of the step before are kept: resume with a smaller learning rate."
            )
        return nll

    def mean(self, batch: FullBatch) -> float:
        """The mean log-likelihood of a full batch, by one pass over it."""
        with torch.no_grad():
            total = torch.zeros((), dtype=torch.float64)
            for chunk in batch.chunks():
                # nodes of a lattice share few states, at which a head is evaluated once
                frozen = isinstance(self.law, FrozenLaw) and self.law.dim == 1 and isinstance(self.bins, StateBins)
                few = frozen and self.bins.are_states(chunk.x)
                head = self.bins.held(self.head) if few else self.head
                total += (chunk.weight * self.law.log_prob(head, chunk.x, chunk.dx, chunk.dt)).sum()
            if self.tail.method == "conditional":
                total = total - self.observed_masses().mean_log_kept(self.head)
        return float(total)

    def objective(self, batch: FullBatch, penalty: Strength = "none", n_bins: int = N_BINS) -> FullBatchObjective:
        """The same under the frozen law, with its local model."""
        bins = StateBins(self.head, batch.main.dt, n_bins) if self.bins is None else self.bins
        kind = FullBatchObjective if isinstance(self.head, LinearHead) else NetworkObjective
        plain = isinstance(self.head, LinearHead) and not isinstance(self.head, TangentHead)
        rough = RoughnessPenalty(self.head, penalty) if plain else prior_of(self.head, penalty)  # type: ignore[arg-type]
        return kind(
            self.head,  # type: ignore[arg-type]
            self.frozen_law,
            bins,
            batch,
            masses=self.masses,
            method=self.tail.method,
            region=self.tail.conditions_on,
            penalty=rough if rough.active else None,
        )

    def correct(self, R_theta: float | None = None) -> None:
        """Algorithm E.6: the TCF of the present parameters (R_theta where the engine has computed it already)."""
        if self.tail.method == "tcf":
            masses = self.observed_masses()
            if R_theta is None:
                R_theta = masses.R_theta(self.head if self.head.device.type == "cpu" else deepcopy(self.head).cpu())
            self.correction.update(R_theta, masses.R_sample)

    def observed_masses(self) -> TailMasses:
        """The masses at the observed states."""
        if self.masses is None:
            raise InputError(
                f"tail.method {self.tail.method} must have the observed states and thresholds, found a loader of "
                "batches only; use a LevyDataModule, or tail none."
            )
        return self.masses


def mean_coefficients(head: Head) -> dict[str, float]:
    """Means over one cell; a cheap summary of where a fit is."""
    with torch.no_grad():
        x = head.grid(32 if head.dim == 1 else 256)
        c = head(x[:1] if head.is_constant else x)
    means = {f"mean/{name}": float(v.mean()) for name, v in zip(c._fields, c) if v.dim() < 2}
    means["mean/D_o"] = float(scalar_size(c.D_o).mean())
    if head.dim > 1:
        means |= {f"mean/b_{i + 1}": float(v) for i, v in enumerate(c.b.mean(0))}
    return means


def shared_dt(pools: Pools) -> Tensor:
    """dt of all pairs within TRT, 0-d when they share it."""
    return pools.data.dt[0] if pools.data.uniform_dt else pools.main.dt


def counts_on(bins: StateBins, data: Pools | Lattice, pool: str = "main") -> Tensor:
    """How many pairs of a pool start in each bin, (M,)."""
    if isinstance(data, Lattice):
        x, dt, pairs = data.counts_of_states(pool)
        if data.period is None:  # a line: states outside of the window of the head are not fitted
            within = bins.clamped(x) == x
            x, dt, pairs = x[within], dt[within], pairs[within]
        return torch.bincount(bins.index(x, dt), pairs, minlength=len(bins))
    dt = shared_dt(data)
    if pool == "tail":
        return bins.counts(data.data.states[data.tail_of_data], dt if dt.dim() == 0 else dt[data.tail])
    if dt.dim() == 0:  # counts of all but those of the removed: nothing is copied
        x = data.data.states
        return bins.counts(x, dt) - bins.counts(x[torch.from_numpy(data.removed)], dt)
    return bins.counts(data.main.states, dt)


def tail_masses(bins: StateBins, data: Pools | Lattice, tail: TailSettings, law: Law) -> TailMasses:
    """Thresholds and numbers of observed states on the bins."""
    if isinstance(data, Lattice):
        mu, uneven = torch.tensor(data.mu, dtype=torch.float64), data.mu_is_rate
        sheet = (bins.dt.unsqueeze(1) - torch.from_numpy(data.dt)).abs().argmin(1)
        CT, TRT = (torch.from_numpy(v)[sheet] if bool(np.isfinite(v).any()) else None for v in (data.CT, data.TRT))
    else:
        mu, uneven, CT, TRT = data.mu, not data.data.uniform_dt, None, None
        if data.CT is not None:
            varies = callable(data.CT) and uneven
            at = bins.means(data.threshold_of, shared_dt(data)) if varies else data.threshold_of(slice(0, 1))
            CT = at.expand(len(bins))
        if data.TRT is not None:
            TRT = torch.as_tensor(threshold_at(data.TRT, bins.dt), dtype=torch.float64).expand(len(bins))
    if tail.method == "conditional" and tail.conditions_on == "TRT":
        CT = None
    no_tail = isinstance(data, Lattice) and not data.has_tail
    beyond = torch.zeros(len(bins), dtype=torch.float64) if no_tail else counts_on(bins, data, "tail")
    return TailMasses(bins, mu, uneven, CT, TRT, counts_on(bins, data), beyond, law, at_mean=tail.R_theta == "mean")


def make_objective(head: LinearHead, pools: Pools, tail: TailSettings, law: FrozenLaw) -> FullBatchObjective:
    """The full-batch objective of a Fourier head over all pairs of some pools."""
    likelihood = Likelihood(head, law, tail)
    likelihood.observe(pools)
    return likelihood.objective(full_batch(pools))
