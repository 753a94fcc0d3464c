"""V on an interval of the line, as values on its nodes: called, differentiated, with its error.

Also for many coefficient sets at once: replicas, draws of the parameters, perturbed systems. Systems that are close to
each other are close to their mean. With its inverse P the correction V <- V + P (r - A V) takes two products of
matrices for all systems together, and contracts by what the systems differ from the mean by; those that do not contract
are solved one by one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import real_tensor, whole_number
from levytorch.errors import InputError
from levytorch.policy.generator import solve_many
from levytorch.policy.line_grid import HALF, differences, line_grid, positions
from levytorch.policy.line_operator import Exterior, LineOperators, distances, line_operators
from levytorch.policy.value import NO_ERRORS, load_fields, save_fields

_MARK = "levytorch.line_value.1"
EXTERIORS = ("constant", "absorb", "given")
_ROUNDS = 16  # systems that need more are solved directly
_DONE = 1e-8  # of V, the last correction: what is left is smaller, and rounding at reflecting ends no less
_FEW = 16  # systems that are not worth an inverse
_CHUNK = 512  # systems at a time, which stay in the cache


@dataclass(frozen=True, repr=False)
class LineValue:
    """V on `window`, with beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V there and what `exterior` says elsewhere.

    values: (n + 1,) at the nodes, both ends included. `change`: how much V moved when the number of nodes was last
    doubled, None when n_modes was given. outside: V beyond the ends where it is given, at distances from them.
    """

    values: Tensor
    window: tuple[float, float]
    beta: float
    exterior: str = "constant"
    change: float | None = None
    converged: bool = True
    outside: Tensor | None = None
    covariance_factor: Tensor | None = None  # S with cov(values) = S S^T, (n + 1, P)

    def __repr__(self) -> str:
        return (
            f"LineValue({self.n_modes} nodes, window=({self.window[0]:g}, {self.window[1]:g}), beta={self.beta:g}, "
            f"exterior={self.exterior}, converged={self.converged})"
        )

    period = None

    @property
    def origin(self) -> float:
        return self.window[0]

    @property
    def n_modes(self) -> int:
        """Intervals between nodes."""
        return len(self.values) - 1

    @property
    def x(self) -> Tensor:
        """(n + 1,) the nodes."""
        grid = line_grid(self.n_modes)
        low, high = self.window
        inner = torch.from_numpy(0.5 * (low + high) + 0.5 * (high - low) * grid.s[grid.inner])
        return torch.cat([torch.tensor([low]), inner, torch.tensor([high])]).to(torch.float64)

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        return self.derivative(x, order=0)

    def derivative(self, x: Tensor | np.ndarray | float, order: int = 1) -> Tensor:
        """d^order V / dx^order at x, order 0, 1 or 2."""
        order = whole_number("order", order, 0, 2, "give the order of the derivative")
        at = real_tensor("x", x)
        if order == 0:
            return self._between(at, self.values[:, None])[..., 0] + self._outside(at)
        return self._between(at, _derivative(self.values, self.window, order)[:, None])[..., 0]

    def std(self, x: Tensor | np.ndarray | float) -> Tensor:
        """Standard deviation of V at x, from the covariance of the recovered coefficients (delta method)."""
        if self.covariance_factor is None:
            raise InputError(NO_ERRORS)
        return self._between(real_tensor("x", x), self.covariance_factor).norm(dim=-1)

    def _between(self, x: Tensor, columns: Tensor) -> Tensor:
        """(n + 1, k) values on the nodes -> (..., k) at x, by 8-point interpolation in u; what is constant outside
        stays, anything else is zero there.
        """
        low, high = self.window
        half = 0.5 * (high - low)
        flat = x.reshape(-1).clamp(low, high)
        place = positions((flat - low) / half, (high - flat) / half, self.n_modes)
        first = place.floor().long() - HALF + 1
        offsets = torch.arange(2 * HALF)
        index = (first[:, None] + offsets).clamp(0, self.n_modes)  # beyond the last node V is what it is there
        weights = torch.ones((len(flat), 2 * HALF), dtype=torch.float64)
        t = place - first
        for i in range(2 * HALF):
            for j in range(2 * HALF):
                if i != j:
                    weights[:, i] *= (t - j) / (i - j)
        out = torch.einsum("nk,nkp->np", weights, columns[index])
        if self.exterior != "constant":
            beyond = (x.reshape(-1) < low) | (x.reshape(-1) > high)
            out = torch.where(beyond[:, None], torch.zeros_like(out), out)
        return out.reshape(*x.shape, columns.shape[1])

    def _outside(self, x: Tensor) -> Tensor:
        """What is given beyond the ends; zero inside."""
        if self.outside is None:
            return torch.zeros_like(x)
        low, high = self.window
        half, known = 0.5 * (high - low), distances().log().numpy()
        out = np.zeros(x.shape)
        for values, away in zip(self.outside.numpy(), ((low - x) / half, (x - high) / half)):
            beyond = away.numpy() > 0
            out[beyond] = np.interp(np.log(away.numpy()[beyond]), known, values)
        return torch.from_numpy(out)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only); an earlier one is replaced once the new one is complete."""
        return save_fields(self, _MARK, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LineValue:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        return load_fields(cls, _MARK, path, is_line_value)


def _derivative(values: Tensor, window: tuple[float, float], order: int) -> Tensor:
    """At the nodes, (n + 1,); that of an end is that of the node next to it."""
    n = len(values) - 1
    grid = line_grid(n)
    padded = np.concatenate([np.full(HALF, values[0]), values.numpy(), np.full(HALF, values[-1])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF + 1)[1:-1]
    first, second = (windows @ w / grid.h ** (k + 1) for k, w in enumerate(differences()))
    slope, bend = grid.slope[grid.inner], grid.bend[grid.inner]
    found = first / slope if order == 1 else (second - bend * first) / slope**2
    half = 0.5 * (window[1] - window[0])
    return torch.from_numpy(np.concatenate([found[:1], found, found[-1:]]) / half**order)


def is_line_value(content: Mapping[str, Any]) -> bool:
    values, factor, outside, window = (content[k] for k in ("values", "covariance_factor", "outside", "window"))
    return (
        isinstance(values, Tensor)
        and values.ndim == 1
        and values.dtype == torch.float64
        and 16 <= len(values) - 1 <= 1 << 14
        and isinstance(window, tuple)
        and [type(end) for end in window] == [float, float]
        and window[0] < window[1]
        and (factor is None or (isinstance(factor, Tensor) and factor.ndim == 2 and len(factor) == len(values)))
        and (outside is None or (isinstance(outside, Tensor) and outside.shape == (2, len(distances()))))
        and isinstance(content["beta"], float)
        and content["exterior"] in EXTERIORS
    )


def resolvent_on_line(
    n: int,
    window: tuple[float, float],
    b: Tensor,
    D_o: Tensor,
    D_f: Tensor,
    alpha: float,
    r: Tensor,
    beta: float,
    exterior: Exterior | None = None,
) -> Tensor:
    """V at the inner nodes for many coefficient sets at once: (batch, n - 1) each, or (n - 1,) where all share it.

    The nodes are `operators_at(n, window)`. Returns (batch, n - 1).
    """
    outside = exterior or Exterior(True)
    ops = line_operators(n, window, torch.tensor(alpha, dtype=torch.float64), outside)
    shape = torch.broadcast_shapes(b.shape, D_o.shape, D_f.shape, r.shape)
    b, D_o, D_f, r = (v.to(torch.float64).expand(shape).reshape(-1, n - 1) for v in (b, D_o, D_f, r))
    size = torch.full((n - 1,), beta, dtype=torch.float64)
    for c, part in ((b, ops.first), (D_o, ops.second), (D_f, ops.fractional)):
        size += c.abs().amax(0) * part.abs().amax(1)
    right = r + b * ops.first_end + D_o * ops.second_end - D_f * ops.fractional_end
    out = torch.empty_like(right)
    alone = torch.ones(len(right), dtype=torch.bool)
    if len(right) > _FEW:
        alone = _around_the_mean(ops, b, D_o, D_f, right, beta, size, out)
    if bool(alone.any()):
        identity = torch.eye(n - 1, dtype=torch.float64)
        parts = torch.stack([identity, ops.first, ops.second, ops.fractional], dim=1) / size[:, None, None]
        weights = torch.stack([torch.full_like(b[alone], beta), -b[alone], -D_o[alone], D_f[alone]], dim=2)
        out[alone] = solve_many(parts, weights, right[alone] / size)
    return out.reshape(shape)


def _around_the_mean(
    ops: LineOperators, b: Tensor, D_o: Tensor, D_f: Tensor, right: Tensor, beta: float, size: Tensor, out: Tensor
) -> Tensor:
    """Fills the rows of `out` whose corrections contract; returns which do not, (batch,) bool."""
    mean = D_f.mean(0)[:, None] * ops.fractional - b.mean(0)[:, None] * ops.first - D_o.mean(0)[:, None] * ops.second
    mean.diagonal().add_(beta)
    inverse, failed = torch.linalg.inv_ex(mean / size[:, None])
    if bool(failed) or not bool(torch.isfinite(inverse).all()):
        return torch.ones(len(right), dtype=torch.bool)
    back, m = (inverse / size).T.contiguous(), len(size)
    forward = torch.cat([ops.first, ops.second, ops.fractional]).T.contiguous()  # (m, 3 m)
    left = torch.zeros(len(right), dtype=torch.bool)
    for start in range(0, len(right), _CHUNK):
        rows = slice(start, start + _CHUNK)
        own, V = [c[rows] for c in (b, D_o, D_f)], right[rows] @ back
        for _ in range(_ROUNDS):
            first, second, jumps = (V @ forward).split(m, dim=1)
            residual = right[rows] - beta * V + own[0] * first + own[1] * second - own[2] * jumps
            step = residual @ back
            V = V + step
            moved = step.abs().amax(1) / V.abs().amax(1).clamp(min=1e-300)
            if not bool((moved > _DONE).any()):
                break
        out[rows] = V
        left[rows] = ~(moved <= _DONE)
    return left
