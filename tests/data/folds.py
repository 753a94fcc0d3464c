"""Parts of a lattice, for fits to some of its blocks that held-out scores must agree with."""

from dataclasses import replace

import numpy as np

from levytorch.data.lattice_tables import Loose, SparseRows


def select(lattice, blocks):
    """The lattice of some blocks, which are its blocks in this order."""
    groups = len(lattice.weights.starts[:-1]) // lattice.n_blocks
    rows = [group * lattice.n_blocks + k for group in range(groups) for k in blocks]
    where = [np.flatnonzero(lattice.loose.row == row) for row in rows]
    kept = np.concatenate([np.empty(0, dtype=np.int64), *where])
    numbers = np.repeat(np.arange(len(rows)), [len(w) for w in where])
    tables = {name: SparseRows.of([getattr(lattice, name).row(i) for i in rows]) for name in ("weights", "states")}
    loose = Loose(lattice.loose.x[kept], lattice.loose.dx[kept], numbers)
    return replace(lattice, n_blocks=len(blocks), loose=loose, **tables)


def fold(lattice, k, n_folds):
    """What to train on and what is held out in fold k: every n_folds-th block from the k-th on is held out."""
    held = range(k, lattice.n_blocks, n_folds)
    return select(lattice, [b for b in range(lattice.n_blocks) if b not in held]), select(lattice, held)
