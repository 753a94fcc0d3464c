"""Sources: what a configuration's `data` group builds. A source is a callable that returns SourceData."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from levytorch.data.trajectories import Trajectories
from levytorch.data.transitions import Transitions
from levytorch.dynamics import Dynamics


class SourceData(NamedTuple):
    """Transitions, with the true dynamics and the trajectories where there are any."""

    transitions: Transitions
    dynamics: Dynamics | None = None
    trajectories: Trajectories | None = None


@dataclass
class FromFile:
    """Transitions from a file; `options` are those of Trajectories.from_file."""

    path: str | Path
    options: dict[str, Any] | None = None

    def __call__(self) -> SourceData:
        trajectories = Trajectories.from_file(self.path, **(self.options or {}))
        return SourceData(trajectories.transitions(), None, trajectories)
