"""Tail and kept masses over the state bins, and how they move with the parameters.

`TailMasses` is the model's side of Algorithm E.6 (R_theta and the TCF) and of the conditional likelihood
(log of the kept mass); both need P(|dx - mu| > threshold) at every bin, never per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import tail_correction_factor


@dataclass
class TailMasses:
    """Thresholds at every node of the state bins, and how many pairs of each pool lie there.

    mu: the center of dx, or of dx / dt when dt varies (`uneven`).
    """

    bins: StateBins
    mu: Tensor
    uneven: bool
    CT: Tensor | None
    TRT: Tensor | None
    counts: Tensor
    tail_counts: Tensor
    law: FrozenLaw | ExactLaw
    at_mean: bool = False

    def center(self, dt: Tensor) -> Tensor:
        """The center of dx over these dt (n,): (n,), or (n, d)."""
        scale = dt if self.uneven else torch.ones_like(dt)
        return self.mu * (scale if self.mu.dim() == 0 else scale.unsqueeze(-1))

    @property
    def share(self) -> Tensor:
        """Fraction of the pairs on each node."""
        return self.counts / self.counts.sum()

    @property
    def R_sample(self) -> float:
        """|P_tail| / |P_main|."""
        return float(self.tail_counts.sum() / self.counts.sum())

    def mean_log_kept(self, head: Head) -> Tensor:
        """log of the kept mass averaged over the pairs: what a conditional likelihood subtracts."""
        core, middle = self.log_kept(head)
        n = self.counts.sum()
        if self.CT is None:
            return (self.counts * core).sum() / n
        return ((self.counts - self.tail_counts) * core).sum() / n + (self.tail_counts * middle).sum() / n

    def log_kept_of(self, head: Head, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log of the mass of the region each pair lies in: for mini-batches (full batches sum over the nodes)."""
        node, center = self.bins.index(x, dt), self.center(dt)
        beyond_TRT = torch.zeros_like(dt)
        if self.TRT is not None:
            beyond_TRT = self.law.mass_beyond(head, self.TRT[node], center, x, dt)
        if self.CT is None:
            return torch.log1p(-beyond_TRT)
        CT = self.CT[node]
        beyond_CT = self.law.mass_beyond(head, CT, center, x, dt)
        core = ((dx - center).norm(dim=-1) if head.dim > 1 else (dx - center).abs()) <= CT
        return torch.where(core, torch.log1p(-beyond_CT), torch.log((beyond_CT - beyond_TRT).clamp(min=1e-300)))

    def R_theta(self, head: Head) -> float:
        """Mass beyond CT under the model, over the observed states or at the mean coefficients (the paper)."""
        with torch.no_grad():
            return float(self.R_theta_differentiable(head))

    def exceedance(self, head: Head) -> Tensor:
        """P(|dx - mu| > CT) at every node (at the mean coefficients: the same number everywhere)."""
        assert self.CT is not None
        with torch.no_grad():
            if self.at_mean:
                return self._R_at_mean(head).expand(len(self.bins))
            return self._beyond(head)(self.CT)

    def R_theta_differentiable(self, head: Head) -> Tensor:
        """The same with a graph."""
        if self.at_mean:
            return self._R_at_mean(head)
        assert self.CT is not None
        used, share = self.share > 0, self.share  # only nodes that hold data take part in averages
        dt = self.bins.dt[used]
        p = self.law.mass_beyond(head, self.CT[used], self.center(dt), self.bins.x[used], dt)
        return (p * share[used]).sum() / share.sum()

    def R_theta_gradient(self, head: LinearHead) -> tuple[float, Tensor]:
        """R_theta and d R_theta / d theta (P,)."""
        head.zero_grad(set_to_none=True)
        with torch.enable_grad():
            R = self.R_theta_differentiable(head)
            (gradient,) = torch.autograd.grad(R, [head.theta])
        return float(R.detach()), gradient

    def log_kept(self, head: Head) -> tuple[Tensor, Tensor]:
        """log P(|dx - mu| < CT) and log P(CT < |dx - mu| < TRT) at every node, with a graph in the head."""
        return self._log_kept(self._beyond(head))

    def log_kept_scores(self, head: LinearHead, design: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log masses of core and middle (M,), and their derivatives in the predictors (C, M); of the frozen law."""
        law, dt = self.law, self.bins.dt
        assert isinstance(law, FrozenLaw)
        chain = head.chain(head.theta.detach(), design)
        c = chain.coefficients
        M = len(self.bins)
        d, learned = head.dim, head.alpha_basis is not None
        shapes = ((M,) if d == 1 else (M, d), (M,), (M,), (M,), *([(M,)] if head.tempered else []))
        leaves = [v.expand(s).clone().requires_grad_(True) for v, s in zip((*c, c.tempering), shapes)]
        with torch.enable_grad():
            at = Coefficients(*leaves)
            core, middle = self._log_kept(lambda threshold: law.exceedance(at, threshold, self.center(dt), dt))
            q = []
            for mass in (core, middle):
                wanted = leaves[: 4 if learned else 3] + leaves[4:]
                if mass.requires_grad:
                    parts = torch.autograd.grad(mass.sum(), wanted, retain_graph=True)
                else:
                    parts = tuple(torch.zeros_like(v) for v in wanted)
                rows = [*(parts[0].unsqueeze(0) if d == 1 else parts[0].T), parts[1], parts[2]]
                if learned:
                    rows.append(parts[3] + parts[2] * chain.D_f_alpha)
                if head.tempering_spec.learned:
                    rows.append(parts[-1])
                q.append(torch.stack(rows) * chain.slope)
        return core.detach(), middle.detach(), q[0], q[1]

    # -- private ------------------------------------------------------------------------------------------------------
    def _beyond(self, head: Head) -> Callable[[Tensor], Tensor]:
        """P(|dx - mu| > threshold) at every node, as a function of the thresholds there."""
        x, dt = self.bins.x, self.bins.dt
        return lambda threshold: self.law.mass_beyond(head, threshold, self.center(dt), x, dt)

    def _R_at_mean(self, head: Head) -> Tensor:
        """Constants, for which all laws are the frozen one."""
        assert self.CT is not None
        law = self.law if isinstance(self.law, FrozenLaw) else FrozenLaw()
        share, dt = self.share, self.bins.dt
        mean = lambda v: (share @ v) / share.sum()  # noqa: E731
        return law.exceedance(self._mean_coefficients(head), mean(self.CT), mean(self.center(dt)), mean(dt))

    def _mean_coefficients(self, head: Head) -> Coefficients:
        """Arithmetic means over one cell: theta_{1,1}, theta_{2,1}, theta_{3,1} for a Fourier head with clamp."""
        c = head(self.bins.x)
        return c.each(lambda v: v.mean(0) if v.dim() else v)

    def _log_kept(self, beyond: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(len(self.bins), dtype=torch.float64)
        beyond_TRT = zero if self.TRT is None else beyond(self.TRT)
        if self.CT is None:
            return torch.log1p(-beyond_TRT), zero
        beyond_CT = beyond(self.CT)
        return torch.log1p(-beyond_CT), torch.log((beyond_CT - beyond_TRT).clamp(min=1e-300))


def tcf_gradient(masses: TailMasses, head: LinearHead) -> tuple[float, float, Tensor]:
    """R_theta, the TCF and its derivative in theta (zero where it is clipped at 0)."""
    R, gradient = masses.R_theta_gradient(head)
    tcf = tail_correction_factor(R, masses.R_sample)
    return R, tcf, gradient / (1.0 - masses.R_sample) if tcf > 0 else torch.zeros_like(gradient)
