"""Which numbers a head gives at a state, in which order, and what form D_o has among them.

Scores, Jacobians and predictors are tables with one row per number: those of b (one per coordinate), of D_o, D_f, then
alpha and the tempering where they are learned. `Layout` knows which rows belong to which coefficient, so that nobody
else counts them. D_o has one of three forms in d > 1 dimensions:

    "isotropic"   D_o times the identity, one row
    "diagonal"    a variance per coordinate, d rows
    "matrix"      D_o = L L^T with a lower-triangular L, whose d (d + 1) / 2 entries are the rows

The rows of a matrix are those of L and not of D_o: predictors of its diagonal are kept positive by a link, those below
it are free, so that D_o is positive whatever the parameters are, and every row depends on one predictor only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import choice

NO_TEMPERING = torch.zeros((), dtype=torch.float64)


class _Four(NamedTuple):
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor


class Coefficients(_Four):
    """b, D_o, D_f at n states, shape (n,); alpha is 0-d when it does not depend on the state.

    In d > 1 dimensions b is a vector at each state, (n, d), and D_o may be a matrix, (n, d, d). The tempering, one
    number (0-d), stands beside the four, and so do the rows (k, n) of D_o where a head is made of them (`Layout`).
    """

    tempering: Tensor
    noise_rows: Tensor | None

    def __new__(
        cls,
        b: Tensor,
        D_o: Tensor,
        D_f: Tensor,
        alpha: Tensor,
        tempering: Tensor = NO_TEMPERING,
        noise_rows: Tensor | None = None,
    ) -> Coefficients:
        self = super().__new__(cls, b, D_o, D_f, alpha)
        self.tempering, self.noise_rows = tempering, noise_rows
        return self

    def each(self, function: Callable[[Tensor], Tensor]) -> Coefficients:
        """The function of each of the four."""
        b, D_o, D_f, alpha = (function(v) for v in self)
        return Coefficients(b, D_o, D_f, alpha, self.tempering)

    def _replace(self, **changes: Any) -> Coefficients:
        return Coefficients(**(self._asdict() | {"tempering": self.tempering} | changes))


class Noise(ABC):
    """A form of D_o. Rows are (k, ...) with one number per state behind, D_o is (...) or (..., d, d)."""

    name: str
    power = 1.0  # rows are counted in the unit of D_o to this power

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what another process is sent, is the one object of this form."""
        return _named, (self.name,)

    @abstractmethod
    def positive(self, dim: int) -> list[bool]:
        """Of every row, whether it is kept positive."""

    @abstractmethod
    def labels(self, dim: int) -> list[tuple[str, tuple[int, ...]]]:
        """Name and index of every number of D_o that is reported."""

    @abstractmethod
    def D_o(self, rows: Tensor) -> Tensor:
        """D_o from its rows."""

    @abstractmethod
    def rows(self, D_o: Tensor) -> Tensor:
        """The rows of a D_o."""

    @abstractmethod
    def scores(self, by_D_o: Tensor, rows: Tensor) -> Tensor:
        """Derivatives in the rows, from those in D_o (which are symmetric for a matrix)."""

    @abstractmethod
    def jacobian(self, rows: Tensor, of_rows: Tensor) -> Tensor:
        """d D_o / d theta, (n, P) or (n, d, d, P), from d rows / d theta, (k, n, P)."""

    @abstractmethod
    def jacobian_of_rows(self, rows: Tensor, of_D_o: Tensor) -> Tensor:
        """The inverse of `jacobian`."""

    @abstractmethod
    def of_identity(self, value: Tensor, dim: int) -> Tensor:
        """Rows (k, ...) of value (...) times the identity."""

    def start(self, D_o: Tensor, dim: int) -> Tensor:
        """Rows (k, ...) from numbers (...) or matrices (..., d, d)."""
        is_matrix = self is not ISOTROPIC and D_o.dim() > 1 and D_o.shape[-2:] == (dim, dim)
        return self.rows(D_o) if is_matrix else self.of_identity(D_o, dim)


class Isotropic(Noise):
    name = "isotropic"

    def positive(self, dim: int) -> list[bool]:
        return [True]

    def labels(self, dim: int) -> list[tuple[str, tuple[int, ...]]]:
        return [("D_o", ())]

    def D_o(self, rows: Tensor) -> Tensor:
        return rows[0]

    def rows(self, D_o: Tensor) -> Tensor:
        return D_o.unsqueeze(0)

    def scores(self, by_D_o: Tensor, rows: Tensor) -> Tensor:
        return by_D_o.unsqueeze(0)

    def jacobian(self, rows: Tensor, of_rows: Tensor) -> Tensor:
        return of_rows[0]

    def jacobian_of_rows(self, rows: Tensor, of_D_o: Tensor) -> Tensor:
        return of_D_o.unsqueeze(0)

    def of_identity(self, value: Tensor, dim: int) -> Tensor:
        return value.unsqueeze(0)


class Diagonal(Noise):
    name = "diagonal"

    def positive(self, dim: int) -> list[bool]:
        return [True] * dim

    def labels(self, dim: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(f"D_o_{i + 1}{i + 1}", (i, i)) for i in range(dim)]

    def D_o(self, rows: Tensor) -> Tensor:
        return torch.diag_embed(rows.movedim(0, -1))

    def rows(self, D_o: Tensor) -> Tensor:
        return D_o.diagonal(dim1=-2, dim2=-1).movedim(-1, 0)

    def scores(self, by_D_o: Tensor, rows: Tensor) -> Tensor:
        return self.rows(by_D_o)

    def jacobian(self, rows: Tensor, of_rows: Tensor) -> Tensor:
        return torch.diag_embed(of_rows.permute(1, 2, 0)).permute(0, 2, 3, 1)

    def jacobian_of_rows(self, rows: Tensor, of_D_o: Tensor) -> Tensor:
        return of_D_o.diagonal(dim1=1, dim2=2).permute(2, 0, 1)

    def of_identity(self, value: Tensor, dim: int) -> Tensor:
        return value.unsqueeze(0).expand(dim, *value.shape)


class Triangular(Noise):
    name = "matrix"
    power = 0.5

    @staticmethod
    def _places(dim: int) -> Tensor:
        return torch.tril_indices(dim, dim)

    @staticmethod
    def _dim(n_rows: int) -> int:
        return round((2 * n_rows + 0.25) ** 0.5 - 0.5)

    def positive(self, dim: int) -> list[bool]:
        i, j = self._places(dim)
        return (i == j).tolist()

    def labels(self, dim: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(f"D_o_{j + 1}{i + 1}", (j, i)) for i, j in self._places(dim).T.tolist()]

    def factor(self, rows: Tensor) -> Tensor:
        """L, (..., d, d)."""
        dim = self._dim(len(rows))
        i, j = self._places(dim)
        place = rows.new_zeros((len(rows), dim * dim))
        place[torch.arange(len(rows)), i * dim + j] = 1.0
        return (rows.movedim(0, -1) @ place).unflatten(-1, (dim, dim))

    def _of_factor(self, L: Tensor) -> Tensor:
        i, j = self._places(L.shape[-1])
        return L[..., i, j].movedim(-1, 0)

    def D_o(self, rows: Tensor) -> Tensor:
        L = self.factor(rows)
        return L @ L.transpose(-1, -2)

    def rows(self, D_o: Tensor) -> Tensor:
        L, failed = torch.linalg.cholesky_ex(D_o)
        if bool(failed.any()):  # a singular matrix: a triangular factor from any other one
            values, Q = torch.linalg.eigh(D_o)
            R = torch.linalg.qr((Q * values.clamp_min(0.0).sqrt().unsqueeze(-2)).transpose(-1, -2))[1]
            sign = torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(R.dtype)
            L = torch.where(failed[..., None, None] > 0, (R * sign.unsqueeze(-1)).transpose(-1, -2), L)
        return self._of_factor(L)

    def scores(self, by_D_o: Tensor, rows: Tensor) -> Tensor:
        return self._of_factor(2.0 * by_D_o @ self.factor(rows))

    def jacobian(self, rows: Tensor, of_rows: Tensor) -> Tensor:
        half = torch.einsum("nijp,nkj->nikp", self.factor(of_rows).movedim(1, -1), self.factor(rows))
        return half + half.transpose(1, 2)

    def jacobian_of_rows(self, rows: Tensor, of_D_o: Tensor) -> Tensor:
        inverse = torch.linalg.inv(self.factor(rows))
        middle = torch.einsum("nij,njkp,nlk->nilp", inverse, of_D_o, inverse)
        lower = torch.tril(torch.ones(middle.shape[1:3], dtype=middle.dtype))
        lower = lower - 0.5 * torch.eye(len(lower), dtype=middle.dtype)
        moved = torch.einsum("nij,njkp->nikp", self.factor(rows), middle * lower[:, :, None])
        i, j = self._places(moved.shape[1])
        return moved[:, i, j].movedim(1, 0)

    def of_identity(self, value: Tensor, dim: int) -> Tensor:
        diagonal = torch.tensor(self.positive(dim)).reshape(-1, *[1] * value.dim())
        return torch.where(diagonal, value.sqrt(), 0.0)


ISOTROPIC = Isotropic()
NOISES: dict[str, Noise] = {noise.name: noise for noise in (ISOTROPIC, Diagonal(), Triangular())}


def _named(name: str) -> Noise:
    return NOISES[name]


def noise_of(name: Any, dim: int) -> Noise:
    """A form of D_o by name; of one coordinate there is one form only."""
    return NOISES[choice("noise", name, tuple(NOISES))] if dim > 1 else ISOTROPIC


def scalar_size(D_o: Tensor, n_states_axes: int = 1) -> Tensor:
    """D_o itself, or the mean variance per coordinate of matrices: what is compared with a unit of D_o."""
    return D_o if D_o.dim() <= n_states_axes else D_o.diagonal(dim1=-2, dim2=-1).mean(-1)


def in_one_form(found: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two D_o at the same states, (...) or (..., d, d): both as matrices where one of them is."""

    def like(D_o: Tensor, dim: int) -> Tensor:
        return D_o[..., None, None] * torch.eye(dim, dtype=D_o.dtype)

    if found.dim() == other.dim() + 2:
        return found, like(other, found.shape[-1])
    return (like(found, other.shape[-1]), other) if other.dim() == found.dim() + 2 else (found, other)


@dataclass(frozen=True)
class Layout:
    """The rows of a head. alpha, tempering: whether they are learned; clock: whether covariates multiply D_o and D_f.

    The row of a clock is the logarithm of the number by which it multiplies them.
    """

    dim: int = 1
    noise: Noise = ISOTROPIC
    alpha: bool = False
    tempering: bool = False
    clock: bool = False

    @property
    def names(self) -> list[str]:
        """The coefficient of every row."""
        ordinary = ["D_o"] * len(self.noise.positive(self.dim))
        learned = ["alpha"] * self.alpha + ["clock"] * self.clock + ["tempering"] * self.tempering
        return ["b"] * self.dim + ordinary + ["D_f"] + learned

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, name: str) -> slice:
        """Those of a coefficient."""
        names = self.names
        first = names.index(name)
        return slice(first, first + names.count(name))

    def row(self, name: str) -> int:
        """The first of a coefficient."""
        return self.names.index(name)

    def positive(self, name: str) -> list[int]:
        """Rows of D_o or D_f that are kept positive."""
        if name != "D_o":
            return [self.row(name)]
        return [self.row(name) + k for k, positive in enumerate(self.noise.positive(self.dim)) if positive]

    def numbers(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        """Name and index, behind that of the state, of every number of b, D_o or D_f that is reported."""
        if name == "D_o":
            return self.noise.labels(self.dim)
        return [(f"b_{i + 1}", (i,)) for i in range(self.dim)] if name == "b" and self.dim > 1 else [(name, ())]

    def noise_rows(self, c: Coefficients) -> Tensor:
        """The rows of D_o (k, n) at n states."""
        return self.noise.rows(c.D_o) if c.noise_rows is None else c.noise_rows

    def scores(self, step: Any, c: Coefficients) -> Tensor:
        """d log p / d row of every pair, (C, n), from a `StepScore` at the coefficients c."""
        b = step.b.T if self.dim > 1 else step.b.unsqueeze(0)
        ordinary = self.noise.scores(step.D_o, step.D_o if self.noise is ISOTROPIC else self.noise_rows(c))
        more = [step.D_f] + [step.alpha] * self.alpha
        if self.clock:
            more.append(self._by_clock(ordinary, step.D_f, c))
        return torch.cat([b, ordinary, torch.stack(more + [step.tempering] * self.tempering)])

    def _by_clock(self, by_rows: Tensor, by_D_f: Tensor, c: Coefficients) -> Tensor:
        """Derivatives (n,) in the logarithm of a clock, from those in the rows of D_o (k, n) and in D_f."""
        return self.noise.power * (by_rows * self.noise_rows(c)).sum(0) + by_D_f * c.D_f

    def jacobian(self, c: Coefficients, parts: tuple[Tensor, ...], tempering: Tensor) -> Tensor:
        """d rows / d theta at n states, (C, n, P), from those of b, D_o, D_f and alpha (`Head.jacobian`)."""
        b, D_o, D_f, alpha = (J.detach() for J in parts)
        ordinary = self.noise.jacobian_of_rows(D_f if self.noise is ISOTROPIC else self.noise_rows(c), D_o)
        more = [D_f] + [alpha] * self.alpha + [tempering.expand_as(D_f)] * self.tempering
        return torch.cat([b.movedim(1, 0) if self.dim > 1 else b.unsqueeze(0), ordinary, torch.stack(more)])

    def with_slopes(self, c: Coefficients, n: int, function: Callable[[Coefficients], Any]) -> list[Any]:
        """Functions (n,) of coefficients at n states, each with its derivatives in the rows, (C, n)."""
        drift = c.b.expand((n, self.dim) if self.dim > 1 else (n,))
        given = [drift, self.noise_rows(c).expand(-1, n), *(v.expand(n) for v in (c.D_f, c.alpha, c.tempering))]
        leaves = [v.detach().clone().requires_grad_(True) for v in given]
        wanted = leaves[:3] + leaves[3:4] * self.alpha + leaves[4:] * self.tempering
        # a tempering that is not tracked is taken for the number it is: zero has a law of its own
        lam = leaves[4] if self.tempering else c.tempering.detach()
        out = []
        with torch.enable_grad():
            at = Coefficients(leaves[0], self.noise.D_o(leaves[1]), leaves[2], leaves[3], lam)
            for value in function(at):
                slopes = [torch.zeros_like(v) for v in wanted]
                if value.requires_grad:
                    slopes = list(torch.autograd.grad(value.sum(), wanted, retain_graph=True))
                first = slopes[0].T if self.dim > 1 else slopes[0].unsqueeze(0)
                more = slopes[2 : 3 + self.alpha]
                if self.clock:
                    more.append(self._by_clock(slopes[1], slopes[2], c))
                out.append(
                    (value.detach(), torch.cat([first, slopes[1], torch.stack(more + slopes[3 + self.alpha :])]))
                )
        return out
