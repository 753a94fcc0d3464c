"""`lbfgs`: full-batch quasi-Newton for any head; differentiated chunk by chunk, so memory stays that of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.errors import NumericalError
from levytorch.training.engines.base import Engine

if TYPE_CHECKING:
    from levytorch.training.module import LevyModule


@dataclass
class LBFGSEngine(Engine):
    """max_steps outer steps of `iterations` quasi-Newton iterations each; the TCF is refreshed in between.

    Converged when an outer step gains less than `tolerance` in total log-likelihood and the TCF has settled.
    """

    max_steps: int = 60
    iterations: int = 5
    history: int = 20
    tolerance: float = 1e-2

    name = "lbfgs"
    full_batch = True

    def optimizer(self, module: LevyModule) -> Optimizer:
        optimizer = torch.optim.LBFGS(
            module.head.parameters(),
            lr=1.0,
            max_iter=self.iterations,
            max_eval=3 * self.iterations,
            history_size=self.history,
            tolerance_grad=1e-12,
            tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )
        optimizer.state["progress"] = {"nll": float("inf"), "tcf": 0.0, "converged": False}  # type: ignore[index]
        return optimizer

    def step(self, module: LevyModule, batch: Any) -> float:
        optimizer = module.torch_optimizer()
        progress = optimizer.state["progress"]  # type: ignore[index]

        def closure() -> Tensor:
            optimizer.zero_grad()
            return full_nll(module, batch)

        start = module.optimizers().step(closure=closure)  # type: ignore[union-attr]
        nll, tcf = float(start), float(module.data.tcf)
        gain = (progress["nll"] - nll) * module.pools.n_main
        settled = abs(tcf - progress["tcf"]) < 1e-6 + 1e-4 * tcf
        progress["converged"] = abs(gain) < self.tolerance and settled
        progress["nll"], progress["tcf"] = nll, tcf
        return nll

    def converged(self, module: LevyModule) -> bool:
        return bool(module.torch_optimizer().state["progress"]["converged"])  # type: ignore[index]


def full_nll(module: LevyModule, batch: Any) -> Tensor:
    """-mean log-likelihood over all chunks, its gradient accumulated in the head's parameters."""
    total = torch.zeros((), dtype=torch.float64)
    seen = 0
    with torch.enable_grad():
        for chunk in batch.chunks():
            log_p = module.law.log_prob(module.head, chunk.x, chunk.dx, chunk.dt)
            loss = -(chunk.weight * log_p).sum()
            if not torch.isfinite(loss):
                bad = int(torch.nonzero(~torch.isfinite(log_p.detach()))[0])
                raise NumericalError(
                    f"the loss must be finite, found {float(loss.detach())} at pair {seen + bad} "
                    f"(x = {chunk.x[bad].tolist()}, dx = {chunk.dx[bad].tolist()}); "
                    "check that pair or start from the data's scale."
                )
            loss.backward()
            total += loss.detach()
            seen += chunk.x.shape[0]
        if module.tail.method == "conditional":
            kept = conditional_term(module)
            kept.backward()
            total += kept.detach()
    return total


def conditional_term(module: LevyModule) -> Tensor:
    """sum over state bins of counts * log kept mass, per pair (what the conditional likelihood subtracts)."""
    core, middle = module.masses.log_kept(module.head)
    counts, tail_counts = module.counts()
    n = counts.sum()
    if module.masses.CT is None:
        return (counts * core).sum() / n
    return ((counts - tail_counts) * core).sum() / n + (tail_counts * middle).sum() / n
