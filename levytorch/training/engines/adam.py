"""`adam`: Algorithm B.1. Mini-batches from the two pools, Adam, gradients of Algorithm E.4 or E.5 or a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.convert import choice
from levytorch.errors import NumericalError
from levytorch.training.engines.base import Engine

if TYPE_CHECKING:
    from levytorch.training.module import LevyModule

GRADIENTS = ("direct", "finite_difference", "mixture")


@dataclass
class AdamEngine(Engine):
    """Adam with the paper's hyperparameters.

    gradient: "direct" (Algorithm E.4), "finite_difference" (Algorithm E.5), or "mixture": finite differences with
    probability `mixture` at each step, otherwise direct (the paper does not say which mixture).
    window: steps of the moving average.
    """

    max_steps: int = 40_000
    lr: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    gradient: str = "direct"
    mixture: float = 0.5
    n_components: int = 10
    window: int = 20_000
    stop_early: bool = True
    tolerance: float = 2e-3

    name = "adam"
    full_batch = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("engine.gradient", self.gradient, GRADIENTS)

    def optimizer(self, module: LevyModule) -> Optimizer:
        return torch.optim.Adam(
            module.head.parameters(), lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, foreach=False
        )

    def step(self, module: LevyModule, batch: Any) -> float:
        optimizer = module.optimizers()
        step = module.trainer.global_step
        generator = None
        finite = self.gradient == "finite_difference"
        if self.gradient != "direct":
            generator = torch.Generator().manual_seed(1_000_003 * module.seed + step)
            finite = finite or float(torch.rand((), generator=generator)) < self.mixture
        problem: NumericalError | None = None
        try:
            if finite:
                assert generator is not None
                nll = self._finite_difference(module, batch, generator)
            else:
                optimizer.zero_grad()  # type: ignore[union-attr]
                log_p = module.log_prob(batch.x, batch.dx, batch.dt)
                loss = -(batch.weight * log_p).sum()
                module.check_finite(loss, log_p, batch)
                loss.backward()
                nll = loss.detach()
        except NumericalError as error:
            problem, nll = error, torch.zeros((), dtype=torch.float64)
        nll = module.average(nll, problem)
        optimizer.step()  # type: ignore[union-attr]
        return float(nll)

    @torch.no_grad()
    def _finite_difference(self, module: LevyModule, batch: Any, generator: torch.Generator) -> Tensor:
        """Algorithm E.5: one-sided differences in at most `n_components` random components, steps +-U(0.001, 0.1)."""
        head = module.head
        theta = head.flat()
        log_p = module.log_prob(batch.x, batch.dx, batch.dt)
        base = -(batch.weight * log_p).sum()
        module.check_finite(base, log_p, batch)
        gradient = torch.zeros_like(theta)
        chosen = torch.randperm(theta.numel(), generator=generator)[: self.n_components]
        for m in chosen.tolist():
            u, sign = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
            change = (0.001 + 0.099 * u) * (1.0 if sign < 0.5 else -1.0)
            moved = theta.clone()
            moved[m] += change
            head.set_flat(moved)
            shifted = -(batch.weight * module.log_prob(batch.x, batch.dx, batch.dt)).sum()
            gradient[m] = (shifted - base) / change
        head.set_flat(theta)
        offset = 0
        for p in head.parameters():
            p.grad = gradient[offset : offset + p.numel()].reshape(p.shape).clone()
            offset += p.numel()
        return base
