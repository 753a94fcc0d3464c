"""`lbfgs`: full-batch quasi-Newton for any head; differentiated chunk by chunk, so memory stays that of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.errors import NumericalError
from levytorch.likelihood.likelihood import mean_log_kept
from levytorch.ranks import DRIFTED
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
    """-mean log-likelihood over all pairs, its gradient in the head's parameters.

    The sum goes chunk after chunk, and from rank to rank in the same order: a quasi-Newton path, above all that of an
    MLP, would carry a different rounding of its gradients to another end.
    """
    ranks, parameters = module.ranks, list(module.head.parameters())
    with torch.enable_grad():
        if ranks.world == 1:
            total = torch.zeros((), dtype=torch.float64)
            for loss in losses(module, batch):
                loss.backward()
                total += loss.detach()
        else:
            theta = module.head.flat()
            lead = ranks.same(theta)
            rows = ranks.together(lambda: _rows(module, batch, parameters, bool(torch.equal(theta, lead))))
            summed = ranks.in_order(rows, 1 + theta.numel())
            total = summed[0]
            for p, g in zip(parameters, summed[1:].split([p.numel() for p in parameters])):
                p.grad = g.reshape(p.shape).clone()
        if module.tail.method == "conditional":
            kept = mean_log_kept(module.masses, module.head, *module.counts())
            kept.backward()
            total = total + kept.detach()
    return total


def losses(module: LevyModule, batch: Any) -> Iterator[Tensor]:
    """This rank's chunks, each with its part of the objective, which is the sum over all chunks of all ranks."""
    seen = batch.start
    for chunk in batch.chunks(summed=True):
        log_p = module.law.log_prob(module.head, chunk.x, chunk.dx, chunk.dt)
        loss = -(chunk.weight * log_p).sum()
        if not torch.isfinite(loss):
            bad = int(torch.nonzero(~torch.isfinite(log_p.detach()))[0])
            raise NumericalError(
                f"the loss must be finite, found {float(loss.detach())} at pair {seen + bad} "
                f"(x = {chunk.x[bad].tolist()}, dx = {chunk.dx[bad].tolist()}); "
                "check that pair or start from the data's scale."
            )
        yield loss
        seen += chunk.x.shape[0]


def _rows(module: LevyModule, batch: Any, parameters: Sequence[Tensor], same: bool) -> list[Tensor]:
    """Loss and gradient of every chunk of this rank."""
    if not same:
        raise NumericalError(DRIFTED)
    rows = []
    for loss in losses(module, batch):
        parts = torch.autograd.grad(loss, list(parameters))
        rows.append(torch.cat([loss.detach().reshape(1), *(g.reshape(-1) for g in parts)]))
    return rows
