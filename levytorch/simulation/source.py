"""Simulated data as a source, for configurations: trajectories of known dynamics, unbiased or censored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levytorch.data.sources import SourceData
from levytorch.dynamics import Dynamics
from levytorch.simulation.simulate import simulate


class Simulated:
    """Transitions of simulated trajectories, and the dynamics they came from.

    Args:
        dynamics, n_trajectories, n_steps, dt, options: those of `simulate`.
        censor: arguments of `Transitions.censor` (TRT, CT, drop_tail, seed), or None for all transitions.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        n_trajectories: int,
        n_steps: int,
        dt: float,
        *,
        censor: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.dynamics, self.n_trajectories, self.n_steps, self.dt = dynamics, n_trajectories, n_steps, dt
        self.censor = None if censor is None else dict(censor)
        self.options = options

    def __call__(self) -> SourceData:
        trajectories = simulate(self.dynamics, self.n_trajectories, self.n_steps, self.dt, **self.options)
        transitions = trajectories.transitions()
        if self.censor is not None:
            transitions = transitions.censor(**self.censor)
        return SourceData(transitions, self.dynamics, trajectories)
