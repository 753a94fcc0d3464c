"""What policy evaluation needs to know of a Dynamics or a Recovery, checked in one place."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.errors import InputError


class PointCoefficients(NamedTuple):
    """b, D_o, D_f at the points (m,); alpha a 0-d tensor when constant, otherwise (m,)."""

    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor


def cell(source: Any) -> tuple[float, float]:
    """(period, origin) of a Dynamics or Recovery; refuses what cannot be solved."""
    missing = [name for name in ("b", "D_o", "D_f", "alpha") if not hasattr(source, name)]
    if missing:
        raise InputError(
            f"A Dynamics or a Recovery was expected, but a {type(source).__name__} without {', '.join(missing)} was "
            "given; "
            "build one with Dynamics(...) or recover(...)."
        )
    dim = getattr(source, "dim", 1)
    if dim != 1:
        raise InputError(
            f"A dynamics of dim = 1 was expected here, but it has dim = {dim}; "
            "solve_value takes one and two dimensions."
        )
    period = getattr(source, "period", 2 * math.pi)
    if period is None or not math.isfinite(float(period)) or float(period) <= 0:
        raise InputError(
            f"A positive period was expected, but the dynamics has period = {period!r}; set period= in it."
        )
    return float(period), float(getattr(source, "origin", 0.0))


def coefficients_at(source: Any, x: Tensor) -> PointCoefficients:
    """Evaluate b, D_o, D_f, alpha at x (m,) without gradient."""
    with torch.no_grad():
        values = {name: _function(getattr(source, name), x, name) for name in ("b", "D_o", "D_f")}
        if callable(source.alpha):
            alpha = _function(getattr(source, "alpha_at", source.alpha), x, "alpha")
        else:
            alpha = torch.as_tensor(float(source.alpha), dtype=torch.float64)
    for name in ("D_o", "D_f"):
        low = float(values[name].min())
        if low < 0:
            raise InputError(
                f"{name} must not be negative, but its smallest value on the cell is {low:.3g}; check the coefficients."
            )
    if not bool(((alpha > 0) & (alpha <= 1)).all()):
        raise InputError(f"alpha must lie in (0, 1], but {float(alpha.min()):.3g} was found; check the dynamics.")
    return PointCoefficients(values["b"], values["D_o"], values["D_f"], alpha)


def _function(f: Any, x: Tensor, name: str) -> Tensor:
    value = torch.as_tensor(f(x) if callable(f) else f, dtype=torch.float64).detach()
    try:
        value = value.expand(x.shape)
    except RuntimeError:
        raise InputError(
            f"{name}(x) must have the shape of x, {tuple(x.shape)}, but has {tuple(value.shape)}; return one value "
            "per point."
        ) from None
    if not bool(torch.isfinite(value).all()):
        bad = float(x[~torch.isfinite(value)][0])
        raise InputError(f"{name}(x) must be finite, but is not at x = {bad:.6g}; check the coefficients.")
    return value
