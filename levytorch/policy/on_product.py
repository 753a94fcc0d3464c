"""solve_value in several coordinates: on a torus of circles, or on products with an interval; matrix-free, by GMRES.

    L V = b . grad V + D_o : Hessian V - D_f (-Lap)^alpha V

is applied by the operator of the space: fast Fourier transforms on an even grid of a torus (`spaces.torus`), else nodes
on every coordinate and Gaussian smoothing (`spaces.smoothing`). Beyond the ends of an interval V is zero or stays what
it is there. D_o must be positive then: where nothing diffuses V need not be continuous at an end, and its polynomials
would not resolve that.

The equation is divided by s(x) = D_o + D_f k_c^(2 alpha - 2) (of a matrix D_o the mean of its diagonal), which makes
its leading part nearly a constant one; the averaged equation is then a preconditioner that is easily inverted, and the
number of iterations hardly depends on the resolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from levytorch.convert import choice, real_array, shown, whole_number
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import jumps_in
from levytorch.policy.checks import check_periodic, coefficients_at, reward_function
from levytorch.policy.generator import delta_method, tempering_jacobian
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product
from levytorch.spaces.nodes import CONTINUATIONS, Array
from levytorch.spaces.smoothing import SmoothingOperator
from levytorch.spaces.torus import TorusOperator

_RESTART, _CYCLES = 60, 20
_ROUGH = 1e-9  # of the residual on the first nodes, which are only compared with
_ENOUGH = 1e-7  # the residual beyond which V is refused
_COLUMNS = 1 << 21  # numbers of the dense system that are made at a time


class Fields(NamedTuple):
    """Coefficients at nodes (m_1, ...): b (d, ...), D_o (...) or (d, d, ...), D_f (...), alpha a number or (...)."""

    b: Array
    D_o: Array
    D_f: Array
    alpha: Any

    @property
    def matrix(self) -> bool:
        """Whether D_o is one."""
        return self.D_o.ndim > self.D_f.ndim

    @classmethod
    def of(cls, dynamics: Any, x: Tensor) -> Fields:
        """At the points x (m_1, ..., m_d, d)."""
        d = x.shape[-1]
        b, D_o, D_f, alpha = (t.numpy() for t in coefficients_at(dynamics, x, dim=d, matrices=True)[:4])
        if D_o.ndim > d:
            D_o = np.moveaxis(D_o, (-2, -1), (0, 1))
        return cls(np.moveaxis(b, -1, 0), D_o, D_f, alpha if alpha.ndim else float(alpha))


def _diffusion(D_o: Any, matrix: bool, laplacian: Callable[[], Any], second: Callable[[int, int], Any]) -> Any:
    """D_o : Hessian; D_o (...), or (d, d, ...) for a matrix."""
    if not matrix:
        return D_o * laplacian()
    places = ((i, j) for i in range(len(D_o)) for j in range(i + 1))
    return sum((1 + (i != j)) * D_o[i, j] * second(i, j) for i, j in places)


class System:
    """(beta - L) V = r at the nodes of an operator, which also says what V is made of there."""

    def __init__(self, dynamics: Any, operator: TorusOperator | SmoothingOperator, beta: float) -> None:
        self.dynamics, self.operator, self.beta, self.x = dynamics, operator, beta, operator.x
        at = self.at = Fields.of(dynamics, self.x)
        d = len(at.b)
        ordinary = np.trace(at.D_o) / d if at.matrix else at.D_o
        operator.check_diffusion(ordinary)
        self.scale = ordinary + at.D_f * operator.cut ** (2 * at.alpha - 2) + 1e-12 * beta

        def mean(values: Any) -> Any:
            return np.mean(values / self.scale, axis=tuple(range(-d, 0)))

        D_o = mean(at.D_o) if at.matrix else mean(at.D_o) * np.eye(d)
        self.symbol = mean(beta) + operator.averaged(mean(at.b), D_o, float(mean(at.D_f)), float(np.mean(at.alpha)))

    def generator(self, c: Array, at: Fields | None = None) -> Array:
        """L V at the nodes, or with the coefficients of other states."""
        at, operator = at or self.at, self.operator
        out = _diffusion(at.D_o, at.matrix, lambda: operator.laplacian(c), lambda i, j: operator.second(i, j, c))
        for b, slope in zip(at.b, operator.gradient(c)):
            out += b * slope
        out -= at.D_f * operator.fractional(c, at.alpha)
        return np.asarray(out)

    def solve(self, right: Array, tolerance: float) -> tuple[Array, int, float]:
        """What V is made of, the iterations it took, and the residual relative to the right-hand side."""
        count, grid, operator = 0, right.shape, self.operator

        def product(y: Array) -> Array:
            c = operator.divided(y.reshape(grid), self.symbol)
            return ((self.beta * operator.values(c) - self.generator(c)) / self.scale).reshape(-1)

        def step(_: Any) -> None:
            nonlocal count
            count += 1

        # the preconditioner acts on the right, so that GMRES sees the residual of the equation itself
        A = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)
        target = (right / self.scale).reshape(-1)
        size = float(np.linalg.norm(target))
        if size == 0.0:
            return operator.forward(np.zeros(grid)), 0, 0.0
        options: dict[str, Any] = {"restart": _RESTART, "maxiter": _CYCLES, "atol": 0.0, "rtol": tolerance}
        y, _ = gmres(A, target, callback=step, callback_type="pr_norm", **options)
        left = float(np.linalg.norm(product(y) - target)) / size
        if not left < _ENOUGH:
            raise NumericalError(
                f"(beta - L) V = r must be solved to {_ENOUGH:g}, found that GMRES stopped at a residual of {left:.2g} "
                f"after {count} iterations with n_modes = {operator.n}; use a larger beta, other n_modes, or a D_o or "
                "D_f that is not so close to zero."
            )
        return operator.divided(y.reshape(grid), self.symbol), count, left

    def change(self, c: Array) -> Tensor:
        """(size, P): d(L V) / dtheta at the nodes, for a Recovery."""
        operator, at = self.operator, self.at
        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = self.dynamics.jacobian(self.x.reshape(-1, len(at.b)))

        def flat(field: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(field)).reshape(-1, 1)

        right = sum(J * flat(slope) for J, slope in zip(J_b.unbind(1), operator.gradient(c)))
        J_D_o, matrix = (J_D_o, False) if J_D_o.dim() == 2 else (J_D_o.movedim(0, 2), True)
        laplacian, second = lambda: flat(operator.laplacian(c)), lambda i, j: flat(operator.second(i, j, c))
        right = right + _diffusion(J_D_o, matrix, laplacian, second) - J_D_f * flat(operator.fractional(c, at.alpha))
        moved = [J for J in (J_alpha, tempering_jacobian(self.dynamics, J_D_f.shape[1])) if J is not None]
        if any(bool(J.any()) for J in moved):
            for J, part in zip(moved, operator.by_parameters(c, at.alpha)):
                right = right - J * flat(at.D_f * part)
        return torch.as_tensor(right)


class Found(NamedTuple):
    system: System
    c: Array
    iterations: int
    residual: float


class ProductProblem:
    """V on a product, by its values at nodes of every coordinate; see `solver.Problem`. n: points of a circle, parts of
    a line.
    """

    keeps_best = False
    remedy = "raise max_modes or beta, smooth the reward, or choose a narrower window"
    first, range_of_modes, most_modes = 12, (6, 256), {2: 96, 3: 28}

    def __init__(
        self, dynamics: Any, space: Product, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None:
        self.dynamics, self.beta, self.most = dynamics, beta, self.most_modes[space.dim]
        self.space, self.exterior = self._bounded(space, window, exterior)
        self.jumps = jumps_in(dynamics)
        self.r = reward_function(reward, lambda x: x.shape[:-1])
        check_periodic(self.r, [float(part.period or 0.0) for part in self.space.spaces], self.space.grid(12, 0.37))

    def _bounded(self, space: Product, window: Any, exterior: Any) -> tuple[Product, str]:
        """The space that V is solved on, and what is beyond its ends."""
        given = "constant" if exterior is None else exterior
        if not isinstance(given, str):
            raise InputError(
                f"exterior must be constant or absorb in {space.dim} dimensions, found {shown(exterior)}; give one of "
                "these."
            )
        choice("exterior", given, CONTINUATIONS)
        return product_between(space, window), given

    def operator(self, n: int) -> TorusOperator | SmoothingOperator:
        return SmoothingOperator(self.space, n, self.jumps, self.exterior)

    def checked(self, n_modes: Any) -> int:
        self.first = 0  # the resolution is not refined
        return whole_number("n_modes", n_modes, *self.range_of_modes, "give the nodes per coordinate")

    def finer(self, n: int) -> int:
        return n + n // 2

    def solved(self, n: int) -> Found:
        system = System(self.dynamics, self.operator(n), self.beta)
        tolerance = _ROUGH if n == self.first else system.operator.tolerance
        return Found(system, *system.solve(self.r(system.x).numpy(), tolerance))

    def n_modes(self, found: Found) -> int:
        return found.system.operator.n

    def is_usable(self, found: Found) -> bool:
        return True

    def moved(self, before: Found, found: Found) -> float:
        new, old = (one.system.operator.comparable(one.c, self.n_modes(before)) for one in (found, before))
        return float(np.abs(new - old).max() / max(np.abs(new).max(), 1e-300))

    def residual(self, found: Found) -> float:
        operator = found.system.operator
        between = operator.between(found.c)
        if between is None:
            return found.residual
        x, c = between
        values = self.r(x).numpy()
        left = self.beta * operator.values(c) - found.system.generator(c, Fields.of(self.dynamics, x)) - values
        return float(np.abs(left).max() / max(np.abs(values).max(), 1e-300))

    def value(self, found: Found, change: float | None, converged: bool) -> ValueFunction:
        return ValueFunction(
            torch.from_numpy(found.system.operator.saved(found.c)),
            self.space,
            self.beta,
            exterior=self.exterior,
            residual=self.residual(found),
            change=change,
            iterations=found.iterations,
            converged=converged,
            covariance_factor=self._covariance_factor(found.system.operator),
        )

    def _covariance_factor(self, operator: TorusOperator | SmoothingOperator) -> Tensor | None:
        """On few nodes, by a dense matrix: V's standard deviation is smooth and needs two digits."""
        if getattr(self.dynamics, "covariance", None) is None or not hasattr(self.dynamics, "jacobian"):
            return None
        n = min(operator.n, operator.dense[self.space.dim])
        system = System(self.dynamics, self.operator(n), self.beta)
        operator, size = system.operator, math.prod(system.operator.shape)

        def made_of(fields: Array) -> Array:
            """What fields (k, size) are made of."""
            return operator.forward(fields.reshape(-1, *operator.shape))

        dense = torch.empty((size, size), dtype=torch.float64)
        for rows in torch.arange(size).split(max(1, _COLUMNS // size)):
            fields = np.eye(size)[rows.numpy()]
            found = self.beta * fields - system.generator(made_of(fields)).reshape(-1, size)
            dense[:, rows] = torch.from_numpy(found.T)
        scale = torch.from_numpy(1 / system.scale).reshape(-1, 1)
        lu = torch.linalg.lu_factor(dense * scale)

        def solve(right: Tensor) -> Array:
            return made_of(torch.linalg.lu_solve(*lu, right * scale).T.numpy())

        V = solve(self.r(system.x).reshape(-1, 1))[0]
        return delta_method(
            self.dynamics,
            lambda _: system.change(V),
            lambda right: torch.from_numpy(np.moveaxis(operator.saved(solve(right)), 0, -1).copy()),
            torch.from_numpy(V),
        )


class TorusProblem(ProductProblem):
    """V on a torus, as a multiple Fourier series. n: modes, and points of the grid, per coordinate."""

    remedy = "raise max_modes or beta, or smooth the reward"
    first, range_of_modes, most_modes = 16, (4, 4096), {2: 512, 3: 64}

    def _bounded(self, space: Product, window: Any, exterior: Any) -> tuple[Product, str]:
        if exterior is not None:
            raise InputError(
                f"exterior must be left out beside a period, found {shown(exterior)}; remove it, or use period=None."
            )
        if window is not None:
            raise InputError(
                f"window must be left out on a torus, found {window!r}; remove it to solve on the whole cell."
            )
        return space, "constant"

    def operator(self, n: int) -> TorusOperator:
        return TorusOperator(self.space, n, self.jumps)

    def finer(self, n: int) -> int:
        return 2 * n


def product_between(space: Product, window: Any) -> Product:
    """The product with the windows that are given, one per coordinate, instead of those of the dynamics."""
    return Product(tuple(_bounded(part, w) for part, w in zip(space.spaces, _windows(window, space.dim))))


def _windows(given: Any, dim: int) -> list[Any]:
    """One per coordinate: (low, high), or None for that of the dynamics."""
    if given is None:
        return [None] * dim
    try:
        windows = list(given)
    except TypeError:
        windows = []
    if len(windows) != dim:
        raise InputError(
            f"window must have one entry per coordinate, (low, high) or None, found {shown(given)}; give {dim} of them."
        )
    return windows


def _bounded(part: Circle | Interval, window: Any) -> Circle | Interval:
    if isinstance(part, Circle):
        if window is not None:
            raise InputError(
                f"window must be None for a coordinate with a period, found {shown(window)}; put None in its place."
            )
        return part
    ends = part.ends if window is None else tuple(real_array("window", window, "pass (low, high)").tolist())
    if len(ends) != 2 or not (np.isfinite(ends).all() and ends[0] < ends[1]):
        raise InputError(
            f"window must be (low, high) for a coordinate without a period, found {shown(window)}; pass the range of "
            "states that matters."
        )
    return Interval(float(ends[0]), float(ends[1]))
