"""Paths of a fit with memory: a chain whose steps have the length that was fitted, and m is carried along each path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.coefficients.clock import ClockedHead
from levytorch.convert import real_tensor, seed_of, whole_number
from levytorch.data import Trajectories
from levytorch.data.memory import Memory
from levytorch.errors import InputError
from levytorch.law import LevyStep
from levytorch.simulation.euler import initial_states
from levytorch.spaces import space_of

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

_SAME = 1e-6  # relative difference of lengths of a step


@torch.no_grad()
def simulate_with_memory(
    recovery: Recovery,
    n_trajectories: int,
    n_steps: int,
    dt: float | None = None,
    *,
    x0: Any = None,
    m0: Any = None,
    seed: Any = 0,
) -> Trajectories:
    """Paths of the chain that was fitted.

    Args:
        dt: the one that was fitted, or None.
        x0: as for `levytorch.simulate`.
        m0: the means of the sizes of past steps to begin with, one per half-life; None: their mean over the data.

    A covariate with a period, such as the hour of the day, has its mean effect.
    """
    memory = recovery.memory
    assert memory is not None
    rule, head = memory.rule, recovery.head
    assert isinstance(head, ClockedHead)
    check_dt(rule, dt)
    n, steps = whole_number("n_trajectories", n_trajectories, 1), whole_number("n_steps", n_steps, 1)
    seed = seed_of(seed)
    x = torch.as_tensor(initial_states(recovery.dynamics(), n, x0, seed), dtype=torch.float64)
    x = x.reshape(n) if recovery.dim == 1 else x.reshape(n, recovery.dim)
    k, space = len(rule.half_lives), space_of(head)
    start = torch.full((k,), rule.start, dtype=torch.float64) if m0 is None else real_tensor("m0", m0).reshape(-1)
    if start.shape != (k,) or not bool((start > 0).all()):
        raise InputError(f"m0 must be {k} positive numbers, found {tuple(start.tolist())}; give one per half-life.")
    m = start.expand(n, k)
    generator = torch.Generator().manual_seed(seed)
    points = [x]
    length = torch.tensor(rule.dt, dtype=torch.float64)
    for _ in range(steps):
        c = head(space.inside(x))
        f = memory.f(m)
        law = LevyStep(c.b, c.D_o * f, c.D_f * f, c.alpha, length, recovery.dim, c.tempering, validate_args=False)
        dx = law.sample(generator=generator)
        m = rule.after(m, x, dx, rule.dt)
        x = x + dx
        points.append(x)
    made = Trajectories.from_arrays(torch.stack(points, dim=1).numpy(), dt=rule.dt)
    made.seed = seed
    return made


def check_dt(rule: Memory, dt: float | None) -> None:
    """Refuse another length of a step than the fitted one."""
    if dt is not None and abs(dt - rule.dt) > _SAME * rule.dt:
        raise InputError(
            f"dt must be {rule.dt:g} for a fit with memory, which is a chain of steps of that length, found {dt:g}; "
            "leave dt out, or fit data with that dt."
        )


def last_means(recovery: Recovery, transitions: Any) -> Tensor:
    """m after the last of some pairs, to begin a forecast with."""
    memory = recovery.memory
    assert memory is not None
    before, _ = memory.rule.means(transitions)
    last = transitions[-1:]
    return memory.rule.after(before[-1:], last.x, last.dx, last.dt)[0]
