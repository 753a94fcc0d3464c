"""The functions of kernels.py in plain NumPy, for machines where numba cannot be imported.

The same hash, the same formulas, the same numbers up to the rounding of the elementary functions; some ten times slower.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def _keys(seed: int, purpose: int, first: int, n: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        items = np.arange(n, dtype=np.uint64) + np.uint64(first)
        start = np.array([seed], dtype=np.uint64) + _GOLDEN
        return _mix(_mix(_mix(start) + np.uint64(purpose) * _MIX1) + items * _GOLDEN)


def _uniform(keys: NDArray[np.uint64], position: int) -> Array:
    with np.errstate(over="ignore"):
        words = _mix(keys + np.array([position + 1], dtype=np.uint64) * _GOLDEN)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def uniforms(seed: int, purpose: int, first: int, n: int, position: int, count: int) -> Array:
    """(n, count) uniforms at `position`, `position` + 1, ... of the streams first, ..., first + n - 1."""
    keys = _keys(seed, purpose, first, n)
    return np.stack([_uniform(keys, position + k) for k in range(count)], axis=1)


def advance(
    x: Array, b: Array, D_o: Array, D_f: Array, alpha: Array, h: float, seed: int, first: int, substep: int
) -> None:
    """One substep in place, as kernels.advance."""
    n, dim = x.shape
    at = substep * (2 + 2 * ((dim + 1) // 2))
    keys = _keys(seed, 0, first, n)
    u, v = _uniform(keys, at), _uniform(keys, at + 1)
    with np.errstate(divide="ignore", over="ignore"):
        log_jump = (
            np.log(np.sin(alpha * math.pi * u))
            - np.log(np.sin(math.pi * np.minimum(u, 1.0 - u))) / alpha
            + (1.0 - alpha) / alpha * np.log(np.sin((1.0 - alpha) * math.pi * u) / -np.log(v))
            + np.log(D_f * h) / alpha
        )
        scale = np.where(
            log_jump > 600.0,
            math.sqrt(2.0) * np.exp(0.5 * log_jump),
            np.sqrt(2.0 * (D_o * h + np.exp(np.minimum(log_jump, 700.0)))),
        )
    for pair in range((dim + 1) // 2):
        radius = scale * np.sqrt(-2.0 * np.log(_uniform(keys, at + 2 + 2 * pair)))
        angle = 2.0 * math.pi * _uniform(keys, at + 3 + 2 * pair)
        x[:, 2 * pair] += b[:, 2 * pair] * h + radius * np.cos(angle)
        if 2 * pair + 1 < dim:
            x[:, 2 * pair + 1] += b[:, 2 * pair + 1] * h + radius * np.sin(angle)


def advance_constant(
    out: Array, b: Array, D_o: float, D_f: float, alpha: float, h: float, substeps: int, seed: int, first: int
) -> None:
    """All steps of constant coefficients, as kernels.advance_constant."""
    x = out[:, 0].copy()
    coefficients = b[None, :], np.array([D_o]), np.array([D_f]), np.array([alpha])
    for step in range(1, out.shape[1]):
        for substep in range((step - 1) * substeps, step * substeps):
            advance(x, *coefficients, h, seed, first, substep)
        out[:, step] = x
