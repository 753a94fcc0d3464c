"""Euler-Maruyama sampling (section 2 of the paper: unbiased trajectory data).

Between two observations dt apart the path takes `substeps` Euler steps of dt / substeps (the paper: about ten), each with
exact Gaussian and stable increments. Coefficients are evaluated with torch on a whole chunk of trajectories at a time.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, LevytorchWarning, NumericalError

Array = NDArray[np.float64]
CHUNK = (
    16_384  # states in flight per thread: stays in the cache, and below the size at which torch spawns threads itself
)
_LONG = 4e7  # substeps (about two seconds) from which a progress bar is worth its line


def kernels() -> ModuleType:
    """The compiled kernels, or their NumPy twins (with a warning) where numba cannot be imported."""
    try:
        from levytorch.simulation import kernels as compiled
    except ImportError as missing:
        from levytorch.simulation import plain

        warnings.warn(
            f"numba cannot be imported ({missing}), so simulation runs in plain NumPy, some ten times slower: install numba.",
            LevytorchWarning,
            stacklevel=3,
        )
        return plain
    return compiled


def initial_states(dynamics: Dynamics, n: int, x0: Any, seed: int) -> Array:
    """(n, d) initial states: given (one for all, or one per trajectory), or uniform on the period."""
    d = dynamics.dim
    if x0 is None:
        period = np.broadcast_to(np.asarray(dynamics.period, dtype=np.float64), (d,))
        if not np.isfinite(period).all():
            raise InputError(
                "x0 must be given when period is infinite, found None: pass a number or one per trajectory."
            )
        u = kernels().uniforms(seed, 1, 0, n, 0, d)
        return np.asarray(np.asarray(dynamics.origin, dtype=np.float64) + period * u)
    states = np.array(torch.as_tensor(x0, dtype=torch.float64).detach().cpu().numpy())
    if states.ndim == 0 or (d > 1 and states.shape == (d,)):
        states = np.broadcast_to(states, (n, d)).copy()
    elif d == 1 and states.shape == (n,):
        states = states[:, None]
    if states.shape != (n, d):
        one, many = ("a number", f"({n},)") if d == 1 else (f"shape ({d},)", f"({n}, {d})")
        raise InputError(f"x0 must be {one} or of shape {many}, found shape {states.shape}: one state per trajectory.")
    if not np.isfinite(states).all():
        raise InputError(
            f"x0 must be finite, found {states[~np.isfinite(states)][0]} for trajectory "
            f"{int(np.argwhere(~np.isfinite(states))[0, 0])}: remove it."
        )
    return states


def euler(
    dynamics: Dynamics, x0: Array, n_steps: int, dt: float, substeps: int, seed: int, progress: bool | None
) -> Array:
    """(n, n_steps + 1, d) states, `substeps` Euler-Maruyama steps between any two."""
    from tqdm import tqdm

    engine = kernels()
    n, d = x0.shape
    h = dt / substeps
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    threads = max(1, torch.get_num_threads())
    size = min(CHUNK, -(-n // threads))
    path = _constant if dynamics.is_constant else _variable
    long = n * n_steps * substeps > _LONG
    hide = (None if long else True) if progress is None else not progress  # None: only where there is a terminal
    with (
        tqdm(total=n, desc="simulate", unit=" trajectories", disable=hide, leave=False) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        firsts = range(0, n, size)
        jobs = [pool.submit(path, engine, dynamics, out[i : i + size], h, substeps, seed, i) for i in firsts]
        try:
            for job in jobs:
                bar.update(job.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if not np.isfinite(out[:, -1]).all():
        raise NumericalError(
            "simulate left the range of float64, found an infinite state: alpha is too small or dt too long for these "
            "coefficients, so choose a larger alpha or a shorter dt."
        )
    return out


def _constant(
    engine: ModuleType, dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int
) -> int:
    b = np.broadcast_to(dynamics.b.value.numpy(), (dynamics.dim,)).copy()  # type: ignore[union-attr]
    values = [float(c.value) for c in (dynamics.D_o, dynamics.D_f, dynamics.alpha_at)]  # type: ignore[arg-type]
    engine.advance_constant(part, b, *values, h, substeps, seed, first)
    return len(part)


@torch.no_grad()
def _variable(
    engine: ModuleType, dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int
) -> int:
    d = dynamics.dim
    state = part[:, 0].copy()
    x = torch.from_numpy(state)  # shares memory: the kernel writes, torch reads
    view = x[:, 0] if d == 1 else x
    fixed = {c.name: c.value for c in (dynamics.b, dynamics.D_o, dynamics.D_f, dynamics.alpha_at)}

    def at(coefficient: Any, width: int | None) -> Array:
        value = fixed[coefficient.name]
        if value is not None:
            array = value.numpy().reshape(-1)
            return np.broadcast_to(array, (width,)).reshape(1, width).copy() if width else array
        array = np.ascontiguousarray(coefficient(view).cpu().numpy())
        return array.reshape(-1, width) if width else array

    for step in range(1, part.shape[1]):
        for substep in range((step - 1) * substeps, step * substeps):
            D_o, D_f = at(dynamics.D_o, None), at(dynamics.D_f, None)
            engine.advance(state, at(dynamics.b, d), D_o, D_f, at(dynamics.alpha_at, None), h, seed, first, substep)
        part[:, step] = state
    return len(part)
