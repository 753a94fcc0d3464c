"""Inverses of information matrices whose entries span many orders of magnitude."""

from __future__ import annotations

import torch
from torch import Tensor


def symmetric_inverse(matrix: Tensor) -> Tensor:
    """Inverse after equilibration; directions without information get a huge, not an infinite, variance."""
    scale = matrix.diagonal().clamp(min=1e-200).rsqrt()  # 1e200 times 1e13 from below is still a number
    values, vectors = torch.linalg.eigh(matrix * scale.outer(scale))
    values = values.clamp(min=1e-13 * float(values.max()))
    inverse = (vectors / values) @ vectors.T
    return inverse * scale.outer(scale)
