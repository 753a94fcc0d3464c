"""Monte Carlo evaluation of V on a line, with the rules beyond the ends of the window: a check of `solve_line`.

Euler-Maruyama paths on the noise of `monte_carlo`, each also run with steps of twice the length, and 2 * fine - coarse.
With exterior "constant" drift and diffusion are reflected at the ends and a jump past an end lands on it. With "absorb"
a path that ends a step outside is over: an exit within a step goes unseen, so that V comes out too large by an amount
of order sqrt(dt) where something diffuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import choice, positive_number, whole_number
from levytorch.errors import InputError
from levytorch.policy.checks import check_beta, check_window, reward_function
from levytorch.policy.line import EXTERIORS
from levytorch.policy.monte_carlo import MonteCarloValue, Noise, draw_noise, stable_draw


@torch.no_grad()
def monte_carlo_on_line(
    dynamics: Any,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    x0: Tensor,
    window: tuple[float, float],
    *,
    exterior: str = "constant",
    n_paths: int = 10_000,
    dt: float = 0.01,
    seed: int = 0,
) -> MonteCarloValue:
    """V at the states x0 from `n_paths` paths each, until exp(-beta t) = 1e-6."""
    beta, low_high = check_beta(beta), check_window(window, math.inf, None)
    choice("exterior", exterior, EXTERIORS)
    if getattr(dynamics, "tempering", 0.0):
        raise InputError(
            f"jumps must be without tempering on a line, found tempering {dynamics.tempering:g}; give the stable law."
        )
    n_paths, dt = whole_number("n_paths", n_paths, 2), positive_number("dt", dt, "give the length of a step")
    r, generator = reward_function(reward), torch.Generator().manual_seed(seed)
    n_steps = max(1, math.ceil(math.log(1e6) / beta / dt))
    h = dt / 2
    fine = coarse = torch.as_tensor(x0, dtype=torch.float64)[:, None].expand(-1, n_paths).reshape(-1)
    sums = [torch.zeros_like(fine), torch.zeros_like(fine)]
    alive = [torch.ones_like(fine), torch.ones_like(fine)]

    def advance(k: int, x: Tensor, length: float, noise: list[Noise], t: float, weight: float) -> Tensor:
        """One step of the fine (0) or the coarse (1) path, its reward by the trapezoidal rule."""
        before = alive[k] * r(x)
        x = _step(dynamics, x, length, h, noise, low_high, exterior)
        if exterior == "absorb":
            alive[k] = alive[k] * ((x > low_high[0]) & (x < low_high[1]))
            x = x.clamp(*low_high)
        after = alive[k] * r(x)
        sums[k] += 0.5 * weight * (math.exp(-beta * (t - length)) * before + math.exp(-beta * t) * after)
        return x

    for step in range(1, n_steps + 1):
        halves = [draw_noise(len(fine), generator) for _ in range(2)]
        t = step * dt
        fine = advance(0, fine, h, halves[:1], t - h, h)
        fine = advance(0, fine, h, halves[1:], t, h)
        coarse = advance(1, coarse, dt, halves, t, dt)
    values = (2 * sums[0] - sums[1]).reshape(-1, n_paths)
    largest = float(r(fine).abs().max())
    error = values.std(dim=1) / math.sqrt(n_paths)
    return MonteCarloValue(values.mean(dim=1), error, math.exp(-beta * n_steps * dt) * largest / beta)


def _step(
    dynamics: Any, x: Tensor, step: float, h: float, noise: list[Noise], window: tuple[float, float], exterior: str
) -> Tensor:
    alpha = dynamics.alpha_at(x)
    gauss = torch.stack([g for g, _, _ in noise]).sum(0)
    jump = torch.stack([stable_draw(alpha, angle, wait) for _, angle, wait in noise]).sum(0)
    moved = x + dynamics.b(x) * step + (2 * dynamics.D_o(x) * h).sqrt() * gauss
    leap = (dynamics.D_f(x) * h) ** (0.5 / alpha) * jump
    if exterior != "constant":
        return moved + leap
    low, high = window
    span = high - low
    folded = torch.remainder(moved - low, 2 * span)  # reflection, as often as it takes
    return (low + torch.where(folded > span, 2 * span - folded, folded) + leap).clamp(low, high)
