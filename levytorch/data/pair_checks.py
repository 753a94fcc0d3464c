"""What makes arrays of pairs: tensors of finite numbers, positive steps, rows that exist."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import real_tensor, shown
from levytorch.errors import InputError

_BLOCK = 1 << 14  # pairs looked at together


def selection(which: Any, n: int) -> Tensor:
    """A mask or row numbers as a tensor."""
    try:
        index = torch.as_tensor(which)
        integral = not (index.is_floating_point() or index.is_complex() or index.is_sparse or index.is_meta)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        integral = False
    if not integral or (index.dtype != torch.bool and index.ndim != 1):
        raise InputError(
            f"pairs must be selected by a mask, a slice or integers, found {shown(which)}: pass one of them."
        )
    if index.dtype != torch.bool:
        index = index.to(torch.int64)
        if index.numel() and not (-n <= int(index.min()) and int(index.max()) < n):
            raise InputError(f"row numbers must lie below {n}, found {int(index.max())}: pass rows that exist.")
    return index


def integers(name: str, values: Any) -> Tensor:
    """Trajectory numbers as int64; 1.5 is not one."""
    numbers = floats(name, values)
    whole = numbers.to(torch.int64)
    if not bool((whole == numbers).all()):
        raise InputError(f"{name} must hold integers, found {numbers[whole != numbers][0].item()}: pass one per pair.")
    return whole


def floats(name: str, values: Any) -> Tensor:
    return real_tensor(name, values, "pass a tensor or an array of numbers").detach().cpu()


def refuse_nonfinite(name: str, values: Tensor) -> None:
    if math.isfinite(float(values.numpy().sum())):  # NaN and infinity survive a sum; one pass, nothing allocated
        return
    for first in range(0, len(values), _BLOCK):
        finite = torch.isfinite(values[first : first + _BLOCK])
        if bool(finite.all()):
            continue
        row = first + int(torch.nonzero(~finite.reshape(len(finite), -1).all(1))[0])
        raise InputError(f"{name} must be finite, found {values[row].tolist()} at pair {row}: remove that pair.")


def steps(dt: Any, n: int) -> tuple[Tensor, bool]:
    """dt as (n,), and whether it is one number."""
    if dt is None:
        raise InputError("dt must be given, found None: pass the time between two observations, or one per pair.")
    dt = floats("dt", dt)
    if dt.ndim > 1 or (dt.ndim == 1 and len(dt) not in (1, n)):
        raise InputError(f"dt must be a number or have shape ({n},), found {tuple(dt.shape)}: pass one per pair.")
    low, high = float(dt.min()), float(dt.max())
    if not (low > 0 and math.isfinite(high)):
        raise InputError(f"dt must be positive and finite, found {low:g} to {high:g}: check the order of the times.")
    if low == high:
        return torch.full((1,), low, dtype=torch.float64).expand(n), True
    return dt, False
