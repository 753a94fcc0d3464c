"""r(x, a) out of the rewards that were logged with the pairs: least squares, action by action.

On a scale of actions: products of functions of x and parabolas of a, as the coefficients have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.action import ActionBasis
from levytorch.coefficients.basis import Basis, TensorBasis, fourier_basis
from levytorch.coefficients.spline import SplineBasis
from levytorch.convert import shown
from levytorch.errors import InputError

_RIDGE = 1e-10  # of the largest number of the normal equations: functions that no pair determines are left out
_N_ACTION = 3  # polynomials of an action on a scale


class LoggedReward:
    """r(x, action) for every logged action; without actions in the data r(x)."""

    def __init__(self, fits: dict[Any, Callable[[Tensor], Tensor]] | None, scale: Any = None) -> None:
        self.fits, self.scale = fits, scale

    def __call__(self, x: Tensor, action: Any) -> Tensor:
        if self.fits is None:
            return self.scale(x, action)
        if action not in self.fits:
            raise InputError(
                f"action must be one of those with logged rewards, {shown(list(self.fits))}, found {shown(action)}; "
                "give r(x, action) as a function for others."
            )
        return self.fits[action](x)


def logged_reward(
    transitions: Any, *, period: Any = 2 * math.pi, origin: Any = 0.0, n_basis: int = 11
) -> LoggedReward | Callable[[Tensor], Tensor]:
    """The reward of pairs as a function of x and action, by least squares: Fourier functions on a cell, splines on a
    line (period None). Of pairs without actions a function of x alone.
    """
    if getattr(transitions, "reward", None) is None:
        raise InputError("the pairs must have logged rewards, found none; give reward= where they are made.")
    basis, rewards, x = _basis(transitions, period, origin, n_basis), transitions.reward, transitions.x
    if transitions.action is None:
        return _fitted(basis, x, rewards)
    if transitions.actions:
        codes = transitions.action_codes
        fits = {a: _fitted(basis, x[codes == i], rewards[codes == i]) for i, a in enumerate(transitions.actions)}
        return LoggedReward(fits)
    action = torch.as_tensor(transitions.action).reshape(len(x), -1)
    bounds = tuple(zip(action.amin(0).tolist(), action.amax(0).tolist()))
    products = ActionBasis(basis, _N_ACTION, bounds, transitions.dim)
    of_pairs = _fitted(products, torch.cat([x.reshape(len(x), -1), action], dim=-1), rewards)

    def on_scale(states: Tensor, held: Any) -> Tensor:
        a = torch.as_tensor(held, dtype=torch.float64)
        rows = a.reshape(-1, len(bounds)).expand(len(states), -1)
        return of_pairs(torch.cat([states.reshape(len(states), -1), rows], dim=-1))

    return LoggedReward(None, on_scale)


def _basis(transitions: Any, period: Any, origin: Any, n_basis: int) -> Basis:
    dim = transitions.dim
    if period is not None:
        return fourier_basis(dim, n_basis, period, origin)
    ranges = [(float(c.min()), float(c.max())) for c in transitions.x.reshape(len(transitions), -1).T]
    lines = [SplineBasis(n_basis, pair) for pair in ranges]
    return lines[0] if dim == 1 else TensorBasis(dim, n_basis, lines=lines)


def _fitted(basis: Basis, x: Tensor, values: Tensor) -> Callable[[Tensor], Tensor]:
    """The least-squares combination of the functions, summed block by block."""
    A = torch.zeros((basis.size, basis.size), dtype=torch.float64)
    y = torch.zeros(basis.size, dtype=torch.float64)
    for low in range(0, len(x), 1 << 16):
        rows = basis.rows(x[low : low + (1 << 16)].contiguous())
        A += rows @ rows.T
        y += rows @ values[low : low + (1 << 16)]
    A.diagonal().add_(_RIDGE * float(A.diagonal().max()))
    theta = torch.linalg.solve(A, y)

    def function(states: Tensor) -> Tensor:
        one = isinstance(basis, TensorBasis | ActionBasis)
        flat = states.reshape(-1, states.shape[-1]) if one else states.reshape(-1)
        return (theta @ basis.rows(flat)).reshape(states.shape[:-1] if one else states.shape)

    return function
