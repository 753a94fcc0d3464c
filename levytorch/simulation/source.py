"""Simulated data as a source, for configurations: trajectories of known dynamics, unbiased or censored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levytorch.convert import shown
from levytorch.data.sources import SourceData
from levytorch.data.thresholds import check_censoring
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.simulation.simulate import check_simulation, simulate


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
        if not isinstance(dynamics, Dynamics):
            raise InputError(
                f"dynamics must be a Dynamics, found {type(dynamics).__name__}: choose one with dynamics=<name>."
            )
        if censor is not None and (not isinstance(censor, Mapping) or set(censor) - {"TRT", "CT", "drop_tail", "seed"}):
            raise InputError(
                f"censor must have TRT, CT, drop_tail and seed, found {shown(censor)}: give these or null."
            )
        self.dynamics, self.n_trajectories, self.n_steps, self.dt = dynamics, n_trajectories, n_steps, dt
        self.censor = None if censor is None else dict(censor)
        self.options = options
        # before anything is simulated: a run may wait an hour for its data
        checked = {name: value for name, value in options.items() if name not in ("x0", "progress")}
        check_simulation(dynamics, n_trajectories, n_steps, dt, **checked)
        if self.censor is not None:
            check_censoring(**self.censor)

    def __call__(self) -> SourceData:
        trajectories = simulate(self.dynamics, self.n_trajectories, self.n_steps, self.dt, **self.options)
        transitions = trajectories.transitions()
        if self.censor is not None:
            transitions = transitions.censor(**self.censor)
        return SourceData(transitions, self.dynamics, trajectories)
