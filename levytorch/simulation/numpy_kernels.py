"""The functions of kernels.py in NumPy, for machines where numba cannot be imported: the same bits, more slowly.

log, exp and sin(pi t) are made of additions, multiplications and bit patterns alone, so that a compiler can vectorise
them over a loop of trajectories (calls into the C library it cannot), and so that a simulation gives the same bits on
every machine, compiled or not: every operation is exactly rounded. The polynomials are best approximations (Remez) with
errors near 1e-13, far below anything a random number needs; they take floats (compiled in kernels.py) and arrays.
Numba's cache does not see changes of this file: touch kernels.py after one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array

Keys = NDArray[np.uint64]
HASH = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64: increment and two multipliers
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # their sum is log 2; the first has 33 bits
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer
_GOLDEN, _MIX1, _MIX2 = (np.array([c], dtype=np.uint64) for c in HASH)  # arrays wrap without warnings
_NORMALS = 1 << 62


def log_of_mantissa(m: Any) -> Any:
    """log m = 2 artanh s, s = (m - 1) / (m + 1), for sqrt(1/2) <= m <= sqrt(2); relative error 3e-14."""
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.09792027922071042
    p = p * z + 0.11088097149657225
    p = p * z + 0.14286054526077232
    p = p * z + 0.19999997811269282
    p = p * z + 0.33333333337899956
    return 2.0 * (s + s * (z * p))


def exp_of_remainder(r: Any) -> Any:
    """exp r for |r| <= log(2) / 2; relative error 1.2e-12."""
    p = 2.470828727201028e-05
    p = p * r + 1.990893907462709e-04
    p = p * r + 1.3889197134004772e-03
    p = p * r + 8.333281807882929e-03
    p = p * r + 4.166666440505234e-02
    p = p * r + 0.1666666678444252
    p = p * r + 0.5000000000426814
    p = p * r + 1.0
    return p * r + 1.0


def sin_pi(t: Any) -> Any:
    """sin(pi t) for |t| <= 1/2; relative error 7e-14."""
    a = math.pi * t
    z = a * a
    p = -1.5409528040862866e-10
    p = p * z + 2.503019690110736e-08
    p = p * z - 2.75569531121842e-06
    p = p * z + 1.9841266729727782e-04
    p = p * z - 8.333333321087328e-03
    p = p * z + 0.16666666666504606
    return a - a * (p * z)


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
    x_in: Array,
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
            x_in[k] = x[k]
        else:
            shifted = x[k] - origin[k]
            r = shifted - period[k] * np.floor(shifted * (1.0 / period[k]))
            r = np.where(r < 0.0, r + period[k], r)
            x_in[k] = origin[k] + np.where(r >= period[k], r - period[k], r)


def advance_constant(out: Array, x: Array, *arguments: Any) -> None:
    """As kernels.advance_constant."""
    b, gaussian, inverse_jump, alpha, inverse_alpha, h, keys, substeps, scale, spare = arguments
    x_in, period, origin = np.empty_like(x), np.full(len(x), np.inf), np.zeros(len(x))
    for step in range(1, out.shape[1]):
        for substep in range((step - 1) * substeps, step * substeps):
            advance(
                x, x_in, b, gaussian, inverse_jump, alpha, inverse_alpha, h, period, origin, keys, substep, scale, spare
            )
        out[:, step] = x.T
