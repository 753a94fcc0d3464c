"""The frozen law's score, centered by what the exact law of the same head expects of it: law "corrected".

    U(theta) = mean over the pairs of [ s(x, dx) - E s(x, .) ],      s = d log p_frozen / d theta,

the expectation under the law that follows the coefficients along the step. At the true coefficients it is zero on
average, however long the step, so that its root is free of the frozen law's bias (indirect inference: what the frozen
law makes of the exact law of theta is what it has made of the data). It takes forward evaluations of the exact law
only. Where tails are lost the expectation is conditional on what was kept, stratum by stratum, and the frozen law's own
masses cancel; with the TCF the strata carry the weights 1 - R and R, R the exact law's.

What a pair tells under the exact law is the information of its own score, or of the frozen law's centered one. An
estimating equation sum_k scale_k sum_pairs s / n = 0 over strata k (core and tail pool, or all pairs) has the slope
-A and the variance B / n, with covariances taken within each state and stratum,

    A = sum_k scale_k sum_x n_k(x) Cov(s, s_exact) / n,      B = sum_k scale_k^2 sum_x n_k(x) Cov(s, s) / n,

since d/d theta of an expectation under the law is a covariance with its score. The information is A^T B^-1 A; for the
likelihood itself s = s_exact, scale = 1 and all three are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.coefficients.padded import on_a_cell
from levytorch.data.lattice import Lattice
from levytorch.data.lattice_tables import StateCounts
from levytorch.likelihood.exact import ExactLaw, beside
from levytorch.likelihood.exact_scores import ExpectedScores, expected_scores
from levytorch.likelihood.frozen import FrozenLaw, coefficient_jacobian
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import TailMasses, TailSettings, tail_correction_factor


@dataclass
class Strata:
    """Which pairs there are: counts of states, of all pairs and of those beyond CT, and the thresholds of a dt.

    method, region: as of a Likelihood.
    """

    method: str
    region: str
    mu: float
    mu_is_rate: bool
    CT: dict[float, float]
    TRT: dict[float, float]
    main: StateCounts
    tail: StateCounts | None

    @classmethod
    def of(cls, tail: TailSettings, lattice: Lattice) -> Strata:
        """Those of a lattice under these settings."""
        times = lattice.dt.tolist()
        CT, TRT = (
            {t: float(v) for t, v in zip(times, values) if np.isfinite(v)} for values in (lattice.CT, lattice.TRT)
        )
        main = lattice.counts_of_states("main")
        beyond = lattice.counts_of_states("tail") if lattice.n_tail else None
        return cls(tail.method, tail.conditions_on, lattice.mu, lattice.mu_is_rate, CT, TRT, main, beyond)

    @classmethod
    def on(cls, bins: StateBins, masses: TailMasses | None, tail: TailSettings, main: Tensor, beyond: Tensor) -> Strata:
        """Those of pairs counted on the bins of states."""
        CT, TRT, mu, uneven = {}, {}, 0.0, False
        if masses is not None:
            times = bins.dt.tolist()
            CT = {} if masses.CT is None else dict(zip(times, masses.CT.tolist()))
            TRT = {} if masses.TRT is None else dict(zip(times, masses.TRT.tolist()))
            mu, uneven = float(masses.mu), masses.uneven
        counts = StateCounts(bins.x, bins.dt, main)
        tails = StateCounts(bins.x, bins.dt, beyond) if bool(beyond.any()) else None
        return cls(tail.method, tail.conditions_on, mu, uneven, CT, TRT, counts, tails)

    @property
    def n(self) -> float:
        return float(self.main.pairs.sum())

    def intervals(self, dt: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """(low, high) of dx within CT and within TRT; infinite where there is no threshold."""
        center = self.mu * (dt if self.mu_is_rate else 1.0)
        CT, TRT = self.CT.get(dt, math.inf), self.TRT.get(dt, math.inf)
        return (center - CT, center + CT), (center - TRT, center + TRT)

    def cuts(self, dt: float) -> list[float]:
        return [edge for interval in self.intervals(dt) for edge in interval if math.isfinite(edge)]

    def reach(self, dt: float) -> float:
        """|dx| beyond which there are no pairs."""
        return max(map(abs, self.intervals(dt)[1])) if self.method != "none" else math.inf

    @property
    def split(self) -> bool:
        """Whether core and tail pool are conditioned on each alone."""
        return self.tail is not None and (
            self.method == "tcf" or (self.method == "conditional" and self.region != "TRT")
        )

    def scale(self, name: str, R_theta: float | None) -> float:
        """What a pair of a stratum weighs in the equation, times the number of all pairs."""
        if self.method != "tcf" or self.tail is None or R_theta is None:
            return 1.0
        n, n_tail = float(self.main.pairs.sum()), float(self.tail.pairs.sum())
        return (1 - R_theta) * n / (n - n_tail) if name == "core" else R_theta * n / n_tail

    def each(self, rows: ExpectedScores, dt: float) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(name, probability of each row within the stratum, pairs of each state in it) for one dt."""
        within_CT, within_TRT = self.intervals(dt)
        kept = rows.within(*within_TRT) if self.method != "none" else rows.p
        main = self.main.pairs[self.main.dt == dt]
        if not self.split:
            yield "main", kept, main
            return
        assert self.tail is not None
        core, tail = rows.within(*within_CT), self.tail.pairs[self.tail.dt == dt]
        yield "core", core, main - tail
        yield "tail", (kept - core).clamp(min=0.0), tail


@torch.no_grad()
def centered_score(objective: FullBatchObjective, exact: ExactLaw, strata: Strata) -> tuple[Tensor, Evaluation]:
    """U (P,) at the head of a frozen law's objective, and the evaluation; its R_theta and TCF are the exact law's."""
    ev = objective.evaluate()
    expected, R_theta = expected_score(objective.head, objective.law, exact, strata)
    sums = {"main": ev.main}
    if strata.split and ev.tail is not None:
        sums = {"core": ev.main - ev.tail, "tail": ev.tail}
    if strata.method == "tcf":
        assert objective.masses is not None
        ev.R_theta, ev.tcf = R_theta, tail_correction_factor(R_theta, objective.masses.R_sample)
    U = torch.zeros_like(ev.theta)
    for name, s in sums.items():
        U += strata.scale(name, R_theta) / strata.n * (s.gradient - expected[name])
    return U, ev


@torch.no_grad()
def expected_score(head: Head, frozen: FrozenLaw, exact: ExactLaw, strata: Strata) -> tuple[dict[str, Tensor], float]:
    """Sums over the pairs of every stratum of E[s | x, stratum], (P,) each, and the mean mass beyond CT."""
    rates, R_theta = expected_by_state(head, frozen, exact, strata)
    main, tail = strata.main.pairs, None if strata.tail is None else strata.tail.pairs
    if not strata.split or tail is None:
        return {"main": main @ rates["main"]}, R_theta
    return {"core": (main - tail) @ rates["core"], "tail": tail @ rates["tail"]}, R_theta


@torch.no_grad()
def expected_by_state(
    head: Head, frozen: FrozenLaw, exact: ExactLaw, strata: Strata
) -> tuple[dict[str, Tensor], float]:
    """E[s | x, stratum] at the states of the strata, (M, P) each, and the mean mass beyond CT."""
    head = on_a_cell(head)
    out: dict[str, Tensor] = {}
    M, P = len(strata.main.x), head.flat().numel()
    beyond = 0.0
    for dt in torch.unique(strata.main.dt).tolist():
        rows = expected_scores(exact, head, dt, cuts=strata.cuts(dt), scores=False)
        scores = frozen_scores(head, frozen, rows, dt)
        here = strata.main.dt == dt
        x, S = strata.main.x[here], len(rows.states)
        jacobian = coefficient_jacobian(head, x)
        for name, p, _ in strata.each(rows, dt):
            mass = p.new_zeros(S).index_add_(0, rows.which, p)
            fields = p.new_zeros((len(scores), S)).index_add_(1, rows.which, scores * p) / mass
            if name == "core":
                beyond += float((_at(1 - mass, x, head) * strata.main.pairs[here]).sum())
            total = out.setdefault(name, torch.zeros((M, P), dtype=torch.float64))
            for field, J in zip(_at(fields, x, head), jacobian):
                total[here] += field[:, None] * J
    return out, beyond / strata.n


def frozen_scores(head: Head, frozen: FrozenLaw, rows: ExpectedScores, dt: float) -> Tensor:
    """d log p_frozen / d(b, D_o, D_f[, alpha][, tempering]) of every row, (3 to 5, N)."""
    c = head(rows.states)
    at = Coefficients(c.b[rows.which], c.D_o[rows.which], c.D_f[rows.which], c.alpha, c.tempering)
    step = frozen.score(at, rows.dx, torch.tensor(dt, dtype=torch.float64), wrt_alpha=head.learns_alpha)
    return head.layout.scores(step, at)


def _at(values: Tensor, x: Tensor, head: Head) -> Tensor:
    """Values (..., S) on an even grid of the cell at other states, by their Fourier series."""
    S = values.shape[-1]
    modes = torch.fft.rfft(values) / S
    angle = 2 * math.pi / float(head.period) * (x - float(head.origin))
    waves = torch.polar(torch.ones((), dtype=torch.float64), angle[:, None] * torch.arange(modes.shape[-1]))
    waves[:, 1:] *= 2
    if S % 2 == 0:
        waves[:, -1] *= 0.5
    found: Tensor = modes @ waves.T.to(modes.dtype) if values.dim() > 1 else waves @ modes
    return found.real


class Information(NamedTuple):
    """Per pair, (P, P) each: slope A, variance B, and the symmetric curvature that scoring and penalties take."""

    slope: Tensor
    variance: Tensor
    curvature: Tensor

    @property
    def godambe(self) -> Tensor:
        """A^T B^-1 A."""
        if self.slope is self.variance:
            return self.slope
        return self.slope.T @ symmetric_inverse(self.variance) @ self.slope


class Informations(NamedTuple):
    """Of the exact law's score, and of the frozen law's centered one."""

    exact: Information
    corrected: Information


@torch.no_grad()
def informations(
    head: Head, frozen: FrozenLaw, exact: ExactLaw, strata: Strata, R_theta: float | None = None
) -> Informations:
    """At the parameters of the head, from the states of the data. R_theta: for the TCF, the mass beyond CT."""
    head = on_a_cell(head)
    n, P = strata.n, head.flat().numel()
    own, other = ([torch.zeros((P, P), dtype=torch.float64) for _ in range(3)] for _ in range(2))
    for dt in torch.unique(strata.main.dt).tolist():
        rows = expected_scores(exact, head, dt, cuts=strata.cuts(dt), reach=strata.reach(dt))
        assert rows.scores is not None
        x = strata.main.x[strata.main.dt == dt]
        both = torch.cat([rows.scores, _frozen(head, frozen, rows, dt)], dim=1)
        for name, p, counts in strata.each(rows, dt):
            scale = strata.scale(name, R_theta)
            weight = scale / n * _spread(counts, x, rows, head)
            used = torch.nonzero(p).reshape(-1)
            s, which, q = both[used], rows.which[used], p[used]
            q = q / q.new_zeros(len(rows.states)).index_add_(0, which, q)[which]
            products = s.T @ ((q * weight[which])[:, None] * s)
            mean = s.new_zeros((len(rows.states), 2 * P)).index_add_(0, which, q[:, None] * s)
            within = products - mean.T @ (weight[:, None] * mean)  # covariances within each state
            for total, part in ((own, slice(0, P)), (other, slice(P, 2 * P))):
                total[0] += within[part, :P]
                total[1] += scale * within[part, part]
            own[2] += products[:P, :P] if strata.method == "tcf" else within[:P, :P]
    if strata.method != "tcf":  # the likelihood itself
        own = [own[0], own[0], own[0]]
    centered = Information(other[0], other[1], other[0])  # whose slope is not symmetric
    return Informations(Information(*own), centered._replace(curvature=centered.godambe))


def _frozen(head: Head, frozen: FrozenLaw, rows: ExpectedScores, dt: float) -> Tensor:
    """The frozen law's scores of the rows, (N, P)."""
    fields = frozen_scores(head, frozen, rows, dt)
    rates = coefficient_jacobian(head, rows.states)
    out = fields[0][:, None] * rates[0][rows.which]
    for one, J in zip(fields[1:], rates[1:]):
        out.addcmul_(one[:, None], J[rows.which])
    return out


def _spread(counts: Tensor, x: Tensor, rows: ExpectedScores, head: Head) -> Tensor:
    """Pairs of states x as pairs of the states of the rows, an even grid on which information is smooth."""
    out = counts.new_zeros(len(rows.states))
    for node, share in beside(head, x, len(out)):
        out.index_add_(0, node, share * counts)
    return out
