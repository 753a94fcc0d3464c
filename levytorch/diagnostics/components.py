"""What the goodness-of-fit test looks at: functions of u with mean zero and variance one under the law.

phi_j(u) = sqrt(2 j + 1) P_j(2 u - 1), the normalised Legendre polynomials, by themselves ("shape") and times functions
of what u must not depend on: the state ("state"), the time step when it varies ("time step"), the direction of the step
in more than one dimension ("direction"); and the number of steps rarer than a few levels ("tails").
Their sums of squares have the p-values of chi-squared.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from scipy.special import chdtrc, chdtri
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.convert import Array
from levytorch.diagnostics.sample import Sample
from levytorch.spaces import space_of

SMALLEST = 1e-12  # below it no test that rests on large samples means what it says
SHAPES = 6
TAILS = (0.03, 0.01, 0.003, 0.001, 0.0003)  # of all steps: jumps are rare, and polynomials hardly see them
FEWEST = 25  # expected steps beyond a level, for their number to be nearly normal
_QUADRATURE = 100_000
_KNOTS = 2049


class Check:
    """What a check has found, or why it was not made."""

    def metrics(self, name: str) -> dict[str, Any]:
        """Plain numbers under flat names that begin with the name of the check."""
        raise NotImplementedError

    def lines(self, rejected: Collection[str]) -> list[str]:
        """Sentences for a terminal; rejected: the tests that found something."""
        raise NotImplementedError

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        """What deserves a second look, by name, with a sentence; rejected: whether the test found something."""
        return {}

    def numbers(self, name: str, *fields: str) -> dict[str, Any]:
        """Some fields as metrics."""
        return {f"{name}_{field}": getattr(self, field) for field in fields}


def p_text(p: float, sign: str = "=") -> str:
    """A p-value as a sentence would have it: never zero, and no digits that mean nothing."""
    if p < SMALLEST:
        return f"p < {SMALLEST:.0e}"
    return f"p {sign} {p:.2g}" if p >= 1e-3 else f"p {sign} {p:.0e}"


def chi_squared_sf(statistic: float, df: int) -> float:
    """P(chi-squared with df degrees of freedom > statistic); scipy.stats, which has it too, takes half a second."""
    return float(chdtrc(df, statistic)) if df > 0 and statistic >= 0 else math.nan


def chi_squared_isf(p: float, df: int) -> float:
    """What chi-squared exceeds with probability p."""
    return float(chdtri(df, p))


def legendre(u: Tensor, most: int) -> Tensor:
    """phi_1 ... phi_most at u: (most, n)."""
    t = 2.0 * u - 1.0
    rows = [torch.ones_like(t), t]
    for j in range(1, most):
        rows.append(((2 * j + 1) * t * rows[j] - j * rows[j - 1]) / (j + 1))
    return torch.stack([math.sqrt(2 * j + 1) * rows[j] for j in range(1, most + 1)])


def wrapped(head: Head, x: Tensor) -> Tensor:
    """States brought into one cell, or window, and counted from its beginning: (n, d)."""
    return space_of(head).from_low(x).reshape(x.shape[0], -1)


def period_of(head: Head) -> Array:
    """Of the first coordinate, where it is an angle, for the axis of a figure; NaN otherwise."""
    low, high = head.bounds[0]
    return np.array(high - low if space_of(head).repeats else np.nan)


class Components:
    """Functions f(u) g(x, dt, direction), made for the states and time steps of one sample.

    `groups`: what each looks at. Under the law u is independent of g, so that products of components have the mean
    E[f f'] E[g g'], which is known but for the states' distribution.
    """

    def __init__(self, head: Head, sample: Sample) -> None:
        self.head, self.dim = head, sample.dim
        grid = torch.linspace(0.0, 1.0, _KNOTS, dtype=torch.float64)
        self.knots = [_quantiles(column, grid) for column in wrapped(head, sample.x).T]
        self.dt_knots = None if sample.uniform_dt else _quantiles(sample.dt, grid)
        self.levels = [level for level in TAILS if level * len(sample) >= FEWEST]
        n_f = SHAPES + len(self.levels) * (2 if self.dim == 1 else 1)
        self.f = list(range(n_f))
        self.g = [0] * n_f
        self.groups = ["shape"] * SHAPES + ["tails"] * (n_f - SHAPES)
        first = 1
        for name, count, most in self._layout():
            self.f += [j for j in range(most) for _ in range(count)]
            self.g += [first + a for _ in range(most) for a in range(count)]
            self.groups += [name] * (most * count)
            first += count

    def _layout(self) -> list[tuple[str, int, int]]:
        """(group, its functions g, polynomials that each of them multiplies), in the order of `factors`."""
        d = self.dim
        out = [("state", 4 if d == 1 else 2 * d, 4 if d == 1 else 3)]
        if self.dt_knots is not None:
            out.append(("time step", 1, 4))
        if d > 1:
            out.append(("direction", d + d * (d - 1) // 2 + d - 1, 2))
        return out

    @property
    def state_factors(self) -> int:
        """How many of the factors, after the first, are functions of the state."""
        return self._layout()[0][1]

    def rank(self, x: Tensor) -> Tensor:
        """Position in (0, 1) of the first coordinate of states among those of the sample."""
        return _rank(wrapped(self.head, x)[:, 0], self.knots[0])

    def of_u(self, u: Tensor) -> Tensor:
        """f(u): polynomials, and how many steps are rarer than some levels, on both sides and on one more than the
        other."""
        rows = [legendre(u, SHAPES)]
        rare = 2.0 * torch.minimum(u, 1.0 - u) if self.dim == 1 else 1.0 - u
        side = torch.where(u < 0.5, -1.0, 1.0).to(u)
        for level in self.levels:
            beyond = (rare < level).to(u)
            rows.append(((beyond - level) / math.sqrt(level * (1 - level))).unsqueeze(0))
            if self.dim == 1:
                rows.append((side * beyond / math.sqrt(level)).unsqueeze(0))
        return torch.cat(rows)

    def factors(self, x: Tensor, dt: Tensor, direction: Tensor | None) -> Tensor:
        """g: one, waves along the rank of x, the rank of dt, harmonics of the direction; (q, n)."""
        rows = [torch.ones_like(dt)]
        for column, knots in zip(wrapped(self.head, x).T, self.knots):
            rank = _rank(column, knots)
            for k in (1, 2) if self.dim == 1 else (1,):
                rows += [math.sqrt(2.0) * turn(2 * math.pi * k * rank) for turn in (torch.cos, torch.sin)]
        if self.dt_knots is not None:
            rows.append(math.sqrt(12.0) * (_rank(dt, self.dt_knots) - 0.5))
        if direction is not None:
            rows += list(direction.T * math.sqrt(self.dim))
            rows += [self.dim * direction[:, i] * direction[:, j] for i in range(self.dim) for j in range(i)]
            rows += [direction[:, i] ** 2 - direction[:, -1] ** 2 for i in range(self.dim - 1)]
        return torch.stack(rows)

    def values(self, u: Tensor, x: Tensor, dt: Tensor, direction: Tensor | None) -> Tensor:
        """All components, (k, n)."""
        return self.of_u(u)[self.f] * self.factors(x, dt, direction)[self.g]

    def variance(self, x: Tensor, dt: Tensor, direction: Tensor | None) -> Tensor:
        """E[h h^T] under the law at these states, (k, k)."""
        u = (torch.arange(_QUADRATURE, dtype=torch.float64) + 0.5) / _QUADRATURE
        f, g = self.of_u(u), self.factors(x, dt, direction)
        F, G = f @ f.T / _QUADRATURE, g @ g.T / g.shape[1]
        return F[self.f][:, self.f] * G[self.g][:, self.g]


def _quantiles(values: Tensor, grid: Tensor) -> Tensor:
    ordered = values.sort().values
    at = grid * (len(ordered) - 1)
    return ordered[at.round().long()]


def _rank(values: Tensor, knots: Tensor) -> Tensor:
    """Position in (0, 1) among the sample, ties in their middle."""
    low = torch.searchsorted(knots, values.contiguous())
    high = torch.searchsorted(knots, values.contiguous(), right=True)
    return (low + high).double() / (2.0 * len(knots))
