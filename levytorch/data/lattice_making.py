"""A lattice in the making: whether a fit wants one, what a first look at the data decides (or a lattice that it shall
be like), and which lattices add.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, positive_number, real_number, shown, whole_number
from levytorch.data.lattice_build import MOST_DT, SAME_DT, Builder, Settings
from levytorch.data.lattice_grid import choose_grid, look, window
from levytorch.data.pools import Pools
from levytorch.data.thresholds import check_thresholds
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.ranks import Ranks

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice

ENOUGH = 300_000  # pairs from which on a lattice has markedly fewer nodes


def built(
    pieces: Iterable[Transitions],
    like: Lattice | None,
    options: dict[str, Any],
    *,
    period: float | None,
    origin: float,
    order: int,
    n_x: int,
) -> Builder:
    """All pieces summed; options: CT, TRT, mu, n_blocks and reach of `Lattice.from_blocks`."""
    if not isinstance(pieces, Iterable):
        raise InputError(f"pieces must be an iterable of Transitions, found {shown(pieces)}; pass a list of them.")
    given: Iterator[Transitions] = iter(pieces)
    first = next(given, None)
    if first is None:
        raise InputError("a lattice must be made of at least one pair, found no data; pass transitions.")
    check_piece(first)
    some = look(first)
    if like is not None:
        builder = _like(like, options, period, window(some))
    else:
        period = None if period is None or period == math.inf else period
        grid = choose_grid(some, period=period, origin=real_number("origin", origin), order=order, n_x=n_x)
        builder = Builder(grid, _settings(first, some, **options), window(some))
    builder.add(first)
    for piece in given:
        check_piece(piece)
        builder.add(piece)
    return builder


def _settings(first: Transitions, some: Transitions, CT: Any, TRT: Any, mu: Any, n_blocks: Any, reach: Any) -> Settings:
    """What pairs are sorted by; mu is that of the first piece, or of a part of it where nothing hangs on it."""
    CT, TRT = check_thresholds(CT, TRT, first.dt)
    reach = math.inf if reach is None else positive_number("reach", reach, "pass a distance from mu")
    n_blocks = 1 if n_blocks is None else whole_number("n_blocks", n_blocks, 1, 4096)
    if mu is not None:
        center = real_number("mu", mu)
    else:
        exact = CT is not None or TRT is not None or reach < math.inf or first._mu is not None
        center = float((first if exact else some).mu)
    return Settings(n_blocks, center, not first.uniform_dt, CT, TRT, reach)


def check_piece(piece: Any) -> None:
    """Refuse what a lattice cannot be made of."""
    if not isinstance(piece, Transitions):
        raise InputError(
            f"a lattice must be made of Transitions, found {type(piece).__name__}; call .transitions() on Trajectories."
        )
    if piece.dim != 1:
        raise InputError(
            f"a lattice must be made of one-dimensional data, found {piece.dim} coordinates; use the samples instead."
        )


class _AtSheet:
    """A threshold of a lattice as a function of its dt."""

    def __init__(self, dt: Array, values: Array) -> None:
        self.dt, self.values = np.log(dt), values

    def __call__(self, dt: Tensor) -> Tensor:
        nearest = np.abs(np.log(dt.numpy())[:, None] - self.dt).argmin(1)
        return torch.from_numpy(self.values[nearest])


def _like(like: Lattice, options: dict[str, Any], period: float | None, states: tuple[float, float]) -> Builder:
    """A builder with the grid, dt and pools of another lattice."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} must be left out beside like=..., found {value!r}; the lattice says it already.")
    if period not in (2 * math.pi, like.grid.period):
        raise InputError(
            f"period must be that of the lattice, {like.grid.period}, found {period!r}; leave it out beside like=..."
        )
    CT, TRT = (_AtSheet(like.dt, v) if np.isfinite(v).any() else None for v in (like.CT, like.TRT))
    settings = Settings(like.n_blocks, like.mu, like.mu_is_rate, CT, TRT, like.reach)
    return Builder(like.grid, settings, states, like.dt.tolist())


def check_like(one: Lattice, other: Lattice) -> None:
    """Refuse lattices of other grids, dt, pools or blocks."""
    remedy = "make one of them with like=the other"
    if one.grid != other.grid:
        raise InputError(f"lattices must have the same grid to be added, found {one.grid} and {other.grid}; {remedy}.")
    if len(one.dt) != len(other.dt) or not np.allclose(one.dt, other.dt, rtol=SAME_DT, atol=0):
        raise InputError(
            f"lattices must have the same dt to be added, found {_listed(one.dt)} and {_listed(other.dt)}; {remedy}."
        )
    pools = [
        (a.CT.tolist(), a.TRT.tolist(), a.reach, a.centers.tolist() if _uses_mu(a) else None) for a in (one, other)
    ]
    if pools[0] != pools[1]:
        names = "CT {}, TRT {}, reach {}, mu {}"
        raise InputError(
            "lattices must have the same pools to be added, found "
            f"{names.format(*map(_listed, pools[0]))} and {names.format(*map(_listed, pools[1]))}; {remedy}."
        )
    if one.n_blocks != other.n_blocks:
        raise InputError(
            f"lattices must have the same number of blocks to be added, found {one.n_blocks} and "
            f"{other.n_blocks}; {remedy}."
        )


def _uses_mu(lattice: Lattice) -> bool:
    return bool(np.isfinite([*lattice.CT, *lattice.TRT, lattice.reach]).any())


def _listed(values: Any) -> str:
    if isinstance(values, (list, np.ndarray)):
        return ", ".join(f"{v:.9g}" for v in values)
    return "none" if values is None else f"{values:g}"


def wanted(transitions: Transitions, mode: str, enough: int = ENOUGH) -> bool:
    """Whether a fit takes the lattice of its data: "always", "never", or "auto", where that is faster and possible.

    enough: pairs from which on it is faster.
    """
    if mode != "auto":
        return mode == "always"
    if transitions.dim > 1 or len(transitions) < enough:
        return False
    distinct = transitions.dt[:1]
    if not transitions.uniform_dt:
        for rows in transitions.blocks():
            distinct = torch.unique(torch.cat([distinct, transitions.dt[rows]]))
            if len(distinct) > MOST_DT:
                return False
    return True


def lattice_of(
    pools: Pools, period: float, origin: float, ranks: Ranks, n_blocks: int = 1, reach: float | None = None
) -> Lattice:
    """The lattice of the pools; with several ranks each reads its share, and all get the sum, in one block."""
    data = pools.data  # the lattice leaves out what lies beyond TRT
    options: dict[str, Any] = {"period": period, "origin": origin, "mu": float(pools.mu)}
    options |= {"CT": pools.CT, "TRT": pools.TRT, "reach": reach}
    if ranks.world == 1:
        return data.lattice(n_blocks=n_blocks, **options)
    like = data[: min(len(data), 1000)].lattice(**options)  # says the grid, which all ranks share
    parts = ranks.gather(data[ranks.shard(len(data))].lattice(like=like, period=period))
    return functools.reduce(operator.add, parts)
