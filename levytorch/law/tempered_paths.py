"""The contour of one sample of the tempered law, compiled (`tempered.py` has the mathematics)."""

from __future__ import annotations

import math

from levytorch.law.paths import compiled
from levytorch.law.tempered_nodes import (
    CLEAR,
    CORE,
    KAPPA,
    LOG_LIMIT,
    THETA,
    TURN_GAUSS,
    TURN_JUMP,
    TURN_SADDLE,
    WIDTH,
)


@compiled
def is_limit(y, A, B, alpha, lam):
    """Whether lam is so small that the law is the stable one times exp(B lam^(2 alpha))."""
    width = max(y, 2.0 * math.sqrt(A))
    log_width = max(math.log(width) if width > 0.0 else -1e300, math.log(B) / (2.0 * alpha))
    return lam == 0.0 or math.log(lam) + log_width < LOG_LIMIT


@compiled
def _saddle(y, A, B, alpha, lam, nearest):
    """Distance d = lam - s of the saddle from the branch point, y = 2 A s + 2 alpha B s (lam^2 - s^2)^(alpha - 1).

    At least `nearest`. Newton's method from beyond the saddle, where it cannot overshoot (the right side is convex in
    s), until the saddle is a small part of its own width away.
    """
    flat = y / (2.0 * A + 2.0 * alpha * B * lam ** (2.0 * alpha - 2.0))  # the saddle lies below this
    d = max(nearest, lam - flat) if flat < lam else nearest
    for _ in range(200):
        s, u = lam - d, d * (2.0 * lam - d)
        pull = 2.0 * alpha * B * u ** (alpha - 1.0)
        excess = 2.0 * A * s + pull * s - y
        curvature = 2.0 * A + pull * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
        if excess * excess <= 1e-3 * curvature or d >= lam:
            break
        if excess < 0.0:  # the saddle is nearer to the branch point than allowed
            break
        d = min(d + excess / curvature, lam)
    return d


@compiled
def jump_end(A, B, alpha, lam):
    """r where the integrand has ended."""
    log_r = math.log(37.0 / B + lam ** (2.0 * alpha)) / (2.0 * alpha)
    if A > 0.0:
        log_r = min(log_r, 0.5 * math.log(37.0 / A))
    return math.exp(min(log_r, 300.0))


@compiled
def tempered_path(y, A, B, alpha, lam, floor):
    """The contour k = i s + sigma (sinh(tau + i theta) - i sin(theta)) of one sample.

    Returns (split, s, d, theta, sigma), d = lam - s. With `floor` the contour also keeps away from k = 0, where tail
    masses have a pole and the wave of the plane a logarithm.
    """
    beyond = max(y - 2.0 * A * lam, 0.0)
    size = math.hypot(beyond, 2.0 * math.sqrt(A))
    nearest = min(CLEAR / size, lam) if size > 0.0 else lam
    d = nearest
    if A > 0.0 and y < 2.0 * A * (lam - nearest):
        d = lam - y / (2.0 * A)
    y1 = y - 2.0 * A * (lam - d)
    size = math.hypot(y1, 2.0 * math.sqrt(A))
    split, kappa = False, math.inf
    if size > 0.0:
        kappa = B * ((d + 1.0 / size) * (2.0 * lam - d + 1.0 / size)) ** alpha
        split = kappa < KAPPA
    curvature = 2.0 * A
    if not split:
        d = _saddle(y, A, B, alpha, lam, nearest)
        s, u = lam - d, d * (2.0 * lam - d)
        y1 = y - 2.0 * A * s
        curvature += 2.0 * alpha * B * u ** (alpha - 1.0) * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
    if floor:
        high = min(0.5 * lam, 1.0 / math.sqrt(curvature)) if curvature > 0.0 else 0.5 * lam
        if lam - d < high:
            d = lam - high
            y1 = y - 2.0 * A * high
    s = lam - d
    if y1 <= 0.0:
        theta = 0.0
    elif split:
        core = CORE * (2.0 * alpha - 1.0) * (kappa ** (1.0 / alpha)) * y1 * y1 if alpha > 0.5 else 0.0
        theta = THETA * y1 * y1 / (y1 * y1 + TURN_GAUSS * A + core)
    else:
        turns = y1 * jump_end(A, B, alpha, lam)
        turns = turns * turns
        theta = THETA * turns / (turns + TURN_JUMP) if turns < 1e300 else THETA
        theta /= 1.0 + d * d * curvature / TURN_SADDLE
    sigma = min(d, WIDTH / math.sqrt(curvature)) if curvature > 0.0 else d
    if floor:
        sigma = min(sigma, s)
    return split, s, d, theta, sigma
