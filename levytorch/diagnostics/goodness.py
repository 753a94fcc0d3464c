"""Goodness of fit: a smooth test on the probability integral transform, right although theta was estimated.

With components h(u) (mean zero under the law), conditional scores s, and B = E[h s^T] E[s s^T]^{-1} under the law, the
residuals  r = h - B s  do not react to first order when theta moves (Neyman's C(alpha)), so that their mean over m
pairs at *any* root-n consistent estimate is normal with covariance E[r r^T] / m: maximum likelihood, conditional
likelihood, TCF and averaged Adam alike, on all pairs or on some. T = m rbar^T E[r r^T]^{-1} rbar is chi-squared.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.diagnostics.components import (
    FEWEST,
    TAILS,
    Check,
    Components,
    chi_squared_isf,
    chi_squared_sf,
    legendre,
    p_text,
    period_of,
    wrapped,
)
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.sample import Sample, Transform
from levytorch.diagnostics.tangent import Tangent, equilibrated_inverse
from levytorch.spaces.states import beside, lengths_of

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of u, in the figure along x
_HISTOGRAM = 40
_TAILS = 200
_NEAR = 2.0  # times a quantile of chi-squared: scores of a wrong law vary more than the law says
_FLAT = 1e-8  # relative information below which a direction of theta counts as undetermined
_ABSORBED = 0.02  # share of a component's variance below which the fit leaves nothing of it to test


@dataclass
class FitCheck(Check):
    """p_value: of all components together; `parts`: of each group alone; statistic and degrees of freedom likewise.

    gap: the largest difference between the distribution of u and a uniform one, a probability that the law gets wrong.
    rare: for levels of which 25 steps are expected, how many times as many steps are as rare as that under the law.
    sign, size: of a step and the one before it, correlation of the transformed steps and of their sizes, each with its
    number of standard errors; None where too few pairs follow each other.
    away: how far the estimate is from the maximum of the likelihood of these pairs, in standard errors per parameter.
    conservative: it is too far for the correction (an engine that stopped early, a coefficient at zero), so the law was
    tested as if it had been given: the true p-value is smaller.
    score, information: mean score of these pairs, and its covariance per pair under the law.
    """

    p_value: float
    statistic: float
    df: int
    parts: dict[str, tuple[float, float, int]]
    gap: float
    pairs: int
    jumps: int
    correlation: float
    away: float
    conservative: bool
    rare: dict[float, float]
    sign: tuple[float, float] | None
    size: tuple[float, float] | None
    u: Transform = field(repr=False)
    log_p: Tensor = field(repr=False)
    score: Tensor = field(repr=False)
    information: Tensor = field(repr=False)

    def metrics(self, name: str) -> dict[str, Any]:
        out = self.numbers(name, "p_value", "statistic", "df", "gap", "pairs", "conservative")
        out |= {f"{name}_away_from_maximum": self.away, "clear_jumps": self.jumps}
        out |= {f"{name}_p_{part.replace(' ', '_')}": found[0] for part, found in self.parts.items()}
        out |= {f"{name}_rare_{level:g}": ratio for level, ratio in self.rare.items()}
        pairs = (("steps", self.sign), ("sizes", self.size))
        return out | {f"{name}_correlation_{what}": found[0] for what, found in pairs if found is not None}

    def lines(self, rejected: Collection[str]) -> list[str]:
        worst = min(self.parts, key=lambda part: self.parts[part][0])
        return [
            f"Goodness of fit: {p_text(self.p_value, '<=' if self.conservative else '=')} (weakest part: {worst}, "
            f"{p_text(self.parts[worst][0])}); {self.errors()}; {self.pairs} pairs"
        ]

    def errors(self) -> str:
        """The largest error of the step probabilities, and the observed over the expected frequency of the rarest
        steps.
        """
        text = f"step probabilities match the data within {100 * self.gap:.2g} percentage points"
        if self.rare:
            level = min(self.rare)
            times = f"{self.rare[level]:.2g}"
            often = "as frequent" if times == "1" else f"{times} times as frequent"
            text += f", the rarest {100 * level:.3g} % of steps are {often} as expected"
        return text


def check_fit(tangent: Tangent | ExactTangent, sample: Sample, *, seed: int = 0) -> FitCheck:
    """The test on a sample of pairs."""
    components = Components(tangent.head, sample)
    c = tangent.coefficients(sample.x)
    observed = tangent.observe(sample)
    u = observed.u
    h, groups = components.values(u.u, sample.x, sample.dt, u.direction), components.groups
    known = components.variance(sample.x, sample.dt, u.direction)
    expected = tangent.expect(sample, components, seed)
    inverse, rank = equilibrated_inverse(expected.information, _FLAT)
    B = expected.cross @ inverse
    # a regression on `rank` scores explains that much of the draws' noise too
    noise = 1.0 if expected.draws is None else expected.draws / max(expected.draws - rank, 1)
    variance = (known - B @ expected.cross.T) * noise
    residual = h.mean(1) - B @ observed.score
    m = len(sample)
    away = m * float(observed.score @ inverse @ observed.score)
    conservative = away > _NEAR * chi_squared_isf(1e-6, rank)
    if conservative:
        residual, variance = h.mean(1), known
    parts = {}
    for name in dict.fromkeys(groups):
        rows = torch.tensor([i for i, g in enumerate(groups) if g == name])
        parts[name] = _chi_squared(m, residual[rows], variance[rows][:, rows])
    statistic, df = _quadratic(m, residual, variance)
    memory = memory_test(u.u, sample.previous)
    sign = size = None
    if memory is not None:
        parts["memory"], (sign, size) = memory
        statistic, df = statistic + parts["memory"][1], df + parts["memory"][2]
    return FitCheck(
        chi_squared_sf(statistic, df),
        statistic,
        df,
        parts,
        kolmogorov(u.u),
        m,
        clear_jumps(c, sample.dx, sample.dt),
        expected.correlation,
        math.sqrt(away / rank),
        conservative,
        rare_steps(u, sample.dim),
        sign,
        size,
        u,
        observed.log_p,
        observed.score,
        expected.information,
    )


def clear_jumps(c: Coefficients, dx: Tensor, dt: Tensor) -> int:
    """Steps that no Brownian part makes: they are longer than six of its standard deviations."""
    return int((lengths_of(dx - c.b * beside(dt, dx)) > 6.0 * (2.0 * c.D_o * dt).sqrt()).sum())


def memory_test(u: Tensor, previous: Tensor) -> tuple[tuple[float, float, int], list[tuple[float, float]]] | None:
    """Products phi_j(u) phi_j(u of the pair before), j = 1, 2: zero on average when steps depend on the state alone.

    Given the past the first factor has mean zero and variance one, so nothing about the second need be known. With the
    test come the two correlations, of steps and of their sizes, and how many standard errors they are.
    """
    rows = torch.nonzero(previous >= 0).reshape(-1)
    if len(rows) < 100:
        return None
    now, before = legendre(u[rows], 2), legendre(u[previous[rows]], 2)
    z = (now * before).sum(1) / (before * before).sum(1).sqrt()
    statistic = float((z * z).sum())
    correlation = (now * before).mean(1) / ((now * now).mean(1) * (before * before).mean(1)).sqrt()
    found = list(zip(correlation.tolist(), z.tolist()))
    return (chi_squared_sf(statistic, 2), statistic, 2), found


def rare_steps(u: Transform, dim: int) -> dict[float, float]:
    """Observed over expected numbers of steps that are rarer than the levels of the test, where 25 are expected."""
    rare = 2.0 * torch.minimum(u.u, u.upper) if dim == 1 else u.upper
    return {a: float((rare < a).double().mean()) / a for a in TAILS if a * len(rare) >= FEWEST}


def kolmogorov(u: Tensor) -> float:
    """max |F_m(u) - u|."""
    ordered = u.sort().values
    steps = torch.arange(len(u) + 1, dtype=torch.float64) / len(u)
    return float(torch.maximum((ordered - steps[:-1]).max(), (steps[1:] - ordered).max()))


def _quadratic(m: int, residual: Tensor, variance: Tensor) -> tuple[float, int]:
    """m r^T V^-1 r in the directions that the fit leaves anything of (components have variance about one)."""
    values, vectors = torch.linalg.eigh(variance)
    keep = values > _ABSORBED
    along = vectors[:, keep].T @ residual
    return m * float((along * along / values[keep]).sum()), int(keep.sum())


def _chi_squared(m: int, residual: Tensor, variance: Tensor) -> tuple[float, float, int]:
    statistic, df = _quadratic(m, residual, variance)
    return chi_squared_sf(statistic, df) if df else math.nan, statistic, df


def goodness_arrays(fit: FitCheck, sample: Sample, head: Head) -> dict[str, np.ndarray]:
    """Histogram of u; observed against expected numbers of rare steps; quantiles of u along x (first coordinate)."""
    u, upper = fit.u.u, fit.u.upper
    m = len(u)
    counts = torch.histc(u, _HISTOGRAM, 0.0, 1.0)
    # how rare a step of at least this size is under the law: two-sided in one dimension, by the radius in more
    rarity = (2.0 * torch.minimum(u, upper) if sample.dim == 1 else upper).sort().values
    ranks = torch.unique(torch.logspace(0, np.log10(m), _TAILS).long().clamp(1, m))
    column = wrapped(head, sample.x)[:, 0]
    edges, quantiles, number = _along(column, u)
    origin = head.bounds[0][0]
    return {
        "histogram": (counts * _HISTOGRAM / m).numpy(),
        "pairs": np.array(m),
        "rarity": rarity[ranks - 1].clamp(min=1e-300).numpy(),
        "rank": ranks.numpy(),
        "x_edges": edges.numpy() + origin,
        "quantiles": quantiles.numpy(),
        "levels": np.array(LEVELS),
        "number": number.numpy(),
        "p_value": np.array(fit.p_value),
        "period": period_of(head),
    }


def _along(column: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantiles of u in bins of x that hold the same number of pairs each."""
    bins = max(1, min(20, len(u) // 200))
    order = column.argsort()
    parts = torch.tensor_split(u[order], bins)
    ordered = column[order]
    cuts = [0, *np.cumsum([len(p) for p in parts]).tolist()]
    edges = torch.stack([ordered[min(c, len(ordered) - 1)] for c in cuts])
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return edges, torch.stack([torch.quantile(p, levels) for p in parts]), torch.tensor([len(p) for p in parts])
