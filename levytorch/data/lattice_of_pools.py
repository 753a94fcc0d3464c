"""Whether a fit takes the lattice of its data, and that lattice, made by one process or by several."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from levytorch.data.lattice import Lattice
from levytorch.data.lattice_build import MOST_DT
from levytorch.data.pools import Pools
from levytorch.data.transitions import Transitions
from levytorch.ranks import Ranks

ENOUGH = 300_000  # pairs from which on a lattice has markedly fewer nodes


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
        return Lattice.from_transitions(data, n_blocks=n_blocks, **options)
    like = Lattice.from_transitions(data[: min(len(data), 1000)], **options)  # says the grid, which all ranks share
    parts = ranks.gather(Lattice.from_transitions(data[ranks.shard(len(data))], like=like, period=period))
    return functools.reduce(operator.add, parts)
