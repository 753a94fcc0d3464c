"""Parts of the cell of a state, or of its window on a line: where pairs of every action are counted, and what that says
of a policy.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from levytorch.convert import path_of
from levytorch.errors import InputError, LevytorchWarning
from levytorch.untrusted import load_tensors

FEW = 50  # pairs of an action in a part of the cell, below which its coefficients are extrapolated there
ALARM = 0.05  # share of a policy's choices, at observed states, that may rest on fewer
_COUNT = {1: 64, 2: 256, 3: 512}  # parts, by dimension


class Parts:
    """`count` equal parts, as many per coordinate; states beyond a window belong to the part at its end."""

    def __init__(self, head: Any, count: int | None = None) -> None:
        self.dim, self.periodic, self.bounds = head.dim, head.period is not None, head.bounds
        self.count = _COUNT[self.dim] if count is None else count
        self.side = round(self.count ** (1 / self.dim))

    def centers(self) -> Tensor:
        """The middle of every part, (count,) or (count, d)."""
        unit = (torch.arange(self.side, dtype=torch.float64) + 0.5) / self.side
        axes = [low + (high - low) * unit for low, high in self.bounds]
        if self.dim == 1:
            return axes[0]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.dim)

    def index(self, x: Tensor) -> Tensor:
        """The part that each state lies in, (n,) int64."""
        out = torch.zeros(len(x), dtype=torch.int64)
        for column, (low, high) in zip(x.reshape(len(x), -1).T, self.bounds):
            place = (column - low) * (self.side / (high - low))
            place = torch.remainder(place, self.side) if self.periodic else place.clamp(0, self.side - 1)
            out = out * self.side + place.to(torch.int64).clamp(0, self.side - 1)
        return out

    def counts(self, x: Tensor, codes: Tensor, n_actions: int) -> Tensor:
        """Pairs of every action in every part, (n_actions, count)."""
        index = codes * self.count + self.index(x)
        found = torch.bincount(index, minlength=n_actions * self.count)
        return found.reshape(n_actions, self.count).to(torch.float64)

    def between(self, values: Tensor) -> Callable[[Tensor], Tensor]:
        """Values (count, A) at the centers as a function of the state: linear between them in one dimension, else by
        part.
        """

        def function(x: Tensor) -> Tensor:
            if self.dim > 1:
                return values[self.index(x)]
            ((low, high),) = self.bounds
            at = (x - low) * (self.side / (high - low)) - 0.5
            at = torch.remainder(at, self.side) if self.periodic else at.clamp(0, self.side - 1)
            left = torch.floor(at)
            share = (at - left).unsqueeze(1)
            first = left.to(torch.int64).clamp(max=self.side - 1)
            second = (first + 1) % self.side if self.periodic else (first + 1).clamp(max=self.side - 1)
            return (1 - share) * values[first] + share * values[second]

        return function


class CountedActions:
    """What recoveries with actions share. counts: (A, parts), pairs per action (or bin) and part of the cell."""

    counts: Tensor

    @property
    def parts(self) -> Parts:
        """The parts of the cell, or of the window on a line, that `counts` counts."""
        raise NotImplementedError

    def nearby(self, policy: Any) -> tuple[Tensor, Tensor]:
        """Pairs with the actions of a policy, or near them, in each part of the cell, (parts, K), and how often the
        policy takes these, (parts, K).
        """
        raise NotImplementedError

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        """What `save` wrote; refuses what does not go together."""
        raise NotImplementedError

    def centers(self) -> Tensor:
        """The middle of every part of the cell that `counts` counts."""
        return self.parts.centers()

    def effective_pairs(self, policy: Any) -> Tensor:
        """Pairs that speak for what a policy does in each part of the cell, (parts,): 1 / sum_k w_k^2 / n_k."""
        pairs, weights = self.nearby(policy)
        return 1.0 / (weights.square() / pairs.clamp(min=1e-300)).sum(1)

    def extrapolated(self, policy: Any) -> float:
        """Share of a policy's choices, over the observed states, with few pairs nearby."""
        pairs, weights = self.nearby(policy)
        seen = self.counts.sum(0) / self.counts.sum()
        return float((seen.unsqueeze(1) * weights * (pairs < FEW)).sum())

    def _told_extrapolation(self, policy: Any, kind: str) -> float:
        """The same, with a warning where it is much; kind: of the pairs that are nearby."""
        thin = self.extrapolated(policy)
        if thin > ALARM:
            warnings.warn(
                f"{100 * thin:.0f} % of what the policy does at observed states rests on fewer than {FEW} pairs {kind}"
                ": V extrapolates there; see .effective_pairs, or compare policies nearer to the data's.",
                LevytorchWarning,
                stacklevel=3,
            )
        return thin

    def _logged(self) -> Callable[[Tensor], Tensor]:
        """How often each action, or bin of actions, was chosen around x: a function of n states, (n, A)."""
        # one pair, divided among all, beside what was seen, so that it is defined where nothing was
        share = self.counts.sum(1) / self.counts.sum()
        counts = self.counts + share.unsqueeze(1)
        return self.parts.between((counts / counts.sum(0)).T)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or the recovery of a run directory; nothing in the file is executed."""
        source = path_of(path)
        source = source / "recovery.pt" if source.is_dir() else source
        try:
            return cls.from_content(load_tensors(source))
        except Exception as error:  # pickle, zip, torch and I/O errors of foreign files have no common base
            raise InputError(
                f"{source} must be a file of {cls.__name__}.save, found something else; save it again."
            ) from error
