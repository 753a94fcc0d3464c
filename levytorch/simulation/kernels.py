"""Compiled Euler-Maruyama steps with counter-based noise.

Every random number is a hash of (seed, trajectory, substep, position): no state is carried, so the result is the same
whatever the chunking, the order or the number of threads. The hash is the SplitMix64 finaliser (Steele, Lea, Flood 2014)
along a stream that is keyed by seed and trajectory. The kernels are serial and release the GIL: Python threads run them side
by side with torch's operations, where two pools of OpenMP threads would get in each other's way.

One substep of length h needs b h, a Gaussian of variance 2 D_o h per coordinate, and an isotropic 2 alpha-stable vector
with E exp(i k L) = exp(-D_f h |k|^(2 alpha)). The stable vector is sub-Gaussian: L = sqrt(2 A) G, with G standard normal and
A positive alpha-stable, E exp(-s A) = exp(-s^alpha), drawn by Kanter's formula (the one-sided case of Chambers, Mallows
and Stuck). Given A the whole noise is Gaussian, hence one normal vector serves both parts, in any dimension:

    dX = b h + sqrt(2 D_o h + 2 (D_f h)^(1/alpha) A) G.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11), np.uint64(1)


@njit
def mix(z):
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@njit
def stream_key(seed, purpose, item):
    """The start of the stream of one item (a trajectory, a chain) for one purpose."""
    return mix(mix(mix(seed + _GOLDEN) + purpose * _MIX1) + item * _GOLDEN)


@njit
def uniform(key, position):
    """The number at `position` of a stream, in (0, 1), never at its ends."""
    return (np.float64(mix(key + (position + _ONE) * _GOLDEN) >> _S11) + 0.5) * 1.1102230246251565e-16


@njit
def log_subordinator(u, v, alpha):
    """log A by Kanter's formula, from two uniforms; in logarithms because A overflows for small alpha."""
    mirrored = min(u, 1.0 - u)  # sin(pi u) with full relative accuracy at both ends
    wait = -math.log(v)
    return (
        math.log(math.sin(alpha * math.pi * u))
        - math.log(math.sin(math.pi * mirrored)) / alpha
        + (1.0 - alpha) / alpha * math.log(math.sin((1.0 - alpha) * math.pi * u) / wait)
    )


@njit
def noise_scale(gaussian, log_jump):
    """sqrt(2 gaussian + 2 exp(log_jump)) without overflow; gaussian = D_o h, log_jump = log A + log(D_f h) / alpha."""
    if log_jump > 600.0:
        return math.sqrt(2.0) * math.exp(0.5 * log_jump)
    return math.sqrt(2.0 * (gaussian + math.exp(log_jump)))


@njit(nogil=True, cache=True)
def advance(x, b, D_o, D_f, alpha, h, seed, first, substep):
    """One substep in place: x (n, d); b (n or 1, d); D_o, D_f, alpha (n or 1); `first` is trajectory number of row 0."""
    n, dim = x.shape
    words = np.uint64(2 + 2 * ((dim + 1) // 2))
    # stride 0 repeats a constant
    step_b, step_o, step_f, step_a = (
        min(len(b), 2) - 1,
        min(len(D_o), 2) - 1,
        min(len(D_f), 2) - 1,
        min(len(alpha), 2) - 1,
    )
    at = np.uint64(substep) * words
    for i in range(n):
        key = stream_key(np.uint64(seed), np.uint64(0), np.uint64(first) + np.uint64(i))
        a = alpha[i * step_a]
        log_jump = log_subordinator(uniform(key, at), uniform(key, at + _ONE), a)
        log_jump += math.log(D_f[i * step_f] * h) / a
        scale = noise_scale(D_o[i * step_o] * h, log_jump)
        row = i * step_b
        for pair in range((dim + 1) // 2):
            here = at + np.uint64(2 + 2 * pair)
            radius = scale * math.sqrt(-2.0 * math.log(uniform(key, here)))
            angle = 2.0 * math.pi * uniform(key, here + _ONE)
            x[i, 2 * pair] += b[row, 2 * pair] * h + radius * math.cos(angle)
            if 2 * pair + 1 < dim:
                x[i, 2 * pair + 1] += b[row, 2 * pair + 1] * h + radius * math.sin(angle)


@njit(nogil=True, cache=True)
def advance_constant(out, b, D_o, D_f, alpha, h, substeps, seed, first):
    """All steps of constant coefficients: out (n, n_steps + 1, d) with out[:, 0] given; the noise is that of `advance`."""
    n, n_time, dim = out.shape
    words = np.uint64(2 + 2 * ((dim + 1) // 2))
    gaussian, log_scale = D_o * h, math.log(D_f * h) / alpha
    for i in range(n):
        key = stream_key(np.uint64(seed), np.uint64(0), np.uint64(first) + np.uint64(i))
        at = np.uint64(0)
        x = out[i, 0].copy()
        for step in range(1, n_time):
            for _ in range(substeps):
                log_jump = log_subordinator(uniform(key, at), uniform(key, at + _ONE), alpha) + log_scale
                scale = noise_scale(gaussian, log_jump)
                for pair in range((dim + 1) // 2):
                    here = at + np.uint64(2 + 2 * pair)
                    radius = scale * math.sqrt(-2.0 * math.log(uniform(key, here)))
                    angle = 2.0 * math.pi * uniform(key, here + _ONE)
                    x[2 * pair] += b[2 * pair] * h + radius * math.cos(angle)
                    if 2 * pair + 1 < dim:
                        x[2 * pair + 1] += b[2 * pair + 1] * h + radius * math.sin(angle)
                at += words
            for k in range(dim):
                out[i, step, k] = x[k]


@njit(cache=True)
def uniforms(seed, purpose, first, n, position, count):
    """(n, count) uniforms at `position`, `position` + 1, ... of the streams first, ..., first + n - 1."""
    out = np.empty((n, count))
    for i in range(n):
        key = stream_key(np.uint64(seed), np.uint64(purpose), np.uint64(first) + np.uint64(i))
        for k in range(count):
            out[i, k] = uniform(key, np.uint64(position + k))
    return out
