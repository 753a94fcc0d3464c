"""simulate: the public door to the sampler, and the same as the data of a configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from levytorch.controlled import ControlledDynamics
from levytorch.convert import choice, positive_number, seed_of, shown, switch, whole_number
from levytorch.data.sources import SourceData
from levytorch.data.store import physical_memory
from levytorch.data.thresholds import check_censoring
from levytorch.data.trajectories import Trajectories
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.simulation.euler import euler, held, initial_states

_MOST_SUBSTEPS = 1_000_000


def _or_controlled(free: Callable[..., Trajectories]) -> Callable[..., Trajectories]:
    """simulate(controlled, policy, ...) beside simulate(dynamics, ...)."""

    @functools.wraps(free)
    def simulate(*arguments: Any, **options: Any) -> Trajectories:
        controlled = arguments and isinstance(arguments[0], ControlledDynamics)
        return (simulate_controlled if controlled else free)(*arguments, **options)

    return simulate


@_or_controlled
def simulate(
    dynamics: Dynamics,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    substeps: int = 10,
    x0: Any = None,
    seed: Any = 0,
    sampler: str = "euler",
    order: int = 1,
    progress: bool | None = None,
) -> Trajectories:
    """Simulate paths of n_steps + 1 points, dt apart.

    The result depends on the seed alone, not on threads or chunks, and the first k of n paths are those of a run of k.

    Args:
        dynamics: a `Dynamics`. A system with actions is simulated under a policy, which is then the second argument:
            `simulate(controlled, policy, n_trajectories, n_steps, dt)`.
        n_trajectories: number of paths.
        n_steps: steps of each path.
        dt: time between two points.
        substeps: Euler-Maruyama steps between two points.
        x0: a number, or one initial state per path; None draws them uniformly from the period (on a line from the
            window).
        seed: a whole number, a generator of torch or NumPy, or None for a new one; `.seed` of the result has what was
            used.
        sampler: "euler", the only one. The paper's Metropolis sampler is
            `benchmarks.paper.metropolis.metropolis_paths`.
        order: weak order of the substeps. With 2, the error of the simulation falls as 1 / substeps^2, for periodic
            coefficients and one alpha: ten substeps are then as good as hundreds with 1.
        progress: show a progress bar; None shows one for long runs on a terminal.

    Returns:
        Trajectories.

    Example:
        >>> simulate(Dynamics.named("constant"), 3, 40, 1 / 40, seed=1).to_array().shape
        (3, 41)
    """
    if not isinstance(dynamics, Dynamics):
        raise InputError(
            f"dynamics must be a Dynamics, found {type(dynamics).__name__}; build one with Dynamics(b, D_o, D_f, "
            "alpha) or Dynamics.named(name)."
        )
    n, steps, parts, seed, dt = check_simulation(
        dynamics, n_trajectories, n_steps, dt, substeps=substeps, seed=seed, sampler=sampler, order=order
    )
    progress = None if progress is None else switch("progress", progress)
    start = initial_states(dynamics, n, x0, seed)
    x = euler(dynamics, start, steps, dt, parts, seed, progress, order)
    made = Trajectories.from_arrays(x[..., 0] if dynamics.dim == 1 else x, dt=dt)
    made.repeats, made.seed = dynamics.repeats, seed
    return made


def simulate_controlled(
    system: ControlledDynamics,
    policy: Any,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    substeps: int = 10,
    x0: Any = None,
    seed: Any = 0,
    order: int = 1,
) -> Trajectories:
    """Paths of a system with actions: one is drawn from the policy at every point and held until the next.

    policy: whatever describes one, see `levytorch.policies.Policy`; the other arguments are those of `simulate`.

    >>> system = ControlledDynamics.named("pushes")
    >>> simulate(system, "uniform", 2, 40, 1 / 40, seed=1).transitions().actions
    (-1, 0, 1)
    """
    pi, first = system.policy(policy), system.first
    n, steps, parts, seed, dt = check_simulation(
        first, n_trajectories, n_steps, dt, substeps=substeps, seed=seed, order=order
    )
    x, held_over = held(system, pi, initial_states(first, n, x0, seed), steps, dt, parts, seed, order)
    action: Any = np.asarray(system.actions)[held_over] if system.actions else held_over
    if not system.actions and action.shape[-1] == 1:
        action = action[..., 0]
    made = Trajectories.from_arrays(x[..., 0] if system.dim == 1 else x, dt=dt, action=action)
    made.repeats, made.seed = first.repeats, seed
    return made


def check_simulation(
    dynamics: Dynamics,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    substeps: int = 10,
    seed: Any = 0,
    sampler: str = "euler",
    order: int = 1,
) -> tuple[int, int, int, int, float]:
    """n_trajectories, n_steps, substeps, seed and dt as plain numbers; refuses what cannot be simulated."""
    n, steps = whole_number("n_trajectories", n_trajectories, 1), whole_number("n_steps", n_steps, 1)
    parts = whole_number("substeps", substeps, 1, _MOST_SUBSTEPS)
    available = physical_memory()
    if n * (steps + 1) * dynamics.dim * 8 > available:
        raise InputError(
            f"the trajectories must fit in the {available / 2**30:.3g} GB of memory, found {shown(n)} of "
            f"{shown(steps + 1)} points; lower n_trajectories or n_steps."
        )
    seed = seed_of(seed)
    dt = positive_number("dt", dt, "pass a length of time")
    choice("sampler", sampler, ("euler",))
    order = whole_number("order", order, 1, 2)
    if order == 2 and not (dynamics.repeats and dynamics.alpha_at.value is not None):
        raise InputError(
            "order=2 must come with periodic coefficients and one alpha, found another system; use order=1 with more "
            "substeps."
        )
    return n, steps, parts, seed, dt


class Simulated:
    """Transitions of simulated trajectories, and the dynamics they came from.

    Args:
        dynamics, n_trajectories, n_steps, dt, options: those of `simulate`; policy: of a ControlledDynamics.
        censor: arguments of `Transitions.censor` (TRT, CT, drop_tail, seed), or None for all transitions.
    """

    def __init__(
        self,
        dynamics: Dynamics | ControlledDynamics,
        n_trajectories: int,
        n_steps: int,
        dt: float,
        *,
        policy: Any = None,
        censor: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dynamics, Dynamics | ControlledDynamics):
            raise InputError(
                f"dynamics must be a Dynamics, found {type(dynamics).__name__}; choose one with dynamics=<name>."
            )
        controlled = isinstance(dynamics, ControlledDynamics)
        if controlled and policy is None:
            raise InputError("policy must be given for a system with actions, found none; use data=actions.")
        if not controlled and policy is not None:
            raise InputError(
                f"policy must be left out of a system without actions, found {shown(policy)}; remove it, or choose a "
                "system with actions."
            )
        if censor is not None and (not isinstance(censor, Mapping) or set(censor) - {"TRT", "CT", "drop_tail", "seed"}):
            raise InputError(
                f"censor must have TRT, CT, drop_tail and seed, found {shown(censor)}; give these or null."
            )
        self.dynamics, self.n_trajectories, self.n_steps, self.dt = dynamics, n_trajectories, n_steps, dt
        self.censor = None if censor is None else dict(censor)
        self.options, self.policy = options, policy
        # before anything is simulated: a run may wait an hour for its data
        checked = {name: value for name, value in options.items() if name not in ("x0", "progress")}
        check_simulation(
            dynamics.first if isinstance(dynamics, ControlledDynamics) else dynamics,
            *(n_trajectories, n_steps, dt),
            **checked,
        )
        if isinstance(dynamics, ControlledDynamics):
            dynamics.policy(policy)  # refused now if it cannot be one
        if self.censor is not None:
            check_censoring(**self.censor)

    def paths(self) -> Trajectories:
        """The trajectories."""
        under = () if self.policy is None else (self.policy,)
        return simulate(self.dynamics, *under, self.n_trajectories, self.n_steps, self.dt, **self.options)

    def __call__(self) -> SourceData:
        trajectories = self.paths()
        transitions = trajectories.transitions()
        if self.censor is not None:
            transitions = transitions.censor(**self.censor)
        return SourceData(transitions, self.dynamics, trajectories, self.policy)
