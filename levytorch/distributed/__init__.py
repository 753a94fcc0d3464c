"""Data on many machines: files are read where there is room, and what they add up to is fitted in one process.

Needs Dask: `pip install levytorch[dask]`.
"""

from levytorch.distributed.files import Files
from levytorch.distributed.lattices import Progress, lattice

__all__ = ["Files", "Progress", "lattice"]
