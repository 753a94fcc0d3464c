"""The coefficients that a substep freezes: extrapolated for second weak order, a steep drift followed implicitly.

Second order. An Euler step of length h misses what its own noise does to the coefficients: with L the generator, c the
coefficients and C f = the sum of c_k times the k-th operator, E f lacks (h^2 / 2) [(L c) f + Gamma(c, f)], Gamma being
the covariation of coefficients and path. That is half of E [C f with c(X_i) - c(X_{i-1})] over a step, so the substep
after freezes

    c(X_i) + w (c(X_i) - c(X_{i-1})),    w = m / (2 (m - 1)),

(Adams and Bashforth's rule; m substeps share m halves among the m - 1 that have a predecessor). The memory ends with
every observation: what is seen stays a Markov chain. Given the past every substep is still an exact Gaussian and stable
step, jumps included. Where a jump lets D_o or D_f fall below a third, the extrapolation would be negative: 0 is taken,
and what is owed is handed on to the next substep.

Steep drift. On a line a jump may land where b = x - x^3 is a million per unit time. An explicit Euler step would
overshoot, and the next one overshoot farther. Where the drift changes along such a step it is followed by implicit
Euler steps instead (each solved by Newton's method), whose lengths grow geometrically from a small part of the step on,
as the time that a drift like -x^3 takes grows on its way in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array

_STEEP = 0.5  # relative change of b over an explicit step, from which it is not trusted
_OCTAVES, _PER_OCTAVE = 20, 6
_NEWTON = 12


class Extrapolation:
    """Coefficients to freeze, substep by substep; substeps: m between two observations.

    least: the part of D_o and D_f below which they do not fall; what is then missing is handed on.
    """

    def __init__(self, substeps: int, least: float = 0.0) -> None:
        self.least = least
        self.weight = substeps / (2 * (substeps - 1)) if substeps > 1 else 0.0
        self.before: dict[str, Array] = {}
        self.owed: dict[str, Array] = {}

    def restart(self) -> None:
        """The state has been observed."""
        self.before.clear()
        self.owed.clear()

    def __call__(self, name: str, now: Array) -> Array:
        """name: b, D_o or D_f; now: its values, of any shape, the same from substep to substep."""
        before, self.before[name] = self.before.get(name), now.copy()  # torch may hand out the states themselves
        if before is None:
            return now
        wanted: Array = now + self.weight * (now - before)
        if name == "b":
            return wanted
        if name in self.owed:
            wanted += self.owed[name]
        least = self.least * now
        frozen = np.maximum(wanted, least) if wanted.ndim == 1 else positive_part(wanted, least)
        self.owed[name] = wanted - frozen
        return frozen


def positive_part(matrices: Array, least: Array) -> Array:
    """The nearest symmetric matrices (d, d, n) that do not fall below some positive ones: `matrices - least` without
    its negative eigenvalues, and `least`.
    """
    above = np.moveaxis(matrices - least, -1, 0)
    failed = torch.linalg.cholesky_ex(torch.from_numpy(np.ascontiguousarray(above)))[1].numpy() > 0
    if not failed.any():
        return matrices
    values, vectors = np.linalg.eigh(above[failed])
    out = matrices.copy()
    out[..., failed] = np.moveaxis((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2), 0, -1)
    out[..., failed] += least[..., failed]
    return out


def effective_drift(
    b: Callable[[Tensor], Tensor],
    x: Tensor,
    here: Tensor,
    h: float,
    part: Callable[[Tensor], Callable[[Tensor], Tensor]] | None = None,
) -> Tensor:
    """b such that x + b h is where the drift alone leads within h; `here` is b(x), which it is but for steep places.

    part: b of some of the states, by a mask, where every state has its own.
    """
    there = b(x + h * here)
    steep = (there - here).abs() > _STEEP * here.abs()
    steep &= (here * h).abs() > 1e-6 * (1 + x.abs())  # next to a place of rest every step is a change
    if not bool(steep.any()):
        return here
    start = x[steep]
    out = here.clone()
    out[steep] = (_follow(b if part is None else part(steep), start, h) - start) / h
    return out


def _follow(b: Callable[[Tensor], Tensor], x: Tensor, h: float) -> Tensor:
    ratio = 2.0 ** (1 / _PER_OCTAVE)
    n = _OCTAVES * _PER_OCTAVE
    ends = h * ratio ** (torch.arange(n + 1, dtype=torch.float64) - n)
    steps = [float(ends[0]), *ends.diff().tolist()]
    for step in steps:
        x = _implicit(b, x, step)
    return x


def _implicit(b: Callable[[Tensor], Tensor], x: Tensor, h: float) -> Tensor:
    """y = x + h b(y), from y = x on."""
    y = x
    for _ in range(_NEWTON):
        value = b(y)
        width = 1e-6 * (1 + y.abs())
        slope = (b(y + width) - b(y - width)) / (2 * width)
        # where the drift drives apart, a step of Newton's method could go anywhere: an explicit one is no worse
        change = (y - x - h * value) / (1 - h * slope.clamp(max=0.0))
        y = y - change
        if bool((change.abs() <= 1e-9 * (1 + y.abs())).all()):
            break
    return y
