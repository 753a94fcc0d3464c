"""exp, expm1, log and sin / cos from additions, multiplications and bit patterns, for compiled loops.

A call into the C library keeps LLVM from vectorising a loop; these do not, and are accurate to about one unit in the
last place over the range that the quadrature uses (-745 < x < 700, |angle| < 1e5).
"""

from __future__ import annotations

import math

from llvmlite import ir

from levytorch.law.compiled import intrinsic, njit, types

LOG2_E = 1.0 / math.log(2.0)
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # the first has 33 bits
HALF_PI_HIGH, HALF_PI_MIDDLE, HALF_PI_LOW = 1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer
ROUND_BITS = 0x4338000000000000

inlined = njit(inline="always", error_model="numpy")


@intrinsic
def bits(typingctx, value):
    """The bit pattern of a float64 as int64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def from_bits(typingctx, value):
    """The float64 with this bit pattern."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@inlined
def _expm1_of_remainder(r):
    """exp(r) - 1 for |r| <= log(2) / 2: Taylor to r^13, whose remainder is 1e-17 of r."""
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    return r + r * r * p


@inlined
def fast_exp_expm1(x):
    """(exp(x), exp(x) - 1), each with all its digits."""
    x = min(max(x, -708.0), 700.0)
    big = x * LOG2_E + ROUND
    k = big - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    scale = from_bits((bits(big) - ROUND_BITS + 1023) << 52)
    p = scale * _expm1_of_remainder(r)
    return scale + p, p + (scale - 1.0)


@inlined
def fast_exp(x):
    """exp(x), x held to [-708, 700]."""
    return fast_exp_expm1(x)[0]


@inlined
def fast_log(x):
    """log x of a positive normal number, to an absolute 2e-16; other arguments give numbers without meaning."""
    word = bits(x)
    e = (word - 0x3FE6A09E667F3BCD) >> 52
    m = from_bits(word - (e << 52))  # in [sqrt(1/2), sqrt(2))
    exponent = from_bits((e + 2048) | 0x4330000000000000) - (4503599627370496.0 + 2048.0)  # int to float
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 23.0
    p = p * z + 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    return exponent * LN2_HIGH + (exponent * LN2_LOW + 2.0 * (s + s * z * p))


@inlined
def fast_sincos(x):
    """(sin x, cos x) for |x| < 1e5."""
    big = x * (2.0 / math.pi) + ROUND
    k = big - ROUND
    quadrant = bits(big) & 3
    r = ((x - k * HALF_PI_HIGH) - k * HALF_PI_MIDDLE) - k * HALF_PI_LOW
    z = r * r
    s = 2.8114572543455206e-15
    s = -7.647163731819816e-13 + z * s
    s = 1.6059043836821613e-10 + z * s
    s = -2.505210838544172e-08 + z * s
    s = 2.7557319223985893e-06 + z * s
    s = -1.984126984126984e-04 + z * s
    s = 8.333333333333333e-03 + z * s
    s = -0.16666666666666666 + z * s
    s = r + r * (z * s)
    c = 4.779477332387385e-14
    c = -1.1470745597729725e-11 + z * c
    c = 2.08767569878681e-09 + z * c
    c = -2.755731922398589e-07 + z * c
    c = 2.48015873015873e-05 + z * c
    c = -1.388888888888889e-03 + z * c
    c = 4.1666666666666664e-02 + z * c
    c = 1.0 - 0.5 * z + z * z * c
    swap = (quadrant & 1) == 1
    sin = c if swap else s
    cos = s if swap else c
    if quadrant & 2:
        sin = -sin
    if (quadrant + 1) & 2:
        cos = -cos
    return sin, cos


@inlined
def fast_log1p(x):
    """log(1 + x) for x > -1, with all its digits near zero."""
    u = 1.0 + x
    return fast_log(u) + (x - (u - 1.0)) / u


@inlined
def fast_angle(y, x):
    """atan2(y, x) for y >= 0 and x of either sign, not both zero (rational approximation of Cephes)."""
    size = abs(x)
    low, high = min(y, size), max(y, size)
    t = low / high
    reduced = t > 0.41421356237309503
    a = (low - high) / (low + high) if reduced else t
    z = a * a
    p = -8.750608600031904122785e-1
    p = p * z - 1.615753718733365076637e1
    p = p * z - 7.500855792314704667340e1
    p = p * z - 1.228866684490136173410e2
    p = p * z - 6.485021904942025371773e1
    q = z + 2.485846490142306297962e1
    q = q * z + 1.650270098316988542046e2
    q = q * z + 4.328810604912902668951e2
    q = q * z + 4.853903996359136964868e2
    q = q * z + 1.945506571482613964425e2
    angle = a + a * (z * p / q)
    angle = angle + 0.7853981633974483 if reduced else angle
    angle = 1.5707963267948966 - angle if y > size else angle
    return 3.141592653589793 - angle if x < 0.0 else angle
