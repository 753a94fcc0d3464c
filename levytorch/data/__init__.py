"""From anyone's trajectories to batches: arrays and files -> Trajectories -> Transitions -> Pools -> batches."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levytorch.data.batches import Batch, FullBatch, Pools, make_pools
from levytorch.data.sources import FromFile, SourceData
from levytorch.data.thresholds import ct_of_dt
from levytorch.data.trajectories import Trajectories, transition_blocks
from levytorch.data.transitions import Transitions

# what needs Lightning or numba is imported when it is first used
_LAZY = {"LevyDataModule": "module"}

__all__ = [
    "Batch",
    "FromFile",
    "FullBatch",
    "LevyDataModule",
    "Pools",
    "SourceData",
    "Trajectories",
    "Transitions",
    "ct_of_dt",
    "make_pools",
    "transition_blocks",
]

if TYPE_CHECKING:
    from levytorch.data.module import LevyDataModule


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'levytorch.data' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"levytorch.data.{_LAZY[name]}"), name)
