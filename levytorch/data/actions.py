"""Actions of pairs: labels as numbers in one column, and the labels themselves; or numbers and vectors as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Array, Integers, shown
from levytorch.errors import InputError

MOST = 64  # different actions: more are numbers on a scale, not labels
_WIDEST = 2  # numbers of a vector


def label(action: Any) -> tuple[Array, tuple[Any, ...]]:
    """The place of each action among the sorted labels, as float64 (a column like all others), and the labels.

    More than MOST different numbers are a continuous action: they are returned as they are, without labels. So are
    vectors, (n, 2).

    >>> label(["up", "down", "up"])
    (array([1., 0., 1.]), ('down', 'up'))
    """
    given = _array("action", action)
    if given.dtype == object and all(isinstance(a, str) for a in given.ravel()):
        given = given.astype(str)
    if given.ndim == 2:
        return _vectors(given), ()
    if given.dtype.kind not in "biufU":
        raise InputError(f"actions must be numbers or strings, found {shown(action)}; fill gaps or leave pairs out.")
    if given.dtype.kind == "f":
        if not np.isfinite(given).all():
            where = int(np.argmax(~np.isfinite(given.ravel())))
            raise InputError(
                f"actions must have no gaps, found {given.ravel()[where]} at {where}; fill it, or leave that pair out."
            )
        if (given == np.round(given)).all() and (np.abs(given) < 2**53).all():
            given = given.astype(np.int64)  # labels of a numeric column: 1, not 1.0
    labels, codes = np.unique(given, return_inverse=True)
    if len(labels) > MOST:
        if given.dtype.kind == "U":
            raise InputError(f"actions must be at most {MOST} different names, found {len(labels)}; group them.")
        return given.astype(np.float64), ()
    return codes.reshape(given.shape).astype(np.float64), tuple(labels.tolist())


def _array(name: str, given: Any) -> NDArray[Any]:
    """What a user has as an array; tensors that have no numbers, and lists of different lengths, are refused."""
    try:
        if isinstance(given, Tensor):
            given = given.detach().cpu()
            return (given.double() if given.dtype in (torch.bfloat16, torch.float16) else given).numpy()
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} must be an array or a list of numbers or names, found {shown(given)} ({type(error).__name__}); "
            "give one entry per pair."
        ) from None


def _vectors(given: NDArray[Any]) -> Array:
    """Actions of several numbers, (n, m)."""
    if given.shape[1] > _WIDEST or given.dtype.kind not in "biuf":
        raise InputError(
            f"vectors of actions must be {_WIDEST} numbers each, found {given.dtype} of shape {given.shape}; give so, "
            "or labels."
        )
    vectors = given.astype(np.float64)
    if not np.isfinite(vectors).all():
        row = int(np.argmax(~np.isfinite(vectors).all(1)))
        raise InputError(
            f"actions must have no gaps, found {vectors[row].tolist()} at {row}; fill it, or leave it out."
        )
    return vectors[:, 0] if vectors.shape[1] == 1 else vectors


def named(action: Array, actions: Sequence[Any]) -> NDArray[Any]:
    """The inverse of `label`."""
    return np.asarray(actions)[action.astype(np.int64)] if len(actions) else action


def per_point(action: Any, lengths: Integers) -> tuple[Array, tuple[Any, ...]]:
    """One action per point (that of the last point of a trajectory is not used) from one per point or one per pair.

    action: (n_traj, n_time) or (n_traj, n_time - 1), or a list of such rows; (n_time,) for one trajectory. Vectors
    have an axis of their own at the end, and one trajectory of them is action[None].
    """
    return label(_points("action", action, lengths))


def rewards_per_point(reward: Any, lengths: Integers) -> Any:
    """Rewards of pairs (n_traj, n_time - 1) as rewards of points, the last repeated; those of points as they are."""
    shape = getattr(reward, "shape", None)
    of_pairs = shape is not None and len(shape) == 2 and tuple(shape) == (len(lengths), int(lengths[0]) - 1)
    return _points("reward", reward, lengths).reshape(len(lengths), -1) if of_pairs else reward


def _points(name: str, given: Any, lengths: Integers) -> NDArray[Any]:
    """One entry per point, trajectory after trajectory."""
    action = given
    rows = action if isinstance(action, list | tuple) and len(action) and np.ndim(action[0]) else None
    if rows is None:
        whole = _array(name, action)
        rows = [whole] if whole.ndim < 2 else list(whole)
    parts = [_array(name, row) for row in rows]
    if len(parts) != len(lengths):
        raise InputError(f"{name} must have {len(lengths)} trajectories like x, found {len(parts)}; give one row each.")
    full = [_padded(part, int(n), k) for k, (part, n) in enumerate(zip(parts, lengths))]
    if len({part.shape[1:] for part in full}) > 1:
        raise InputError(f"{name} must be alike in all trajectories, found several shapes; give all of them one.")
    return np.concatenate(full)


def _padded(part: NDArray[Any], n: int, k: int) -> NDArray[Any]:
    if part.ndim in (1, 2) and len(part) in (n, n - 1):
        return part if len(part) == n else np.concatenate([part, part[-1:]])
    raise InputError(
        f"action of trajectory {k} must have {n} entries (one per point) or {n - 1} (one per pair), found shape "
        f"{part.shape}; give one label each."
    )
