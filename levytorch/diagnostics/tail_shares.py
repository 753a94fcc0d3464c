"""Are lost tails lost at the same rate in all states?

The TCF assumes that of the steps beyond CT one unknown fraction rho was kept, whatever the state. Then a kept pair at x
lies beyond CT with probability pi(x),

    logit pi(x) = log rho + l(x),    l = log(mass between CT and TRT) - log(mass within CT),

and the sums of  g(x) (1{beyond CT} - pi(x))  over the pairs have mean zero for functions g of the state; their part
along rho is taken out by centering g with the weights pi (1 - pi). The coefficients enter through l. With A the
derivatives of the sums in theta, and the mean score s and information F of the pairs within CT given that they lie
there, which do not depend on what was lost, the residuals  H - A F^-1 s  do not move to first order with theta. Their
covariance is that of the binomial numbers plus A F^-1 A^T / n: the p-value is that of chi-squared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.diagnostics.components import Check, Components, chi_squared_sf, p_text
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.sample import Region, make_sample
from levytorch.diagnostics.step_size import Skipped
from levytorch.diagnostics.tangent import Tangent, equilibrated_inverse

_FEWEST = 20  # pairs beyond CT
_ROUNDS = 60
_FLAT = 1e-8
_PARTS = 4


@dataclass
class TailShareCheck(Check):
    """p_value: that one fraction of the tails was kept in all states; kept: that fraction; ratio: the smallest and the
    largest number of pairs beyond CT over the number expected, in quarters of the states; tail: pairs beyond CT."""

    p_value: float
    statistic: float
    df: int
    kept: float
    ratio: tuple[float, float]
    tail: int

    def metrics(self, name: str) -> dict[str, Any]:
        return self.numbers(name, "p_value", "kept") | {f"{name}_pairs": self.tail, f"{name}_ratio": list(self.ratio)}

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        if not rejected:
            return {}
        return {
            "tail_shares": f"the share of lost tails depends on the state ({p_text(self.p_value)}; steps beyond CT "
            f"over those expected: {self.ratio[0]:.2f} to {self.ratio[1]:.2f}), while the TCF assumes that it does "
            'not, so that D_f is biased; use tail={"method": "conditional"}.'
        }

    def lines(self, rejected: Collection[str]) -> list[str]:
        low, high = self.ratio
        return [
            f"Lost tails, the same share in all states: {p_text(self.p_value)}; steps beyond CT over those expected, "
            f"in quarters of the states: {low:.2f} to {high:.2f}"
        ]


def check_tail_shares(
    tangent: Tangent | ExactTangent, fit: FitCheck, transitions: Transitions, region: Region, most: int, seed: int
) -> TailShareCheck | Skipped:
    """tangent, fit: of the pairs within CT, for the same `most` and `seed`; region: that of the TCF."""
    strata = replace(region, outer=region.removed)
    beyond = replace(region, inner=None)  # all that was not removed
    sample = make_sample(transitions, beyond, most, seed)
    label = region.labels(sample.deviation, sample.dt)
    tail = label != 0
    number = int(tail.sum())
    if number < _FEWEST:
        return Skipped(f"only {number} pairs lie beyond CT and {_FEWEST} are needed; lower CT, or use more data")
    log_odds, contract = tangent.tail_odds(sample, strata)
    intercept = _balance(log_odds, number)
    pi = torch.sigmoid(intercept + log_odds)
    components = Components(tangent.head, sample)
    waves = components.factors(sample.x, sample.dt, None)[1 : 1 + components.state_factors]
    weight = pi * (1 - pi)
    waves = waves - (waves @ weight / weight.sum())[:, None]
    excess = tail.double() - pi
    H, A = waves @ excess, contract(waves * weight)
    inverse, _ = equilibrated_inverse(fit.information, _FLAT)
    residual = H - A @ (inverse @ fit.score)
    covariance = (waves * weight) @ waves.T + A @ inverse @ A.T / fit.pairs
    statistic = float(residual @ torch.linalg.solve(covariance, residual))
    ratio = _ratios(components.rank(sample.x), tail, pi)
    df = len(waves)
    return TailShareCheck(chi_squared_sf(statistic, df), statistic, df, float(intercept.exp()), ratio, number)


def _balance(log_odds: Tensor, number: int) -> Tensor:
    """log rho with which as many pairs are expected beyond CT as there are."""
    low, high = -log_odds.max() - 40.0, -log_odds.min() + 40.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        too_many = torch.sigmoid(middle + log_odds).sum() > number
        low, high = torch.where(too_many, low, middle), torch.where(too_many, middle, high)
    return (low + high) / 2


def _ratios(rank: Tensor, tail: Tensor, pi: Tensor) -> tuple[float, float]:
    part = (rank * _PARTS).long().clamp(max=_PARTS - 1)
    seen, expected = (torch.zeros(_PARTS, dtype=torch.float64).index_add_(0, part, v) for v in (tail.double(), pi))
    ratio = seen / expected.clamp(min=1e-300)
    return float(ratio.min()), float(ratio.max())
