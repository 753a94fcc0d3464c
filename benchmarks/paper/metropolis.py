"""Random-walk Metropolis-Hastings sampling of increments: the paper's second kind of censored data (section 4.1.2).

A chain walks on the increments dx, its target the law of one step p(dx | x) confined to |dx - b(x) dt| <= reach; the
path adds up what the chain visits. The paper gives the burn-in (5000) and says that the data "remains constrained
within a limited range", nothing more, so range, proposal and number of chains are options here. What makes the data
censored is the range: no increment beyond `reach` is ever seen, and those near it are rarer than they should be in
short runs, because a random walk needs many small moves to get there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, choice, positive_number, real_array, whole_number
from levytorch.data.trajectories import Trajectories
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.law import cutting_threshold, log_density
from levytorch.simulation import Simulated, kernels
from levytorch.simulation.api import check_simulation
from levytorch.simulation.euler import initial_states

_STREAM = 2  # noise of chains, apart from that of Euler steps (0) and initial states (1)
_CENTER, _REACH = 0.6827, 0.99  # masses of the law that set the default proposal and the default range
_MOST_MOVES = 1_000_000_000
_MOST_CHAINS = 1000


@torch.no_grad()
def metropolis(
    dynamics: Dynamics,
    x0: Array,
    n_steps: int,
    dt: float,
    seed: int,
    progress: bool | None = None,
    *,
    burn_in: int = 5000,
    chains: int | None = None,
    proposal_scale: float | None = None,
    reach: float | None = None,
    thinning: int = 1,
) -> Array:
    """(n, n_steps + 1, d) states.

    Args:
        burn_in: moves of every chain, at the first state of its first trajectory, before anything is kept.
        chains: independent chains that run side by side; each makes every chains-th trajectory, one after another.
            None: one per trajectory, at most 1000. The numbers depend on it.
        proposal_scale: standard deviation of a move, per coordinate. None: 2.4 / sqrt(d) times the half-width of the
            central 68 % of the law of one step.
        reach: the range, |dx - b dt| <= reach. None: holds 99 % of the law of one step; for the paper's constant
            example that is 18.3, next to its TRT of 20. math.inf lifts it.
        thinning: moves per increment.

    Defaults are computed from the coefficients averaged over the cell; options are checked by `metropolis_paths`.
    """
    n, d = x0.shape
    chains = min(n, _MOST_CHAINS) if chains is None else chains
    scale = 2.4 / d**0.5 * _width(dynamics, dt, _CENTER) if proposal_scale is None else _number(proposal_scale)
    within = _width(dynamics, dt, _REACH) if reach is None else _number(reach)
    walk = _Walk(dynamics, chains, dt, seed, scale, within)
    return _run(walk, x0, n_steps, burn_in, thinning, progress)


OPTIONS = frozenset({"burn_in", "chains", "proposal_scale", "reach", "thinning"})


def check_metropolis(n: int, options: Mapping[str, Any]) -> None:
    """Refuse options of `metropolis` that cannot be, for n trajectories."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise InputError(
            f"sampler 'metropolis' must have options among {', '.join(sorted(OPTIONS))}, found {', '.join(unknown)}; "
            "use one of these."
        )
    for name, least in (("burn_in", 0), ("chains", 1), ("thinning", 1)):
        if options.get(name) is not None or (name in options and name != "chains"):
            whole_number(name, options[name], least, _MOST_MOVES)
    chains = options.get("chains")
    if chains is not None and chains > n:
        raise InputError(f"chains must not exceed the {n} trajectories, found {chains}; lower it.")
    for name in ("proposal_scale", "reach"):
        value = options.get(name)
        if value is not None and not (name == "reach" and _is_infinite(value)):
            positive_number(name, value, "pass a distance")


def metropolis_paths(
    dynamics: Dynamics,
    n_trajectories: int,
    n_steps: int,
    dt: float,
    *,
    x0: Any = None,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Trajectories:
    """n_trajectories paths of n_steps + 1 points; options: those of `metropolis`, the others those of `simulate`.

    >>> metropolis_paths(Dynamics.named("constant"), 3, 4, 1 / 40, burn_in=5).to_array().shape
    (3, 5)
    """
    n, steps, _, seed, dt = check_simulation(dynamics, n_trajectories, n_steps, dt, seed=seed)
    check_metropolis(n, options)
    x = metropolis(dynamics, initial_states(dynamics, n, x0, seed), steps, dt, seed, progress, **options)
    made = Trajectories.from_arrays(x[..., 0] if dynamics.dim == 1 else x, dt=dt)
    made.repeats = dynamics.repeats
    return made


class MetropolisData(Simulated):
    """The data of conf/data/censored_mcmc.yaml: as `levytorch.simulation.Simulated`, by this sampler."""

    def __init__(
        self, *arguments: Any, sampler: str = "metropolis", substeps: int = 1, order: int = 1, **options: Any
    ) -> None:
        choice("sampler", sampler, ("metropolis",))
        self.chain = {name: options.pop(name) for name in OPTIONS & options.keys()}
        super().__init__(*arguments, **options)
        check_metropolis(self.n_trajectories, self.chain)

    def paths(self) -> Trajectories:
        return metropolis_paths(self.dynamics, self.n_trajectories, self.n_steps, self.dt, **self.options, **self.chain)


def _is_infinite(value: Any) -> bool:
    with suppress(InputError, ValueError):
        return _number(value) == math.inf
    return False


def _number(value: Any) -> float:
    return float(real_array("a distance", value).item())


class _Walk:
    """Chains side by side: where they are in dx, and the law at the states x they were moved to last."""

    def __init__(self, dynamics: Dynamics, chains: int, dt: float, seed: int, scale: float, reach: float) -> None:
        self.dynamics, self.dt, self.scale, self.reach = dynamics, dt, scale, reach
        self.keys = kernels.stream_keys(seed, _STREAM, 0, chains)
        self.draws = np.empty((1 + 2 * ((dynamics.dim + 1) // 2), chains))
        one = isinstance(dynamics.alpha, float) and not dynamics.tempering  # one alpha, asked very often
        self.method = "table" if one else "contour"
        self.moves = 0
        self.dx: Tensor | None = None

    def stand_at(self, x: Tensor) -> None:
        """Make p(. | x) the target."""
        law = self.dynamics
        self.coefficients = law.b(x), law.D_o(x), law.D_f(x), law.alpha if self.method == "table" else law.alpha_at(x)
        if self.dx is None:
            self.dx = self.coefficients[0] * self.dt
        if self.moves == 0 or not law.is_constant:
            self.level = self._log_target(self.dx)

    def move(self) -> None:
        """One Metropolis move of every chain."""
        assert self.dx is not None
        kernels.uniforms(self.keys, self.moves * len(self.draws), self.draws)
        self.moves += 1
        u = torch.from_numpy(self.draws)
        radius, angle = torch.sqrt(-2 * torch.log(u[1::2])), 2 * torch.pi * u[2::2]
        normal = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[: self.dynamics.dim]
        proposal = self.dx + self.scale * (normal[0] if self.dynamics.dim == 1 else normal.T)
        level = self._log_target(proposal)
        accept = torch.log(u[0]) < level - self.level  # a difference of two -inf is NaN: stay
        self.level = torch.where(accept, level, self.level)
        self.dx = torch.where(accept if self.dynamics.dim == 1 else accept[:, None], proposal, self.dx)

    def _log_target(self, dx: Tensor) -> Tensor:
        b, D_o, D_f, alpha = self.coefficients
        law = self.dynamics
        log_p = log_density(dx, b, D_o, D_f, alpha, self.dt, dim=law.dim, method=self.method, tempering=law.tempering)
        apart = dx - b * self.dt
        distance = apart.abs() if apart.ndim == 1 else torch.linalg.vector_norm(apart, dim=-1)
        return torch.where(distance <= self.reach, log_p, -torch.inf)


def _run(walk: _Walk, x0: Array, n_steps: int, burn_in: int, thinning: int, progress: bool | None) -> Array:
    from tqdm import tqdm

    n, d = x0.shape
    chains = len(walk.keys)
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    rounds = -(-n // chains)
    total = burn_in + rounds * n_steps * thinning
    hide = (None if total * chains > 2_000_000 else True) if progress is None else not progress
    with tqdm(total=total, desc="metropolis", unit=" moves", disable=hide, leave=False) as bar:
        walk.stand_at(_states(x0[:chains]))
        for _ in range(burn_in):
            walk.move()
            bar.update()
        for first in range(0, n, chains):
            m = min(chains, n - first)
            start = np.concatenate([x0[first : first + m], x0[: chains - m]])  # the last round may not need all chains
            x = _states(start)
            for step in range(1, n_steps + 1):
                walk.stand_at(x)
                for _ in range(thinning):
                    walk.move()
                    bar.update()
                assert walk.dx is not None
                x = x + walk.dx
                out[first : first + m, step] = x.reshape(chains, d)[:m].numpy()
    return out


def _states(x: Array) -> Tensor:
    return torch.from_numpy(x[:, 0].copy() if x.shape[1] == 1 else x.copy())


def _width(dynamics: Dynamics, dt: float, mass: float) -> float:
    """Half-width of the central `mass` of the law of one step, at the mean of the coefficients over the cell."""
    x = dynamics.points(256)
    D_o, D_f, alpha = (float(c(x).mean()) for c in (dynamics.D_o, dynamics.D_f, dynamics.alpha_at))
    width: Any = cutting_threshold(alpha, D_f, dt, mass, D_o=D_o)
    return float(width)
