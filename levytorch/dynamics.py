"""The dynamics of one system: b, D_o, D_f and alpha as functions of the state.

    dX = b(X) dt + Sigma(X) dW + sigma(X) dL^alpha,    D_o = Sigma Sigma^T / 2,    D_f = |sigma|^(2 alpha)

(Ye, Tian, Zhu: A Robust Model-Based Approach for Continuous-Time Policy Evaluation with Unknown Levy Process Dynamics,
equation 1.1 and section 2.) Coefficients are periodic, as they are throughout the paper. With alpha = 0.3 a state may
well be 1e10 or more, where sin(x) means little to a user-written function: the state is therefore reduced to the cell
[origin, origin + period) *before* any coefficient sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import answer_of, check_finite, choice, real_array, real_number, real_tensor, shown, whole_number
from levytorch.errors import InputError
from levytorch.law.arguments import MOST_COORDINATES
from levytorch.law.jumps import Jumps, TimedJumps, jumps_of
from levytorch.spaces import StateSpace, coordinates, space_of

Coefficient = Callable[[Tensor], Any] | float
_PROBES = 64


class _Periodic:
    """A coefficient as a function of x: numbers and callables alike, of tensors, arrays and floats alike."""

    def __init__(self, name: str, given: Any, dynamics: Dynamics, forms: Sequence[tuple[int, ...]] = ((),)) -> None:
        """forms: the shapes of the coefficient at one state that are possible, the one of a function first."""
        self.name, self.dynamics, self.form = name, dynamics, forms[0]
        self.function: Callable[[Tensor], Any] | None = None
        self.value: Tensor | None = None  # set for constants: lets a simulation skip the calls
        if callable(given):
            self.function = given
            self.form = self._form(forms)
            return
        self.value = _constant(name, given).detach().cpu()
        if (found := tuple(self.value.shape)) not in ((), *forms):
            larger = [" x ".join(map(str, form)) + " of them" for form in forms if form]
            raise InputError(
                f"{name} as a constant must be {' or '.join(['one number', *larger])}, found shape {found}; pass a "
                "function of x for anything else."
            )
        self.form = found if found in forms else forms[0]

    def _form(self, forms: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The possible shape that the answers of the function have."""
        assert self.function is not None
        if len(forms) == 1:
            return forms[0]
        answer = answer_of(self.name, self.function, self.dynamics.points(_PROBES))
        found = tuple(real_tensor(f"{self.name}(x)", answer).shape)
        return next((form for form in reversed(forms) if form and found[-len(form) :] == form), forms[0])

    def __call__(self, x: Any) -> Tensor:
        x = self.dynamics.as_states(x)
        return self.inside(x if self.value is not None else self.dynamics.wrap(x))

    def inside(self, x: Tensor) -> Tensor:
        """The coefficient at float64 states that lie in the cell already."""
        shape = (*(x.shape if self.dynamics.dim == 1 else x.shape[:-1]), *self.form)
        if self.value is not None:
            return self.value.to(x.device).expand(shape).clone()
        assert self.function is not None
        answer = answer_of(self.name, self.function, x)
        found = real_tensor(f"{self.name}(x)", answer, "write it with elementwise tensor operations").to(x.device)
        try:
            return found.expand(shape) if found.shape != shape else found
        except RuntimeError:
            raise InputError(
                f"{self.name}(x) must return a tensor of shape {tuple(shape)} for x of shape {tuple(x.shape)}, found "
                f"{tuple(found.shape)}; write it with elementwise tensor operations."
            ) from None


class Dynamics:
    """A system: its coefficients b, D_o, D_f and alpha, as numbers or functions of the state.

    `dynamics.b(x)`, `.D_o(x)`, `.D_f(x)` and `.alpha_at(x)` accept tensors, arrays and numbers and return float64
    tensors.

    Args:
        b, D_o, D_f: numbers, or functions (tensor -> tensor). D_o and D_f must not be negative. For dim > 1 states are
            [..., d], b returns [..., d] and D_f returns [...]; D_o returns [...] for a multiple of the identity, or
            symmetric positive matrices [..., d, d]: Sigma Sigma^T / 2.
        alpha: half the stability index, in (0, 1); a number, or a function alpha(x). Or jumps of another kind,
            such as `VarianceGamma(decay=1.0)`, for `simulate` and `solve_value`.
        period: of every coefficient (one number, or one per coordinate); None, or `math.inf`, for a state or a
            coordinate on a line.
        dim: dimension of the state.
        origin: where the cell begins.
        window: on a line, (low, high) of the states that matter (one such pair per coordinate): where a simulation
            starts unless x0 is given. None: 10 to either side of origin.
        tempering: a rate per unit of x: jumps larger than its inverse are exponentially rare; 0 for stable jumps.

    Example:
        >>> Dynamics.named("constant", alpha=0.3).D_f([0.0, 1.0])
        tensor([3., 3.], dtype=torch.float64)
        >>> ring = Dynamics(b=lambda x: torch.sin(x), D_o=1.0, D_f=0.5, alpha=0.7)
        >>> ring.b(2 * math.pi + 0.5).item() == ring.b(0.5).item()
        True
    """

    def __init__(
        self,
        b: Coefficient | Sequence[float],
        D_o: Coefficient,
        D_f: Coefficient,
        alpha: Coefficient | TimedJumps,
        period: float | Sequence[float | None] | None = 2 * math.pi,
        dim: int = 1,
        origin: float | Sequence[float] = 0.0,
        window: Sequence[Any] | None = None,
        tempering: float = 0.0,
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= MOST_COORDINATES:
            raise InputError(
                f"dim must be an integer from 1 to {MOST_COORDINATES}, found {shown(dim)}; pass the number of "
                "coordinates of the state."
            )
        self.dim = dim
        lines = [math.inf if p is None else p for p in (period if isinstance(period, list | tuple) else [period])]
        self.period = _cell_numbers("period", lines if isinstance(period, list | tuple) else lines[0], dim)
        self.origin = _cell_numbers("origin", origin, dim)
        lengths = self.period if isinstance(self.period, tuple) else (self.period,)
        if not all(p > 0 for p in lengths):
            raise InputError(
                f"period must be positive, found {period!r}; pass the length of the cell, or math.inf for none."
            )
        starts = self.origin if isinstance(self.origin, tuple) else (self.origin,)
        if not all(math.isfinite(o) for o in starts):
            raise InputError(f"origin must be finite, found {origin!r}; pass the left end of the cell.")
        self.policy: Any = None  # of a closed loop: what averages rewards that depend on the action
        self.window = None if window is None else _windows(window, dim)
        several = dim > 1
        self.b = _Periodic("b", b, self, [(dim,) if several else ()])
        self.D_o = _Periodic("D_o", D_o, self, [(), (dim, dim)] if several else [()])
        self.D_f = _Periodic("D_f", D_f, self)
        self.tempering = real_number("tempering", tempering, "pass a rate per unit of x, or 0")
        if self.tempering < 0:
            raise InputError(
                f"tempering must be >= 0, found {self.tempering:g}; pass a rate per unit of x, or 0 for none."
            )
        self.jumps: Jumps = alpha if isinstance(alpha, TimedJumps) else jumps_of(self.tempering)
        self.alpha_at = _Periodic("alpha", alpha.index if isinstance(alpha, TimedJumps) else alpha, self)
        self.alpha: float | Callable[[Any], Tensor] = (
            self.alpha_at if self.alpha_at.value is None else float(self.alpha_at.value)
        )
        self._probe()

    @staticmethod
    def named(name: str, alpha: Coefficient | None = None, tempering: float = 0.0) -> Dynamics:
        """A system of the paper: "constant" (Examples 4.1, 4.4, 4.5), "variable" (4.2, 4.3), "asymptotic" (4.2.2).

        "plane" and "rotor" have two dimensions and coefficients that depend on both variables; "rotor" has a rotating
        drift and a matrix D_o whose correlation varies between -0.6 and 0.6. "double_well" is a particle on a
        line, b = x - x^3, Sigma^2 = 2 + 2x + x^2, sigma = 1 / (1 + x^2 / 2), started between -2 and 2. alpha is 0.3 if
        not given, and 0.75 for the double well.
        """
        choice("name", name, tuple(SYSTEMS))
        b, D_o, D_f = SYSTEMS[name]
        if name == "double_well":
            alpha = 0.75 if alpha is None else alpha
            jumps = DoubleWellJumps(alpha)
            return Dynamics(b, D_o, jumps, alpha, period=None, window=(-2.0, 2.0), tempering=tempering)
        alpha = 0.3 if alpha is None else alpha
        return Dynamics(b, D_o, D_f, alpha, dim=_DIM.get(name, 1), tempering=tempering)

    @cached_property
    def space(self) -> StateSpace:
        """Where its states are."""
        return space_of(self)

    @property
    def repeats(self) -> bool:
        """Whether every coordinate has a period."""
        return self.space.repeats

    @property
    def has_matrix(self) -> bool:
        """Whether D_o is a matrix at every state."""
        return bool(self.D_o.form)

    @property
    def is_constant(self) -> bool:
        """Whether no coefficient depends on the state."""
        return all(c.value is not None for c in (self.b, self.D_o, self.D_f, self.alpha_at))

    def as_states(self, x: Any) -> Tensor:
        """x as a float64 tensor, its last axis checked when dim > 1."""
        x = real_tensor("x", x, "pass states as a number, an array or a tensor")
        if self.dim > 1 and (x.ndim == 0 or x.shape[-1] != self.dim):
            raise InputError(
                f"x must have shape [..., {self.dim}], found {tuple(x.shape)}; put the coordinates on the last axis."
            )
        return x

    def wrap(self, x: Any) -> Tensor:
        """x reduced to the cell [origin, origin + period); exact to the resolution of x itself."""
        return self.space.wrap(self.as_states(x))

    def points(self, n: int) -> Tensor:
        """n points that fill the cell evenly ((n,) or (n, d)); the window, or 10 to either side of the origin, where
        there is no period.
        """
        n = whole_number("n", n, 1, 1 << 40)
        origins = self.origin if isinstance(self.origin, tuple) else [self.origin] * self.dim
        near = [
            (part.ends[0], part.length) if math.isfinite(part.length) else (origin - 10.0, 20.0)
            for part, origin in zip(coordinates(self.space), origins)
        ]
        start, length = torch.tensor(near, dtype=torch.float64).T
        # irrational strides (powers of the d-dimensional golden ratio) fill a box evenly for every n
        root = _golden_ratio(self.dim)
        stride = torch.tensor([root ** -(k + 1) for k in range(self.dim)], dtype=torch.float64)
        points = start + length * torch.remainder(0.5 + torch.arange(n, dtype=torch.float64)[:, None] * stride, 1.0)
        return points[:, 0] if self.dim == 1 else points

    def _probe(self) -> None:
        """Evaluate every coefficient once, so that a wrong one is refused here and not after an hour of simulation."""
        x = self.points(_PROBES)
        with torch.no_grad():
            values = {c.name: c(x) for c in (self.b, self.D_o, self.D_f, self.alpha_at)}
        for name, value in values.items():
            check_finite(name, value, x, "correct it: this must hold on the whole cell")
        if self.has_matrix:
            from levytorch.law.several import check_matrix

            check_matrix(values["D_o"])
            values["D_o"] = values["D_o"].diagonal(dim1=-2, dim2=-1).amin(-1)
        for name in ("D_o", "D_f"):
            if bool((values[name] < 0).any()):
                raise InputError(
                    f"{name} must not be negative, found {float(values[name].min()):.6g}; use |.| or a square of it."
                )
        if bool((values["D_o"] + values["D_f"] == 0).any()):
            raise InputError("D_o and D_f must not both vanish, found 0 and 0; a step without noise has no density.")
        alpha = values["alpha"]
        bad = ~self.jumps.holds(alpha) | (alpha >= 1)
        if bool(bad.any()):
            worst = float(alpha[bad].flatten()[0])
            raise InputError(
                f"alpha must lie in (0, 1), found {worst:.6g}; it is half the stability index (2 alpha = 1.2 is "
                "alpha = 0.6)."
            )

    def __repr__(self) -> str:
        parts = [
            f"{c.name}={'f(x)' if c.value is None else c.value.tolist()}"
            for c in (self.b, self.D_o, self.D_f, self.alpha_at)
        ]
        if not self.jumps.is_stable:
            parts.append(f"jumps={self.jumps}")
        return f"Dynamics({', '.join(parts)}, period={self.period}, dim={self.dim})"


def _golden_ratio(dim: int) -> float:
    """The root of r^(d + 1) = r + 1."""
    root = 1.5
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dim + 1))
    return root


def _constant(name: str, given: Any) -> Tensor:
    """A coefficient that is not a function."""
    try:
        return real_tensor(name, given)
    except InputError:
        raise InputError(
            f"{name} must be a number or a function of x, found {shown(given)}; pass a float or a callable."
        ) from None


def _windows(given: Any, dim: int) -> tuple[Any, ...]:
    """(low, high), or one such pair per coordinate."""
    ends = real_array("window", given, "pass (low, high)")
    if ends.shape != ((2,) if dim == 1 else (dim, 2)) or not (ends[..., 0] < ends[..., 1]).all():
        raise InputError(f"window must be (low, high) with low < high, found {shown(given)}; pass one per coordinate.")
    if not np.isfinite(ends).all():
        raise InputError(f"window must be finite, found {shown(given)}; pass the range of states that matters.")
    return tuple(ends.tolist()) if dim == 1 else tuple(tuple(pair) for pair in ends.tolist())


def _cell_numbers(name: str, given: Any, dim: int) -> float | tuple[float, ...]:
    """A number as a float, d numbers as a tuple."""
    several = f" or {dim} of them" if dim > 1 else ""
    try:
        array = real_array(name, given)
    except InputError:
        array = np.full((), np.nan)
    if array.ndim == 0 and not np.isnan(array):
        return float(array)
    if array.ndim != 1 or len(array) != dim or np.isnan(array).any():
        raise InputError(f"{name} must be one number{several}, found {shown(given)}; pass a float.")
    return float(array[0]) if dim == 1 else tuple(array.tolist())


# ------------------------------------------------------------------------------------------------ the paper's systems


def _variable_b(x: Tensor) -> Tensor:
    return 4 * (x - math.pi).abs() - 2 * math.pi  # x lies in [0, 2 pi)


def _variable_D_o(x: Tensor) -> Tensor:
    return torch.exp(torch.sin(x + 1) + 1)


def _variable_D_f(x: Tensor) -> Tensor:
    return 2 + torch.exp(torch.sin(2 * x) * torch.cos(3 * x))


def _asymptotic_b(x: Tensor) -> Tensor:
    return torch.sin(x) ** 4


def _asymptotic_D_o(x: Tensor) -> Tensor:
    return torch.cos(x) ** 2 + torch.sin(x).abs()


def _asymptotic_D_f(x: Tensor) -> Tensor:
    return torch.sin(4 * x) + 2


def _plane_b(x: Tensor) -> Tensor:
    u, v = x[..., 0], x[..., 1]
    return torch.stack([3 * torch.sin(v) + torch.cos(u), 2 * torch.cos(u) - torch.sin(u + v)], dim=-1)


def _plane_D_o(x: Tensor) -> Tensor:
    return torch.exp(0.5 * torch.sin(x[..., 0] + 1) + 0.4 * torch.cos(x[..., 1]))


def _plane_D_f(x: Tensor) -> Tensor:
    return 2 + torch.sin(x[..., 0]) * torch.cos(x[..., 1])


def _rotor_b(x: Tensor) -> Tensor:
    u, v = x[..., 0], x[..., 1]
    return torch.stack([2 * torch.sin(v) + torch.cos(u), -2 * torch.sin(u) + torch.cos(v)], dim=-1)


def _rotor_D_o(x: Tensor) -> Tensor:
    """Variances exp(+-0.25 sin), a correlation between -0.6 and 0.6: condition numbers up to 5."""
    u, v = x[..., 0], x[..., 1]
    ratio, correlation = torch.exp(0.25 * torch.sin(u)), 0.6 * torch.sin(u + v)
    rows = [ratio, correlation, correlation, 1 / ratio]
    return torch.stack(rows, dim=-1).reshape(*x.shape[:-1], 2, 2)


def _well_b(x: Tensor) -> Tensor:
    return x - x**3


def _well_D_o(x: Tensor) -> Tensor:
    return 0.5 * (2 + 2 * x + x * x)


class DoubleWellJumps:
    """D_f = |sigma|^(2 alpha), sigma = 1 / (1 + x^2 / 2)."""

    def __init__(self, alpha: Coefficient) -> None:
        self.alpha = alpha

    def __call__(self, x: Tensor) -> Tensor:
        alpha = self.alpha(x) if callable(self.alpha) else self.alpha
        return torch.exp(-2 * alpha * torch.log1p(0.5 * x * x))


SYSTEMS: dict[str, tuple[Any, Any, Any]] = {
    "constant": (5.0, 4.0, 3.0),
    "variable": (_variable_b, _variable_D_o, _variable_D_f),
    "asymptotic": (_asymptotic_b, _asymptotic_D_o, _asymptotic_D_f),
    "plane": (_plane_b, _plane_D_o, _plane_D_f),
    "rotor": (_rotor_b, _rotor_D_o, _plane_D_f),
    "double_well": (_well_b, _well_D_o, None),
}
_DIM = {"plane": 2, "rotor": 2}
