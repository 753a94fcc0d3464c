"""Monte Carlo evaluation of V(x) = E int_0^inf exp(-beta t) r(X_t) dt: an independent check of the spectral solver.

Euler-Maruyama paths with exact stable increments (Chambers, Mallows, Stuck 1976). Every path is also run with steps of
twice the length on the same noise, and 2 * fine - coarse removes the leading O(dt) bias of Euler's scheme (Talay,
Tubaro 1990). States are kept in the cell, so that a jump of 1e10 costs no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import positive_number, whole_number
from levytorch.errors import InputError
from levytorch.law.sampling import tempered_time
from levytorch.policy.checks import cell_of, check_beta, reward_function

_CHUNK_PATHS = 1 << 16


class MonteCarloValue(NamedTuple):
    """Mean and standard error of V at each start (m,).

    `truncation` bounds what the time beyond the horizon could add.
    """

    V: Tensor
    standard_error: Tensor
    truncation: float


@torch.no_grad()
def monte_carlo_value(
    dynamics: Any,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    x0: Tensor | float,
    *,
    n_paths: int = 10_000,
    dt: float = 0.01,
    horizon: float | None = None,
    seed: int = 0,
) -> MonteCarloValue:
    """V at the states x0 from `n_paths` paths each, of steps dt and dt / 2, until `horizon` (default: exp(-beta
    horizon) = 1e-6). With tempered jumps the steps are of dt / 2 alone, and what is left is of first order in it.
    """
    cell = cell_of(dynamics)
    beta = check_beta(beta)
    n_paths = whole_number("n_paths", n_paths, 2)
    dt = positive_number("dt", dt, "give the length of a step")
    horizon = math.log(1e6) / beta if horizon is None else positive_number("horizon", horizon, "give a time")
    r = reward_function(reward)
    starts = torch.as_tensor(x0, dtype=torch.float64).reshape(-1)
    if starts.numel() == 0 or not bool(torch.isfinite(starts).all()):
        raise InputError(
            "x0 must be one or more finite states, found none or one that is not; give the states to start from."
        )
    n_steps = max(1, math.ceil(horizon / dt))
    generator = torch.Generator().manual_seed(seed)
    parts, largest = [], 0.0
    step = max(1, _CHUNK_PATHS // len(starts))
    for first in range(0, n_paths, step):
        n = min(step, n_paths - first)
        x = starts[:, None].expand(-1, n).reshape(-1)
        paths = _tempered_paths if float(getattr(dynamics, "tempering", 0.0)) > 0 else _discounted_paths
        sums, top = paths(dynamics, r, beta, x, dt, n_steps, generator, cell)
        parts.append(sums.reshape(len(starts), n))
        largest = max(largest, top)
    values = torch.cat(parts, dim=1)
    error = values.std(dim=1) / math.sqrt(n_paths)
    return MonteCarloValue(values.mean(dim=1), error, math.exp(-beta * n_steps * dt) * largest / beta)


def _discounted_paths(
    dynamics: Any,
    r: Callable[[Tensor], Tensor],
    beta: float,
    x: Tensor,
    dt: float,
    n_steps: int,
    generator: torch.Generator,
    cell: tuple[float, float],
) -> tuple[Tensor, float]:
    """2 * fine - coarse of the discounted integral (trapezoidal rule) along each path, and the largest reward met."""
    h = dt / 2
    fine, coarse = x, x
    here = r(x)
    sum_fine, sum_coarse = 0.5 * h * here, 0.5 * dt * here
    largest = float(here.abs().max())
    for step in range(1, n_steps + 1):
        halves = [draw_noise(len(x), generator) for _ in range(2)]
        t = step * dt
        last = 0.5 if step == n_steps else 1.0
        fine = _step(dynamics, fine, h, h, halves[:1], cell)
        sum_fine = sum_fine + h * math.exp(-beta * (t - h)) * r(fine)
        fine = _step(dynamics, fine, h, h, halves[1:], cell)
        at_fine = r(fine)
        sum_fine = sum_fine + last * h * math.exp(-beta * t) * at_fine
        coarse = _step(dynamics, coarse, dt, h, halves, cell)
        sum_coarse = sum_coarse + last * dt * math.exp(-beta * t) * r(coarse)
        largest = max(largest, float(at_fine.abs().max()))
    return 2 * sum_fine - sum_coarse, largest


def _tempered_paths(
    dynamics: Any,
    r: Callable[[Tensor], Tensor],
    beta: float,
    x: Tensor,
    dt: float,
    n_steps: int,
    generator: torch.Generator,
    cell: tuple[float, float],
) -> tuple[Tensor, float]:
    """The same with tempered jumps, which do not scale with D_f: there is no coarse path that shares their noise."""
    h, here = dt / 2, r(x)
    sums, largest = 0.5 * h * here, float(here.abs().max())
    period, origin = cell
    lam = torch.full_like(x, float(dynamics.tempering))
    for step in range(1, 2 * n_steps + 1):
        D_f = dynamics.D_f(x).expand(x.shape)
        alpha = torch.as_tensor(dynamics.alpha_at(x), dtype=torch.float64).expand(x.shape)
        jumps = D_f > 0
        time = tempered_time(alpha, torch.where(jumps, D_f * h, 1.0), torch.where(jumps, lam, 0.0), generator)
        spread = (2 * (dynamics.D_o(x) * h + torch.where(jumps, time, 0.0))).sqrt()
        move = dynamics.b(x) * h + spread * torch.randn(len(x), generator=generator, dtype=torch.float64)
        x = origin + torch.remainder(x - origin + move, period)
        here = r(x)
        sums = sums + (0.5 if step == 2 * n_steps else 1.0) * h * math.exp(-beta * step * h) * here
        largest = max(largest, float(here.abs().max()))
    return sums, largest


Noise = tuple[Tensor, Tensor, Tensor]


def draw_noise(n: int, generator: torch.Generator) -> Noise:
    """A standard normal, an angle in (-pi/2, pi/2) and a standard exponential: what one step needs for any alpha."""
    u = torch.rand((2, n), generator=generator, dtype=torch.float64).clamp_(2.0**-54, 1 - 2.0**-53)
    return torch.randn(n, generator=generator, dtype=torch.float64), math.pi * (u[0] - 0.5), -u[1].log()


def stable_draw(alpha: Tensor | float, angle: Tensor, wait: Tensor) -> Tensor:
    """Symmetric 2 alpha-stable, E exp(i k S) = exp(-|k|^(2 alpha))."""
    a = torch.as_tensor(2 * alpha, dtype=torch.float64)
    return (a * angle).sin() / angle.cos() ** (1 / a) * (((1 - a) * angle).cos() / wait) ** ((1 - a) / a)


def _step(dynamics: Any, x: Tensor, step: float, h: float, noise: list[Noise], cell: tuple[float, float]) -> Tensor:
    """One Euler step of length `step`, driven by one or two pieces of noise of length h each."""
    alpha = (
        dynamics.alpha_at(x)
        if callable(dynamics.alpha)
        else torch.as_tensor(float(dynamics.alpha), dtype=torch.float64)
    )
    gauss = torch.stack([g for g, _, _ in noise]).sum(0)
    jump = torch.stack([stable_draw(alpha, angle, wait) for _, angle, wait in noise]).sum(0)
    move = (
        dynamics.b(x) * step + (2 * dynamics.D_o(x) * h).sqrt() * gauss + (dynamics.D_f(x) * h) ** (0.5 / alpha) * jump
    )
    period, origin = cell
    # A jump beyond 1e15 periods lands anywhere in the cell; infinity would be no number at all
    limit = 1e15 * period
    return origin + torch.remainder(
        x - origin + torch.nan_to_num(move, posinf=limit, neginf=-limit).clamp(-limit, limit), period
    )
