"""When to stop a fit by mini-batches: when the likelihood of pairs that it does not see no longer rises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.likelihood.likelihood import Likelihood


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
