"""Is the law of a step the same over time, and in all trajectories?

Components h: the first two Legendre polynomials of the probability transform u, which react to the drift and to the
size of steps, by themselves and times the first waves along the rank of the state; in more dimensions also times the
direction of the step. Under the law h has mean zero given the past. Their sums over the pairs of each trajectory, and
over all pairs with polynomials of time (within the trajectory) as weights, have mean zero.

As in the test of the fit, the part that moves with theta is taken out: with C = sum of w E[h s^T | x] over the pairs,
mean score s and information F per pair, R = sum of w h - C F^-1 s has the covariance D - C F^-1 C^T / n, D that of
the sum itself. For time each component has a chi-squared of as many degrees of freedom as there are polynomials. For
trajectories sum R_k^2 / n_k over the trajectories k is compared with the chi-squared that has its mean and variance.
The smallest p-value of the components is corrected for their number.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import chdtrc
from torch import Tensor

from levytorch.diagnostics.components import Check, Components, chi_squared_sf, legendre, p_text
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.sample import Sample
from levytorch.diagnostics.step_size import Skipped
from levytorch.diagnostics.tangent import Tangent, equilibrated_inverse

_TIMES = 3  # polynomials of time
_FEWEST_TIMES = 10
_FEWEST = 8  # pairs of a trajectory
_FLAT = 1e-8


_ALARMS = {
    "time": (
        "changes over time",
        "the model's coefficients depend on the state only; fit shorter stretches of time separately, or add what "
        "changes as a state.",
    ),
    "trajectories": (
        "differs between trajectories",
        "they were fitted as one system; fit them separately (recover_each).",
    ),
}


@dataclass
class StabilityCheck(Check):
    """p_value: that the law does not change; what: the part of it that changes most, "drift" or "step size"; groups:
    trajectories that were compared, or polynomials of time; over: in words."""

    p_value: float
    parts: dict[str, float]
    groups: int
    over: str

    @property
    def what(self) -> str:
        return min(self.parts, key=lambda name: self.parts[name])

    def metrics(self, name: str) -> dict[str, Any]:
        return self.numbers(name, "p_value")

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        found = f"the {self.what} {{}} ({p_text(self.p_value)}), while {{}}"
        return {name: found.format(*_ALARMS[name])} if rejected else {}

    def lines(self, rejected: Collection[str]) -> list[str]:
        return [f"The same law {self.over}: {p_text(self.p_value)}"]


class StabilityComponents:
    """h: (k, n); what: the part of the law that each of them reacts to."""

    def __init__(self, components: Components) -> None:
        self.components, self.dim = components, components.dim
        self.states = 1 + 2 * self.dim  # one, and the first waves along each coordinate
        kinds = ["drift", "step size"] if self.dim == 1 else ["step size", *["drift"] * self.dim]
        self.what = [kind for kind in kinds for _ in range(self.states)]

    def __call__(self, u: Tensor, x: Tensor, dt: Tensor, direction: Tensor | None) -> Tensor:
        phi, waves = legendre(u, 2), self.waves(x, dt)
        if direction is None:
            return torch.cat([phi[0] * waves, phi[1] * waves])
        along = [phi[0] * waves * (math.sqrt(self.dim) * column) for column in direction.T]
        return torch.cat([phi[0] * waves, *along])

    def waves(self, x: Tensor, dt: Tensor) -> Tensor:
        return self.components.factors(x, dt, None)[: self.states]

    def variances(self, x: Tensor, dt: Tensor) -> Tensor:
        """E[h^2 | x], (k, n)."""
        return self.waves(x, dt).square().repeat(len(self.what) // self.states, 1)


class _Looked:
    """What both tests need of the pairs of a sample."""

    def __init__(self, tangent: Tangent | ExactTangent, fit: FitCheck, sample: Sample) -> None:
        self.tangent, self.sample, self.n = tangent, sample, len(sample)
        self.components = StabilityComponents(Components(tangent.head, sample))
        self.h = self.components(fit.u.u, sample.x, sample.dt, fit.u.direction)
        self.variances = self.components.variances(sample.x, sample.dt)
        inverse, _ = equilibrated_inverse(fit.information, _FLAT)
        values, vectors = torch.linalg.eigh(inverse)
        self.root = vectors * values.clamp(min=0.0).sqrt()  # F^-1 = root root^T
        self.score = self.root.T @ fit.score

    def cross(self, group: Tensor, weight: Tensor) -> Tensor:
        """C root, (G, k, P)."""
        return self.tangent.cross_by(self.sample, self.components, group, weight) @ self.root

    def result(self, p: list[float], groups: int, over: str) -> StabilityCheck:
        """p: of each component."""
        parts: dict[str, float] = {}
        for what, value in zip(self.components.what, p):
            parts[what] = min(parts.get(what, 1.0), _smallest(value, len(p)))
        return StabilityCheck(min(parts.values()), parts, groups, over)


def _smallest(p: float, number: int) -> float:
    """The p-value of p as the smallest of so many."""
    return -math.expm1(number * math.log1p(-p)) if p < 1 else 1.0


def check_time(tangent: Tangent | ExactTangent, fit: FitCheck, sample: Sample) -> StabilityCheck | Skipped:
    """Over time within trajectories."""
    if len(torch.unique(sample.place)) < _FEWEST_TIMES:
        return Skipped(f"trajectories are shorter than {_FEWEST_TIMES} pairs; use longer ones")
    looked = _Looked(tangent, fit, sample)
    order = sample.place.double()
    low, high = (torch.searchsorted(order.sort().values, order, right=side) for side in (False, True))
    weights = legendre((low + high).double() / (2 * len(sample)), _TIMES)
    everyone = torch.zeros(len(sample), dtype=torch.int64)
    crosses = torch.cat([looked.cross(everyone, weight) for weight in weights])  # (times, k, P)
    sums = weights @ looked.h.T - crosses @ looked.score
    p = []
    for k in range(len(looked.h)):
        covariance = (weights * looked.variances[k]) @ weights.T - crosses[:, k] @ crosses[:, k].T / looked.n
        statistic = float(sums[:, k] @ torch.linalg.solve(covariance, sums[:, k]))
        p.append(chi_squared_sf(statistic, _TIMES))
    return looked.result(p, _TIMES, "over time")


def check_trajectories(
    tangent: Tangent | ExactTangent, fit: FitCheck, sample: Sample
) -> StabilityCheck | Skipped | None:
    """Between trajectories; None where there is only one."""
    ids, index, counts = torch.unique(sample.trajectory, return_inverse=True, return_counts=True)
    if len(ids) < 2:
        return None
    enough = counts >= _FEWEST
    K = int(enough.sum())
    if K < 2:
        return Skipped(f"only {K} trajectories have {_FEWEST} pairs or more; use longer ones")
    looked = _Looked(tangent, fit, sample)
    cross = looked.cross(index, torch.ones(len(sample), dtype=torch.float64))
    sums, own, fourth = (
        torch.zeros((len(ids), len(looked.h)), dtype=torch.float64).index_add_(0, index, rows.T.contiguous())
        for rows in (looked.h, looked.variances, looked.h**4 - 3 * looked.variances**2)
    )
    size = counts[enough].double()[:, None]
    residual = (sums - cross @ looked.score)[enough]
    own, fourth = own[enough] / size, (fourth[enough] / size**2).sum(0)
    cross = cross[enough] / size.sqrt()[:, :, None]
    p = []
    for k in range(len(looked.h)):
        statistic = float((residual[:, k] ** 2 / size[:, 0]).sum())
        M = cross[:, k] / math.sqrt(looked.n)
        inner = M.T @ M
        mean = float(own[:, k].sum() - inner.diagonal().sum())
        square = (own[:, k] ** 2).sum() - 2 * (own[:, k][:, None] * M * M).sum() + (inner * inner).sum()
        variance = 2 * float(square) + float(fourth[k])
        # the chi-squared with this mean and variance
        df = 2 * mean**2 / variance
        p.append(float(chdtrc(df, statistic * df / mean)))
    return looked.result(p, K, f"in {K} trajectories")
