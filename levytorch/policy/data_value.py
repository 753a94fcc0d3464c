"""V that was estimated from pairs: a ValueFunction that knows how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from levytorch.errors import InputError
from levytorch.policy.value import (
    LineValue,
    PlaneValue,
    ValueFunction,
    is_line_value,
    is_plane,
    is_series,
    load_fields,
    save_fields,
)

_MARK, _LINE_MARK, _PLANE_MARK = (
    "levytorch.data_value.1",
    "levytorch.line_data_value.1",
    "levytorch.plane_data_value.1",
)


NO_BLOCKS = (
    "V.std must have resampled blocks of data, and a model a covariance, found none; estimate V with n_bootstrap=200."
)


@dataclass(frozen=True, repr=False)
class Estimated:
    """What an estimate from pairs says of itself; `name` is what it is called in tables, `note` what must be known to
    read it.

    strength: of the ridge that blocks left out have asked for; share: of the correction that is kept, of its level and
    of the rest (method "corrected"); n_pairs, n_blocks: the data behind it.
    """

    method: str = "lstd"
    name: str = "LSTD"
    note: str = ""
    strength: float = 0.0
    share: tuple[float, float] | None = None
    n_pairs: int = 0
    n_blocks: int = 0

    def describe(self) -> str:
        """What this V is made of, in a few sentences."""
        beta = self.beta  # type: ignore[attr-defined]  # of the V it stands beside
        lines = [f"{self.name}: V from {self.n_pairs:,} pairs in {self.n_blocks} blocks, beta = {beta:g}."]
        if self.share is not None:
            lines.append("Of the correction {:.0%} of the level and {:.0%} of the rest are kept.".format(*self.share))
        if self.method in ("lstd", "phibe", "hybrid", "corrected"):
            lines.append(f"Ridge {self.strength:.2g}, the one that predicts blocks left out best.")
        return " ".join(lines + ([self.note] if self.note else []))


@dataclass(frozen=True, repr=False)
class DataValue(Estimated, ValueFunction):
    """V(x) from data by `method`."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, {self.n_pairs} pairs, n_modes={self.n_modes}, "
            f"period={self.period:g}, beta={self.beta:g})"
        )

    def std(self, x: Tensor | np.ndarray | float, order: int = 0) -> Tensor:
        """Standard deviation of V (or of a derivative) at x, from resampled blocks of the data."""
        if self.covariance_factor is None:
            raise InputError(NO_BLOCKS)
        return super().std(x, order)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only); an earlier one is replaced once the new one is complete."""
        return save_fields(self, _MARK, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DataValue:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        return load_fields(cls, _MARK, path, _is_sound)


@dataclass(frozen=True, repr=False)
class LineDataValue(Estimated, LineValue):
    """The same on a line, as values on the nodes of a window; constant beyond it."""

    def __repr__(self) -> str:
        low, high = self.window
        return (
            f"{type(self).__name__}({self.name}, {self.n_pairs} pairs, window=({low:g}, {high:g}), beta={self.beta:g})"
        )

    def std(self, x: Tensor | np.ndarray | float) -> Tensor:
        """Standard deviation of V at x, from resampled blocks of the data."""
        if self.covariance_factor is None:
            raise InputError(NO_BLOCKS)
        return super().std(x)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As for a DataValue."""
        return save_fields(self, _LINE_MARK, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LineDataValue:
        """As for a DataValue."""
        return load_fields(cls, _LINE_MARK, path, lambda content: is_line_value(content) and _is_estimate(content))


@dataclass(frozen=True, repr=False)
class PlaneDataValue(Estimated, PlaneValue):
    """The same of a state on a torus of two coordinates."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.n_pairs} pairs, n_modes={self.n_modes}, beta={self.beta:g})"

    def std(self, x: Any) -> Tensor:
        """Standard deviation of V at x, from resampled blocks of the data."""
        if self.covariance_factor is None:
            raise InputError(NO_BLOCKS)
        return super().std(x)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As for a DataValue."""
        return save_fields(self, _PLANE_MARK, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PlaneDataValue:
        """As for a DataValue."""
        return load_fields(cls, _PLANE_MARK, path, lambda content: is_plane(content) and _is_estimate(content))


def _is_sound(content: Mapping[str, Any]) -> bool:
    return is_series(content) and _is_estimate(content)


def _is_estimate(content: Mapping[str, Any]) -> bool:
    share = content["share"]
    return (
        all(isinstance(content[name], str) for name in ("method", "name", "note"))
        and all(type(content[name]) is int for name in ("n_pairs", "n_blocks"))
        and isinstance(content["strength"], float)
        and (share is None or (isinstance(share, tuple) and [type(v) for v in share] == [float, float]))
    )
