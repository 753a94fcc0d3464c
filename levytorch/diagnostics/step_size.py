"""Do coefficients change with the length of a step: every second observation, two consecutive pairs made one of 2 dt.

Under the frozen law (`check_step_size`) both lengths are fitted. Where the coefficients hardly change within a step the
fits estimate the same thing; where they do, the bias of the longer step is larger than that of the shorter, most of all
in D_o.

The two fits share their data. With blocks of two pairs (s1, s1') and their sum (s2), independent given the past, the
difference has the influence  A2^-1 s2 / n2 - A1^-1 (s1 + s1') / n1  per block, and its covariance is the sum of the
products of these: nothing about how the fits depend on each other is assumed.

Under the exact law (`ExactStepSize`) the length of dt costs nothing, so that coefficients that change with it are a
misfit of the model: steps that depend on each other, noise of the observations, another law of the jumps. At the fitted
coefficients the scores s2 of the longer steps have mean zero if the process is right, whatever was fitted to. To be
independent of how well that was done the scores of the short steps are taken out,

    r = mean(s2) - I2 I1^-1 mean(s1),

which to first order does not move with theta; its covariance is the scatter of s2 - I2 I1^-1 (s1 + s1') over the blocks
of two pairs. Nothing is fitted again: I2^-1 r is what a fit to the long steps would change, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.data import Transitions
from levytorch.diagnostics.chain import starts_within, through_everywhere
from levytorch.diagnostics.components import Check, chi_squared_sf, p_text, period_of, wrapped
from levytorch.diagnostics.exact_tangent import ExactTangent, rounded
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
from levytorch.diagnostics.tangent import equilibrated_inverse
from levytorch.errors import InputError
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.spaces import space_of
from levytorch.spaces.states import columns_of

_GRID = 200
NAMES = ("b", "D_o", "D_f")
_WITHIN_ERROR = 0.5  # chance alone changes a coefficient by so much of itself: its relative change says nothing
# share of a score's variance below which both lengths see the same thing and nothing is left to compare; scores of the
# exact law are known to a percent
_SHARED, _EXACT_SHARED = 1e-3, 5e-3
_BLOCKS = 8_000  # whose exact scores are looked at one by one


@dataclass
class StepCheck(Check):
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

    def metrics(self, name: str) -> dict[str, Any]:
        out = self.numbers(name, "p_value", "statistic", "df", "max_z")
        out |= {f"{name}_change_{coefficient}": value for coefficient, value in self.change.items()}
        return out | {f"{name}_chance_{coefficient}": value for coefficient, value in self.chance.items()}

    def lines(self, rejected: Collection[str]) -> list[str]:
        # the largest of many pointwise changes is worth a word only when the test finds that there is a change
        largest = f"largest change {self.max_z:.1f} standard errors ({self.where[0]})"
        verdict = largest if "step_size" in rejected else "no clear change"
        return [f"Time step (dt against 2 dt): {p_text(self.p_value)}, {verdict}; relative changes {self.changes()}"]

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
class Skipped(Check):
    """Why a check was not made."""

    reason: str

    def metrics(self, name: str) -> dict[str, Any]:
        return {f"{name}_skipped": self.reason}

    def lines(self, rejected: Collection[str]) -> list[str]:
        return [f"not checked, {self.reason}"]


NOTHING_LEFT = Skipped(
    "nothing is left to compare, because the penalty or the starting values, not the data, determine the coefficients; "
    "choose a period near the range of the data, or use fewer basis functions (n_basis)"
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
    data = subsample(through_everywhere(transitions), most, seed)
    first = block_starts(data)
    first = first[starts_within(head, data.x[first])]
    own = head if isinstance(head, LinearHead) else stand_in(head)
    P = own.flat().numel()
    if (few := _too_few(len(first), P, "pairs")) is not None:
        return few
    core = region.core()
    short, long_ = StepPairs(data, core, own), StepPairs(two_steps(data, first), doubled(core), own)
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
    return _step_check(statistic, df, curves, own.dim, (n1, n2), one.converged and two.converged, "frozen")


def _too_few(n: int, P: int, pairs: str) -> Skipped | None:
    """n: pairs that are followed by their successor."""
    if 2 * n >= max(400, 20 * P):
        return None
    return Skipped(
        f"only {n} {pairs} are followed by their successor and {max(200, 10 * P)} are needed for {P} parameters; use "
        "longer trajectories or fewer basis functions (n_basis)"
    )


def _step_check(
    statistic: float, df: int, curves: dict[str, Tensor], dim: int, pairs: tuple[int, int], converged: bool, law: str
) -> StepCheck:
    """The result for a statistic with df degrees of freedom and its curves."""
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
    states = _seen_states(one, short.kept.x)
    with torch.no_grad():
        a, b = one(states), two(states)
    out = {"x": states, "period": torch.from_numpy(period_of(one))}
    # a D_f means something beside its alpha: both are compared at that of the first fit
    b = b._replace(D_f=b.D_f * one.units.D_f(a.alpha - b.alpha) * one.units.time)
    for name, *slopes in zip(NAMES, _slopes(one, states), _slopes(two, states)):
        out[f"{name}_dt"], out[f"{name}_2dt"] = getattr(a, name), getattr(b, name)
        variances = [((J @ spread) * J).sum(-1) for J, spread in zip(slopes, spreads)]
        out[f"{name}_std"] = torch.maximum(*variances).clamp(min=0).sqrt()
    return out


def _slopes(head: Head, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d (b, D_o, D_f) / d theta; that of D_f for steps in the head's own unit, so that no unit of x changes it."""
    b, D_o, D_f, alpha = head.jacobian(states)
    with torch.no_grad():
        size = head(states).D_f.expand(len(states))
    return b, D_o, D_f - 2.0 * head.units.log_length * size[:, None] * alpha


def _seen_states(head: Head, x: Tensor) -> Tensor:
    """A grid over the observed part of the cell; in more than one dimension some of the observed states."""
    if head.dim > 1:
        return x[:: max(1, len(x) // _GRID)]
    folded = wrapped(head, x)[:, 0] + head.bounds[0][0]
    low, high = torch.quantile(folded[:: max(1, len(folded) // 100_000)], torch.tensor([0.005, 0.995]).double())
    return torch.linspace(float(low), float(high), _GRID, dtype=torch.float64)


def _largest(curves: dict[str, Tensor], dim: int) -> tuple[float, tuple[str, float]]:
    best: tuple[float, tuple[str, float]] = (0.0, ("b", math.nan))
    for name in NAMES:
        z = (curves[f"{name}_2dt"] - curves[f"{name}_dt"]).abs() / curves[f"{name}_std"].clamp(min=1e-300)
        z = columns_of(z).amax(0)
        i = int(z.argmax())
        if float(z[i]) > best[0]:
            best = (float(z[i]), (name, float(curves["x"][i]) if dim == 1 else math.nan))
    return best


def _relative(size: Tensor, curve: Tensor) -> float:
    return float(size.norm() / curve.norm().clamp(min=1e-300))


# -- under the exact law -----------------------------------------------------------------------------------------------


class ExactStepSize:
    """The test: `short` and `long` take most of the time and do not need each other; `test` joins them.

    strengths, n_fitted: of the roughness penalty, and the pairs beside which it stood. With several dt pairs of the
    most frequent one are looked at.
    """

    def __init__(
        self,
        tangent: ExactTangent,
        transitions: Transitions,
        *,
        strengths: list[float] | None = None,
        n_fitted: int = 0,
        most: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.tangent, self.strengths, self.n_fitted = tangent, strengths, n_fitted
        data = subsample(through_everywhere(transitions), most, seed)
        first = block_starts(data)
        first = first[starts_within(tangent.fitted, data.x[first])]
        P = tangent.head.flat().numel()
        time = rounded(data.dt)
        self.dt = float(time.mode().values)
        first = first[(time[first] == self.dt) & (time[first + 1] == self.dt)]
        self.skipped = _too_few(len(first), P, "pairs of one dt")
        if self.skipped is not None:
            return
        first = first[torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))]
        self.mu = data.mu if data.uniform_dt else data.mu * self.dt
        self.own, self.both = data[torch.stack([first, first + 1], dim=1).reshape(-1)], two_steps(data, first)

    def short(self) -> StepScores:
        return StepScores(self.tangent, self.own, self.dt, self.mu, 2 * _BLOCKS)

    def long(self) -> StepScores | Skipped:
        region = doubled(self.tangent.region.core())
        twice = ExactTangent(self.tangent.fitted, region, 2 * self.mu, uniform_dt=True)
        try:
            return StepScores(twice, self.both, 2 * self.dt, 2 * self.mu, _BLOCKS)
        except InputError as error:
            return Skipped(f"the exact law cannot evaluate steps of 2 dt: {error}")

    def test(self, short: StepScores, long_: StepScores) -> StepCheck | Skipped:
        head = self.tangent.head
        precision = torch.zeros(head.flat().numel(), dtype=torch.float64)
        if self.strengths and isinstance(head, LinearHead):
            precision = RoughnessPenalty(head, self.strengths).precision() / max(self.n_fitted, short.n)
        return _score_test(head, short, long_, precision)


class StepScores:
    """Pairs of one length in the order of the blocks: mean score and information of those inside the region, and the
    single scores of the first few."""

    def __init__(self, tangent: ExactTangent, data: Transitions, dt: float, mu: Tensor, single: int) -> None:
        self.x, dx = data.x, data.dx
        inside = tangent.region.labels((dx - mu).abs(), torch.full_like(dx, dt)) == 0
        inside &= starts_within(tangent.fitted, self.x)
        self.x = space_of(tangent.fitted).inside(self.x)
        x, label = self.x[inside], torch.zeros(int(inside.sum()), dtype=torch.int64)
        self.n = len(x)
        self.score = tangent.mean_score(x, dx[inside], dt, label)
        self.scores = tangent.single_scores(self.x[:single], dx[:single], dt) * inside[:single, None]
        nodes = tangent.nodes(x, label, dt)
        self.information = nodes.scores.T @ (nodes.weight[:, None] * nodes.scores)


def _score_test(head: Head, short: StepScores, long_: StepScores, precision: Tensor) -> StepCheck | Skipped:
    pull = long_.information @ equilibrated_inverse(short.information, 1e-8)[0]
    residual = long_.score - pull @ short.score
    looked = len(long_.scores)
    per_block = long_.scores / long_.n - (short.scores[0::2] + short.scores[1::2]) @ pull.T / short.n
    covariance = per_block.T @ per_block * (len(long_.x) / looked)
    units = long_.information / long_.n, long_.information
    statistic, df = quadratic(residual, covariance, *units, _EXACT_SHARED, few=per_block, of=len(long_.x))
    if df == 0 or not math.isfinite(statistic):
        return NOTHING_LEFT
    inverse = equilibrated_inverse(long_.information + torch.diag(precision), 1e-8)[0]
    curves = _step_curves(head, inverse @ residual, inverse @ covariance @ inverse, short.x)
    return _step_check(statistic, df, curves, 1, (short.n, long_.n), True, "exact")


def _step_curves(head: Head, change: Tensor, spread: Tensor, x: Tensor) -> dict[str, Tensor]:
    """The fit, what the long steps would make of it, and the standard error of the difference, at observed states."""
    states = _seen_states(head, x)
    with torch.no_grad():
        c = head(states)
    out = {"x": states, "period": torch.from_numpy(period_of(head))}
    for name, J in zip(NAMES, _slopes(head, states)):
        out[f"{name}_dt"] = getattr(c, name).expand(len(states)).clone()
        out[f"{name}_2dt"] = out[f"{name}_dt"] + J.detach() @ change
        out[f"{name}_std"] = ((J.detach() @ spread) * J.detach()).sum(-1).clamp(min=0).sqrt()
    return out
