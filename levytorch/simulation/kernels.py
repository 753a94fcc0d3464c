"""Compiled Euler-Maruyama steps with counter-based noise.

Every random number is a hash of (seed, trajectory, substep, position): no state is carried, so the result is the same
whatever the chunking, the order or the number of threads. The hash is the SplitMix64 finaliser (Steele, Lea and Flood
2014) along a stream keyed by seed and trajectory.

One substep of length h needs b h, a Gaussian of variance 2 D_o h per coordinate, and an isotropic 2 alpha-stable vector
with E exp(i k L) = exp(-D_f h |k|^(2 alpha)). The stable vector is sub-Gaussian: L = sqrt(2 A) G, G standard normal and
A positive alpha-stable, E exp(-s A) = exp(-s^alpha), drawn by Kanter's formula (the one-sided case of Chambers, Mallows
and Stuck). Given A the whole noise is Gaussian, hence one normal vector serves both parts, in any dimension:

    dX = b h + sqrt(2 D_o h + 2 (D_f h)^(1/alpha) A) G

With a matrix D_o the root is the Cholesky factor of that sum, times the identity where it is a number.

log, exp and sin(pi t) are made of additions, multiplications and bit patterns alone, so that a compiler can vectorise
them over a loop of trajectories (calls into the C library it cannot), and so that a simulation gives the same bits on
every machine: every operation is exactly rounded. The polynomials are best approximations (Remez) with errors near
1e-13, far below anything a random number needs.

Loops run over trajectories and hold nothing that keeps a compiler from vectorising them (no branches, no calls, no
exceptions): four to eight trajectories at a time. They are serial and release the GIL; Python threads run them side by
side with torch's operations, where two pools of OpenMP threads would get in each other's way.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.compiled import cached_njit, njit
from levytorch.law.vector_math import bits as _bits
from levytorch.law.vector_math import from_bits as _from_bits

_inline = njit(forceinline=True, error_model="numpy")
_compile = cached_njit(nogil=True, error_model="numpy")

# SplitMix64: increment and two multipliers
GOLDEN, MIX1, MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_NORMALS = np.uint64(1 << 62)  # their positions, out of the way of those of the subordinator
_S30, _S27, _S31, _S12, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12), np.uint64(1)
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # their sum is log 2; the first has 33 bits
_INV_LN2 = 1 / math.log(2)
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer


@_inline
def _log_of_mantissa(m):
    """log m = 2 artanh s, s = (m - 1) / (m + 1), for sqrt(1/2) <= m <= sqrt(2); relative error 3e-14."""
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.09792027922071042
    p = p * z + 0.11088097149657225
    p = p * z + 0.14286054526077232
    p = p * z + 0.19999997811269282
    p = p * z + 0.33333333337899956
    return 2.0 * (s + s * (z * p))


@_inline
def _exp_of_remainder(r):
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


@_inline
def _sin_pi(t):
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


@_inline
def _log(x):
    """log x of a positive normal number."""
    bits = _bits(x)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    exponent = _from_bits((e + 2048) | 0x4330000000000000) - (4503599627370496.0 + 2048.0)  # int to float, any machine
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + _log_of_mantissa(_from_bits(bits - (e << 52))))


@_inline
def _exp(x):
    """exp x, x held to [-700, 700]."""
    x = min(max(x, -700.0), 700.0)
    big = x * _INV_LN2 + _ROUND
    n = big - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    return _exp_of_remainder(r) * _from_bits((_bits(big) - 0x4338000000000000 + 1023) << 52)


@_inline
def _mix(z):
    z = (z ^ (z >> _S30)) * MIX1
    z = (z ^ (z >> _S27)) * MIX2
    return z ^ (z >> _S31)


@_inline
def _uniform(key, position):
    """The number at `position` (a multiple of GOLDEN) of a stream: an odd multiple of 2^-53, never 0 or 1."""
    word = np.int64(_mix(key + position) >> _S12)
    return _from_bits(word | 0x3FF0000000000000) - (1.0 - 1.1102230246251565e-16)


@_inline
def _time(u, v, alpha, inverse_alpha, inverse_jump):
    """The positive stable time of a substep by Kanter's formula, from two uniform numbers."""
    wait, other = -_log(v), 1.0 - alpha
    low, high = alpha * u, other * u
    # sin(pi t) = sin(pi (1 - t)): the smaller argument keeps full relative accuracy at both ends
    log_jump = inverse_alpha * (
        other * _log(_sin_pi(min(high, 1.0 - high)) / wait) - _log(_sin_pi(min(u, 1.0 - u)) * inverse_jump)
    )
    root = _exp(0.5 * log_jump)
    return _sin_pi(min(low, 1.0 - low)) * (root * root)


@_inline
def _reduce(row, reduced, length, inverse, start):
    """States of one coordinate, reduced to their period where it has one."""
    if length < np.inf:
        for i in range(row.size):
            r = (row[i] - start) - length * np.floor((row[i] - start) * inverse)
            r = r + length if r < 0.0 else r
            reduced[i] = start + (r - length if r >= length else r)
    else:
        reduced[:] = row


@_compile
def stream_keys(seed, purpose, first, n):
    """(n,) starts of the streams of items first, ..., first + n - 1 (trajectories, chains) for one purpose."""
    keys = np.empty(n, dtype=np.uint64)
    base = _mix(_mix(np.uint64(seed) + GOLDEN) + np.uint64(purpose) * MIX1)
    for i in range(n):
        keys[i] = _mix(base + (np.uint64(first) + np.uint64(i)) * GOLDEN)
    return keys


@_compile
def uniforms(keys, position, out):
    """out (count, n): the uniforms at `position`, `position` + 1, ... of every stream."""
    for k in range(out.shape[0]):
        at = (np.uint64(position) + np.uint64(k) + _ONE) * GOLDEN
        row = out[k]
        for i in range(len(keys)):
            row[i] = _uniform(keys[i], at)


@_compile
def advance(x, x_in, b, gaussian, inverse_jump, alpha, inverse_alpha, h, period, origin, keys, substep, scale, spare):
    """One substep in place.

    x (d, n) is moved, x_in (d, n) becomes x reduced to the period; b (d, n); gaussian = D_o h, inverse_jump =
    1 / (D_f h), alpha, inverse_alpha and keys (n,); period and origin (d,); scale and spare (n,) are working space,
    and spare is to be handed on from one substep to the next.
    """
    dim, n = x.shape
    here, there = np.uint64(2 * substep + 1) * GOLDEN, np.uint64(2 * substep + 2) * GOLDEN
    for i in range(n):
        T = _time(_uniform(keys[i], here), _uniform(keys[i], there), alpha[i], inverse_alpha[i], inverse_jump[i])
        scale[i] = math.sqrt(2.0 * (gaussian[i] + T))
    for k in range(dim):
        row, drift, reduced = x[k], b[k], x_in[k]
        normal = substep * dim + k  # two normals come from one pair of uniforms: the second one waits in spare
        here = (_NORMALS + np.uint64(normal + 1)) * GOLDEN
        there = (_NORMALS + np.uint64(normal + 2)) * GOLDEN
        length, inverse, start = period[k], 1.0 / period[k], origin[k]
        if normal % 2 == 0:
            for i in range(n):
                radius = math.sqrt(-2.0 * _log(_uniform(keys[i], here)))
                turn = 2.0 * _uniform(keys[i], there) - 1.0
                away = abs(turn)
                sine = radius * _sin_pi(min(away, 1.0 - away))
                spare[i] = sine if turn > 0.0 else -sine
                row[i] += drift[i] * h + scale[i] * (radius * _sin_pi(0.5 - away))
        else:
            for i in range(n):
                row[i] += drift[i] * h + scale[i] * spare[i]
        _reduce(row, reduced, length, inverse, start)


@_compile
def advance_matrix(
    x, x_in, b, gaussian, inverse_jump, alpha, inverse_alpha, h, period, origin, keys, substep, times, spare
):
    """The same with a matrix: gaussian (d, d, n) = D_o h, of which the lower triangle is read and overwritten."""
    dim, n = x.shape
    here, there = np.uint64(2 * substep + 1) * GOLDEN, np.uint64(2 * substep + 2) * GOLDEN
    for i in range(n):
        times[i] = _time(_uniform(keys[i], here), _uniform(keys[i], there), alpha[i], inverse_alpha[i], inverse_jump[i])
    add_gaussian(x, b, gaussian, times, h, keys, substep, spare)
    for k in range(dim):
        _reduce(x[k], x_in[k], period[k], 1.0 / period[k], origin[k])


@_compile
def add_gaussian(x, b, gaussian, times, h, keys, substep, spare):
    """x (d, n) moves by b h and a Gaussian vector of covariance 2 (gaussian + T I), whose factor overwrites gaussian.

    Zero eigenvalues are allowed: the column of a vanishing pivot is zero.
    """
    dim, n = x.shape
    for k in range(dim):
        pivot = gaussian[k, k]
        for i in range(n):
            pivot[i] = 2.0 * (pivot[i] + times[i])
        for j in range(k):
            for i in range(n):
                pivot[i] -= gaussian[k, j, i] * gaussian[k, j, i]
        for i in range(n):
            pivot[i] = math.sqrt(max(pivot[i], 0.0))
        for r in range(k + 1, dim):
            entry = gaussian[r, k]
            for i in range(n):
                entry[i] *= 2.0
            for j in range(k):
                for i in range(n):
                    entry[i] -= gaussian[r, j, i] * gaussian[k, j, i]
            for i in range(n):
                entry[i] = entry[i] / pivot[i] if pivot[i] > 0.0 else 0.0
        normal = substep * dim + k  # two normals come from one pair of uniforms, as above
        here, there = (_NORMALS + np.uint64(normal + 1)) * GOLDEN, (_NORMALS + np.uint64(normal + 2)) * GOLDEN
        for i in range(n):
            G = spare[i]
            if normal % 2 == 0:
                radius = math.sqrt(-2.0 * _log(_uniform(keys[i], here)))
                turn = 2.0 * _uniform(keys[i], there) - 1.0
                away = abs(turn)
                sine = radius * _sin_pi(min(away, 1.0 - away))
                spare[i] = sine if turn > 0.0 else -sine
                G = radius * _sin_pi(0.5 - away)
            x[k, i] += b[k, i] * h
            for r in range(k, dim):
                x[r, i] += gaussian[r, k, i] * G


@_compile
def advance_constant(out, x, b, gaussian, inverse_jump, alpha, inverse_alpha, h, keys, substeps, scale, spare):
    """All steps of constant coefficients: out (n, n_steps + 1, d); x, b (d, m) and the others as above, m >= n."""
    n, n_time, dim = out.shape
    x_in, period, origin = np.empty_like(x), np.full(dim, np.inf), np.zeros(dim)
    for step in range(1, n_time):
        for substep in range((step - 1) * substeps, step * substeps):
            advance(
                x, x_in, b, gaussian, inverse_jump, alpha, inverse_alpha, h, period, origin, keys, substep, scale, spare
            )
        for k in range(dim):
            for i in range(n):
                out[i, step, k] = x[k, i]
