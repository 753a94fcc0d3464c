"""Fits under the exact law of a step, from the solution under the frozen one.

The data is taken as a lattice; beyond one period log p carries the period of the coefficients, and pairs stay as they
are. A linear head goes to the root of the centered score first (law "corrected"), then, under law "exact", on by Fisher
scoring with the exact law's own information as curvature. Any other head climbs by L-BFGS.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import torch

from levytorch.coefficients import Head, LinearHead
from levytorch.data import Pools
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.lattice_making import lattice_of
from levytorch.data.pools import PoolFacts
from levytorch.errors import LevytorchWarning
from levytorch.law.threads import spread
from levytorch.likelihood.corrected import Strata
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_objective import ExactObjective, Informations, informations
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.ranks import Ranks
from levytorch.training.engines.base import Engine, Maximised, joined_history, maximise
from levytorch.training.engines.lbfgs import LBFGSEngine
from levytorch.training.exact_engines import Corrected, ExactEngine, ExactLBFGS, correct
from levytorch.training.finish import finish
from levytorch.training.recovery import Recovery

ACCURATE = 1e-4  # of log p; above it a fit is told to be inaccurate
# On a line the padding limits what far jumps are worth: a coarser grid will do, and accuracy is asked for where nearly
# all steps are
LINE_TOLERANCE, LINE_ACCURATE = 0.1, 1e-3
_TIGHTER = 1e-3  # times the tolerance, where that was not enough
_FARTHEST = 2.5  # periods within which a lattice may stand for its pairs
_MOVED = 0.5  # standard errors, over all parameters together, within which an information matrix stays what it is


@dataclass
class Setting:
    """The data of a fit as a lattice, the frozen law's likelihood of it, and the exact law for the head as it is."""

    lattice: Lattice
    likelihood: Likelihood
    law: ExactLaw
    strata: Strata
    tolerance: float = TOLERANCE

    @classmethod
    def of(cls, likelihood: Likelihood, engine: Engine, data: Pools | Lattice, ranks: Ranks) -> Setting:
        """likelihood: of the frozen law, whose head is the one that will move."""
        lattice = _lattice(data, likelihood.head, ranks)
        mine = Likelihood(likelihood.head, likelihood.law, likelihood.tail, likelihood.correction)
        mine.observe(lattice, engine.n_bins)
        tolerance = TOLERANCE if mine.head.window is None else LINE_TOLERANCE
        law = ExactLaw(tolerance).fixed(mine.head, torch.from_numpy(lattice.dt))
        return cls(lattice, mine, law, Strata.of(mine.tail, lattice), tolerance)

    @cached_property
    def batch(self) -> FullBatch:
        return self.lattice.full_batch()

    @property
    def frozen(self) -> FrozenLaw:
        assert isinstance(self.likelihood.law, FrozenLaw)
        return self.likelihood.law

    def around(self, penalty: RoughnessPenalty | None) -> FullBatchObjective:
        """The frozen law's objective, with a penalty that has been found already."""
        objective = self.likelihood.objective(self.batch)
        objective.penalty = penalty
        return objective

    def settle(self) -> None:
        """Choose the rules for the head as it now is."""
        self.law = ExactLaw(self.tolerance).fixed(self.likelihood.head, torch.from_numpy(self.lattice.dt))

    def error(self) -> float:
        """Of log p, against a finer rule."""
        return max(self.law.accuracy(self.likelihood.head, dt) for dt in self.lattice.dt.tolist())

    def informations(self, R_theta: float | None) -> Informations:
        return informations(self.likelihood.head, self.frozen, self.law, self.strata, R_theta)

    def exact_likelihood(self) -> Likelihood:
        """That of the exact law."""
        masses = self.likelihood.masses
        masses = None if masses is None else replace(masses, law=self.law)
        return replace(self.likelihood, law=self.law, masses=masses)

    @property
    def accurate(self) -> float:
        """What `error` may be."""
        return ACCURATE if self.likelihood.head.window is None else LINE_ACCURATE

    def metrics(self, law: str, error: float) -> dict[str, Any]:
        """What every such fit reports; warns of a rule that is not fine enough."""
        if not error < self.accurate:
            warnings.warn(
                f"log p must be accurate to {self.accurate:g} under the exact law, found {error:.1g} at the solution "
                "against a finer grid; use fewer basis functions, or penalty evidence.",
                LevytorchWarning,
                stacklevel=3,
            )
        return {"law": law, "law/grid": max(r.n for r in self.law.rules.values()), "law/log_p_error": error}


def corrected_start(setting: Setting, penalty: RoughnessPenalty | None) -> Corrected:
    """Moves a linear head to the root of the centered score."""
    found = correct(setting.around(penalty), setting.law, setting.strata)
    setting.settle()
    if setting.tolerance > TOLERANCE and not setting.error() < setting.accurate:
        setting.tolerance = max(_TIGHTER * setting.tolerance, TOLERANCE)
        setting.settle()
        found = correct(setting.around(penalty), setting.law, setting.strata)
        setting.settle()
    return found


def fit_linear(
    setting: Setting,
    engine: Engine,
    penalty: RoughnessPenalty | None,
    first: Corrected,
    facts: PoolFacts,
    *,
    law: str = "exact",
    std: str = "auto",
    progress: bool = False,
) -> Recovery:
    """From the root of the centered score: there under law "corrected", at the exact law's maximum under "exact".

    std: whose information standard errors are from, "frozen" or the law's own ("auto").
    """
    mine, head = setting.likelihood, cast(LinearHead, setting.likelihood.head)
    done: Maximised
    history: list[dict[str, float]] = []
    for _ in range(2):
        found = setting.informations(first.R_theta)
        used = found.exact if law == "exact" else found.corrected
        own: dict[str, Any] = {"law": setting.law, "start": penalty, "own": used, "moves": law == "exact"}
        own["each"] = std == "frozen"  # whose covariance is made of the gradients of the pools
        exact = ExactEngine(max_steps=engine.max_steps, n_bins=engine.n_bins, **own)
        exact.name, before = engine.name, head.flat()
        if law == "exact":
            done = maximise(exact, mine, setting.batch, progress=progress)
        else:
            done = Maximised(exact.optimizer(mine), first.converged, len(first.distances))
        history = joined_history(history, done.history)
        objective = cast(ExactObjective, exact.objective(mine, done.optimizer, setting.batch))
        moved = head.flat() - before
        again = law == "exact" and std != "frozen"
        again = again and float(objective.n * moved @ used.products @ moved) > _MOVED**2
        jobs: list[Callable[[], Any]] = [setting.error]
        jobs += [partial(setting.informations, done.R_theta)] if again else []
        error, *latest = spread(lambda job: job(), jobs)
        if error < setting.accurate:
            break
        setting.settle()  # coefficients that have moved far ask for another grid
    if std == "frozen":
        objective.own = None
    elif latest:
        objective.own = latest[0].exact
    recovery = finish(mine, exact, done.optimizer, facts, setting.batch, done.converged, done.steps)
    recovery.history = history
    recovery.metrics |= setting.metrics(law, error) | {
        "law/rounds": len(first.distances) - 1,
        "law/evaluations": objective.evaluations,
        "covariance": "frozen" if std == "frozen" else law,
    }
    return recovery


def fit_any(setting: Setting, engine: Engine, facts: PoolFacts, *, progress: bool = False) -> Recovery:
    """The exact law's maximum of any head, from the frozen one's."""
    assert isinstance(engine, LBFGSEngine)
    options = {name: getattr(engine, name) for name in ("max_steps", "iterations", "history", "tolerance")}
    history: list[dict[str, float]] = []
    evaluations = 0
    for _ in range(2):
        exact = ExactLBFGS(**options, law=setting.law)
        done = maximise(exact, setting.exact_likelihood(), setting.batch, progress=progress)
        history, evaluations = joined_history(history, done.history), evaluations + exact.evaluations
        error = setting.error()
        if error < setting.accurate:
            break
        setting.settle()
    likelihood = setting.exact_likelihood()
    recovery = finish(likelihood, exact, done.optimizer, facts, setting.batch, done.converged, done.steps)
    recovery.history = history
    recovery.metrics |= setting.metrics("exact", error) | {"law/evaluations": evaluations}
    return recovery


def _lattice(data: Pools | Lattice, head: Head, ranks: Ranks) -> Lattice:
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
