"""simulate: the public door to both samplers."""

from __future__ import annotations

from typing import Any

from levytorch.data.arrays import positive
from levytorch.data.trajectories import Trajectories
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.simulation.euler import euler, initial_states


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
    n, steps = _count("n_trajectories", n_trajectories), _count("n_steps", n_steps)
    parts = _count("substeps", substeps)
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= int(seed) < 2**63:
        raise InputError(f"seed must be an integer in [0, 2^63), found {seed!r}: pass such a number.")
    seed = int(seed)
    dt = positive("dt", dt)
    if sampler not in ("euler", "metropolis"):
        raise InputError(f"sampler must be one of euler, metropolis, found {sampler!r}: pass one of these.")
    start = initial_states(dynamics, n, x0, seed)
    if sampler == "metropolis":
        from levytorch.simulation.metropolis import OPTIONS
        from levytorch.simulation.metropolis import metropolis as walk

        unknown = sorted(set(metropolis) - OPTIONS)
        if unknown:
            raise InputError(
                f"sampler 'metropolis' has the options {', '.join(sorted(OPTIONS))}, found {', '.join(unknown)}: use "
                "one of these."
            )
        x = walk(dynamics, start, steps, dt, seed, progress, **metropolis)
    else:
        if metropolis:
            raise InputError(
                f"sampler 'euler' takes no option {', '.join(sorted(metropolis))}: remove it, or use "
                "sampler='metropolis'."
            )
        x = euler(dynamics, start, steps, dt, parts, seed, progress)
    return Trajectories.from_arrays(x[..., 0] if dynamics.dim == 1 else x, dt=dt)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise InputError(f"{name} must be a positive integer, found {value!r}: pass 1 or more.")
    return int(value.__index__())
