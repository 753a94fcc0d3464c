"""The fit under the exact law of a step, from the solution under the frozen one.

Fisher scoring with the frozen law's information as curvature, corrected by secant pairs: BFGS in coordinates in which a
unit is a standard error. An evaluation costs the tables of the law, whatever the number of pairs, so that the data is
taken as a lattice; beyond one period log p carries the period of the coefficients, and pairs stay as they are.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import FourierHead
from levytorch.data import Pools, Transitions
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.data.pools import PoolFacts
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.covariance import covariance
from levytorch.likelihood.exact import MANY_STEPS, ExactLaw
from levytorch.likelihood.exact_objective import ExactObjective
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.ranks import Ranks
from levytorch.training.engines.base import Engine, bare
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.engines.scoring import FisherScoring
from levytorch.training.finish import finish
from levytorch.training.loop import Maximised, maximise
from levytorch.training.recovery import Recovery

ACCURATE = 1e-4  # of log p; above it a fit is told to be inaccurate
_NEAR = 1.0  # twice the log-likelihood still to be gained, below which curves are judged by their roughness
_SETTLED = 0.1  # slope of the evidence, in numbers of well-determined coefficients
_FARTHEST = 2.5  # periods within which a lattice may stand for its pairs
_APART = 0.1  # standard errors between the gradients from which second derivatives come


def check_steps(data: Transitions | Lattice) -> None:
    """Refuse data that the exact law does not know, before anything is fitted."""
    if isinstance(data, Lattice):
        return
    if data.dim > 1:
        raise InputError(f'law "exact" must have one-dimensional data, found {data.dim} coordinates; use law="frozen".')
    if not data.uniform_dt:
        distinct = np.empty(0)
        for rows in data.blocks():
            distinct = np.unique(np.concatenate([distinct, data.dt[rows].numpy()]))
            distinct = distinct[np.diff(distinct, prepend=-1.0) > 1e-6 * distinct]
            if len(distinct) > MANY_STEPS:
                raise InputError(
                    f'law "exact" must have at most {MANY_STEPS} distinct dt, found more; round them, or use '
                    'law="frozen".'
                )


@dataclass
class ExactEngine(FisherEngine):
    """Fisher scoring under the exact law; start: the penalty of the frozen solution."""

    tolerance: float = 1e-3
    law: ExactLaw = field(default_factory=ExactLaw)
    start: RoughnessPenalty | None = None

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        head = cast(FourierHead, likelihood.head)
        return FisherScoring([head.theta], damping=1e-4, tolerance=self.tolerance, pairs=self.max_steps)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        scoring = cast(FisherScoring, bare(optimizer))
        if getattr(scoring, "objective", None) is None:
            frozen = likelihood.objective(batch, n_bins=self.n_bins)
            parts: dict[str, Any] = {f.name: getattr(frozen, f.name) for f in fields(frozen)}
            scoring.objective = ExactObjective(**parts | {"penalty": self.start}, exact=self.law)
        return scoring.objective

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        scoring = cast(FisherScoring, bare(optimizer))
        objective = self.objective(likelihood, scoring, batch)
        scoring.step(objective.evaluate)
        accepted, penalty = scoring.accepted, objective.penalty
        assert accepted is not None
        if penalty is not None and penalty.adaptive:
            settled = False
            if scoring.memory["decrement"] < _NEAR:
                before = penalty.precision()
                settled = penalty.update(accepted.theta, objective.n * objective.information(accepted)) < _SETTLED
                more = (penalty.precision() - before) / objective.n
                pairs = scoring.memory.get("pairs", [])
                scoring.memory["pairs"] = [(moved, change + more * moved) for moved, change in pairs]
            scoring.memory["settled"] = settled
        return -objective.value(accepted)


def fit_exact(
    likelihood: Likelihood,
    engine: Engine,
    frozen: FullBatchObjective,
    data: Pools | Lattice,
    facts: PoolFacts,
    *,
    std: str = "frozen",
    ranks: Ranks | None = None,
    progress: bool = False,
) -> tuple[Recovery, Likelihood]:
    """Moves the head from the frozen law's maximum to the exact law's; the recovery, and the likelihood used.

    frozen: what the engine has maximised; std: whose information the standard errors come from.
    """
    began, ranks = time.perf_counter(), ranks or Ranks()
    head = cast(FourierHead, likelihood.head)
    lattice = _lattice(data, head, ranks)
    batch = lattice.full_batch()
    mine = Likelihood(head, likelihood.law, likelihood.tail, likelihood.correction)
    mine.observe(lattice, engine.n_bins)
    penalty = frozen.penalty
    law = ExactLaw()
    for _ in range(2):
        law = law.fixed(head, torch.from_numpy(lattice.dt))
        exact = ExactEngine(max_steps=engine.max_steps, n_bins=engine.n_bins, law=law, start=penalty)
        exact.name = engine.name
        done = maximise(exact, mine, batch, progress=progress)
        error = max(law.accuracy(head, dt) for dt in lattice.dt.tolist())
        if error < ACCURATE:
            break
        law = ExactLaw()  # coefficients that have moved far ask for another grid
    head.set_flat(ranks.same(head.flat()))
    objective = cast(ExactObjective, exact.objective(mine, done.optimizer, batch))
    recovery = finish(mine, exact, done.optimizer, facts, batch, done.converged, done.steps)
    if std == "exact":
        recovery.covariance = _covariance(objective, done, recovery)
    recovery.history = done.history
    recovery.metrics |= {
        "law": "exact",
        "law/evaluations": objective.evaluations,
        "law/grid": max(rule.n for rule in law.rules.values()),
        "law/log_p_error": error,
        "law/seconds": time.perf_counter() - began,
        "covariance": std,
    }
    if not error < ACCURATE:
        warnings.warn(
            f"log p must be accurate to {ACCURATE:g} under the exact law, found {error:.1g} at the solution against a "
            "finer grid; use fewer basis functions, or penalty evidence.",
            LevytorchWarning,
            stacklevel=2,
        )
    masses = None if mine.masses is None else replace(mine.masses, law=law)
    return recovery, replace(mine, law=law, masses=masses)


def _lattice(data: Pools | Lattice, head: FourierHead, ranks: Ranks) -> Lattice:
    if isinstance(data, Pools):
        return lattice_of(data, head.period, head.origin, ranks, reach=head.period)
    if data.reach > _FARTHEST * head.period and (data.TRT > _FARTHEST * head.period).any():
        warnings.warn(
            f"a lattice for the exact law must keep pairs beyond a period of {head.period:g} as they are, found reach "
            f"{data.reach:g}, which may move coefficients by a standard error or so; make it with "
            f"reach={head.period:g}.",
            LevytorchWarning,
            stacklevel=3,
        )
    return data


@torch.no_grad()
def _covariance(objective: ExactObjective, done: Maximised, recovery: Recovery) -> Tensor | None:
    """From the exact law's own second derivatives: differences of its gradient along the frozen standard errors."""
    head, scoring = objective.head, cast(FisherScoring, done.optimizer)
    here = scoring.accepted
    if recovery.covariance is None or here is None:
        return None
    values, vectors = torch.linalg.eigh(recovery.covariance)
    directions = vectors * values.clamp(min=0).sqrt() * _APART  # columns
    theta, g = here.theta, objective.gradient(here)
    changes = []
    for direction in directions.T:
        head.theta.copy_(theta + direction)
        changes.append(objective.gradient(objective.evaluate()) - g)
    head.theta.copy_(theta)
    slope = torch.linalg.solve(directions.T, torch.stack(changes)).T
    if objective.method == "tcf":
        objective.add_hessian(here)
    return covariance(objective, here, slope)
