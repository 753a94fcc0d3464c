"""A Fourier head fitted again to some pairs, without a trainer, and the scores of single pairs.

Pairs over two steps are made of pairs that follow each other: every second observation.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head, LinearHead, SplineHead
from levytorch.coefficients.product import ProductHead
from levytorch.data import Pools, Transitions
from levytorch.data.thresholds import Threshold
from levytorch.diagnostics.chain import follows, starts_within
from levytorch.diagnostics.sample import Region
from levytorch.likelihood.frozen import FrozenLaw, steady_method, to_predictors
from levytorch.likelihood.likelihood import make_objective
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.likelihood.tail import TailSettings
from levytorch.spaces import space_of
from levytorch.training.engines.fisher import FisherScoring

_PASSES = 40
_STAND_IN = 11  # basis functions of the Fourier head that stands in for another
_CHUNK = 1 << 14


def block_starts(data: Transitions) -> Tensor:
    """Rows 2 k of every run of pairs that follow each other, each with its successor: every second observation."""
    linked = follows(data)
    rows = torch.arange(len(data))
    run = torch.cummax(torch.where(linked, 0, rows), 0).values  # where the run of this row began
    starts = ((rows - run) % 2 == 0)[:-1] & linked[1:]
    return torch.nonzero(starts).reshape(-1)


def two_steps(data: Transitions, first: Tensor) -> Transitions:
    """Pairs over two steps."""
    dt = 2 * float(data.dt[0]) if data.uniform_dt else data.dt[first] + data.dt[first + 1]
    mu = 2 * data.mu if data.uniform_dt else data.mu
    return Transitions(data.x[first], data.dx[first] + data.dx[first + 1], dt, mu=mu)


def doubled(region: Region) -> Region:
    """The same thresholds for steps of twice the length; those that depend on dt at half of it."""
    return Region(inner=_at_half(region.inner), removed=_at_half(region.removed))


def _at_half(threshold: Threshold | None) -> Threshold | None:
    return functools.partial(_half_dt, threshold) if callable(threshold) else threshold


def _half_dt(threshold: Threshold, dt: Tensor) -> Tensor:
    assert callable(threshold)
    return threshold(dt / 2)


class StepPairs:
    """Pairs of one step length that start where the head was fitted and end inside their region."""

    def __init__(self, data: Transitions, region: Region, head: Head) -> None:
        self.region = region
        self.inside = (region.labels(data.deviation, data.dt) == 0) & starts_within(head, data.x)
        self.all = data
        data.mu  # noqa: B018 - computed before anything is removed
        self.kept = data if bool(self.inside.all()) else data[self.inside]
        self.n = len(self.kept)


@dataclass
class Fitted:
    head: LinearHead
    objective: FullBatchObjective
    evaluation: Evaluation
    converged: bool


def stand_in(head: Head) -> LinearHead:
    """A linear head with the mean coefficients of another: what changes with dt is a matter of the data."""
    n = _STAND_IN if head.dim == 1 else 3
    shared: dict[str, Any] = {"alpha": head.alpha_spec, "units": head.units, "dim": head.dim}
    shared |= {"tempering": head.tempering_spec, "known": head.known}
    shared["positivity_link"] = getattr(head, "positivity_link", "softplus")
    own: LinearHead
    if head.repeats:
        own = FourierHead(n, head.period, head.origin, **shared)
    elif any(head.periods):
        own = ProductHead(max(n, 4), head.periods, head.origin, head.window, **shared)
    else:
        own = SplineHead(max(n, 4), head.window, **shared)
    with torch.no_grad():
        c = head(head.grid(256))
    means = (float(v.mean()) for v in (*c[1:], c.tempering))
    own.set_constants(c.b.mean(0).tolist(), *means)
    return own


def _objective(head: LinearHead, side: StepPairs, strengths: list[float] | None, share: float) -> FullBatchObjective:
    law = FrozenLaw(steady_method("auto", head), head.dim)
    empty = torch.empty(0, dtype=torch.int64)
    inner = side.region.inner
    pools = Pools(side.kept, empty, None, inner)
    settings = TailSettings() if inner is None else TailSettings(method="conditional", TRT=1.0, region="TRT")
    objective = make_objective(head, pools, settings, law)
    if strengths is not None:
        penalty = RoughnessPenalty(head, strengths)
        penalty.strengths = penalty.strengths * share
        objective.penalty = penalty
    return objective


def fit_again(start: LinearHead, side: StepPairs, strengths: list[float] | None, share: float) -> Fitted:
    head = copy.deepcopy(start)
    objective = _objective(head, side, strengths, share)
    scoring = FisherScoring([head.theta])
    scoring.objective = objective
    for _ in range(_PASSES):
        scoring.step(objective.evaluate)
        if scoring.converged:
            break
    assert scoring.accepted is not None
    return Fitted(head, objective, scoring.accepted, scoring.converged)


def evaluate_at(at: LinearHead, side: StepPairs, strengths: list[float] | None, share: float) -> Fitted:
    head = copy.deepcopy(at)
    objective = _objective(head, side, strengths, share)
    return Fitted(head, objective, objective.evaluate(), True)


def curvature(fitted: Fitted) -> Tensor:
    return fitted.objective.local_model(fitted.evaluation).curvature


def scores(fitted: Fitted, data: Transitions, rows: Tensor, weight: Tensor) -> Tensor:
    """Scores in theta of some pairs, given their region, times a weight: (P, m)."""
    head, objective = fitted.head, fitted.objective
    x, dx = space_of(head).inside(data.x[rows]), data.dx[rows]
    dt = data.dt[0] if data.uniform_dt else data.dt[rows]
    design = head.design(x)
    chain = head.chain(head.theta.detach(), design)
    step = objective.law.score(chain.coefficients, dx, dt, wrt_alpha=head.learns_alpha)
    q = to_predictors(head.layout.scores(step, chain.coefficients), chain)
    if fitted.evaluation.kept is not None:
        q = q - fitted.evaluation.kept[2][:, objective.bins.index(x, dt)]
    q = q * weight
    return torch.cat([design[i] * q[i] for i in range(len(q))])


def block_products(
    one: Fitted, two: Fitted, short: StepPairs, long_: StepPairs, first: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over blocks of (s1 + s1')(s1 + s1')^T, (s1 + s1') s2^T and s2 s2^T; pairs in no block are their own."""
    P = one.head.flat().numel()
    G11, G12, G22 = (torch.zeros((P, P), dtype=torch.float64) for _ in range(3))
    inside1, inside2 = short.inside.double(), long_.inside.double()
    for lo in range(0, len(first), _CHUNK):
        rows = first[lo : lo + _CHUNK]
        blocks = torch.arange(lo, lo + len(rows))
        s1 = scores(one, short.all, rows, inside1[rows]) + scores(one, short.all, rows + 1, inside1[rows + 1])
        s2 = scores(two, long_.all, blocks, inside2[blocks])
        G11 += s1 @ s1.T
        G12 += s1 @ s2.T
        G22 += s2 @ s2.T
    single = short.inside.clone()
    single[first] = False
    single[first + 1] = False
    alone = torch.nonzero(single).reshape(-1)
    for lo in range(0, len(alone), _CHUNK):
        rows = alone[lo : lo + _CHUNK]
        s1 = scores(one, short.all, rows, inside1[rows])
        G11 += s1 @ s1.T
    return G11, G12, G22
