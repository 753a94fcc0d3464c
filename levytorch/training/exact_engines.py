"""Engines of the exact law of a step: Fisher scoring of linear heads, L-BFGS of any head.

An evaluation costs the tables of the law, whatever the number of pairs; they serve both pools and the masses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import LinearHead
from levytorch.data.batches import FullBatch
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_information import Information
from levytorch.likelihood.exact_objective import AtOneHead, ExactObjective
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.training.engines.base import bare
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.engines.lbfgs import LBFGSEngine, losses
from levytorch.training.engines.scoring import FisherScoring

_NEAR = 1.0  # twice the log-likelihood still to be gained, below which curves are judged by their roughness
_SETTLED = 0.1  # slope of the evidence, in numbers of well-determined coefficients


@dataclass
class ExactEngine(FisherEngine):
    """Fisher scoring under the exact law. start: the penalty of the frozen solution; own: the law's information.

    moves: False where only what is reported of a head is wanted, which takes no gradient. each: see ExactObjective.
    """

    tolerance: float = 1e-6
    law: ExactLaw = field(default_factory=ExactLaw)
    start: RoughnessPenalty | None = None
    own: Information | None = None
    moves: bool = True
    each: bool = False

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        head = cast(LinearHead, likelihood.head)
        return FisherScoring([head.theta], damping=1e-4, tolerance=self.tolerance, pairs=self.max_steps)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        scoring = cast(FisherScoring, bare(optimizer))
        if getattr(scoring, "objective", None) is None:
            frozen = likelihood.objective(batch, n_bins=self.n_bins)
            parts: dict[str, Any] = {f.name: getattr(frozen, f.name) for f in fields(frozen)} | {"penalty": self.start}
            scoring.objective = objective = ExactObjective(
                **parts, exact=self.law, own=self.own, slopes=self.moves, each=self.each
            )
            if self.moves and not self.each:
                objective.apart = _apart(frozen)
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


def _apart(frozen: FullBatchObjective) -> tuple[Tensor, Tensor] | None:
    """How the gradients of the two pools differ under the frozen law, and that of the TCF: near enough for a step."""
    if frozen.method != "tcf":
        return None
    ev = frozen.evaluate()
    if ev.tail is None or ev.tcf_gradient is None or not ev.tcf > 0:
        return None
    return ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n, ev.tcf_gradient


@dataclass
class ExactLBFGS(LBFGSEngine):
    """L-BFGS of any head under the exact law."""

    law: ExactLaw = field(default_factory=ExactLaw)
    evaluations: int = 0

    def __post_init__(self) -> None:
        return  # made from an engine whose options were checked

    def nll(self, likelihood: Likelihood, batch: FullBatch) -> Tensor:
        """In one graph, whatever the size of the batch: a lattice is small."""
        self.evaluations += 1
        law = AtOneHead(self.law)
        whole = batch._replace(chunk=max(batch.main.x.shape[0], 1))
        with torch.enable_grad():
            loss = torch.stack(list(losses(replace(likelihood, law=law), whole.chunks()))).sum()
            if likelihood.tail.method == "conditional":
                loss = loss + replace(likelihood.seen(), law=law).mean_log_kept(likelihood.head)
            loss.backward()
        return loss.detach()
