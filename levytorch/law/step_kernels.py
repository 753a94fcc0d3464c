"""Compiled passes over steps: from their arguments to log p and its derivatives, by the contour or by a table.

The polynomial of a cell of the table (`table.py`) is evaluated by vector instructions: the eight coefficients of one
power of q are one vector register. LLVM does not find this by itself, so the instructions are written out through
numba's extension interface. Machines with narrower registers get the same in two or four parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from levytorch.law.compiled import cgutils, intrinsic, types
from levytorch.law.contour_kernels import DONE, SCRATCH, chain_step, compiled, density_point, pick, valid_step
from levytorch.law.table import EMPTY, LOG_Z_SWITCH, N_NEAR, N_S, N_U, PER_Z, S_MIN, Z_SWITCH
from levytorch.law.vector_math import fast_log, inlined

BLOCK = 128
# columns of a block; log p and its derivatives end up in F ... FUU, one after the other
Y, T, A, B, S, U, LOG_A, F, FU, FS, FUU, DRIFT = (k * BLOCK for k in range(12))
LOCAL_U, LOCAL_S, SCALE_U, SCALE_S, INVERSE = (k * BLOCK for k in range(12, 17))


@compiled
def contour_step(start, stop, x, b, D_o, D_f, alpha, dt, out):
    """d = 1, one pass from the arguments of a step; out: a tuple of rows, log p[, d/db, d/dD_o, d/dD_f[, d/dalpha]].

    Returns the first bad index, or DONE.
    """
    row, work = np.empty(15), np.empty(SCRATCH)
    order = 1 if len(out) > 1 else 0
    for i in range(start, stop):
        t = pick(dt, i)
        y, A, B = pick(x, i) - pick(b, i) * t, pick(D_o, i) * t, pick(D_f, i) * t
        if not valid_step(y, A, B, pick(alpha, i), t):
            return i
        density_point(abs(y), A, B, pick(alpha, i), order, work, row)
        chain_step(row, y, t)
        for k in range(len(out)):
            out[k][i] = row[k]
    return DONE


_DOUBLE = ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, 8)
_INT = ir.IntType(32)


def _splat(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(_INT, 8), [0] * 8))


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))


def _powers(builder: Any, t: Any) -> Any:
    """1, t, ..., t^7 as a product of three vectors, one for each bit of the exponent."""
    ones, result = ir.Constant(_VECTOR, [1.0] * 8), None
    for bit in (1, 2, 4):
        lanes = [8 + i if i & bit else i for i in range(8)]
        factor = _shuffle(builder, ones, _splat(builder, t), lanes)
        result = factor if result is None else builder.fmul(result, factor)
        t = builder.fmul(t, t)
    return result


def _sums(builder: Any, vectors: list[Any]) -> list[Any]:
    """The sums of the lanes of four vectors, by a transpose that they share."""
    low, high = [0, 1, 2, 3], [4, 5, 6, 7]
    a, b, c, d = (builder.fadd(_shuffle(builder, v, v, low), _shuffle(builder, v, v, high)) for v in vectors)
    even, odd = [0, 4, 2, 6], [1, 5, 3, 7]
    ab = builder.fadd(_shuffle(builder, a, b, even), _shuffle(builder, a, b, odd))
    cd = builder.fadd(_shuffle(builder, c, d, even), _shuffle(builder, c, d, odd))
    total = builder.fadd(_shuffle(builder, ab, cd, [0, 1, 4, 5]), _shuffle(builder, ab, cd, [2, 3, 6, 7]))
    return [builder.extract_element(total, ir.Constant(_INT, k)) for k in range(4)]


@intrinsic
def cell_polynomial(typingctx, coefficients, offset, t, q):
    """F, F_t, F_q, F_tt of sum_ij c[offset + 8 j + i] t^i q^j."""

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        rows = builder.bitcast(builder.gep(array.data, [args[1]]), _VECTOR.as_pointer())
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f64")

        def row(j: int) -> Any:
            load = builder.load(builder.gep(rows, [ir.Constant(ir.IntType(64), j)]))
            load.align = 8
            return load

        q_all = _splat(builder, args[3])
        g, d = row(7), ir.Constant(_VECTOR, [0.0] * 8)
        for j in range(6, -1, -1):
            d = builder.call(fma, [d, q_all, g])
            g = builder.call(fma, [g, q_all, row(j)])
        powers = _powers(builder, args[2])
        zeros = ir.Constant(_VECTOR, [0.0] * 8)
        # the derivatives in t are polynomials with shifted coefficients
        first = builder.fmul(
            _shuffle(builder, g, zeros, [1, 2, 3, 4, 5, 6, 7, 8]),
            ir.Constant(_VECTOR, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0]),
        )
        second = builder.fmul(
            _shuffle(builder, g, zeros, [2, 3, 4, 5, 6, 7, 8, 9]),
            ir.Constant(_VECTOR, [2.0, 6.0, 12.0, 20.0, 30.0, 42.0, 0.0, 0.0]),
        )
        results = _sums(builder, [builder.fmul(v, powers) for v in (g, first, d, second)])
        return context.make_tuple(builder, signature.return_type, results)

    if not (isinstance(coefficients, types.Array) and coefficients.layout == "C" and coefficients.ndim == 1):
        return None
    return types.UniTuple(types.float64, 4)(coefficients, types.int64, types.float64, types.float64), generate


@inlined
def _fetch(w, at, source, first, n):
    """n entries of source from first on, or n copies of its only one."""
    if source.size > 1:
        for i in range(n):
            w[at + i] = source[first + i]
    else:
        for i in range(n):
            w[at + i] = source[0]


@compiled
def table_step(start, stop, x, b, D_o, D_f, alpha, dt, words, coefficients, needed, out):
    """As contour_step, from a table of the shared alpha; columns to build first are marked in needed.

    A block at a time in loops of one kind of work, so that LLVM can vectorise all of them but the look-up. The columns
    of a block lie in one array: it then sees that they do not overlap.
    """
    row, work = np.empty(15), np.empty(SCRATCH)
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
                if not valid_step(w[Y + i], w[A + i], w[B + i], alpha, w[T + i]):
                    return first + i
        for i in range(n):
            s, u = max(w[S + i], 0.0), w[U + i]
            column, base = int(s), int(u)
            word = words[column, base]
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
                density_point(abs(y), w[A + i], w[B + i], alpha, order, work, row)
                chain_step(row, y, t)
                for k in range(len(out)):
                    out[k][first + i] = row[k]
    return DONE
