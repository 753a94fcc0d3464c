"""A head near its present parameters, where it is linear: what Fisher scoring and error bars need of any head.

Let J(x) = d eta(x) / d theta be the Jacobian of the predictors at the base point theta_0. Near it

    eta(x) = eta_0(x) + J(x) (theta - theta_0).

With a prior of precision Lambda on the weights only directions Lambda^-1 J(x)^T can be told by data, so that

    theta = theta_0 + Q (z - z_0),        Q = Lambda^(-1/2) V,

has everything, V an orthonormal basis of the directions Lambda^(-1/2) J(x)^T at the bins of the states and of
Lambda^(1/2) theta_0. A network of thousands of weights is then a linear head of some hundred coordinates z whose prior
is standard normal: theta^T Lambda theta = z^T z. (This is the dual form of numerics with more parameters than bins; no
difference of large numbers is formed.) Parameters without a prior, such as the last biases, are coordinates themselves.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Chain, Head, LinkedHead, LinkOptions
from levytorch.coefficients.links import TemperingSpec, positivity
from levytorch.coefficients.network import NetworkHead
from levytorch.coefficients.padded import PaddedBasis, Padding
from levytorch.law.threads import one_thread
from levytorch.spaces.basis import Basis

_NEGLIGIBLE = 1e-10  # of the largest prior variance of a predictor: directions that add less are left out
_DESIGNS = 4  # kept: bins, nodes, a grid
_MOST_ROWS = 3072  # of a Jacobian that directions are found from


class TangentBasis:
    """The functions of one predictor: how it moves with its coordinates."""

    def __init__(self, head: TangentHead, row: int) -> None:
        self.head, self.row = head, row

    @property
    def size(self) -> int:
        part = self.head.part(self.row)
        return part.stop - part.start

    def rows(self, x: Tensor) -> Tensor:
        """(size, n)."""
        return self.head.design(x)[self.row]

    def harmonic_numbers(self) -> Tensor:
        """None: its prior has no frequencies."""
        return torch.zeros(self.size, dtype=torch.float64)


class TangentDesign(Sequence[Tensor]):
    """Predictors at some states, and how they move with the coordinates: (size, n) of each, computed when asked for."""

    def __init__(self, head: TangentHead, x: Tensor) -> None:
        self.head, self.x = head, x
        self._rows: list[Tensor] | None = None
        self._eta: Tensor | None = None

    @property
    def eta(self) -> Tensor:
        """(C, n) at the base point."""
        if self._eta is None:
            self._compute_eta()
        assert self._eta is not None
        return self._eta

    @property
    def rows(self) -> list[Tensor]:
        if self._rows is None:
            self._rows = self.head.moves_at(self.x)
        return self._rows

    def _compute_eta(self) -> None:
        self._eta = self.head.base_predictors(self.x)

    def at(self, z: Tensor) -> Tensor:
        """(C, n) at coordinates z."""
        change = z - self.head.z0
        if not (torch.is_grad_enabled() and z.requires_grad) and not bool(change.any()):
            return self.eta
        moved = [change[self.head.part(row)] @ phi for row, phi in enumerate(self.rows)]
        return self.eta + torch.stack(moved)

    def __len__(self) -> int:
        return self.head.n_predictors

    def __getitem__(self, row: Any) -> Any:
        return self.rows[row]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows)


class TangentHead(LinearHead):
    """A linear head that is tangent to another one at its present parameters.

    of: the other head, of which a copy is kept; states: where data may be, (M,) or (M, d); precision: (P,) of the prior
    of the parameters, None without one.
    """

    of: Head

    def __init__(self, of: Head, states: Tensor, precision: Tensor | None = None, center: Tensor | None = None) -> None:
        own: LinkOptions = {"alpha": of.alpha_spec, "units": of.units, "tempering": of.tempering_spec}
        own["noise"] = of.noise.name
        LinkedHead.__init__(self, of.dim, **(of.options if isinstance(of, LinkedHead) else own))
        self.period, self.origin, self.window, self.columns = of.period, of.origin, of.window, of.columns
        self.periodic, self.scale = getattr(of, "periodic", True), of.scale
        object.__setattr__(self, "of", copy.deepcopy(of))
        if not isinstance(of, LinkedHead):
            with torch.no_grad():
                self.tempering_spec = TemperingSpec("fixed", float(self.of.forward(self.of.grid(2)).tempering))
        self.states_of_data = states
        self.base = of.flat()
        self.full_precision, self.center = precision, torch.zeros_like(self.base) if center is None else center
        self._slopes: Tensor | None = None
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self._find_coordinates()
        self.theta = nn.Parameter(self.z0.clone())
        self._designs: dict[tuple[int, int], TangentDesign] = {}

    # -- coordinates --------------------------------------------------------------------------------------------------
    def _find_coordinates(self) -> None:
        if self._slopes is None:
            stride = -(-self.states_of_data.shape[0] * self.n_predictors // _MOST_ROWS)
            self._slopes = predictor_jacobian(self, self.states_of_data[::stride])  # (C, M, P)
        J = self._slopes
        self.components: list[tuple[Tensor, Tensor, slice]] = []
        self._back: list[Tensor] = []  # of every component: from changes of its parameters to those of its coordinates
        touched = J.abs().amax(1) > 0  # (C, P)
        self._parts = [slice(0, 0)] * self.n_predictors
        z0, precision, start = [], [], 0
        for rows, members in _components(touched):
            weight = torch.ones(len(members), dtype=torch.float64)
            prior = torch.zeros(len(members), dtype=torch.bool)
            if self.full_precision is not None:
                prior = self.full_precision[members] > 0
                weight = torch.where(prior, self.full_precision[members].clamp(min=1e-300).rsqrt(), 1.0)
            here = J[rows][:, :, members] * weight
            kept = torch.nonzero(prior).flatten() if bool(prior.any()) else torch.arange(len(members))
            free = torch.nonzero(~prior).flatten() if bool(prior.any()) else torch.arange(0)
            base = (self.base - self.center)[members] / weight
            V = _directions(here[:, :, kept].flatten(0, 1), base[kept] if bool(prior.any()) else None)
            Q = torch.zeros((len(members), V.shape[1] + len(free)), dtype=torch.float64)
            Q[kept, : V.shape[1]] = weight[kept, None] * V
            Q[free, V.shape[1] + torch.arange(len(free))] = 1.0
            part = slice(start, start + Q.shape[1])
            start = part.stop
            for row in rows.tolist():
                self._parts[row] = part
            self.components.append((members, Q, part))
            self._back.append(Q / (weight * weight).unsqueeze(1))
            z0.append(torch.cat([V.T @ base[kept], self.base[members][free]]))
            with_prior = torch.full((V.shape[1],), float(bool(prior.any())), dtype=torch.float64)
            precision.append(torch.cat([with_prior, torch.zeros(len(free), dtype=torch.float64)]))
        self.z0, self.prior_precision = torch.cat(z0), torch.cat(precision)

    def with_precision(self, precision: Tensor | None) -> Any:
        """The tangent at the same point, in the coordinates of another prior."""
        out = copy.copy(self)
        out._parameters = {}
        out.full_precision, out._designs = precision, {}
        out._find_coordinates()
        out.theta = nn.Parameter(out.z0.clone())
        return out

    def balanced(self, gradient: Tensor) -> None:
        """Take the base point for the maximum: the prior is centered where it outweighs the gradient (r,) there."""
        self.z0 = torch.where(self.prior_precision > 0, gradient / self.prior_precision.clamp(min=1e-300), self.z0)
        self.set_flat(self.z0)

    def part(self, row: int) -> slice:
        return self._parts[row]

    @property
    def sizes(self) -> list[int]:
        return [part.stop - part.start for part in self._parts]

    @property
    def starts(self) -> list[int]:
        """As of every linear head; has a meaning where coefficients do not share coordinates."""
        ends = list(itertools.accumulate(self.sizes))
        return [0, *ends]

    @property
    def bases(self) -> list[Basis]:
        return [TangentBasis(self, row) for row in range(self.n_predictors)]  # type: ignore[misc]

    @property
    def alpha_basis(self) -> Any:  # type: ignore[override]
        """A basis of one function where alpha is one number."""
        return TangentBasis(self, self.n_linear) if self.learns_alpha else None

    @property
    def alpha_varies(self) -> bool:
        return self.alpha_spec.mode == "function"

    @property
    def is_constant(self) -> bool:
        return bool(self.of.is_constant)

    def parameters_of_head(self, z: Tensor | None = None) -> Tensor:
        """All parameters of the other head, (P,), or (..., P), at coordinates (..., r)."""
        z = self.theta.detach() if z is None else z
        out = self.base.expand(*z.shape[:-1], -1).clone()
        for members, Q, part in self.components:
            out[..., members] += (z[..., part] - self.z0[part]) @ Q.T
        return out

    def spread(self, directions: Tensor) -> Tensor:
        """Directions (..., r) as those of the parameters of the other head, (..., P)."""
        out = torch.zeros((*directions.shape[:-1], self.base.numel()), dtype=torch.float64)
        for members, Q, part in self.components:
            out[..., members] = directions[..., part] @ Q.T
        return out

    def covariance_of_head(self, covariance: Tensor) -> Tensor:
        """(P, P) of the parameters of the other head from that of the coordinates (r, r)."""
        return self.spread(self.spread(covariance).T)

    def pulled(self, gradient: Tensor) -> Tensor:
        """A gradient (..., P) in the parameters of the other head as one in the coordinates, (..., r)."""
        out = gradient.new_zeros((*gradient.shape[:-1], self.z0.numel()))
        for members, Q, part in self.components:
            out[..., part] = gradient[..., members] @ Q
        return out

    def coordinates_of(self, change: Tensor) -> Tensor:
        """The coordinates (r,) of a change (P,) of the parameters of the other head, as far as they have it."""
        out = torch.zeros_like(self.z0)
        for (members, _, part), back in zip(self.components, self._back):
            out[part] = change[members] @ back
        return out

    # -- evaluation ---------------------------------------------------------------------------------------------------
    def base_predictors(self, x: Tensor) -> Tensor:
        """(C, n) at the base point."""
        with one_thread(), torch.no_grad():
            return predictors(self, x)

    def moves_at(self, x: Tensor) -> list[Tensor]:
        """How every predictor moves with its coordinates at states, (size, n) each."""
        kept = self._slopes
        whole = x is self.states_of_data and kept is not None and kept.shape[1] == x.shape[0]
        J = kept if whole and kept is not None else predictor_jacobian(self, x)
        out = [torch.zeros((0, x.shape[0]), dtype=torch.float64)] * self.n_predictors
        for row in range(self.n_predictors):
            for members, Q, part in self.components:
                if part == self._parts[row] and part.stop > part.start:
                    out[row] = (J[row][:, members] @ Q).T.contiguous()
        return out

    def design(self, x: Tensor) -> TangentDesign:  # type: ignore[override]
        key = (x.shape[0], hash(x.detach().numpy().tobytes()))
        if key not in self._designs:
            while len(self._designs) >= _DESIGNS:
                del self._designs[next(iter(self._designs))]
            self._designs[key] = TangentDesign(self, x)
        return self._designs[key]

    def predictors(self, theta: Tensor, design: Any) -> tuple[Tensor, Tensor | None]:
        eta, m = design.at(theta), self.n_linear
        if not self.learns_alpha:
            return eta[:m], None
        return eta[:m], eta[m] if self.alpha_varies else eta[m, 0]

    def most_states(self, numbers: int) -> int:
        return max(64, 4 * numbers // (self.n_predictors * self.base.numel()))

    def gathered(self, per_state: Tensor, design: Any) -> Tensor:
        out = torch.zeros(self.z0.numel(), dtype=torch.float64)
        for row, phi in enumerate(design):
            out[self.part(row)] += phi @ per_state[row]
        return out

    def set_predictors(self, eta: Any) -> None:
        raise NotImplementedError("a tangent head starts where the other head is")

    def config(self) -> dict[str, Any]:
        return self.of.config()

    def padded(self) -> PaddedTangent:
        """The same with a period: see padded.py."""
        return PaddedTangent(self)


class PaddedTangent(TangentHead):
    """A tangent head on a line as one with a period; it shares the coordinates, and is the same on the window."""

    def __init__(self, head: TangentHead) -> None:
        nn.Module.__init__(self)
        window = head.window
        for name, value in vars(head).items():
            if name not in ("_parameters", "_designs"):
                self.__dict__[name] = value
        self._parameters = {"theta": head.theta}
        self._designs = {}
        object.__setattr__(self, "line", head)
        padding = Padding.of(window)
        self.window, self.period, self.origin = window, padding.period, padding.origin
        self.periodic = True
        self._padded = PaddedBasis(_Everything(head), window)  # type: ignore[arg-type]

    @property
    def bounds(self) -> list[tuple[float, float]]:
        return [self.window]

    def base_predictors(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._padded.rows(x)[: self.n_predictors]

    def moves_at(self, x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            rows = self._padded.rows(x)[self.n_predictors :]
        return list(rows.split(self.sizes))


class _Everything:
    """All functions of a tangent head as one basis: predictors at the base point, then how they move."""

    def __init__(self, head: TangentHead) -> None:
        self.head = head

    @property
    def size(self) -> int:
        return self.head.n_predictors + sum(self.head.sizes)

    def rows(self, x: Tensor) -> Tensor:
        return torch.cat([self.head.base_predictors(x), *self.head.moves_at(x)])

    def harmonic_numbers(self) -> Tensor:
        return torch.zeros(self.size, dtype=torch.float64)


# -- predictors of any head --------------------------------------------------------------------------------------------


def predictors(tangent: TangentHead, x: Tensor) -> Tensor:
    """(C, n) of the other head, with a graph in its parameters.

    A head of the user's own gives coefficients; its predictors are what links would make them of.
    """
    head, layout = tangent.of, tangent.layout
    if isinstance(head, NetworkHead):
        return head.eta(x)
    c, units = head(x), tangent.units
    rows = [row / units.b for row in (c.b.T if tangent.dim > 1 else [c.b])]
    link = positivity("softplus", 0.0)
    for name, values in (("D_o", layout.noise_rows(c)), ("D_f", c.D_f.unsqueeze(0))):
        scaled, kept = values / tangent.unit(name, c.alpha), layout.positive(name)
        rows += [link.inverse(v) if k in kept else v for k, v in enumerate(scaled, layout.row(name))]
    if tangent.learns_alpha:
        low, high = tangent.alpha_spec.link.low, tangent.alpha_spec.link.high
        share = ((c.alpha - low) / (high - low)).clamp(1e-9, 1 - 1e-9)
        rows.append(torch.logit(share).expand(x.shape[0]))
    return torch.stack(rows)


def predictor_jacobian(tangent: TangentHead, x: Tensor) -> Tensor:
    """(C, n, P): d eta / d theta of the other head; zero for its fixed parameters."""
    J = _predictor_jacobian(tangent, x)
    if tangent.of.fixed:
        held = [torch.full((p.numel(),), name in tangent.of.fixed) for name, p in tangent.of.named_parameters()]
        J[:, :, torch.cat(held)] = 0.0
    return J


def _predictor_jacobian(tangent: TangentHead, x: Tensor) -> Tensor:
    head, layout = tangent.of, replace(tangent.layout, tempering=False)
    if isinstance(head, NetworkHead):
        return head.eta_jacobian(x)
    chain = chain_of(tangent, x)
    rows = layout.jacobian(chain.coefficients, state_by_state(head, x), tangent.base.new_zeros(()))
    if chain.D_f_alpha.dim():
        rows[layout.row("D_f")] -= chain.D_f_alpha.unsqueeze(-1) * rows[layout.row("alpha")]
    slope = chain.slope[: len(rows)].unsqueeze(-1)
    return torch.where(slope.abs() > 1e-12, rows / torch.where(slope == 0, 1.0, slope), 0.0)


def state_by_state(head: Head, x: Tensor) -> tuple[Tensor, ...]:
    """`head.jacobian`, vectorised over the states; one of the user's own may be written so that this cannot be."""
    if type(head).jacobian is not Head.jacobian:
        return head.jacobian(x)
    parameters = {name: p.detach() for name, p in head.named_parameters()}

    def at_one(values: dict[str, Tensor], state: Tensor) -> tuple[Tensor, ...]:
        c = functional_call(head, values, (state.unsqueeze(0),))
        return c.b[0], c.D_o[0], c.D_f[0], c.alpha.expand_as(c.D_f)[0]

    try:
        parts = vmap(jacrev(at_one), in_dims=(None, 0))(parameters, x)
    except Exception:  # whatever a user's forward makes of it
        return head.jacobian(x)
    c = head(x[:1])
    lead = [v.dim() for v in (c.b, c.D_o, c.D_f, c.D_f)]
    return tuple(
        torch.cat([one[name].reshape(*one[name].shape[:n], -1) for name in parameters], dim=-1)
        for one, n in zip(parts, lead)
    )


def chain_of(tangent: TangentHead, x: Tensor) -> Chain:
    """Coefficients at the base point, and how they move with the predictors."""
    eta, m = tangent.base_predictors(x), tangent.n_linear
    alpha = None
    if tangent.learns_alpha:
        alpha = eta[m] if tangent.alpha_varies else eta[m, 0]
    return tangent.respond(eta[:m], alpha, eta[-1, 0])


def _components(touched: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Groups of predictors that share parameters, with these: (rows, members) each, in the order of the rows."""
    left = [row for row in range(touched.shape[0]) if bool(touched[row].any())]
    out = []
    while left:
        rows, members = [left.pop(0)], touched[0].clone()
        members = touched[rows[0]].clone()
        while sharing := [row for row in left if bool((touched[row] & members).any())]:
            rows += sharing
            left = [row for row in left if row not in sharing]
            members = members | touched[sharing].any(0)
        out.append((torch.tensor(sorted(rows)), torch.nonzero(members).flatten()))
    return out


def _directions(J: Tensor, base: Tensor | None) -> Tensor:
    """(P, r): an orthonormal basis of the rows of J (N, P), and of the base point; by pivoted Cholesky."""
    left = (J * J).sum(1)
    most = min(J.shape)
    floor = _NEGLIGIBLE * float(left.max()) if most else 0.0
    pivots: list[int] = []
    columns = J.new_zeros((most, J.shape[0]))
    for k in range(most):
        pivot = int(left.argmax())
        size = float(left[pivot])
        if not size > floor:
            break
        column = J @ J[pivot]
        if k:
            column = column - columns[:k, pivot] @ columns[:k]
        columns[k] = column / size**0.5
        left = left - columns[k] ** 2
        left[pivot] = -1.0
        pivots.append(pivot)
    rows = J[pivots]
    if base is not None and bool(base.any()):
        rows = torch.cat([rows, base.unsqueeze(0) * (rows.norm(dim=1).max() / base.norm() if len(rows) else 1.0)])
    if not len(rows):
        return J.new_zeros((J.shape[1], 0))
    V, R = torch.linalg.qr(rows.T)
    size = R.diagonal().abs()
    return V[:, size > 1e-9 * size.max()]
