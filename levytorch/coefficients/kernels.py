"""Compiled inner loops of the Fourier heads; plain torch when numba is not there or the tensors are elsewhere.

Neither loop is differentiated through: gradients in x are not needed, and the coefficients enter linearly afterwards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

try:
    import numba

    HAVE_NUMBA = True
except ImportError:  # pragma: no cover - exercised on machines without a compiler stack
    HAVE_NUMBA = False

_BLOCK = 2048  # samples a thread keeps in its first-level cache


def harmonics(cos1: Tensor, sin1: Tensor, n_basis: int) -> Tensor:
    """(K, n) rows 1, cos, sin, cos 2, sin 2, ... from cos and sin of the phase by the angle-addition recurrence."""
    n = cos1.shape[0]
    if HAVE_NUMBA and cos1.device.type == "cpu" and cos1.dtype == torch.float64 and n >= 512:
        out = torch.empty((n_basis, n), dtype=torch.float64)
        _harmonics(cos1.detach().contiguous().numpy(), sin1.detach().contiguous().numpy(), out.numpy())
        return out
    out = torch.empty((n_basis, n), dtype=cos1.dtype, device=cos1.device)
    out[0], out[1], out[2] = 1.0, cos1, sin1
    for k in range(3, n_basis, 2):
        out[k] = out[k - 2] * cos1 - out[k - 1] * sin1
        out[k + 1] = out[k - 2] * sin1 + out[k - 1] * cos1
    return out


def bin_sums(index: Tensor, scores: Tensor, n_bins: int) -> tuple[Tensor, Tensor]:
    """Sums of scores and of their products per bin.

    index: (n,) bin of each sample; scores: (C, n). Returns first (C, M) and second (C, C, M) moments, not divided by n.
    """
    C = scores.shape[0]
    if HAVE_NUMBA and scores.device.type == "cpu" and scores.dtype == torch.float64:
        threads = numba.get_num_threads() if scores.shape[1] > 4 * _BLOCK else 1
        first, second = _bin_sums(index.numpy(), scores.contiguous().numpy(), n_bins, threads)
        packed1, packed2 = torch.from_numpy(first), torch.from_numpy(second)
    else:
        packed1 = torch.zeros((n_bins, C), dtype=scores.dtype, device=scores.device)
        packed1.index_add_(0, index, scores.T)
        pairs = torch.stack([scores[i] * scores[j] for i in range(C) for j in range(i, C)], dim=1)
        packed2 = torch.zeros((n_bins, pairs.shape[1]), dtype=scores.dtype, device=scores.device)
        packed2.index_add_(0, index, pairs)
    second_full = torch.empty((C, C, n_bins), dtype=scores.dtype, device=scores.device)
    column = 0
    for i in range(C):
        for j in range(i, C):
            second_full[i, j] = second_full[j, i] = packed2[:, column]
            column += 1
    return packed1.T.contiguous(), second_full


if HAVE_NUMBA:

    @numba.njit(parallel=True, cache=True, fastmath={"contract", "reassoc"})
    def _harmonics(cos1, sin1, out):  # pragma: no cover - compiled
        K, n = out.shape
        blocks = (n + _BLOCK - 1) // _BLOCK
        for block in numba.prange(blocks):
            lo = block * _BLOCK
            hi = min(n, lo + _BLOCK)
            for i in range(lo, hi):
                out[0, i] = 1.0
                out[1, i] = cos1[i]
                out[2, i] = sin1[i]
            for k in range(3, K, 2):
                for i in range(lo, hi):
                    out[k, i] = out[k - 2, i] * cos1[i] - out[k - 1, i] * sin1[i]
                    out[k + 1, i] = out[k - 2, i] * sin1[i] + out[k - 1, i] * cos1[i]

    @numba.njit(parallel=True, cache=True)
    def _bin_sums(index, scores, n_bins, threads):  # pragma: no cover - compiled
        C, n = scores.shape
        Q = C * (C + 1) // 2
        first = np.zeros((threads, n_bins, C))
        second = np.zeros((threads, n_bins, Q))
        for t in numba.prange(threads):
            lo = n * t // threads
            hi = n * (t + 1) // threads
            for i in range(lo, hi):
                m = index[i]
                q = 0
                for a in range(C):
                    u = scores[a, i]
                    first[t, m, a] += u
                    for c in range(a, C):
                        second[t, m, q] += u * scores[c, i]
                        q += 1
        # a fixed order of summation: the result may depend on the number of threads, never on their timing
        for t in range(1, threads):
            first[0] += first[t]
            second[0] += second[t]
        return first[0], second[0]
