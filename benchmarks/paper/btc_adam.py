"""Replicas of Algorithm B.1 side by side: as many random starts as wanted for little more than the cost of one.

A step of Adam on 100 pairs costs a few hundred microseconds of arithmetic and milliseconds of everything else. Here all
replicas take their steps together, so that the rest is paid once. Every replica draws the batches that `engine=adam`
with its seed draws, and ends at the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, build_head, initial_guess
from levytorch.coefficients.fourier import Chain
from levytorch.coefficients.init import Guess, randomise
from levytorch.data import Transitions
from levytorch.data.batches import Drawer
from levytorch.errors import InputError, NumericalError
from levytorch.law import score, tail_probability
from levytorch.likelihood.masses import TailMasses, tail_correction_factor
from levytorch.likelihood.plan import make_masses, shared_dt
from levytorch.training.callbacks.averaging import MovingAverage
from levytorch.training.callbacks.convergence import has_settled
from levytorch.training.engines.adam import AdamEngine
from levytorch.training.fit import check_data, make_data, make_module, resolve_tail
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings

_FEW_BINS = 64  # as the engine


class Replicas:
    """theta (S, P) of S replicas of one Fourier head."""

    def __init__(self, heads: Sequence[FourierHead]) -> None:
        self.head = heads[0]
        self.theta = torch.stack([head.flat() for head in heads]).requires_grad_(True)

    def gradient(self, x: Tensor, dx: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        """Mean log p of every replica's batch (S, B), and its gradient in theta (S, P)."""
        S, B = x.shape
        head, K = self.head, self.head.basis.size
        phi = head.basis.rows(x.reshape(-1)).reshape(K, S, B)
        chain = self._chain(phi)
        c = chain.coefficients
        step = score(dx.reshape(-1), c.b, c.D_o, c.D_f, c.alpha, dt.reshape(-1), wrt_alpha=head.learns_alpha)
        if not bool(torch.isfinite(step.log_p).all()):
            raise NumericalError(
                "log p must be finite, found a replica where it is not; use init=data, or another density."
            )
        rows = [step.b * chain.slope[0], step.D_o * chain.slope[1], step.D_f * chain.slope[2]]
        blocks = [torch.einsum("ksb,sb->sk", phi, row.reshape(S, B)) / B for row in rows]
        if head.learns_alpha:
            assert step.alpha is not None
            by_alpha = (step.alpha + step.D_f * chain.D_f_alpha) * chain.slope[3]
            blocks.append(by_alpha.reshape(S, B).mean(1, keepdim=True))
        return step.log_p.reshape(S, B).mean(1), torch.cat(blocks, dim=1)

    def R_theta(self, masses: TailMasses) -> Tensor:
        """Mass beyond CT of every replica: over the observed states, or at the mean coefficients (the paper)."""
        assert masses.CT is not None
        S, M = self.theta.shape[0], len(masses.bins)
        phi = self.head.basis.rows(masses.bins.x)[:, None, :].expand(-1, S, -1)
        c = [v.expand(S * M).reshape(S, M) for v in self._chain(phi).coefficients]
        if masses.at_mean:
            share = masses.share / masses.share.sum()
            at = [float(share @ v) for v in (masses.CT, masses.center, masses.bins.dt)]
            b, D_o, D_f, alpha = (v.mean(1) for v in c)
            return tail_probability(at[0], at[1], b, D_o, D_f, alpha, at[2])
        p = tail_probability(masses.CT, masses.center, c[0], c[1], c[2], c[3], masses.bins.dt)
        return p @ masses.share / masses.share.sum()

    def _chain(self, phi: Tensor) -> Chain:
        """The head's chain rule at (K, S, n) basis values, every replica with its own parameters."""
        theta, K = self.theta.detach(), self.head.basis.size
        S, n = phi.shape[1:]
        eta = torch.einsum("csk,ksn->csn", theta[:, : 3 * K].reshape(S, 3, K).transpose(0, 1), phi).reshape(3, S * n)
        alpha = theta[:, 3 * K].repeat_interleave(n) if self.head.learns_alpha else None
        return self.head.respond(eta, alpha)


def adam_replicas(
    transitions: Transitions, settings: FitSettings, seeds: Sequence[int], *, progress: bool = False
) -> list[Recovery]:
    """Recoveries of `engine=adam` for several seeds, one per seed."""
    from tqdm import tqdm

    settings = check_data(transitions, settings)
    guess = initial_guess(
        transitions.dx, transitions.dt, float(transitions.mu), settings.alpha, uniform_dt=transitions.uniform_dt
    )
    tail = resolve_tail(transitions, settings, guess)
    settings = replace(settings, tail=tail)
    module = make_module(settings, guess)
    engine, head = module.engine, module.head
    if not isinstance(engine, AdamEngine) or engine.gradient != "direct" or not isinstance(head, FourierHead):
        raise InputError(
            "replicas side by side need engine adam with direct gradients and a Fourier head, found others; run "
            "train.py -m with several seeds instead."
        )
    if head.dim > 1 or (head.alpha_basis is not None and head.alpha_basis.size > 1) or tail.method == "conditional":
        raise InputError(
            "replicas side by side are for one dimension, a constant alpha and the TCF or none, found something else; "
            "run train.py -m with several seeds instead."
        )
    pools = make_data(transitions, settings, module, guess).pools
    mixing = settings.data.get("mixing", "stratified")
    size = settings.data.get("batch_size", 100)
    if mixing != "bernoulli":
        raise InputError(f"replicas side by side draw as the paper does, found mixing {mixing!r}; use bernoulli.")
    drawers = [Drawer(pools, size, mixing, seed) for seed in seeds]
    replicas = Replicas([_start(head, guess, settings.init, seed) for seed in seeds])
    masses = make_masses(head, pools, tail, module.law, _FEW_BINS) if tail.method == "tcf" else None
    optimizer = torch.optim.Adam(
        [replicas.theta], lr=engine.lr, betas=(engine.beta1, engine.beta2), eps=engine.eps, foreach=False
    )
    average = MovingAverage(engine.window)
    tcf = torch.zeros(len(seeds), dtype=torch.float64)
    for step in tqdm(range(engine.max_steps), desc="adam", unit=" steps", disable=not progress, leave=False):
        batches = [drawer.draw(step, float(t)) for drawer, t in zip(drawers, tcf)]
        x, dx, dt = (torch.stack([getattr(batch, name) for batch in batches]) for name in ("x", "dx", "dt"))
        _, gradient = replicas.gradient(x, dx, dt)
        replicas.theta.grad = -gradient
        optimizer.step()
        average.add(replicas.theta.detach())
        if masses is not None and step + 1 >= tail.start:
            R = replicas.R_theta(masses)
            tcf = torch.tensor([tail_correction_factor(float(r), pools.R_sample) for r in R], dtype=torch.float64)
    final = average.average()
    if masses is not None:  # as every recovery reports it: that of the averaged parameters
        replicas.theta = final
        R = replicas.R_theta(make_masses(head, pools, tail, module.law, 512))
        tcf = torch.tensor([tail_correction_factor(float(r), pools.R_sample) for r in R], dtype=torch.float64)
    found = []
    low, high = torch.aminmax(pools.main.x)
    for number, theta in enumerate(final):
        own = build_head(head.config())
        own.set_flat(theta)
        blocks = average.block_means()[:, number] if average.sums else torch.zeros((0, theta.numel()))
        metrics = {
            "engine": "adam",
            "steps": engine.max_steps,
            "seed": int(seeds[number]),
            "converged": has_settled(blocks, engine.tolerance),
            "tail_method": tail.method,
            "tcf": float(tcf[number]),
            "R_sample": pools.R_sample,
            "CT": pools.CT if isinstance(pools.CT, (int, float)) else None,
            "TRT": pools.TRT if isinstance(pools.TRT, (int, float)) else None,
            "n_main": pools.n_main,
            "n_tail": pools.n_tail,
            "dt": float(shared_dt(pools).reshape(-1)[0]),
            "x_min": float(low),
            "x_max": float(high),
        }
        found.append(Recovery(own, float(tcf[number]), converged=bool(metrics["converged"]), metrics=metrics))
    return found


def _start(head: FourierHead, guess: Guess, init: str, seed: int) -> FourierHead:
    own = build_head(head.config())
    assert isinstance(own, FourierHead)
    if init == "random":
        randomise(own, torch.Generator().manual_seed(seed))
    else:
        guess.apply(own)
    return own
