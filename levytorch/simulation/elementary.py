"""Elementary functions from additions, multiplications and bit patterns alone.

Written so that a compiler can vectorise them over a loop of trajectories (calls into the C library it cannot), and so
that a simulation gives the same bits on every machine, compiled or not: every operation below is exactly rounded.
Relative errors stay below 1e-12, far below anything a random number needs. The three series take floats (compiled in
kernels.py) and arrays (plain.py). Numba's cache does not see changes of this file: touch kernels.py after one.
"""

from __future__ import annotations

import math
from typing import Any

HASH = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64: increment and two multipliers
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # their sum is log 2; the first has 33 bits
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer


def log_of_mantissa(m: Any) -> Any:
    """log m for sqrt(1/2) <= m <= sqrt(2): 2 artanh s, s = (m - 1) / (m + 1), |s| <= 0.172, by its series."""
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    return 2.0 * (s + s * (z * p))


def exp_of_remainder(r: Any) -> Any:
    """exp r for |r| <= log(2) / 2, by its series."""
    p = 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    return p * r + 1.0


def sin_pi(t: Any) -> Any:
    """sin(pi t) for |t| <= 1/2, by its series."""
    a = math.pi * t
    z = a * a
    p = 1.0 / 355687428096000.0
    p = 1.0 / 1307674368000.0 - p * z
    p = 1.0 / 6227020800.0 - p * z
    p = 1.0 / 39916800.0 - p * z
    p = 1.0 / 362880.0 - p * z
    p = 1.0 / 5040.0 - p * z
    p = 1.0 / 120.0 - p * z
    p = 1.0 / 6.0 - p * z
    return a - a * (p * z)
