"""The exact law of a step: coefficients vary along it, the state on a periodic cell.

For periodic coefficients the transition density of

    dX = b(X) dt + Sigma(X) dW + sigma(X) dL^alpha

is computed to many digits, tails included, from exponentials of twisted generators (`propagator`): no bias from the
length of dt, and a cost that does not depend on the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.coefficients.padded import on_a_cell
from levytorch.errors import InputError
from levytorch.likelihood.exact_rule import PROBES, TOLERANCE, Rule, choose_rule
from levytorch.likelihood.exact_step import ExactStep

_UNLIKELY = 40.0  # in 1 / tempering: steps beyond are not found
MANY_STEPS = 12  # distinct dt in one batch, each with tables of its own


class ExactLaw:
    """log p of transitions under coefficient functions that are followed along the step.

    tolerance: of log p, by which grid and nodes are chosen for every head and dt. A fit keeps the rules of its start
    (`law.fixed(head, dt)`), so that the likelihood it maximises is one smooth function.
    """

    dim = 1

    def __init__(self, tolerance: float = TOLERANCE, rules: dict[float, Rule] | None = None) -> None:
        self.tolerance, self.rules = tolerance, rules or {}
        self._last: dict[float, ScaledStep] = {}

    def log_prob(self, head: Any, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p(x -> x + dx over dt), (n,); differentiable in whatever the head depends on, not in x, dx and dt.

        head: an nn.Module x -> Coefficients with `period` and `origin`, or splines on a line, which are padded
        (`coefficients.padded`); dt: 0-d, or (n,) with a few distinct values.
        """
        return self._by_step(head, dt, lambda step, x, dx: step.log_density(x, dx), x, dx)

    def mass_beyond(self, head: Any, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor) -> Tensor:
        """P(|dx - center| > threshold | x), (n,); differentiable as log_prob is."""

        def mass(step: ScaledStep, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
            return step.upper(x, high) + step.lower(x, low)

        return self._by_step(head, dt, mass, x, center - threshold, center + threshold)

    def cdf(self, head: Any, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """P(step < dx | x), (n,)."""
        return self._by_step(head, dt, lambda step, x, dx: step.lower(x, dx), x, dx)

    def step(self, head: Any, dt: float) -> ScaledStep:
        """The tables of one dt, for whoever asks several questions of the same head.

        Without a graph they are kept until the coefficients change: data that is read in blocks asks block by block.
        """
        head = on_a_cell(head)
        rule = self.rule(head, dt)
        c = on_grid(head, dt, rule.n)
        if any(v.requires_grad for v in (*c, c.tempering)):
            return ScaledStep(head, rule, c)
        last = self._last.get(dt)
        same = last is not None and last.tables.rule == rule and torch.equal(last.c.tempering, c.tempering)
        if last is None or not (same and all(map(torch.equal, last.c, c))):
            if len(self._last) >= MANY_STEPS:
                self._last.clear()
            self._last[dt] = last = ScaledStep(head, rule, c)
        return last

    @torch.no_grad()
    def scores(self, head: Head, x: Tensor, dx: Tensor, dt: float) -> Tensor:
        """d log p / d theta, (n, P), at one dt, in forward mode: what information matrices are made of."""
        head = on_a_cell(head)
        step = self.step(head, dt)
        rates = [v.detach() for v in head.jacobian(grid(head, step.tables.n))]
        unit, alpha = step.unit, step.c.alpha
        power = rates[3].mean(0)  # (P,) of alpha, which is the same everywhere
        d_D_f = rates[2] * dt * unit ** (2 * alpha) + step.c.D_f[:, None] * 2 * math.log(unit) * power
        directions = torch.stack([rates[0] * dt * unit, rates[1] * dt * unit**2, d_D_f]).permute(2, 0, 1)
        out = step.scores(x, dx, directions)
        if bool(power.any()):
            out += step.alpha_score(x, dx)[:, None] * power
        slope = head.tempering_slope()
        if bool(slope.any()):
            out += step.tempering_score(x, dx)[:, None] * (slope / unit)
        return out

    def rule(self, head: Any, dt: float) -> Rule:
        """The rule that is used for this dt."""
        if dt in self.rules:
            return self.rules[dt]
        with torch.no_grad():
            c = on_grid(on_a_cell(head), dt, PROBES)
        c = c.each(Tensor.detach)
        return choose_rule(c.b, c.D_o, c.D_f, c.alpha, self.tolerance, float(c.tempering))

    def fixed(self, head: Any, dt: Tensor) -> ExactLaw:
        """This law with the rules of this head kept, for a fit from it; it refuses nothing afterwards."""
        return ExactLaw(self.tolerance, {value: self.rule(head, value) for value in _distinct(dt)})

    @torch.no_grad()
    def accuracy(self, head: Any, dt: float, n_points: int = 400) -> float:
        """The largest difference of log p from that of a finer rule, at points where transitions are found.

        On a line these are steps within the window that are no jumps: beyond, the padding is what limits the accuracy.
        """
        head = on_a_cell(head)
        rule = self.rule(head, dt)
        coarse, fine = (ScaledStep(head, r, on_grid(head, dt, r.n)) for r in (rule, rule.finer()))
        u = torch.remainder(torch.arange(1, n_points + 1, dtype=torch.float64) * 0.6180339887498949, 1.0)
        window = getattr(head, "window", None)
        low, high = window or (head.origin, head.origin + head.period)
        x = low + (high - low) * u
        spread = math.sqrt(2 * float(coarse.c.D_o.mean()))
        far = 18.0 if window is None else 1.5
        size = spread * torch.sinh(torch.linspace(-far, far, n_points, dtype=torch.float64)) / math.sinh(1.0)
        if float(coarse.c.tempering) > 0:
            size = size.clamp(-_UNLIKELY / float(coarse.c.tempering), _UNLIKELY / float(coarse.c.tempering))
        dx = (size + float(coarse.c.b.mean())) / coarse.unit
        return float((coarse.log_density(x, dx) - fine.log_density(x, dx)).abs().max())

    def _by_step(self, head: Any, dt: Tensor, question: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        x, *rest = torch.broadcast_tensors(*(torch.as_tensor(a, dtype=torch.float64).detach() for a in arguments))
        values = _distinct(dt)
        if len(values) == 1:
            return question(self.step(head, values[0]), x, *rest)
        if len(values) > MANY_STEPS:
            raise InputError(
                f"the exact law takes at most {MANY_STEPS} distinct dt, found {len(values)}; "
                'round them, or use law="frozen".'
            )
        steps = torch.as_tensor(dt, dtype=torch.float64).expand(x.shape)
        out = torch.zeros_like(x)
        for value in values:
            chosen = steps == value
            answer = question(self.step(head, value), x[chosen], *(r[chosen] for r in rest))
            out = out.masked_scatter(chosen, answer)
        return out


class ScaledStep:
    """One step in the units of the data."""

    def __init__(self, head: Any, rule: Rule, c: Coefficients) -> None:
        self.unit = 2 * math.pi / float(head.period)
        self.origin, self.period, self.c = float(head.origin), float(head.period), c
        self.tables = ExactStep(c, rule)
        self.seam = rule.seam / self.unit

    def _state(self, x: Tensor) -> Tensor:
        return torch.remainder(x - self.origin, self.period) * self.unit

    def log_density(self, x: Tensor, dx: Tensor) -> Tensor:
        return self.tables.log_density(self._state(x), dx * self.unit) + math.log(self.unit)

    def scores(self, x: Tensor, dx: Tensor, directions: Tensor) -> Tensor:
        return self.tables.scores(self._state(x), dx * self.unit, directions)

    def alpha_score(self, x: Tensor, dx: Tensor, change: float = 1e-4) -> Tensor:
        """d log p / d alpha at given scaled coefficients, (n,), by a central difference under the same rule."""
        state, y = self._state(x), dx * self.unit
        up, down = (
            ExactStep(self.c._replace(alpha=self.c.alpha + sign * change), self.tables.rule).log_density(state, y)
            for sign in (1, -1)
        )
        return (up - down) / (2 * change)

    def tempering_score(self, x: Tensor, dx: Tensor, change: float = 1e-4) -> Tensor:
        """The same in the scaled tempering, whose change is relative."""
        state, y, lam = self._state(x), dx * self.unit, self.c.tempering
        up, down = (
            ExactStep(self.c._replace(tempering=lam * (1 + sign * change)), self.tables.rule).log_density(state, y)
            for sign in (1, -1)
        )
        return (up - down) / (2 * change * lam)

    def upper(self, x: Tensor, a: Tensor) -> Tensor:
        return self.tables.upper(self._state(x), a * self.unit)

    def lower(self, x: Tensor, a: Tensor) -> Tensor:
        return self.tables.lower(self._state(x), a * self.unit)


def on_grid(head: Any, dt: float, n: int) -> Coefficients:
    """The head on n points of its cell, times the step, in units where the period is 2 pi."""
    unit = 2 * math.pi / float(head.period)
    c = head(grid(head, n))
    if c.alpha.ndim and c.alpha.numel() > 1:
        raise InputError(
            "alpha must be one number for the exact law, found a function of x (the far tail would be a mixture of "
            'powers of |dx|); use law="frozen".'
        )
    alpha = c.alpha.reshape(()).to(torch.float64)
    b, D_o, D_f = (torch.as_tensor(v, dtype=torch.float64).expand(n) * dt for v in (c.b, c.D_o, c.D_f))
    return Coefficients(b * unit, D_o * unit**2, D_f * unit ** (2 * alpha), alpha, c.tempering / unit)


def grid(head: Any, n: int) -> Tensor:
    device = next((p.device for p in head.parameters()), None) if isinstance(head, torch.nn.Module) else None
    return float(head.origin) + float(head.period) * torch.arange(n, dtype=torch.float64, device=device) / n


def _distinct(dt: Tensor) -> list[float]:
    dt = torch.as_tensor(dt, dtype=torch.float64).detach()
    return [float(v) for v in (dt.reshape(1) if dt.numel() == 1 else torch.unique(dt))]
