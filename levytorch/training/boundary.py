"""Coefficients that a fit has driven to zero: what the data loses without them, and the errors of the others there.

On the boundary the estimate of a coefficient is one-sided, and information matrices that treat it like any other
parameter blame its supposed uncertainty on the rest (alpha most of all): it is held where it is instead.

A learned tempering has its boundary at zero. An error bar of lam means nothing there: the likelihood is smooth in
eta = lam^(2 alpha) >= 0, and where its maximum is within two standard errors of zero only an upper bound is said: the
eta at which the log-likelihood, profiled over all other parameters by its quadratic model, has fallen by 1.353 (95 %,
one-sided) below its maximum.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.links import tempering_eta, tempering_of
from levytorch.data.batches import FullBatch
from levytorch.errors import LevytorchWarning
from levytorch.law import log_density
from levytorch.likelihood.frozen import rate
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse

VANISHED = 1e-4
_AT_BOUND = 2e-3  # of a learned alpha from the end of its range
_AS_WELL = 2.0  # in log-likelihood: what one parameter is worth by AIC, and a bit
# of a tempering: the log-likelihood may fall by (95 % on one side), told from zero, zero (eta in internal units)
_DROP, TOLD, _GONE = 0.5 * 1.6449**2, 2.0, 1e-6
NOT_TOLD = "tempering is not told from zero by this data"


def vanishing(objective: FullBatchObjective, ev: Evaluation) -> list[str]:
    """D_o or D_f, when it is below 1e-4 of its internal unit (the square of a typical step) at all observed states."""
    head = objective.head
    seen = ev.main.second[0, 0] > 0
    c = head.chain(ev.theta, objective.design).coefficients
    if head.units.length == 1.0 or not bool(seen.any()):
        return []  # in the data's own units there is no scale to compare with
    sizes = {"D_o": c.D_o / head.units.D_o, "D_f": c.D_f / head.units.D_f(c.alpha)}
    return [n for n, size in sizes.items() if n not in head.known and float(size[seen].max()) < VANISHED]


@torch.no_grad()
def loss_without(name: str, head: LinearHead, batch: FullBatch) -> float:
    """How much log-likelihood the main batch loses when D_o or D_f is exactly zero and all else stays."""
    main = batch.main
    c = head(main.x)
    # without jumps the law is a Gaussian: the smallest D_f that the quadrature takes
    none = torch.zeros_like(c.D_o) if name == "D_o" else torch.full_like(c.D_f, 1e-300)
    without = c._replace(**{name: none})

    def log_p(at: Coefficients) -> Tensor:
        lam = rate(at)
        return log_density(
            main.dx, at.b, at.D_o, at.D_f, at.alpha, main.dt, dim=head.dim, method="contour", tempering=lam
        )

    return float((main.weight * (log_p(c) - log_p(without))).sum())


def warn_of_vanishing(losses: dict[str, float]) -> None:
    """A warning for each, which says what the likelihoods say."""
    for name, loss in losses.items():
        if loss < _AS_WELL:
            told = (
                f"{name} has run to zero: the likelihood has its maximum on that boundary, so the data is described as "
                f"well without {name}, and its standard error means nothing"
                f"{' (D_o=0 leaves it out)' if name == 'D_o' else ''}."
            )
        else:
            told = (
                f"{name} has become tiny beside a typical step, but the log-likelihood falls by {loss:.3g} without it: "
                "look for steps that are exactly equal, or rounded, before reading anything into it."
            )
        warnings.warn(told, LevytorchWarning, stacklevel=3)


def alpha_at_bound(head: Head) -> float | None:
    """The end of its range that a learned alpha has run to, with a warning; None: it lies within."""
    if not head.learns_alpha:
        return None
    link = head.alpha_spec.link
    with torch.no_grad():
        alpha = head(head.grid(64)).alpha
    for end in (link.low, link.high):
        if float((alpha - end).abs().min()) < _AT_BOUND:
            warnings.warn(
                f"a learned alpha must lie within its bounds, found it at {end:g}: the likelihood still rises there, "
                "and its standard error means nothing; near 1 jumps are hardly told from D_o, and alpha_bounds can be "
                "widened.",
                LevytorchWarning,
                stacklevel=3,
            )
            return end
    return None


def on_the_boundary(losses: dict[str, float]) -> list[str]:
    """Those that the data does as well without."""
    return [name for name, loss in losses.items() if loss < _AS_WELL]


def held_at_zero(covariance: Tensor, head: LinearHead, names: list[str]) -> Tensor:
    """The covariance of the other parameters given that these coefficients stay where they are (rows of zeros)."""
    fixed = torch.zeros(covariance.shape[0], dtype=torch.bool)
    sizes = list(head.sizes)
    for name in names:
        row = head.dim + (0 if name == "D_o" else 1)
        start = sum(sizes[:row])
        fixed[start : start + sizes[row]] = True
    out = torch.zeros_like(covariance)
    free = torch.nonzero(~fixed).reshape(-1)
    bound = torch.nonzero(fixed).reshape(-1)
    cross = covariance[free][:, bound]
    given = covariance[free][:, free] - cross @ symmetric_inverse(covariance[bound][:, bound]) @ cross.T
    out[free[:, None], free] = given
    return out


def judge_tempering(
    objective: FullBatchObjective, ev: Evaluation, covariance: Tensor | None
) -> tuple[dict[str, Any], Tensor | None]:
    """What metrics say about a learned tempering, and the covariance of the others alone where it has run to zero."""
    head = objective.head
    information = objective.n * objective.information(ev)
    if objective.penalty is not None and objective.penalty.active:
        information = information + torch.diag(objective.penalty.precision())
    value, slope = tempering_eta(ev.theta[-1])
    others = symmetric_inverse(information[:-1, :-1])
    row = information[:-1, -1]
    curvature = float((information[-1, -1] - row @ others @ row).clamp(min=1e-300) / slope**2)
    gradient = min(0.0, float(objective.n * objective.gradient(ev)[-1] / slope))  # zero at a maximum inside
    eta = float(value)
    upper = eta + (gradient + math.sqrt(gradient**2 + 2.0 * _DROP * curvature)) / curvature
    z = eta * math.sqrt(curvature)
    bound = tempering_of(upper, head.alpha_spec.value, head.units.length)
    out: dict[str, Any] = {"tempering_z": z, "tempering_upper": bound, "tempering_told_from_zero": bool(z >= TOLD)}
    if z < TOLD:
        warn_of_no_tempering(z, bound)
        # to where that model of the log-likelihood has fallen by 1/2, for fits that share their tempering with this
        # one; in raw, the root of eta
        falls = (gradient + math.sqrt(gradient**2 + curvature)) / curvature
        rises = math.sqrt(eta + falls) - float(ev.theta[-1].abs())
        out["tempering_step"] = [*(-falls / slope * (others @ row)).tolist(), rises]
    if eta < _GONE and covariance is not None and objective.method != "tcf":
        alone = torch.zeros_like(covariance)
        alone[:-1, :-1] = others
        covariance = alone
    return out, covariance


def warn_of_no_tempering(z: float, bound: float) -> None:
    warnings.warn(
        f"{NOT_TOLD} (z = {z:.2f}): at most {bound:.3g} per unit of x (95 %, "
        "one-sided); its standard error means nothing, and tempering=0 describes the data as well.",
        LevytorchWarning,
        stacklevel=4,
    )
