"""Monte Carlo evaluation of V(x) = E int_0^inf exp(-beta t) r(X_t) dt: an independent check of the solvers.

Euler-Maruyama paths with exact stable increments (Chambers, Mallows, Stuck 1976). Every path is also run with steps of
twice the length on the same noise, and 2 * fine - coarse removes the leading O(dt) bias of Euler's scheme (Talay,
Tubaro 1990). On a cell states are kept in it, so that a jump of 1e10 costs no accuracy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import choice, positive_number, seed_of, whole_number
from levytorch.errors import InputError
from levytorch.law.jumps import tempered_time
from levytorch.policy.checks import Reward, check_beta, check_window, circle_of, reward_function
from levytorch.policy.on_interval import EXTERIORS
from levytorch.spaces import Circle

_CHUNK_PATHS = 1 << 16
Noise = tuple[Tensor, Tensor, Tensor]
Move = Callable[[Tensor, float, list[Noise]], Tensor]  # (states, length of the step, its noise) -> states


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
    seed: Any = 0,
) -> MonteCarloValue:
    """V at the states x0 from `n_paths` paths each, of steps dt and dt / 2, until `horizon` (default: exp(-beta
    horizon) = 1e-6). With tempered jumps the steps are of dt / 2 alone, and what is left is of first order in it.
    """
    circle = circle_of(dynamics)
    beta = check_beta(beta)
    horizon = math.log(1e6) / beta if horizon is None else positive_number("horizon", horizon, "give a time")
    h = positive_number("dt", dt, "give the length of a step") / 2
    generator = torch.Generator().manual_seed(seed_of(seed))
    if float(getattr(dynamics, "tempering", 0.0)) > 0:
        move: Move = functools.partial(_tempered_move, dynamics, generator, circle)
        return _discounted(reward, beta, x0, n_paths, 2 * h, horizon, move, generator, extrapolated=False)
    move = functools.partial(_move_on_cell, dynamics, h, circle)
    return _discounted(reward, beta, x0, n_paths, 2 * h, horizon, move, generator)


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
    seed: Any = 0,
) -> MonteCarloValue:
    """The same on a line, until exp(-beta t) = 1e-6, with the rules of `solve_line` beyond the ends of the window.

    With exterior "constant" drift and diffusion are reflected at the ends and a jump past an end lands on it. With
    "absorb" a path that ends a step outside is over: an exit within a step goes unseen, so that V comes out too large
    by an amount of order sqrt(dt) where something diffuses.
    """
    beta, ends = check_beta(beta), check_window(window, math.inf, None)
    choice("exterior", exterior, EXTERIORS)
    if getattr(dynamics, "tempering", 0.0):
        raise InputError(
            f"jumps must be without tempering on a line, found tempering {dynamics.tempering:g}; give the stable law."
        )
    dt = positive_number("dt", dt, "give the length of a step")
    move = functools.partial(_move_on_line, dynamics, dt / 2, ends if exterior == "constant" else None)
    over = ends if exterior == "absorb" else None
    generator = torch.Generator().manual_seed(seed_of(seed))
    return _discounted(reward, beta, x0, n_paths, dt, math.log(1e6) / beta, move, generator, over=over)


def _discounted(
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    x0: Tensor | float,
    n_paths: int,
    dt: float,
    horizon: float,
    move: Move,
    generator: torch.Generator,
    *,
    extrapolated: bool = True,
    over: tuple[float, float] | None = None,
) -> MonteCarloValue:
    """Mean over paths of steps dt / 2, or of 2 * fine - coarse; over: ends beyond which a path is at an end."""
    n_paths, r = whole_number("n_paths", n_paths, 2), reward_function(reward)
    starts = torch.as_tensor(x0, dtype=torch.float64).reshape(-1)
    if starts.numel() == 0 or not bool(torch.isfinite(starts).all()):
        raise InputError(
            "x0 must be one or more finite states, found none or one that is not; give the states to start from."
        )
    n_steps = max(1, math.ceil(horizon / dt))
    parts, largest = [], 0.0
    chunk = max(1, _CHUNK_PATHS // len(starts))
    for first in range(0, n_paths, chunk):
        n = min(chunk, n_paths - first)
        x = starts[:, None].expand(-1, n).reshape(-1)
        fine, coarse = (_Paths(r, beta, x, length, move, over) for length in (dt / 2, dt))
        for _ in range(n_steps):
            halves = [draw_noise(len(x), generator) for _ in range(2)] if extrapolated else []
            fine.step(halves[:1])
            fine.step(halves[1:])
            if extrapolated:
                coarse.step(halves)
        sums = 2 * fine.sum - coarse.sum if extrapolated else fine.sum
        parts.append(sums.reshape(len(starts), n))
        largest = max(largest, fine.largest)
    values = torch.cat(parts, dim=1)
    error = values.std(dim=1) / math.sqrt(n_paths)
    return MonteCarloValue(values.mean(dim=1), error, math.exp(-beta * n_steps * dt) * largest / beta)


class _Paths:
    """Paths of one length of step, and the discounted integral of the reward along each (trapezoidal rule)."""

    def __init__(
        self, r: Reward, beta: float, x: Tensor, length: float, move: Move, over: tuple[float, float] | None
    ) -> None:
        self.r, self.beta, self.length, self.move, self.over = r, beta, length, move, over
        self.x, self.steps, self.reward = x, 0, r(x)
        self.alive, self.sum = torch.ones_like(x), torch.zeros_like(x)
        self.largest = float(self.reward.abs().max())

    def step(self, noise: list[Noise]) -> None:
        before = math.exp(-self.beta * self.steps * self.length) * self.reward
        self.x = self.move(self.x, self.length, noise)
        if self.over is not None:
            self.alive *= (self.x > self.over[0]) & (self.x < self.over[1])
            self.x = self.x.clamp(*self.over)
        self.steps, self.reward = self.steps + 1, self.alive * self.r(self.x)
        self.sum += 0.5 * self.length * (before + math.exp(-self.beta * self.steps * self.length) * self.reward)
        self.largest = max(self.largest, float(self.reward.abs().max()))


def draw_noise(n: int, generator: torch.Generator) -> Noise:
    """A standard normal, an angle in (-pi/2, pi/2) and a standard exponential: what one step needs for any alpha."""
    u = torch.rand((2, n), generator=generator, dtype=torch.float64).clamp_(2.0**-54, 1 - 2.0**-53)
    return torch.randn(n, generator=generator, dtype=torch.float64), math.pi * (u[0] - 0.5), -u[1].log()


def stable_draw(alpha: Tensor | float, angle: Tensor, wait: Tensor) -> Tensor:
    """Symmetric 2 alpha-stable, E exp(i k S) = exp(-|k|^(2 alpha))."""
    a = torch.as_tensor(2 * alpha, dtype=torch.float64)
    return (a * angle).sin() / angle.cos() ** (1 / a) * (((1 - a) * angle).cos() / wait) ** ((1 - a) / a)


def _euler(dynamics: Any, h: float, x: Tensor, step: float, noise: list[Noise]) -> tuple[Tensor, Tensor]:
    """What drift and diffusion add in an Euler step, driven by one or two pieces of noise of length h, and the jump."""
    alpha = dynamics.alpha_at(x)
    gauss = torch.stack([g for g, _, _ in noise]).sum(0)
    jump = torch.stack([stable_draw(alpha, angle, wait) for _, angle, wait in noise]).sum(0)
    moved = dynamics.b(x) * step + (2 * dynamics.D_o(x) * h).sqrt() * gauss
    return moved, (dynamics.D_f(x) * h) ** (0.5 / alpha) * jump


def _move_on_cell(dynamics: Any, h: float, circle: Circle, x: Tensor, step: float, noise: list[Noise]) -> Tensor:
    moved, jump = _euler(dynamics, h, x, step, noise)
    period, origin = circle.period, circle.origin
    # A jump beyond 1e15 periods lands anywhere in the cell; infinity would be no number at all
    limit = 1e15 * period
    move = torch.nan_to_num(moved + jump, posinf=limit, neginf=-limit).clamp(-limit, limit)
    return origin + torch.remainder(x - origin + move, period)


def _move_on_line(
    dynamics: Any, h: float, ends: tuple[float, float] | None, x: Tensor, step: float, noise: list[Noise]
) -> Tensor:
    """ends: where drift and diffusion are reflected, and jumps stop."""
    moved, jump = _euler(dynamics, h, x, step, noise)
    if ends is None:
        return x + moved + jump
    low, high = ends
    span = high - low
    folded = torch.remainder(x + moved - low, 2 * span)  # reflection, as often as it takes
    return (low + torch.where(folded > span, 2 * span - folded, folded) + jump).clamp(low, high)


def _tempered_move(
    dynamics: Any,
    generator: torch.Generator,
    circle: Circle,
    x: Tensor,
    step: float,
    noise: list[Noise],
) -> Tensor:
    """Tempered jumps do not scale with D_f: no coarse path could share their noise, which is drawn here."""
    period, origin = circle.period, circle.origin
    D_f = dynamics.D_f(x).expand(x.shape)
    alpha = torch.as_tensor(dynamics.alpha_at(x), dtype=torch.float64).expand(x.shape)
    jumps = D_f > 0
    lam = torch.where(jumps, torch.full_like(x, float(dynamics.tempering)), 0.0)
    time = tempered_time(alpha, torch.where(jumps, D_f * step, 1.0), lam, generator)
    spread = (2 * (dynamics.D_o(x) * step + torch.where(jumps, time, 0.0))).sqrt()
    move = dynamics.b(x) * step + spread * torch.randn(len(x), generator=generator, dtype=torch.float64)
    return origin + torch.remainder(x - origin + move, period)
