"""The numbers behind the figures: few enough to keep."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.diagnostics.components import wrapped
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.sample import Sample
from levytorch.diagnostics.step_size import StepCheck

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_HISTOGRAM = 40
_TAILS = 200


def goodness_arrays(fit: FitCheck, sample: Sample, head: Head) -> dict[str, np.ndarray]:
    """Histogram of u; observed against expected numbers of rare steps; quantiles of u along x (first coordinate)."""
    u, upper = fit.u.u, fit.u.upper
    m = len(u)
    counts = torch.histc(u, _HISTOGRAM, 0.0, 1.0)
    # how rare a step of at least this size is under the law: two-sided in one dimension, by the radius in more
    rarity = (2.0 * torch.minimum(u, upper) if sample.dim == 1 else upper).sort().values
    ranks = torch.unique(torch.logspace(0, np.log10(m), _TAILS).long().clamp(1, m))
    column = wrapped(head, sample.x)[:, 0]
    edges, quantiles, number = _along(column, u)
    origin = float(torch.as_tensor(head.origin).reshape(-1)[0])
    return {
        "histogram": (counts * _HISTOGRAM / m).numpy(),
        "pairs": np.array(m),
        "rarity": rarity[ranks - 1].clamp(min=1e-300).numpy(),
        "rank": ranks.numpy(),
        "x_edges": edges.numpy() + origin,
        "quantiles": quantiles.numpy(),
        "levels": np.array(LEVELS),
        "number": number.numpy(),
        "p_value": np.array(fit.p_value),
    }


def step_arrays(step: StepCheck) -> dict[str, np.ndarray]:
    """Curves of both fits and the standard error of their difference."""
    return {name: values.numpy() for name, values in step.curves.items()} | {"p_value": np.array(step.p_value)}


def _along(column: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantiles of u in bins of x that hold the same number of pairs each."""
    bins = max(1, min(20, len(u) // 200))
    order = column.argsort()
    parts = torch.tensor_split(u[order], bins)
    ordered = column[order]
    cuts = [0, *np.cumsum([len(p) for p in parts]).tolist()]
    edges = torch.stack([ordered[min(c, len(ordered) - 1)] for c in cuts])
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return edges, torch.stack([torch.quantile(p, levels) for p in parts]), torch.tensor([len(p) for p in parts])
