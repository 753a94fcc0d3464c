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
    b: Array,
    gaussian: Array,
    log_scale: Array,
    alpha: Array,
    h: float,
    keys: Keys,
    substep: int,
    scale: Array,
) -> None:
    """As kernels.advance."""
    dim = len(x)
    at = substep * (2 + 2 * ((dim + 1) // 2))
    u, wait = _uniform(keys, at), -_log(_uniform(keys, at + 1))
    low, high = alpha * u, (1.0 - alpha) * u
    log_jump = (
        (1.0 - alpha) * _log(sin_pi(np.minimum(high, 1.0 - high)) / wait) - _log(sin_pi(np.minimum(u, 1.0 - u)))
    ) / alpha + log_scale
    half, sine = _exp(0.5 * log_jump), sin_pi(np.minimum(low, 1.0 - low))
    with np.errstate(over="ignore"):
        both = np.sqrt(2.0 * (gaussian + sine * (half * half)))
    scale[:] = np.where(log_jump > 600.0, half * np.sqrt(2.0 * sine), both)
    for pair in range((dim + 1) // 2):
        radius = scale * np.sqrt(-2.0 * _log(_uniform(keys, at + 2 + 2 * pair)))
        turn = 2.0 * _uniform(keys, at + 3 + 2 * pair) - 1.0
        x[2 * pair] += b[2 * pair] * h - radius * sin_pi(0.5 - np.abs(turn))
        if 2 * pair + 1 < dim:
            sine = sin_pi(np.minimum(np.abs(turn), 1.0 - np.abs(turn)))
            x[2 * pair + 1] += b[2 * pair + 1] * h - np.where(turn > 0, radius * sine, -radius * sine)


def advance_constant(out: Array, x: Array, *arguments: Any) -> None:
    """As kernels.advance_constant."""
    b, gaussian, log_scale, alpha, h, keys, substeps, scale = arguments
    for step in range(1, out.shape[1]):
        for substep in range((step - 1) * substeps, step * substeps):
            advance(x, b, gaussian, log_scale, alpha, h, keys, substep, scale)
        out[:, step] = x.T
