"""The source of a run whose data has been read before: lattices out of files."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from pathlib import Path

from levytorch.convert import shown
from levytorch.data.lattice import Lattice
from levytorch.data.sources import SourceData
from levytorch.errors import InputError


class FromLattice:
    """A lattice that `Lattice.save` wrote, or the sum of several: yesterday's and today's.

    path: of the file, or a list of such.
    """

    def __init__(self, path: str | Path | Sequence[str | Path]) -> None:
        self.paths = [path] if isinstance(path, (str, Path)) else list(path) if isinstance(path, Sequence) else []
        if not self.paths or not all(isinstance(one, (str, Path)) and str(one) for one in self.paths):
            raise InputError(f"path must be a file, or a list of files, found {shown(path)}; name what was saved.")

    def __call__(self) -> SourceData:
        return SourceData(functools.reduce(operator.add, (Lattice.load(path) for path in self.paths)))
