"""LSTD: the value function straight from pairs of states, without a model of what lies between them.

V(x) = E[int_0^dt e^{-beta s} r(X_s) ds + e^{-beta dt} V(X_dt) | x] holds whatever the dynamics; with V = phi^T c,
tested with phi on the pairs of the data (Bradtke and Barto 1996), and the reward linear between two observations,

    sum phi(x) (phi(x) - e^{-beta dt} phi(x'))^T c = sum phi(x) (w_0 r(x) + w_1 r(x')).

The rule for the reward is of second order in dt. Pairs that were removed because they jump far bias it. Of the data it
takes, in one pass, sums of products of functions, per step and block,

    start[t, b] = sum phi(x) Phi(x)^T,    land[t, b] = sum phi(x) Phi(x + dx)^T

over the pairs of block b whose step is dt[t]: phi are the K functions that V is made of, Phi the first n >= K. Whatever
is a function of the state, a reward, its integral over a step, what a model expects, enters as a sum of n functions, so
that another reward, discount rate, fold or resampling reads no pair again.

Data and model together have what each knows best. Hybrid: LSTD on the pairs of the data, but with what a model knows
that pairs do not: how the reward changes within a step, R - w_0 r - w_1 E[r(x') | x] beyond the rule for its integral,
and the steps that the data has lost.

Corrected: the V of the model, plus the solution of the same equations for what the data says about its error. With u =
e^{-beta dt} V + w_1 r the residual u(x') - E[u(x') | x] has mean zero on every state if the model is right; where it is
not, the residual is as small as the model's error, and so is the error of V that is left: a product of the model's and
of the data's. In full the correction leads to the hybrid; `blocked.shrink` keeps of it what blocks that were left out
confirm, and nothing where the data does not speak against the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.likelihood.exact import MANY_STEPS
from levytorch.likelihood.laws import distinct_steps
from levytorch.policy.bases import Functions
from levytorch.policy.blocked import SLIGHT, Equations, block_rows, solution
from levytorch.policy.empirical import slope_weight
from levytorch.policy.model_step import Model, ModelChange, ModelStep

_CHUNK = 1 << 14  # pairs at a time: their functions stay in the cache
_SAME = 1e-5  # relative distance within which two dt are one


@dataclass(frozen=True)
class Moments:
    """dt: (T,); pairs: (T, B); start, land: (T, B, K, n); basis: the n functions.

    ended: (T, B, K, n), the part of `land` from pairs with which an episode ended, and end_value: (T, B, K), the sum of
    phi(x) times the value of the state it ended in; None where no episode ended.
    """

    basis: Functions
    dt: Tensor
    pairs: Tensor
    start: Tensor
    land: Tensor
    ended: Tensor | None = None
    end_value: Tensor | None = None

    @property
    def n_basis(self) -> int:
        """K."""
        return int(self.start.shape[2])

    @property
    def gram(self) -> Tensor:
        """(K, K): the mean of phi phi^T, the metric in which functions are compared where the data is."""
        K = self.n_basis
        return self.start[..., :K].sum((0, 1)) / self.pairs.sum()

    def without(self, part: Moments) -> Moments:
        """Those of all other pairs."""
        sums = [(getattr(self, name), getattr(part, name)) for name in ("pairs", "start", "land", "ended", "end_value")]
        return Moments(self.basis, self.dt, *(all_ if some is None else all_ - some for all_, some in sums))


def moments(
    transitions: Transitions,
    basis: Functions,
    n_basis: int,
    rows: NDArray[np.int64] | None = None,
) -> Moments:
    """One pass over the pairs (over `rows` of them, ascending; None: all). basis: the n functions, of which V has K."""
    steps = distinct_steps(transitions, MANY_STEPS)
    if len(steps) > MANY_STEPS:
        raise InputError(
            f"the pairs must have at most {MANY_STEPS} distinct dt, found more; round dt, or sample at even times."
        )
    dt = torch.tensor(steps, dtype=torch.float64)
    blocks = block_rows(transitions)
    shape = (len(steps), len(blocks), n_basis, basis.n_modes)
    start, land, pairs = (torch.zeros(size, dtype=torch.float64) for size in (shape, shape, shape[:2]))
    terminal = transitions.terminal
    ended = None if terminal is None else torch.zeros(shape, dtype=torch.float64)
    end_value = None if terminal is None else torch.zeros(shape[:3], dtype=torch.float64)
    for b, all_of_block in enumerate(blocks):
        mine = all_of_block if rows is None else np.intersect1d(all_of_block, rows, assume_unique=True)
        for low in range(0, len(mine), _CHUNK):
            some = torch.from_numpy(mine[low : low + _CHUNK])
            x = transitions.x[some]
            y = x + transitions.dx[some]
            for t, here in enumerate(_by_step(transitions, some, dt)):
                wide = basis.rows(x[here])
                few = wide[:n_basis]
                start[t, b].addmm_(few, wide.T)
                land[t, b].addmm_(few, basis.rows(y[here]).T)
                pairs[t, b] += wide.shape[1]
                if terminal is not None and ended is not None and end_value is not None:
                    value = terminal[some][here]
                    last = ~value.isnan()
                    ended[t, b].addmm_(few[:, last], basis.rows(y[here][last]).T)
                    end_value[t, b] += few[:, last] @ value[last]
    return Moments(basis, dt, pairs, start, land, ended, end_value)


def _by_step(transitions: Transitions, some: Tensor, dt: Tensor) -> list[Tensor | slice]:
    """Which of some pairs have each dt."""
    if len(dt) == 1:
        return [slice(None)]
    own = transitions.dt[some]
    return [((own - step).abs() <= _SAME * step).nonzero().reshape(-1) for step in dt]


def reward_weights(beta: float, dt: float) -> tuple[float, float]:
    """Integrals over a step of e^{-beta s} (1 - s / dt) and e^{-beta s} s / dt: what r(x) and r(x') count."""
    whole = -math.expm1(-beta * dt) / beta
    late = float(slope_weight(beta, torch.tensor([dt], dtype=torch.float64).numpy())[0])
    return whole - late, late


def lstd(found: Moments, r: Tensor, beta: float) -> Equations:
    """r: (n,) Fourier coefficients of the reward."""
    K = found.n_basis
    A, g = torch.zeros_like(found.start[0, :, :, :K]), torch.zeros_like(found.start[0, :, :, 0])
    for t, dt in enumerate(found.dt.tolist()):
        early, late = reward_weights(beta, dt)
        A += found.start[t, :, :, :K] - math.exp(-beta * dt) * found.land[t, :, :, :K]
        g += early * found.start[t] @ r + late * found.land[t] @ r
        if found.ended is not None and found.end_value is not None:  # V of the state is known there
            A += math.exp(-beta * dt) * found.ended[t, :, :, :K]
            g += math.exp(-beta * dt) * found.end_value[t]
    return Equations(A, g, found.gram, found.basis.harmonic_numbers()[:K])


def hybrid(core: Moments, model: Model, steps: Sequence[ModelStep]) -> Equations:
    """core: of the pairs that are taken from the data; steps: the model's, one per dt."""
    K = core.n_basis
    A, g = torch.zeros_like(core.start[0, :, :, :K]), torch.zeros_like(core.start[0, :, :, 0])
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        F, R = step.equation(core.basis, K)
        late = reward_weights(model.beta, dt)[1]
        A += core.start[t] @ F - step.decay * core.land[t, :, :, :K]
        g += core.start[t] @ (R - late * step.C @ model.r) + late * core.land[t] @ model.r
    return Equations(A, g, core.gram, core.basis.harmonic_numbers()[:K])


def residuals(core: Moments, model: Model, steps: Sequence[ModelStep]) -> Equations:
    """The equations of V minus the model's V: those of the hybrid, with residuals in the place of rewards."""
    equations = hybrid(core, model, steps)
    g = torch.zeros_like(equations.g)
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        u = step.decay * model.V + reward_weights(model.beta, dt)[1] * model.r
        g += core.land[t] @ u - core.start[t] @ (step.C @ u)
    return Equations(equations.A, g, equations.metric, equations.wave)


def rule_influence(
    core: Moments, change: ModelChange, steps: Sequence[ModelStep], influence: Tensor, equations: Equations
) -> Tensor:
    """(B, K): what a block moves the solution by through the model's part in the equations; influence: (B, P)."""
    moved = torch.zeros_like(equations.g)
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        rule = change.rule(dt, reward_weights(change.model.beta, dt)[1], step)
        moved += influence @ (core.start[t].sum(0) @ rule).T
    return solution(equations.A.sum(0) + SLIGHT * equations.ridge, moved.T).T
