"""The moving average of theta that Algorithm B.1 returns (section E.2), and when it has converged.

The average over the last `window` steps is kept as sums over blocks of steps. Memory is blocks x P whatever the window.
The oldest block leaves when a new one is full, so that the average covers between window and window plus one block of
steps once that many have been taken.

The paper leaves the test of convergence open. Here: the window is full, its two halves agree within their own noise,
and the noise of the average (from ten batch means) is below `tolerance` of the parameters' size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.likelihood.likelihood import Likelihood

_BLOCKS = 100
_BATCH_MEANS = 10


class MovingAverage:
    """`average()` is what Algorithm B.1 returns."""

    def __init__(self, window: int = 20_000) -> None:
        self.window = window
        self.block = max(1, window // _BLOCKS)
        self.sums: list[Tensor] = []
        self.current: Tensor | None = None
        self.filled = 0

    def add(self, theta: Tensor) -> None:
        """Take one more step into the average."""
        self.current = theta.clone() if self.current is None else self.current.add_(theta)
        self.filled += 1
        if self.filled == self.block:
            self.sums.append(self.current)
            self.current, self.filled = None, 0
            del self.sums[: max(0, len(self.sums) - self.window // self.block)]

    @property
    def steps(self) -> int:
        """Steps in the average."""
        return len(self.sums) * self.block + self.filled

    @property
    def full(self) -> bool:
        return len(self.sums) * self.block >= self.window // self.block * self.block

    def average(self) -> Tensor:
        parts = [*self.sums] + ([self.current] if self.current is not None else [])
        return torch.stack(parts).sum(0) / self.steps

    def block_means(self) -> Tensor:
        """(number of full blocks, P) in the order they were taken."""
        return torch.stack(self.sums) / self.block

    def state_dict(self) -> dict[str, Any]:
        return {
            "sums": [s.clone() for s in self.sums],
            "current": None if self.current is None else self.current.clone(),
            "filled": self.filled,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sums = list(state_dict["sums"])
        current = state_dict["current"]
        self.current, self.filled = None if current is None else current.clone(), state_dict["filled"]


def has_settled(blocks: Tensor, tolerance: float) -> bool:
    """Halves agree within 3 standard errors and the average's standard error is below tolerance * max(|theta|, 1)."""
    n = blocks.shape[0] // _BATCH_MEANS * _BATCH_MEANS
    if n < _BATCH_MEANS:
        return False
    means = blocks[-n:].reshape(_BATCH_MEANS, -1, blocks.shape[1]).mean(1)
    half = _BATCH_MEANS // 2
    difference = means[:half].mean(0) - means[half:].mean(0)
    within = 0.5 * (means[:half].var(0) + means[half:].var(0))
    size = means.mean(0).abs().clamp(min=1.0)
    agree = difference.abs() <= 3 * (2 * within / half).sqrt() + 1e-12 * size
    precise = (means.var(0) / _BATCH_MEANS).sqrt() <= tolerance * size
    return bool(torch.all(agree & precise))


# -- held-out pairs ----------------------------------------------------------------------------------------------------
class HeldOutWatch:
    """Looks at held-out pairs every so many steps, at the mean of the parameters since the look before.

    likelihood: its head is the one that moves; pairs: in its units; patience: looks in a row without a better
    likelihood than before, after which `stopped` is true. best: the parameters that had the best one.
    """

    def __init__(self, likelihood: Likelihood, pairs: Transitions, every: int, patience: int) -> None:
        self.likelihood, self.pairs, self.every, self.patience = likelihood, pairs, every, patience
        self.best, self.nll, self.worse = likelihood.head.flat(), math.inf, 0
        self._sum, self._steps = torch.zeros_like(self.best), 0

    @property
    def stopped(self) -> bool:
        return self.worse >= self.patience

    @torch.no_grad()
    def add(self, theta: Tensor) -> None:
        """Take one more step into account."""
        self._sum += theta
        self._steps += 1
        if self._steps < self.every:
            return
        mean, head = self._sum / self._steps, self.likelihood.head
        head.set_flat(mean)
        out, there = self.pairs, theta.device
        blocks = ([part[r].to(there) for part in (out.states, out.dx, out.dt)] for r in out.blocks())
        total = sum(float(self.likelihood.log_prob(*block).sum()) for block in blocks)
        head.set_flat(theta)
        nll = -total / len(out)
        if nll < self.nll:
            self.best, self.nll, self.worse = mean, nll, 0
        else:
            self.worse += 1
        self._sum, self._steps = torch.zeros_like(mean), 0

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors."""
        return {
            "best": self.best.clone(),
            "nll": self.nll,
            "worse": self.worse,
            "sum": self._sum.clone(),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.nll, self.worse = state["best"].clone(), float(state["nll"]), int(state["worse"])
        self._sum, self._steps = state["sum"].clone(), int(state["steps"])
