"""The contour of one sample, compiled: which path, how far rotated, which nodes (`contour.py` has the mathematics)."""

from __future__ import annotations

import math

from levytorch.law import nodes
from levytorch.law.compiled import cached_njit
from levytorch.law.nodes import (
    COARSE,
    DECAY,
    FINE,
    FLOOR,
    LOG_SPLIT,
    MEDIUM,
    OFFSETS,
    SPLIT_CORE,
    SPLIT_GAUSS,
    SPLIT_S,
    SPLIT_THETA,
    UNSPLIT_S,
    UNSPLIT_THETA,
    UNSPLIT_TURN,
    H,
)

LOG_W, W, JAC = nodes.tables()
N_NODES = LOG_W.shape[1]
HUGE = 1e300

compiled = cached_njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})


@compiled
def _limit(m):
    """Where x - m log x has risen by DECAY above its minimum: the end of x^m exp(-x), generously."""
    return m + DECAY + math.sqrt(2.0 * DECAY * m)


@compiled
def contour_path(y, A, B, alpha, power, floor_power, fine):
    """The contour of one sample.

    Returns (split, log_unit, y, A, B, theta, S, k, j0, j1): the law in units of exp(log_unit), the rotation, the
    scale of the nodes, the table of nodes and the range to sum over. `power`: the largest power of r in the sums plus
    one; `floor_power`: the power of rho with which the integrand vanishes at zero, beside dr/r and r^(2 alpha);
    `fine`: the smallest step.
    """
    L = math.hypot(y, 2.0 * math.sqrt(A))
    log_B = math.log(B)
    log_L = math.log(L) if L > 0.0 else -1e300
    log_kappa = log_B - 2.0 * alpha * log_L
    if log_kappa < LOG_SPLIT:
        kappa = math.exp(max(log_kappa, -660.0))
        y1 = y / L
        root = math.sqrt(A) / L
        A1 = root * root
        core = SPLIT_CORE * (2.0 * alpha - 1.0) * kappa ** (1.0 / alpha) if alpha > 0.5 else 0.0
        theta = SPLIT_THETA * y1 * y1 / (y1 * y1 + SPLIT_GAUSS * A1 + core)
        r_max = HUGE
        if y1 * theta > 0.0:
            r_max = min(r_max, _limit(power) / (y1 * math.sin(theta)))
        if A1 > 0.0:
            r_max = min(r_max, math.sqrt(_limit(0.5 * power) / (A1 * math.cos(2.0 * theta))))
        S = SPLIT_S
        k = MEDIUM if alpha < 0.55 else FINE
        begin = FLOOR / (floor_power + 2.0 * alpha)
        split = True
        log_unit = log_L
        B1 = kappa
    else:
        log_unit = log_B / (2.0 * alpha)
        y1 = math.exp(math.log(y) - log_unit) if y > 0.0 else 0.0
        A1 = math.exp(math.log(A) - 2.0 * log_unit) if A > 0.0 else 0.0
        B1 = 1.0
        x_max = _limit(power / (2.0 * alpha))
        log_turn = math.log(37.0 + power / (2.0 * alpha)) / (2.0 * alpha)
        if A1 > 0.0:
            log_turn = min(log_turn, 0.5 * math.log(37.0 / A1))
        turns = min(y1 * math.exp(min(log_turn, 600.0)), 1e150) ** 2
        theta = UNSPLIT_THETA * turns / (turns + UNSPLIT_TURN)
        log_r = math.log(x_max / math.cos(2.0 * alpha * theta)) / (2.0 * alpha)
        if A1 > 0.0:
            log_r = min(log_r, 0.5 * math.log(_limit(0.5 * power) / (A1 * math.cos(2.0 * theta))))
        if y1 * theta > 0.0:
            log_r = min(log_r, math.log(_limit(power) / (y1 * math.sin(theta))))
        r_max = math.exp(min(log_r, 390.0))
        peak = math.exp(min(-math.log(2.0 * alpha) / (2.0 * alpha), 380.0))
        S = min(max(1.0, 0.1 * peak), r_max * UNSPLIT_S)
        k = (MEDIUM if alpha < 0.35 else COARSE) if log_kappa > 0.0 else FINE
        begin = FLOOR / (floor_power if floor_power > 0.0 else min(2.0 * alpha, 1.0)) + math.log(max(S, 1.0))
        split = False
    if fine:
        k = FINE
    j0 = math.floor(-math.log(max(begin - math.log(begin), 1.0)) / H[k]) + OFFSETS[k]
    v1 = math.log(max(r_max / S, 1.0))
    j1 = math.ceil((v1 + math.exp(-v1)) / H[k]) + OFFSETS[k]  # v - exp(-v) = v1, almost
    return split, log_unit, y1, A1, B1, theta, S, k, max(j0, 0), min(j1, N_NODES - 1)
