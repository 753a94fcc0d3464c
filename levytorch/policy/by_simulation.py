"""V in more than three coordinates, where no grid can be: least squares on simulated steps of the system.

With gamma = e^{-beta h} and the reward linear along a step,

    V(x) = E[w_0 r(x) + w_1 r(x') + gamma V(x') | x].

V is a sum of products of functions of single coordinates, whose harmonics add up to at most N; their coefficients
follow from these equations, tested with the functions themselves (LSTD, as `policy.lstd`), at states drawn evenly from
the cell or the windows. Beyond a window V is constant, as with `exterior="constant"`.

A step of h with the coefficients of its begin is wrong by O(h^2). The same random numbers make two steps of h / 2;
twice their mean minus that of the one step is wrong by O(h^3). Steps come in pairs with opposite noise, so that what is
odd in a step cancels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from levytorch.convert import choice, shown, whole_number
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import LevyStep
from levytorch.policy.checks import Coefficients, Reward, check_periodic, coefficients_at, reward_function
from levytorch.policy.lstd import reward_weights
from levytorch.policy.on_product import product_between
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Product
from levytorch.spaces.basis import TensorBasis, products_kept
from levytorch.spaces.product import ProductFunctions

FEW_COORDINATES = 3  # for which V is found on a grid
_MOST_FUNCTIONS = 500
_GROUPS, _STATES, _PAIRS, _ROUNDS = 40, 1000, 2, 12  # of the simulation; groups of states, for its error
_ERROR = 1e-3  # of the simulation, relative to the largest |V|: below, it ends
_CHANGE = 0.02  # of V by the last functions, relative to the largest |V|: above, there is a warning
_STEP = 0.5  # what a step does to the most rapid function
_PROBED = 2000  # states at which V, its error and its change are looked at
_RIDGE = 1e-10


@dataclass(frozen=True)
class BasisFunctions(ProductFunctions):
    """Products of functions of single coordinates, n of each; their coefficients (K, ...)."""

    highest: ClassVar[int] = 0

    @property
    def basis(self) -> TensorBasis:
        return self.space.basis(self.n)

    def _numbers(self, columns: Tensor) -> int:
        return len(columns)

    def _part(self, x: Tensor, columns: Tensor, order: tuple[int, ...]) -> Tensor:
        return self.basis.rows(self.space.inside(x)).T @ columns

    def gradient(self, x: Tensor, columns: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().clone().requires_grad_()
            fields = self.at(at, columns).unbind(-1)
            found = [torch.autograd.grad(field.sum(), at, retain_graph=True)[0] for field in fields]
        return torch.stack(found, dim=-2)

    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        size = self.basis.size
        return coefficients.shape == (size,) and (
            factor is None or (isinstance(factor, Tensor) and factor.ndim == 2 and len(factor) == size)
        )


@dataclass(frozen=True, repr=False)
class SimulatedValue(ValueFunction):
    """V by least squares on simulated steps; n_basis: functions of each coordinate.

    `std` is the error of the simulation, and of the functions that are left out: as much as the last ones have changed
    V. It does not include the errors of recovered coefficients; solve for V with the recoveries of `found.bootstrap()`
    to see those.
    """

    n_basis: int = 1

    _format: ClassVar[str] = "levytorch.simulated_value.2"

    def functions_of(self, coefficients: Tensor) -> BasisFunctions:
        assert isinstance(self.space, Product)
        return BasisFunctions(self.space, self.n_basis)

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        space, n = content["space"], content["n_basis"]
        return (
            isinstance(space, Product)
            and type(n) is int
            and 1 <= products_kept(space.dim, n, _MOST_FUNCTIONS) <= _MOST_FUNCTIONS
            and BasisFunctions(space, n).is_sound(content["coefficients"], content["covariance_factor"])
            and isinstance(content["beta"], float)
            and content["exterior"] == "constant"
        )


@torch.no_grad()
def simulated_value(
    dynamics: Any, space: Product, reward: Any, beta: float, *, n_modes: Any, window: Any, exterior: Any
) -> SimulatedValue:
    """V of a Dynamics or Recovery with many coordinates. n_modes: functions of each; None takes what fits into
    500 products.
    """
    if choice("exterior", exterior or "constant", ("constant", "absorb")) == "absorb":
        raise InputError(
            f"exterior must be constant in more than {FEW_COORDINATES} dimensions, found absorb; leave it out."
        )
    space = product_between(space, window)
    r = reward_function(reward, lambda x: x.shape[:-1])
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(space.ends, dtype=torch.float64).T

    def drawn(n: int) -> Tensor:
        return low + (high - low) * torch.rand((n, space.dim), generator=generator, dtype=torch.float64)

    check_periodic(r, [float(part.period or 0.0) for part in space.spaces], drawn(_PROBED))
    n_basis = _functions_per_coordinate(space, n_modes)
    basis = space.basis(n_basis)
    probed = drawn(_PROBED)
    steps = _Steps(dynamics, space, r, beta, _step_length(dynamics, space, probed, n_basis, beta))
    size, shown_by = basis.size, basis.rows(probed).T
    D = torch.zeros((_GROUPS, size, size), dtype=torch.float64)
    g = torch.zeros((_GROUPS, size), dtype=torch.float64)
    for _ in range(_ROUNDS):
        for group in range(_GROUPS):
            x = drawn(_STATES)
            phi = basis.rows(x)
            later, gained = steps.expected(x, basis, generator)
            D[group] += phi @ (phi - steps.discount * later).T
            g[group] += phi @ gained
        c, errors = solved_in_groups(D, g)
        largest = float((shown_by @ c).abs().max())
        if float((shown_by @ errors).norm(dim=1).max()) < _ERROR * largest:
            break
    last = c - _without_the_last(basis, D.sum(0), g.sum(0))
    change = float((shown_by @ last).abs().max()) / max(largest, 1e-300)
    errors = torch.cat([errors, last[:, None]], dim=1)
    converged = change < _CHANGE
    if not converged:
        warnings.warn(
            f"V must be a sum of smooth functions in {space.dim} coordinates, found that the last ones of {size} "
            f"change it by {change:.2g} of its largest value; raise n_modes ({n_basis} now) or beta, or smooth the "
            "reward.",
            LevytorchWarning,
            stacklevel=3,
        )
    return SimulatedValue(c, space, beta, change=change, converged=converged, covariance_factor=errors, n_basis=n_basis)


def solved_in_groups(D: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """c with sum_b D_b c = sum_b g_b, (K,), and S with cov c = S S^T, (K, groups), from what every group is short of.

    D: (groups, K, K), g: (groups, K).
    """
    A = D.sum(0)
    A = A + _RIDGE * A.diagonal().abs().mean() * torch.eye(len(A), dtype=A.dtype)
    c = torch.linalg.solve(A, g.sum(0))
    short = g - torch.einsum("bpq,q->bp", D, c)
    return c, torch.linalg.solve(A, short.T)


@dataclass(frozen=True)
class _Steps:
    """What the system expects after a step of h."""

    dynamics: Any
    space: Product
    reward: Reward
    beta: float
    h: float

    @property
    def discount(self) -> float:
        return math.exp(-self.beta * self.h)

    def expected(self, x: Tensor, basis: TensorBasis, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The mean of the functions (K, n), and the reward (n,), after a step from x (n, d)."""
        early, late = reward_weights(self.beta, self.h)
        begin, half = self._at(x), 0.5 * self.h
        later, rewards = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        ends: list[tuple[float, Tensor]] = []
        for _ in range(_PAIRS):
            one = self._noise(begin, half, generator)
            state = generator.get_state()
            two = self._noise(begin, half, generator)
            for sign in (1.0, -1.0):
                middle = self._after(x, begin.b * half, sign * one)
                at_middle = self._at(middle)
                generator.set_state(state)  # the same random numbers as from the begin
                again = self._noise(at_middle, half, generator)
                ends.append((2.0, self._after(middle, at_middle.b * half, sign * again)))
                ends.append((-1.0, self._after(x, begin.b * self.h, sign * (one + two))))
        for weight, y in ends:
            later = later + weight * basis.rows(y)
            rewards = rewards + weight * self.reward(y)
        share = 1.0 / (2 * _PAIRS)
        return share * later, early * self.reward(x) + late * share * rewards

    def _at(self, x: Tensor) -> Coefficients:
        return coefficients_at(self.dynamics, x, self.space.dim, matrices=True)

    def _after(self, x: Tensor, drift: Tensor, noise: Tensor) -> Tensor:
        """Diffusion is reflected at the ends of a window, while a jump past an end lands on it."""
        diffusion, jumps = noise
        return self.space.inside(_reflected(self.space, x + drift + diffusion) + jumps)

    def _noise(self, at: Coefficients, dt: float, generator: torch.Generator) -> Tensor:
        """(2, n, d): of diffusion, and of jumps."""
        normal = torch.randn(at.b.shape, generator=generator, dtype=torch.float64)
        if at.D_o.ndim > 1:
            root = torch.linalg.cholesky(2.0 * dt * at.D_o)
            diffusion = (root @ normal[..., None])[..., 0]
        else:
            diffusion = (2.0 * dt * at.D_o).sqrt()[:, None] * normal
        tempering = float(getattr(self.dynamics, "tempering", 0.0))
        none = torch.zeros(len(normal), dtype=torch.float64)
        step = LevyStep(
            torch.zeros_like(at.b), none, at.D_f, at.alpha, dt, self.space.dim, tempering, validate_args=False
        )
        return torch.stack([diffusion, step.sample(generator=generator)])


def _reflected(space: Product, x: Tensor) -> Tensor:
    """States reflected once at the ends of windows."""
    out = [
        v if part.repeats else part.ends[0] + (part.ends[1] - (v - part.ends[1]).abs() - part.ends[0]).abs()
        for part, v in zip(space.spaces, x.unbind(-1))
    ]
    return torch.stack(out, dim=-1)


def _functions_per_coordinate(space: Product, n_modes: Any) -> int:
    """An odd number: as many as the limit on products allows, at most 9, or those asked for."""
    if n_modes is not None:
        n = whole_number("n_modes", n_modes, 1, 101, "give the functions per coordinate, an odd number")
        if n % 2 == 0 or products_kept(space.dim, n, _MOST_FUNCTIONS) > _MOST_FUNCTIONS:
            raise InputError(
                f"n_modes must be odd and make at most {_MOST_FUNCTIONS} products in {space.dim} dimensions, found "
                f"{shown(n_modes)}; leave it out."
            )
        return n
    fits = [n for n in (3, 5, 7, 9) if products_kept(space.dim, n, _MOST_FUNCTIONS) <= _MOST_FUNCTIONS]
    if not space.repeats and (not fits or fits[-1] < 5):  # splines are at least four
        raise InputError(f"the dynamics must have fewer coordinates for V, found {space.dim}; leave some out.")
    return fits[-1] if fits else 1


def _step_length(dynamics: Any, space: Product, x: Tensor, n_basis: int, beta: float) -> float:
    """A step in which the most rapid function of one coordinate changes by a part of itself."""
    at = coefficients_at(dynamics, x, space.dim, matrices=True)
    lengths = torch.tensor([part.length * (1 if part.repeats else 2) for part in space.spaces], dtype=torch.float64)
    k = max(1, n_basis // 2) * 2 * math.pi / lengths
    D_o = at.D_o.diagonal(dim1=-2, dim2=-1) if at.D_o.ndim > 1 else at.D_o[:, None]
    rate = (at.b.abs() * k + D_o * k**2).amax(1) + at.D_f * float(k.max()) ** (2 * at.alpha)
    return _STEP / max(float(torch.quantile(rate, 0.95)), beta)


def _without_the_last(basis: TensorBasis, D: Tensor, g: Tensor) -> Tensor:
    """The coefficients (K,) of V if it has none of its most rapid functions."""
    order = basis.harmonics.sum(1)
    fewer = (order < order.max()) | (order == 0)
    out = torch.zeros_like(g)
    out[fewer] = torch.linalg.solve(D[fewer][:, fewer], g[fewer])
    return out
