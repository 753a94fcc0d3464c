"""`fisher`: full-batch Fisher scoring of linear heads, tens of passes over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead
from levytorch.data.batches import FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import check_strength
from levytorch.training.engines.base import Engine, bare
from levytorch.training.engines.scoring import FisherScoring

_NEAR = 1.0  # twice the log-likelihood still to be gained, below which curves are good enough to judge their roughness
_SETTLED = 0.01  # slope of the evidence (in numbers of well-determined coefficients) that no longer matters


@dataclass
class FisherEngine(Engine):
    """max_steps: passes; tolerance: see FisherScoring; penalty: "none", "evidence", a strength or several."""

    max_steps: int = 60
    tolerance: float = 1e-6
    damping: float = 1e-2
    n_bins: int = 512
    penalty: str | float | list[float] = "none"

    name = "fisher"
    full_batch = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.penalty = check_strength(self.penalty)

    def accepts(self, head: Head) -> None:
        if not isinstance(head, LinearHead):
            raise InputError(
                "the fisher engine needs a spline, polynomial or Fourier head, found another; use engine lbfgs or adam."
            )

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        head = likelihood.head
        assert isinstance(head, LinearHead)
        return FisherScoring([head.theta], damping=self.damping, tolerance=self.tolerance)

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        scoring = cast(FisherScoring, bare(optimizer))
        objective = self.objective(likelihood, scoring, batch)
        penalty = objective.penalty
        optimizer.step(closure=objective.evaluate)  # type: ignore[arg-type]
        accepted = scoring.accepted
        assert accepted is not None
        if penalty is not None and scoring.memory["decrement"] > _NEAR:
            scoring.memory["settled"] = not penalty.adaptive
        elif penalty is not None:
            scoring.memory["pairs"] = []  # they belong to the penalty that is about to change
            change = penalty.update(accepted.theta, objective.n * objective.information(accepted))
            scoring.memory["penalty"] = penalty.state()
            scoring.memory["settled"] = change < _SETTLED
        return -objective.value(accepted)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        """That of the batch; a batch that is the one before but for its TCF, which scoring finds itself, keeps it."""
        scoring = cast(FisherScoring, optimizer)
        known = getattr(scoring, "objective", None)
        if known is None or known.batch.main.x is not batch.main.x:
            scoring.objective = likelihood.objective(batch, self.penalty, self.n_bins)
        if scoring.objective.penalty is not None and "penalty" in scoring.memory:
            scoring.objective.penalty.restore(scoring.memory["penalty"])  # a resumed run goes on with its own
        return scoring.objective

    def unfinished(self, optimizer: Optimizer) -> str:
        if not isinstance(optimizer, FisherScoring) or not optimizer.memory["passes"]:
            return super().unfinished(optimizer)
        left = f"the log-likelihood can still be raised by about {0.5 * optimizer.memory['decrement']:.2g}"
        return left if not optimizer.converged else "the strengths of the penalty have not settled"

    def converged(self, optimizer: Optimizer) -> bool:
        return isinstance(optimizer, FisherScoring) and optimizer.converged and optimizer.memory.get("settled", True)
