"""Converts the data of a caller into what a fit takes: transitions or a lattice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from levytorch.convert import shown
from levytorch.data.frames import is_frame
from levytorch.data.lattice import Lattice
from levytorch.data.trajectories import FRAME_OPTIONS, Trajectories
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

ARRAY_OPTIONS = ("dt", "times", "reward", "action", "ids", "max_dt", "time_unit")


def pairs_of_data(data: Any, options: dict[str, Any]) -> tuple[Transitions | Lattice, dict[str, Any]]:
    """The pairs of data, and the options without those that say how to read it.

    data: Transitions or a Lattice, as they are; Trajectories; a frame, with options of `Trajectories.from_frame`; or an
    array, a tensor or a list, with options of `Trajectories.from_arrays`.
    """
    names = set(FRAME_OPTIONS) | set(ARRAY_OPTIONS)
    if isinstance(data, Transitions | Lattice | Trajectories):
        found = [name for name in options if name in names]
        if found:
            raise InputError(
                f"{found[0]} must be left out for {type(data).__name__}, which have their columns already, found "
                f"{shown(options[found[0]])}; remove it."
            )
        return data.transitions() if isinstance(data, Trajectories) else data, options
    if is_frame(data) and not (isinstance(data, np.ndarray) or getattr(data, "ndim", 2) == 1):
        own, rest = _parted(options, FRAME_OPTIONS)
        return Trajectories.from_frame(data, **own).transitions(), rest
    if isinstance(data, np.ndarray | Tensor | list | tuple) or getattr(data, "ndim", 0) == 1:
        own, rest = _parted(options, ARRAY_OPTIONS)
        return Trajectories.from_arrays(data, **own).transitions(), rest
    raise InputError(
        "data must be Transitions, Trajectories, a Lattice, a frame or an array, found "
        f"{shown(data)}; read a file with Trajectories.from_file."
    )


def _parted(options: Mapping[str, Any], names: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in names}
    return own, {name: value for name, value in options.items() if name not in names}
