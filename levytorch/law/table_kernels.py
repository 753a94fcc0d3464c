"""Compiled evaluation of the piecewise polynomial table (`table.py`), one sample at a time."""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.kernels import compiled
from levytorch.law.table_grid import DEGREE, LOG_Z_SWITCH, N_NEAR, N_U, PER_Z, S_MIN, Z_SWITCH

M = DEGREE + 1


@compiled
def _horner(coefficients, t, q, second, out):
    """F, F_t, F_q (and F_tt) of sum c[i, j] t^i q^j into out[0:4]."""
    f = ft = fq = ftt = 0.0
    for i in range(M - 1, -1, -1):
        row = coefficients[i]
        g = row[M - 1]
        gq = 0.0
        for j in range(M - 2, -1, -1):
            gq = gq * q + g
            g = g * q + row[j]
        if second:
            ftt = ftt * t + 2.0 * ft
        ft = ft * t + f
        f = f * t + g
        fq = fq * t + gq
    out[0], out[1], out[2], out[3] = f, ft, fq, ftt


@compiled
def _horner_value(coefficients, t, q):
    f = 0.0
    for i in range(M - 1, -1, -1):
        row = coefficients[i]
        g = row[M - 1]
        for j in range(M - 2, -1, -1):
            g = g * q + row[j]
        f = f * t + g
    return f


@compiled
def table_point(y, A, B, alpha, dim, order, offset, level_u, level_s, coefficients, work, out):
    """As `kernels.density_point` with order <= 1, without d/d alpha.

    Returns -1 when done; otherwise the column of the table that is missing or cannot hold the point (>= N_S: outside).
    """
    root = math.sqrt(A)
    if root == 0.0:
        return offset.shape[0]
    log_A = 2.0 * math.log(root)
    z = y / root
    position = math.log(B) - alpha * log_A - S_MIN
    if not (0.0 <= position < offset.shape[0]):
        return offset.shape[0]
    column = int(position)
    far = z >= Z_SWITCH
    if far:
        u = N_NEAR + math.log(z) - LOG_Z_SWITCH
        if not u < N_U:
            return offset.shape[0]
    else:
        u = z * PER_Z
    base = int(u)
    start = offset[column, base]
    if start < 0:
        return column if start == -1 else offset.shape[0]
    nu, ns = 1 << level_u[column, base], 1 << level_s[column, base]
    tu, ts = (u - base) * nu, (position - column) * ns
    iu, js = min(int(tu), nu - 1), min(int(ts), ns - 1)
    t, q = 2.0 * (tu - iu) - 1.0, 2.0 * (ts - js) - 1.0
    cell = coefficients[start + iu * ns + js]
    half = 0.5 * dim
    if order == 0:
        out[0] = _horner_value(cell, t, q) - half * log_A
        return -1
    _horner(cell, t, q, far, work)
    out[0] = work[0] - half * log_A
    fs = work[2] * (2.0 * ns)
    fu = work[1] * (2.0 * nu)
    iA = 1.0 / A
    if far:
        # the Laplacian directly: the scaling relation below would cancel in the tail
        fuu = work[3] * (4.0 * nu * nu)
        out[1] = fu / y
        out[2] = (fuu + fu * (fu + dim - 2.0)) / (y * y)
    else:
        fz = fu * PER_Z
        out[1] = fz / root
        out[2] = -(half + 0.5 * z * fz + alpha * fs) * iA
    out[3] = fs / B
    return -1


@compiled
def table_many(start, stop, y, A, B, alpha, dim, order, offset, level_u, level_s, coefficients, out, missing):
    """Columns start:stop of out (rows: log p, d/dy, d/dA, d/dB); samples the table cannot hold are flagged in missing.

    missing[i] = -1 where done, else the column that should be built, or the number of columns where none can be.
    """
    work, row = np.empty(4), np.empty(4)
    count = 0
    for i in range(start, stop):
        code = table_point(
            y[i if y.size > 1 else 0],
            A[i if A.size > 1 else 0],
            B[i if B.size > 1 else 0],
            alpha,
            dim,
            order,
            offset,
            level_u,
            level_s,
            coefficients,
            work,
            row,
        )
        missing[i] = code
        if code >= 0:
            count += 1
            continue
        out[0, i] = row[0]
        if order > 0:
            out[1, i] = row[1]
            out[2, i] = row[2]
            out[3, i] = row[3]
    return count
