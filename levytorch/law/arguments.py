"""Arguments of the law: conversion, broadcasting, the method, and the one place where they are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import common_shape, real_tensor, shown
from levytorch.errors import InputError, NumericalError

METHODS = ("auto", "table", "contour", "windowed")
WORTH_A_TABLE = 20_000  # samples in one call; building a few columns of a table costs about as many evaluations
MOST_COORDINATES = 64
Numeric = Any  # Tensor | ndarray | float, and nested sequences of them


class Step(NamedTuple):
    """The arguments of the density."""

    displacement: Tensor
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor
    dt: Tensor
    tempering: Tensor | None = None  # of the stable law: none

    @property
    def rate(self) -> tuple[Tensor, ...]:
        """The tempering, where there is one."""
        return () if self.tempering is None else (self.tempering,)

    def by_name(self) -> dict[str, Tensor]:
        """The arguments by their names."""
        return dict(zip(self._fields, (*self[:6], *self.rate)))

    def each(self, function: Callable[[Tensor], Tensor]) -> Step:
        """A function of every argument."""
        return Step(*map(function, (*self[:6], *self.rate)))


def is_zero(tempering: Numeric) -> bool:
    """Whether a tempering is the number zero: the stable law. A tensor is not, which may become another one."""
    if isinstance(tempering, (np.number, np.ndarray)):
        return tempering.ndim == 0 and bool(tempering == 0)
    return isinstance(tempering, (int, float)) and not isinstance(tempering, bool) and tempering == 0


def to_tensors(**values: Numeric) -> tuple[dict[str, Tensor], torch.dtype, torch.device]:
    """float64 tensors on the CPU, where the kernels are, and dtype and device of the answer: see `on_one_device`."""
    tensors, dtype, device = on_one_device(**values)
    return {name: t.cpu() for name, t in tensors.items()}, dtype, device


def on_one_device(**values: Numeric) -> tuple[dict[str, Tensor], torch.dtype, torch.device]:
    """float64 tensors on one device, with dtype and device of the answer: those of the inexact tensors given, else
    float64; those of any tensor that is not on the CPU.
    """
    dtype: torch.dtype | None = None
    device = torch.device("cpu")
    for value in values.values():
        if isinstance(value, Tensor):
            if value.is_floating_point():
                dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
            if value.device.type != "cpu":
                device = value.device
    tensors = {name: real_tensor(name, value).to(device) for name, value in values.items()}
    return tensors, dtype or torch.float64, device


def broadcast(**tensors: Tensor) -> torch.Size:
    """The common shape, or an error that lists the shapes."""
    try:
        return common_shape(*(t.shape for t in tensors.values()))
    except ValueError:
        raise broadcast_error(**tensors) from None


def broadcast_error(**tensors: Tensor) -> InputError:
    """The refusal that lists the shapes."""
    shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
    return InputError(
        f"the arguments must broadcast against each other, found shapes {shapes}; give each one number or one entry "
        "per sample."
    )


CONDITIONS = {
    "alpha": ("lie in (0, 1)", lambda t: (t > 0) & (t < 1), "it is half the stability index, so halve that"),
    "D_o": ("be finite and >= 0", lambda t: (t >= 0) & torch.isfinite(t), "pass Sigma^2 / 2"),
    "D_f": ("be finite and > 0", lambda t: (t > 0) & torch.isfinite(t), "pass |sigma|^(2 alpha)"),
    "dt": ("be finite and > 0", lambda t: (t > 0) & torch.isfinite(t), "pass the time between two observations"),
    "tempering": (
        "be finite and >= 0",
        lambda t: (t >= 0) & torch.isfinite(t),
        "it is a rate per unit of x, 0 if jumps are not truncated",
    ),
    "threshold": ("be finite and >= 0", lambda t: (t >= 0) & torch.isfinite(t), "pass a distance"),
    "mass": ("lie in (0, 1)", lambda t: (t > 0) & (t < 1), "pass a probability such as 0.98"),
}


def check_values(**tensors: Tensor) -> None:
    """Refuse the first value that breaks its condition, with its name, index and value."""
    for name, tensor in tensors.items():
        words, condition, remedy = CONDITIONS.get(name, ("be finite", torch.isfinite, "remove or correct it"))
        good = condition(tensor.detach())
        if not bool(good.all()):
            index = tuple((~good).nonzero()[0].tolist())
            where = f" at index {index if len(index) > 1 else index[0]}" if index else ""
            raise InputError(f"{name} must {words}, found {tensor[index].item()!r}{where}; {remedy}.")


def check_dim(dim: int) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= MOST_COORDINATES:
        raise InputError(
            f"dim must be an integer from 1 to {MOST_COORDINATES}, found {shown(dim)}; pass the number of coordinates "
            "of a step."
        )


def check_vector(name: str, t: Tensor, dim: int) -> None:
    if t.shape[-1:] != (dim,):
        raise InputError(
            f"{name} must have {dim} components in its last axis (dim = {dim}), found shape {tuple(t.shape)}; put the "
            "coordinates there."
        )


def check_method(method: str, dim: int = 1) -> None:
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, found {shown(method)}; choose one of these.")
    if method == "windowed" and dim != 1:
        raise InputError(f"dim must be 1 for method 'windowed', found {dim}; use 'auto'.")


def choose_method(method: str, alpha: Tensor, n: int, with_alpha: bool) -> str:
    """What `auto` stands for, and the refusal of what does not go together.

    A function of its arguments alone: n samples in this call, not what was computed before, so that the same call gives
    the same bits at any time.
    """
    if method == "auto":
        return "table" if alpha.numel() == 1 and not with_alpha and n >= WORTH_A_TABLE else "contour"
    if method == "table" and alpha.numel() > 1:
        raise InputError(
            f"alpha must be one number for method 'table', found {alpha.numel()} of them; use method='contour' or "
            "'auto'."
        )
    if method == "windowed" and with_alpha:
        raise InputError(
            "alpha must be held fixed for method 'windowed', found its derivative asked for; use 'contour' or detach "
            "alpha."
        )
    return method


def check_tempered_method(method: str) -> None:
    if method not in ("auto", "contour"):
        raise InputError(
            f"method must be 'auto' or 'contour' with tempering, found {shown(method)}; leave it out (there is no "
            "table of the tempered law)."
        )


def check_range(y: Tensor, A: Tensor, B: Tensor) -> None:
    """Refuse steps whose derivatives would leave float64."""
    with torch.no_grad():
        good = torch.isfinite(y) & torch.isfinite(A) & torch.isfinite(B) & (B > 0)
    if not bool(good.all()):
        raise out_of_range(int((~good).reshape(-1).nonzero()[0]))


def out_of_range(index: int) -> InputError:
    return InputError(
        f"displacement - b dt, D_o dt and D_f dt must be finite and D_f dt > 0, with derivatives that are finite too, "
        f"found that the step of sample {index} leaves the range of float64; rescale x or t."
    )


def third_derivative() -> NumericalError:
    """The refusal of a third derivative."""
    return NumericalError(
        "log_density must be differentiated at most twice, found a third derivative asked for; take differences of "
        "second ones."
    )
