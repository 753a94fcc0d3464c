"""How good a lattice is: what interpolation does to log p, looked at on some of the pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.data.lattice import Lattice
from levytorch.data.lattice_build import SAME_DT
from levytorch.data.lattice_kernels import SPARE, place_of, stencil
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

LogProb = Callable[[Tensor, Tensor, Tensor], Tensor]


class InterpolationError(NamedTuple):
    """Error of a sum over all pairs of the lattice and its standard deviation, and the error of one pair (root mean
    square).
    """

    total: Tensor
    std: Tensor
    per_pair: Tensor


def interpolation_error(
    lattice: Lattice, transitions: Transitions, log_prob: LogProb, *, n: int = 2000, seed: int = 0
) -> InterpolationError:
    """Estimate sum over nodes of weight * log_prob minus the sum over pairs, from n random pairs of the data.

    Args:
        transitions: pairs like those of the lattice.
        log_prob: (x, dx, dt) -> (m,), or (m, C) for C functions at once, such as scores.
    """
    n = min(whole_number("n", n, 2), len(transitions))
    rows = torch.from_numpy(np.random.default_rng(seed).choice(len(transitions), n, replace=False))
    x, dx, dt = (t[rows].numpy() for t in (transitions.x, transitions.dx, transitions.dt))
    sheet = np.abs(dt[:, None] - lattice.dt).argmin(1)
    if (np.abs(dt - lattice.dt[sheet]) > 2 * SAME_DT * dt).any():
        raise InputError("transitions must have the dt of the lattice, found others; pass some of its own data.")
    far = np.abs(dx - lattice.centers[sheet])
    gridded = (far < lattice.TRT[sheet]) & (far <= lattice.reach)
    errors = []
    for k, step in enumerate(lattice.dt.tolist()):
        mine = gridded & (sheet == k)
        errors.append(_errors(lattice, x[mine], dx[mine], step, log_prob))
    # what was removed counts for nothing, and loose pairs are exact
    kept = torch.from_numpy(far < lattice.TRT[sheet])
    found = torch.cat(errors)
    m = int(kept.sum())
    if m < 2:
        raise InputError(f"transitions must hold at least two pairs within TRT, found {m}; pass more of the data.")
    size, mean = lattice.n_main, found.sum(0) / m
    variance = ((found - mean) ** 2).sum(0) + (m - len(found)) * mean**2
    std = size * (variance / (m - 1) / m).sqrt() * math.sqrt(max(0.0, 1.0 - m / size))
    return InterpolationError(size * mean, std, ((found**2).sum(0) / m).sqrt())


def _errors(lattice: Lattice, x: np.ndarray, dx: np.ndarray, dt: float, log_prob: LogProb) -> Tensor:
    """Interpolated minus true log_prob of pairs of one dt."""
    grid = lattice.grid
    first = 0 if grid.n_x else math.floor(float(x.min()) / grid.spacing) if len(x) else 0
    columns = grid.n_x or (math.ceil(float(x.max()) / grid.spacing) - first + 1 if len(x) else 1)
    column, row, in_x, in_dx, inside = stencil(x, dx, place_of(grid, dt, first, columns))
    column, row, x, dx = column[inside], row[inside], x[inside], dx[inside]
    in_x, in_dx = in_x[:, inside], in_dx[:, inside]
    spread = np.arange(6)
    nodes_x = grid.x(first + column[:, None, None] - SPARE + spread)
    nodes_dx = grid.dx(row[:, None, None] - grid.last - SPARE + spread[:, None], dt)
    nodes_x, nodes_dx = np.broadcast_arrays(nodes_x, nodes_dx)
    weight = torch.from_numpy((in_dx.T[:, :, None] * in_x.T[:, None, :]).reshape(-1))
    step = torch.full((), dt, dtype=torch.float64)
    nodes = [torch.from_numpy(v.reshape(-1).copy()) for v in (nodes_x, nodes_dx)]
    at_nodes = log_prob(nodes[0], nodes[1], step)
    true = log_prob(torch.from_numpy(x), torch.from_numpy(dx), step)
    extra = [1] * (at_nodes.dim() - 1)
    interpolated = (at_nodes * weight.reshape(-1, *extra)).reshape(len(x), 36, *at_nodes.shape[1:]).sum(1)
    return (interpolated - true).detach()
