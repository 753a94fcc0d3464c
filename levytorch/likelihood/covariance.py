"""Covariance of theta: inverse information, or the sandwich when the TCF is part of the estimating equation.

With R = R_theta the TCF's estimating equation is  G = (1 - R) mean_core(s) + R mean_tail(s) = 0: how many tails were
kept has dropped out. Its variance comes from what was kept within each pool (centered there: the pools' means are not
zero) and from the states over which R_theta is averaged; its slope from the observed second derivatives and from
d R_theta / d theta.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import assemble, project


def covariance(objective: FullBatchObjective, ev: Evaluation, slope: Tensor | None = None) -> Tensor | None:
    """(P, P) covariance of the estimate at an evaluation (with second derivatives when the TCF is in use).

    slope: (P, P) derivative of the objective's gradient, where it is known better than from the evaluation. None when
    it is not finite, as where D_o is exactly zero or the information has run off the floating point range.
    """
    found = _covariance(objective, ev, slope)
    return found if found is not None and bool(torch.isfinite(found).all()) else None


def _covariance(objective: FullBatchObjective, ev: Evaluation, slope: Tensor | None) -> Tensor | None:
    if objective.method == "tcf" and ev.tcf > 0:
        return _sandwich(objective, ev, slope)
    if slope is not None:
        return symmetric_inverse(-0.5 * objective.n * (slope + slope.T))
    information = objective.n * objective.information(ev)
    if objective.penalty is not None and objective.penalty.active:
        information = information + torch.diag(objective.penalty.precision())
    return symmetric_inverse(information) if bool(torch.isfinite(information).all()) else None


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
        slope = slope + torch.outer(ev.tail.gradient / ev.tail.n - ev.main.gradient / n, ev.tcf_gradient)
    if objective.penalty is not None and objective.penalty.active:
        slope = slope - torch.diag(objective.penalty.precision()) / n
    return slope


def _bend_of_masses(objective: FullBatchObjective, ev: Evaluation, width: float = 1e-4) -> Tensor:
    """Second derivatives of the log masses of the strata in the predictors, times the pairs there, (C, C, M).

    Central differences: the first function of every basis is one, its coefficient moves a predictor at all bins.
    """
    head, before = objective.head, objective.head.flat()
    out = torch.zeros_like(ev.main.second)
    firsts = [sum(head.sizes[:row]) for row in range(len(head.sizes))]
    assert objective.masses is not None
    for row, first in enumerate(firsts):
        if not head.sizes[row]:
            continue  # known
        moved = []
        for sign in (1.0, -1.0):
            theta = ev.theta.clone()
            theta[first] += sign * width
            head.set_flat(theta)
            kept = objective.masses.log_kept_scores(head, objective.design)
            moved.append(objective.regions(replace(ev, kept=kept)))
        for (counts, _, above), (_, _, below) in zip(*moved):
            out[row] += counts * (above - below) / (2 * width)
    head.set_flat(before)
    return 0.5 * (out + out.transpose(0, 1))


def _sandwich(objective: FullBatchObjective, ev: Evaluation, slope: Tensor | None = None) -> Tensor | None:
    assert ev.tail is not None
    assert objective.masses is not None
    head, design = objective.head, objective.design
    core, tail = ev.main - ev.tail, ev.tail
    n = ev.main.n
    R = ev.tcf * (1 - objective.masses.R_sample) + objective.masses.R_sample
    m_core, m_tail = core.gradient / core.n, tail.gradient / tail.n
    difference = m_tail - m_core
    slope = observed_slope(objective, ev) if slope is None else slope
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
    inverse = torch.linalg.pinv(slope)
    return inverse @ (meat / n) @ inverse.T


def separability(information: Tensor, starts: list[int], dim: int = 1, mean: Tensor | None = None) -> float:
    """|correlation| of the estimates of mean D_o and mean D_f; near 1 (2 alpha -> 2) data cannot tell them apart.

    starts: where the part of each predictor begins in theta; mean: (K,) of the functions of D_o over the states; None:
    that of a Fourier series over its cell.
    """
    cov = symmetric_inverse(information)
    i, j, k = starts[dim], starts[dim + 1], starts[dim + 2]
    if mean is None:
        return float(cov[i, j].abs() / (cov[i, i] * cov[j, j]).sqrt())
    D_o, D_f = slice(i, j), slice(j, k)
    both, o, f = (mean @ cov[a, b] @ mean for a, b in ((D_o, D_f), (D_o, D_o), (D_f, D_f)))
    return float(both.abs() / (o * f).sqrt())
