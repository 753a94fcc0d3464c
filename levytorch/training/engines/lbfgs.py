"""`lbfgs`: full-batch quasi-Newton for any head; differentiated chunk by chunk, so memory stays that of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import NumericalError
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.sums import where
from levytorch.startup import uncompiled
from levytorch.training.engines.base import Engine, bare


class LBFGS(torch.optim.LBFGS):
    """torch's, without its compiler."""

    add_param_group = uncompiled(Optimizer.add_param_group)
    zero_grad = uncompiled(Optimizer.zero_grad)
    state_dict = uncompiled(Optimizer.state_dict)
    load_state_dict = uncompiled(Optimizer.load_state_dict)


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

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        optimizer = LBFGS(
            likelihood.head.parameters(),
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

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        progress = bare(optimizer).state["progress"]  # type: ignore[index]

        def closure() -> Tensor:
            optimizer.zero_grad()
            return self.nll(likelihood, batch)

        start = optimizer.step(closure=closure)  # type: ignore[arg-type]
        nll = float(start)
        gain = (progress["nll"] - nll) * batch.n_main
        settled = abs(batch.tcf - progress["tcf"]) < 1e-6 + 1e-4 * batch.tcf
        progress["converged"] = abs(gain) < self.tolerance and settled
        progress["nll"], progress["tcf"] = nll, batch.tcf
        return nll

    def nll(self, likelihood: Likelihood, batch: FullBatch) -> Tensor:
        """What is minimised, its gradient left in the parameters."""
        return full_nll(likelihood, batch)

    def unfinished(self, optimizer: Optimizer) -> str:
        return f"its last step still raised the log-likelihood by more than {self.tolerance:g}, or moved the TCF"

    def converged(self, optimizer: Optimizer) -> bool:
        return bool(optimizer.state["progress"]["converged"])  # type: ignore[index]


def full_nll(likelihood: Likelihood, batch: FullBatch) -> Tensor:
    """-mean log-likelihood over all pairs, its gradient in the head's parameters."""
    with torch.enable_grad():
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses(likelihood, batch.chunks()):
            loss.backward()
            total += loss.detach()
        if likelihood.tail.method == "conditional":
            kept = likelihood.observed_masses().mean_log_kept(likelihood.head)
            kept.backward()
            total = total + kept.detach()
    return total


def losses(likelihood: Likelihood, chunks: Iterable[Batch]) -> Iterator[Tensor]:
    """Each chunk's part of the objective, which is the sum over all chunks."""
    seen = 0
    for chunk in chunks:
        log_p = likelihood.law.log_prob(likelihood.head, chunk.x, chunk.dx, chunk.dt)
        loss = -(chunk.weight * log_p).sum()
        if not torch.isfinite(loss):
            raise NumericalError(where(log_p.detach(), seen, chunk.x, chunk.dx))
        yield loss
        seen += chunk.x.shape[0]
