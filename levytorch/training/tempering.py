"""What a fit says about a learned tempering, of which zero is the boundary.

An error bar of lam means nothing there: the likelihood is smooth in eta = lam^(2 alpha) >= 0, and where its maximum is
within two standard errors of zero only an upper bound is said: the eta at which the log-likelihood, profiled over all
other parameters by its quadratic model, has fallen by 1.353 (95 %, one-sided) below its maximum.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.links import tempering_eta
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse

_DROP = 0.5 * 1.6449**2  # of the log-likelihood: 95 % on one side
_Z = 2.0
_GONE = 1e-6  # eta in internal units: on the boundary


def judge_tempering(
    objective: FullBatchObjective, ev: Evaluation, covariance: Tensor | None
) -> tuple[dict[str, Any], Tensor | None]:
    """Numbers for the metrics, and the covariance of the others alone where lam has run to zero."""
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
    power = 0.5 / head.alpha_spec.value
    z = eta * math.sqrt(curvature)
    bound = upper**power / head.units.length
    out = {"tempering_z": z, "tempering_upper": bound, "tempering_told_from_zero": bool(z >= _Z)}
    if z < _Z:
        warnings.warn(
            f"tempering is not told from zero by this data (z = {z:.2f}): at most {bound:.3g} per unit of x (95 %, "
            "one-sided); its standard error means nothing, and tempering=0 describes the data as well.",
            LevytorchWarning,
            stacklevel=3,
        )
    if eta < _GONE and covariance is not None and objective.method != "tcf":
        alone = torch.zeros_like(covariance)
        alone[:-1, :-1] = others
        covariance = alone
    return out, covariance
