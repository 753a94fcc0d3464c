"""The functions of kernels.py in NumPy, for machines where numba cannot be imported: the same numbers, more slowly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.simulation.elementary import (
    HASH,
    LN2_HIGH,
    LN2_LOW,
    ROUND,
    exp_of_remainder,
    log_of_mantissa,
    sin_pi,
)

Array = NDArray[np.float64]
Keys = NDArray[np.uint64]
_GOLDEN, _MIX1, _MIX2 = (np.array([c], dtype=np.uint64) for c in HASH)  # arrays wrap without warnings
_NORMALS = 1 << 62


def _log(x: Array) -> Array:
    bits = x.view(np.int64)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    exponent = e.astype(np.float64)
    mantissa = (bits - (e << 52)).view(np.float64)
    return exponent * LN2_HIGH + (exponent * LN2_LOW + log_of_mantissa(mantissa))


def _exp(x: Array) -> Array:
    x = np.minimum(np.maximum(x, -700.0), 700.0)
    big = x * (1 / math.log(2)) + ROUND
    n = big - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    return np.asarray(exp_of_remainder(r) * ((big.view(np.int64) - 0x4338000000000000 + 1023) << 52).view(np.float64))


def _mix(z: Keys) -> Keys:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def _uniform(keys: Keys, position: int) -> Array:
    word = _mix(keys + np.array([position + 1], dtype=np.uint64) * _GOLDEN) >> np.uint64(12)
    return (word | np.uint64(0x3FF0000000000000)).view(np.float64) - (1.0 - 2.0**-53)


def stream_keys(seed: int, purpose: int, first: int, n: int) -> Keys:
    """As kernels.stream_keys."""
    base = _mix(_mix(np.array([seed], dtype=np.uint64) + _GOLDEN) + np.array([purpose], dtype=np.uint64) * _MIX1)
    return _mix(base + (np.arange(n, dtype=np.uint64) + np.uint64(first)) * _GOLDEN)


def uniforms(keys: Keys, position: int, out: Array) -> None:
    """As kernels.uniforms."""
    for k in range(len(out)):
        out[k] = _uniform(keys, position + k)


def advance(
    x: Array,
    cell: Array,
    b: Array,
    gaussian: Array,
    inverse_jump: Array,
    alpha: Array,
    inverse_alpha: Array,
    h: float,
    period: Array,
    origin: Array,
    keys: Keys,
    substep: int,
    scale: Array,
    spare: Array,
) -> None:
    """As kernels.advance."""
    dim = len(x)
    u, wait = _uniform(keys, 2 * substep), -_log(_uniform(keys, 2 * substep + 1))
    other = 1.0 - alpha
    low, high = alpha * u, other * u
    log_jump = inverse_alpha * (
        other * _log(sin_pi(np.minimum(high, 1.0 - high)) / wait) - _log(sin_pi(np.minimum(u, 1.0 - u)) * inverse_jump)
    )
    root = _exp(0.5 * log_jump)
    with np.errstate(over="ignore"):
        scale[:] = np.sqrt(2.0 * (gaussian + sin_pi(np.minimum(low, 1.0 - low)) * (root * root)))
    for k in range(dim):
        normal = substep * dim + k
        if normal % 2 == 0:
            radius = np.sqrt(-2.0 * _log(_uniform(keys, _NORMALS + normal)))
            turn = 2.0 * _uniform(keys, _NORMALS + normal + 1) - 1.0
            away = np.abs(turn)
            sine = radius * sin_pi(np.minimum(away, 1.0 - away))
            spare[:] = np.where(turn > 0.0, sine, -sine)
            x[k] += b[k] * h + scale * (radius * sin_pi(0.5 - away))
        else:
            x[k] += b[k] * h + scale * spare
        if np.isinf(period[k]):
            cell[k] = x[k]
        else:
            shifted = x[k] - origin[k]
            r = shifted - period[k] * np.floor(shifted * (1.0 / period[k]))
            r = np.where(r < 0.0, r + period[k], r)
            cell[k] = origin[k] + np.where(r >= period[k], r - period[k], r)


def advance_constant(out: Array, x: Array, *arguments: Any) -> None:
    """As kernels.advance_constant."""
    b, gaussian, inverse_jump, alpha, inverse_alpha, h, keys, substeps, scale, spare = arguments
    cell, period, origin = np.empty_like(x), np.full(len(x), np.inf), np.zeros(len(x))
    for step in range(1, out.shape[1]):
        for substep in range((step - 1) * substeps, step * substeps):
            advance(
                x, cell, b, gaussian, inverse_jump, alpha, inverse_alpha, h, period, origin, keys, substep, scale, spare
            )
        out[:, step] = x.T
