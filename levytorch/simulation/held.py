"""Euler-Maruyama with actions: one is drawn from the policy at every observation and held until the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.controlled import ControlledDynamics
from levytorch.errors import NumericalError
from levytorch.policies import Policy
from levytorch.simulation.euler import _TINY, Array, kernels

_ACTIONS = 2  # the purpose of their random streams; 0 and 1 are those of the noise and of the initial states
CHUNK = 24_576


@torch.no_grad()
def held(
    system: ControlledDynamics, policy: Policy, x0: Array, n_steps: int, dt: float, substeps: int, seed: int
) -> tuple[Array, NDArray[np.int64]]:
    """(n, n_steps + 1, d) states and (n, n_steps) numbers of the actions held between them."""
    engine = kernels()
    n, d = x0.shape
    out, codes = np.empty((n, n_steps + 1, d)), np.empty((n, n_steps), dtype=np.int64)
    out[:, 0] = x0
    for first in range(0, n, CHUNK):
        rows = slice(first, min(first + CHUNK, n))
        _advance(engine, system, policy, out[rows], codes[rows], dt / substeps, substeps, seed, first)
    if not np.isfinite(out[:, -1]).all():
        raise NumericalError(
            "states must stay within float64, found an infinite one; alpha is too small or dt too long for these "
            "coefficients, so choose a larger alpha or a shorter dt."
        )
    return out, codes


def _advance(
    engine: Any,
    system: ControlledDynamics,
    policy: Policy,
    part: Array,
    codes: NDArray[np.int64],
    h: float,
    substeps: int,
    seed: int,
    first: int,
) -> None:
    n, _, d = part.shape
    one = system.of(system.actions[0])
    x = part[:, 0].T.copy(order="C")
    cell = one.wrap(x[0] if d == 1 else x.T).numpy().reshape(n, d).T.copy(order="C")
    inside = torch.from_numpy(cell)  # shares memory: the kernel reduces x to the cell, torch reads it
    inside = inside[0] if d == 1 else inside.T
    period, origin = (np.broadcast_to(np.asarray(v, dtype=np.float64), (d,)).copy() for v in (one.period, one.origin))
    keys, draws = engine.stream_keys(seed, 0, first, n), engine.stream_keys(seed, _ACTIONS, first, n)
    alpha, scale, spare, uniform = np.full(n, system.alpha), np.empty(n), np.empty(n), np.empty((1, n))
    b, D_o, D_f = np.empty((d, n)), np.empty(n), np.empty(n)
    for step in range(1, part.shape[1]):
        engine.uniforms(draws, step, uniform)
        edges = policy(inside).cumsum(-1)[:, :-1].numpy()
        code = (uniform[0][:, None] > edges).sum(1)
        codes[:, step - 1] = code
        of_action = [(system.of(action), np.flatnonzero(code == i)) for i, action in enumerate(system.actions)]
        for substep in range((step - 1) * substeps, step * substeps):
            for dynamics, rows in of_action:
                if len(rows):
                    at = inside[torch.from_numpy(rows)]
                    b[:, rows] = dynamics.b.inside(at).numpy().reshape(len(rows), d).T
                    D_o[rows], D_f[rows] = dynamics.D_o.inside(at).numpy(), dynamics.D_f.inside(at).numpy()
            jump = 1.0 / np.maximum(D_f * h, _TINY)
            engine.advance(
                x, cell, b, D_o * h, jump, alpha, 1.0 / alpha, h, period, origin, keys, substep, scale, spare
            )
        part[:, step] = x.T
