"""The law for one shared alpha: piecewise polynomials of log g(z, c).

For fixed alpha the density has two parameters only: with z = y / sqrt(A) and c = B / A^alpha,

    log p = log g(z, c) - (d / 2) log A.

log g is tabulated by 8 x 8 polynomials on cells of the (z, log c) plane, refined until the trailing Chebyshev
coefficients promise |error of log p| <= 1e-9 and its derivatives 1e-7 of their natural scale. Columns of log c are
built from the contour quadrature when they are first needed, and kept. A table never extrapolates: what lies outside
(A = 0, enormous c or z, cells that would have to be too small) is evaluated by the quadrature itself.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from levytorch.law import contour
from levytorch.law.table_grid import DEGREE, EMPTY, LOG_Z_SWITCH, MAX_LEVEL, N_NEAR, N_S, N_U, OUTSIDE, PER_Z, S_MIN

M = DEGREE + 1
TOLERANCE = 4e-12
SLOPE_TOLERANCE = 1e-9

_NODES = np.cos(np.pi * (np.arange(M) + 0.5) / M)
_TO_CHEBYSHEV = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, DEGREE))
_TO_MONOMIAL = np.zeros((M, M))
for _k in range(M):
    _TO_MONOMIAL[: _k + 1, _k] = np.polynomial.chebyshev.cheb2poly(np.eye(M)[_k])[: _k + 1]


class Table:
    """log g(z, c) for one alpha and dimension; grows by columns of log c."""

    def __init__(self, alpha: float, dim: int = 1) -> None:
        self.alpha, self.dim = float(alpha), dim
        self.offset = np.full((N_S, N_U), EMPTY, dtype=np.int64)
        self.level_u = np.zeros((N_S, N_U), dtype=np.int64)
        self.level_s = np.zeros((N_S, N_U), dtype=np.int64)
        self._words = self.offset.copy()
        self.coefficients = np.zeros(0)
        self._lock = threading.Lock()
        self._on_device: dict[torch.device, tuple[int, tuple[Tensor, ...]]] = {}

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """offset, level_u, level_s (N_S, N_U), and the coefficients, 64 per cell: c[8 j + i] of t^i q^j."""
        return self.offset, self.level_u, self.level_s, self.coefficients

    @property
    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Offset and levels of each base cell in one integer (offset << 8 | level_u << 4 | level_s); coefficients."""
        words = self._words  # first: coefficients are published before the words that point to them
        return words, self.coefficients

    def tensors(self, device: torch.device) -> tuple[Tensor, ...]:
        """The arrays on a device, uploaded again when columns were added."""
        columns = int((self.offset[:, 0] != EMPTY).sum())
        held = self._on_device.get(device)
        if held is None or held[0] != columns:
            held = columns, tuple(torch.from_numpy(a).to(device) for a in self.arrays)
            self._on_device[device] = held
        return held[1]

    def build(self, columns: list[int]) -> None:
        """Add columns of log c; each costs some 0.1 s."""
        with self._lock:
            for column in columns:
                if 0 <= column < N_S and self.offset[column, 0] == EMPTY:
                    self._build(column)

    def _build(self, column: int) -> None:
        offset, level_u, level_s = self.offset.copy(), self.level_u.copy(), self.level_s.copy()
        blocks, end = [self.coefficients], len(self.coefficients) // (M * M)
        todo = [(base, 0, 0) for base in range(N_U)]
        while todo:
            cells = [self._cells(column, *entry) for entry in todo]
            sizes = [len(cell[0]) for cell in cells]
            chebyshev = self._fit(np.concatenate([c[0] for c in cells]), np.concatenate([c[1] for c in cells]))
            again, start = [], 0
            for (base, lu, ls), size in zip(todo, sizes):
                block = chebyshev[start : start + size]
                start += size
                rough_u, rough_s = self._rough(block, base, lu, ls)
                if not np.isfinite(block).all() or (lu >= MAX_LEVEL and rough_u) or (ls >= MAX_LEVEL and rough_s):
                    offset[column, base] = OUTSIDE
                elif rough_u or rough_s:
                    again.append((base, lu + rough_u, ls + rough_s))
                else:
                    offset[column, base], level_u[column, base], level_s[column, base] = end, lu, ls
                    blocks.append(np.einsum("ai,nij,bj->nba", _TO_MONOMIAL, block, _TO_MONOMIAL).reshape(-1))
                    end += size
            todo = again
        # publish in an order in which a concurrent reader never sees an offset without its coefficients
        self.coefficients = np.ascontiguousarray(np.concatenate(blocks))
        self.level_u, self.level_s = level_u, level_s
        self.offset = offset
        self._words = np.where(offset < 0, offset, offset << 8 | level_u << 4 | level_s)

    @staticmethod
    def _cells(column: int, base: int, lu: int, ls: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes (z, s) of the subcells of a base cell, each (subcells, M, M)."""
        nu, ns = 2**lu, 2**ls
        iu, js = np.divmod(np.arange(nu * ns), ns)
        u = base + (iu[:, None] + 0.5 * (_NODES + 1.0)) / nu
        s = S_MIN + column + (js[:, None] + 0.5 * (_NODES + 1.0)) / ns
        z = u / PER_Z if base < N_NEAR else np.exp(u - N_NEAR + LOG_Z_SWITCH)
        shape = (nu * ns, M, M)
        return np.broadcast_to(z[:, :, None], shape), np.broadcast_to(s[:, None, :], shape)

    def _fit(self, z: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Chebyshev coefficients (cells, M, M) of log g at the nodes."""
        y = torch.from_numpy(np.ascontiguousarray(z).reshape(-1))
        B = torch.from_numpy(np.exp(s).reshape(-1))
        one = torch.ones(1, dtype=torch.float64)
        log_p = contour.evaluate(y, one, B, self.alpha * one, dim=self.dim, order=0)[0]
        return np.einsum("ai,nij,bj->nab", _TO_CHEBYSHEV, log_p.numpy().reshape(z.shape), _TO_CHEBYSHEV)

    @staticmethod
    def _rough(block: np.ndarray, base: int, lu: int, ls: int) -> tuple[bool, bool]:
        """Whether any subcell is not resolved in u, in s: geometric extrapolation of the last coefficients."""
        size = np.abs(block)
        far = base >= N_NEAR

        def excess(last: np.ndarray, before: np.ndarray, first: np.ndarray, cells: float, second: bool) -> bool:
            left = last * np.clip(last / np.maximum(before, 1e-300), 1e-3, 1.0)
            slope = 2.0 * cells * M * M
            scale = np.maximum(1.0, 2.0 * cells * first)  # derivatives are measured against their own size
            bad = (left > TOLERANCE) | (left * slope > SLOPE_TOLERANCE * scale)
            if second:
                bad |= left * slope * slope / 3.0 > 50.0 * SLOPE_TOLERANCE * scale * scale
            noise = last < 1e-12  # rounding of log p itself
            return bool((bad & ~noise).any())

        u_last, u_before = size[:, -1, :].sum(1), size[:, -2, :].sum(1)
        s_last, s_before = size[:, :, -1].sum(1), size[:, :, -2].sum(1)
        cells_u = 2.0**lu * (1.0 if far else PER_Z)
        u_first, s_first = size[:, 1, :].sum(1), size[:, :, 1].sum(1)
        return excess(u_last, u_before, u_first, cells_u, far), excess(s_last, s_before, s_first, 2.0**ls, False)


@lru_cache(maxsize=64)
def table(alpha: float, dim: int = 1) -> Table:
    """The table of this alpha, made once per process."""
    return Table(alpha, dim)
