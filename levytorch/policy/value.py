"""V, called, differentiated, with its error, on any space."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from levytorch import files
from levytorch.convert import path_of, real_tensor
from levytorch.errors import InputError
from levytorch.plots import plotted
from levytorch.spaces import Circle, Interval, StateSpace, space_from
from levytorch.spaces.basis import FourierBasis
from levytorch.spaces.line_operator import distances
from levytorch.untrusted import load_tensors

NO_ERRORS = (
    "V.std must have the covariance of recovered coefficients, found coefficients without one; solve from a Recovery "
    "whose engine gives standard errors (engine='fisher')."
)
EXTERIORS = ("constant", "absorb", "given")
States = Tensor | np.ndarray | float


@dataclass(frozen=True, repr=False)
class ValueFunction:
    """V with beta V = r + b . grad V + D_o Lap V - D_f (-Lap)^alpha V.

    `solve_value` and `value_from_data` return it. Call it at any x (tensor, array or number; [..., d] in d > 1
    dimensions); a float64 tensor comes back.

    Args:
        coefficients: on a circle those of a Fourier series, (n,); on an interval values at its nodes, (n + 1,); on a
            torus a real Fourier transform divided by n^2.
        space: the circle, interval or product on which V is defined.
        beta: the discount rate.
        window: the part of a circle on which the equation was solved; the interval itself on a line.
        exterior: what lies beyond the ends of an interval, see `solve_value`.
        outside: V beyond the ends, if it was given as a function.
        residual: max |(beta - L) V - r| between the points, relative to max |r|.
        condition: condition number of the linear system.
        change: how much V moved when the resolution was last refined; None if n_modes was given.
        iterations: of GMRES, in several dimensions.
        converged: whether V stopped changing before the finest resolution.
        covariance_factor: S with cov V = S S^T, behind `std`; None without error bars.

    Example:
        >>> V = ValueFunction(torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64), Circle(), beta=0.1)
        >>> float(V(0.0))
        1.5
    """

    coefficients: Tensor
    space: StateSpace
    beta: float
    window: tuple[float, float] | None = None
    exterior: str = "constant"
    outside: Tensor | None = None
    residual: float = float("nan")
    condition: float = float("nan")
    change: float | None = None
    iterations: int = 0
    converged: bool = True
    # V's covariance is Phi S S^T Phi^T: S has the shape of the coefficients and one more axis, (..., P)
    covariance_factor: Tensor | None = None

    _format: ClassVar[str] = "levytorch.value.2"  # what a file says it holds
    _no_errors: ClassVar[str] = NO_ERRORS

    def __post_init__(self) -> None:
        if isinstance(self.space, Interval):
            object.__setattr__(self, "window", self.space.ends)

    def __repr__(self) -> str:
        period = ", ".join(f"{length:g}" for length in np.atleast_1d(self.period)) if self.space.repeats else ""
        where = f"period={period}" if self.window is None else "window=({:g}, {:g})".format(*self.window)
        return (
            f"{type(self).__name__}(n_modes={self.n_modes}, {where}, beta={self.beta:g}, "
            f"residual={self.residual:.2g}, converged={self.converged})"
        )

    @property
    def period(self) -> Any:
        """That of the space: a number, None on a line, one per coordinate in the plane."""
        return self.space.period

    @property
    def origin(self) -> Any:
        """Where the space begins."""
        return self.space.origin

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.space.dim

    @property
    def functions(self) -> Any:
        """What V is a sum of."""
        return self.functions_of(self.coefficients)

    def functions_of(self, coefficients: Tensor) -> Any:
        """What V, or its errors, with these coefficients are sums of."""
        return self.space.functions(coefficients)

    @property
    def n_modes(self) -> int:
        """Fourier functions (per coordinate in the plane), or intervals between nodes on a line."""
        return int(self.functions.n)

    @property
    def basis(self) -> FourierBasis:
        """The Fourier functions of V on a circle."""
        assert isinstance(self.space, Circle)
        return self.space.basis(self.n_modes)

    @property
    def values(self) -> Tensor:
        """V at the nodes `x` of a line."""
        return self.coefficients

    @property
    def x(self) -> Tensor:
        """(n + 1,): the nodes of a line."""
        assert isinstance(self.space, Interval)
        return self.space.nodes(self.n_modes)

    def __call__(self, x: States) -> Tensor:
        return self.derivative(x, order=0)

    def derivative(self, x: States, order: Any = 1) -> Tensor:
        """d^order V / dx^order at x; in the plane `order` has a number per coordinate."""
        at = real_tensor("x", x)
        found = self._inside(at, self.functions.at(at, self.coefficients[..., None], order)[..., 0])
        return found if self.outside is None or order != 0 else found + self.functions.beyond(at, self.outside)

    def gradient(self, x: States) -> Tensor:
        """grad V at x: of x's shape."""
        at = real_tensor("x", x)
        return self._inside(at, self.functions.gradient(at, self.coefficients[..., None])[..., 0, :].reshape(at.shape))

    def std(self, x: States, order: Any = 0) -> Tensor:
        """Standard deviation of V (or of a derivative) at x, from the covariance of the recovered coefficients (delta
        method).
        """
        return self.deviations(real_tensor("x", x), order).norm(dim=-1)

    def deviations(self, x: Tensor, order: Any = 0) -> Tensor:
        """S(x) [..., P] with cov(V(x), V(y)) = S(x) S(y)^T."""
        factor = self.covariance_factor
        if factor is None:
            raise InputError(self._no_errors)
        found = self.functions_of(factor).at(x, factor, order)
        return self._inside(x, found)

    def _inside(self, x: Tensor, values: Tensor) -> Tensor:
        """Zero beyond the ends of an interval, unless V is constant there; values: one per state, or several."""
        if self.exterior == "constant":
            return values
        beyond = self.space.beyond(x)
        return torch.where(beyond.reshape(beyond.shape + (1,) * (values.ndim - beyond.ndim)), 0.0, values)

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): V with its 95 % band; options of `levytorch.figures.values.value`: reference, axes, units."""
        return plotted("value", self, **options)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only); an earlier one is replaced once the new one is complete."""
        target = path_of(path)
        content = {f.name: getattr(self, f.name) for f in fields(self)} | {"space": self.space.config()}
        files.save_tensors({"format": self._format, **content}, target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        target = path_of(path)
        if not target.is_file():
            raise InputError(f"{target} must be a saved value function, found no such file; check the path.")
        try:
            content: Any = load_tensors(target)
        except Exception:  # pickle, zip, torch and I/O errors of foreign files have no common base
            content = None
        found = cls._from(content) if isinstance(content, dict) else None
        if found is None:
            raise InputError(
                f"{target} must be a value function saved by levytorch, found something else; give a file of "
                f"{cls.__name__}.save."
            )
        return found

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Self | None:
        """V of the content of a file; None if it is something else."""
        known = _of_version_1(content)
        if known.pop("format", None) != cls._format or set(known) != {f.name for f in fields(cls)}:
            return None
        space = known["space"] = space_from(known["space"])
        if space is None or not isinstance(known["coefficients"], Tensor) or not cls._is_sound(known):
            return None
        return cls(**known)

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        """Whether the fields of a file are what they should be."""
        space, coefficients, outside = content["space"], content["coefficients"], content["outside"]
        window = content["window"]
        return (
            coefficients.ndim > 0
            and space.functions(coefficients).is_sound(coefficients, content["covariance_factor"])
            and isinstance(content["beta"], float)
            and content["exterior"] in (EXTERIORS if isinstance(space, Interval) else EXTERIORS[: 2 - space.repeats])
            and (outside is None or (isinstance(outside, Tensor) and outside.shape == (2, len(distances()))))
            and (window is None or (isinstance(window, tuple) and [type(v) for v in window] == [float, float]))
            and (isinstance(space, Interval) or outside is None)
        )


LineValue = PlaneValue = ValueFunction  # names of earlier versions


def _of_version_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file with the fields of this version; earlier ones had a class for every space."""
    known = dict(content)
    kind, _, version = str(known.get("format")).removeprefix("levytorch.").rpartition(".")
    if version != "1":
        return known
    where, _, estimated = kind.replace("data_value", "value+").rpartition("value")
    period, origin = known.pop("period", None), known.pop("origin", None)
    if where == "line_":
        known["coefficients"], window = known.pop("values", None), known.get("window")
        ends = window if isinstance(window, tuple) and len(window) == 2 else (None, None)
        known["space"] = {"kind": "interval", "low": ends[0], "high": ends[1]}
    elif where == "plane_":
        pairs = [period, origin]
        both = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
        circles = [{"kind": "circle", "period": p, "origin": o} for p, o in zip(*pairs)] if both else []
        known["space"] = {"kind": "product", "spaces": circles}
    else:
        known["space"] = {"kind": "circle", "period": period, "origin": origin}
    known["format"] = "levytorch.data_value.2" if estimated else "levytorch.value.2"
    for name in ("window", "outside"):
        known.setdefault(name, None)
    for name in ("residual", "condition"):
        known.setdefault(name, float("nan"))
    return {"exterior": "constant", "iterations": 0} | known
