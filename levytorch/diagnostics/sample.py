"""The pairs that a check uses, where the law is evaluated for them, and their probability integral transform.

Pairs: all, or blocks of neighbours drawn at random, so that the cost stays bounded. The region follows how the fit
treated the tails:

none                 the whole law
tcf                  |dx - mu| < CT: an unknown share of what lies beyond is lost
conditional, TRT     |dx - mu| < TRT
conditional, strata  |dx - mu| < CT, and CT < |dx - mu| < TRT, each on its own

The transform is conditional on the region a step was kept in. One dimension: u = P(step <= dx | region). More:
u = P(|y| <= r | region, direction of y), y = dx - b dt; the law is isotropic about b dt, so given its direction the
radius has the same law on every ray, cut where the ray leaves the region. Under the law u is uniform and independent of
x, of dt, of the direction and of the past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.convert import Integers
from levytorch.data import Trajectories, Transitions
from levytorch.data.thresholds import Threshold, threshold_at, threshold_from
from levytorch.data.transitions import Membership
from levytorch.diagnostics.chain import Chain, T, follows, starts_within
from levytorch.errors import InputError
from levytorch.law.tails import radial_tail, survival
from levytorch.likelihood.tail import center_of
from levytorch.spaces.states import dim_of, lengths_of
from levytorch.training.inputs import without_covariates
from levytorch.training.noise import states_behind
from levytorch.training.recovery import Recovery

BLOCK = 32  # neighbours drawn together: what follows what stays visible


@dataclass(frozen=True)
class Region:
    """`inner`: the core is |dx - mu| < inner (None: everything); `outer`: with it, a second stratum up to outer.

    `removed`: pairs at least that far away took no part in the fit.
    """

    inner: Threshold | None = None
    outer: Threshold | None = None
    removed: Threshold | None = None

    @classmethod
    def of(cls, recovery: Recovery) -> Region:
        """The region of a fit, from what its metrics say."""
        metrics = recovery.metrics
        method, TRT = metrics.get("tail_method", "none"), metrics.get("TRT")
        CT: Threshold | None = metrics.get("CT")
        if CT is None and metrics.get("CT_of_dt"):
            CT = threshold_from(metrics["CT_of_dt"])
        if method == "tcf" and CT is not None:
            return cls(inner=CT, removed=TRT)
        if method == "conditional":
            strata = CT is not None and TRT is not None and metrics.get("region") != "TRT"
            return cls(inner=CT, outer=TRT, removed=TRT) if strata else cls(inner=TRT or CT, removed=TRT)
        return cls(removed=TRT)

    @property
    def whole(self) -> bool:
        return self.inner is None

    def core(self) -> Region:
        """The core alone."""
        return replace(self, outer=None)

    def labels(self, deviation: Tensor, dt: Tensor) -> Tensor:
        """0: core, 1: second stratum, -1: outside; (n,) int64."""
        label = torch.zeros(deviation.shape[0], dtype=torch.int64)
        if self.removed is not None:
            label[deviation >= threshold_at(self.removed, dt)] = -1
        if self.inner is not None:
            beyond = deviation > threshold_at(self.inner, dt)
            label[beyond & (label == 0)] = -1 if self.outer is None else 1
        if self.outer is not None:
            label[deviation >= threshold_at(self.outer, dt)] = -1
        return label

    def thresholds(self, dt: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """inner and outer at these dt, of dt's shape."""
        inner, outer = (
            None if t is None else torch.as_tensor(threshold_at(t, dt), dtype=torch.float64).expand(dt.shape)
            for t in (self.inner, self.outer)
        )
        return inner, outer

    def log_kept(self, beyond: Callable[[Tensor], Tensor], dt: Tensor) -> list[Tensor]:
        """log of the mass of each stratum; beyond(threshold): the mass beyond thresholds (n,) at these dt (n,)."""
        inner, outer = self.thresholds(dt)
        if inner is None:
            return []
        outside = beyond(inner)
        kept = [torch.log1p(-outside.clamp(max=1 - 1e-15))]
        if outer is not None:
            kept.append(torch.log((outside - beyond(outer)).clamp(min=1e-300)))
        return kept


@dataclass(frozen=True)
class Sample:
    """Pairs inside a region. `previous`: index here of the pair that ended where this one begins, -1 if there is none.

    `trajectory`, `place`: the trajectory of each pair, and how many pairs of the data came before it there.
    `dt` is (n,); `share`: how much of the data is used; `total`: pairs of the data inside the region (an
    estimate if not all are used).
    """

    x: Tensor
    dx: Tensor
    dt: Tensor
    center: Tensor
    label: Tensor
    previous: Tensor
    trajectory: Tensor
    place: Tensor
    uniform_dt: bool
    share: float
    total: int

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        return dim_of(self.x)

    @property
    def deviation(self) -> Tensor:
        return lengths_of(self.dx - self.center)

    @property
    def step_dt(self) -> Tensor:
        """0-d when all pairs share it: what laws and bins like best."""
        return self.dt[0] if self.uniform_dt else self.dt


def data_for(recovery: Any, data: Any, seed: int = 0) -> tuple[Recovery, Chain]:
    """The recovery of the state alone and the pairs as it sees them; refuses what cannot be diagnosed.

    Of a fit with observation noise these are pairs of states, drawn given the observations.
    """
    if not isinstance(recovery, Recovery):
        raise InputError(f"recovery must be a Recovery, found {type(recovery).__name__}; make one with recover().")
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"data must be Transitions or Trajectories, found {type(data).__name__}; pass what was fitted."
        )
    if transitions.dim != recovery.dim:
        raise InputError(
            f"data must have the dimension of the recovery, {recovery.dim}, found {transitions.dim}; pass what was "
            "fitted."
        )
    transitions = transitions.unwrapped(recovery.head.period)
    if recovery.observation_noise:
        within = starts_within(recovery.head, transitions.x)
        chosen = transitions if bool(within.all()) else transitions[within]
        return recovery, Chain.of(recovery, states_behind(recovery, chosen, seed))
    return without_covariates(recovery, transitions)[0], Chain.of(recovery, transitions)


def subsample(transitions: T, most: int, seed: int, block: int = BLOCK) -> T:
    """At most about `most` pairs, in blocks of neighbours, in the order of the data."""
    if len(transitions) <= most:
        return transitions
    return transitions[torch.from_numpy(_rows(len(transitions), most, seed, block))]


def _rows(n: int, most: int, seed: int, block: int = BLOCK) -> Integers:
    if n <= most:
        return np.arange(n)
    blocks = np.random.default_rng(seed).permutation(n // block)[: max(1, most // block)]
    return (np.sort(blocks)[:, None] * block + np.arange(block)).reshape(-1)


def _places(membership: Membership, rows: Integers) -> Tensor:
    """How many pairs of the same trajectory stand before each of these rows."""
    if membership.counts is not None:
        ends = np.cumsum(membership.counts)
        return torch.from_numpy(rows - (ends - membership.counts)[np.searchsorted(ends, rows, side="right")])
    ids = membership.numbers()
    order = np.argsort(ids, kind="stable")
    first = np.concatenate([[True], ids[order][1:] != ids[order][:-1]])
    place = np.empty(len(ids), dtype=np.int64)
    place[order] = np.arange(len(ids)) - np.maximum.accumulate(np.where(first, np.arange(len(ids)), 0))
    return torch.from_numpy(place[rows])


def make_sample(transitions: Transitions, region: Region, most: int, seed: int) -> Sample:
    """The chosen pairs that lie in the region."""
    chosen = subsample(transitions, most, seed)
    label = region.labels(chosen.deviation, chosen.dt)
    kept = label >= 0
    place = torch.where(kept, torch.cumsum(kept, 0) - 1, -1)
    previous = torch.full_like(place, -1)
    previous[1:] = torch.where(follows(chosen)[1:], place[:-1], -1)
    dt = chosen.dt[kept]
    share = len(chosen) / len(transitions)
    return Sample(
        chosen.x[kept],
        chosen.dx[kept],
        dt,
        center_of(chosen.mu, dt, uniform_dt=chosen.uniform_dt),
        label[kept],
        previous[kept],
        chosen.trajectory[kept],
        _places(transitions.membership, _rows(len(transitions), most, seed))[kept],
        chosen.uniform_dt,
        share,
        len(dt) if share == 1.0 else round(len(dt) / share),
    )


class Transform(NamedTuple):
    """u in (0, 1) and 1 - u, each with its digits when it is tiny; the direction (n, d) in more than one dimension."""

    u: Tensor
    upper: Tensor
    direction: Tensor | None = None


@torch.no_grad()
def transform(
    c: Coefficients, dx: Tensor, dt: Tensor, center: Tensor, label: Tensor, region: Region, edges: Tensor | None = None
) -> Transform:
    """u of every step; `edges`: see `edge_masses` (d = 1), evaluated here when they are not given."""
    if dx.dim() > 1:
        return _radial(c, dx, dt, center, label, region)
    A, B = c.D_o * dt, c.D_f * dt
    y = dx - c.b * dt
    half = 0.5 * radial_tail(y.abs(), A, B, c.alpha, lam=_lam(c))
    lower, upper = torch.where(y < 0, half, 1.0 - half), torch.where(y < 0, 1.0 - half, half)
    if region.whole:
        return Transform(lower, upper)
    if edges is None:
        edges = edge_masses(c, dt, center, region)
    return conditional(lower, upper, edges, dx, center, label, region)


def conditional(
    lower: Tensor, upper: Tensor, edges: Tensor, dx: Tensor, center: Tensor, label: Tensor, region: Region
) -> Transform:
    """The transform given the stratum of each step, from the masses below and above it and at the edges (d = 1)."""
    if region.whole:
        return Transform(lower, upper)
    F1, S1 = edges[0], edges[1]
    kept = 1.0 - F1 - S1
    u, v = (lower - F1) / kept, (upper - S1) / kept
    if region.outer is not None:
        F2, S2 = edges[2], edges[3]
        kept = ((F1 - F2) + (S1 - S2)).clamp(min=1e-300)
        below, above = (lower - F2) / kept, (upper - S2) / kept
        left, second = dx < center, label == 1
        u = torch.where(second, torch.where(left, below, 1.0 - above), u)
        v = torch.where(second, torch.where(left, 1.0 - below, above), v)
    return Transform(u.clamp(0.0, 1.0), v.clamp(0.0, 1.0))


@torch.no_grad()
def edge_masses(c: Coefficients, dt: Tensor, center: Tensor, region: Region) -> Tensor:
    """Rows P(dx < center - inner), P(dx > center + inner), and the same for outer: (2 or 4, n)."""
    A, B, shift = c.D_o * dt, c.D_f * dt, center - c.b * dt
    rows = []
    for threshold in region.thresholds(dt):
        if threshold is not None:
            rows += [survival(threshold + side * shift, A, B, c.alpha, _lam(c)) for side in (-1.0, 1.0)]
    return torch.stack(torch.broadcast_tensors(*rows))


def _lam(c: Coefficients) -> Tensor | None:
    return c.tempering if bool((c.tempering > 0).any()) else None


def _radial(c: Coefficients, dx: Tensor, dt: Tensor, center: Tensor, label: Tensor, region: Region) -> Transform:
    dim = dx.shape[1]
    drift = c.b * dt.unsqueeze(-1)
    y = dx - drift
    r = y.norm(dim=1)
    direction = y / r.clamp(min=1e-300).unsqueeze(-1)
    A, B = c.D_o * dt, c.D_f * dt

    def tail(radius: Tensor) -> Tensor:
        return radial_tail(radius, A, B, c.alpha, dim=dim, lam=_lam(c))

    beyond = tail(r)
    if region.whole:
        return Transform(1.0 - beyond, beyond, direction)
    offset = center - drift
    inner, outer = region.thresholds(dt)
    assert inner is not None
    enter, leave = _crossings(direction, offset, inner)
    S_in, S_out = tail(enter), tail(leave)
    kept = (S_in - S_out).clamp(min=1e-300)
    held = torch.where(r > leave, S_out, torch.where(r < enter, S_in, beyond))  # tail at the radius moved into the ball
    u, v = (S_in - held) / kept, (held - S_out) / kept
    if outer is not None:
        begin, end = _crossings(direction, offset, outer)
        S_begin, S_end = tail(begin), tail(end)
        shell = ((S_begin - S_end) - kept).clamp(min=1e-300)
        second = label == 1
        u = torch.where(second, ((S_begin - beyond) - (S_in - held)) / shell, u)
        v = torch.where(second, ((beyond - S_end) - (held - S_out)) / shell, v)
    return Transform(u.clamp(0.0, 1.0), v.clamp(0.0, 1.0), direction)


def _crossings(direction: Tensor, offset: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Where the ray from b dt enters (0 when it starts inside) and leaves the ball about the center."""
    along = (direction * offset).sum(1)
    root = (radius**2 - (offset * offset).sum(1) + along**2).clamp(min=0.0).sqrt()
    return (along - root).clamp(min=0.0), (along + root).clamp(min=0.0)
