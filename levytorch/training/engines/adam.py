"""`adam`: Algorithm B.1. Mini-batches from the two pools, Adam, gradients of Algorithm E.4 or E.5 or a mixture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.convert import choice
from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.likelihood.likelihood import Likelihood
from levytorch.ranks import DRIFTED, fingerprint
from levytorch.training.engines.base import Engine

GRADIENTS = ("direct", "finite_difference", "mixture")


@dataclass
class AdamEngine(Engine):
    """Adam with the paper's hyperparameters.

    gradient: "direct" (Algorithm E.4), "finite_difference" (Algorithm E.5), or "mixture": finite differences with
    probability `mixture` at each step, otherwise direct (the paper does not say which mixture). Components and steps of
    the differences are drawn once for all pairs of a batch, where Algorithm E.5 draws them pair by pair: each component
    has the same expectation, at the cost of one evaluation of the batch instead of one of each pair.
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
    n_bins = 64  # the mass is averaged at every step

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("engine.gradient", self.gradient, GRADIENTS)

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        return torch.optim.Adam(
            likelihood.head.parameters(), lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, foreach=False
        )

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: Batch, step: int, seed: int = 0) -> float:
        generator = None
        finite = self.gradient == "finite_difference"
        if self.gradient != "direct":
            generator = torch.Generator().manual_seed(1_000_003 * seed + step)
            finite = finite or float(torch.rand((), generator=generator)) < self.mixture
        problem: NumericalError | None = None
        try:
            if finite:
                assert generator is not None
                nll = self._finite_difference(likelihood, batch, generator, step)
            else:
                optimizer.zero_grad()
                loss = likelihood.nll(batch, step)
                loss.backward()
                nll = loss.detach()
        except NumericalError as error:
            problem, nll = error, torch.zeros((), dtype=torch.float64)
        nll = mean_over_ranks(likelihood, nll, problem)
        optimizer.step()
        return float(nll)

    @torch.no_grad()
    def _finite_difference(self, likelihood: Likelihood, batch: Batch, generator: torch.Generator, step: int) -> Tensor:
        """One-sided differences in at most `n_components` random components of the batch, steps +-U(0.001, 0.1)."""
        head = likelihood.head
        theta = head.flat()
        base = likelihood.nll(batch, step)
        gradient = torch.zeros_like(theta)
        chosen = torch.randperm(theta.numel(), generator=generator)[: self.n_components]
        for m in chosen.tolist():
            u, sign = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
            change = (0.001 + 0.099 * u) * (1.0 if sign < 0.5 else -1.0)
            moved = theta.clone()
            moved[m] += change
            head.set_flat(moved)
            shifted = -(batch.weight * likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum()
            gradient[m] = (shifted - base) / change
        head.set_flat(theta)
        offset = 0
        for p in head.parameters():
            p.grad = gradient[offset : offset + p.numel()].reshape(p.shape).clone()
            offset += p.numel()
        return base


def mean_over_ranks(likelihood: Likelihood, nll: Tensor, problem: NumericalError | None = None) -> Tensor:
    """Means over ranks: of the loss, and of the gradient in the head's parameters, in one exchange.

    A problem on any rank is raised on all of them, and so are parameters or TCFs that have drifted apart.
    """
    ranks, head = likelihood.ranks, likelihood.head
    if ranks.world == 1:
        ranks.check(problem)
        return nll
    parameters = list(head.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    state = torch.cat([head.flat(), torch.tensor([likelihood.correction.tcf], dtype=torch.float64)])
    failed = torch.tensor([float(problem is not None)], dtype=torch.float64)
    failed, total, marks, *sums = ranks.sum([failed, nll, fingerprint(state), *gradients])
    if failed:
        ranks.check(problem)
    if ranks.world * marks[1] != marks[0] ** 2:
        ranks.check(NumericalError(DRIFTED))
    for p, g in zip(parameters, sums):
        p.grad = g / ranks.world
    return total / ranks.world
