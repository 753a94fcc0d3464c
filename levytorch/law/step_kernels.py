"""Compiled one-dimensional step: from (displacement, b, D_o, D_f, alpha, dt) to log p and its derivatives, one pass.

The arguments are checked on the way, since a separate pass over them would cost more than a small batch itself.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.cell_polynomial import cell_polynomial
from levytorch.law.kernels import density_point
from levytorch.law.paths import N_NODES, compiled
from levytorch.law.table_grid import EMPTY, LOG_Z_SWITCH, N_NEAR, N_S, N_U, PER_Z, S_MIN, Z_SWITCH
from levytorch.law.vector_math import fast_log, inlined

DONE = -1
BLOCK = 128
# columns of a block; log p and its derivatives end up in F ... FUU, one after the other
Y, T, A, B, S, U, LOG_A, F, FU, FS, FUU, DRIFT = (k * BLOCK for k in range(12))
LOCAL_U, LOCAL_S, SCALE_U, SCALE_S, INVERSE = (k * BLOCK for k in range(12, 17))


@compiled
def _valid(y, A, B, alpha, dt):
    return math.isfinite(y) and 0.0 <= A < math.inf and 0.0 < B < math.inf and 0.0 < alpha < 1.0 and dt > 0.0


@compiled
def contour_step(start, stop, x, b, D_o, D_f, alpha, dt, out):
    """out: a tuple of rows, log p[, d/db, d/dD_o, d/dD_f[, d/dalpha]]. Returns the first bad index, or DONE."""
    row, nodes = np.empty(15), np.empty((5, N_NODES))
    order = 1 if len(out) > 1 else 0
    for i in range(start, stop):
        t = dt[i if dt.size > 1 else 0]
        y = x[i if x.size > 1 else 0] - b[i if b.size > 1 else 0] * t
        a = D_o[i if D_o.size > 1 else 0] * t
        c = D_f[i if D_f.size > 1 else 0] * t
        index = alpha[i if alpha.size > 1 else 0]
        if not _valid(y, a, c, index, t):
            return i
        density_point(abs(y), a, c, index, 1, order, nodes, row)
        _chain(row, y, t)
        for k in range(len(out)):
            out[k][i] = row[k]
    return DONE


@inlined
def _chain(row, y, t):
    """From derivatives in |y|, A, B to those in b, D_o, D_f."""
    row[1] *= -t if y >= 0.0 else t
    row[2] *= t
    row[3] *= t


@inlined
def _fetch(work, at, source, first, n):
    """n entries of source from first on, or n copies of its only one."""
    if source.size > 1:
        for i in range(n):
            work[at + i] = source[first + i]
    else:
        for i in range(n):
            work[at + i] = source[0]


@compiled
def table_step(start, stop, x, b, D_o, D_f, alpha, dt, cells, coefficients, needed, out):
    """The same from a table of the shared alpha; columns that must be built first are marked in needed.

    A block at a time in loops of one kind of work, so that LLVM can vectorise all of them but the look-up. The columns
    of a block lie in one array: it then sees that they do not overlap.
    """
    row, nodes = np.empty(15), np.empty((5, N_NODES))
    order = 1 if len(out) > 1 else 0
    w, places = np.empty(17 * BLOCK), np.empty(BLOCK, dtype=np.int64)
    for first in range(start, stop, BLOCK):
        n = min(BLOCK, stop - first)
        _fetch(w, Y, x, first, n)
        _fetch(w, T, dt, first, n)
        _fetch(w, A, D_o, first, n)
        _fetch(w, B, D_f, first, n)
        _fetch(w, DRIFT, b, first, n)
        bad = 0
        for i in range(n):
            t = w[T + i]
            y, a, c = w[Y + i] - w[DRIFT + i] * t, w[A + i] * t, w[B + i] * t
            size = abs(y)
            good = (size < math.inf) & (a >= 0.0) & (a < math.inf) & (c > 0.0) & (c < math.inf) & (t > 0.0)
            bad += 0 if good else 1
            log_a = fast_log(a)
            inverse = math.sqrt(a) / a
            z = size * inverse
            s = fast_log(c) - alpha * log_a - S_MIN
            u = N_NEAR - LOG_Z_SWITCH + fast_log(size) - 0.5 * log_a  # without a branch, which would not vectorise
            u = u if z >= Z_SWITCH else z * PER_Z
            inside = (a > 1e-290) & (c > 1e-290) & (s >= 0.0) & (s < N_S) & (u < N_U)
            w[Y + i], w[A + i], w[B + i], w[LOG_A + i] = y, a, c, log_a
            w[INVERSE + i] = inverse
            w[S + i] = s if inside else -1.0
            w[U + i] = u if inside else 0.0
        if bad > 0 or not 0.0 < alpha < 1.0:
            for i in range(n):
                if not _valid(w[Y + i], w[A + i], w[B + i], alpha, w[T + i]):
                    return first + i
        for i in range(n):
            s, u = max(w[S + i], 0.0), w[U + i]
            column, base = int(s), int(u)
            word = cells[column, base]
            nu, ns = 1 << ((word >> 4) & 15), 1 << (word & 15)
            tu, ts = (u - base) * nu, (s - column) * ns
            iu, js = min(int(tu), nu - 1), min(int(ts), ns - 1)
            place = 64 * ((word >> 8) + iu * ns + js)
            places[i] = word if word < 0 else place
            w[LOCAL_U + i], w[LOCAL_S + i] = 2.0 * (tu - iu) - 1.0, 2.0 * (ts - js) - 1.0
            w[SCALE_U + i], w[SCALE_S + i] = 2.0 * nu, 2.0 * ns
        for i in range(n):
            place = places[i]
            if place < 0 and w[S + i] >= 0.0:
                if place == EMPTY:
                    needed[int(w[S + i])] = True
                w[S + i] = -1.0
            if w[S + i] >= 0.0:
                w[F + i], w[FU + i], w[FS + i], w[FUU + i] = cell_polynomial(
                    coefficients, place, w[LOCAL_U + i], w[LOCAL_S + i]
                )
        for i in range(n):
            w[F + i] -= 0.5 * w[LOG_A + i]
        if order > 0:
            for i in range(n):
                y, t, inverse, nu = w[Y + i], w[T + i], w[INVERSE + i], w[SCALE_U + i]
                fu, fs = w[FU + i] * nu, w[FS + i] * w[SCALE_S + i]
                far = w[U + i] >= N_NEAR
                iy = 1.0 / (y if far else 1.0)
                slope = fu * PER_Z * inverse  # |d/dy| near the center
                near_y = slope if y >= 0.0 else -slope
                by_y = fu * iy if far else near_y
                # the Laplacian in the tail, where the scaling relation would cancel
                laplacian = (w[FUU + i] * nu * nu + fu * (fu - 1.0)) * iy * iy
                scaling = -(0.5 + 0.5 * abs(y) * slope + alpha * fs) * inverse * inverse
                by_A = laplacian if far else scaling
                w[FU + i] = -by_y * t
                w[FS + i] = by_A * t
                w[FUU + i] = fs / w[B + i] * t
        for k in range(len(out)):
            row_k, at = out[k], F + k * BLOCK
            for i in range(n):
                row_k[first + i] = w[at + i]
        for i in range(n):
            if w[S + i] < 0.0:
                y, t = w[Y + i], w[T + i]
                density_point(abs(y), w[A + i], w[B + i], alpha, 1, order, nodes, row)
                _chain(row, y, t)
                for k in range(len(out)):
                    out[k][first + i] = row[k]
    return DONE
