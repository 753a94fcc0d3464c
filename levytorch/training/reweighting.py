"""A fit on the same data whose blocks count differently often: what folds, replicas and sandwiches ask for.

The estimate solves G(theta; times) = 0, the mean score of the weighted data. Its first-order change,
d theta / d times = -(dG / d theta)^-1 dG / d times, is the influence of every block: the sandwich is the sum of its
squares, and a refit starts from it. Chords of the same slope then lead to the solution itself, one
pass over the entries each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

from levytorch.coefficients import LinearHead, linear
from levytorch.coefficients.kernels import per_bin
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import NumericalError
from levytorch.likelihood.frozen import FrozenLaw, to_predictors
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective, observed_slope
from levytorch.likelihood.penalty import Strength, symmetric_inverse
from levytorch.likelihood.sums import StateBins, project, shared
from levytorch.likelihood.tail import TailCorrection, tail_correction_factor
from levytorch.training.blocks import Blocks, counted
from levytorch.training.engines.base import maximise
from levytorch.training.engines.fisher import FisherEngine

_CHORDS = 6
_CHUNK = 1 << 16


@dataclass
class Refitted:
    """Parameters and TCF of a fit to weighted blocks, and the pairs that these stand for."""

    theta: Tensor
    tcf: float
    n: float


class Reweighting:
    """Fits of a Fourier head to weighted blocks, near the fit to all of them once.

    close: how near a refit comes, in standard errors.
    evaluation: of all blocks once at the head's parameters, where there is one already.
    missed: how far the last refit was from its first-order start, in standard errors.
    """

    missed: float = math.inf

    def __init__(
        self,
        likelihood: Likelihood,
        blocks: Blocks,
        strengths: Strength = "none",
        *,
        close: float = 0.002,
        evaluation: Evaluation | None = None,
    ) -> None:
        self.head = copy.deepcopy(linear(likelihood.head))
        self.blocks, self.strengths, self.close = blocks, strengths, close
        self.likelihood = blocks.on_nodes(replace(likelihood, head=self.head, correction=TailCorrection()))
        self.objective = self._objective(blocks.once, blocks.whole)
        self.evaluation = self.objective.evaluate() if evaluation is None else evaluation
        self.theta = self.evaluation.theta
        self.inverse = -self._slope()

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor] | None:
        """Pairs of every block that start in each bin, (n_blocks, M), in the main and the tail pool."""
        return self.blocks.state_counts(self.likelihood)

    def objective_of(self, times: Tensor) -> FullBatchObjective:
        """What is maximised when block k counts times[k] times."""
        return self._objective(times, self.blocks.weighted(times))

    def _objective(self, times: Tensor, batch: FullBatch) -> FullBatchObjective:
        return counted(self.likelihood, self.counts, times).objective(batch, self.strengths)

    # -- first order --------------------------------------------------------------------------------------------------
    @cached_property
    def influence(self) -> Tensor:
        """(n_blocks, P): d theta / d times[k] at the fit to all blocks once."""
        times = self.blocks.once.requires_grad_(True)
        with torch.enable_grad():
            G = self._mean_score(times)
            (rows,) = torch.autograd.grad(G, times, torch.eye(len(G), dtype=G.dtype), is_grads_batched=True)
        return rows.T @ self.inverse.T

    @cached_property
    def curvature(self) -> Tensor:
        """(P, P) minus the slope, per pair: the metric in which distances are standard errors."""
        return torch.linalg.pinv(self.inverse)

    @property
    def smoothing(self) -> Tensor:
        """(P, P) what the penalty adds to the covariance: it draws the estimate away from what it is not sure of."""
        root = self.inverse * self.objective.precision().sqrt() / self.objective.n
        return root @ root.T

    @property
    def law(self) -> FrozenLaw:
        return self.likelihood.frozen_law

    def block_scores(self) -> Tensor:
        """(n_blocks, P): sums of the scores in theta over the pairs of every block."""
        return block_scores(self.head, self.law, self.blocks, self.blocks.main, self.objective.bins)

    def _mean_score(self, times: Tensor) -> Tensor:
        """G(theta; times) at the fit, with a graph in `times`; without the penalty, which has no blocks."""
        pairs, tail_pairs = self.blocks.pairs
        n, ev, objective = times @ pairs, self.evaluation, self.objective
        main = times @ self.block_scores()
        if objective.method == "tcf" and ev.tail is not None and self.blocks.tail is not None:
            assert self.counts is not None
            assert objective.masses is not None
            n_tail, states = times @ tail_pairs, times @ self.counts[0]
            R_sample = n_tail / n
            R = (states * objective.masses.exceedance(self.head)).sum() / states.sum()
            tcf = tail_correction_factor(float(R.detach()), float(R_sample.detach()))
            tau = (R - R_sample) / (1 - R_sample) if tcf > 0 else 0.0 * R
            return (1 - tau) * main / n + tau * (
                times @ block_scores(self.head, self.law, self.blocks, self.blocks.tail)
            ) / n_tail
        if objective.method == "conditional":
            assert self.counts is not None
            assert ev.kept is not None
            _, _, q_core, q_middle = ev.kept
            counts, tail_counts = (times @ c for c in self.counts)
            if len(objective.regions(ev)) == 1:
                parts = [(counts, q_core)]
            else:
                parts = [(counts - tail_counts, q_core), (tail_counts, q_middle)]
            for number, q in parts:
                main = main - _projected(self.head, q * number, self.objective.design)
        return main / n

    def _slope(self) -> Tensor:
        """(dG / d theta)^-1; with products of scores where second derivatives are not those of a maximum."""
        objective, ev = self.objective, self.evaluation
        objective.add_hessian(ev, most=1 << 62, quick=True)
        slope = observed_slope(objective, ev)
        if bool(torch.isfinite(slope).all()):
            if objective.method == "tcf" and ev.tcf > 0:
                return torch.linalg.pinv(slope)
            if float(torch.linalg.eigvalsh(slope)[-1]) < 0:
                return -symmetric_inverse(-slope)
        return -symmetric_inverse(objective.local_model(ev).curvature)

    def first_change(self, times: Tensor) -> Tensor:
        """(P,) of theta, to first order, when block k counts times[k] times.

        At the fit to all blocks the mean score is linear in `times`, but for the number of pairs it is divided by.
        """
        n = self.objective.n / float(times @ self.blocks.pairs[0])
        return (times - 1.0) @ self.influence * n + self.inverse @ self.objective.gradient(self.evaluation)

    # -- refits -------------------------------------------------------------------------------------------------------
    def refit(self, times: Tensor) -> Refitted:
        """The fit in which block k counts times[k] times, to a small part of a standard error."""
        objective = self.objective_of(times)
        change = self.first_change(times)
        self.head.set_flat(self.theta + change)
        before = math.sqrt(abs(float(objective.n * change @ self.curvature @ change)))
        self.missed = math.inf
        for k in range(_CHORDS):
            try:
                ev = objective.evaluate()
            except NumericalError:
                break
            gradient = objective.gradient(ev)
            step = self.inverse @ gradient
            distance = math.sqrt(abs(float(objective.n * gradient @ step)))
            if k == 0:
                self.missed = distance
            elif not distance < 0.5 * before:
                break
            self.head.set_flat(ev.theta + step)
            # what a step leaves is to it as it was to the one before; the slope ages by the first change, hence twice
            if 2 * distance * distance < self.close * before:
                return self._found(objective, ev)
            before = distance
        return self._scored(times, objective)

    def _scored(self, times: Tensor, objective: FullBatchObjective) -> Refitted:
        """By Fisher scoring from the fit to all blocks, where chords do not lead on."""
        self.head.set_flat(self.theta)
        engine = FisherEngine(penalty=self.strengths, tolerance=1e-4)  # type: ignore[arg-type]
        likelihood = counted(self.likelihood, self.counts, times)
        done = maximise(engine, likelihood, objective.batch)
        ev = done.optimizer.accepted  # type: ignore[attr-defined]
        return self._found(objective, ev)

    def _found(self, objective: FullBatchObjective, ev: Evaluation) -> Refitted:
        return Refitted(self.head.flat(), ev.tcf, objective.n)


@dataclass
class FirstOrder:
    """What is left of a `Reweighting` where the data is elsewhere: a refit adds up the influence of blocks."""

    head: LinearHead
    likelihood: Likelihood
    blocks: Blocks
    theta: Tensor
    influence: Tensor
    smoothing: Tensor

    @classmethod
    def of(cls, made: Reweighting) -> FirstOrder:
        return cls(made.head, made.likelihood, made.blocks, made.theta, made.influence, made.smoothing)

    def refit(self, times: Tensor) -> Refitted:
        """The fit in which block k counts times[k] times, to first order."""
        n = float(times @ self.blocks.pairs[0])
        change = (times - 1.0) @ self.influence * (float(self.blocks.pairs[0].sum()) / n)
        return Refitted(self.theta + change, 0.0, n)


def _projected(head: LinearHead, per_bin: Tensor, design: Sequence[Tensor]) -> Tensor:
    """`project`, with a graph in the numbers."""
    rows = torch.eye(head.theta.numel(), dtype=torch.float64)
    parts = [rows[:, head.part(i)] @ (phi @ per_bin[i]) for i, phi in enumerate(design)]
    return torch.stack(parts).sum(0)


def block_sandwiches(influence: Tensor, blocks: Blocks, parameters: float) -> list[Tensor]:
    """(P, P) covariances from the influence of every block (n_blocks, P).

    Blocks are taken as independent, whatever is within them; and, where they are parts of a few trajectories, only
    the trajectories are. parameters: how many the fit has determined.

    A scatter of few is corrected twice: the fit has made it smaller than that of independent data, and its own error
    makes intervals of so many standard errors hold less often than those of a normal distribution; Student's t says how
    much wider they must be to hold in 95 %.
    """
    independent = [(influence, blocks.pairs[0])]
    if (group := blocks.clusters) is not None:
        sums = torch.zeros((int(group.max()) + 1, 1 + influence.shape[1]), dtype=influence.dtype)
        sums.index_add_(0, group, torch.column_stack([blocks.pairs[0], influence]))
        independent.append((sums[:, 1:], sums[:, 0]))
    n, out = float(blocks.pairs[0].sum()), []
    for rows, pairs in independent:
        B = max(int((pairs > 0).sum()), 2)
        fitted = B / (B - 1) * n / max(n - parameters, 1.0)
        wider = float(stdtrit(B - 1, 0.975) / ndtri(0.975))
        out.append(rows.T @ rows * (fitted * wider**2))
    return out


@torch.no_grad()
def block_scores(
    head: LinearHead, law: FrozenLaw, blocks: Blocks, part: Batch, bins: StateBins | None = None
) -> Tensor:
    """(n_blocks, P): sums of the frozen law's scores in theta over the pairs of every block.

    bins: where all states are centers of these, functions of the state are applied to sums over each of them.
    """
    theta = head.theta.detach()
    if bins is not None and part.weight.dim() == 2 and bins.n_groups == 1 and bins.are_states(part.x):
        design = head.design(bins.x)
        chain = head.chain(theta, design)
        at = bins.index(part.x, part.dt)
        c = chain.coefficients.each(lambda values: values[at] if values.dim() else values)
        step = law.score(c, part.dx, shared(part.dt), wrt_alpha=head.learns_alpha)
        sums = per_bin(part.weight, head.layout.scores(step, c), at, len(bins))
        return project(head, to_predictors(sums, chain), design)
    total = torch.zeros((blocks.n_blocks, theta.numel()), dtype=torch.float64)
    for low in range(0, part.x.shape[0], _CHUNK):
        rows = slice(low, low + _CHUNK)
        x, dx, dt = part.x[rows], part.dx[rows], part.dt[rows]
        design = head.design(head.states(x))
        chain = head.chain(theta, design)
        step = law.score(chain.coefficients, dx, dt, wrt_alpha=head.learns_alpha)
        q = to_predictors(head.layout.scores(step, chain.coefficients), chain)
        scores = torch.zeros((theta.numel(), x.shape[0]), dtype=torch.float64)
        for i, (phi, row) in enumerate(zip(design, q)):
            scores[head.part(i)] += phi * row
        weight = part.weight[..., rows]
        total += blocks.sums(Batch(x, dx, dt, weight), scores)
    return total


@torch.no_grad()
def block_log_likelihoods(likelihood: Likelihood, blocks: Blocks, counts: tuple[Tensor, Tensor] | None) -> Tensor:
    """(n_blocks,): log-likelihood of every block under any head; counts: `Blocks.state_counts`."""

    def sums(part: Batch) -> Tensor:
        total = torch.zeros(blocks.n_blocks, dtype=torch.float64)
        for low in range(0, part.x.shape[0], _CHUNK):
            rows = slice(low, low + _CHUNK)
            x, dx, dt = part.x[rows], part.dx[rows], part.dt[rows]
            log_p = likelihood.law.log_prob(likelihood.head, x, dx, dt)
            total += blocks.sums(Batch(x, dx, dt, part.weight[..., rows]), log_p.unsqueeze(0))[:, 0]
        return total

    total = sums(blocks.main)
    if likelihood.tail.method == "conditional":
        assert counts is not None
        core, middle = likelihood.observed_masses().log_kept(likelihood.head)
        if likelihood.observed_masses().CT is None:
            return total - counts[0] @ core
        total = total - (counts[0] - counts[1]) @ core - counts[1] @ middle
    return total
