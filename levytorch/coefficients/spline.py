"""Heads on a line: cubic splines over a window, continued beyond it; or a polynomial for the drift.

The functions are those of `levytorch.spaces.splines`. A drift that is a polynomial (the double well x - x^3 is the
standard example) holds beyond the window too, which is what confines a particle there; D_o and D_f are splines,
constant beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from levytorch.coefficients.fourier import LinearHead, alpha_functions
from levytorch.coefficients.head import LinkOptions, Units
from levytorch.convert import choice, listed, shown
from levytorch.errors import InputError
from levytorch.spaces.basis import Basis, TensorBasis
from levytorch.spaces.splines import CONTINUATIONS, FREE, KNOTS, PolynomialBasis, SplineBasis, check_windows


class SplineHead(LinearHead):
    """Cubic splines on a line: D_o and D_f stay constant beyond the window, b does, or continues along its tangent.

    window: (low, high), or one such pair per coordinate; knots: "even", or states inside the window ("quantiles": of
    the data, which a fit puts in their place); continuation: of b, "constant" or "linear"; free: of b, "auto", "lines"
    or "cubics" (in the plane lines).
    """

    period = None

    def __init__(
        self,
        n_basis: int = 21,
        window: Any = None,
        knots: str | Sequence[float] = "even",
        continuation: str = "constant",
        n_basis_alpha: int = 4,
        dim: int = 1,
        truncation: str = "total",
        free: str = "auto",
        **options: Unpack[LinkOptions],
    ) -> None:
        windows = check_windows(window, dim)
        if isinstance(knots, str):
            choice("knots", knots, KNOTS, "or give the states where the cubics meet")
        elif dim > 1:
            raise InputError(f"knots must be even for dim = {dim}, found {shown(knots)}; leave it out.")
        choice("continuation", continuation, CONTINUATIONS)
        if choice("free", free, tuple(FREE)) == "cubics" and dim > 1:
            raise InputError(f"free must be lines for dim = {dim}, found {shown(free)}; leave it out.")
        self.free = free if dim == 1 else "lines"
        remedy = "give the states where the cubics meet, or even"
        states = None if isinstance(knots, str) else listed("knots", knots, remedy)
        inner = None if n_basis == 1 else states

        def basis(n: int, own: Sequence[float] | None = None, how: str = "constant", free: str = "lines") -> Basis:
            lines = [SplineBasis(n, pair, own, how, free) for pair in windows]
            return lines[0] if dim == 1 else TensorBasis(dim, n, truncation=truncation, lines=lines)

        n_alpha = alpha_functions(options.get("alpha"), n_basis_alpha)
        everywhere = basis(n_basis, inner)
        drift = self._drift(windows, basis, everywhere, continuation, n_basis, inner)
        own = basis(n_alpha) if n_alpha else None
        super().__init__(everywhere, own, dim, drift, **options)
        self.n_basis, self.n_basis_alpha, self.truncation = n_basis, n_alpha, truncation
        self.knots, self.continuation = knots if inner is None else inner, continuation
        self.window = windows[0] if dim == 1 else windows
        self.origin = windows[0][0] if dim == 1 else tuple(low for low, _ in windows)

    def _drift(
        self, windows: list[tuple[float, float]], basis: Any, same: Basis, continuation: str, n: int, inner: Any
    ) -> Basis:
        """The basis of b."""
        if n == 1 or (continuation, self.free) == ("constant", "lines"):
            return same
        return basis(n, inner, continuation, self.free)

    def in_units(self, units: Units) -> SplineHead:
        new = super().in_units(units)
        if not isinstance(self.knots, str):
            new.knots = [state / units.length for state in self.knots]
        return new

    def config(self) -> dict[str, Any]:
        more = {} if self.dim == 1 else {"dim": self.dim, "truncation": self.truncation}
        window = list(self.window) if self.dim == 1 else [list(pair) for pair in self.window]
        own = {"name": "spline", "n_basis": self.n_basis, "n_basis_alpha": self.n_basis_alpha or 4}
        own |= {"window": window, "knots": self.knots, "continuation": self.continuation, "free": self.free}
        return more | own | self.settings()


class PolynomialHead(SplineHead):
    """b a polynomial of `degree`, on the whole line; D_o and D_f splines as in a SplineHead."""

    def __init__(self, degree: int = 3, dim: int = 1, **options: Any) -> None:
        if dim != 1:
            raise InputError(f"a polynomial drift must be one-dimensional, found dim = {shown(dim)}; use splines.")
        self.degree = degree
        super().__init__(dim=dim, **options)

    def _drift(
        self, windows: list[tuple[float, float]], basis: Any, same: Basis, continuation: str, n: int, inner: Any
    ) -> Basis:
        return PolynomialBasis(self.degree, windows[0])

    def config(self) -> dict[str, Any]:
        plain = super().config() | {"name": "polynomial", "degree": self.degree}
        del plain["continuation"], plain["free"]
        return plain
