"""A head on a line as one on a cell: the window, and a gap in which one end goes over into the other.

The exact law of a step needs a period. What leaves the window by a jump meets coefficients that are not its own, but
only for the rest of that step; what starts in it and stays, or leaves it a little, meets its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Coefficients, Head
from levytorch.coefficients.network import NetworkHead
from levytorch.coefficients.spline import SplineHead
from levytorch.errors import InputError
from levytorch.spaces.basis import Basis

_GAP = 0.4  # of the window
_BEND = 0.25  # of the gap: so far functions go on along their tangents, before they turn into a constant
_SMALL = 1e-4  # of the window, for slopes at its ends


class Padding(NamedTuple):
    """A window as a cell. period, origin: of the cell, in whose middle the window lies; gap: the rest of it."""

    period: float
    origin: float
    gap: float

    @classmethod
    def of(cls, window: tuple[float, float]) -> Padding:
        length = window[1] - window[0]
        gap = _GAP * length
        return cls(length + gap, window[0] - 0.5 * gap, gap)

    def beyond(self, distance: Tensor) -> Tensor:
        """How far functions are followed at such distances from an end: a part of the gap at most."""
        return _BEND * self.gap * torch.tanh(distance / (_BEND * self.gap))

    def share(self, distance: Tensor) -> Tensor:
        """Of the other end, at such distances from the high one: from 0 to 1, flat at both."""
        s = (distance / self.gap).clamp(0.0, 1.0)
        return s**3 * (10 - 15 * s + 6 * s**2)


class PaddedBasis:
    """The functions of another basis on its window, periodic with a gap: their parameters mean the same."""

    def __init__(self, own: Basis, window: tuple[float, float]) -> None:
        self.own, (self.low, self.high), self.padding = own, window, Padding.of(window)
        ends = torch.tensor(window, dtype=torch.float64)
        inward = torch.tensor([1.0, -1.0], dtype=torch.float64) * (_SMALL * (self.high - self.low))
        near, far = own.rows(ends + inward), own.rows(ends + 2 * inward)
        self.ends = own.rows(ends)  # (K, 2)
        self.apart = getattr(own, "apart", slice(0))
        self.slopes = (4 * near - far - 3 * self.ends) / (2 * inward)

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.own.size

    def harmonic_numbers(self) -> Tensor:
        """Those of the functions on the window."""
        return self.own.harmonic_numbers()

    def in_units(self, length: float) -> PaddedBasis:
        """The same functions of states that are measured in units of this length."""
        return PaddedBasis(self.own.in_units(length), (self.low / length, self.high / length))

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (n,) -> (size, n)."""
        padding = self.padding
        at = self.low + torch.remainder(x - self.low, padding.period)
        rows = self.own.rows(at.clamp(max=self.high))
        beyond = at - self.high  # into the gap, from the high end
        outside = beyond > 0
        if self.size == 1 or not bool(outside.any()):
            return rows
        beyond = beyond[outside]
        back = padding.gap - beyond  # and from the low end of the next window
        above = self.ends[:, 1:] + self.slopes[:, 1:] * padding.beyond(beyond)
        below = self.ends[:, :1] - self.slopes[:, :1] * padding.beyond(back)
        share = padding.share(beyond)
        rows[:, outside] = (1 - share) * above + share * below
        return rows


class PaddedHead(LinearHead):
    """A spline or polynomial head with a period; it shares the parameters, and has the same coefficients on the window.

    What is asked of the window (`grid`, `bounds`) is that of the line.
    """

    def __init__(self, head: SplineHead) -> None:
        basis = PaddedBasis(head.basis, head.window)
        drift = basis if head.drift is head.basis else PaddedBasis(head.drift, head.window)
        alpha = None if head.alpha_basis is None else PaddedBasis(head.alpha_basis, head.window)
        super().__init__(basis, alpha, 1, drift, **head.options)
        self.n_basis, self.n_basis_alpha = head.n_basis, head.n_basis_alpha
        self.period, self.origin = basis.padding.period, basis.padding.origin
        self.window = head.window
        self.scale = head.scale
        self.theta = head.theta

    @property
    def bounds(self) -> list[tuple[float, float]]:
        return [self.window]

    def config(self) -> dict[str, Any]:
        raise InputError(
            "a head to be written must not be padded, found one that stands for a head on a line; write that one."
        )


class PaddedNetwork(Head):
    """A network on a line with a period; it shares the parameters, and has the same coefficients on the window."""

    def __init__(self, head: NetworkHead) -> None:
        super().__init__()
        self.line, padding = head, Padding.of(head.window)
        self.period, self.origin, self.window = padding.period, padding.origin, head.window
        self.units, self.scale, self.known = head.units, head.scale, head.known
        self.alpha_spec, self.tempering_spec = head.alpha_spec, head.tempering_spec

    @property
    def bounds(self) -> list[tuple[float, float]]:
        return [self.window]

    def tempering_slope(self) -> Tensor:
        return self.line.tempering_slope()

    def forward(self, x: Tensor) -> Coefficients:
        head = self.line
        rows = PaddedBasis(_Predictors(head), head.window).rows(self.states(x))
        eta = head.by_name(rows[head.output_rows].reshape(-1, *x.shape))
        if head.alpha_spec.mode == "constant":
            eta["alpha"] = head.raw_alpha
        if head.tempering_spec.learned:
            eta["tempering"] = head.raw_tempering
        return head.coefficients_of(eta)


class _Predictors:
    """All predictors of a network, as if they were the functions of one basis."""

    def __init__(self, head: NetworkHead) -> None:
        self.head = head

    @property
    def size(self) -> int:
        return self.head.n_predictors

    def rows(self, x: Tensor) -> Tensor:
        return self.head.eta(x)

    def harmonic_numbers(self) -> Tensor:
        return torch.zeros(self.size, dtype=torch.float64)

    def in_units(self, length: float) -> _Predictors:
        raise NotImplementedError


def on_a_cell(head: Any) -> Any:
    """The head itself where it has a period; that of a line with a padded window."""
    if getattr(head, "period", None) is not None or head.dim > 1:
        return head
    if isinstance(head, SplineHead):
        return PaddedHead(head)
    if isinstance(head, NetworkHead):
        return PaddedNetwork(head)
    return head.padded() if hasattr(head, "padded") else head
