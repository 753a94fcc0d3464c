"""Many small systems on the CPU: assembly and LAPACK in cache-sized pieces, one thread per core.

For matrices of 64 modes NumPy's LAPACK takes two thirds of the time of torch's and releases the GIL; with the matrix
product below assembly costs a tenth of the factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from levytorch.errors import NumericalError

_PIECE_NUMBERS = 1 << 17  # numbers per piece: 1 MB of matrices, about the size of a second-level cache
_SMALL = 160  # from about here LAPACK itself uses several threads


def solve_many(parts: Tensor, coefficients: Tensor, r: Tensor) -> Tensor:
    """Solve A_i c_i = r_i with A_i[j] = sum_p coefficients[i, j, p] parts[j, p], for every i.

    parts: (m, p, m); coefficients: (batch, m, p); r: (batch, m). Returns (batch, m). CPU tensors, no gradient.
    """
    fixed, weights = parts.detach().numpy(), coefficients.detach().numpy()

    def assemble(rows: slice) -> np.ndarray:
        # one product per row j, (systems x p) (p x m): several times faster than multiply-adds over whole matrices
        return np.matmul(np.ascontiguousarray(weights[rows].transpose(1, 0, 2)), fixed).transpose(1, 0, 2)

    return _in_pieces(assemble, r)


def solve_given(A: Tensor, r: Tensor) -> Tensor:
    """Solve A_i c_i = r_i for matrices (batch, m, m) that exist already."""
    matrices = A.detach().numpy()
    return _in_pieces(lambda rows: matrices[rows], r)


def _in_pieces(assemble: Callable[[slice], np.ndarray], r: Tensor) -> Tensor:
    rhs = r.detach().numpy()
    batch, m = rhs.shape
    out = np.empty((batch, m))
    piece = max(1, _PIECE_NUMBERS // (m * m))

    def job(start: int) -> None:
        rows = slice(start, start + piece)
        out[rows] = np.linalg.solve(assemble(rows), rhs[rows, :, None])[..., 0]

    starts = range(0, batch, piece)
    try:
        if m > _SMALL or torch.get_num_threads() == 1 or len(starts) == 1:
            for start in starts:
                job(start)
        else:
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                list(pool.map(job, starts))
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "A system of the batch is singular (condition number infinite); check that D_o and D_f are positive."
        ) from error
    return torch.from_numpy(out)
