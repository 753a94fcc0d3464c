"""Products of one-dimensional Fourier functions in d = 2 or 3 coordinates, each with its own period and origin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis, check_basis
from levytorch.convert import choice
from levytorch.errors import InputError

TRUNCATIONS = ("total", "box")
MAX_SIZE = 4000  # functions per coefficient; beyond, a matrix of all parameters no longer fits into memory


def per_coordinate(name: str, given: Any, dim: int) -> tuple[float, ...]:
    """One number for all coordinates, or one each, as a tuple of floats."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * dim
    if len(values) != dim:
        raise InputError(f"{name} must be one number or {dim}, found {len(values)}; give one per coordinate.")
    return tuple(float(v) if isinstance(v, int) else v for v in values)


class TensorBasis:
    """phi_k(x) = prod_i phi_{k_i}(x_i); `n_basis` functions per coordinate, constant first.

    truncation "total" keeps products whose harmonic numbers add up to at most N = (n_basis - 1) / 2, "box" all of them.
    """

    def __init__(
        self,
        dim: int,
        n_basis: int = 5,
        period: float | Sequence[float] = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        truncation: str = "total",
    ) -> None:
        self.period, self.origin = per_coordinate("period", period, dim), per_coordinate("origin", origin, dim)
        for p, o in zip(self.period, self.origin):
            check_basis(n_basis, p, o)
        choice("truncation", truncation, TRUNCATIONS)
        self.dim, self.n_basis, self.truncation = dim, n_basis, truncation
        self.lines = [FourierBasis(n_basis, p, o) for p, o in zip(self.period, self.origin)]
        if n_basis**dim > 50 * MAX_SIZE:
            raise InputError(
                f"n_basis must be small because it counts per coordinate, found {n_basis} in {dim} dimensions; "
                "use 5 or 7."
            )
        highest = (n_basis - 1) // 2
        harmonic = [(k + 1) // 2 for k in range(n_basis)]
        kept = [
            index
            for index in itertools.product(range(n_basis), repeat=dim)
            if truncation == "box" or sum(harmonic[k] for k in index) <= highest
        ]
        kept.sort(key=lambda index: sum(harmonic[k] for k in index))  # stable: the constant is first
        if len(kept) > MAX_SIZE:
            raise InputError(
                f"at most {MAX_SIZE} functions per coefficient are possible, found {len(kept)}; n_basis counts per "
                "coordinate: use fewer, or truncation total."
            )
        self.index = torch.tensor(kept, dtype=torch.int64).T.contiguous()  # (d, K)
        self.harmonics = torch.tensor([[harmonic[k] for k in index] for index in kept], dtype=torch.float64)  # (K, d)

    @property
    def size(self) -> int:
        """Number of functions K."""
        return int(self.index.shape[1])

    def rows(self, x: Tensor) -> Tensor:
        """Functions at x: (n, d) -> (K, n)."""
        if self.size == 1:
            return torch.ones((1, x.shape[0]), dtype=x.dtype, device=x.device)
        out: Tensor | None = None
        for i, line in enumerate(self.lines):
            factor = line.rows(x[:, i].contiguous())[self.index[i]]
            out = factor if out is None else out.mul_(factor)
        assert out is not None
        return out

    def evaluate(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, K)."""
        return self.rows(x).T

    def harmonic_numbers(self) -> Tensor:
        """Euclidean length of each function's harmonics, (K,): what a roughness penalty weighs."""
        return self.harmonics.norm(dim=1)
