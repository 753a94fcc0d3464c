"""Compiled step in d > 1 dimensions for one shared alpha: from vectors to log p and its derivatives, one pass.

The counterpart of `step_kernels.table_step`; arguments are checked on the way for the same reason.
"""

from __future__ import annotations

import math

from levytorch.law.paths import compiled
from levytorch.law.table_kernels import table_point

DONE = -1


@compiled
def vector_table_step(
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
