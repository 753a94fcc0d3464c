"""Which lattices may be added: those of the same grid, dt, pools and blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.data.lattice_build import SAME_DT
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice


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
