"""Trajectories of several files, or of several calls, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import Array
from levytorch.data.arrays import label, labels_of
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.trajectories import Trajectories


def joined_fields(parts: Sequence[Trajectories], names: Sequence[str]) -> dict[str, Any]:
    """The arguments of one Trajectories with the trajectories of all parts, which are called by these names.

    A trajectory keeps its own id after the name of its part, and no trajectory goes on from one part to the next.
    """
    dims = sorted({part.dim for part in parts})
    if len(dims) > 1:
        raise InputError(
            f"all files must have the same columns of x, found {dims} of them; name them with value=[...]."
        )
    ids: list[str] = []
    for part, name in zip(parts, names):
        own = range(len(part)) if part.ids is None else part.ids
        ids += [name] if len(part) == 1 and part.ids is None else [f"{name}/{one}" for one in own]
    steps = {part.dt for part in parts}
    even = len(steps) == 1 and None not in steps
    gaps = {part.max_dt for part in parts}
    if len(gaps) > 1:
        raise InputError(f"all files must have one max_dt, found {sorted(map(str, gaps))}; pass max_dt.")
    dropped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    action, actions = _actions(parts, names)
    lengths = np.concatenate([part.lengths for part in parts])
    return {
        "x": np.concatenate([part.x for part in parts]),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "dt": steps.pop() if even else None,
        "times": None if even else np.concatenate([_times(part) for part in parts]),
        "reward": _column("reward", parts, names, lambda part: part.reward),
        "terminal": _terminal(parts),
        "action": action,
        "actions": actions,
        "ids": ids,
        "max_dt": gaps.pop(),
        "dropped": dropped,
    }


def _times(part: Trajectories) -> Array:
    if part.times is not None:
        return part.times
    assert part.dt is not None
    return part.dt * np.concatenate([np.arange(n) for n in part.lengths])


def _column(what: str, parts: Sequence[Any], names: Sequence[str], get: Callable[[Any], Any]) -> Any:
    """That of all parts, or of none."""
    found = [get(part) for part in parts]
    without = [name for name, values in zip(names, found) if values is None]
    if len(without) == len(parts):
        return None
    if without:
        raise InputError(f"all files must have a {what} if one has, found none in {without[0]}; add it, or drop it.")
    return np.concatenate(found)


def _actions(parts: Sequence[Trajectories], names: Sequence[str]) -> tuple[Any, tuple[Any, ...]]:
    """Labels are numbered over all parts."""
    given = lambda part: None if part.action is None else labels_of(part.action, part.actions)  # noqa: E731
    together = _column("action", parts, names, given)
    return (None, ()) if together is None else label(together)


def _terminal(parts: Sequence[Trajectories]) -> Array | None:
    """Episodes of some parts may have ended, and those of others not."""
    if all(part.terminal is None for part in parts):
        return None
    open_end = [np.full(len(part.x), np.nan) if part.terminal is None else part.terminal for part in parts]
    return np.concatenate(open_end)
