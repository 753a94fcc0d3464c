"""The frozen law's score, centered by what the exact law of the same head expects of it: law "corrected".

    U(theta) = mean over the pairs of [ s(x, dx) - E s(x, .) ],      s = d log p_frozen / d theta,

the expectation under the law that follows the coefficients along the step. At the true coefficients it is zero on
average, however long the step, so that its root is free of the frozen law's bias (indirect inference: what the frozen
law makes of the exact law of theta is what it has made of the data). It takes forward evaluations of the exact law
only. Where tails are lost the expectation is conditional on what was kept, stratum by stratum, and the frozen law's own
masses cancel; with the TCF the strata carry the weights 1 - R and R, R the exact law's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.coefficients.padded import on_a_cell
from levytorch.data.lattice import Lattice, StateCounts
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import ExpectedScores, expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import TailMasses, TailSettings, tail_correction_factor

_NAMES = ("b", "D_o", "D_f", "alpha")


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

    def parts(self, rows: ExpectedScores, dt: float) -> Iterator[tuple[str, Tensor, Tensor]]:
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
        jacobian = learned_rates(head, x)
        for name, p, _ in strata.parts(rows, dt):
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
    names = _NAMES[: 3 + head.learns_alpha] + ("tempering",) * head.tempering_spec.learned
    return torch.stack([getattr(step, name) for name in names])


def learned_rates(head: Head, x: Tensor) -> list[Tensor]:
    """d(b, D_o, D_f[, alpha][, tempering]) / d theta at states, (n, P) each, as `frozen_scores` has them."""
    rates = [J.detach() for J in head.jacobian(x)][: 3 + head.learns_alpha]
    return rates + [head.tempering_slope().expand_as(rates[0])] * head.tempering_spec.learned


def _at(values: Tensor, x: Tensor, head: Head) -> Tensor:
    """Values (..., S) on an even grid of the cell at other states, by their Fourier series."""
    S = values.shape[-1]
    modes = torch.fft.rfft(values) / S
    angle = 2 * math.pi / float(head.period) * (x - float(head.origin))
    waves = torch.polar(torch.ones((), dtype=torch.float64), angle[:, None] * torch.arange(modes.shape[-1]))
    waves[:, 1:] *= 2
    if S % 2 == 0:
        waves[:, -1] *= 0.5
    return (modes @ waves.T.to(modes.dtype)).real if values.dim() > 1 else (waves @ modes).real
