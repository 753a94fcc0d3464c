"""Functions on a line: cubic splines over a window, continued beyond it, and polynomials.

The functions are linear combinations of SciPy's B-splines that are orthonormal over the window and whose second
derivatives are orthogonal to each other (Demmler and Reinsch): 1, a straight line, then waves of rising frequency. A
roughness penalty, the integral of the squared second derivative, is then a sum over squared coefficients, as it is for
a Fourier series. Constants and straight lines are free; where cubics stand apart from the waves, what the waves are
charged for is how far a function is, in that integral, from the nearest cubic. Waves bend back at the ends of the
window, which x^3 does not: among lines and waves it takes many of them, and a strength that lets those through lets
noise through.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, choice, real_array, shown, whole_number
from levytorch.errors import InputError

if TYPE_CHECKING:
    from scipy.interpolate import BSpline

MOST = 999
KNOTS = ("even", "quantiles")
CONTINUATIONS = ("constant", "linear")
# How many polynomials stand apart from the waves. "lines", "cubics": a roughness penalty does not charge for them;
# "auto": for parabola and cubic it does, with a strength of their own
FREE = {"auto": 4, "lines": 2, "cubics": 4}
_DEGREE = 3
HIGHEST = 15
_BENT = np.array([720.0, 8400.0]) / (2 * math.pi) ** 4  # roughness of parabola and cubic, orthonormal over the window


class SplineBasis:
    """`n_basis` functions on the window (low, high): 1, a straight line, waves; n_basis = 1 is the constant alone.

    knots: where the cubics meet, n_basis - 4 states inside of the window, ascending; None: evenly spaced.
    continuation: beyond the window the functions stay "constant", or continue along their tangents ("linear").
    free: what a penalty does not charge for, 1 and a straight line ("lines") or the parabola and the cubic too
    ("cubics"); "auto": these two have a strength of their own (`apart`), which the evidence chooses.
    """

    def __init__(
        self,
        n_basis: int,
        window: tuple[float, float] = (0.0, 1.0),
        knots: Sequence[float] | None = None,
        continuation: str = "constant",
        free: str = "lines",
    ) -> None:
        self.n_basis, self.window = check_n_basis(n_basis), check_spline_window(window)
        self.continuation = choice("continuation", continuation, CONTINUATIONS)
        n_free = FREE[choice("free", free, tuple(FREE))]
        self.apart = slice(2, 4 if free == "auto" and n_basis > 1 else 2)
        low, high = self.window
        self.low, self.length = low, high - low
        if self.n_basis == 1:
            self.roughness = torch.zeros(1, dtype=torch.float64)
            return
        inner = np.linspace(0, 1, n_basis - 2)[1:-1] if knots is None else self._inner(knots)
        breaks = np.concatenate([[0.0], inner, [1.0]])
        t = np.concatenate([np.zeros(_DEGREE), breaks, np.ones(_DEGREE)])
        coefficients, roughness = demmler_reinsch(t, breaks, n_free)
        if free == "auto":
            roughness[self.apart] = _BENT
        splines = _splines(t, coefficients)
        # of every function on every interval, highest power first: (K, intervals) each
        powers = [splines.derivative(m)(breaks[:-1]) / math.factorial(m) for m in range(_DEGREE, -1, -1)]
        self.breaks = torch.from_numpy(breaks)
        self.pieces = [torch.from_numpy(np.ascontiguousarray(p.T)) for p in powers]
        slope = splines.derivative()
        self.end_slopes = torch.from_numpy(np.stack([slope(0.0), slope(1.0)], axis=1))  # (K, 2)
        self.roughness = torch.from_numpy(roughness)

    def _inner(self, knots: Sequence[float]) -> Array:
        inner = (real_array("knots", knots) - self.low) / self.length
        if inner.shape != (self.n_basis - 4,) or not (np.diff(np.concatenate([[0.0], inner, [1.0]])) > 0).all():
            raise InputError(
                f"knots must be {self.n_basis - 4} ascending states inside of the window for n_basis = {self.n_basis}, "
                f"found {shown(knots)}; give these, or even."
            )
        return np.asarray(inner)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.n_basis

    def harmonic_numbers(self) -> Tensor:
        """Half waves per half window, as it were: fourth roots of the roughness of each function, (size,)."""
        return self.roughness**0.25

    def in_units(self, length: float) -> SplineBasis:
        """The same functions of states that are measured in units of this length."""
        new = copy.copy(self)
        new.window = (self.window[0] / length, self.window[1] / length)
        new.low, new.length = self.low / length, self.length / length
        return new

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) -> (size, n)."""
        if self.n_basis == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        u = (x - self.low) / self.length
        inside = u.clamp(0.0, 1.0)
        index = torch.bucketize(inside, self.breaks[1:-1], right=True)
        offset = inside - self.breaks[index]
        out = self.pieces[0][:, index]
        for piece in self.pieces[1:]:
            out = out.mul_(offset).add_(piece[:, index])
        if self.continuation == "linear":
            beyond = u - inside
            out += self.end_slopes[:, :1] * beyond.clamp(max=0.0) + self.end_slopes[:, 1:] * beyond.clamp(min=0.0)
        return out


def _splines(t: Array, coefficients: Array) -> BSpline:
    from scipy.interpolate import BSpline  # half a second, which a head on a cell need not take

    return BSpline(t, coefficients, _DEGREE)


def demmler_reinsch(t: Array, breaks: Array, n_free: int = 2) -> tuple[Array, Array]:
    """B-spline coefficients (n, n) of the functions, one per column, their roughness (n,), rising from n_free zeros.

    Roughness is in the units of a Fourier series: a wave of h periods over the window has about h^4.
    """
    n = len(t) - _DEGREE - 1
    nodes, weights = np.polynomial.legendre.leggauss(_DEGREE + 1)  # exact for products of two cubics
    lengths = np.diff(breaks)
    points = (breaks[:-1, None] + lengths[:, None] * (nodes + 1) / 2).ravel()
    w = (lengths[:, None] * weights / 2).ravel()
    splines = _splines(t, np.eye(n))
    values, second = splines(points), splines.derivative(2)(points)
    factor = np.linalg.cholesky(values.T @ (w[:, None] * values))
    greville = np.array([t[i + 1 : i + 1 + _DEGREE].mean() for i in range(n)])  # the coefficients of u itself
    flat = np.stack([np.ones(n), np.sqrt(12.0) * (greville - 0.5)], axis=1)
    for degree in range(2, n_free):
        polynomial = np.sqrt(2.0 * degree + 1) * np.polynomial.Legendre.basis(degree)(2 * points - 1)
        own = np.linalg.solve(factor.T, np.linalg.solve(factor, values.T @ (w * polynomial)))
        flat = np.column_stack([flat, own])
    # in the coordinates factor^T c the inner product is the plain one
    rest = np.linalg.svd(factor.T @ flat)[0][:, n_free:]
    bent = np.linalg.solve(factor.T, rest)
    curvature = second @ bent
    if n_free > 2:  # what no parabola or cubic can take off it
        root = np.sqrt(w)[:, None]
        curved = root * (second @ flat[:, 2:])
        curvature = curvature - second @ flat[:, 2:] @ np.linalg.lstsq(curved, root * curvature, rcond=None)[0]
    omega, vectors = np.linalg.eigh(curvature.T @ (w[:, None] * curvature))
    waves = bent @ vectors
    waves = waves * np.sign(waves[-1])  # a value at the right end, which no wave has zero: signs are the same anywhere
    roughness = np.concatenate([np.zeros(n_free), omega / (2 * math.pi) ** 4])
    return np.concatenate([flat, waves], axis=1), np.maximum(roughness, 0.0)


def check_n_basis(n_basis: Any) -> int:
    """1 (constants), or as many as cubic splines need."""
    n = whole_number("n_basis of splines", n_basis, 1, MOST, "use 1 for constants, 21 where nothing is known")
    if n in (2, 3):
        raise InputError(f"n_basis of splines must be 1 (constants) or at least 4, found {n}; use one of these.")
    return n


def check_spline_window(window: Any) -> tuple[float, float]:
    """Two finite numbers in order, far enough apart to tell states in between from each other."""
    ends = real_array("window", window, "give the two ends of a part of the line")
    if ends.shape != (2,) or not np.isfinite(ends).all() or not ends[1] - ends[0] > 1e-9 * np.abs(ends).max():
        raise InputError(f"window must be (low, high) with low < high, found {shown(window)}; give both ends in order.")
    return float(ends[0]), float(ends[1])


def check_windows(window: Any, dim: int) -> list[tuple[float, float]]:
    """One window per coordinate; None stands for (0, 1), until the data is there."""
    if window is None:
        return [(0.0, 1.0)] * dim
    given = [window] if dim == 1 else list(window)
    if len(given) != dim:
        raise InputError(f"window must be {dim} pairs (low, high), found {shown(window)}; give one per coordinate.")
    return [check_spline_window(pair) for pair in given]


class PolynomialBasis:
    """Legendre polynomials up to a degree, orthonormal over the window; none is penalised."""

    def __init__(self, degree: int = 3, window: tuple[float, float] = (0.0, 1.0)) -> None:
        self.degree = whole_number("degree of the drift", degree, 0, HIGHEST, "3 is that of a double well")
        self.window = check_spline_window(window)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.degree + 1

    def harmonic_numbers(self) -> Tensor:
        """Zeros: a polynomial of low degree is smooth enough."""
        return torch.zeros(self.size, dtype=torch.float64)

    def in_units(self, length: float) -> PolynomialBasis:
        """The same functions of states that are measured in units of this length."""
        return PolynomialBasis(self.degree, (self.window[0] / length, self.window[1] / length))

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) -> (size, n)."""
        low, high = self.window
        s = (2 * x - (low + high)) / (high - low)
        rows = [torch.ones_like(s), s]
        for k in range(1, self.degree):
            rows.append(((2 * k + 1) * s * rows[k] - k * rows[k - 1]) / (k + 1))
        return torch.stack([math.sqrt(2 * k + 1) * row for k, row in enumerate(rows[: self.size])])
