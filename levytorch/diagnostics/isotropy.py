"""Do steps go in all directions alike, as a D_o that is a number says?

Given the state the direction of dx - b dt is uniform under an isotropic law, whatever its lengths are. In groups of
neighbouring states the mean of n n^T - I / d, n that direction, is then zero, and n times its square is chi-squared.
Groups are needed because an ellipse whose axes turn with the state averages out over all states.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.init import group_states, shape_of
from levytorch.coefficients.layout import ISOTROPIC
from levytorch.diagnostics.components import Check, chi_squared_sf, p_text
from levytorch.diagnostics.sample import Sample

LEAST = 0.04  # of `elongation`, from which D_o is worth a matrix: variances that differ by a sixth
_FEWEST = 50  # pairs of a group


@dataclass(frozen=True)
class IsotropyCheck(Check):
    """p_value: of uniform directions; elongation: root mean square of the mean of n n^T - I / d, 1 for steps along a
    line, without what chance makes of it; ratio: largest over smallest variance of the most elongated group of states.
    """

    p_value: float
    elongation: float
    ratio: float
    groups: int

    @property
    def is_large(self) -> bool:
        """Whether directions differ by more than a little, which much data tells from nothing."""
        return self.elongation > LEAST

    def metrics(self, name: str) -> dict[str, Any]:
        return self.numbers(name, "p_value", "elongation", "ratio", "groups")

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        if not (rejected and self.is_large):
            return {}
        return {
            "anisotropic": f"steps are longer in some directions than in others ({p_text(self.p_value)}; variances "
            f"differ by a factor of up to {self.ratio:.2g}), while D_o is a number at every state; fit with "
            'noise="matrix".'
        }

    def lines(self, rejected: Collection[str]) -> list[str]:
        return [
            f"Directions of steps: {p_text(self.p_value)}; variances differ by a factor of up to {self.ratio:.2g} "
            "between directions"
        ]


@torch.no_grad()
def check_isotropy(head: Head, sample: Sample) -> IsotropyCheck | None:
    """None where it means nothing: in one dimension, of a D_o that is a matrix, of too few pairs."""
    if head.dim == 1 or head.noise is not ISOTROPIC:
        return None
    core = sample.label == 0
    x = sample.x[core]
    y = sample.dx[core] - head(x).b * sample.dt[core].unsqueeze(-1)
    moved = (y * y).sum(1) > 0
    x, y = x[moved], y[moved]
    groups = group_states(x, head.cells)
    index = torch.zeros(len(x), dtype=torch.int64) if groups is None else groups.index
    direction = y / y.norm(dim=1, keepdim=True)
    values = _tensor(direction)
    statistic, df, size, total, ratio, used = 0.0, 0, 0.0, 0, 1.0, 0
    for g in range(int(index.max()) + 1):
        own = values[index == g]
        if len(own) < _FEWEST:
            continue
        mean, n = own.mean(0), len(own)
        covariance = own.T @ own / n
        statistic += n * float(mean @ torch.linalg.solve(covariance, mean))
        df += own.shape[1]
        size += n * float((mean * mean).sum()) - float(covariance.trace())
        total += n
        spread = torch.linalg.eigvalsh(shape_of(y[index == g]))
        ratio, used = max(ratio, float(spread[-1] / spread[0])), used + 1
    if not used:
        return None
    elongation = max(size / total, 0.0) ** 0.5
    return IsotropyCheck(chi_squared_sf(statistic, df), elongation, ratio, used)


def _tensor(direction: Tensor) -> Tensor:
    """(n, (d + 2)(d - 1) / 2): coordinates of n n^T - I / d, scaled so that a fixed direction has length 1."""
    d = direction.shape[1]
    i, j = torch.triu_indices(d, d, 1)
    off = 2.0**0.5 * direction[:, i] * direction[:, j]
    square = direction**2 - 1 / d
    # an orthonormal basis of what is perpendicular to (1, ..., 1)
    basis = torch.linalg.qr(torch.cat([torch.ones((d, 1)), torch.eye(d)], dim=1).to(direction.dtype))[0][:, 1:d]
    return torch.cat([off, square @ basis], dim=1) * (d / (d - 1)) ** 0.5
