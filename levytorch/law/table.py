"""The law for one shared alpha: piecewise polynomials of log g(z, c).

For fixed alpha the density has two parameters only: with z = y / sqrt(A) and c = B / A^alpha,

    log p = log g(z, c) - (d / 2) log A.

log g is tabulated by 8 x 8 polynomials on cells of the (z, log c) plane, refined until the trailing Chebyshev
coefficients promise |error of log p| <= 1e-9 and its derivatives 1e-7 of their natural scale. Columns of log c are
built from the contour quadrature when they are first needed, and kept. A table never extrapolates: what lies outside
(A = 0, enormous c or z, cells that would have to be too small) is evaluated by the quadrature itself.

Layout: z is cut uniformly up to Z_SWITCH (where a Gaussian center turns into a power law) and uniformly in log z
beyond; s = log c is cut into columns of width one. Every base cell is split 2^level_u times in u and 2^level_s times
in s.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
import torch

from levytorch.law import quadrature

Z_SWITCH = 12.0
LOG_Z_SWITCH = math.log(Z_SWITCH)
PER_Z = 2.0  # base cells per unit of z
N_NEAR = int(Z_SWITCH * PER_Z)
N_FAR = 30  # up to z = 12 e^30 = 1.3e14
N_U = N_NEAR + N_FAR
S_MIN, S_MAX = -40.0, 14.0
N_S = int(S_MAX - S_MIN)
MAX_LEVEL = 4
EMPTY, OUTSIDE = -1, -2  # instead of the first cell of a column: not built yet, cannot be held

DEGREE = 7
M = DEGREE + 1
TOLERANCE = 4e-12
SLOPE_TOLERANCE = 1e-9

_NODES = np.cos(np.pi * (np.arange(M) + 0.5) / M)
_TO_CHEBYSHEV = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, DEGREE))
_TO_MONOMIAL = np.zeros((M, M))
for _k in range(M):
    _TO_MONOMIAL[: _k + 1, _k] = np.polynomial.chebyshev.cheb2poly(np.eye(M)[_k])[: _k + 1]


class Table:
    """log g(z, c) for one alpha; grows by columns of log c."""

    def __init__(self, alpha: float) -> None:
        self.alpha = float(alpha)
        # of each base cell: where its polynomials begin and its levels, offset << 8 | level_u << 4 | level_s
        self.words = np.full((N_S, N_U), EMPTY, dtype=np.int64)
        self.coefficients = np.zeros(0)  # 64 per cell: c[8 j + i] of t^i q^j
        self._lock = threading.Lock()

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """words and coefficients, as kernels take them."""
        words = self.words  # first: coefficients are published before the words that point to them
        return words, self.coefficients

    def build(self, columns: list[int]) -> None:
        """Add columns of log c; each costs some 0.1 s."""
        with self._lock:
            for column in columns:
                if self.words[column, 0] == EMPTY:
                    self._build(column)

    def _build(self, column: int) -> None:
        words = self.words.copy()
        blocks, end = [self.coefficients], len(self.coefficients) // (M * M)
        todo = {(0, 0): np.arange(N_U)}  # levels -> base cells
        while todo:
            nodes = [self._cells(column, bases, *levels) for levels, bases in todo.items()]
            chebyshev = self._fit(np.concatenate([n[0] for n in nodes]), np.concatenate([n[1] for n in nodes]))
            again: dict[tuple[int, int], list[np.ndarray]] = {}
            start = 0
            for (lu, ls), bases in todo.items():
                size = 2 ** (lu + ls)
                block = chebyshev[start : start + len(bases) * size].reshape(len(bases), size, M, M)
                start += len(bases) * size
                rough_u, rough_s = self._rough(block, bases >= N_NEAR, lu, ls)
                lost = ~np.isfinite(block).all((1, 2, 3))
                lost |= (rough_u & (lu >= MAX_LEVEL)) | (rough_s & (ls >= MAX_LEVEL))
                words[column, bases[lost]] = OUTSIDE
                done = ~(lost | rough_u | rough_s)
                kept = bases[done]
                words[column, kept] = (end + size * np.arange(len(kept))) << 8 | lu << 4 | ls
                cells = block[done].reshape(-1, M, M)
                blocks.append(np.einsum("ai,nij,bj->nba", _TO_MONOMIAL, cells, _TO_MONOMIAL).reshape(-1))
                end += len(cells)
                for finer_u, finer_s in ((1, 0), (0, 1), (1, 1)):
                    finer = bases[~lost & (rough_u == finer_u) & (rough_s == finer_s)]
                    if len(finer):
                        again.setdefault((lu + finer_u, ls + finer_s), []).append(finer)
            todo = {levels: np.concatenate(parts) for levels, parts in again.items()}
        # publish in an order in which a concurrent reader never sees a word without its coefficients
        self.coefficients = np.ascontiguousarray(np.concatenate(blocks))
        self.words = words

    @staticmethod
    def _cells(column: int, bases: np.ndarray, lu: int, ls: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes (z, s) of the subcells of base cells, one base cell after the other, each (cells, M, M)."""
        nu, ns = 2**lu, 2**ls
        iu, js = np.divmod(np.arange(nu * ns), ns)
        base = bases[:, None, None]
        u = base + (iu[:, None] + 0.5 * (_NODES + 1.0)) / nu
        s = S_MIN + column + (js[:, None] + 0.5 * (_NODES + 1.0)) / ns
        z = np.where(base < N_NEAR, u / PER_Z, np.exp(u - N_NEAR + LOG_Z_SWITCH))
        shape = (len(bases), nu * ns, M, M)
        z, s = np.broadcast_to(z[..., None], shape), np.broadcast_to(s[:, None, :], shape)
        return z.reshape(-1, M, M), s.reshape(-1, M, M)

    def _fit(self, z: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Chebyshev coefficients (cells, M, M) of log g at the nodes."""
        y = torch.from_numpy(np.ascontiguousarray(z).reshape(-1))
        B = torch.from_numpy(np.exp(s).reshape(-1))
        one = torch.ones(1, dtype=torch.float64)
        log_p = quadrature.density(y, one, B, self.alpha * one, order=0)[0]
        values = log_p.numpy().reshape(z.shape)
        return np.asarray(np.einsum("ai,nij,bj->nab", _TO_CHEBYSHEV, values, _TO_CHEBYSHEV))

    @staticmethod
    def _rough(block: np.ndarray, far: np.ndarray, lu: int, ls: int) -> tuple[np.ndarray, np.ndarray]:
        """Whether any subcell is not resolved in u, in s: geometric extrapolation of the last coefficients.

        block: (bases, subcells, M, M); far, and what is returned: (bases,).
        """
        size = np.abs(block)

        def excess(
            last: np.ndarray, before: np.ndarray, first: np.ndarray, cells: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray]:
            left = last * np.clip(last / np.maximum(before, 1e-300), 1e-3, 1.0)
            slope = 2.0 * cells * M * M
            scale = np.maximum(1.0, 2.0 * cells * first)  # derivatives are measured against their own size
            bad = (left > TOLERANCE) | (left * slope > SLOPE_TOLERANCE * scale)
            curved = left * slope * slope / 3.0 > 50.0 * SLOPE_TOLERANCE * scale * scale
            known = last >= 1e-12  # above the rounding of log p itself
            return bad & known, curved & known

        u_last, u_before, u_first = (size[:, :, k, :].sum(2) for k in (-1, -2, 1))
        s_last, s_before, s_first = (size[:, :, :, k].sum(2) for k in (-1, -2, 1))
        cells_u = 2.0**lu * np.where(far, 1.0, PER_Z)[:, None]
        rough_u, curved_u = excess(u_last, u_before, u_first, cells_u)
        rough_s, _ = excess(s_last, s_before, s_first, np.array(2.0**ls))
        return np.any(rough_u | (curved_u & far[:, None]), axis=1), np.any(rough_s, axis=1)


@lru_cache(maxsize=64)
def table(alpha: float) -> Table:
    """The table of this alpha, made once per process."""
    return Table(alpha)
