"""Compiled parts of two steps that are made from the same uniform numbers; see coupled.py.

The random clock of the jumps over a substep is a positive alpha-stable time T with E exp(-u T) = exp(-B u^alpha), drawn
by Kanter's formula; tempered ones are drawn by rejection. Both steps read the same numbers, which depend on the stream,
the substep and the position only: `kernels.py` describes the generator.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.simulation.kernels import GOLDEN, MIX2, _compile, _exp, _inline, _log, _mix, _sin_pi, _uniform

_NORMALS = np.uint64(1 << 62)  # positions of the normal variables
_ATTEMPTS = np.uint64(1 << 20)  # positions of one part of a tempered time
_THREE, _TWO, _ONE = np.uint64(3), np.uint64(2), np.uint64(1)
_LONGEST = 600.0  # log of the longest time: a displacement stays within floating point numbers
_SHORTEST = 1e-300  # stands for D_f h = 0
MOST_PARTS = 256  # of a tempered time; beyond them it is nearly Gaussian


@_inline
def _time(u, wait, log_B, alpha):
    """Kanter's formula: T at two numbers, u uniform and wait exponential."""
    low, high = alpha * u, (1.0 - alpha) * u
    log_T = (
        (1.0 - alpha) * _log(_sin_pi(min(high, 1.0 - high)) / wait) - _log(_sin_pi(min(u, 1.0 - u))) + log_B
    ) / alpha
    return _sin_pi(min(low, 1.0 - low)) * _exp(min(log_T, _LONGEST))


@_compile
def stable_times(keys, substep, B, alpha, B0, alpha0, shared, T, T0):
    """Times T of scales B and T0 of scales B0, all (n,). shared: alpha and alpha0 are the same numbers."""
    here, there = np.uint64(2 * substep + 1) * GOLDEN, np.uint64(2 * substep + 2) * GOLDEN
    if shared:
        for i in range(keys.size):
            u, wait = _uniform(keys[i], here), -_log(_uniform(keys[i], there))
            a = alpha[i]
            log_B0 = _log(max(B0[i], _SHORTEST))
            T0[i] = _time(u, wait, log_B0, a)
            T[i] = T0[i] * _exp(min(max((_log(max(B[i], _SHORTEST)) - log_B0) / a, -_LONGEST), _LONGEST))
    else:
        for i in range(keys.size):
            u, wait = _uniform(keys[i], here), -_log(_uniform(keys[i], there))
            T[i] = _time(u, wait, _log(max(B[i], _SHORTEST)), alpha[i])
            T0[i] = _time(u, wait, _log(max(B0[i], _SHORTEST)), alpha0[i])


@_inline
def _tempered_part(key, first, log_B, alpha, squared):
    """A stable time that is accepted with probability exp(-lam^2 T); `first`: the position of the first attempt."""
    position = first
    while True:
        u, wait = _uniform(key, position * GOLDEN), -_log(_uniform(key, (position + _ONE) * GOLDEN))
        T = _time(u, wait, log_B, alpha)
        if -_log(_uniform(key, (position + _TWO) * GOLDEN)) > squared * T:
            return T
        position += _THREE


@_inline
def _many_parts(normal, cost, alpha, squared):
    """A tempered time of many parts from its first three cumulants, as in `law.step.tempered_time`."""
    spread = math.sqrt(alpha * (1.0 - alpha) * cost)
    bent = normal + (normal * normal - 1.0) * (2.0 - alpha) / (6.0 * spread)
    return max(alpha * cost + spread * bent, 0.0) / squared


@_compile
def tempered_times(keys, substep, B, alpha, B0, alpha0, lam, T, T0):
    """The same for tempered times: sums of parts, each of which is accepted with probability exp(-1) or more."""
    squared = lam * lam
    for i in range(keys.size):
        key = _mix(keys[i] ^ (np.uint64(substep + 1) * MIX2))
        cost, cost0 = B[i] * lam ** (2.0 * alpha[i]), B0[i] * lam ** (2.0 * alpha0[i])
        parts = math.ceil(max(cost, cost0, 1.0))
        if parts > MOST_PARTS:
            radius = math.sqrt(-2.0 * _log(_uniform(key, GOLDEN)))
            turn = 2.0 * _uniform(key, _TWO * GOLDEN) - 1.0
            normal = radius * _sin_pi(0.5 - abs(turn))
            T[i], T0[i] = _many_parts(normal, cost, alpha[i], squared), _many_parts(normal, cost0, alpha0[i], squared)
            continue
        log_B, log_B0 = _log(max(B[i] / parts, _SHORTEST)), _log(max(B0[i] / parts, _SHORTEST))
        T[i] = T0[i] = 0.0
        for part in range(parts):
            first = np.uint64(part) * _ATTEMPTS + _ONE
            T[i] += _tempered_part(key, first, log_B, alpha[i], squared)
            T0[i] += _tempered_part(key, first, log_B0, alpha0[i], squared)


@_compile
def increments(keys, substep, drift, variance, drift0, variance0, step, step0, spare):
    """step = drift + sqrt(variance) G and step0 likewise, with the same normal vector G; all (d, n), variances (n,).

    spare (n,) is handed on from one substep to the next: two normal variables come from one pair of numbers.
    """
    dim, n = step.shape
    for k in range(dim):
        normal = substep * dim + k
        here, there = (_NORMALS + np.uint64(normal + 1)) * GOLDEN, (_NORMALS + np.uint64(normal + 2)) * GOLDEN
        row, row0, pull, pull0 = step[k], step0[k], drift[k], drift0[k]
        if normal % 2 == 0:
            for i in range(n):
                radius = math.sqrt(-2.0 * _log(_uniform(keys[i], here)))
                turn = 2.0 * _uniform(keys[i], there) - 1.0
                away = abs(turn)
                sine = radius * _sin_pi(min(away, 1.0 - away))
                spare[i] = sine if turn > 0.0 else -sine
                G = radius * _sin_pi(0.5 - away)
                row[i] = pull[i] + math.sqrt(variance[i]) * G
                row0[i] = pull0[i] + math.sqrt(variance0[i]) * G
        else:
            for i in range(n):
                row[i] = pull[i] + math.sqrt(variance[i]) * spare[i]
                row0[i] = pull0[i] + math.sqrt(variance0[i]) * spare[i]
