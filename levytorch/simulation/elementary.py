"""Elementary functions from additions, multiplications and bit patterns alone.

Written so that a compiler can vectorise them over a loop of trajectories (calls into the C library it cannot), and so
that a simulation gives the same bits on every machine, compiled or not: every operation below is exactly rounded.
The polynomials are best approximations (Remez) with errors near 1e-13, far below anything a random number needs; they
take floats (compiled in
kernels.py) and arrays (plain.py). Numba's cache does not see changes of this file: touch kernels.py after one.
"""

from __future__ import annotations

import math
from typing import Any

HASH = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64: increment and two multipliers
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # their sum is log 2; the first has 33 bits
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer


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
