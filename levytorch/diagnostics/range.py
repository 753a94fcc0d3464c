"""Does the fit stay where the data stays: the range of the states over the longest stretches of the data.

A drift that hardly holds the state together predicts ten steps as well as one that does, and wanders off in a thousand.
Stretches of as many steps as the longest run of pairs has, up to 1,000, stand beside paths of the fit from the same
states over the same times. The range of a stretch is the distance between the quartiles of its states on a line, and
one minus the length of the mean direction on a circle. The mean of its logarithm over the stretches is compared with
that of the paths: Student's t, in which the observed stretches count as one more set of paths. Each set of paths has
parameters of its own, drawn from the distribution of the estimate, so that a drift that the data hardly determines is
no misfit.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from scipy.special import stdtr
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.diagnostics.chain import Chain, follows, starts_within
from levytorch.diagnostics.paths import Read, coefficients_of, steps_of_paths
from levytorch.spaces import Circle, coordinates, space_of
from levytorch.spaces.states import columns_of

_LONGEST, _FEWEST = 1000, 100  # steps of a stretch
_MOST = 20  # stretches
_SETS = 40  # of paths
_TABLE = 512  # points of the cell between which coefficients are straight lines
_SUBSTEPS = 2  # Euler steps within a step, where coefficients are followed along it


@dataclass
class RangeCheck:
    """p_value: that stretches of the data range as far as paths of the fit; ratio: of the range of the paths to that of
    the data, ratio_std its standard error; steps, stretches: how long they are, and how many."""

    p_value: float
    ratio: float
    ratio_std: float
    steps: int
    stretches: int


@torch.no_grad()
def check_range(
    head: Head, data: Chain, *, exact: bool, covariance: Tensor | None, generator: torch.Generator
) -> RangeCheck | None:
    """None where no run of pairs is long enough."""
    begins, steps = _stretches(head, data, generator)
    if len(begins) == 0:
        return None
    rows = begins[:, None] + torch.arange(steps)
    observed = _log_range(head, data.x[rows]).mean()
    paths = _paths(head, data, rows, _reader(head, covariance, generator), exact, generator)
    values = torch.stack([_log_range(head, part).mean() for part in paths])
    apart, scatter = float(values.mean() - observed), float(values.std()) * math.sqrt(1 + 1 / _SETS)
    if not scatter > 0 or not math.isfinite(apart):
        return None
    ratio = math.exp(apart)
    return RangeCheck(2 * float(stdtr(_SETS - 1, -abs(apart) / scatter)), ratio, ratio * scatter, steps, len(begins))


def _stretches(head: Head, data: Chain, generator: torch.Generator) -> tuple[Tensor, int]:
    """Where stretches begin, in the window of a line, and how many steps they have."""
    starts = torch.nonzero(~follows(data)).reshape(-1)
    sizes = torch.diff(starts, append=torch.tensor([len(data)]))
    steps = min(int(sizes.max()), _LONGEST)
    if steps < _FEWEST:
        return starts[:0], steps
    number = sizes // steps
    within = torch.cat([torch.arange(n) for n in number.tolist()])
    begins = starts.repeat_interleave(number) + steps * within
    begins = begins[starts_within(head, data.x[begins])]
    return begins[torch.randperm(len(begins), generator=generator)[:_MOST]], steps


def _log_range(head: Head, x: Tensor) -> Tensor:
    """(n,): of the states of every stretch (n, steps[, d]), the mean over the coordinates."""
    columns = columns_of(x.reshape(-1, *x.shape[2:])).reshape(-1, *x.shape[:2])
    out = []
    for space, column in zip(coordinates(space_of(head)), columns):
        if isinstance(space, Circle):
            turn = 2 * math.pi / space.period * column
            size = 1.0 - torch.hypot(torch.cos(turn).mean(1), torch.sin(turn).mean(1))
        else:
            low, high = torch.quantile(column, torch.tensor([0.25, 0.75], dtype=torch.float64), dim=1)
            size = high - low
        out.append(size.clamp(min=1e-300).log())
    return torch.stack(out).mean(0)


def _paths(head: Head, data: Chain, rows: Tensor, read: Read, exact: bool, generator: torch.Generator) -> Tensor:
    """States (sets, stretches, steps[, d]) of paths over stretches of pairs `rows` (stretches, steps)."""
    x, means = data.x[rows[:, 0]], data.means_before(rows[:, 0])
    start = x.repeat((_SETS, *[1] * (x.dim() - 1)))
    dt, speed = data.times(rows).repeat(_SETS, 1), data.speeds(rows).repeat(_SETS, 1)
    carried = data.memory, None if means is None else means.repeat(_SETS, 1)
    steps = steps_of_paths(space_of(head), read, start, dt, speed, _SUBSTEPS if exact else 1, generator, *carried)
    states = torch.stack([step.x for step in steps], dim=1)
    return states.reshape(_SETS, len(x), *states.shape[1:])


def _reader(head: Head, covariance: Tensor | None, generator: torch.Generator) -> Read:
    """Coefficients at states (sets * stretches,); in one dimension each set has its own parameters."""
    if not isinstance(head, LinearHead) or head.dim > 1 or covariance is None:
        return coefficients_of(head)
    values, vectors = torch.linalg.eigh(covariance)
    spread = vectors * values.clamp(min=0).sqrt()
    origin, end = head.bounds[0]
    grid = torch.linspace(origin, end, _TABLE + 1, dtype=torch.float64)
    own, theta, tables = copy.deepcopy(head), head.flat(), []
    for _ in range(_SETS):
        draw = torch.randn(len(theta), generator=generator, dtype=torch.float64)
        own.set_flat(theta + spread @ draw)
        c = own(grid)
        tables.append(torch.stack([v.expand(_TABLE + 1) for v in c]))
    table = torch.stack(tables, dim=1)  # (coefficients, sets, points)
    tempering = head(grid[:1]).tempering

    def at(x: Tensor) -> Coefficients:
        place = ((x - origin) * (_TABLE / (end - origin))).clamp(0, _TABLE - 1e-6)
        left = place.floor().to(torch.int64)
        rows = torch.arange(_SETS).repeat_interleave(len(x) // _SETS)
        found = torch.lerp(table[:, rows, left], table[:, rows, left + 1], place - left)
        b, D_o, D_f, alpha = found
        return Coefficients(b, D_o, D_f, alpha, tempering)

    return at
