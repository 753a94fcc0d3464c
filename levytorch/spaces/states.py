"""States and displacements of one coordinate are (n,), of several (n, d): what would otherwise be asked of each."""

from __future__ import annotations

from torch import Tensor


def dim_of(x: Tensor) -> int:
    """The number of coordinates of (n,) or (n, d)."""
    return 1 if x.dim() == 1 else x.shape[1]


def columns_of(x: Tensor) -> Tensor:
    """(d, n): the coordinates of (n,) or (n, d)."""
    return (x if x.dim() > 1 else x.unsqueeze(-1)).T.contiguous()


def lengths_of(y: Tensor) -> Tensor:
    """(n,): |y| of displacements (n,) or (n, d)."""
    return y.abs() if y.dim() == 1 else y.norm(dim=-1)


def squares_of(y: Tensor) -> Tensor:
    """(n,): |y|^2 of displacements (n,) or (n, d)."""
    return y * y if y.dim() == 1 else (y * y).sum(-1)


def beside(t: Tensor, y: Tensor) -> Tensor:
    """One number per displacement, (n,), as what broadcasts against y, (n,) or (n, d)."""
    return t if t.dim() == 0 or y.dim() == 1 else t.unsqueeze(-1)
