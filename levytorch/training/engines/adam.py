"""Mini-batch engines.

`adam`: Algorithm B.1. Mini-batches from the two pools, Adam, gradients of Algorithm E.4 or E.5 or a mixture.
`adamw`: the same for networks, with weight decay, a schedule and clipped gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import LinearHead
from levytorch.coefficients.head import Head
from levytorch.coefficients.network import penalty_groups
from levytorch.convert import choice
from levytorch.data.batches import Batch
from levytorch.errors import InputError, NumericalError
from levytorch.law.threads import one_thread
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.engines.base import Engine, bare

_WARM_UP = 0.3  # of all steps, in which a one-cycle schedule rises
_FIRST, _LAST = 1 / 25, 1 / 25e4  # of the largest learning rate


def _between(start: float, end: float, part: float) -> float:
    """Half a cosine from start (part = 0) to end (part = 1)."""
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * part))


def constant(step: int, n_steps: int) -> float:
    return 1.0


def cosine(step: int, n_steps: int) -> float:
    """From the largest learning rate to zero."""
    return _between(1.0, 0.0, min(step, n_steps) / n_steps)


def one_cycle(step: int, n_steps: int) -> float:
    """Up and then down to nearly zero, as torch.optim.lr_scheduler.OneCycleLR does with its defaults."""
    top, last = _WARM_UP * n_steps - 1, n_steps - 1
    step = min(step, last)
    if step <= top:
        return _between(_FIRST, 1.0, step / top) if top > 0 else 1.0
    return _between(1.0, _LAST, (step - top) / (last - top))


# name -> the part of the largest learning rate at a step of so many
SCHEDULES: dict[str, Callable[[int, int], float]] = {"constant": constant, "cosine": cosine, "one_cycle": one_cycle}


_SMALL = 8192  # pairs of a batch, below which threads would wait for each other more than they work
GRADIENTS = ("direct", "finite_difference", "mixture")


@dataclass
class AdamEngine(Engine):
    """Adam with the paper's hyperparameters.

    gradient: "direct" (Algorithm E.4), "finite_difference" (Algorithm E.5), or "mixture": finite differences with
    probability `mixture` at each step, otherwise direct (the paper does not say which mixture). Components and steps of
    the differences are drawn once for all pairs of a batch, where Algorithm E.5 draws them pair by pair: each component
    has the same expectation, at the cost of one evaluation of the batch instead of one of each pair.
    window: steps of the moving average.
    schedule: of the learning rate, "constant", "cosine" or "one_cycle"; lr is the largest of it. A fit that has one
    takes all of its steps, unless the likelihood of held-out pairs stops it.
    clip: norm beyond which a gradient is scaled down to it; 0: never.
    patience: with held-out pairs (validation > 0) the fit stops after so many looks at them, one every `look_every`
    steps, without a better likelihood than before, and goes back to the best one; 0: never.
    last_layer: at the end Fisher scoring fits the last layer of a network, which makes the standard errors.
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
    schedule: str = "constant"
    clip: float = 0.0
    patience: int = 0
    look_every: int = 100
    last_layer: bool = True

    name = "adam"
    full_batch = False
    n_bins = 64  # the mass is averaged at every step

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("engine.gradient", self.gradient, GRADIENTS)
        choice("engine.schedule", self.schedule, tuple(SCHEDULES))

    def may_settle(self, steps: int) -> bool:
        return self.schedule == "constant" or steps >= self.max_steps

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        return torch.optim.Adam(
            likelihood.head.parameters(), lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, foreach=False
        )

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: Batch, step: int, seed: int = 0) -> float:
        with one_thread() if batch.x.shape[0] <= _SMALL else nullcontext():
            return float(self.descend(likelihood, optimizer, batch, step, seed))

    def descend(self, likelihood: Likelihood, optimizer: Optimizer, batch: Batch, step: int, seed: int = 0) -> Tensor:
        """The same step, whose likelihood is not waited for where it is computed on another device."""
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
            problem, nll = error, batch.weight.new_full((), torch.nan)  # by which other processes see it
        nll = average(likelihood, nll, problem)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(likelihood.head.parameters(), self.clip, foreach=False)
        for group in bare(optimizer).param_groups:
            group["lr"] = self.lr * SCHEDULES[self.schedule](step, self.max_steps)
            group["capturable"] = nll.device.type not in ("cpu", "mps")  # steps are counted there too
        optimizer.step()
        return nll

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


@dataclass
class AdamWEngine(AdamEngine):
    """For large networks and several dimensions: Adam with weight decay (Loshchilov and Hutter, 2019) on the weights of
    layers, a one-cycle learning rate and clipped gradients; the mean of the last steps is taken.
    """

    max_steps: int = 3000
    window: int = 900
    schedule: str = "one_cycle"
    clip: float = 1.0
    patience: int = 10
    weight_decay: float = 1e-2

    name = "adamw"
    batch_size = 2048

    def accepts(self, head: Head) -> None:
        super().accepts(head)
        if isinstance(head, LinearHead):
            raise InputError(
                f"engine adamw must have a network, whose weights can decay, found a {type(head).__name__}; use engine "
                "adam, or auto."
            )

    def first_correction(self, start: int) -> int:
        return min(start, self.max_steps // 10)

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        named = dict(likelihood.head.named_parameters())
        decaying = [name for group in penalty_groups(likelihood.head) for name in group]
        groups = [
            {"params": [p for name, p in named.items() if name in decaying], "weight_decay": self.weight_decay},
            {"params": [p for name, p in named.items() if name not in decaying], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            foreach=False,
        )


def average(likelihood: Likelihood, nll: Tensor, problem: NumericalError | None = None) -> Tensor:
    """The mean over processes of the loss, and of the gradient that is left in the parameters, in one exchange.

    problem: what went wrong in this process; the other processes then stop at this step too.
    """
    ranks, parameters = likelihood.ranks, list(likelihood.head.parameters())
    if ranks.world > 1:
        parts = [nll, *(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)]
        means = ranks.mean(torch.cat([part.reshape(-1) for part in parts])).split([part.numel() for part in parts])
        nll = means[0].reshape(())
        for p, gradient in zip(parameters, means[1:]):
            p.grad = gradient.reshape(p.shape)
        if problem is None and not torch.isfinite(nll):
            problem = NumericalError(
                "the loss must be finite in every process, found that it is not in another one; the parameters of the "
                "step before are kept: resume with a smaller learning rate."
            )
    if problem is not None:
        raise problem
    return nll
