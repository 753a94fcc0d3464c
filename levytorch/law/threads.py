"""Spread a compiled kernel over the cores.

The kernels release the GIL, so plain threads are enough; no threading layer of numba is involved, which keeps forked
workers, sweeps and several processes on one machine safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)  # a forked child must not wait for its parent's threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, thread_name_prefix="levytorch")
    return _pools[key]


def run(kernel: Callable[..., Any], n: int, *arguments: Any, grain: int = 256) -> list[Any]:
    """kernel(start, stop, *arguments) over range(n), in blocks of at least `grain`; returns the blocks' results.

    Uses as many threads as torch does (`torch.set_num_threads`).
    """
    workers = min(torch.get_num_threads(), max(1, n // grain))
    if workers == 1:
        return [kernel(0, n, *arguments)]
    # several blocks per thread, because samples in the center and in the tail cost differently
    blocks = min(8 * workers, n // grain)
    edges = [n * k // blocks for k in range(blocks + 1)]
    jobs = [_pool(workers).submit(kernel, a, b, *arguments) for a, b in pairwise(edges)]
    return [job.result() for job in jobs]
