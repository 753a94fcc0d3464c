"""What a pair tells under the exact law: the information of its own score, and of the frozen law's centered one.

An estimating equation sum_k scale_k sum_pairs s / n = 0 over strata k (core and tail pool, or all pairs) has the slope
-A and the variance B / n, with covariances taken within each state and stratum,

    A = sum_k scale_k sum_x n_k(x) Cov(s, s_exact) / n,      B = sum_k scale_k^2 sum_x n_k(x) Cov(s, s) / n,

since d/d theta of an expectation under the law is a covariance with its score. The information is A^T B^-1 A; for the
likelihood itself s = s_exact, scale = 1 and all three are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.padded import on_a_cell
from levytorch.likelihood.corrected import Strata, frozen_scores, learned_rates
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import ExpectedScores, expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.penalty import symmetric_inverse


class Information(NamedTuple):
    """Per pair, (P, P) each: slope A, variance B, and the products of scores that scoring takes for curvature."""

    slope: Tensor
    variance: Tensor
    products: Tensor

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
        for name, p, counts in strata.parts(rows, dt):
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
    return Informations(Information(*own), Information(other[0], other[1], other[0]))


def _frozen(head: Head, frozen: FrozenLaw, rows: ExpectedScores, dt: float) -> Tensor:
    """The frozen law's scores of the rows, (N, P)."""
    fields = frozen_scores(head, frozen, rows, dt)
    rates = learned_rates(head, rows.states)
    out = fields[0][:, None] * rates[0][rows.which]
    for field, J in zip(fields[1:], rates[1:]):
        out.addcmul_(field[:, None], J[rows.which])
    return out


def _spread(counts: Tensor, x: Tensor, rows: ExpectedScores, head: Head) -> Tensor:
    """Pairs of states x as pairs of the states of the rows, an even grid on which information is smooth."""
    S = len(rows.states)
    position = torch.remainder(x - float(head.origin), float(head.period)) * (S / float(head.period))
    left = position.floor()
    out = counts.new_zeros(S)
    for node, part in ((left, 1 - (position - left)), (left + 1, position - left)):
        out.index_add_(0, node.to(torch.int64) % S, part * counts)
    return out
