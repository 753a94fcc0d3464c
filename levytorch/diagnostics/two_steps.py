"""Pairs over two steps, out of pairs that follow each other: every second observation."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.thresholds import Threshold
from levytorch.diagnostics.region import Region
from levytorch.diagnostics.sample import follows


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


class Side:
    """Pairs of one step length inside their region."""

    def __init__(self, data: Transitions, region: Region) -> None:
        self.region = region
        self.inside = region.labels(data.deviation, data.dt) == 0
        self.all = data
        data.mu  # noqa: B018 - computed before anything is removed
        self.kept = data if bool(self.inside.all()) else data[self.inside]
        self.n = len(self.kept)
