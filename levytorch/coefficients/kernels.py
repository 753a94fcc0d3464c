"""Compiled inner loops of the Fourier heads; plain torch when numba is not there or the tensors are elsewhere.

Neither loop is differentiated through: gradients in x are not needed, and the coefficients enter linearly afterwards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from levytorch.law.threads import run

try:
    import numba

    HAVE_NUMBA = True
except ImportError:  # pragma: no cover - exercised on machines without a compiler stack
    HAVE_NUMBA = False

_BLOCK = 1024  # samples whose harmonics are built in one go, within the first-level cache
_GRAIN = 8192  # samples below which a second thread does not pay


def harmonics(cos1: Tensor, sin1: Tensor, n_basis: int) -> Tensor:
    """(K, n) rows 1, cos, sin, cos 2, sin 2, ... from cos and sin of the phase by the angle-addition recurrence."""
    n = cos1.shape[0]
    if HAVE_NUMBA and cos1.device.type == "cpu" and cos1.dtype == torch.float64 and n >= 512:
        out = torch.empty((n_basis, n), dtype=torch.float64)
        cos, sin = cos1.detach().contiguous().numpy(), sin1.detach().contiguous().numpy()
        run(_harmonics, n, cos, sin, out.numpy(), grain=_GRAIN)
        return out
    rows = [torch.ones_like(cos1), cos1, sin1]
    z = power = torch.complex(cos1, sin1)
    for _ in range(3, n_basis, 2):
        power = power * z
        rows += [power.real, power.imag]
    return torch.stack(rows[:n_basis])


def bin_sums(index: Tensor, scores: Tensor, n_bins: int) -> tuple[Tensor, Tensor]:
    """Sums of scores and of their products per bin.

    index: (n,) bin of each sample; scores: (C, n). Returns first (C, M) and second (C, C, M) moments, not divided by n.
    """
    C, n = scores.shape
    if HAVE_NUMBA and scores.device.type == "cpu" and scores.dtype == torch.float64:
        parts = run(_bin_sums, n, index.numpy(), scores.contiguous().numpy(), n_bins, grain=_GRAIN)
        # blocks are added in their order: the sum may depend on the number of threads, never on their timing
        packed = torch.from_numpy(sum(parts[1:], start=parts[0]))
    else:
        products = [scores[i] * scores[j] for i in range(C) for j in range(i, C)]
        packed = torch.zeros((n_bins, C + len(products)), dtype=scores.dtype, device=scores.device)
        packed.index_add_(0, index, torch.stack([*scores, *products], dim=1))
    second = torch.empty((C, C, n_bins), dtype=scores.dtype, device=scores.device)
    column = C
    for i in range(C):
        for j in range(i, C):
            second[i, j] = second[j, i] = packed[:, column]
            column += 1
    return packed[:, :C].T.contiguous(), second


if HAVE_NUMBA:

    @numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
    def _harmonics(start, stop, cos1, sin1, out):  # pragma: no cover - compiled
        K = out.shape[0]
        for lo in range(start, stop, _BLOCK):
            hi = min(stop, lo + _BLOCK)
            for i in range(lo, hi):
                out[0, i] = 1.0
                out[1, i] = cos1[i]
                out[2, i] = sin1[i]
            for k in range(3, K, 2):
                for i in range(lo, hi):
                    out[k, i] = out[k - 2, i] * cos1[i] - out[k - 1, i] * sin1[i]
                    out[k + 1, i] = out[k - 2, i] * sin1[i] + out[k - 1, i] * cos1[i]

    @numba.njit(nogil=True, cache=True)
    def _bin_sums(start, stop, index, scores, n_bins):  # pragma: no cover - compiled
        C = scores.shape[0]
        out = np.zeros((n_bins, C + C * (C + 1) // 2))
        for i in range(start, stop):
            m = index[i]
            q = C
            for a in range(C):
                u = scores[a, i]
                out[m, a] += u
                for c in range(a, C):
                    out[m, q] += u * scores[c, i]
                    q += 1
        return out
