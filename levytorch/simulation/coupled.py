"""Two steps of the same system from the same uniform random numbers: one that follows the coefficients along the step,
and one that holds them at its start.

    fine      substeps of dt / m with the coefficients of every place on the way, extrapolated for second weak order
    frozen    the same substeps with the coefficients of the state where the step began

The frozen step has exactly the law with constant coefficients, because sums of its independent parts have it. Both read
the same uniform numbers in every substep, so that they differ only by what the change of the coefficients does: means
of their differences need few simulations. The steps share uniform numbers and not increments, because with an alpha
that depends on the state, or with tempering, the increments of the two have different laws.

Every number is a function of (seed, purpose, item, substep, position); see kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.convert import Array
from levytorch.law.threads import spread
from levytorch.simulation.coupled_kernels import increments, stable_times, tempered_times
from levytorch.simulation.kernels import add_gaussian, stream_keys
from levytorch.simulation.substeps import Extrapolation

CHUNK = 16_384  # steps at a time, which stay in the cache
_LEAST = 0.2  # of a coefficient: its extrapolation does not fall below this part of it
_PURPOSE = 16  # of the random streams; smaller ones belong to the simulation of trajectories

Field = Callable[[Tensor], Coefficients]  # coefficients at states (n,), (n, d), or (n, columns) with further inputs


class CoupledSteps(NamedTuple):
    """Displacements (n,) or (n, d) of the step that follows the coefficients and of the one that holds them."""

    fine: Tensor
    frozen: Tensor


class Substep(NamedTuple):
    """One substep of both: where the fine path is, in the shape of x, and the displacements (n,) or (n, d)."""

    x: Tensor
    fine: Tensor
    frozen: Tensor


def coupled_steps(
    field: Field,
    x: Tensor,
    dt: Tensor,
    substeps: int,
    *,
    dim: int = 1,
    seed: int = 0,
    round: int = 0,
    first: int = 0,
    extrapolate: bool = True,
) -> CoupledSteps:
    """One pair of coupled steps from each of n states.

    Args:
        field: the coefficients, evaluated without gradients.
        x: states (n,) or (n, d), or (n, columns), of which the first `dim` move and the others are held.
        dt: (n,) or 0-d.
        substeps: of each step.
        seed, round, first: the streams of random numbers; step i reads that of item first + i in this round.
        extrapolate: False for Euler's rule, whose substeps have the coefficients of the place where they begin.
    """

    def part(low: int) -> CoupledSteps:
        rows = slice(low, low + CHUNK)
        h = dt if dt.dim() == 0 else dt[rows]
        fine, frozen = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        keys = stream_keys(seed, _PURPOSE + round, first + low, len(x[rows]))
        for one in _substeps(field, x[rows], h, substeps, dim, keys, extrapolate):
            fine, frozen = fine + one.fine, frozen + one.frozen
        return CoupledSteps(fine, frozen)

    parts = spread(part, range(0, len(x), CHUNK))
    return CoupledSteps(*(torch.cat(values) for values in zip(*parts)))


def coupled_substeps(
    field: Field,
    x: Tensor,
    dt: Tensor,
    substeps: int,
    items: Tensor,
    *,
    dim: int = 1,
    seed: int = 0,
    round: int = 0,
    extrapolate: bool = True,
) -> Iterator[Substep]:
    """The substeps of `coupled_steps`, one after the other, all steps side by side; items (n,): their streams."""
    numbers = items.numpy()
    first = int(numbers.min(initial=0)) if len(numbers) else 0
    keys = stream_keys(seed, _PURPOSE + round, first, int(numbers.max(initial=first)) - first + 1)[numbers - first]
    return _substeps(field, x, dt, substeps, dim, keys, extrapolate)


@torch.no_grad()
def _substeps(
    field: Field, x: Tensor, dt: Tensor, substeps: int, dim: int, keys: NDArray[np.uint64], extrapolate: bool
) -> Iterator[Substep]:
    n = len(x)
    h = np.broadcast_to(dt.numpy() / substeps, (n,))
    start = _Columns(field(x), n, dim)
    lam = float(start.tempering)
    drift0, jumps0 = start.b * h, start.D_f * h
    ahead = Extrapolation(substeps if extrapolate else 1, _LEAST)
    T, T0, spare, spare0 = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    place = x
    moved = torch.zeros_like(x)
    for substep in range(substeps):
        now = start if substep == 0 else _Columns(field(place), n, dim)
        b, D_o, D_f = ahead("b", now.b), ahead("D_o", now.D_o), ahead("D_f", now.D_f)
        jumps = D_f * h
        if lam > 0:
            tempered_times(keys, substep, jumps, now.alpha, jumps0, start.alpha, lam, T, T0)
        else:
            stable_times(keys, substep, jumps, now.alpha, jumps0, start.alpha, now.shared, T, T0)
        step, step0 = np.zeros((dim, n)), np.zeros((dim, n))
        if D_o.ndim == 1:
            variance, variance0 = 2.0 * (D_o * h + T), 2.0 * start.D_o * h + 2.0 * T0
            increments(keys, substep, b * h, variance, drift0, variance0, step, step0, spare)
        else:
            add_gaussian(step, b * h, D_o * h, T, 1.0, keys, substep, spare)
            add_gaussian(step0, drift0, start.D_o * h, T0, 1.0, keys, substep, spare0)
        fine, frozen = (torch.from_numpy(v[0] if dim == 1 else np.ascontiguousarray(v.T)) for v in (step, step0))
        yield Substep(place, fine, frozen)
        if x.shape == fine.shape:
            moved = moved + fine
        else:  # further columns, which are held
            moved = moved.clone()
            moved[:, :dim] += fine.reshape(n, dim)
        place = x + moved


class _Columns:
    """Coefficients as arrays: b (d, n), the others (n,), a matrix D_o (d, d, n). shared: one alpha for all states."""

    def __init__(self, c: Coefficients, n: int, dim: int) -> None:
        def row(values: Tensor) -> Array:
            return np.ascontiguousarray(np.broadcast_to(values.detach().numpy(), (n, *values.shape[1:])).T)

        self.b: Array = np.ascontiguousarray(c.b.detach().numpy().reshape(n, dim).T)
        self.D_o, self.D_f, self.alpha = row(c.D_o), row(c.D_f), row(c.alpha)
        self.shared, self.tempering = c.alpha.dim() == 0, c.tempering
