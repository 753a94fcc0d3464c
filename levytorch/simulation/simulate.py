"""simulate: the public door to both samplers."""

from __future__ import annotations

from typing import Any

from levytorch.convert import choice, shown, switch, whole_number
from levytorch.data.arrays import positive
from levytorch.data.memory import physical as memory
from levytorch.data.trajectories import Trajectories
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.simulation.euler import euler, initial_states

_MOST_SUBSTEPS = 1_000_000


def simulate(
    dynamics: Dynamics,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    substeps: int = 10,
    x0: Any = None,
    seed: int = 0,
    sampler: str = "euler",
    progress: bool | None = None,
    **metropolis: Any,
) -> Trajectories:
    """n_trajectories paths of n_steps + 1 points, dt apart.

    Args:
        substeps: Euler-Maruyama steps between two points ("euler" only).
        x0: a number, or one initial state per trajectory; None is uniform on the period.
        seed: 0 <= seed < 2^63. The result depends on it alone, not on threads or chunks, and the first k of n
            trajectories are those of a run with n = k.
        sampler: "euler" (unbiased), or "metropolis": each increment is drawn by a random walk Metropolis-Hastings chain
            on the law of one step, confined to a limited range (section 4.1.2 of the paper: its second kind of censored
            data).
        progress: show a progress bar; None shows one for long runs on a terminal.
        metropolis: options of the second sampler, see `levytorch.simulation.metropolis.metropolis`: burn_in=5000,
            chains=None, proposal_scale=None, reach=None, thinning=1.

    >>> simulate(Dynamics.named("constant"), 3, 40, 1 / 40, seed=1).to_array().shape
    (3, 41)
    """
    if not isinstance(dynamics, Dynamics):
        raise InputError(
            f"dynamics must be a Dynamics, found {type(dynamics).__name__}: build one with Dynamics(b, D_o, D_f, "
            "alpha) or Dynamics.named(name)."
        )
    n, steps, parts, seed, dt = check_simulation(
        dynamics, n_trajectories, n_steps, dt, substeps=substeps, seed=seed, sampler=sampler, **metropolis
    )
    progress = None if progress is None else switch("progress", progress)
    start = initial_states(dynamics, n, x0, seed)
    if sampler == "metropolis":
        from levytorch.simulation.metropolis import metropolis as walk

        x = walk(dynamics, start, steps, dt, seed, progress, **metropolis)
    else:
        x = euler(dynamics, start, steps, dt, parts, seed, progress)
    return Trajectories.from_arrays(x[..., 0] if dynamics.dim == 1 else x, dt=dt)


def check_simulation(
    dynamics: Dynamics,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    substeps: int = 10,
    seed: int = 0,
    sampler: str = "euler",
    **metropolis: Any,
) -> tuple[int, int, int, int, float]:
    """n_trajectories, n_steps, substeps, seed and dt as plain numbers; refuses what cannot be simulated."""
    n, steps = whole_number("n_trajectories", n_trajectories, 1), whole_number("n_steps", n_steps, 1)
    parts = whole_number("substeps", substeps, 1, _MOST_SUBSTEPS)
    available = memory()
    if n * (steps + 1) * dynamics.dim * 8 > available:
        raise InputError(
            f"the trajectories must fit in the {available / 2**30:.3g} GB of memory, found {shown(n)} of "
            f"{shown(steps + 1)} points: lower n_trajectories or n_steps."
        )
    seed = whole_number("seed", seed, 0, 2**63 - 1)
    dt = positive("dt", dt)
    choice("sampler", sampler, ("euler", "metropolis"))
    if sampler == "metropolis":
        from levytorch.simulation.metropolis import check_options

        check_options(n, metropolis)
    elif metropolis:
        raise InputError(
            f"sampler 'euler' takes no option {', '.join(sorted(metropolis))}, found one: remove it, or use "
            "sampler='metropolis'."
        )
    return n, steps, parts, seed, dt
