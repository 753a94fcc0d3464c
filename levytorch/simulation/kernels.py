"""Compiled Euler-Maruyama steps with counter-based noise.

Every random number is a hash of (seed, trajectory, substep, position): no state is carried, so the result is the same
whatever the chunking, the order or the number of threads. The hash is the SplitMix64 finaliser (Steele, Lea and Flood
2014) along a stream keyed by seed and trajectory.

One substep of length h needs b h, a Gaussian of variance 2 D_o h per coordinate, and an isotropic 2 alpha-stable vector
with E exp(i k L) = exp(-D_f h |k|^(2 alpha)). The stable vector is sub-Gaussian: L = sqrt(2 A) G, G standard normal and
A positive alpha-stable, E exp(-s A) = exp(-s^alpha), drawn by Kanter's formula (the one-sided case of Chambers, Mallows
and Stuck). Given A the whole noise is Gaussian, hence one normal vector serves both parts, in any dimension:

    dX = b h + sqrt(2 D_o h + 2 (D_f h)^(1/alpha) A) G

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
from levytorch.simulation import numpy_kernels

_inline = njit(forceinline=True, error_model="numpy")
_compile = cached_njit(nogil=True, error_model="numpy")

GOLDEN, MIX1, MIX2 = (np.uint64(c) for c in numpy_kernels.HASH)
_NORMALS = np.uint64(1 << 62)  # their positions, out of the way of those of the subordinator
_S30, _S27, _S31, _S12, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12), np.uint64(1)
_LN2_HIGH, _LN2_LOW, _INV_LN2, _ROUND = (
    numpy_kernels.LN2_HIGH,
    numpy_kernels.LN2_LOW,
    1 / math.log(2),
    numpy_kernels.ROUND,
)
_log_of_mantissa = _inline(numpy_kernels.log_of_mantissa)
_exp_of_remainder = _inline(numpy_kernels.exp_of_remainder)
_sin_pi = _inline(numpy_kernels.sin_pi)


@_inline
def _log(x):
    """log x of a positive normal number; as in numpy_kernels."""
    bits = _bits(x)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    exponent = _from_bits((e + 2048) | 0x4330000000000000) - (4503599627370496.0 + 2048.0)  # int to float, any machine
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + _log_of_mantissa(_from_bits(bits - (e << 52))))


@_inline
def _exp(x):
    """exp x, x held to [-700, 700]; as in numpy_kernels."""
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
        u, wait, other = _uniform(keys[i], here), -_log(_uniform(keys[i], there)), 1.0 - alpha[i]
        low, high = alpha[i] * u, other * u
        # sin(pi t) = sin(pi (1 - t)): the smaller argument keeps full relative accuracy at both ends
        log_jump = inverse_alpha[i] * (
            other * _log(_sin_pi(min(high, 1.0 - high)) / wait) - _log(_sin_pi(min(u, 1.0 - u)) * inverse_jump[i])
        )
        root = _exp(0.5 * log_jump)
        scale[i] = math.sqrt(2.0 * (gaussian[i] + _sin_pi(min(low, 1.0 - low)) * (root * root)))
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
        if length < np.inf:
            for i in range(n):
                r = (row[i] - start) - length * np.floor((row[i] - start) * inverse)
                r = r + length if r < 0.0 else r
                reduced[i] = start + (r - length if r >= length else r)
        else:
            reduced[:] = row


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
