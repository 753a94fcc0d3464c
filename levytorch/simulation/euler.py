"""Euler-Maruyama sampling (section 2 of the paper: unbiased trajectory data).

Between two observations dt apart the path takes `substeps` Euler steps of dt / substeps (the paper: about ten), each
with exact Gaussian and stable increments; of second weak order they freeze extrapolated coefficients (`second_order`).
On a line, drift that is too steep for such a step is followed implicitly (`stiff`). Coefficients are evaluated with
torch on a chunk of trajectories at a time.
"""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, real_array
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.law.step import tempered_time
from levytorch.simulation.second_order import Extrapolation
from levytorch.simulation.stiff import effective_drift

CHUNK = 24_576  # trajectories in flight per thread: they stay in the cache, and torch spawns no threads of its own
BLOCK = 4096  # trajectories with tempered jumps that share a random stream
_LANES = 64  # torch's other code for the odd end of an array has other last bits: chunks are padded
_TINY = 1e-300  # stands for D_f h = 0
_LONG = 1e8  # substeps (some seconds) from which a progress bar is worth its line


def step_kernels() -> ModuleType:
    """The compiled kernels, or their NumPy twins (with a warning) where numba cannot be imported."""
    try:
        from levytorch.simulation import kernels as compiled
    except ImportError as missing:
        from levytorch.simulation import numpy_kernels

        warnings.warn(
            f"numba cannot be imported ({missing}), so simulation runs in NumPy, several times slower: install numba.",
            LevytorchWarning,
            stacklevel=3,
        )
        return numpy_kernels
    return compiled


def initial_states(dynamics: Dynamics, n: int, x0: Any, seed: int) -> Array:
    """(n, d) initial states: given (one for all, or one per trajectory), or uniform on the period, or on the window."""
    d = dynamics.dim
    if x0 is None:
        period = np.broadcast_to(np.asarray(dynamics.period, dtype=np.float64), (d,))
        origin = np.broadcast_to(np.asarray(dynamics.origin, dtype=np.float64), (d,))
        if not np.isfinite(period).all():
            if dynamics.window is None:
                raise InputError("x0 must be given when period is infinite, found None; pass a number or an array.")
            ends = np.asarray(dynamics.window, dtype=np.float64).reshape(d, 2)
            line = np.isinf(period)
            period, origin = np.where(line, ends[:, 1] - ends[:, 0], period), np.where(line, ends[:, 0], origin)
        engine, u = step_kernels(), np.empty((d, n))
        engine.uniforms(engine.stream_keys(seed, 1, 0, n), 0, u)
        return np.asarray(origin + period * u.T)
    states = np.array(real_array("x0", x0))
    if states.ndim == 0 or (d > 1 and states.shape == (d,)):
        states = np.broadcast_to(states, (n, d)).copy()
    elif d == 1 and states.shape == (n,):
        states = states[:, None]
    if states.shape != (n, d):
        one, many = ("a number", f"({n},)") if d == 1 else (f"shape ({d},)", f"({n}, {d})")
        raise InputError(f"x0 must be {one} or of shape {many}, found shape {states.shape}; one state per trajectory.")
    if not np.isfinite(states).all():
        bad = np.argwhere(~np.isfinite(states))[0]
        raise InputError(f"x0 must be finite, found {states[tuple(bad)]} for trajectory {bad[0]}; remove it.")
    return states


def euler(
    dynamics: Dynamics, x0: Array, n_steps: int, dt: float, substeps: int, seed: int, progress: bool | None, order: int
) -> Array:
    """(n, n_steps + 1, d) states, `substeps` Euler-Maruyama steps between any two, of weak order 1 or 2."""
    from tqdm import tqdm

    if dynamics.tempering > 0:
        return _tempered(dynamics, x0, n_steps, dt, substeps, seed, order)
    engine = step_kernels()
    n, d = x0.shape
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    threads = max(1, torch.get_num_threads())
    size = min(CHUNK, -(-n // threads))
    path = _constant if dynamics.is_constant else functools.partial(_variable, order=order)
    long = n * n_steps * substeps > _LONG
    hide = (None if long else True) if progress is None else not progress  # None: only where there is a terminal
    with (
        tqdm(total=n, desc="simulate", unit=" trajectories", disable=hide, leave=False) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        firsts = range(0, n, size)
        h = dt / substeps
        jobs = [pool.submit(path, engine, dynamics, out[i : i + size], h, substeps, seed, i) for i in firsts]
        try:
            for job in jobs:
                bar.update(job.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    refuse_infinite(out)
    return out


def refuse_infinite(
    states: Array,
    remedy: str = "alpha is too small or dt too long for these coefficients, so choose a larger alpha or a shorter dt",
) -> None:
    """Refuse paths that have left the numbers."""
    if not np.isfinite(states[:, -1]).all():
        raise NumericalError(f"states must stay within float64, found an infinite one; {remedy}.")


def _constant(
    engine: ModuleType, dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int
) -> int:
    """All steps of some trajectories in one call."""
    n, _, d = part.shape
    probe = dynamics.cell(1)
    b = np.ascontiguousarray(np.broadcast_to(dynamics.b(probe).numpy().reshape(d, 1), (d, n)))
    D_o, D_f, alpha = (np.full(n, float(c(probe))) for c in (dynamics.D_o, dynamics.D_f, dynamics.alpha_at))
    x = part[:, 0].T.copy(order="C")  # never a view: the kernel moves it
    keys = engine.stream_keys(seed, 0, first, n)
    space = np.empty(n), np.empty(n)
    jump = 1.0 / np.maximum(D_f * h, _TINY)
    engine.advance_constant(part, x, b, D_o * h, jump, alpha, 1.0 / alpha, h, keys, substeps, *space)
    return n


@torch.no_grad()
def _variable(
    engine: ModuleType, dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int, order: int
) -> int:
    """All steps of some trajectories, the coefficients evaluated before each substep."""
    n, d = len(part), dynamics.dim
    padded = -(-n // _LANES) * _LANES
    x = np.empty((d, padded))
    x[:, :n] = part[:, 0].T
    x[:, n:] = x[:, :1]
    cell = dynamics.wrap(x[0] if d == 1 else x.T).numpy().reshape(padded, d).T.copy(order="C")
    inside = torch.from_numpy(cell)  # shares memory: the kernel reduces x to the cell, torch reads it
    inside = inside[0] if d == 1 else inside.T
    period, origin = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), (d,)).copy() for v in (dynamics.period, dynamics.origin)
    )
    keys, scale, spare = engine.stream_keys(seed, 0, first, padded), np.empty(padded), np.empty(padded)
    coefficients = (dynamics.b, dynamics.D_o, dynamics.D_f, dynamics.alpha_at)
    on_line = d == 1 and not dynamics.repeats
    fixed = {c.name: np.ascontiguousarray(c.inside(inside).numpy().T) for c in coefficients if c.value is not None}
    inverse_alpha = 1.0 / fixed["alpha"] if "alpha" in fixed else None
    ahead = Extrapolation(substeps) if order == 2 else None
    for step in range(1, part.shape[1]):
        if ahead is not None:
            ahead.restart()
        for substep in range((step - 1) * substeps, step * substeps):
            b, D_o, D_f, alpha = (
                fixed[c.name] if c.value is not None else np.ascontiguousarray(c.inside(inside).cpu().numpy().T)
                for c in coefficients
            )
            if on_line and dynamics.b.value is None:
                b = effective_drift(dynamics.b.inside, inside, torch.from_numpy(b.reshape(-1)), h).numpy()
            b = b.reshape(d, padded)
            if ahead is not None:
                b, D_o, D_f = ahead("b", b), ahead("D_o", D_o), ahead("D_f", D_f)
            jump = 1.0 / np.maximum(D_f * h, _TINY)
            if "alpha" not in fixed:
                inverse_alpha = 1.0 / alpha
            engine.advance(
                x, cell, b, D_o * h, jump, alpha, inverse_alpha, h, period, origin, keys, substep, scale, spare
            )
        part[:, step] = x[:, :n].T
    return n


def _tempered(dynamics: Dynamics, x0: Array, n_steps: int, dt: float, substeps: int, seed: int, order: int) -> Array:
    """Tempered jumps: dX = b h + sqrt(2 D_o h + 2 T) G, T the tempered stable time of D_f h.

    With constants one step is exact, whatever its length, and substeps are not taken. Blocks of a fixed number of
    trajectories have random streams of their own, so that the numbers do not depend on the number of threads.
    """
    n, d = x0.shape
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    if dynamics.is_constant:
        substeps = 1
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        jobs = [
            pool.submit(_tempered_block, dynamics, out[i : i + BLOCK], dt / substeps, substeps, seed, i, order)
            for i in range(0, n, BLOCK)
        ]
        for job in jobs:
            job.result()
    refuse_infinite(out, "choose a shorter dt or a larger tempering")
    return out


@torch.no_grad()
def _tempered_block(
    dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int, order: int
) -> None:
    generator = block_stream(seed, first)
    d = dynamics.dim
    x = torch.from_numpy(part[:, 0].copy()).reshape(-1) if d == 1 else torch.from_numpy(part[:, 0].copy())
    ahead = Extrapolation(substeps) if order == 2 else None
    for step in range(1, part.shape[1]):
        if ahead is not None:
            ahead.restart()
        for _ in range(substeps):
            inside = dynamics.wrap(x)
            b, D_o, D_f, alpha = (c.inside(inside) for c in (dynamics.b, dynamics.D_o, dynamics.D_f, dynamics.alpha_at))
            if ahead is not None:
                b, D_o, D_f = (
                    torch.from_numpy(ahead(name, c.numpy())) for name, c in (("b", b), ("D_o", D_o), ("D_f", D_f))
                )
            x = x + b * h + tempered_noise(x.shape, D_o * h, D_f * h, alpha, dynamics.tempering, generator)
        part[:, step] = x.reshape(len(part), d).numpy()


def block_stream(seed: int, first: int) -> torch.Generator:
    """The random numbers of the block of trajectories that begins with `first`."""
    return torch.Generator().manual_seed((seed * 1_000_003 + first) % (2**63))


def tempered_noise(
    shape: torch.Size, A: Tensor, B: Tensor, alpha: Tensor, tempering: float, generator: torch.Generator
) -> Tensor:
    """What a step adds to its drift, of shape (n,) or (n, d); A = D_o h, B = D_f h and alpha: (n,)."""
    jumps = B > 0
    lam = torch.where(jumps, tempering, 0.0).to(torch.float64)
    time = tempered_time(alpha, torch.where(jumps, B, 1.0), lam, generator)
    spread = torch.sqrt(2.0 * (A + torch.where(jumps, time, 0.0)))
    gauss = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (spread if len(shape) == 1 else spread.unsqueeze(-1)) * gauss
