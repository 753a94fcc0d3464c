"""Arguments of the law: conversion, broadcasting and the one place where they are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.errors import InputError

Numeric = Any  # Tensor | ndarray | float, and nested sequences of them


def to_tensors(**values: Numeric) -> tuple[list[Tensor], torch.dtype, torch.device]:
    """Tensors of one device, and the dtype of the answer: that of the inexact tensors given, else float64."""
    dtype: torch.dtype | None = None
    device = torch.device("cpu")
    for value in values.values():
        if isinstance(value, Tensor):
            if value.is_floating_point():
                dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
            if value.device.type != "cpu":
                device = value.device
    tensors = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensor = value
        else:
            try:
                tensor = torch.as_tensor(np.asarray(value, dtype=np.float64))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{name} must be a number, an array or a tensor, but is {type(value).__name__}: {error}."
                ) from None
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise InputError(f"{name} must be real, but has dtype {tensor.dtype}; pass a floating-point value.")
        if tensor.dtype != torch.float64 or tensor.device != device:
            tensor = tensor.to(device=device, dtype=torch.float64)
        tensors.append(tensor)
    return tensors, dtype or torch.float64, device


def broadcast(**tensors: Tensor) -> torch.Size:
    """The common shape, or an error that lists the shapes."""
    try:
        return torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise InputError(f"the arguments must broadcast against each other, but have shapes {shapes}.") from None


CONDITIONS = {
    "alpha": ("lie in (0, 1)", lambda t: (t > 0) & (t < 1)),
    "D_o": ("be finite and >= 0", lambda t: (t >= 0) & torch.isfinite(t)),
    "D_f": ("be finite and > 0", lambda t: (t > 0) & torch.isfinite(t)),
    "dt": ("be finite and > 0", lambda t: (t > 0) & torch.isfinite(t)),
    "threshold": ("be >= 0", lambda t: t >= 0),
    "mass": ("lie in (0, 1)", lambda t: (t > 0) & (t < 1)),
}


def check(**tensors: Tensor) -> None:
    """Refuse the first value that breaks its condition, with its name, index and value."""
    for name, tensor in tensors.items():
        words, condition = CONDITIONS.get(name, ("be finite", torch.isfinite))
        good = condition(tensor.detach())
        if not bool(good.all()):
            index = tuple((~good).nonzero()[0].tolist())
            where = f" at index {index if len(index) > 1 else index[0]}" if index else ""
            raise InputError(f"{name} must {words}, but is {tensor[index].item()!r}{where}.")


def check_dim(dim: int) -> None:
    if dim not in (1, 2, 3):
        raise InputError(f"dim must be 1, 2 or 3, but is {dim!r}; the law is implemented for these dimensions.")
