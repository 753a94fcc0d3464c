"""The exact law of a step: coefficients vary along it, the state on a periodic cell.

For periodic coefficients the transition density of

    dX = b(X) dt + Sigma(X) dW + sigma(X) dL^alpha

is computed to many digits, tails included, from exponentials of twisted generators (`propagator`): no bias from the
length of dt, and a cost that does not depend on the number of samples. `transition_density` is for people who want the
density itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.coefficients.padded import Padding, on_a_cell
from levytorch.convert import real_number, real_tensor, shown
from levytorch.errors import InputError
from levytorch.law.jumps import TimedJumps, jumps_in
from levytorch.likelihood.exact_rule import PROBES, TOLERANCE, Rule, choose_rule
from levytorch.likelihood.exact_step import ExactStep
from levytorch.likelihood.laws import Capability, Law

_NO_JUMPS = 1e-12  # jumps per step: fewer are none, whatever the data
_GAUSSIAN = 5.0  # standard deviations, beyond which one Gaussian step in two million lies
_UNLIKELY = 40.0  # in 1 / tempering: steps beyond are not found
MANY_STEPS = 12  # distinct dt in one batch, each with tables of its own
_POINTS = 400  # transitions by which accuracy is judged
_DENSITY = 1e-9  # tolerance of `transition_density`


class ExactLaw(Law):
    """log p of transitions under coefficient functions that are followed along the step.

    tolerance: of log p, by which grid and nodes are chosen for every head and dt. A fit keeps the rules of its start
    (`law.fixed(head, dt)`), so that the likelihood it maximises is one smooth function.
    """

    name = "exact"
    supports = Capability(
        dimensions=1, on_a_cell=True, lattice_on_a_line=False, alpha_of_x=False, distinct_dt=MANY_STEPS
    )
    dim = 1

    def __init__(self, tolerance: float = TOLERANCE, rules: dict[float, Rule] | None = None) -> None:
        self.tolerance, self.rules = tolerance, rules or {}
        self._last: dict[float, ExactStep] = {}

    def log_prob(self, head: Any, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p(x -> x + dx over dt), (n,); differentiable in whatever the head depends on, not in x, dx and dt.

        head: an nn.Module x -> Coefficients with `period` and `origin`, or splines on a line, which are padded
        (`coefficients.padded`); dt: 0-d, or (n,) with a few distinct values.
        """
        return self._by_step(head, dt, lambda step, x, dx: step.log_density(x, dx), x, dx)

    def mass_beyond(self, head: Any, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor) -> Tensor:
        """P(|dx - center| > threshold | x), (n,); differentiable as log_prob is."""

        def mass(step: ExactStep, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
            return step.upper(x, high) + step.lower(x, low)

        return self._by_step(head, dt, mass, x, center - threshold, center + threshold)

    def step(self, head: Any, dt: float) -> ExactStep:
        """The tables of one dt, for several questions about the same head.

        Without a graph they are kept until the coefficients change: data that is read in blocks asks block by block.
        """
        head = on_a_cell(head)
        rule = self.rule(head, dt)
        c = on_grid(head, dt, rule.n)
        if any(v.requires_grad for v in (*c, c.tempering)):
            return _tables(head, rule, c)
        last = self._last.get(dt)
        same = last is not None and last.rule == rule and torch.equal(last.c.tempering, c.tempering)
        if last is None or not (same and all(map(torch.equal, last.c, c))):
            if len(self._last) >= MANY_STEPS:
                self._last.clear()
            self._last[dt] = last = _tables(head, rule, c)
        return last

    @torch.no_grad()
    def scores(self, head: Head, x: Tensor, dx: Tensor, dt: float) -> Tensor:
        """d log p / d theta, (n, P), at one dt, to three digits: what information matrices are made of."""
        head = on_a_cell(head)
        step = self.step(head, dt)
        found = directions(head, step.c, dt)
        out = step.scores(x, dx, found.coefficients)
        for name, rate in (("alpha", found.alpha), ("tempering", found.tempering)):
            if bool(rate.any()):
                out += step.score_in(name, x, dx)[:, None] * rate
        return out

    def rule(self, head: Any, dt: float) -> Rule:
        """The rule that is used for this dt."""
        if dt in self.rules:
            return self.rules[dt]
        with torch.no_grad():
            c = on_grid(on_a_cell(head), dt, PROBES)
        return choose_rule(c, self.tolerance)

    def fixed(self, head: Any, dt: Tensor) -> ExactLaw:
        """This law with the rules of this head kept, for a fit from it; it refuses nothing afterwards."""
        return ExactLaw(self.tolerance, {value: self.rule(head, value) for value in _distinct(dt)})

    @torch.no_grad()
    def accuracy(self, head: Any, dt: float) -> float:
        """The largest difference of log p from that of a finer rule, at points where transitions are found.

        On a line these are steps within the window that are no jumps: beyond, the padding is what limits the accuracy.
        """
        head = on_a_cell(head)
        rule = self.rule(head, dt)
        coarse, fine = (_tables(head, r, on_grid(head, dt, r.n)) for r in (rule, rule.finer()))
        u = torch.remainder(torch.arange(1, _POINTS + 1, dtype=torch.float64) * 0.6180339887498949, 1.0)
        window = getattr(head, "window", None)
        low, high = window or (head.origin, head.origin + head.period)
        x = low + (high - low) * u
        spread = math.sqrt(2 * float(coarse.c.D_o.mean()))
        far = 18.0 if window is None else 1.5
        size = spread * torch.sinh(torch.linspace(-far, far, _POINTS, dtype=torch.float64)) / math.sinh(1.0)
        if float(coarse.c.tempering) > 0:
            size = size.clamp(-_UNLIKELY / float(coarse.c.tempering), _UNLIKELY / float(coarse.c.tempering))
        jumps = float((coarse.c.D_f * spread ** (-2 * coarse.c.alpha)).max())  # expected beyond `spread` in one step
        if jumps < _NO_JUMPS:
            node = ((x - head.origin) / head.period * rule.n).long() % rule.n
            size = (size / spread).clamp(-_GAUSSIAN, _GAUSSIAN) * (2 * coarse.c.D_o[node]).sqrt()
        dx = (size + float(coarse.c.b.mean())) / coarse.unit
        return float((coarse.log_density(x, dx) - fine.log_density(x, dx)).abs().max())

    def _by_step(self, head: Any, dt: Tensor, question: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        x, *rest = torch.broadcast_tensors(*(torch.as_tensor(a, dtype=torch.float64).detach() for a in arguments))
        values = _distinct(dt)
        if len(values) == 1:
            return question(self.step(head, values[0]), x, *rest)
        if len(values) > MANY_STEPS:
            raise InputError(
                f"dt must take at most {MANY_STEPS} distinct values for the exact law, found {len(values)}; round "
                'them, or use law="frozen".'
            )
        steps = torch.as_tensor(dt, dtype=torch.float64).expand(x.shape)
        out = torch.zeros_like(x)
        for value in values:
            chosen = steps == value
            answer = question(self.step(head, value), x[chosen], *(r[chosen] for r in rest))
            out = out.masked_scatter(chosen, answer)
        return out


class AtOneHead(ExactLaw):
    """The exact law at one head: its tables are made once, with their graph, for all questions that are asked."""

    def __init__(self, law: ExactLaw) -> None:
        super().__init__(law.tolerance, law.rules)
        self._made: dict[float, ExactStep] = {}

    def step(self, head: Any, dt: float) -> ExactStep:
        if dt not in self._made:
            self._made[dt] = super().step(head, dt)
        return self._made[dt]


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


def beside(head: Any, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Of each state the two on either side of it among `count` even ones of the cell, and its shares of them."""
    position = torch.remainder(x - float(head.origin), float(head.period)) * (count / float(head.period))
    left = position.floor()
    node = left.to(torch.int64)
    return [(node % count, 1 - (position - left)), ((node + 1) % count, position - left)]


def _tables(head: Any, rule: Rule, c: Coefficients) -> ExactStep:
    return ExactStep(c, rule, float(head.period), float(head.origin))


class Directions(NamedTuple):
    """What the parameters of a head do to the coefficients of `on_grid`: to b, D_o, D_f at the grid points (P, 3, n),
    to alpha (P,) and to the tempering (P,).
    """

    coefficients: Tensor
    alpha: Tensor
    tempering: Tensor


def directions(head: Head, c: Coefficients, dt: float) -> Directions:
    """c: of `on_grid`, for the same dt."""
    unit = 2 * math.pi / float(head.period)
    b, D_o, D_f, alpha = (v.detach() for v in head.jacobian(grid(head, len(c.b))))
    D_f = D_f * dt * unit ** (2 * c.alpha) + c.D_f[:, None] * 2 * math.log(unit) * alpha
    moved = torch.stack([b * dt * unit, D_o * dt * unit**2, D_f]).permute(2, 0, 1)
    return Directions(moved, alpha.mean(0), head.tempering_slope() / unit)  # alpha is the same everywhere


def _distinct(dt: Tensor) -> list[float]:
    dt = torch.as_tensor(dt, dtype=torch.float64).detach()
    return [float(v) for v in (dt.reshape(1) if dt.numel() == 1 else torch.unique(dt))]


def transition_density(dynamics: Any, x: Any, dx: Any, dt: float) -> Tensor:
    """The density of a step of dt along which the coefficients change with the state.

    `log_density` holds the coefficients constant during the step; this function does not.

    Args:
        dynamics: a Dynamics or a Recovery in one dimension. D_o dt must not be so small that the law is narrower than a
            few hundredths of the period.
        x: the state before the step. On a line it must lie in the window of the system. A path that leaves the window
            by a jump meets, for the rest of the step, coefficients that are continued beyond it.
        dx: the displacement, of any size. It broadcasts with x.
        dt: the length of the step.

    Returns:
        The density at dx, a float64 tensor of the broadcast shape.

    Example:
        >>> from levytorch import Dynamics
        >>> p = transition_density(Dynamics(b=1.0, D_o=0.5, D_f=0.0, alpha=0.5), x=0.0, dx=0.1, dt=0.1)
        >>> round(float(p) * math.sqrt(0.2 * math.pi), 6)  # Brownian motion with drift, at its mode
        1.0
    """
    head = System(dynamics)
    step = real_number("dt", dt, "give the time between two observations")
    if not step > 0:
        raise InputError(f"dt must be positive, found {shown(dt)}; give the time between two observations.")
    points = {"x": real_tensor("x", x), "dx": real_tensor("dx", dx)}
    for name, value in points.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{name} must be finite, found a NaN or infinity; remove such entries.")
    try:
        states, jumps = torch.broadcast_tensors(*points.values())
    except RuntimeError:
        shapes = " and ".join(str(tuple(v.shape)) for v in points.values())
        raise InputError(
            f"x and dx must broadcast, found shapes {shapes}; give one dx per x, or one for all."
        ) from None
    head.check(states)
    with torch.no_grad():
        law = ExactLaw(_DENSITY)
        flat = law.log_prob(head, states.reshape(-1).cpu(), jumps.reshape(-1).cpu(), torch.tensor(step))
    return flat.exp().reshape(states.shape)


class System:
    """A Dynamics or a Recovery as coefficient functions on a cell."""

    def __init__(self, dynamics: Any) -> None:
        missing = [name for name in ("b", "D_o", "D_f", "alpha", "period") if not hasattr(dynamics, name)]
        if missing:
            raise InputError(
                f"dynamics must be a Dynamics or a Recovery, found a {type(dynamics).__name__} without "
                f"{', '.join(missing)}; build one with Dynamics(...) or recover(...)."
            )
        if getattr(dynamics, "dim", 1) != 1:
            raise InputError(
                f"dynamics must have dim = 1 for the exact law, found dim = {dynamics.dim}; use log_density, which "
                "freezes the coefficients over the step."
            )
        self.window = None
        if dynamics.period is None or not math.isfinite(dynamics.period):
            self.window = getattr(dynamics, "window", None) or getattr(getattr(dynamics, "head", None), "window", None)
            if self.window is None:
                raise InputError(
                    f"dynamics must have a period or a window for the exact law, found period {dynamics.period}; set "
                    "window=(low, high) to a part of the line much wider than a step."
                )
        jumps = jumps_in(dynamics)
        if isinstance(jumps, TimedJumps):
            raise InputError(
                f"the jumps must be stable or tempered for the exact law, found {jumps}; use log_density, which "
                "freezes the coefficients over the step."
            )
        if callable(dynamics.alpha):
            raise InputError(
                "alpha must be one number for the exact law, found a function of x; use log_density, which freezes the "
                "coefficients over the step."
            )
        self.dynamics = dynamics
        if self.window is None:
            self.period, self.origin = float(dynamics.period), float(getattr(dynamics, "origin", 0.0))
        else:
            self.padding = Padding.of(self.window)
            self.period, self.origin = self.padding.period, self.padding.origin
        self.alpha = torch.tensor(float(dynamics.alpha), dtype=torch.float64)
        self.tempering = torch.tensor(float(getattr(dynamics, "tempering", 0.0)), dtype=torch.float64)

    def check(self, x: Tensor) -> None:
        """Refuse states outside of the window of a line."""
        if self.window is not None and not bool(((x >= self.window[0]) & (x <= self.window[1])).all()):
            raise InputError(
                f"x must lie in the window of the system, {tuple(self.window)}, found {float(x.abs().max()):g}; widen "
                "the window."
            )

    def __call__(self, x: Tensor) -> Coefficients:
        if self.window is None:
            return Coefficients(
                self.dynamics.b(x), self.dynamics.D_o(x), self.dynamics.D_f(x), self.alpha, self.tempering
            )
        low, high = self.window
        at = low + torch.remainder(x - low, self.period)
        beyond = (at - high).clamp(min=0.0)
        share = self.padding.share(beyond)
        ends = (
            torch.minimum(at, high + self.padding.beyond(beyond)),
            low - self.padding.beyond(self.padding.gap - beyond),
        )

        def mixed(c: Any) -> Tensor:
            above, below = (torch.as_tensor(c(end), dtype=torch.float64).expand(x.shape) for end in ends)
            return (1 - share) * above + share * below

        values = [mixed(c) for c in (self.dynamics.b, self.dynamics.D_o, self.dynamics.D_f)]
        return Coefficients(values[0], values[1], values[2], self.alpha, self.tempering)
