"""Euler-Maruyama with actions: one is drawn from the policy at every observation and held until the next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.controlled import ControlledDynamics
from levytorch.convert import Array
from levytorch.dynamics import Dynamics
from levytorch.policies import NumberPolicy, Policy
from levytorch.simulation.euler import (
    _TINY,
    BLOCK,
    CHUNK,
    block_stream,
    refuse_infinite,
    step_kernels,
    tempered_noise,
)
from levytorch.simulation.second_order import Extrapolation
from levytorch.simulation.stiff import effective_drift

_Coefficients = Callable[[str, Tensor], Tensor]  # (name, states) -> values

_ACTIONS = 2  # the purpose of their random streams; 0 and 1 are those of the noise and of the initial states


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
    engine = step_kernels()
    n, d = x0.shape
    m = 1 if system.actions else len(system.bounds)
    out, actions = np.empty((n, n_steps + 1, d)), np.empty((n, n_steps, m))
    out[:, 0] = x0
    size = BLOCK if system.tempering > 0 else CHUNK
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        _advance(engine, system, policy, out[rows], actions[rows], dt / substeps, substeps, seed, first, order)
    refuse_infinite(out, *(["choose a shorter dt or a larger tempering"] if system.tempering > 0 else []))
    return out, actions[..., 0].astype(np.int64) if system.actions else actions


def _advance(
    engine: Any,
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
    n, _, d = part.shape
    one = system.first
    x = part[:, 0].T.copy(order="C")
    cell = one.wrap(x[0] if d == 1 else x.T).numpy().reshape(n, d).T.copy(order="C")
    inside = torch.from_numpy(cell)  # shares memory: the kernel reduces x to the cell, torch reads it
    inside = inside[0] if d == 1 else inside.T
    period, origin = (np.broadcast_to(np.asarray(v, dtype=np.float64), (d,)).copy() for v in (one.period, one.origin))
    keys, draws = engine.stream_keys(seed, 0, first, n), engine.stream_keys(seed, _ACTIONS, first, n)
    alpha, scale, spare, uniform = np.full(n, system.alpha), np.empty(n), np.empty(n), np.empty((actions.shape[2], n))
    b, D_o, D_f = np.empty((d, n)), np.empty(n), np.empty(n)
    on_line = d == 1 and not one.repeats
    stream = block_stream(seed, first)  # of tempered jumps
    ahead = Extrapolation(substeps) if order == 2 else None
    for step in range(1, part.shape[1]):
        engine.uniforms(draws, step, uniform)
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
        if ahead is not None:
            ahead.restart()
        for substep in range((step - 1) * substeps, step * substeps):
            for of_action, rows in groups:
                if len(rows):
                    at = inside[torch.from_numpy(rows)]
                    pull = of_action("b", at)
                    if on_line:
                        pull = effective_drift(functools.partial(of_action, "b"), at, pull, h, part_of)
                    b[:, rows] = pull.numpy().reshape(len(rows), d).T
                    D_o[rows], D_f[rows] = of_action("D_o", at).numpy(), of_action("D_f", at).numpy()
            frozen = (b, D_o, D_f) if ahead is None else (ahead("b", b), ahead("D_o", D_o), ahead("D_f", D_f))
            drift, gaussian = frozen[0], frozen[1] * h
            if system.tempering > 0:
                A, B, index = (torch.from_numpy(v) for v in (gaussian, frozen[2] * h, alpha))
                x += drift * h + tempered_noise(inside.shape, A, B, index, system.tempering, stream).numpy().T
                cell[:] = one.wrap(x[0] if d == 1 else x.T).numpy().T
                continue
            jump = 1.0 / np.maximum(frozen[2] * h, _TINY)
            engine.advance(
                x, cell, drift, gaussian, jump, alpha, 1.0 / alpha, h, period, origin, keys, substep, scale, spare
            )
        part[:, step] = x.T


def _labelled(dynamics: Dynamics) -> _Coefficients:
    return lambda name, x: getattr(dynamics, name).inside(x)


def _on_scale(system: ControlledDynamics, action: Tensor) -> _Coefficients:
    return lambda name, x: system.at(name, x, action)


def _drift_of(system: ControlledDynamics, action: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:
    return functools.partial(_on_scale(system, action[mask]), "b")
