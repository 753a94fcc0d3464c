"""The parts of a generator on a product of circles and intervals, on nodes; jumps by Gaussian smoothing.

(-Lap)^alpha in several coordinates is not a sum of operators of one coordinate, but an integral of such products:

    psi(-Lap) V = int_0^inf (V - e^(t Lap) V) nu(t) dt,

with nu(t) = alpha / Gamma(1 - alpha) e^(-lam^2 t) t^(-1 - alpha) for stable and tempered jumps. e^(t Lap) smooths
coordinate after coordinate. Beyond the ends of an interval V is zero, or stays what it is there, which smoothing knows
(`nodes`). The integral over log t is a Gauss-Legendre sum. Below its first node V - e^(t Lap) V is -t Lap V; beyond its
last one smoothing does not change any more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from levytorch.errors import InputError
from levytorch.spaces.nodes import Array, Nodes

if TYPE_CHECKING:
    from levytorch.law.jumps import Jumps
    from levytorch.spaces.product import Product

_TIMES = (1e-9, 1e2, 1e8)  # first, ordinary and last one, in squares of the shortest and of the longest half length
_PANELS, _ORDER = (2.0, 4.0), 6  # lengths of panels of log t before and after the ordinary one, and the nodes in each
_COMPARED = 24  # states per coordinate at which V on different nodes is compared
_DIFFERENCE = 1e-4  # of alpha and other parameters of the jumps


class SmoothingOperator:
    """Acts on fields (..., m_1, ..., m_d) of values at the unknowns of every coordinate."""

    tolerance = 1e-11  # of the equation's residual, to which it can be solved
    dense: ClassVar[dict[int, int]] = {2: 34, 3: 10}  # nodes per coordinate on which errors are computed

    def __init__(self, space: Product, n: int, jumps: Jumps, exterior: str = "constant") -> None:
        self.space, self.n, self.jumps = space, n, jumps
        self.axes: list[Nodes] = [part.on_nodes(n, exterior) for part in space.spaces]
        self.shape = tuple(len(axis.x) for axis in self.axes)
        self.cut = min(len(axis.x) / axis.half for axis in self.axes)
        halves = [axis.half for axis in self.axes]
        start, middle, end = (c * size**2 for c, size in zip(_TIMES, (min(halves), *[max(halves)] * 2)))
        parts = [(start, middle, _PANELS[0]), (middle, end, _PANELS[1])]
        cuts = [np.linspace(math.log(a), math.log(b), math.ceil(math.log(b / a) / h) + 1) for a, b, h in parts]
        edges = np.concatenate([cuts[0], cuts[1][1:]])
        nodes, weights = np.polynomial.legendre.leggauss(_ORDER)
        centers, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        self.start, self.end = start, end
        self.t = np.exp((centers[:, None] + half[:, None] * nodes).reshape(-1))
        self.weights = (half[:, None] * weights).reshape(-1)
        self.heat = [[axis.heat(t) for axis in self.axes] for t in (*self.t, end)]

    @property
    def x(self) -> Tensor:
        """(m_1, ..., m_d, d): the nodes."""
        axes = [torch.from_numpy(axis.x) for axis in self.axes]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)

    def along(self, axis: int, matrix: Array, field: Array) -> Array:
        """A matrix applied along one coordinate."""
        place = axis - len(self.axes)
        if place == -1:
            return np.asarray(field @ matrix.T)
        return np.moveaxis(np.matmul(matrix, np.moveaxis(field, place, -2)), -2, place)

    def forward(self, field: Array) -> Array:
        """Fields stand for themselves."""
        return field

    values = forward

    def gradient(self, field: Array) -> list[Array]:
        """The first derivatives."""
        return [self.along(i, axis.first, field) for i, axis in enumerate(self.axes)]

    def second(self, i: int, j: int, field: Array) -> Array:
        """The second derivative along coordinates i and j."""
        if i == j:
            return self.along(i, self.axes[i].second, field)
        return self.along(i, self.axes[i].first, self.along(j, self.axes[j].first, field))

    def laplacian(self, field: Array) -> Array:
        return np.asarray(sum(self.second(i, i, field) for i in range(len(self.axes))))

    def fractional(self, field: Array, alpha: Any, jumps: Jumps | None = None) -> Array:
        """What jumps do, by default those of the operator; alpha a number or one per node."""
        jumps = jumps or self.jumps
        out = -jumps.shorter(self.start, alpha) * self.laplacian(field)
        weights = (w * jumps.intensity(t, alpha) for w, t in zip(self.weights, self.t))
        for weight, matrices in zip((*weights, jumps.longer(self.end, alpha)), self.heat):
            if np.max(weight) < 1e-300:
                continue
            smooth = field
            for axis, matrix in enumerate(matrices):
                smooth = self.along(axis, matrix, smooth)
            out += weight * (field - smooth)
        return np.asarray(out)

    def by_parameters(self, field: Array, alpha: Any) -> list[Array]:
        """The derivatives of `fractional` in the parameters of the jumps, by differences."""
        h = _DIFFERENCE
        pairs = [(self.fractional(field, alpha + h), self.fractional(field, alpha - h), 2 * h)]
        pairs += [
            (self.fractional(field, alpha, more), self.fractional(field, alpha, less), apart)
            for more, less, apart in self.jumps.varied(h)
        ]
        return [(up - down) / apart for up, down, apart in pairs]

    def averaged(self, b: Array, D_o: Array, D_f: float, alpha: float) -> Array:
        """Minus a generator with constant coefficients and without drift, in the eigenvectors of the second derivatives
        of every coordinate, on which e^(t Lap) acts nearly as on waves; D_o (d, d).
        """
        self.vectors, self.inverses, rates = [], [], []
        for axis in self.axes:
            even = np.allclose(axis.second, axis.second.T)
            values, vectors = (np.linalg.eigh if even else np.linalg.eig)(axis.second)
            order = np.argsort(values.real)
            self.vectors.append(vectors.real[:, order])
            self.inverses.append(np.linalg.inv(self.vectors[-1]))
            rates.append(np.maximum(-values.real[order], 0.0))
        grids = np.meshgrid(*rates, indexing="ij")
        at = torch.from_numpy(sum(grids)), torch.tensor(alpha, dtype=torch.float64)
        jumps: Array = D_f * self.jumps.symbol(*at).numpy()
        return sum((D_o[i, i] * grid for i, grid in enumerate(grids)), jumps)

    def divided(self, field: Array, symbol: Array) -> Array:
        """What `averaged`, with this symbol, makes into the field."""
        for axis, inverse in enumerate(self.inverses):
            field = self.along(axis, inverse, field)
        field = field / symbol
        for axis, vectors in enumerate(self.vectors):
            field = self.along(axis, vectors, field)
        return field

    def saved(self, field: Array) -> Array:
        """Values at all nodes, those at the ends of intervals included: what V is made of in a file."""
        for axis, nodes in enumerate(self.axes):
            field = self.along(axis, nodes.complete, field)
        return field

    def comparable(self, field: Array, n: int) -> Array:
        """Values at even states."""
        V, x = torch.from_numpy(self.saved(field)), self.space.grid(_COMPARED).reshape(-1, self.space.dim)
        return self.space.functions(V).at(x, V[..., None]).numpy()

    def between(self, field: Array) -> None:
        """There are no states between the nodes at which the equation holds less well."""

    def check_diffusion(self, D_o: Array) -> None:
        """Refuse a D_o that vanishes: V need not be continuous at an end then."""
        if D_o.min() <= 1e-12 * D_o.max():
            raise InputError(
                f"D_o must be positive on a window in {self.space.dim} dimensions, found {D_o.min():.3g}; give it a "
                "small positive value."
            )
