"""One 8 x 8 polynomial and its derivatives, as vector instructions.

The eight coefficients of one power of q are one vector register; LLVM does not find this by itself, so the instructions
are written out through numba's extension interface. Machines with narrower registers get the same in two or four parts.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
