"""What every head is: an nn.Module whose forward(x) gives the coefficients at x in physical units."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from levytorch.coefficients.layout import ISOTROPIC, NO_TEMPERING, Coefficients, Layout, Noise, noise_of
from levytorch.coefficients.links import (
    FLOOR_D_F,
    FLOOR_D_O,
    AlphaSpec,
    Link,
    TemperingSpec,
    positivity,
    tempering_inverse,
    tempering_link,
)
from levytorch.convert import real_number
from levytorch.errors import InputError
from levytorch.spaces.basis import per_coordinate

KNOWABLE = ("D_o", "D_f")  # coefficients that may be given as known constants
_MARGIN = 1 / 64  # of the window: many nodes of the grids that are interpolated from
NO_JUMPS = 1e-300  # the D_f that the law of a step takes for none: its step is then Gaussian to the last digit


def known_constants(given: Mapping[str, Any]) -> dict[str, float]:
    """D_o and D_f where they are given as known constants (None: not), in the units of the data."""
    out = {}
    for name in KNOWABLE:
        if given.get(name) is None:
            continue
        value = real_number(name, given[name], "give a known constant, or leave it out to have it recovered")
        if value < 0:
            raise InputError(
                f"{name} must be >= 0 where it is known, found {value:g}; leave it out to have it recovered."
            )
        out[name] = value
    if len(out) == len(KNOWABLE) and not any(out.values()):
        raise InputError("D_o and D_f must not both be zero, found 0 and 0; a step without noise has no density.")
    return out


@dataclass(frozen=True)
class Units:
    """A length s and a time T in which a head's numbers are of order one; Units() are the data's own, as in the paper.

    b = b' s / T, D_o = D_o' s^2 / T, D_f = D_f' s^(2 alpha) / T. Choosing s as the width of one step also removes most
    of the correlation between D_f and a learned alpha: D_f' is then the jump mass per step.
    """

    length: float = 1.0
    time: float = 1.0

    def __post_init__(self) -> None:
        for name in ("length", "time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"units.{name} must be positive and finite, found {value!r}; leave it out to use the data's."
                )

    @property
    def b(self) -> float:
        return self.length / self.time

    @property
    def D_o(self) -> float:
        return self.length**2 / self.time

    @property
    def log_length(self) -> float:
        return math.log(self.length)

    def D_f(self, alpha: Tensor) -> Tensor:
        """Unit of D_f; depends on alpha, which may be one per sample."""
        return (2.0 * self.log_length * alpha).exp() / self.time

    def noise(self, alpha: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """Units of D_o and D_f."""
        return self.D_o, self.D_f(alpha)


class Chain(NamedTuple):
    """Coefficients at n states and how they move with the predictors: slope (C, n), curvature (C, n).

    `D_f_alpha` is d D_f / d alpha at fixed eta (the unit of D_f depends on alpha); zero when alpha is fixed.
    Rows are those of `layout`.
    """

    coefficients: Coefficients
    slope: Tensor
    curvature: Tensor
    D_f_alpha: Tensor
    layout: Layout


class Head(nn.Module, ABC):
    """A trainable (b, D_o, D_f, alpha)(x). A head of your own needs `forward`, and a cell if it is not [0, 2 pi).

    For a state on a line set period = None and window = (low, high): where it is fitted; pairs that start elsewhere are
    left out of a fit, and forward continues the coefficients as it likes. With dim > 1 period is one number for all
    coordinates or one per coordinate, None for those on a line, and window has a pair per coordinate.

    forward(x) takes float64 states (n,) and returns Coefficients(b, D_o, D_f, alpha), float64 and (n,) each, in the
    units of the data, with D_o >= 0, D_f > 0 and 0 < alpha < 1; alpha is 0-d when it does not depend on x, and learned
    when it depends on a parameter. With dim > 1 states and b are (n, d), and D_o may be symmetric positive matrices
    (n, d, d). The coefficients must have the period.

    >>> class Pull(Head):  # b = -k sin(x - m)
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.k, self.m = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (1.0, 0.0))
    ...         self.raw = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    ...     def forward(self, x):
    ...         D_o, D_f = nn.functional.softplus(self.raw)
    ...         alpha = torch.tensor(0.6, dtype=torch.float64)
    ...         return Coefficients(-self.k * torch.sin(x - self.m), D_o.expand(x.shape), D_f.expand(x.shape), alpha)
    >>> head = Pull()
    >>> head.learns_alpha, head.flat().numel(), [tuple(j.shape) for j in head.jacobian(head.grid(3))]
    (False, 4, [(3, 4), (3, 4), (3, 4), (3, 4)])
    """

    period: Any = 2 * math.pi  # a number, or one per coordinate when dim > 1; None: a line
    origin: Any = 0.0
    window: Any = None  # on a line (low, high), or one such pair per coordinate when dim > 1
    dim: int = 1
    columns: int = 1  # more where a state is a row of numbers beside which the displacement has one
    clock_row: int | None = None  # the predictor that multiplies D_o and D_f, of a head with covariates
    units = Units()
    scale = Units()  # what one unit of x and of time of this head is in those of the data: see `in_units`
    tempering_spec = TemperingSpec()
    known: Mapping[str, float] = MappingProxyType({})  # D_o or D_f, where it is a given constant
    prior_center: Tensor | None = None  # (P,), where a prior of its weights is centered: where a fit has begun
    fixed: frozenset[str] = frozenset()  # names of parameters that Fisher scoring leaves as they are
    is_constant: Any = False  # True: no coefficient depends on x, so that one state stands for all

    @abstractmethod
    def forward(self, x: Tensor) -> Coefficients: ...

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> Coefficients: ...

    @property
    def without_jumps(self) -> bool:
        """Whether D_f is known to be zero."""
        return self.known.get("D_f") == 0.0

    @cached_property
    def alpha_spec(self) -> AlphaSpec:
        """How alpha is treated; read off `forward` unless a head sets it."""
        with torch.enable_grad():
            alpha = self(self.grid(16)).alpha
        mode = "fixed" if not alpha.requires_grad else "constant" if alpha.dim() == 0 else "function"
        return AlphaSpec(mode, float(alpha.detach().mean()))

    @cached_property
    def noise(self) -> Noise:
        """The form of D_o; read off `forward` unless a head sets it."""
        if self.dim == 1:
            return ISOTROPIC
        with torch.no_grad():
            return noise_of("isotropic" if self(self.grid(4)).D_o.dim() == 1 else "matrix", self.dim)

    @property
    def layout(self) -> Layout:
        """The rows of scores and Jacobians of this head."""
        return Layout(self.dim, self.noise, self.learns_alpha, self.tempering_spec.learned)

    @property
    def learns_alpha(self) -> bool:
        return self.alpha_spec.learned

    @property
    def tempered(self) -> bool:
        return self.tempering_spec.active

    def tempering_slope(self) -> Tensor:
        """d lam / d theta (P,); zero where it is not learned."""
        return torch.zeros_like(self.flat())

    def config(self) -> dict[str, Any]:
        """Plain constructor arguments: `build_head(head.config())` is the same head, untrained."""
        raise InputError(
            f"a head must be one of levytorch's own to be written to a file, found {type(self).__name__}; save its "
            "state_dict() and build it yourself."
        )

    def set_constants(
        self,
        b: float | Sequence[float],
        D_o: float | Tensor,
        D_f: float,
        alpha: float | None = None,
        tempering: float | None = None,
    ) -> None:
        """Start at these constants (in the data's units); a head without this starts where its parameters are.

        D_o: a number, or a matrix (d, d) for a head that has them.
        """

    def in_units(self, units: Units) -> Head:
        """The same system with x measured in units.length and time in units.time; it shares the parameters."""
        return HeadInUnits(self, units)

    def states(self, x: Tensor) -> Tensor:
        """x as a list of states: (n,), or (n, d) when dim > 1."""
        if self.dim > 1 and x.shape[-1:] != (self.dim,):
            raise InputError(
                f"x must have shape [..., {self.dim}] for a head of dimension {self.dim}, found {tuple(x.shape)}; put "
                "the coordinates on the last axis."
            )
        return x.to(torch.float64).reshape((-1,) if self.dim == 1 else (-1, self.dim))

    @property
    def periods(self) -> tuple[float | None, ...]:
        """One per coordinate; None for a coordinate on a line."""
        return tuple(self.period) if isinstance(self.period, tuple | list) else (self.period,) * self.dim

    @property
    def repeats(self) -> bool:
        """Whether every coordinate has a period."""
        return None not in self.periods

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The ends of the cell, or of the window on a line, one pair per coordinate."""
        origins = per_coordinate("origin", self.origin, self.dim)
        windows = [self.window] if self.dim == 1 else self.window or [None] * self.dim
        return [w if p is None else (o, o + p) for p, o, w in zip(self.periods, origins, windows)]

    @property
    def extents(self) -> list[tuple[float, float]]:
        """Origin and length, one pair per coordinate, of what sums over states are kept on, as if it were periodic.

        On a line the window with a margin: what is interpolated near one end must not see the other.
        """
        origins = per_coordinate("origin", self.origin, self.dim)
        return [
            (o, p) if p is not None else (low - _MARGIN * (high - low), (1 + 2 * _MARGIN) * (high - low))
            for p, o, (low, high) in zip(self.periods, origins, self.bounds)
        ]

    @property
    def cells(self) -> list[tuple[float, float | None]]:
        """Origin and period of every coordinate, as `group_states` folds them: None and zero on a line."""
        origins = per_coordinate("origin", self.origin, self.dim)
        return [(0.0, None) if p is None else (o, p) for p, o in zip(self.periods, origins)]

    @property
    def fitted_range(self) -> list[tuple[float, float]]:
        """Where pairs must start to be fitted: in the window on a line, anywhere on a circle."""
        return [(-math.inf, math.inf) if p is not None else ends for p, ends in zip(self.periods, self.bounds)]

    def clamped(self, x: Tensor) -> Tensor:
        """States where coefficients are the same: on a line those beyond the window are moved to its ends."""
        if self.repeats:
            return x
        if self.dim == 1:
            return x.clamp(*self.bounds[0])
        return torch.stack([column.clamp(*ends) for column, ends in zip(x.unbind(-1), self.fitted_range)], dim=-1)

    def grid(self, n: int) -> Tensor:
        """About n states spread evenly over the cell, or over the window on a line."""
        side = n if self.dim == 1 else max(2, round(n ** (1 / self.dim)))
        unit = (torch.arange(side, dtype=torch.float64, device=self.device) + 0.5) / side
        axes = [low + (high - low) * unit for low, high in self.bounds]
        if self.dim == 1:
            return axes[0]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.dim)

    @property
    def device(self) -> torch.device:
        """Where its parameters are; those of a fit come back to the CPU before anything is judged."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def flat(self) -> Tensor:
        """All parameters as one detached vector (P,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()])

    @torch.no_grad()
    def set_flat(self, theta: Tensor) -> None:
        """The inverse of `flat`."""
        offset = 0
        for p in self.parameters():
            p.copy_(theta[offset : offset + p.numel()].reshape(p.shape))
            offset += p.numel()

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d(b, D_o, D_f, alpha)(x) / d theta, each (n, P) (when dim > 1 b: (n, d, P), a matrix D_o: (n, d, d, P))."""
        names, shapes = zip(*[(name, p.shape) for name, p in self.named_parameters()])
        sizes = [s.numel() for s in shapes]

        def function(theta: Tensor) -> tuple[Tensor, ...]:
            pieces = torch.split(theta, sizes)
            values = {name: piece.reshape(shape) for name, piece, shape in zip(names, pieces, shapes)}
            c = functional_call(self, values, (x,))
            return c.b, c.D_o, c.D_f, c.alpha.expand_as(c.D_f)

        return jacrev(function)(self.flat())


class LinkOptions(TypedDict, total=False):
    """Options of all heads of our own."""

    positivity_link: str  # how D_o and D_f are kept positive: "softplus", "clamp" (the paper)
    alpha: AlphaSpec | None
    units: Units | None
    tempering: TemperingSpec | None
    known: Mapping[str, float] | None
    noise: str  # the form of D_o in several dimensions


class LinkedHead(Head):
    """A head of our own: coefficients are links of predictors, in units in which these are of order one."""

    def __init__(
        self,
        dim: int,
        positivity_link: str = "softplus",
        alpha: AlphaSpec | None = None,
        units: Units | None = None,
        tempering: TemperingSpec | None = None,
        known: Mapping[str, float] | None = None,
        noise: str = "isotropic",
    ) -> None:
        super().__init__()
        self.dim, self.known, self.noise = dim, dict(known or {}), noise_of(noise, dim)
        if "D_o" in self.known and self.noise is not ISOTROPIC:
            raise InputError(
                f'noise must be "isotropic" where D_o is a known constant, found {noise!r}; leave one of them out.'
            )
        self.alpha_spec, self.tempering_spec = alpha or AlphaSpec(), tempering or TemperingSpec()
        self.units, self.positivity_link = units or Units(), positivity_link

    @property
    def options(self) -> LinkOptions:
        """Those of another head with the same links."""
        return {
            "positivity_link": self.positivity_link,
            "alpha": self.alpha_spec,
            "units": self.units,
            "tempering": self.tempering_spec,
            "known": self.known,
            "noise": self.noise.name,
        }

    @property
    def links(self) -> list[Link]:
        """From predictors to the rows of b, D_o and D_f."""
        free, ordinary, jumps = Link("identity"), *(positivity(self.positivity_link, f) for f in (FLOOR_D_O, FLOOR_D_F))
        of_D_o = [ordinary if positive else free for positive in self.noise.positive(self.dim)]
        return [free] * self.dim + of_D_o + [jumps]

    def unit(self, name: str, alpha: Tensor) -> float | Tensor:
        """That of the rows of a coefficient."""
        return self.units.D_f(alpha) if name == "D_f" else self.units.D_o**self.noise.power

    def in_units(self, units: Units) -> Self:
        """The same head, with the same parameters, for x in units.length and time in units.time."""
        new, s, t = copy.copy(self), units.length, units.time
        new.units = Units(self.units.length / s, self.units.time / t)
        new.scale = Units(self.scale.length * s, self.scale.time * t)
        new.period, new.origin, new.window = (divided(v, s) for v in (self.period, self.origin, self.window))
        new.tempering_spec = replace(self.tempering_spec, value=self.tempering_spec.value * s)
        return new

    @property
    def n_linear(self) -> int:
        """Predictors of b, D_o and D_f."""
        return self.layout.row("D_f") + 1

    @property
    def n_predictors(self) -> int:
        return len(self.layout)

    def constant(self, name: str, alpha: Tensor) -> Tensor:
        """A known D_o or D_f, which is given in the units of the data, as the law of a step takes it."""
        if name == "D_o":
            return alpha.new_full((), self.known[name] / self.scale.D_o)
        return (self.known[name] / self.scale.D_f(alpha)).clamp(min=NO_JUMPS)

    def settings(self) -> dict[str, Any]:
        """The part of `config` that these heads share."""
        return {
            "positivity": self.positivity_link,
            "alpha_mode": self.alpha_spec.mode,
            "alpha": self.alpha_spec.value,
            **self.alpha_spec.link.config(),
            "length": self.units.length,
            "time": self.units.time,
            **self.tempering_spec.config(),
            **self.known,
            **({} if self.noise is ISOTROPIC else {"noise": self.noise.name}),
        }

    def start_at_order_one(self) -> None:
        self.set_constants(0.0, self.units.D_o, float(self.units.D_f(torch.tensor(self.alpha_spec.value))))

    @torch.no_grad()
    def set_constants(
        self,
        b: float | Sequence[float],
        D_o: float | Tensor,
        D_f: float,
        alpha: float | None = None,
        tempering: float | None = None,
    ) -> None:
        a = self.alpha_spec.value if alpha is None else alpha
        exponent = torch.tensor(a, dtype=torch.float64)
        drift = [v / self.units.b for v in per_coordinate("b", b, self.dim)]
        ordinary = self.noise.start(torch.as_tensor(D_o, dtype=torch.float64), self.dim)
        rows = [
            torch.tensor([float(v) for v in drift], dtype=torch.float64),
            ordinary / self.unit("D_o", exponent),
            torch.tensor([D_f / float(self.unit("D_f", exponent))], dtype=torch.float64),
        ]
        values = [link.inverse(v) for link, v in zip(self.links, torch.cat(rows).unbind())]
        eta = dict(zip(("b", "D_o", "D_f"), torch.stack(values).split([len(v) for v in rows])))
        lam = self.tempering_spec.value if tempering is None else tempering
        raw = tempering_inverse(lam, self.alpha_spec.value, self.units.length)
        more = {"alpha": self.alpha_spec.link.inverse(a), "tempering": raw}
        self.set_predictors(eta | {name: torch.tensor([v], dtype=torch.float64) for name, v in more.items()})

    def set_predictors(self, eta: Mapping[str, Tensor]) -> None:
        """Start at these constants: b (dim,), the rows of D_o, then D_f, alpha and tempering, (1,) each."""
        raise NotImplementedError

    def coefficients_of(self, eta: Mapping[str, Tensor]) -> Coefficients:
        """From the predictors at some states: of b as it is, of D_o and D_f (row by row) where they are not known, of
        alpha and tempering where these are learned.
        """
        b, shape = eta["b"], eta["b"].shape[:-1] if self.dim > 1 else eta["b"].shape
        alpha = b.new_full((), self.alpha_spec.value) if "alpha" not in eta else self.alpha_spec.link(eta["alpha"])
        found: dict[str, Tensor] = {}
        for name in KNOWABLE:
            if name in self.known:
                found[name] = self.constant(name, alpha).expand(1, *shape).contiguous()
            else:
                links, unit = self.links[self.layout.rows(name)], self.unit(name, alpha)
                found[name] = torch.stack([link(row) * unit for link, row in zip(links, eta[name])])
        lam = self.tempering_response(eta.get("tempering"))[0]
        D_o = self.noise.D_o(found["D_o"])
        return Coefficients(b * self.units.b, D_o, found["D_f"][0], alpha, lam, found["D_o"])

    def respond(self, eta: Tensor, eta_alpha: Tensor | None, eta_tempering: Tensor) -> Chain:
        """`chain` from the predictors themselves; that of tempering is the last parameter where it is learned."""
        d, units, layout, links = self.dim, self.units, self.layout, self.links
        slope = torch.zeros((len(layout), eta.shape[1]), dtype=eta.dtype, device=eta.device)
        curvature = torch.zeros_like(slope)
        alpha = torch.tensor(self.alpha_spec.value, dtype=eta.dtype, device=eta.device)
        if eta_alpha is not None:
            row = layout.row("alpha")
            alpha, slope[row], curvature[row] = self.alpha_spec.link.derivatives(eta_alpha)
        slope[:d] = units.b
        found: dict[str, Tensor] = {}
        for name in KNOWABLE:
            rows = layout.rows(name)
            if name in self.known:
                found[name] = self.constant(name, alpha).expand_as(eta[rows]).contiguous()
                continue
            unit, values = self.unit(name, alpha), []
            for row in range(rows.start, rows.stop):
                value, first, second = links[row].derivatives(eta[row])
                values.append(value * unit)
                torch.mul(first, unit, out=slope[row])
                torch.mul(second, unit, out=curvature[row])
            found[name] = torch.stack(values) if len(values) > 1 else values[0].unsqueeze(0)
        D_o, D_f = self.noise.D_o(found["D_o"]), found["D_f"][0]
        D_f_alpha = slope.new_zeros(())
        if eta_alpha is not None:
            log_length = -self.scale.log_length if "D_f" in self.known else units.log_length
            D_f_alpha = 2.0 * log_length * D_f
        b = eta[0] * units.b if d == 1 else (eta[:d] * units.b).T.contiguous()
        tempering, slope_t, curve_t = self.tempering_response(eta_tempering)
        if self.tempering_spec.learned:
            slope[-1], curvature[-1] = slope_t, curve_t
        at = Coefficients(b, D_o, D_f, alpha, tempering, found["D_o"])
        return Chain(at, slope, curvature, D_f_alpha, layout)

    def tempering_response(self, raw: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """lam, and its derivatives in the predictor where it is learned."""
        if raw is not None and self.tempering_spec.learned:
            return tempering_link(raw, self.alpha_spec.value, self.units.length)
        if not self.tempered:
            return NO_TEMPERING, NO_TEMPERING, NO_TEMPERING
        zero = next(self.parameters()).new_zeros(())
        return zero + self.tempering_spec.value, zero, zero


class HeadInUnits(Head):
    """A head of the user's own, in the units of the data, evaluated for x and time in other units."""

    def __init__(self, head: Head, units: Units) -> None:
        super().__init__()
        self.of_data, self.scale, s = head, units, units.length
        self.period, self.origin, self.window = (divided(v, s) for v in (head.period, head.origin, head.window))
        self.dim, self.columns, self.is_constant = head.dim, head.columns, head.is_constant
        self.known, self.tempering_spec, self.prior_center = dict(head.known), head.tempering_spec, head.prior_center
        self.alpha_spec = head.alpha_spec
        if hasattr(head, "periodic"):
            self.periodic = head.periodic

    def forward(self, x: Tensor) -> Coefficients:
        unit = self.scale
        c = self.of_data(x * unit.length)
        D_f = c.D_f / unit.D_f(c.alpha)
        lam = NO_TEMPERING if c.tempering is NO_TEMPERING else c.tempering * unit.length
        return Coefficients(c.b / unit.b, c.D_o / unit.D_o, D_f, c.alpha, lam)

    def tempering_slope(self) -> Tensor:
        return self.of_data.tempering_slope() * self.scale.length


def divided(value: Any, by: float) -> Any:
    """A number, None, or numbers in tuples and lists, each divided."""
    if value is None:
        return None
    return type(value)(divided(v, by) for v in value) if isinstance(value, (tuple, list)) else value / by


def check_head(head: Head) -> None:
    """Refuse a head that breaks the contract of `Head`, before a fit is started with it."""
    if next(head.parameters(), None) is None:
        raise InputError(f"a head must have parameters, found none in {type(head).__name__}; make some nn.Parameter.")
    x = head.grid(16)
    with torch.no_grad():
        c = head(x)
    if not isinstance(c, Coefficients):
        raise InputError(
            f"forward(x) must return Coefficients(b, D_o, D_f, alpha), found {type(c).__name__}; return these."
        )
    not_negative = ("finite and >= 0", lambda t: t >= 0)
    conditions: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "b": ("finite", torch.isfinite),
        "D_o": not_negative,
        "D_f": ("finite and > 0", lambda t: t > 0),
        "alpha": ("within (0, 1)", lambda t: (t > 0) & (t < 1)),
        "tempering": not_negative,
    }
    matrix = head.dim > 1 and c.D_o.dim() > 1
    for name, value in (c._asdict() | {"tempering": c.tempering}).items():
        words, condition = conditions["b" if matrix and name == "D_o" else name]
        shape = tuple(x.shape if name == "b" else x.shape[:1])
        shape += (head.dim, head.dim) if matrix and name == "D_o" else ()
        if value.dtype != torch.float64:
            raise InputError(f"{name} of a head must be float64, found {value.dtype}; call head.double() first.")
        if tuple(value.shape) != shape and not (name in ("alpha", "tempering") and value.dim() == 0):
            raise InputError(
                f"{name} of a head must have shape {shape} at {tuple(x.shape)} states, found "
                f"{tuple(value.shape)}; return one value per state."
            )
        good = torch.isfinite(value) & condition(value)
        if not bool(good.all()):
            raise InputError(
                f"{name} of a head must be {words}, found {float(value[~good].flatten()[0]):.3g}; correct forward, "
                "or the start of its parameters."
            )
    if matrix:
        from levytorch.law.several import check_matrix

        check_matrix(c.D_o)
