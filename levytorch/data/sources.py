"""Sources: what a configuration's `data` group builds. A source is a callable that returns SourceData."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from levytorch.data.trajectories import Trajectories
from levytorch.data.transitions import Transitions
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError


class SourceData(NamedTuple):
    """Transitions, with the true dynamics and the trajectories where there are any."""

    transitions: Transitions
    dynamics: Dynamics | None = None
    trajectories: Trajectories | None = None


class FromFile:
    """Transitions of a file.

    Args:
        path: of the file.
        first: use only the first so many transitions.
        sample: use only so many transitions, drawn at random without replacement (the paper's BTC experiment: 60000).
        sample_seed: of that draw.
        options: those of `Trajectories.from_file`; lists from a configuration are accepted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        first: int | None = None,
        sample: int | None = None,
        sample_seed: int = 0,
        **options: Any,
    ) -> None:
        if first is not None and sample is not None:
            raise InputError(f"only one of first and sample may be given, found {first} and {sample}: remove one.")
        for name, count in (("first", first), ("sample", sample)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
                raise InputError(f"{name} must be a positive integer, found {count!r}: pass the number of transitions.")
        self.path, self.first, self.sample, self.sample_seed = path, first, sample, sample_seed
        self.options = {
            name: value if value is None or isinstance(value, (str, bool, int, float)) else list(value)
            for name, value in options.items()
        }

    def __call__(self) -> SourceData:
        trajectories = Trajectories.from_file(self.path, **self.options)
        transitions = trajectories.transitions()
        n = len(transitions)
        for name, count in (("first", self.first), ("sample", self.sample)):
            if count is not None and count > n:
                raise InputError(f"{self.path}: {name} must not exceed {n} transitions, found {count}: lower it.")
        # a part chosen before the analysis is the data: its mu is its own
        if self.first is not None:
            transitions = transitions._take(slice(0, self.first), {"not selected": n - self.first}, keep_mu=False)
        elif self.sample is not None:
            chosen = np.random.default_rng(self.sample_seed).permutation(n)[: self.sample]
            mask = torch.zeros(n, dtype=torch.bool)
            mask[torch.from_numpy(chosen)] = True
            transitions = transitions._take(mask, {"not selected": n - self.sample}, keep_mu=False)
        return SourceData(transitions, None, trajectories)
