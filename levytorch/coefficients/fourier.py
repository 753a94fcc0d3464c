"""Linear heads: every coefficient is a link of a linear predictor eta = Phi(x) theta; Fourier heads (equation 3.3).

The linearity is what Fisher scoring lives on: scores in the coefficients chain to theta through one diagonal factor and
the basis. Parts of theta, in order: b, D_o, D_f, then alpha (none, 1 or K_alpha), then tempering (none or 1). In d > 1
dimensions b has d parts and the basis consists of products of one-dimensional functions. The first function of a basis
is the constant 1. A D_o or D_f that is known has a predictor without functions: its part of theta is empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from levytorch.coefficients.head import KNOWABLE, Chain, Coefficients, Head, LinkedHead, LinkOptions, Units
from levytorch.coefficients.links import AlphaSpec
from levytorch.spaces.basis import Basis, FourierBasis, NoBasis, fourier_basis, per_coordinate

_CONSTANT = FourierBasis(1)  # of a learned tempering


class LinearHead(LinkedHead):
    """What has a basis for each coefficient; `basis` is that of D_o and D_f, `drift` that of b where it is another."""

    n_basis: int
    n_basis_alpha: int

    def __init__(
        self,
        basis: Basis,
        alpha_basis: Basis | None,
        dim: int = 1,
        drift: Basis | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        super().__init__(dim, **options)
        self.basis, self.drift, self.alpha_basis = basis, drift or basis, alpha_basis
        self.theta = nn.Parameter(torch.zeros(sum(self.sizes), dtype=torch.float64))
        self.start_at_order_one()

    def in_units(self, units: Units) -> Self:
        new = super().in_units(units)
        new.basis = self.basis.in_units(units.length)
        new.drift = new.basis if self.drift is self.basis else self.drift.in_units(units.length)
        new.alpha_basis = None if self.alpha_basis is None else self.alpha_basis.in_units(units.length)
        return new

    # -- structure ----------------------------------------------------------------------------------------------------
    @property
    def sizes(self) -> list[int]:
        """Number of parameters of each predictor."""
        return [basis.size for basis in self.bases]

    @property
    def bases(self) -> list[Basis]:
        """The basis of each predictor."""
        of_name: dict[str, Basis] = {"b": self.drift, "D_o": self.basis, "D_f": self.basis, "tempering": _CONSTANT}
        of_name |= {name: NoBasis() for name in self.known}
        if self.alpha_basis is not None:
            of_name["alpha"] = self.alpha_basis
        return [of_name[name] for name in self.layout.names if name in of_name]

    @property
    def starts(self) -> list[int]:
        """Where the part of each predictor begins in theta, and where the last one ends."""
        return [0, *itertools.accumulate(self.sizes)]

    @property
    def is_constant(self) -> bool:
        return max(self.sizes) == 1

    def part(self, row: int) -> slice:
        """Which parameters a predictor depends on."""
        return slice(self.starts[row], self.starts[row + 1])

    def most_states(self, numbers: int) -> int:
        """How many states a design is made for at once, where it may hold about so many numbers."""
        return max(1024, numbers // max(self.sizes))

    def gathered(self, per_state: Tensor, design: Any) -> Tensor:
        """The gradient in the parameters, (P,), of sums over states of numbers (C, n) times the predictors."""
        return torch.cat([per_state[i] @ design[i].T for i in range(len(self.sizes))])

    def gradient_of(self, function: Callable[[Head], Tensor]) -> tuple[float, Tensor]:
        """The value and the gradient (P,) of a function of the head."""
        self.zero_grad(set_to_none=True)
        with torch.enable_grad():
            value = function(self)
            (gradient,) = torch.autograd.grad(value, [self.theta])
        return float(value.detach()), gradient

    def in_coordinates(self, gradient: Tensor) -> Tensor:
        """What `gathered` and `gradient_of` give, in the coordinates of theta: for a linear head it is in them."""
        return gradient

    def set_predictors(self, eta: Mapping[str, Tensor]) -> None:
        self.theta.zero_()
        for row, value in enumerate(torch.cat([eta["b"], eta["D_o"], eta["D_f"]])):
            if self.sizes[row]:
                self.theta[self.starts[row]] = value
        if self.alpha_basis is not None:
            self.theta[self.starts[self.n_linear]] = eta["alpha"][0]
        if self.tempering_spec.learned:
            self.theta[-1] = eta["tempering"][0]

    # -- evaluation ---------------------------------------------------------------------------------------------------
    def forward(self, x: Tensor) -> Coefficients:
        return self.of_design(self.design(self.states(x)), x.shape if self.dim == 1 else x.shape[:-1])

    def of_design(self, design: Sequence[Tensor], shape: Sequence[int]) -> Coefficients:
        """The coefficients at states of this shape, from the basis rows of each predictor there."""
        d = self.dim
        rows, alpha = self.predictors(self.theta, design)
        of_b = rows[0].reshape(*shape) if d == 1 else rows[:d].T.reshape(*shape, d)
        eta = {"b": of_b, "tempering": self.theta[-1]}
        for name in KNOWABLE:
            part = self.layout.rows(name)
            eta[name] = rows[part].reshape(part.stop - part.start, *shape)
        if alpha is not None:
            eta["alpha"] = alpha.reshape(*shape) if alpha.dim() else alpha
        return self.coefficients_of(eta)

    def tempering_slope(self) -> Tensor:
        out = torch.zeros_like(self.theta.detach())
        if self.tempering_spec.learned:
            out[-1] = self.tempering_response(self.theta.detach()[-1])[1]
        return out

    def design(self, x: Tensor) -> list[Tensor]:
        """Basis rows (K_c, n) of each predictor; predictors with the same basis share one tensor."""
        phi = self.basis.rows(x)
        drift = phi if self.drift is self.basis else self.drift.rows(x)
        of_name = {"b": drift, "D_o": phi, "D_f": phi, "tempering": phi[:1]} | dict.fromkeys(self.known, phi[:0])
        if self.alpha_basis is not None:
            of_name["alpha"] = self._alpha_rows(x, phi)
        return [of_name[name] for name in self.layout.names if name in of_name]

    def _alpha_rows(self, x: Tensor, phi: Tensor) -> Tensor:
        assert self.alpha_basis is not None
        return phi[:1] if self.alpha_basis.size == 1 else self.alpha_basis.rows(x)

    def chain(self, theta: Tensor, design: Sequence[Tensor], row: int | None = None, change: Any = 0.0) -> Chain:
        """Coefficients, d c / d eta and d2 c / d eta2 at the states behind `design`, without autograd.

        row, change: with this predictor larger by so much.
        """
        eta, eta_alpha = self.predictors(theta, design)
        last = theta[-1]
        if row is not None and row < self.n_linear:
            eta = eta.clone()
            eta[row] += change
        elif row == self.n_linear and eta_alpha is not None:
            eta_alpha = eta_alpha + change
        elif row is not None:
            last = last + change
        return self.respond(eta, eta_alpha, last)

    def predictors(self, theta: Tensor, design: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """eta of b, D_o and D_f (n_linear, n), and that of alpha: None, 0-d or (n,)."""
        m, at = self.n_linear, self.starts
        if self.drift is self.basis and not self.known:
            eta = theta[: at[m]].reshape(m, -1) @ design[0]
        else:
            eta = torch.stack([theta[at[i] : at[i + 1]] @ design[i] for i in range(m)])
        if self.alpha_basis is None:
            return eta, None
        raw = theta[at[m] : at[m + 1]]
        return eta, raw[0] if self.alpha_basis.size == 1 else raw @ design[m]

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        flat = self.states(x)
        design = self.design(flat)
        chain = self.chain(self.theta.detach(), design)
        layout, m, P = self.layout, self.n_linear, self.theta.numel()
        out = torch.zeros((m + 1, flat.shape[0], P), dtype=torch.float64)
        for row in range(m):
            out[row, :, self.part(row)] = (chain.slope[row] * design[row]).T
        if self.alpha_basis is not None:
            part = self.part(m)
            out[m, :, part] = (chain.slope[m] * design[m]).T
            out[m - 1, :, part] += (chain.D_f_alpha * chain.slope[m] * design[m]).T
        D_o = layout.noise.jacobian(layout.noise_rows(chain.coefficients), out[layout.rows("D_o")])
        return out[0] if self.dim == 1 else out[: self.dim].transpose(0, 1), D_o, out[m - 1], out[m]


def linear(head: Head) -> LinearHead:
    """The head itself, where it is known to be linear."""
    assert isinstance(head, LinearHead)
    return head


class CellHead(LinearHead):
    """Functions with a period, `n_basis` per coefficient; 1 gives constants."""

    name: str
    usual_alpha: int  # functions of alpha(x)

    def __init__(
        self,
        n_basis: int = 21,
        period: float | Sequence[float] = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        n_basis_alpha: int | None = None,
        dim: int = 1,
        truncation: str = "total",
        **options: Unpack[LinkOptions],
    ) -> None:
        def basis(n: int) -> Basis:
            return self.functions(n, dim, period, origin, truncation)

        n_alpha = alpha_functions(options.get("alpha"), n_basis_alpha or self.usual_alpha)
        super().__init__(basis(n_basis), basis(n_alpha) if n_alpha else None, dim, **options)
        self.n_basis, self.n_basis_alpha, self.truncation = n_basis, n_alpha, truncation
        cells = (per_coordinate("period", period, dim), per_coordinate("origin", origin, dim))
        self.period, self.origin = (values[0] if dim == 1 else values for values in cells)

    def functions(self, n: int, dim: int, period: Any, origin: Any, truncation: str) -> Basis:
        """n functions per coordinate."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        more = {} if self.dim == 1 else {"dim": self.dim, "truncation": self.truncation}
        own = {"name": self.name, "n_basis": self.n_basis, "n_basis_alpha": self.n_basis_alpha or self.usual_alpha}
        return more | own | {"period": self.period, "origin": self.origin} | self.settings()


class FourierHead(CellHead):
    """K basis functions per coefficient on a cell; K = 1 gives constants."""

    name, usual_alpha = "fourier", 3

    def functions(self, n: int, dim: int, period: Any, origin: Any, truncation: str) -> Basis:
        return fourier_basis(dim, n, period, origin, truncation)

    def _alpha_rows(self, x: Tensor, phi: Tensor) -> Tensor:
        assert self.alpha_basis is not None
        nested = self.alpha_basis.size == 1 or (self.dim == 1 and self.alpha_basis.size <= self.n_basis)
        return phi[: self.alpha_basis.size] if nested else self.alpha_basis.rows(x)


def alpha_functions(alpha: AlphaSpec | None, n_basis_alpha: int) -> int:
    """How many functions alpha takes."""
    return {"fixed": 0, "constant": 1, "function": n_basis_alpha}[(alpha or AlphaSpec()).mode]
