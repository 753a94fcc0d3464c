"""Compiled evaluation of the piecewise polynomial table (`table.py`), one sample at a time.

Scalars only, with the eight rows of a cell unrolled: a view of an array costs a reference count, and an inner loop over
eight entries more than the entries.
"""

from __future__ import annotations

import math

from levytorch.law.paths import compiled
from levytorch.law.table_grid import LOG_Z_SWITCH, N_NEAR, N_S, N_U, PER_Z, S_MIN, Z_SWITCH
from levytorch.law.vector_math import inlined

OUT_OF_TABLE = N_S  # a column number that cannot be built


@inlined
def _polynomial(c, o, t, q):
    """F, F_t, F_q, F_tt of sum_ij c[o + 8 j + i] t^i q^j."""
    k = o + 56
    g0, g1, g2, g3, g4, g5, g6, g7 = c[k], c[k + 1], c[k + 2], c[k + 3], c[k + 4], c[k + 5], c[k + 6], c[k + 7]
    d0 = d1 = d2 = d3 = d4 = d5 = d6 = d7 = 0.0
    for _ in range(7):
        k -= 8
        d0, g0 = d0 * q + g0, g0 * q + c[k]
        d1, g1 = d1 * q + g1, g1 * q + c[k + 1]
        d2, g2 = d2 * q + g2, g2 * q + c[k + 2]
        d3, g3 = d3 * q + g3, g3 * q + c[k + 3]
        d4, g4 = d4 * q + g4, g4 * q + c[k + 4]
        d5, g5 = d5 * q + g5, g5 * q + c[k + 5]
        d6, g6 = d6 * q + g6, g6 * q + c[k + 6]
        d7, g7 = d7 * q + g7, g7 * q + c[k + 7]
    t2 = t * t
    t4 = t2 * t2
    f = (g0 + g1 * t + (g2 + g3 * t) * t2) + (g4 + g5 * t + (g6 + g7 * t) * t2) * t4
    fq = (d0 + d1 * t + (d2 + d3 * t) * t2) + (d4 + d5 * t + (d6 + d7 * t) * t2) * t4
    ft = (g1 + 2.0 * g2 * t + (3.0 * g3 + 4.0 * g4 * t) * t2) + (5.0 * g5 + 6.0 * g6 * t + 7.0 * g7 * t2) * t4
    ftt = (2.0 * g2 + 6.0 * g3 * t + (12.0 * g4 + 20.0 * g5 * t) * t2) + (30.0 * g6 + 42.0 * g7 * t) * t4
    return f, ft, fq, ftt


@compiled
def table_point(y, A, B, alpha, dim, offset, level_u, level_s, coefficients):
    """(code, log p, d/dy, d/dA, d/dB).

    code is -1 when done, otherwise the column of the table to build first, or OUT_OF_TABLE.
    """
    root = math.sqrt(A)
    if root == 0.0:
        return OUT_OF_TABLE, 0.0, 0.0, 0.0, 0.0
    log_A = math.log(A)
    iA = 1.0 / A
    z = y * root * iA
    position = math.log(B) - alpha * log_A - S_MIN
    if not (position >= 0.0 and position < N_S):
        return OUT_OF_TABLE, 0.0, 0.0, 0.0, 0.0
    column = int(position)
    far = z >= Z_SWITCH
    if far:
        u = N_NEAR + math.log(z) - LOG_Z_SWITCH
        if not u < N_U:
            return OUT_OF_TABLE, 0.0, 0.0, 0.0, 0.0
    else:
        u = z * PER_Z
    base = int(u)
    start = offset[column, base]
    if start < 0:
        return (column if start == -1 else OUT_OF_TABLE), 0.0, 0.0, 0.0, 0.0
    nu, ns = 1 << level_u[column, base], 1 << level_s[column, base]
    tu, ts = (u - base) * nu, (position - column) * ns
    iu, js = min(int(tu), nu - 1), min(int(ts), ns - 1)
    t, q = 2.0 * (tu - iu) - 1.0, 2.0 * (ts - js) - 1.0
    f, ft, fq, ftt = _polynomial(coefficients, 64 * (start + iu * ns + js), t, q)
    half = 0.5 * dim
    fs = fq * (2.0 * ns)
    fu = ft * (2.0 * nu)
    if far:
        # the Laplacian directly: the scaling relation below would cancel in the tail
        fuu = ftt * (4.0 * nu * nu)
        iy = 1.0 / y
        by_y = fu * iy
        by_A = (fuu + fu * (fu + dim - 2.0)) * iy * iy
    else:
        fz = fu * PER_Z
        by_y = fz * root * iA
        by_A = -(half + 0.5 * z * fz + alpha * fs) * iA
    return -1, f - half * log_A, by_y, by_A, fs / B


@compiled
def table_many(start, stop, y, A, B, alpha, dim, offset, level_u, level_s, coefficients, out, missing):
    """Columns start:stop of out (rows: log p[, d/dy, d/dA, d/dB]); samples the table cannot hold are flagged.

    missing[i] = -1 where done, else the column that should be built, or OUT_OF_TABLE. Returns how many are missing.
    """
    count = 0
    for i in range(start, stop):
        code, log_p, by_y, by_A, by_B = table_point(
            y[i if y.size > 1 else 0],
            A[i if A.size > 1 else 0],
            B[i if B.size > 1 else 0],
            alpha,
            dim,
            offset,
            level_u,
            level_s,
            coefficients,
        )
        missing[i] = code
        if code >= 0:
            count += 1
            continue
        out[0, i] = log_p
        if out.shape[0] > 1:
            out[1, i] = by_y
            out[2, i] = by_A
            out[3, i] = by_B
    return count
