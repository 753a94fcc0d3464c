"""Moving average of theta over the last `window` steps (section E.2), kept as sums over blocks of steps.

Memory is blocks x P whatever the window; the oldest block leaves when a new one is full, so that the average covers
between window and window plus one block of steps once that many have been taken.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from levytorch.training.module import LevyModule

_BLOCKS = 100


class MovingAverage(L.Callback):
    """`average()` is what Algorithm B.1 returns."""

    def __init__(self, window: int = 20_000) -> None:
        self.window = window
        self.block = max(1, window // _BLOCKS)
        self.sums: list[Tensor] = []
        self.current: Tensor | None = None
        self.filled = 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        self.add(pl_module.head.flat())

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
        return {"sums": [s.clone() for s in self.sums], "current": self.current, "filled": self.filled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sums = list(state_dict["sums"])
        current = state_dict["current"]
        self.current, self.filled = None if current is None else current.clone(), state_dict["filled"]
