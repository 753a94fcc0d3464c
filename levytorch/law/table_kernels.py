"""Compiled evaluation of the piecewise polynomial table (`table.py`), one sample at a time.

`isotropic_table_step` is the counterpart of `step_kernels.table_step` in d > 1 dimensions, from vectors to log p and
its derivatives in one pass; arguments are checked on the way for the same reason.
"""

from __future__ import annotations

import math

from levytorch.law.cell_polynomial import cell_polynomial
from levytorch.law.paths import compiled
from levytorch.law.table_grid import LOG_Z_SWITCH, N_NEAR, N_S, N_U, PER_Z, S_MIN, Z_SWITCH

OUT_OF_TABLE = N_S  # a column number that cannot be built
DONE = -1


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
    f, ft, fq, ftt = cell_polynomial(coefficients, 64 * (start + iu * ns + js), t, q)
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


@compiled
def isotropic_table_step(
    start, stop, x, b, D_o, D_f, alpha, dt, offset, level_u, level_s, coefficients, needed, beyond, out, by_b
):
    """Rows of out: log p[, d/dD_o, d/dD_f]; by_b (n, d): d/db, or empty. Returns the first bad index, or DONE.

    Columns that must be built first are marked in needed, samples that no table holds in beyond.
    """
    dim = x.shape[1]
    slopes = out.shape[0] > 1
    for i in range(start, stop):
        t = dt[i if dt.size > 1 else 0]
        m = i if x.shape[0] > 1 else 0
        k = i if b.shape[0] > 1 else 0
        square = 0.0
        for j in range(dim):
            s = x[m, j] - b[k, j] * t
            square += s * s
        y = math.sqrt(square)
        A = D_o[i if D_o.size > 1 else 0] * t
        B = D_f[i if D_f.size > 1 else 0] * t
        if not (math.isfinite(y) and 0.0 <= A < math.inf and 0.0 < B < math.inf and t > 0.0):
            return i
        code, log_p, by_y, by_A, by_B = table_point(y, A, B, alpha, dim, offset, level_u, level_s, coefficients)
        beyond[i] = code >= needed.size
        if code >= 0:
            if code < needed.size:
                needed[code] = True
            continue
        out[0, i] = log_p
        if slopes:
            out[1, i] = by_A * t
            out[2, i] = by_B * t
            pull = -by_y * t / y if y > 0.0 else 0.0
            for j in range(dim):
                by_b[i, j] = pull * (x[m, j] - b[k, j] * t)
    return DONE
