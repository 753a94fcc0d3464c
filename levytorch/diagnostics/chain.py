"""The pairs of the data as the checks see them, with what tells which of them follow each other.

Two pairs follow each other if the second begins where the first ended. On a circle that holds up to whole periods, so
that wrapped and unwrapped angles are the same data. Under a modulation m(c) the law of one step is asked for the pair
(dx + b (m - 1) dt, m dt), while the state still moves by dx: both are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data import Transitions
from levytorch.data.arrays import row_selection
from levytorch.data.memory import follows as following
from levytorch.errors import InputError
from levytorch.spaces import coordinates, space_of
from levytorch.training.inputs import FittedMemory, with_inputs_of, without_covariates
from levytorch.training.recovery import Recovery

T = TypeVar("T", bound=Transitions)


class Chain(Transitions):
    """Pairs for the checks of one recovery.

    Attributes:
        moved: (n[, d]), what the state moved by, where that is not dx (a modulation), else None.
        speed: (n,), the modulation m of every pair, or None.
        periods: (d,), of the state, infinite for coordinates on a line; None where all are.
        memory, means: of a fit with memory, what it found, and the means of the sizes of past steps before every pair;
            `speed` is then that of the other covariates.
        everything: on a line, the pairs including those that start outside the window, else None.
    """

    moved: Tensor | None = None
    speed: Tensor | None = None
    periods: Tensor | None = None
    everything: Chain | None = None
    memory: FittedMemory | None = None
    means: Tensor | None = None

    @classmethod
    def of(cls, recovery: Recovery, transitions: Transitions) -> Chain:
        """The pairs of `transitions` that start where the recovery was fitted, without covariates if it has some."""
        memory, means = recovery.memory, None
        if memory is not None:
            transitions, _ = with_inputs_of(recovery, transitions)
            assert transitions.inputs is not None
            means = transitions.inputs[:, -len(memory.half_lives) :].exp()
        recovery, free = without_covariates(recovery, transitions)
        new = cls.__new__(cls)
        new.__dict__.update(vars(free))
        space = space_of(recovery.head)
        lengths = [part.period or math.inf for part in coordinates(space)]
        if min(lengths) < math.inf:
            new.periods = torch.tensor(lengths, dtype=torch.float64)
        if free is not transitions:
            new.moved, new.speed = transitions.dx, free.dt / transitions.dt
        if memory is not None and means is not None and new.speed is not None:
            new.memory, new.means = memory, means
            new.speed = new.speed / memory.f(means)
        fitted = starts_within(recovery.head, new.x)
        if bool(fitted.all()):
            return new
        if not bool(fitted.any()):
            bounds = recovery.head.bounds
            raise InputError(f"data must have states within the window, found none in {bounds}; pass what was fitted.")
        kept = new[fitted]
        kept.everything = new
        return kept

    @property
    def displacement(self) -> Tensor:
        """(n[, d]) x_next - x."""
        return self.dx if self.moved is None else self.moved

    def speeds(self, rows: Tensor) -> Tensor:
        """The modulation of some pairs, one where there is none."""
        return torch.ones_like(self.dt[rows]) if self.speed is None else self.speed[rows]

    def times(self, rows: Tensor) -> Tensor:
        """dt of some pairs without the factor of the memory."""
        dt = self.dt[rows]
        return dt if self.memory is None or self.means is None else dt / self.memory.f(self.means)[rows]

    def means_before(self, rows: Tensor) -> Tensor | None:
        """The means that a memory begins with, where there is one."""
        return None if self.means is None else self.means[rows]

    def _take(self, which: Any, reasons: Mapping[str, int], keep_mu: bool = True) -> Chain:
        new = super()._take(which, reasons, keep_mu)
        if self.moved is not None and self.speed is not None:
            rows = which if isinstance(which, slice) else row_selection(which, len(self))
            new.moved, new.speed = self.moved[rows], self.speed[rows]
            new.means = None if self.means is None else self.means[rows]
        return new


def through_everywhere(transitions: T) -> T:
    """The pairs with those that start outside the window of a line.

    Several pairs from a state in the window are a sample of what the process does from there only if they may lead out
    of it: to ask that all of them start inside would leave out the largest jumps.
    """
    return getattr(transitions, "everything", None) or transitions


def starts_within(head: Head, x: Tensor) -> Tensor:
    """(n,) bool: the states that lie in the window, where the state lies on a line; all others are True."""
    return ~space_of(head).beyond(x)


def follows(transitions: Transitions) -> Tensor:
    """(n,) bool: the pair begins where the one in the row before ended, in the same trajectory."""
    dx = getattr(transitions, "displacement", transitions.dx)
    return following(transitions.x, dx, transitions.trajectory, getattr(transitions, "periods", None))
