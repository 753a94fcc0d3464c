"""The full-batch objective of a Fourier head and its local model: value, gradient, curvature, dependence on the TCF.

Per pair and in every variant the objective is a mean log-likelihood:
    none         mean over the main pool of log p
    tcf          (1 - TCF) mean_main(log p) + TCF mean_tail(log p), the expectation of the paper's sampling
    conditional  mean of log p - log P(kept region), per stratum
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.masses import TailMasses, tcf_gradient
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.likelihood.sums import ScoreSums, StateBins, assemble, over_ranks, project
from levytorch.likelihood.sweep import sweep
from levytorch.ranks import Ranks


@dataclass
class Evaluation:
    """Everything one pass leaves behind at one theta."""

    theta: Tensor
    main: ScoreSums
    tail: ScoreSums | None = None
    tcf: float = 0.0
    R_theta: float | None = None
    tcf_gradient: Tensor | None = None
    kept: tuple[Tensor, Tensor, Tensor, Tensor] | None = None


@dataclass
class LocalModel:
    """Gradient and curvature (positive) of the objective; `coupling` = (u, v): the TCF adds u v^T to d gradient."""

    value: float
    gradient: Tensor
    curvature: Tensor
    coupling: tuple[Tensor, Tensor] | None = None


@dataclass
class FullBatchObjective:
    """The likelihood of one full batch, which may be pairs or the nodes of a lattice.

    With several ranks the batch is this rank's shard; sums are over all ranks.
    """

    head: LinearHead
    law: FrozenLaw
    bins: StateBins
    batch: FullBatch
    masses: TailMasses | None = None
    method: str = "none"
    region: str = "TRT"
    penalty: RoughnessPenalty | None = None
    ranks: Ranks = field(default_factory=Ranks)
    design: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.design = self.head.design(self.bins.x)

    @property
    def n(self) -> float:
        """Pairs that carry likelihood, on all ranks."""
        return self.batch.n_main

    def evaluate(self) -> Evaluation:
        """One pass at the head's parameters."""
        theta = self.head.theta.detach().clone()
        main, tail = self._sweep(self.batch.main, self.batch.tail if self.masses is not None else None)
        ev = Evaluation(theta, main, tail)
        if self.method == "tcf":
            assert self.masses is not None
            R, tcf, gradient = tcf_gradient(self.masses, self.head)
            if self.ranks.world > 1:
                numbers = self.ranks.same(torch.cat([torch.tensor([R, tcf], dtype=torch.float64), gradient]))
                R, tcf, gradient = float(numbers[0]), float(numbers[1]), numbers[2:]
            ev.R_theta, ev.tcf, ev.tcf_gradient = R, tcf, gradient
        elif self.method == "conditional":
            assert self.masses is not None
            ev.kept = self.masses.log_kept_scores(self.head, self.design)
        return ev

    def add_hessian(self, ev: Evaluation, most: int = 1_000_000, *, quick: bool = False) -> None:
        """Second derivatives at the head's parameters into `ev`, from about `most` evenly spread pairs at most.

        quick: see `sweep`.
        """
        stride = max(1, self.batch.main.x.shape[0] // most)
        some = Batch(*(values[::stride] for values in self.batch.main))
        main, tail = self._sweep(some, self.batch.tail, hessian=True, quick=quick)
        assert main.hessian is not None
        ev.main.hessian = main.hessian * (ev.main.n / main.n)
        if tail is not None and ev.tail is not None:
            ev.tail.hessian = tail.hessian

    # -- combinations -------------------------------------------------------------------------------------------------
    def value(self, ev: Evaluation, tcf: float | None = None, *, penalised: bool = True) -> float:
        """Mean log-likelihood (penalised if there is a penalty), with the TCF of `ev` or a given one."""
        tau = ev.tcf if tcf is None else tcf
        value = sum(float(w * s.log_p) for w, s in self._parts(ev, tau))
        for counts, log_mass, _ in self.subtracted(ev):
            value -= float((counts * log_mass).sum()) / self.n
        if penalised and self.penalty is not None and self.penalty.active:
            value -= 0.5 * float((self.penalty.precision() * ev.theta**2).sum()) / self.n
        return value

    def gradient(self, ev: Evaluation, tcf: float | None = None) -> Tensor:
        tau = ev.tcf if tcf is None else tcf
        g = torch.zeros_like(ev.theta)
        for w, s in self._parts(ev, tau):
            g += w * s.gradient
        for counts, _, q in self.subtracted(ev):
            g -= project(self.head, q * counts, self.design) / self.n
        if self.penalty is not None and self.penalty.active:
            g -= self.penalty.precision() * ev.theta / self.n
        return g

    def information(self, ev: Evaluation) -> Tensor:
        """Mean outer product of the scores (P, P), of conditional scores where the likelihood is conditional."""
        per_bin = torch.zeros_like(ev.main.second)
        for w, s in self._parts(ev, ev.tcf):
            per_bin += w * s.second
        for (counts, _, q), s in zip(self.regions(ev), self._strata(ev)):
            outer = q.unsqueeze(1) * s.first.unsqueeze(0)
            per_bin += (q.unsqueeze(1) * q.unsqueeze(0) * counts - outer - outer.transpose(0, 1)) / self.n
        return assemble(self.head, per_bin, self.design)

    def local_model(self, ev: Evaluation) -> LocalModel:
        curvature = self.information(ev) + self._vanishing(ev)
        if self.penalty is not None and self.penalty.active:
            curvature = curvature + torch.diag(self.penalty.precision()) / self.n
        coupling = None
        if self.method == "tcf" and ev.tcf > 0 and ev.tail is not None and ev.tcf_gradient is not None:
            u = ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n
            coupling = (u, ev.tcf_gradient)
        return LocalModel(self.value(ev), self.gradient(ev), curvature, coupling)

    # -- private ------------------------------------------------------------------------------------------------------
    def _vanishing(self, ev: Evaluation) -> Tensor:
        """Curvature (P, P) of the links of D_o, D_f and tempering, where it outweighs the score products.

        Where the data wants a coefficient to be zero, score products vanish faster than the gradient and promise steps
        without bound, which would hold up all other parameters; with the link's own curvature such a coefficient falls
        by a factor of about e in each pass.
        """
        d, at = self.head.dim, self.head.starts
        chain = self.head.chain(ev.theta, self.design)
        score = torch.zeros_like(ev.main.first)
        products = torch.zeros_like(score)
        for w, s in self._parts(ev, ev.tcf):
            score += w * s.first
            products += w * s.second.diagonal().T
        for counts, _, q in self.regions(ev):
            score -= q * counts / self.n
        out = torch.zeros((ev.theta.numel(), ev.theta.numel()), dtype=torch.float64)
        rows = [d, d + 1] + [len(score) - 1] * self.head.tempering_spec.learned
        for row in (r for r in rows if self.head.sizes[r]):  # none of what is known
            slope = chain.slope[row]
            bend = -score[row] * chain.curvature[row] / torch.where(slope.abs() < 1e-300, 1e-300, slope)
            # summed over the states first: in single bins the score is noise, larger than its products
            excess = (self.design[row] * (bend - products[row])) @ self.design[row].T
            values, vectors = torch.linalg.eigh(excess)
            part = slice(at[row], at[row + 1])
            out[part, part] = (vectors * values.clamp(min=0.0)) @ vectors.T
        return out

    def _sweep(
        self, main: Batch, tail: Batch | None, hessian: bool = False, quick: bool = False
    ) -> tuple[ScoreSums, ScoreSums | None]:
        """Sums over the pairs of all ranks."""

        def work() -> list[ScoreSums]:
            return [
                sweep(self.head, self.law, part, self.bins, hessian=hessian, quick=quick)
                for part in (main, tail)
                if part is not None
            ]

        totals = over_ranks(self.ranks, self.ranks.together(work))
        return totals[0], totals[1] if tail is not None else None

    def _parts(self, ev: Evaluation, tcf: float) -> list[tuple[float, ScoreSums]]:
        """Weighted sums that make up the likelihood."""
        if self.method == "tcf" and ev.tail is not None:
            return [((1 - tcf) / ev.main.n, ev.main), (tcf / ev.tail.n, ev.tail)]
        return [(1 / self.n, ev.main)]

    def regions(self, ev: Evaluation) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(counts, log mass, d log mass / d eta) of every stratum of a conditional likelihood."""
        if self.method != "conditional" or ev.kept is None or self.masses is None:
            return []
        core, middle, q_core, q_middle = ev.kept
        counts, tail_counts = self.masses.counts, self.masses.tail_counts
        if self.region == "TRT" or ev.tail is None:
            return [(counts, core, q_core)]
        return [(counts - tail_counts, core, q_core), (tail_counts, middle, q_middle)]

    def subtracted(self, ev: Evaluation) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The regions whose masses are not in the sums yet."""
        return self.regions(ev)

    def _strata(self, ev: Evaluation) -> list[ScoreSums]:
        if self.region == "TRT" or ev.tail is None:
            return [ev.main]
        return [ev.main - ev.tail, ev.tail]
