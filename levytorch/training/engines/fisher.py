"""`fisher`: full-batch Fisher scoring of Fourier heads, tens of passes over the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from levytorch.coefficients import FourierHead, Head
from levytorch.errors import InputError
from levytorch.likelihood.penalty import check_strength
from levytorch.likelihood.plan import make_objective
from levytorch.training.engines.base import Engine
from levytorch.training.engines.scoring import FisherScoring

if TYPE_CHECKING:
    from levytorch.training.module import LevyModule

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
        if not isinstance(head, FourierHead):
            raise InputError("the fisher engine needs a Fourier head, found an MLP; use engine lbfgs or adam.")

    def optimizer(self, module: LevyModule) -> Optimizer:
        head = module.head
        assert isinstance(head, FourierHead)
        objective = make_objective(
            head,
            module.pools,
            module.tail,
            module.law,
            n_bins=self.n_bins,
            penalty=self.penalty,
            ranks=module.ranks,
        )
        return FisherScoring([head.theta], objective, damping=self.damping, tolerance=self.tolerance)

    def step(self, module: LevyModule, batch: Any) -> float:
        optimizer = module.torch_optimizer()
        assert isinstance(optimizer, FisherScoring)
        objective = optimizer.objective
        penalty = objective.penalty
        if penalty is not None and "penalty" in optimizer.memory:
            penalty.restore(optimizer.memory["penalty"])  # a resumed run goes on with its own
        module.optimizers().step(closure=objective.evaluate)  # type: ignore[union-attr]
        accepted = optimizer.accepted
        assert accepted is not None
        if penalty is not None and optimizer.memory["decrement"] > _NEAR:
            optimizer.memory["settled"] = not penalty.adaptive
        elif penalty is not None:
            optimizer.memory["pairs"] = []  # they belong to the penalty that is about to change
            change = penalty.update(accepted.theta, objective.n * objective.information(accepted))
            optimizer.memory["penalty"] = penalty.state()
            optimizer.memory["settled"] = change < _SETTLED
        return -objective.value(accepted)

    def converged(self, module: LevyModule) -> bool:
        optimizer = module.torch_optimizer()
        return isinstance(optimizer, FisherScoring) and optimizer.converged and optimizer.memory.get("settled", True)
