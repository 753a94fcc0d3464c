"""The full-batch objective of a Fourier head and its local model: value, gradient, curvature, dependence on the TCF.

Per pair and in every variant the objective is a mean log-likelihood:
    none         mean over the main pool of log p
    tcf          (1 - TCF) mean_main(log p) + TCF mean_tail(log p), the expectation of the paper's sampling
    conditional  mean of log p - log P(kept region), per stratum

Its maximum has a covariance: inverse information, or the sandwich when the TCF is part of the estimating equation.
With R = R_theta the TCF's estimating equation is  G = (1 - R) mean_core(s) + R mean_tail(s) = 0: how many tails were
kept has dropped out. Its variance comes from what was kept within each pool (centered there: the pools' means are not
zero) and from the states over which R_theta is averaged; its slope from the observed second derivatives and from
d R_theta / d theta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.frozen import FrozenLaw, sweep
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, StateBins, assemble, project
from levytorch.likelihood.tail import TailMasses, tcf_gradient

_WIDTH = 1e-4  # of a predictor, for second derivatives of masses


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
    base: Tensor | None = None  # all parameters of a head that is not linear, and its tangent there
    frame: TangentHead | None = None


@dataclass
class LocalModel:
    """Gradient and curvature (positive) of the objective; `coupling` = (u, v): the TCF adds u v^T to d gradient."""

    value: float
    gradient: Tensor
    curvature: Tensor
    coupling: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Sweep:
    """`sweep` of everything but the pairs: what other processes are sent to sum over pairs of theirs."""

    head: LinearHead
    law: FrozenLaw
    bins: StateBins
    hessian: bool = False
    quick: bool = False

    def __call__(self, batch: Batch) -> ScoreSums:
        return sweep(self.head, self.law, batch, self.bins, hessian=self.hessian, quick=self.quick)


@dataclass
class FullBatchObjective:
    """The likelihood of one full batch, which may be pairs or the nodes of a lattice."""

    head: LinearHead
    law: FrozenLaw
    bins: StateBins
    batch: FullBatch
    masses: TailMasses | None = None
    method: str = "none"
    region: str = "TRT"
    penalty: RoughnessPenalty | None = None
    design: Sequence[Tensor] = field(default_factory=list)
    moving = False  # whether coordinates change from evaluation to evaluation

    def __post_init__(self) -> None:
        self.design = self.head.design(self.bins.x)

    @property
    def n(self) -> float:
        """Pairs that carry likelihood."""
        return self.batch.n_main

    def evaluate(self) -> Evaluation:
        """One pass at the head's parameters."""
        theta = self.head.theta.detach().clone()
        main, tail = self._sweep(self.batch.main, self.batch.tail if self.masses is not None else None)
        ev = Evaluation(theta, main, tail)
        if self.method == "tcf":
            assert self.masses is not None
            R, tcf, gradient = tcf_gradient(self.masses, self.head)
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

    def secant(self, before: Evaluation, after: Evaluation) -> tuple[Tensor, Tensor]:
        """A step between two evaluations, and how the gradient has fallen along it at the TCF of the second."""
        return after.theta - before.theta, self.gradient(before, after.tcf) - self.gradient(after, after.tcf)

    def seen_from(self, ev: Evaluation, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """A secant pair in the coordinates of an evaluation."""
        return pair

    def look_from(self, ev: Evaluation) -> None:
        """Take the coordinates of an evaluation; a linear head has the same ones everywhere."""

    def is_at(self, ev: Evaluation) -> bool:
        """Whether the head is where an evaluation was made."""
        return torch.equal(ev.theta, self.head.flat())

    def place(self, ev: Evaluation, theta: Tensor) -> None:
        """Move the head to theta, in the coordinates of an evaluation."""
        self.head.theta.copy_(theta)

    # -- combinations -------------------------------------------------------------------------------------------------
    def value(self, ev: Evaluation, tcf: float | None = None, *, penalised: bool = True) -> float:
        """Mean log-likelihood (penalised if there is a penalty), with the TCF of `ev` or a given one."""
        self.look_from(ev)
        tau = ev.tcf if tcf is None else tcf
        value = sum(float(w * s.log_p) for w, s in self._weighted_sums(ev, tau))
        for counts, log_mass, _ in self.subtracted(ev):
            value -= float((counts * log_mass).sum()) / self.n
        if penalised:
            value -= 0.5 * float((self.precision() * ev.theta**2).sum()) / self.n
        return value

    def gradient(self, ev: Evaluation, tcf: float | None = None) -> Tensor:
        self.look_from(ev)
        tau = ev.tcf if tcf is None else tcf
        g = torch.zeros_like(ev.theta)
        for w, s in self._weighted_sums(ev, tau):
            g += w * self.head.in_coordinates(s.gradient)
        for counts, _, q in self.subtracted(ev):
            g -= project(self.head, q * counts, self.design) / self.n
        return g - self.precision() * ev.theta / self.n

    def covariance_of_law(self) -> Tensor | None:
        """Of theta, where the law has an information matrix of its own; None: it is that of the scores of the data."""
        return None

    def information(self, ev: Evaluation) -> Tensor:
        """Mean outer product of the scores (P, P), of conditional scores where the likelihood is conditional."""
        self.look_from(ev)
        per_bin = torch.zeros_like(ev.main.second)
        for w, s in self._weighted_sums(ev, ev.tcf):
            per_bin += w * s.second
        for (counts, _, q), s in zip(self.regions(ev), self._strata(ev)):
            outer = q.unsqueeze(1) * s.first.unsqueeze(0)
            per_bin += (q.unsqueeze(1) * q.unsqueeze(0) * counts - outer - outer.transpose(0, 1)) / self.n
        return assemble(self.head, per_bin, self.design)

    def precision(self) -> Tensor:
        """Diagonal (P,) of that of the penalty as a prior, in units of the total log-likelihood."""
        return torch.zeros_like(self.head.theta.detach()) if self.penalty is None else self.penalty.precision()

    def penalised_information(self, ev: Evaluation) -> Tensor:
        """Of all pairs and of the penalty, (P, P)."""
        return self.n * self.information(ev) + torch.diag(self.precision())

    def local_model(self, ev: Evaluation) -> LocalModel:
        curvature = self.information(ev) + self._vanishing(ev) + torch.diag(self.precision()) / self.n
        coupling = None
        if self.method == "tcf" and ev.tcf > 0 and ev.tail is not None and ev.tcf_gradient is not None:
            u = ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n
            coupling = (self.head.in_coordinates(u), self.head.in_coordinates(ev.tcf_gradient))
        return LocalModel(self.value(ev), self.gradient(ev), curvature, coupling)

    # -- private ------------------------------------------------------------------------------------------------------
    def _vanishing(self, ev: Evaluation) -> Tensor:
        """Curvature (P, P) of the links of D_o, D_f and tempering, where it outweighs the score products.

        Where the data wants a coefficient to be zero, score products vanish faster than the gradient and promise steps
        without bound, which would hold up all other parameters; with the link's own curvature such a coefficient falls
        by a factor of about e in each pass.
        """
        chain = self.head.chain(ev.theta, self.design)
        score = torch.zeros_like(ev.main.first)
        products = torch.zeros_like(score)
        for w, s in self._weighted_sums(ev, ev.tcf):
            score += w * s.first
            products += w * s.second.diagonal().T
        for counts, _, q in self.regions(ev):
            score -= q * counts / self.n
        out = torch.zeros((ev.theta.numel(), ev.theta.numel()), dtype=torch.float64)
        layout = self.head.layout
        rows = [row for name in ("D_o", "D_f") for row in layout.positive(name)]
        rows += [len(score) - 1] * layout.tempering
        for row in (r for r in rows if self.head.sizes[r]):  # none of what is known
            slope = chain.slope[row]
            bend = -score[row] * chain.curvature[row] / torch.where(slope.abs() < 1e-300, 1e-300, slope)
            # summed over the states first: in single bins the score is noise, larger than its products
            excess = (self.design[row] * (bend - products[row])) @ self.design[row].T
            values, vectors = torch.linalg.eigh(excess)
            part = self.head.part(row)
            out[part, part] += (vectors * values.clamp(min=0.0)) @ vectors.T
        return out

    def _sweep(
        self, main: Batch, tail: Batch | None, hessian: bool = False, quick: bool = False
    ) -> tuple[ScoreSums, ScoreSums | None]:
        """Sums over the pairs of either pool."""
        over = Sweep(self.head, self.law, self.bins, hessian, quick)
        return main.summed(over), None if tail is None else tail.summed(over)

    def _weighted_sums(self, ev: Evaluation, tcf: float) -> list[tuple[float, ScoreSums]]:
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


def covariance(objective: FullBatchObjective, ev: Evaluation) -> Tensor | None:
    """(P, P) covariance of the estimate at an evaluation (with second derivatives when the TCF is in use).

    None when it is not finite, as where D_o is exactly zero or the information has run off the floating point range.
    """
    found: Tensor | None = None
    if objective.method == "tcf" and ev.tcf > 0:
        found = _sandwich(objective, ev)
    elif bool(torch.isfinite(information := objective.penalised_information(ev)).all()):
        found = symmetric_inverse(information)
    return found if found is not None and bool(torch.isfinite(found).all()) else None


def observed_slope(objective: FullBatchObjective, ev: Evaluation) -> Tensor:
    """d gradient / d theta (P, P) from second derivatives (`add_hessian`): minus the observed information per pair."""
    assert ev.main.hessian is not None
    head, design, n = objective.head, objective.design, ev.main.n
    per_bin = ev.main.hessian / n
    if objective.method == "tcf" and ev.tail is not None and ev.tail.hessian is not None:
        per_bin = (1 - ev.tcf) * per_bin + ev.tcf / ev.tail.n * ev.tail.hessian
    if objective.method == "conditional":
        per_bin = per_bin - _bend_of_masses(objective, ev) / n
    slope = assemble(head, per_bin, design)
    if objective.method == "tcf" and ev.tail is not None and ev.tcf_gradient is not None:
        # d TCF = d R / (1 - R_sample) multiplies (mean_tail - mean_main) = (1 - R_sample)(mean_tail - mean_core)
        apart = head.in_coordinates(ev.tail.gradient / ev.tail.n - ev.main.gradient / n)
        slope = slope + torch.outer(apart, head.in_coordinates(ev.tcf_gradient))
    return slope - torch.diag(objective.precision()) / n


def _bend_of_masses(objective: FullBatchObjective, ev: Evaluation) -> Tensor:
    """Second derivatives of the log masses of the strata in the predictors, times the pairs there, (C, C, M).

    Central differences, the predictor moved at all bins.
    """
    head = objective.head
    out = torch.zeros_like(ev.main.second)
    assert objective.masses is not None
    for row in range(len(head.sizes)):
        if not head.sizes[row]:
            continue  # known
        moved = []
        for sign in (1.0, -1.0):
            kept = objective.masses.log_kept_scores(head, objective.design, row, sign * _WIDTH)
            moved.append(objective.regions(replace(ev, kept=kept)))
        for (counts, _, above), (_, _, below) in zip(*moved):
            out[row] += counts * (above - below) / (2 * _WIDTH)
    return 0.5 * (out + out.transpose(0, 1))


def _sandwich(objective: FullBatchObjective, ev: Evaluation) -> Tensor | None:
    assert ev.tail is not None
    assert objective.masses is not None
    head, design = objective.head, objective.design
    core, tail = ev.main - ev.tail, ev.tail
    n = ev.main.n
    R = ev.tcf * (1 - objective.masses.R_sample) + objective.masses.R_sample
    m_core, m_tail = (head.in_coordinates(sums.gradient / sums.n) for sums in (core, tail))
    difference = m_tail - m_core
    slope = observed_slope(objective, ev)
    meat = torch.zeros_like(slope)
    deviation = objective.masses.exceedance(head) - R  # T(x) - R at every node
    share = objective.masses.share
    meat += torch.outer(difference, difference) * (share * deviation**2).sum() / share.sum()
    for sums, mean, weight in ((core, m_core, (1 - R) * n / core.n), (tail, m_tail, R * n / tail.n)):
        spread = assemble(head, sums.second, design) - sums.n * torch.outer(mean, mean)
        meat += weight**2 * spread / n
        counts = objective.masses.tail_counts
        if sums is core:
            counts = objective.masses.counts - counts
        with_state = project(head, sums.first * deviation, design) - mean * (counts * deviation).sum()
        cross = weight * torch.outer(with_state, difference) / n
        meat += cross + cross.T
    if not bool(torch.isfinite(slope).all() and torch.isfinite(meat).all()):
        return None
    inverse: Tensor = torch.linalg.pinv(slope)
    return inverse @ (meat / n) @ inverse.T


def separability(information: Tensor, head: LinearHead, mean: Tensor | None = None) -> float:
    """|correlation| of the estimates of mean D_o and mean D_f; near 1 (2 alpha -> 2) data cannot tell them apart.

    mean: (K,) of the functions of D_o over the states; None: that of a Fourier series over its cell. Zero if one of the
    two is known, or has left the parameters. Of a matrix the rows of its diagonal are added up.
    """
    directions = []
    for name in ("D_o", "D_f"):
        direction = torch.zeros(len(information), dtype=torch.float64)
        for row in head.layout.positive(name):
            part = head.part(row)
            if part.start == part.stop:
                return 0.0
            if mean is None:
                direction[part.start] = 1.0
            else:
                direction[part] = mean
        directions.append(direction)
    cov = symmetric_inverse(information)
    D_o, D_f = directions
    o, f, both = (float(a @ cov @ b) for a, b in ((D_o, D_o), (D_f, D_f), (D_o, D_f)))
    return abs(both) / math.sqrt(o * f) if o * f > 0 else math.nan
