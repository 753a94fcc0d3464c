"""Does freezing the coefficients over a step cost accuracy: the same fit on every second observation.

Two consecutive pairs make one of twice the step. Where the coefficients hardly change within a step both fits estimate
the same thing; where they do, the bias of the longer step is larger than that of the shorter, most of all in D_o.

The two fits share their data. With blocks of two pairs (s1, s1') and their sum (s2), independent given the past, the
difference has the influence  A2^-1 s2 / n2 - A1^-1 (s1 + s1') / n1  per block, and its covariance is the sum of the
products of these: nothing about how the fits depend on each other is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.data import Transitions
from levytorch.diagnostics.components import chi_squared_sf, wrapped
from levytorch.diagnostics.refit import (
    StepPairs,
    block_products,
    block_starts,
    curvature,
    doubled,
    evaluate_at,
    fit_again,
    stand_in,
    two_steps,
)
from levytorch.diagnostics.sample import Region, subsample
from levytorch.likelihood.objective import symmetric_inverse

_GRID = 200
NAMES = ("b", "D_o", "D_f")
_WITHIN_ERROR = 0.5  # chance alone changes a coefficient by so much of itself: its relative change says nothing
_SHARED = 1e-3  # share of a score's variance below which both fits see the same thing and nothing is left to compare


@dataclass
class StepCheck:
    """p_value: that the fits at dt and at 2 dt estimate the same; max_z: the largest pointwise change in standard
    errors, of the coefficient `where[0]` at x = `where[1]`; change: relative L2 size of the change of each coefficient
    over the observed states; chance: the same of what chance alone makes; curves: both fits, for the figure; law: of
    the fits."""

    p_value: float
    statistic: float
    df: int
    max_z: float
    where: tuple[str, float]
    change: dict[str, float]
    pairs: tuple[int, int]
    converged: bool
    curves: dict[str, Tensor] = field(repr=False, default_factory=dict)
    chance: dict[str, float] = field(default_factory=dict)
    law: str = "frozen"

    def arrays(self) -> dict[str, np.ndarray]:
        """The numbers behind the figure."""
        return {name: values.numpy() for name, values in self.curves.items()} | {"p_value": np.array(self.p_value)}

    def changes(self) -> str:
        """Relative changes in words, beside what chance makes; of a coefficient within its error there is none."""
        small = [name for name in self.change if self.chance.get(name, 0.0) > _WITHIN_ERROR]
        said = [
            f"{name} {value:.1%} (chance alone {self.chance[name]:.1%})"
            if name in self.chance
            else f"{name} {value:.1%}"
            for name, value in self.change.items()
            if name not in small
        ]
        if small:
            said.append(f"{' and '.join(small)} n.s. (within {'its' if len(small) == 1 else 'their'} error)")
        return ", ".join(said)


@dataclass
class Skipped:
    """Why a check was not made."""

    reason: str


NOTHING_LEFT = Skipped(
    "nothing is left to compare, because the penalty or the starting values, not the data, determine the coefficients; "
    "bring the period near the range of the data, or use fewer basis functions (n_basis)"
)


def check_step_size(
    head: Head,
    transitions: Transitions,
    region: Region,
    *,
    strengths: list[float] | None = None,
    most: int = 100_000,
    seed: int = 0,
) -> StepCheck | Skipped:
    """Refit at dt and at 2 dt, starting from the head; `strengths`: of its roughness penalty.

    Lost tails: both fits are conditional on |dx - mu| < CT (TCF, strata) or TRT; the one at 2 dt on pairs whose two
    halves survived and whose sum lies within the same threshold of 2 mu.
    """
    data = subsample(transitions, most, seed)
    first = block_starts(data)
    own = head if isinstance(head, LinearHead) else stand_in(head)
    P = own.flat().numel()
    if 2 * len(first) < max(400, 20 * P):
        return Skipped(
            f"only {len(first)} pairs are followed by their successor and {max(200, 10 * P)} are needed for {P} "
            "parameters; bring longer trajectories, or use fewer basis functions (n_basis)"
        )
    core = region.core()
    short, long_ = StepPairs(data, core), StepPairs(two_steps(data, first), doubled(core))
    one = fit_again(own, short, strengths, 1.0)
    two = fit_again(one.head, long_, strengths, long_.n / max(short.n, 1))
    # the score of the longer steps at the coefficients of the shorter: a Wald test that flat directions cannot upset
    at_one = evaluate_at(one.head, long_, strengths, long_.n / max(short.n, 1))
    bread1, bread2 = curvature(one), curvature(at_one)
    inverse1 = symmetric_inverse(bread1)
    G11, G12, G22 = block_products(one, at_one, short, long_, first)
    n1, n2 = short.n, long_.n
    pull = bread2 @ inverse1
    cross = pull @ G12 / (n1 * n2)
    covariance = G22 / n2**2 - cross - cross.T + pull @ (G11 / n1**2) @ pull.T
    information = at_one.objective.information(at_one.evaluation)
    statistic, df = quadratic(at_one.objective.gradient(at_one.evaluation), covariance, bread2 / n2, information)
    if df == 0 or not math.isfinite(statistic):
        return NOTHING_LEFT
    spreads = [inverse @ covariance @ inverse for inverse in map(symmetric_inverse, (bread2, curvature(two)))]
    curves = _curves(one.head, two.head, spreads, short)
    return step_check(statistic, df, curves, own.dim, (n1, n2), one.converged and two.converged, "frozen")


def step_check(
    statistic: float, df: int, curves: dict[str, Tensor], dim: int, pairs: tuple[int, int], converged: bool, law: str
) -> StepCheck:
    """What a statistic with df degrees of freedom and the curves behind it come to."""
    max_z, where = _largest(curves, dim)
    change = {name: _relative(curves[f"{name}_2dt"] - curves[f"{name}_dt"], curves[f"{name}_dt"]) for name in NAMES}
    chance = {name: _relative(curves[f"{name}_std"], curves[f"{name}_dt"]) for name in NAMES}
    p_value = chi_squared_sf(statistic, df)
    return StepCheck(p_value, statistic, df, max_z, where, change, pairs, converged, curves, chance, law)


def quadratic(
    score: Tensor,
    covariance: Tensor,
    unit: Tensor,
    information: Tensor,
    shared: float = _SHARED,
    few: Tensor | None = None,
    of: float = math.inf,
) -> tuple[float, int]:
    """score^T covariance^-1 score where the fits differ at all; `unit`: the covariance of the score itself.

    Parameters that the data does not see are left out. `information`, without the penalty, tells which they are: beside
    a strong penalty those that it spares would look like them.
    few: (N, P) terms whose products make up the covariance, where they are so few that their scatter counts, and of
    how many terms of the score they are some. For the others the inverse of a mean of N products is too large on
    average, to first order by mean(d^2) / (N df) with d the squared length of a term in units of the covariance: 1 / N
    per parameter for a Gaussian, far more where jumps are rare.
    """
    scale = unit.diagonal().clamp(min=1e-300).rsqrt()
    scale = torch.where(information.diagonal() > 1e-10 * information.diagonal().max(), scale, 0.0)
    values, vectors = torch.linalg.eigh(covariance * scale.outer(scale))
    keep = values > shared
    along, df = vectors[:, keep].T @ (score * scale), int(keep.sum())
    statistic = float((along * along / values[keep]).sum())
    if few is not None and df:
        d = ((few * scale) @ vectors[:, keep]).square() @ values[keep].reciprocal()
        statistic /= 1.0 + (1.0 - len(few) / of) * float(d.square().mean() / d.mean() ** 2) * df / len(few)
    return statistic, df


def _curves(one: LinearHead, two: LinearHead, spreads: list[Tensor], short: StepPairs) -> dict[str, Tensor]:
    """Both fits and the standard error of their difference at observed states.

    `spreads`: the covariance of the difference of the parameters, seen from either fit. The larger error counts: a
    positive coefficient that is nearly zero hardly moves with its parameters, which says nothing about the other fit.
    """
    states = seen_states(one, short.kept.x)
    with torch.no_grad():
        a, b = one(states), two(states)
    out = {"x": states}
    for name, *slopes in zip(NAMES, one.jacobian(states), two.jacobian(states)):
        out[f"{name}_dt"], out[f"{name}_2dt"] = getattr(a, name), getattr(b, name)
        variances = [((J @ spread) * J).sum(-1) for J, spread in zip(slopes, spreads)]
        out[f"{name}_std"] = torch.maximum(*variances).clamp(min=0).sqrt()
    return out


def seen_states(head: Head, x: Tensor) -> Tensor:
    """A grid over the observed part of the cell; in more than one dimension some of the observed states."""
    if head.dim > 1:
        return x[:: max(1, len(x) // _GRID)]
    cell = wrapped(head, x)[:, 0] + head.bounds[0][0]
    low, high = torch.quantile(cell[:: max(1, len(cell) // 100_000)], torch.tensor([0.005, 0.995]).double())
    return torch.linspace(float(low), float(high), _GRID, dtype=torch.float64)


def _largest(curves: dict[str, Tensor], dim: int) -> tuple[float, tuple[str, float]]:
    best: tuple[float, tuple[str, float]] = (0.0, ("b", math.nan))
    for name in NAMES:
        z = (curves[f"{name}_2dt"] - curves[f"{name}_dt"]).abs() / curves[f"{name}_std"].clamp(min=1e-300)
        z = z if z.dim() == 1 else z.amax(1)
        i = int(z.argmax())
        if float(z[i]) > best[0]:
            best = (float(z[i]), (name, float(curves["x"][i]) if dim == 1 else math.nan))
    return best


def _relative(size: Tensor, curve: Tensor) -> float:
    return float(size.norm() / curve.norm().clamp(min=1e-300))
