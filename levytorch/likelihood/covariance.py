"""Covariance of theta: inverse information, or the sandwich when the TCF is part of the estimating equation.

With R = R_theta the TCF's estimating equation is  G = (1 - R) mean_core(s) + R mean_tail(s) = 0: how many tails were
kept has dropped out. Its variance comes from what was kept within each pool (centered there: the pools' means are not
zero) and from the states over which R_theta is averaged; its slope from the observed second derivatives and from
d R_theta / d theta.
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import assemble, project


def covariance(objective: FullBatchObjective, ev: Evaluation) -> Tensor | None:
    """(P, P) covariance of the estimate at an evaluation (with second derivatives when the TCF is in use).

    None when it is not finite, as where D_o is exactly zero or the information has run off the floating point range.
    """
    found = _covariance(objective, ev)
    return found if found is not None and bool(torch.isfinite(found).all()) else None


def _covariance(objective: FullBatchObjective, ev: Evaluation) -> Tensor | None:
    if objective.method == "tcf" and ev.tcf > 0:
        return _sandwich(objective, ev)
    information = objective.n * objective.information(ev)
    if objective.penalty is not None and objective.penalty.active:
        information = information + torch.diag(objective.penalty.precision())
    return symmetric_inverse(information) if bool(torch.isfinite(information).all()) else None


def _sandwich(objective: FullBatchObjective, ev: Evaluation) -> Tensor | None:
    assert ev.tail is not None
    assert ev.main.hessian is not None
    assert ev.tail.hessian is not None
    assert objective.masses is not None
    assert ev.tcf_gradient is not None
    head, design = objective.head, objective.design
    core, tail = ev.main - ev.tail, ev.tail
    n = ev.main.n
    R = ev.tcf * (1 - objective.masses.R_sample) + objective.masses.R_sample
    m_core, m_tail = core.gradient / core.n, tail.gradient / tail.n
    difference = m_tail - m_core
    hessian = (1 - ev.tcf) / n * ev.main.hessian + ev.tcf / tail.n * ev.tail.hessian
    # d TCF = d R / (1 - R_sample) multiplies (mean_tail - mean_main) = (1 - R_sample)(mean_tail - mean_core)
    slope = assemble(head, hessian, design) + torch.outer(
        tail.gradient / tail.n - ev.main.gradient / n, ev.tcf_gradient
    )
    if objective.penalty is not None and objective.penalty.active:
        slope = slope - torch.diag(objective.penalty.precision()) / n
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


def separability(information: Tensor, n_basis: int, dim: int = 1) -> float:
    """|correlation| of the estimates of mean D_o and mean D_f; near 1 (2 alpha -> 2) data cannot tell them apart."""
    cov = symmetric_inverse(information)
    i, j = dim * n_basis, (dim + 1) * n_basis
    return float(cov[i, j].abs() / (cov[i, i] * cov[j, j]).sqrt())
