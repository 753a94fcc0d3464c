"""Paths of a fit from observed states over the times of the data, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.law import LevyStep
from levytorch.spaces import StateSpace
from levytorch.spaces.states import beside
from levytorch.training.inputs import FittedMemory

_TABLE = 4096  # points of the cell between which coefficients of one variable are straight lines

Read = Callable[[Tensor], Coefficients]


def coefficients_of(head: Head) -> Read:
    """The head; of one variable, read off a table."""
    if head.dim > 1 or head.is_constant:
        return head
    origin, end = head.bounds[0]
    period = end - origin
    grid = origin + period / _TABLE * torch.arange(_TABLE + 1, dtype=torch.float64)
    values = head(grid).each(lambda v: v.expand(_TABLE + 1).clone())

    def read(x: Tensor) -> Coefficients:
        at = ((x - origin) * (_TABLE / period)).clamp(0, _TABLE - 1e-6)
        left = at.floor().to(torch.int64)
        share = at - left
        return values.each(lambda v: torch.lerp(v[left], v[left + 1], share))

    return read


class PathStep(NamedTuple):
    """Of n paths: where a step begins, the displacement (n[, d]), and the time that its jumps had, (n,)."""

    x: Tensor
    dx: Tensor
    dt: Tensor


@torch.no_grad()
def steps_of_paths(
    space: StateSpace,
    read: Read,
    x: Tensor,
    dt: Tensor,
    speed: Tensor,
    substeps: int,
    generator: torch.Generator,
    memory: FittedMemory | None = None,
    means: Tensor | None = None,
) -> Iterator[PathStep]:
    """From states x (n[, d]), `substeps` Euler steps in each.

    dt: (n, steps) of the jumps; speed: (n, steps), by how much it exceeds that of the drift (a modulation). memory: of
    the fit, without whose factor dt and speed then are; means: (n, number of half-lives), to begin with.
    """
    for step, rate in zip(dt.T, speed.T):
        true_dt = step / rate
        if memory is not None:
            f = memory.f(means)
            step, rate = step * f, rate * f
        moved = torch.zeros_like(x)
        for _ in range(substeps):
            # the state of a path that has jumped far is its place in the cell, to all digits of where it began
            c = read(space.inside(x + moved))
            c = c._replace(b=c.b / beside(rate, c.b))
            law = LevyStep(*c, step / substeps, space.dim, c.tempering, validate_args=False)
            moved = moved + law.sample(generator=generator)
        if memory is not None and means is not None:
            means = memory.rule.after(means, moved, true_dt)
        yield PathStep(x, moved, step)
        x = space.wrap(x + moved)
