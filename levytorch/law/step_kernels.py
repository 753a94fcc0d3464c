"""Compiled one-dimensional step: from (displacement, b, D_o, D_f, alpha, dt) to log p and its derivatives, one pass.

The arguments are checked on the way, since a separate pass over them would cost more than a small batch itself.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.kernels import density_point
from levytorch.law.paths import N_NODES, compiled
from levytorch.law.table_kernels import table_point

DONE = -1


@compiled
def _valid(y, A, B, alpha, dt):
    return math.isfinite(y) and 0.0 <= A < math.inf and 0.0 < B < math.inf and 0.0 < alpha < 1.0 and dt > 0.0


@compiled
def contour_step(start, stop, x, b, D_o, D_f, alpha, dt, order, with_alpha, out):
    """Rows of out: log p, d/db, d/dD_o, d/dD_f[, d/dalpha]. Returns the first bad index, or DONE."""
    row, work = np.empty(15), np.empty((5, N_NODES))
    for i in range(start, stop):
        t = dt[i if dt.size > 1 else 0]
        y = x[i if x.size > 1 else 0] - b[i if b.size > 1 else 0] * t
        A = D_o[i if D_o.size > 1 else 0] * t
        B = D_f[i if D_f.size > 1 else 0] * t
        a = alpha[i if alpha.size > 1 else 0]
        if not _valid(y, A, B, a, t):
            return i
        density_point(abs(y), A, B, a, 1, order, work, row)
        out[0, i] = row[0]
        if order > 0:
            out[1, i] = -row[1] * t if y >= 0.0 else row[1] * t
            out[2, i] = row[2] * t
            out[3, i] = row[3] * t
            if with_alpha:
                out[4, i] = row[4]
    return DONE


@compiled
def table_step(start, stop, x, b, D_o, D_f, alpha, dt, offset, level_u, level_s, coefficients, needed, out):
    """The same from a table of the shared alpha; columns that must be built first are marked in needed."""
    row, work = np.empty(15), np.empty((5, N_NODES))
    order = 1 if out.shape[0] > 1 else 0
    for i in range(start, stop):
        t = dt[i if dt.size > 1 else 0]
        y = x[i if x.size > 1 else 0] - b[i if b.size > 1 else 0] * t
        A = D_o[i if D_o.size > 1 else 0] * t
        B = D_f[i if D_f.size > 1 else 0] * t
        if not _valid(y, A, B, alpha, t):
            return i
        code, log_p, by_y, by_A, by_B = table_point(abs(y), A, B, alpha, 1, offset, level_u, level_s, coefficients)
        if code >= 0:
            if code < needed.size:
                needed[code] = True
                continue
            density_point(abs(y), A, B, alpha, 1, order, work, row)
            log_p, by_y, by_A, by_B = row[0], row[1], row[2], row[3]
        out[0, i] = log_p
        if order > 0:
            out[1, i] = -by_y * t if y >= 0.0 else by_y * t
            out[2, i] = by_A * t
            out[3, i] = by_B * t
    return DONE
