"""What a step freezes for second weak order: coefficients extrapolated from the substep before.

An Euler step of length h misses what its own noise does to the coefficients: with L the generator, c the coefficients
and C f = the sum of c_k times the k-th operator, E f lacks (h^2 / 2) [(L c) f + Gamma(c, f)], Gamma being the
covariation of coefficients and path. That is half of E [C f with c(X_i) - c(X_{i-1})] over a step, so the substep after
freezes

    c(X_i) + w (c(X_i) - c(X_{i-1})),    w = m / (2 (m - 1)),

(Adams and Bashforth's rule; m substeps share m halves among the m - 1 that have a predecessor). The memory ends with
every observation: what is seen stays a Markov chain. Given the past every substep is still an exact Gaussian and stable
step, jumps included. Where a jump lets D_o or D_f fall below a third, the extrapolation would be negative: 0 is taken,
and what is owed is handed on to the next substep.
"""

from __future__ import annotations

import numpy as np

from levytorch.convert import Array


class Extrapolation:
    """Coefficients to freeze, substep by substep; substeps: m between two observations."""

    def __init__(self, substeps: int) -> None:
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
        frozen = np.maximum(wanted, 0.0)
        self.owed[name] = wanted - frozen
        return frozen
