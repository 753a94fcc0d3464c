"""V of a fit with memory: a function of the state and of the means m of the sizes of past steps.

Such a fit is a chain at one dt, in which the step from (x, m) is that of the coefficients at x with D_o and D_f
multiplied by f(m). With gamma = exp(-beta dt) and the reward linear along a step,

    V(x, m) = E[w_0 r(x) + w_1 r(x') + gamma V(x', m') | x, m].

V is sought as V_1(x) + sum of products phi_k(x) psi_j(m), V_1 that of the coefficients at f = 1, which `solve_value`
has solved without noise; psi are 1, the log m and the square of their mean. The products follow by least squares on
transitions of the chain (LSTD, as `policy.lstd`), two from every state, with opposite noise: what is odd in a
step cancels. Paths are short and begin everywhere in x, so that rare
states count too. V(x) is the mean of V(x, m) over the m of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from levytorch.convert import real_tensor
from levytorch.errors import InputError
from levytorch.law import LevyStep
from levytorch.policy.bases import CircleBasis, LineBasis
from levytorch.policy.by_simulation import solved_in_groups
from levytorch.policy.checks import reward_function
from levytorch.policy.empirical import slope_weight
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, space_of

_FUNCTIONS = 15  # of x
_PATHS, _STEPS, _GROUPS = 10_000, 30, 40  # of the simulation; groups of paths, for its error
_NONE = torch.empty(0)


@dataclass(frozen=True, repr=False)
class MemoryValue(ValueFunction):
    """V(x), the mean of V(x, m) over the m of the data; `given(m)` is V(x, m).

    by_m: (n, J) coefficients of the products, for every psi_j; average: (J,) the mean of psi; centers, scales: (k,) of
    log m. `std` has the errors of the parameters at f = 1 and that of the simulation.
    """

    by_m: Tensor = _NONE
    average: Tensor = _NONE
    centers: Tensor = _NONE
    scales: Tensor = _NONE

    _format: ClassVar[str] = "levytorch.memory_value.2"

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, mean over m of V(x, m))"

    def given(self, m: Any) -> ValueFunction:
        """V as a function of x at means m of the sizes of past steps, one per half-life."""
        at = real_tensor("m", m).reshape(-1)
        if at.shape != self.centers.shape or not bool((at > 0).all()):
            raise InputError(
                f"m must be {len(self.centers)} positive numbers, found {at.tolist()}; give one per half-life."
            )
        psi = functions_of((at.log() - self.centers)[None] / self.scales)[0]
        plain = {f.name: getattr(self, f.name) for f in fields(ValueFunction)}
        moved = self.coefficients + self.by_m @ (psi - self.average)
        return ValueFunction(**plain | {"coefficients": moved, "covariance_factor": None})

    @classmethod
    def _is_sound(cls, content: Any) -> bool:
        by_m, average, centers, scales = (content[name] for name in ("by_m", "average", "centers", "scales"))
        tensors = all(isinstance(one, Tensor) for one in (by_m, average, centers, scales))
        return (
            super()._is_sound(content)
            and tensors
            and centers.ndim == 1
            and scales.shape == centers.shape
            and average.shape == (len(centers) + 2,)
            and by_m.shape == (*content["coefficients"].shape, len(average))
        )


def functions_of(z: Tensor) -> Tensor:
    """psi at (n, k) standardised log m: (n, k + 2)."""
    one = torch.ones((len(z), 1), dtype=torch.float64)
    return torch.cat([one, z, z.mean(1, keepdim=True) ** 2], dim=1)


def memory_to_solve_with(recovery: Any, window: Any, exterior: Any) -> bool:
    """Whether there is a memory, and V(x, m) can be found on this space."""
    if getattr(recovery, "memory", None) is None:
        return False
    space = space_of(recovery)
    if isinstance(space, Interval):
        return exterior in (None, "constant")
    return isinstance(space, Circle) and window is None


@torch.no_grad()
def value_with_memory(recovery: Any, V: ValueFunction, reward: Callable[[Tensor], Any] | float) -> MemoryValue:
    """V(x, m) from V at f = 1."""
    memory, r, beta = recovery.memory, reward_function(reward), V.beta
    rule, head, generator = memory.rule, recovery.head, torch.Generator().manual_seed(0)
    on_line, space = isinstance(V.space, Interval), V.space
    assert isinstance(space, Interval | Circle)
    basis: Any = LineBasis(_FUNCTIONS, space.ends) if on_line else CircleBasis(_FUNCTIONS, V.period, V.origin)
    inside = _reduced(space)
    dt = torch.tensor(rule.dt, dtype=torch.float64)
    discount, w_1 = math.exp(-beta * rule.dt), float(slope_weight(beta, dt.reshape(1).numpy())[0])
    w_0 = -math.expm1(-beta * rule.dt) / beta - w_1
    levels = torch.tensor(rule.levels, dtype=torch.float64)
    centers, scales = levels.log().mean(0), levels.log().std(0).clamp(min=1e-3)
    m = levels[torch.randint(len(levels), (_PATHS,), generator=generator)]
    low, high = space.ends
    x = inside(low + (high - low) * torch.rand(_PATHS, generator=generator, dtype=torch.float64))

    def functions(x: Tensor, m: Tensor) -> Tensor:
        psi = functions_of((rule.log(m) - centers) / scales)
        return (basis.matrix(x)[:, :, None] * psi[:, None, :]).reshape(len(x), -1)

    size = _FUNCTIONS * (len(centers) + 2)
    average = functions_of((rule.log(levels) - centers) / scales).mean(0)
    # of every group of paths: what the equations are short of at coefficients c is g - D c
    g = torch.zeros((_GROUPS, size), dtype=torch.float64)
    D = torch.zeros((_GROUPS, size, size), dtype=torch.float64)
    group = torch.arange(_PATHS) * _GROUPS // _PATHS
    for _ in range(_STEPS):
        c = head(x)
        f = memory.f(m)
        noise = LevyStep(torch.zeros_like(c.b), c.D_o * f, c.D_f * f, c.alpha, dt, 1, c.tempering, validate_args=False)
        xi, drift = noise.sample(generator=generator), c.b * dt
        ends = [(inside(x + dx), rule.after(m, dx, rule.dt)) for dx in (drift + xi, drift - xi)]
        now = functions(x, m)
        later = sum(functions(*end) for end in ends) / 2
        gained = sum(w_1 * r(y) + discount * V(y) for y, _ in ends) / 2 + w_0 * r(x) - V(x)
        shown = now - discount * later
        for b in range(_GROUPS):
            own = group == b
            D[b] += now[own].T @ shown[own]
        g.index_add_(0, group, now * gained[:, None])
        x, m = ends[0]
    c_found, errors = solved_in_groups(D, g)  # (size,), (size, groups)
    by_m, of_groups = c_found.reshape(_FUNCTIONS, -1), errors.reshape(_FUNCTIONS, -1, _GROUPS)
    mean, S = by_m @ average, torch.einsum("kjb,j->kb", of_groups, average)
    plain = {field.name: getattr(V, field.name) for field in fields(ValueFunction)}
    if on_line:
        at = basis.matrix(V.x)
        mean, S, by_m = at @ mean, at @ S, at @ by_m
    else:
        n = max(V.n_modes, _FUNCTIONS)
        mean, S, by_m = (_longer(one, n) for one in (mean, S, by_m))
        plain["coefficients"] = _longer(V.coefficients, n)
    factor = V.covariance_factor
    plain["covariance_factor"] = S if factor is None else torch.cat([_longer(factor, len(S)), S], dim=1)
    plain["coefficients"] = plain["coefficients"] + mean
    return MemoryValue(**plain, by_m=by_m, average=average, centers=centers, scales=scales)


def _longer(values: Tensor, n: int) -> Tensor:
    """With zeros for further functions."""
    return torch.cat([values, values.new_zeros((n - len(values), *values.shape[1:]))])


def _reduced(space: Circle | Interval) -> Callable[[Tensor], Tensor]:
    """What brings a state into the space: a period, or the end of a window past which V is constant."""
    if isinstance(space, Interval):
        low, high = space.ends
        return lambda x: x.clamp(low, high)
    return space.wrap
