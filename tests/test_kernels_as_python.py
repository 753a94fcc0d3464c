"""Every compiled kernel against its own Python source: what numba makes of it is what is written.

Each case runs through the public functions twice, compiled and interpreted. Interpreted, every jitted function of the
kernel modules is replaced by the Python function it was made from, and the intrinsics, which have no Python source,
by plain stand-ins.
"""

import importlib
import math
import struct

import numpy as np
import pytest
import torch
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic

from levytorch import Dynamics, log_density, simulate, tail_probability
from levytorch.coefficients import kernels as coefficients

MODULES = [
    importlib.import_module(f"levytorch.{name}")
    for name in (
        *("law.vector_math", "law.contour_kernels", "law.step_kernels", "law.tempered_line", "law.tempered_kernels"),
        *("coefficients.kernels", "simulation.kernels"),
    )
]


def _bits(x):
    return struct.unpack("<q", struct.pack("<d", x))[0]


def _from_bits(word):
    return struct.unpack("<d", struct.pack("<Q", int(word) & (2**64 - 1)))[0]


def _cell_polynomial(coefficients, offset, t, q):
    """F, F_t, F_q, F_tt of sum_ij c[offset + 8 j + i] t^i q^j."""
    c = np.polynomial.polynomial
    rows = np.asarray(coefficients).reshape(-1)[offset : offset + 64].reshape(8, 8)  # j, i
    in_t = rows.T
    return (
        c.polyval2d(t, q, in_t),
        c.polyval2d(t, q, c.polyder(in_t, axis=0)),
        c.polyval2d(t, q, c.polyder(in_t, axis=1)),
        c.polyval2d(t, q, c.polyder(in_t, 2, axis=0)),
    )


STAND_INS = {"bits": _bits, "from_bits": _from_bits, "cell_polynomial": _cell_polynomial}


@pytest.fixture
def interpreted(monkeypatch):
    """Call it to leave the compiled world."""

    def leave() -> int:
        replaced = 0
        for module in MODULES:
            for name, value in list(vars(module).items()):
                if isinstance(value, Dispatcher):
                    monkeypatch.setattr(module, name, value.py_func)
                    replaced += 1
                elif isinstance(value, _Intrinsic):
                    monkeypatch.setattr(module, name, STAND_INS[name.lstrip("_")])
        return replaced

    return leave


def derivatives(value, arguments, order):
    """value, and its derivatives with respect to the arguments up to an order, as one row of numbers."""
    out = [value.detach().reshape(-1)]
    if order:
        firsts = torch.autograd.grad(value.sum(), arguments, create_graph=order > 1)
        out += [g.detach().reshape(-1) for g in firsts]
        if order > 1:
            for g in firsts:
                out += [s.reshape(-1) for s in torch.autograd.grad(g.sum(), arguments, retain_graph=True)]
    return torch.cat(out)


def parameters(D_o, D_f, alpha):
    return [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, D_o, D_f, alpha)]


def density(dim, method, order, D_o=1.3, D_f=2.0, alpha=0.3):
    # the center, the shoulder, the far tail, farther than any table
    x = torch.tensor([0.1, -2.0, 300.0, 1e11], dtype=torch.float64)
    dx = x if dim == 1 else torch.stack([x * (k + 1) for k in range(dim)], dim=1)

    def evaluate():
        b, d_o, d_f, a = parameters(D_o, D_f, alpha)
        drift = b if dim == 1 else b.expand(dim)
        by = [b, d_o, d_f] if method == "table" else [b, d_o, d_f, a]
        given = alpha if method == "table" else a
        return derivatives(log_density(dx, drift, d_o, d_f, given, 0.1, dim=dim, method=method), by, order)

    return evaluate


def tail(dim, alpha):
    zero = 0.0 if dim == 1 else torch.zeros(dim, dtype=torch.float64)

    def evaluate():
        _, D_o, D_f, a = parameters(1.3, 2.0, alpha)
        u = torch.tensor([0.0, 0.3, 40.0], dtype=torch.float64)
        return derivatives(tail_probability(u, zero, zero, D_o, D_f, a, 0.1, dim=dim), [D_o, D_f, a], 1)

    return evaluate


def paths(name, **options):
    return lambda: torch.as_tensor(simulate(Dynamics.named(name), 3, 4, 0.025, seed=5, substeps=2, **options).x)


def grid():
    x = torch.tensor([0.1, 3.0, 6.2, -40.0, 2 * math.pi], dtype=torch.float64)
    table = torch.sin(torch.arange(3 * 64, dtype=torch.float64)).reshape(3, 64)
    group = torch.tensor([0, 1, 0, 1, 1])
    rows = [coefficients.interpolate(x, 0.0, 2 * math.pi, table, positive=positive) for positive in (False, True)]
    sums = coefficients.scatter(x, 0.0, 2 * math.pi, list(rows[0]), 64, 16, group, 2, x.abs())
    four = coefficients.scatter(x, 0.0, 2 * math.pi, [*rows[0], rows[0][0]], 64, 16, group[:0], 1, x.new_tensor(0.5))
    return torch.cat([t.reshape(-1) for t in (*rows, *sums, *four)])


CASES = {
    **{f"contour-{dim}-{order}": density(dim, "contour", order) for dim in (1, 2, 3) for order in (0, 1, 2)},
    "contour-near-half": density(1, "contour", 2, alpha=0.5),
    "contour-near-one": density(1, "contour", 1, alpha=0.95),
    **{f"table-{dim}": density(dim, "table", 1) for dim in (1, 2, 3)},
    "table-alpha-0.7": density(1, "table", 1, alpha=0.7),
    "table-almost-no-jumps": density(1, "table", 1, D_f=1e-9),
    "table-almost-only-jumps": density(1, "table", 1, D_o=1e-12, alpha=0.9),
    "contour-only-jumps": density(1, "contour", 1, D_o=0.0),
    **{f"tail-{dim}-{alpha}": tail(dim, alpha) for dim in (1, 2, 3) for alpha in (0.3, 0.8)},
    "simulate-constant": paths("constant"),
    "simulate-variable": paths("variable"),
    "simulate-plane": paths("plane"),
    "grid": grid,
}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap around, in numpy with a warning
@pytest.mark.parametrize("case", CASES)
def test_compiled_is_what_is_written(case, interpreted):
    compiled = CASES[case]()
    assert interpreted() > 30
    written = CASES[case]()
    assert bool(torch.isfinite(compiled).all())
    # contracted multiplications and additions round once where Python rounds twice
    torch.testing.assert_close(compiled, written, rtol=1e-10, atol=1e-12 * float(compiled.abs().max()))
