"""Does the data need jumps: the same head for b and D_o with D_f = 0, fitted to the same pairs in the same region.

The Gaussian likelihood depends on the data through sums per bin of x and dt, so that the fit never goes back to the
pairs; the likelihood that is reported is then evaluated pair by pair.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import HEADS, Coefficients, Head, LinearHead, build_head
from levytorch.diagnostics.components import Check
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.sample import Region, Sample
from levytorch.diagnostics.tangent import Tangent
from levytorch.law import tail_probability
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import center_of
from levytorch.spaces.states import beside, squares_of

_ITERATIONS = 200  # a Gaussian fitted to wild jumps may not settle, but then it has lost anyway
_NO_JUMPS = 1e-100  # the smallest D_f that the ball's mass in d > 1 dimensions is asked with


@dataclass
class JumpCheck(Check):
    """gain: log-likelihood with jumps minus without, in total; per_pair with its standard error; aic, bic: gains of the
    criteria (positive: the jumps are worth their parameters); needed: bic > 0, and the fit has jumps at all."""

    gain: float
    per_pair: float
    per_pair_std: float
    aic: float
    bic: float
    extra: int
    needed: bool

    def metrics(self, name: str) -> dict[str, Any]:
        gains = {f"{name}_gain_per_pair": self.per_pair, f"{name}_gain_per_pair_std": self.per_pair_std}
        return self.numbers(name, "gain", "aic", "bic") | gains

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        if self.needed:
            return {}
        return {
            "jumps_not_needed": f"a law without jumps describes the data equally well (BIC {self.bic:+.3g} for "
            f"{self.extra} more parameters); do not interpret D_f."
        }

    def lines(self, rejected: Collection[str]) -> list[str]:
        return [
            f"Jumps, gain over a law without them: log-likelihood {self.gain:+.5g} in all, {self.per_pair:+.4g} per "
            f"pair; AIC {self.aic:+.5g}, BIC {self.bic:+.5g}"
        ]


def check_jumps(tangent: Tangent | ExactTangent, sample: Sample, log_p: Tensor) -> JumpCheck:
    """log_p: of the fitted law at the sample's pairs, given the region."""
    plain = fit_without_jumps(tangent.head, tangent.region, sample)
    log_q = plain.log_prob(sample)
    difference = log_p - log_q
    m, n = len(sample), sample.total
    sizes = parameter_counts(tangent)
    # theta was fitted to all n pairs, the Brownian law to these m: bring both to what they owe to being fitted
    fair = float(difference.sum()) - 0.5 * (m / n) * sizes[0] + 0.5 * sizes[1]
    extra = sizes[0] - sizes[1]
    gain = fair * (n / m) + 0.5 * extra
    aic, bic = 2 * gain - 2 * extra, 2 * gain - extra * math.log(n)
    return JumpCheck(gain, gain / n, float(difference.std()) / math.sqrt(m), aic, bic, extra, extra > 0 and bic > 0)


def parameter_counts(tangent: Tangent | ExactTangent) -> tuple[int, int]:
    """Parameters of the whole head, and of its b and D_o; for an MLP directions in which the coefficients can move."""
    J, last = tangent.jacobian, tangent.head.layout.row("D_f")
    if isinstance(tangent.head, LinearHead):
        return J.shape[2], int((J[:last].abs().sum((0, 1)) > 0).sum())
    scaled = J / J.abs().amax((1, 2), keepdim=True).clamp(min=1e-300)
    ranks = [int(torch.linalg.matrix_rank(row, rtol=1e-3)) for row in scaled]
    return sum(ranks), sum(ranks[:last])


@dataclass
class LawWithoutJumps:
    """A fitted law without jumps."""

    head: Head
    region: Region
    bins: StateBins
    center: Tensor

    def log_kept(self, c: Coefficients) -> list[Tensor]:
        """log mass of each stratum at every bin."""
        inner, outer = self.region.thresholds(self.bins.dt)
        if inner is None:
            return []
        beyond = _exceedance(c, inner, self.center, self.bins.dt)
        kept = [torch.log((1.0 - beyond).clamp(min=1e-300))]
        if outer is not None:
            kept.append(torch.log((beyond - _exceedance(c, outer, self.center, self.bins.dt)).clamp(min=1e-300)))
        return kept

    @torch.no_grad()
    def log_prob(self, sample: Sample) -> Tensor:
        """log p of each pair, given its stratum."""
        c, dt, d = self.head(sample.x), sample.dt, sample.dim
        square = squares_of(sample.dx - c.b * beside(dt, c.b))
        log_p = -0.5 * d * torch.log(4 * math.pi * c.D_o * dt) - square / (4 * c.D_o * dt)
        kept = self.log_kept(self.head(self.bins.x))
        if kept:
            node = self.bins.index(sample.x, sample.step_dt)
            for stratum, mass in enumerate(kept):
                log_p = torch.where(sample.label == stratum, log_p - mass[node], log_p)
        return log_p


def fit_without_jumps(head: Head, region: Region, sample: Sample) -> LawWithoutJumps:
    """Maximum likelihood over the parameters of b and D_o."""
    from scipy.optimize import minimize  # a fifth of a second, which only this check takes

    d, dt = sample.dim, sample.dt
    apart = sample.dx - sample.center
    spread = squares_of(apart) / dt
    D = float(spread.mean()) / (2 * d)
    time = float(dt.median())
    length = math.sqrt(max(D * time, 1e-290))
    own = type(head) not in HEADS.values()  # a user's head starts where it is
    if own:
        plain = copy.deepcopy(head)
    else:  # the Brownian part takes over what a known D_o would leave to the jumps
        known = dict.fromkeys(head.known)
        plain = build_head({**head.config(), **known, "length": length, "time": time})
    drift = (sample.center / beside(dt, sample.center)).mean(0)
    plain.set_constants(drift.tolist(), max(D, 1e-290), float(plain.units.D_f(torch.tensor(0.5))))
    bins = StateBins(plain, sample.step_dt, 1024 if d == 1 else 512)
    mu = sample.center[0] if sample.uniform_dt else sample.center[0] / dt[0]
    model = LawWithoutJumps(plain, region, bins, center_of(mu, bins.dt, uniform_dt=sample.uniform_dt))
    statistics = _statistics(bins, sample)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        plain.set_flat(torch.from_numpy(theta))
        plain.zero_grad()
        with torch.enable_grad():
            loss = -_log_likelihood(model, statistics, d) / len(sample)
            loss.backward()
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in plain.parameters()]
        )
        return float(loss.detach()), gradient.numpy()

    start = plain.flat().numpy().copy()
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS, "ftol": 1e-13, "gtol": 1e-8}
    )
    best = found.x if np.isfinite(found.fun) and found.fun <= objective(start)[0] else start
    plain.set_flat(torch.from_numpy(np.asarray(best)))
    return model


def _statistics(bins: StateBins, sample: Sample) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """Per bin: pairs, sum of dx, of |dx|^2 / dt, of dt; and the pairs of each stratum."""
    dt, M = sample.dt, len(bins)
    node = bins.index(sample.x, sample.step_dt)
    square = squares_of(sample.dx)
    count = torch.bincount(node, minlength=M).double()
    moved = torch.zeros((M, *sample.dx.shape[1:]), dtype=torch.float64).index_add_(0, node, sample.dx)
    spread = torch.zeros(M, dtype=torch.float64).index_add_(0, node, square / dt)
    time = torch.zeros(M, dtype=torch.float64).index_add_(0, node, dt)
    strata = [torch.bincount(node[sample.label == s], minlength=M).double() for s in (0, 1)]
    return count, moved, spread, time, strata


def _log_likelihood(model: LawWithoutJumps, statistics: tuple, d: int) -> Tensor:
    count, moved, spread, time, strata = statistics
    c = model.head(model.bins.x)
    D = c.D_o.clamp(min=1e-300)
    along, square = (c.b * moved).reshape(len(count), -1).sum(1), squares_of(c.b)
    total = (-0.5 * d * count * torch.log(D) - (spread - 2 * along + square * time) / (4 * D)).sum()
    for number, mass in zip(strata, model.log_kept(c)):
        total = total - (number * mass)[number > 0].sum()
    return total


def _exceedance(c: Coefficients, threshold: Tensor, center: Tensor, dt: Tensor) -> Tensor:
    """P(|dx - center| > threshold) of the Gaussian."""
    if c.b.dim() > 1:
        return tail_probability(threshold, center, c.b, c.D_o, _NO_JUMPS, 0.5, dt, dim=c.b.shape[1])
    width = (4.0 * c.D_o * dt).sqrt()
    shift = center - c.b * dt
    return 0.5 * (torch.erfc((threshold + shift) / width) + torch.erfc((threshold - shift) / width))
