"""Kramers-Moyal estimators from pairs (x, dx) a time h apart, for `rivals.py`.

`nonlocal_kramers_moyal` follows Li and Duan, "A data-driven approach for discovering stochastic dynamical systems with
non-Gaussian Levy noise" (Physica D 417, 2021), and its extension to multiplicative noise, "Nonlocal Kramers-Moyal
formulas and data-driven discovery of stochastic dynamical systems with multiplicative Levy noise" (arXiv:2601.19223),
for dX = b dt + Sigma dW + sigma dL, L symmetric a-stable, whose jumps have the density k_a / 2 |y|^(-1-a):

    P(r <= |dx| < m r | x) / h  ->  sigma(x)^a k_a r^(-a) (1 - m^(-a)) / a          rings of jumps: a, then sigma(x)
    E(dx; |dx| < eps | x) / h   ->  b(x)
    E(dx^2; |dx| < eps | x) / h ->  Sigma^2(x) + sigma(x)^a k_a eps^(2-a) / (2 - a)

Functions are polynomials, fitted to averages over bins, from which terms are removed one by one for as long as a
two-fold cross-validation does not object (stepwise sparse regression). Choices (two rings from 1/2 to 25/2, eps = 1,
10 to 25 bins for sigma and 30 for the rest, degrees 4 and 3, a jump of the score by 1.8) are those of the authors'
examples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]
Ends = tuple[float, float]
RING, RATIO = 0.5, 5.0  # inner radius of the first ring; outer over inner radius of both
EPS = 1.0  # steps below it make the moments
SIGMA_BINS, BINS = range(10, 26), 30
SIGMA_DEGREE, DEGREE = 4, 3
JUMP = 1.8  # of the score of a cross-validation, at which a term is missed


@dataclass
class Estimate:
    """index: a = 2 alpha; None where a method knows no jumps."""

    b: Curve
    Sigma2: Curve
    index: float | None = None
    sigma: Curve | None = None


def jump_constant(a: float) -> float:
    """k_a of the jump density k_a / 2 |y|^(-1-a) of a process with E exp(i k L_t) = exp(-t |k|^a)."""
    return a * 2**a * math.gamma((1 + a) / 2) / (math.sqrt(math.pi) * math.gamma(1 - a / 2))


def nonlocal_kramers_moyal(x: Array, dx: Array, h: float, ends: Ends, *, sparse: bool = True) -> Estimate:
    """sparse: remove terms of the polynomials; False: all of them stay."""
    size = np.abs(dx)
    edges = RING * RATIO ** np.arange(3)
    rings = [np.flatnonzero((size >= low) & (size < high)) for low, high in itertools.pairwise(edges)]
    shares, centers = [], []
    for n in SIGMA_BINS:  # bins of all these numbers, side by side
        bins = np.histogram_bin_edges([], n, ends)
        pairs = np.histogram(x, bins)[0]
        shares.append(np.stack([np.histogram(x[ring], bins)[0] for ring in rings]) / np.maximum(pairs, 1))
        centers.append((bins[:-1] + bins[1:]) / 2)
    share, at = np.concatenate(shares, axis=1), np.concatenate(centers)
    first, second = share.sum(1)
    a = float(np.clip(math.log(max(first, 1e-300) / max(second, 1e-300)) / math.log(RATIO), 0.05, 1.95))
    k = jump_constant(a)
    values = RING * (share.sum(0) * a / (h * k * (1 - RATIO ** (-2 * a)))) ** (1 / a)
    sigma = polynomial(at, values, np.ones_like(at), SIGMA_DEGREE, sparse)
    moments = binned(x, dx, h, ends, size < EPS)
    jumps = np.maximum(sigma(moments.x), 0.0) ** a * k * EPS ** (2 - a) / (2 - a)
    b = polynomial(moments.x, moments.first, moments.pairs, DEGREE, sparse)
    Sigma2 = polynomial(moments.x, moments.second - jumps, moments.pairs, DEGREE, sparse)
    return Estimate(b, Sigma2, a, sigma)


def kramers_moyal(x: Array, dx: Array, h: float, ends: Ends) -> Estimate:
    """The classical one, which takes all steps for diffusion: moments of bins, straight lines in between."""
    moments = binned(x, dx, h, ends)
    return Estimate(
        lambda at: np.interp(at, moments.x, moments.first), lambda at: np.interp(at, moments.x, moments.second)
    )


@dataclass
class Moments:
    """Of the steps that start in a bin, per unit of time; pairs: all of them, also those that were not counted."""

    x: Array
    first: Array
    second: Array
    pairs: Array


def binned(x: Array, dx: Array, h: float, ends: Ends, counted: NDArray[np.bool_] | None = None) -> Moments:
    edges = np.histogram_bin_edges([], BINS, ends)
    pairs = np.histogram(x, edges)[0].astype(float)
    some = (x, dx) if counted is None else (x[counted], dx[counted])
    first, second = (np.histogram(some[0], edges, weights=some[1] ** p)[0] / (h * np.maximum(pairs, 1)) for p in (1, 2))
    return Moments((edges[:-1] + edges[1:]) / 2, first, second, pairs)


def polynomial(x: Array, y: Array, weight: Array, degree: int, sparse: bool) -> Curve:
    """Weighted least squares; sparse: without the terms that cross-validation does not miss."""
    root = np.sqrt(weight / weight.mean())
    rows, values = root[:, None] * np.vander(x, degree + 1, increasing=True), root * y
    powers = list(range(degree + 1))
    if sparse:
        powers = _needed(rows, values)
    c = np.linalg.lstsq(rows[:, powers], values, rcond=None)[0]
    return lambda at: sum(value * np.asarray(at) ** power for value, power in zip(c, powers))  # type: ignore[return-value]


def _needed(rows: Array, values: Array) -> list[int]:
    """The terms left when the removal of the next smallest one would raise the score by JUMP; or of the best score."""
    powers = list(range(rows.shape[1]))
    models, scores = [], []
    while powers:
        models.append(list(powers))
        scores.append(_score(rows[:, powers], values))
        c = np.linalg.lstsq(rows[:, powers], values, rcond=None)[0]
        powers.pop(int(np.argmin(np.abs(c))))
    scores.append(float(np.linalg.norm(values)) / math.sqrt(2))
    for model, before, after in zip(models, scores, scores[1:]):
        if after > JUMP * before:
            return model
    return models[int(np.argmin(scores[:-1]))]


def _score(rows: Array, values: Array) -> float:
    """Two-fold cross-validation, every other bin."""
    total = 0.0
    for held in (0, 1):
        out = np.arange(len(values)) % 2 == held
        c = np.linalg.lstsq(rows[~out], values[~out], rcond=None)[0]
        total += float(((values[out] - rows[out] @ c) ** 2).sum())
    return math.sqrt(total / 2)
