"""Which evaluation computes log p: `table`, `contour`, `windowed`, or the choice between the first two.

All take A = D_o dt, B = D_f dt, y = |displacement - b dt| and return rows log p, d/dy, d/dA, d/dB[, d/dalpha].
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import contour, threads
from levytorch.law.arguments import check_method
from levytorch.law.backend import kernels
from levytorch.law.table import Table, table
from levytorch.law.table_grid import N_S

WORTH_A_TABLE = 20_000  # samples of one alpha; building a few columns of a table costs about as much
_seen: Counter[tuple[float, int]] = Counter()


def resolve(method: str, alpha: Tensor, n: int, dim: int, with_alpha: bool) -> str:
    """The method that `auto` stands for, and the refusal of what does not go together."""
    if method == "auto":
        if alpha.numel() > 1 or with_alpha:
            return "contour"
        if alpha.numel() == 0:
            return "contour"
        key = (float(alpha), dim)
        _seen[key] += n
        return "table" if _seen[key] >= WORTH_A_TABLE else "contour"
    check_method(method)
    if method == "table" and alpha.numel() > 1:
        raise InputError(
            f"method 'table' needs one alpha shared by all samples, but got {alpha.numel()} of them; "
            "use method='contour' or 'auto'."
        )
    if method == "windowed" and dim != 1:
        raise InputError(f"method 'windowed' is one-dimensional, but dim is {dim}; use 'contour'.")
    if method == "windowed" and with_alpha:
        raise InputError(
            "method 'windowed' has no derivative in alpha, but one was asked for; use 'contour' or detach alpha."
        )
    return method


def evaluate(
    y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int, order: int, method: str, with_alpha: bool
) -> Tensor:
    """Rows log p and, with order = 1, d/dy, d/dA, d/dB and d/dalpha (zero where it was not asked for)."""
    n = max(t.numel() for t in (y, A, B, alpha))
    method = resolve(method, alpha, n, dim, with_alpha)
    if method == "contour" or (method == "table" and with_alpha):
        return contour.evaluate(y, A, B, alpha, dim=dim, order=order)
    if method == "table":
        return _table(table(float(alpha), dim), y, A, B, alpha, order)
    from levytorch.law import windowed

    y, A, B, alpha = torch.broadcast_tensors(y, A, B, alpha)
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(y, A, B, alpha, order=order)
    if not bool(converged.all()):
        warnings.warn(
            f"the windowed quadrature did not reach its tolerance for {int((~converged).sum())} of {n} samples; "
            "windowed.evaluate returns the flags, and method='contour' is accurate there.",
            LevytorchWarning,
            stacklevel=2,
        )
    if d_y is None or d_A is None or d_B is None:
        return log_p[None]
    return torch.stack([log_p, d_y, d_A, d_B, torch.zeros_like(log_p)])


def _table(tab: Table, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, order: int) -> Tensor:
    n = max(t.numel() for t in (y, A, B))
    if y.device.type != "cpu" or kernels() is None:
        from levytorch.law import table_torch

        return table_torch.evaluate(tab, y, A, B, order)
    from levytorch.law.table_kernels import table_many

    out = torch.zeros((5 if order else 1, n), dtype=torch.float64)
    missing = np.empty(n, dtype=np.int64)
    arrays = [t.detach().contiguous().numpy() for t in (y, A, B)]

    def run() -> int:
        return sum(
            threads.run(table_many, n, *arrays, tab.alpha, tab.dim, *tab.arrays, out.numpy(), missing, grain=2048)
        )

    if run():
        wanted = np.unique(missing[(missing >= 0) & (missing < N_S)])
        if len(wanted):
            tab.build(wanted.tolist())
            run()
        rest = torch.from_numpy(np.flatnonzero(missing >= 0))
        if len(rest):
            y, A, B = (t if t.numel() == 1 else t[rest] for t in (y, A, B))
            out[:, rest] = contour.evaluate(y, A, B, alpha, dim=tab.dim, order=order)
    return out
