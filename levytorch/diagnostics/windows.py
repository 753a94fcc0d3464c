"""Windows of successive pairs, and paths of a fitted process over the same times from the same states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.data import Transitions
from levytorch.diagnostics.sample import Region, follows
from levytorch.law import LevyStep

_TABLE = 4096  # points of the cell between which coefficients of one variable are straight lines


class Windows(NamedTuple):
    """x: where each of n windows begins; dt, center: of dx in each of its k steps, (n, k[, d]); moved: over all of
    it, (n[, d]); block: which block of neighbours it belongs to."""

    x: Tensor
    dt: Tensor
    center: Tensor
    moved: Tensor
    block: Tensor

    def of(self, rows: Tensor) -> Windows:
        return Windows(*(part[rows] for part in self))


def windows_of(
    data: Transitions, region: Region, lengths: Sequence[int], most: int, generator: torch.Generator
) -> dict[int, Windows]:
    """Windows of each length in at most `most` blocks as long as the longest.

    Runs of pairs that follow each other inside the region are cut into blocks. A block holds windows of each length
    that share no pair with others of that length, at most three. Each is taken when its own steps are there, whatever
    came after them: what ends a run may be a lost step, and to ask for more would choose among the outcomes.
    """
    inside = region.labels(data.deviation, data.dt) == 0
    linked = follows(data) & inside
    linked[1:] &= inside[:-1]
    starts = torch.nonzero(~linked).reshape(-1)
    sizes = torch.diff(starts, append=torch.tensor([len(data)]))
    good = inside[starts]
    long_ = max(lengths)
    number = -(-sizes[good] // long_)
    # blocks of all runs: where they begin, and how much of their run is left
    within = torch.cat([torch.arange(n) for n in number.tolist()]) if len(number) else number
    begin = starts[good].repeat_interleave(number) + long_ * within
    left = sizes[good].repeat_interleave(number) - long_ * within
    chosen = torch.randperm(len(begin), generator=generator)[:most]
    out = {}
    for k in lengths:
        offsets = [0] if k == long_ else [0, long_ // 3, 2 * (long_ // 3)]
        rows = [(offset, torch.nonzero(left[chosen] >= offset + k).reshape(-1)) for offset in offsets]
        at = torch.cat([begin[chosen[r]] + offset for offset, r in rows])
        out[k] = _cut(data, at, k, torch.cat([r for _, r in rows]))
    return out


def _cut(data: Transitions, begins: Tensor, k: int, block: Tensor) -> Windows:
    rows = begins[:, None] + torch.arange(k)
    dt = data.dt[rows]
    scale = torch.ones_like(dt) if data.uniform_dt else dt
    center = data.mu * (scale if data.dim == 1 else scale.unsqueeze(-1))
    return Windows(data.x[begins], dt, center, data.dx[rows].sum(1), block)


@torch.no_grad()
def paths_of(
    head: Head, windows: Windows, region: Region, substeps: int, copies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Displacements (copies, n[, d]) of paths over the windows, and whether all their steps lie in the region."""
    coefficients = _coefficients(head)
    n, dim = len(windows.x), head.dim
    at = windows.x.repeat((copies, *[1] * (windows.x.dim() - 1)))
    moved = torch.zeros_like(at)
    kept = torch.ones(len(at), dtype=torch.bool)
    for j in range(windows.dt.shape[1]):
        dt = windows.dt[:, j].repeat(copies)
        step = torch.zeros_like(at)
        for _ in range(substeps):
            # the state of a path that has jumped far is its place in the cell, to all digits of where it began
            c = coefficients(_wrapped(head, at + moved + step))
            law = LevyStep(*c, dt / substeps, dim, c.tempering, validate_args=False)
            step += law.sample(generator=generator)
        moved += step
        center = windows.center[:, j].repeat((copies, *[1] * (at.dim() - 1)))
        apart = (step - center).abs() if dim == 1 else (step - center).norm(dim=1)
        kept &= region.labels(apart, dt) == 0
    return moved.reshape(copies, n, *at.shape[1:]), kept.reshape(copies, n)


def _wrapped(head: Head, x: Tensor) -> Tensor:
    if head.period is None:
        return head.place(x)
    origin, period = (torch.as_tensor(v, dtype=torch.float64) for v in (head.origin, head.period))
    return torch.remainder(x - origin, period) + origin


def _coefficients(head: Head) -> Callable[[Tensor], Coefficients]:
    """The head; of one variable, read off a table."""
    if head.dim > 1 or head.is_constant:
        return head
    origin, end = head.bounds[0]
    period = end - origin
    grid = origin + period / _TABLE * torch.arange(_TABLE + 1, dtype=torch.float64)
    values = head(grid).each(lambda v: v.expand(_TABLE + 1).clone())

    def read(x: Tensor) -> Coefficients:
        place = ((x - origin) * (_TABLE / period)).clamp(0, _TABLE - 1e-6)
        left = place.floor().to(torch.int64)
        share = place - left
        return values.each(lambda v: torch.lerp(v[left], v[left + 1], share))

    return read
