"""A roughness penalty on the coefficients of a linear head whose strength is chosen from the data.

Each of b, D_o, D_f (and alpha(x)) has its own strength lambda in  -lambda/2 sum_j j^4 |theta_j|^2  (j: harmonic number
of the basis; the constant is free). Read as a prior, the evidence of the data picks lambda: MacKay's fixed point
lambda = gamma / (theta^T S theta), with gamma the number of well-determined coefficients.
Functions that a basis keeps apart (the parabola and the cubic of a spline) have a lambda of their own: how curved b is
over the whole window says little about how it wiggles.

With "harmonics" every harmonic has a variance s_j of its own, drawn towards a trend m / j^p by an inverse-gamma prior
of shape a = SHAPE (so that theta has a Student prior): s_j = (|theta_j|^2 + 2 a m / j^p) / (gamma_j + 2 a), and m and p
are those under which all s_j are most probable. A harmonic that stands out is then left alone, and does not loosen the
others; and each coefficient is as smooth as its own harmonics say, from kinks (p = 4) upwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.convert import choice, real_array, shown
from levytorch.errors import InputError, NumericalError
from levytorch.spaces.basis import Basis, FourierBasis

Strength = str | float | Sequence[float]
CHOICES = ("none", "evidence", "harmonics")
# At least: in internal units, where coefficients are of order one, a first harmonic is of size 10 at most. Without this
# bound a predictor whose coefficient vanishes on a part of the cell runs off to minus infinity there.
_LAMBDA_RANGE = (1e-2, 1e12)
SHAPE = 0.5  # of the prior of s_j: one coefficient of a harmonic counts as much as the trend does
_TELL = 4  # harmonics at least that tell a trend of those beyond
_MEDIAN = SHAPE / 0.22746821155978637  # of s_j over its trend; the denominator is the median of a gamma variable
_POWERS = (4.0, 8.0)  # of the trend
_LOGS = torch.linspace(-14.0, 14.0, 281, dtype=torch.float64)  # of s_j over its estimate
_LEAST = 1e-6  # share of a coefficient that the data determines: below, it says nothing
_LOG = 0.1  # of a change of log lambda, beside slopes of the evidence
_UPDATES = 40  # of strengths, where the data is not looked at meanwhile
_STEADY = 0.01  # slope of the evidence, in numbers of well-determined coefficients, at which they end
_GONE = 1e4  # times the information of the data: a strength under which a group of coefficients is zero
_FOLLOWED = 5.0  # of log-likelihood that a change of strengths may cost where theta is
_NOTHING = 1e-12  # of the largest eigenvalue of an equilibrated information: below, the data says nothing
_START = 1.0  # harmonic j of size 1 / j^2; the evidence is asked once the data has had its say


def check_strength(strength: Any) -> str | float | list[float]:
    """One of CHOICES, a number >= 0, or a list of such numbers."""
    if isinstance(strength, str):
        return choice("penalty", strength, CHOICES, "choose one of these or pass a number >= 0")
    values = real_array("penalty", strength, f"pass one of {', '.join(CHOICES)} or numbers >= 0")
    if values.ndim > 1 or not (values >= 0).all() or not (values < math.inf).all():
        raise InputError(f"penalty must be >= 0, found {shown(strength)}; 0 switches it off.")
    return float(values) if values.ndim == 0 else [float(v) for v in values]


class RoughnessPenalty:
    """strength: "none", "evidence", "harmonics", a number for every coefficient, one number for each (b, D_o, D_f,
    alpha; after it that of what its basis keeps apart, or the same), or one for each harmonic of each, the constant's
    first.
    """

    def __init__(self, head: LinearHead, strength: Strength = "none") -> None:
        strength = check_strength(strength)
        wanted = [] if isinstance(strength, str) else strength if isinstance(strength, list) else [strength]
        self.adaptive = strength in ("evidence", "harmonics")
        harmonics = [basis.harmonic_numbers() for basis in head.bases]
        # ascending; the constant's 0 is the first, also of what is known
        self.apart = [torch.unique(h) if len(h) else torch.zeros(1, dtype=torch.float64) for h in harmonics]
        numbers = [_strength_numbers(basis) for basis in head.bases]
        self.n_strengths = [int(number.max()) + 1 if len(number) else 1 for number in numbers]
        each, few = sum(len(h) for h in self.apart), (1, len(numbers), sum(self.n_strengths))
        self.head = head
        self.by_harmonic = strength == "harmonics" or (len(wanted) == each and each not in few)
        if self.by_harmonic:
            self.roughness = torch.cat([(h > 0).to(torch.float64) for h in harmonics])
            starts = [sum(len(h) for h in self.apart[:i]) for i in range(len(harmonics))]
            self.group = torch.cat([s + torch.searchsorted(u, h) for s, u, h in zip(starts, self.apart, harmonics)])
            self.first = torch.cat(self.apart) ** 4
            self.strengths = torch.tensor(wanted, dtype=torch.float64) if wanted else self.first.clone()
            return
        self.roughness = torch.cat([h**4 for h in harmonics])
        starts = [sum(self.n_strengths[:i]) for i in range(len(numbers))]
        self.group = torch.cat([first + number for first, number in zip(starts, numbers)])
        start = wanted or [_START if self.adaptive else 0.0]
        if len(start) not in few:
            raise InputError(
                f"penalty must be one number, {len(numbers)} or {each}, found {len(start)}; give one per coefficient."
            )
        given = torch.tensor(start, dtype=torch.float64)
        if len(given) < sum(self.n_strengths):
            given = given.expand(len(numbers)).repeat_interleave(torch.tensor(self.n_strengths))
        self.strengths, self.first = given.clone(), torch.full_like(given, _START)

    @property
    def active(self) -> bool:
        return self.adaptive or bool((self.strengths > 0).any())

    def precision(self) -> Tensor:
        """Diagonal (P,) of the prior precision, in units of total (not mean) log-likelihood."""
        return self.strengths[self.group] * self.roughness

    def held_back(self, before: Tensor, theta: Tensor) -> None:
        """Goes only so far from the strengths before that theta, which was made for those, can follow in one step."""

        def cost(strengths: Tensor) -> float:
            return 0.5 * float((strengths[self.group] * self.roughness * theta**2).sum())

        wanted, share = self.strengths, 1.0
        while cost(self.strengths) - cost(before) > _FOLLOWED and share > 1e-3:
            share *= 0.5
            self.strengths = before ** (1.0 - share) * wanted**share

    def tighten(self) -> None:
        """No strength below the one that a fit begins with."""
        self.strengths = torch.maximum(self.strengths, self.first)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {"strengths": self.strengths.clone()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if len(state["strengths"]) != len(self.strengths):  # a run goes on with the kind of penalty it began with
            RoughnessPenalty.__init__(self, self.head, "evidence" if self.by_harmonic else "harmonics")
        self.strengths = state["strengths"].clone()

    def determined(self, information: Tensor) -> float:
        """How many parameters the data determines, from its information with the penalty's precision, (P, P)."""
        shrunk = self.precision() * symmetric_inverse(information).diagonal()
        return float(len(shrunk) - shrunk.clamp(max=1.0).sum())

    def widened(self, covariance: Tensor, theta: Tensor, information: Tensor) -> Tensor:
        """A covariance (P, P) that allows for variances of harmonics being estimates; information: as before."""
        if not (self.adaptive and self.by_harmonic):
            return covariance
        wider = widening(self, theta, symmetric_inverse(information))
        return covariance * wider.outer(wider)

    def left_out(self) -> list[float]:
        """For each predictor the standard deviation, at any x, of the harmonics that its series has not.

        Their variances are taken to be the medians of what the trend of the others says. Zero where it says nothing: in
        more than one dimension, and without a trend or with few harmonics.
        """
        out, start = [], 0
        for basis, harmonics in zip(self.head.bases, self.apart):
            strengths = self.strengths[start + 1 : start + len(harmonics)]
            start += len(harmonics)
            variance = 0.0
            if self.adaptive and self.by_harmonic and isinstance(basis, FourierBasis) and len(strengths) >= _TELL:
                m, p = trend_of(strengths, harmonics[1:])
                beyond = torch.special.zeta(torch.tensor(p, dtype=torch.float64), harmonics[-1] + 1)
                variance = float(_MEDIAN * m * beyond)
            out.append(math.sqrt(variance))
        return out

    def update(self, theta: Tensor, information: Tensor) -> float:
        """One step of the evidence fixed point, with the data's information (P, P).

        Returns how far it is from one: the largest slope of twice the log evidence in log lambda.
        """
        if not self.adaptive:
            return 0.0
        precision = self.precision()
        covariance = symmetric_inverse(information + torch.diag(precision))
        shrink = precision * covariance.diagonal()
        if self.by_harmonic:
            return self._update_harmonics(theta, shrink)
        change = 0.0
        for g in range(self.strengths.numel()):
            mask = (self.group == g) & (self.roughness > 0)
            if not bool(mask.any()):
                continue
            determined = (mask.sum() - shrink[mask].sum()).clamp(min=1e-6)
            size = (theta[mask] ** 2 * self.roughness[mask]).sum().clamp(min=1e-30)
            old = float(self.strengths[g])
            # a group that the data wants to be zero is as good as that long before its strength leaves all bounds
            most = _GONE * float((information.diagonal()[mask] / self.roughness[mask]).max())
            target = (determined / size).clamp(*_LAMBDA_RANGE).clamp(max=max(most, _START))
            change = max(change, abs(float(size * (target - old))))
            self.strengths[g] = target
        return change

    def _update_harmonics(self, theta: Tensor, shrink: Tensor) -> float:
        """The same for a strength 1 / s_j of every harmonic; the variances of a coefficient share their trend."""
        zero = torch.zeros_like(self.strengths)
        determined = zero.index_add(0, self.group, (1.0 - shrink) * self.roughness)
        size = zero.index_add(0, self.group, theta**2 * self.roughness)
        change, start = 0.0, 0
        for harmonics in self.apart:
            rows = slice(start + 1, start + len(harmonics))
            start += len(harmonics)
            if len(harmonics) <= 1:  # a constant, or known
                continue
            old = self.strengths[rows]
            s = (size[rows] + 2 * SHAPE * trend(old, harmonics[1:])) / (determined[rows] + 2 * SHAPE)
            target = (1.0 / s).clamp(*_LAMBDA_RANGE)
            moved = torch.maximum(size[rows] * (target - old).abs(), _LOG * (target / old).log().abs())
            change = max(change, float(moved.max()))
            self.strengths[rows] = target
        return change


def lead_to_evidence(
    penalty: RoughnessPenalty,
    theta: Tensor,
    score: Tensor,
    G: Tensor,
    information: Tensor,
    n: float,
    reach: Callable[[Tensor], Tensor] = lambda step: step,
) -> tuple[Tensor, Tensor]:
    """Moves the strengths to where the evidence wants them; returns the step from theta they then call for, and the
    curvature.

    score, G: slope and curvature of the mean log-likelihood of n pairs, without the penalty; information: that of all;
    reach: what the model is trusted with of a step.
    An evaluation of the data is expensive, so that strengths and coefficients are iterated on this local model.
    """
    for _ in range(_UPDATES if penalty.adaptive else 1):
        precision = penalty.precision() / n
        curvature = G + torch.diag(precision)
        step = reach(guarded_solve(curvature, score - precision * theta, "the strengths of the penalty"))
        if penalty.update(theta + step, information) < _STEADY:
            break
    return step, curvature


def trend(strengths: Tensor, harmonics: Tensor) -> Tensor:
    """(J,): the m / j^p under which variances 1 / strengths of harmonics j > 0 are most probable."""
    m, p = trend_of(strengths, harmonics)
    return m * torch.exp(-p * harmonics.log())


def trend_of(strengths: Tensor, harmonics: Tensor) -> tuple[Tensor, float]:
    """That m and p.

    With m at its best, the logarithm of that is concave in p, and flat where the mean of log j weighted by
    strengths / j^p is the plain one.
    """
    logs = harmonics.log()
    low, high = _POWERS
    for _ in range(24):
        p = 0.5 * (low + high)
        relative = strengths * torch.exp(-p * logs)
        rougher = float(((relative / relative.mean() - 1.0) * logs).sum()) < 0.0
        low, high = (low, p) if rougher else (p, high)
    p = 0.5 * (low + high)
    return 1.0 / (strengths * torch.exp(-p * logs)).mean(), p


def widening(penalty: RoughnessPenalty, theta: Tensor, posterior: Tensor) -> Tensor:
    """(P,) factors of standard errors under "harmonics"; posterior: the covariance (P, P) under the fit's variances.

    A fit takes the most probable s_j; bands that took it for certain would be too narrow, above all for harmonics that
    are shrunk away. By the law of total variance, over the posterior of s_j given what the data alone says of the
    harmonic (est_j, with variance v_j),

        var theta_j = E[s_j v_j / (s_j + v_j)] + E[(est_j s_j / (s_j + v_j) - theta_j)^2],

    an integral over log s_j for each harmonic by itself. Covariances keep their correlations.
    """
    out = torch.ones_like(theta)
    variance, start = posterior.diagonal(), 0
    for harmonics in penalty.apart:
        taken = penalty.strengths[start + 1 : start + len(harmonics)]
        if len(taken):
            for i, (strength, mean) in enumerate(zip(taken, trend(taken, harmonics[1:]))):
                rows = torch.nonzero(penalty.group == start + 1 + i).flatten()
                out[rows] = _factors(theta[rows], variance[rows], 1.0 / strength, SHAPE * mean)
        start += len(harmonics)
    return out


def _factors(theta: Tensor, variance: Tensor, s: Tensor, rate: Tensor) -> Tensor:
    """Of the coefficients of one harmonic, whose variance s has the prior IG(SHAPE, rate)."""
    determined = (1.0 - variance / s).clamp(_LEAST, 1.0 - 1e-12)
    v, est = variance / determined, theta / determined
    grid = s * _LOGS.exp()
    total = grid[:, None] + v
    log_p = -SHAPE * grid.log() - rate / grid - 0.5 * (total.log() + est**2 / total).sum(1)
    weight = torch.softmax(log_p, 0)[:, None]  # per log s: the inverse-gamma density has lost one power
    share = grid[:, None] / total
    wide = (weight * (share * v + (share * est - theta) ** 2)).sum(0)
    return (wide / variance).clamp(min=1.0).sqrt()


def _strength_numbers(basis: Basis) -> Tensor:
    """(size,): 0 for functions that share the strength of a coefficient, 1 for those with one of their own."""
    number = torch.zeros(basis.size, dtype=torch.int64)
    number[getattr(basis, "apart", slice(0))] = 1
    return number


def symmetric_inverse(matrix: Tensor) -> Tensor:
    """Inverse after equilibration; directions without information get a huge, not an infinite, variance."""
    scale = matrix.diagonal().clamp(min=1e-200).rsqrt()  # 1e200 times 1e13 from below is still a number
    values, vectors = torch.linalg.eigh(matrix * scale.outer(scale))
    values = values.clamp(min=1e-13 * float(values.max()))
    inverse: Tensor = (vectors / values) @ vectors.T
    return inverse * scale.outer(scale)


def guarded_solve(information: Tensor, score: Tensor, purpose: str) -> Tensor:
    """The step (P,) with information @ step = score for a symmetric positive semi-definite information (P, P).

    Directions about which the information says nothing are not moved in: a singular matrix neither raises nor makes
    steps without bound. Numbers that are not finite are refused with a sentence that names the purpose.
    """
    if not bool(torch.isfinite(information).all() and torch.isfinite(score).all()):
        raise NumericalError(
            f"the information for {purpose} must be finite, found numbers that are not; use law=frozen, fewer basis "
            "functions, or give D_o or D_f where it is known."
        )
    diagonal = information.diagonal()
    known = diagonal > 0
    scale = torch.where(known, diagonal.clamp(min=1e-300).rsqrt(), 0.0)
    values, vectors = torch.linalg.eigh(information * scale.outer(scale))
    keep = values > _NOTHING * values.max().clamp(min=1e-300)
    parts: Tensor = torch.where(keep, (vectors.T @ (scale * score)) / torch.where(keep, values, 1.0), 0.0)
    step: Tensor = scale * (vectors @ parts)
    return step
