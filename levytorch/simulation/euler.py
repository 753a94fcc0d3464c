"""Euler-Maruyama sampling (section 2 of the paper: unbiased trajectory data).

Between two observations dt apart the path takes `substeps` Euler steps of dt / substeps (the paper: about ten), each
with exact Gaussian and stable increments and the coefficients of `substeps`. Tempered jumps are a time change:
dX = b h + sqrt(2 D_o h + 2 T) G, T the tempered stable time of D_f h. Coefficients are evaluated with torch on a chunk
of trajectories at a time. Of a system with actions one is drawn at every observation and held until the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.controlled import ControlledDynamics
from levytorch.convert import Array, real_array
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import Jumps
from levytorch.policies import NumberPolicy, Policy
from levytorch.simulation import kernels
from levytorch.simulation.substeps import Extrapolation, effective_drift
from levytorch.spaces import coordinates

CHUNK = 24_576  # trajectories in flight per thread: they stay in the cache, and torch spawns no threads of its own
BLOCK = 4096  # trajectories with tempered jumps that share a random stream
_LANES = 64  # torch's other code for the odd end of an array has other last bits: chunks are padded
_TINY = 1e-300  # stands for D_f h = 0
_LONG = 1e8  # substeps (some seconds) from which a progress bar is worth its line
_ACTIONS = 2  # the purpose of their random streams; 0 and 1 are those of the noise and of the initial states

_Coefficients = Callable[[str, Tensor], Tensor]  # (name, states) -> values


def initial_states(dynamics: Dynamics, n: int, x0: Any, seed: int) -> Array:
    """(n, d) initial states: given (one for all, or one per trajectory), or uniform on the period, or on the window."""
    d = dynamics.dim
    if x0 is None:
        parts = coordinates(dynamics.space)
        low, length = (np.array(v) for v in zip(*((part.ends[0], part.length) for part in parts)))
        if not np.isfinite(length).all():
            raise InputError("x0 must be given for a system on a line, found None; pass one, or one per path.")
        u = np.empty((d, n))
        kernels.uniforms(kernels.stream_keys(seed, 1, 0, n), 0, u)
        return np.asarray(low + length * u.T)
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

    n, d = x0.shape
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    threads = max(1, torch.get_num_threads())
    size = min(CHUNK, -(-n // threads))
    path: Callable[..., int] = functools.partial(_variable, order=order)
    if not dynamics.jumps.is_stable:  # with constants one step is exact, whatever its length
        size, substeps = BLOCK, 1 if dynamics.is_constant else substeps
    elif dynamics.is_constant and not dynamics.has_matrix:
        path = _constant
    long = n * n_steps * substeps > _LONG
    hide = (None if long else True) if progress is None else not progress  # None: only where there is a terminal
    with (
        tqdm(total=n, desc="simulate", unit=" trajectories", disable=hide, leave=False) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        firsts = range(0, n, size)
        h = dt / substeps
        jobs = [pool.submit(path, dynamics, out[i : i + size], h, substeps, seed, i) for i in firsts]
        try:
            for job in jobs:
                bar.update(job.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _refuse_infinite(out, dynamics.jumps)
    return out


@torch.no_grad()
def held(
    system: ControlledDynamics,
    policy: Policy | NumberPolicy,
    x0: Array,
    n_steps: int,
    dt: float,
    substeps: int,
    seed: int,
    order: int,
) -> tuple[Array, Array]:
    """(n, n_steps + 1, d) states, and what was held between them: (n, n_steps) numbers of labels, or (n, n_steps, m)
    actions on a scale.
    """
    n, d = x0.shape
    m = 1 if system.actions else len(system.bounds)
    out, actions = np.empty((n, n_steps + 1, d)), np.empty((n, n_steps, m))
    out[:, 0] = x0
    size = CHUNK if system.first.jumps.is_stable else BLOCK
    for i in range(0, n, size):
        parts = out[i : i + size], actions[i : i + size]
        _held(system, policy, *parts, dt / substeps, substeps, seed, i, order)
    _refuse_infinite(out, system.first.jumps)
    return out, actions[..., 0].astype(np.int64) if system.actions else actions


def _refuse_infinite(states: Array, jumps: Jumps) -> None:
    """Refuse paths that have left the numbers."""
    if not np.isfinite(states[:, -1]).all():
        remedy = "choose a shorter dt or a larger tempering"
        if jumps.is_stable:
            remedy = (
                "alpha is too small or dt too long for these coefficients, so choose a larger alpha or a shorter dt"
            )
        raise NumericalError(f"states must stay within float64, found an infinite one; {remedy}.")


def _constant(dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int) -> int:
    """All steps of some trajectories in one call."""
    n, _, d = part.shape
    probe = dynamics.points(1)
    b = np.ascontiguousarray(np.broadcast_to(dynamics.b(probe).numpy().reshape(d, 1), (d, n)))
    D_o, D_f, alpha = (np.full(n, float(c(probe))) for c in (dynamics.D_o, dynamics.D_f, dynamics.alpha_at))
    x = part[:, 0].T.copy(order="C")  # never a view: the kernel moves it
    keys = kernels.stream_keys(seed, 0, first, n)
    space = np.empty(n), np.empty(n)
    jump = 1.0 / np.maximum(D_f * h, _TINY)
    kernels.advance_constant(part, x, b, D_o * h, jump, alpha, 1.0 / alpha, h, keys, substeps, *space)
    return n


class _Paths:
    """Some trajectories side by side: x (d, n), `reduced`, x in the cell, and their random streams.

    inside: these as states of torch, (n,) or (n, d). Blocks with tempered jumps, of a fixed number of trajectories,
    have a stream of their own, so that the numbers do not depend on the number of threads.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        start: Array,
        h: float,
        seed: int,
        first: int,
        ahead: Extrapolation | None,
    ) -> None:
        self.dynamics, self.h, self.ahead = dynamics, h, ahead
        n, d = start.shape
        self.x = start.T.copy(order="C")
        self.reduced = self._wrapped().copy(order="C")
        inside = torch.from_numpy(self.reduced)  # shares memory: the kernel reduces x to the cell, torch reads it
        self.inside = inside[0] if d == 1 else inside.T
        ends = (dynamics.period, dynamics.origin)
        self.period_and_origin = tuple(np.broadcast_to(np.asarray(v, dtype=np.float64), (d,)).copy() for v in ends)
        self.keys, self.space = kernels.stream_keys(seed, 0, first, n), (np.empty(n), np.empty(n))
        self.generator = torch.Generator().manual_seed((seed * 1_000_003 + first) % (2**63))

    def _wrapped(self) -> Array:
        d, n = self.x.shape
        return self.dynamics.wrap(self.x[0] if d == 1 else self.x.T).numpy().reshape(n, d).T

    def observed(self) -> None:
        if self.ahead is not None:
            self.ahead.restart()

    def advance(self, b: Array, D_o: Array, D_f: Array, alpha: Array, inverse_alpha: Array, substep: int) -> None:
        """One substep; b (d, n), D_o (n,) or (d, d, n), the others (n,)."""
        if self.ahead is not None:
            b, D_o, D_f = self.ahead("b", b), self.ahead("D_o", D_o), self.ahead("D_f", D_f)
        h = self.h
        if not self.dynamics.jumps.is_stable:
            A, B, index = (torch.from_numpy(v.T) for v in (D_o * h, D_f * h, alpha))
            noise = _noise(self.dynamics.jumps, self.inside.shape, A, B, index, self.generator)
            self.x += b * h + noise.numpy().T
            self.reduced[:] = self._wrapped()
        else:
            jump = 1.0 / np.maximum(D_f * h, _TINY)
            law = (b, D_o * h, jump, alpha, inverse_alpha, h)
            advance = kernels.advance if D_o.ndim == 1 else kernels.advance_matrix
            advance(self.x, self.reduced, *law, *self.period_and_origin, self.keys, substep, *self.space)


@torch.no_grad()
def _variable(dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int, order: int) -> int:
    """All steps of some trajectories, the coefficients evaluated before each substep."""
    n, d = len(part), dynamics.dim
    stable = dynamics.jumps.is_stable
    start = part[:, 0]
    if stable and n % _LANES:
        start = np.concatenate([start, np.repeat(start[:1], -n % _LANES, axis=0)])
    paths = _Paths(dynamics, start, h, seed, first, Extrapolation(substeps) if order == 2 else None)
    inside = paths.inside
    coefficients = (dynamics.b, dynamics.D_o, dynamics.D_f, dynamics.alpha_at)
    follow = d == 1 and not dynamics.repeats and dynamics.b.value is None and stable
    fixed = {c.name: np.ascontiguousarray(c.inside(inside).numpy().T) for c in coefficients if c.value is not None}
    inverse_alpha = 1.0 / fixed["alpha"] if stable and "alpha" in fixed else fixed.get("alpha")
    for step in range(1, part.shape[1]):
        paths.observed()
        for substep in range((step - 1) * substeps, step * substeps):
            b, D_o, D_f, alpha = (
                fixed[c.name] if c.value is not None else np.ascontiguousarray(c.inside(inside).cpu().numpy().T)
                for c in coefficients
            )
            if follow:
                b = effective_drift(dynamics.b.inside, inside, torch.from_numpy(b), h).numpy()
            inverse = 1.0 / alpha if inverse_alpha is None else inverse_alpha
            paths.advance(b.reshape(d, -1), D_o, D_f, alpha, inverse, substep)
        part[:, step] = paths.x[:, :n].T
    return n


def _held(
    system: ControlledDynamics,
    policy: Policy | NumberPolicy,
    part: Array,
    actions: Array,
    h: float,
    substeps: int,
    seed: int,
    first: int,
    order: int,
) -> None:
    """All steps of some trajectories, an action drawn before each and held over its substeps."""
    n, _, d = part.shape
    ahead = Extrapolation(substeps) if order == 2 else None
    paths = _Paths(system.first, part[:, 0], h, seed, first, ahead)
    inside = paths.inside
    draws, uniform = kernels.stream_keys(seed, _ACTIONS, first, n), np.empty((actions.shape[2], n))
    alpha, inverse_alpha = np.full(n, system.alpha), np.full(n, 1.0 / system.alpha)
    b, D_o, D_f = np.empty((d, n)), np.empty((*system.first.D_o.form, n)), np.empty(n)
    on_line = d == 1 and not system.first.repeats
    for step in range(1, part.shape[1]):
        kernels.uniforms(draws, step, uniform)
        groups: list[tuple[_Coefficients, NDArray[np.int64]]]
        part_of = None
        if isinstance(policy, Policy):
            edges = policy(inside).cumsum(-1)[:, :-1].numpy()
            code = (uniform[0][:, None] > edges).sum(1)
            actions[:, step - 1, 0] = code
            groups = [(_labelled(system.of(a)), np.flatnonzero(code == i)) for i, a in enumerate(system.actions)]
        else:
            action = policy.draw(inside, torch.from_numpy(uniform.T.copy()))
            actions[:, step - 1] = action.numpy()
            groups = [(_on_scale(system, action), np.arange(n))]
            part_of = functools.partial(_drift_of, system, action)
        paths.observed()
        for substep in range((step - 1) * substeps, step * substeps):
            for of_action, rows in groups:
                if len(rows):
                    at = inside[torch.from_numpy(rows)]
                    pull = of_action("b", at)
                    if on_line:
                        pull = effective_drift(functools.partial(of_action, "b"), at, pull, h, part_of)
                    b[:, rows] = pull.numpy().reshape(len(rows), d).T
                    D_o[..., rows], D_f[rows] = of_action("D_o", at).numpy().T, of_action("D_f", at).numpy()
            paths.advance(b, D_o, D_f, alpha, inverse_alpha, substep)
        part[:, step] = paths.x.T


def _labelled(dynamics: Dynamics) -> _Coefficients:
    return lambda name, x: getattr(dynamics, name).inside(x)


def _on_scale(system: ControlledDynamics, action: Tensor) -> _Coefficients:
    return lambda name, x: system.at(name, x, action)


def _drift_of(system: ControlledDynamics, action: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:
    return functools.partial(_on_scale(system, action[mask]), "b")


def _noise(jumps: Jumps, shape: torch.Size, A: Tensor, B: Tensor, alpha: Tensor, generator: torch.Generator) -> Tensor:
    """What a step adds to its drift, (n,) or (n, d); A = D_o h is (n,) or (n, d, d), B = D_f h and alpha are (n,)."""
    time = torch.where(B > 0, jumps.time(alpha, torch.where(B > 0, B, 1.0), generator), 0.0)
    gauss = torch.randn(shape, generator=generator, dtype=torch.float64)
    if A.dim() == 3:
        from levytorch.law.several import root_of

        root = root_of(2.0 * (A + time[:, None, None] * torch.eye(shape[-1], dtype=torch.float64)))
        return (root @ gauss.unsqueeze(-1)).squeeze(-1)
    spread = torch.sqrt(2.0 * (A + time))
    return (spread if len(shape) == 1 else spread.unsqueeze(-1)) * gauss
