"""Spread work over the cores: a compiled kernel, or pieces of work made of many short operations of torch.

The kernels release the GIL, so plain threads are enough; no threading layer of numba is involved, which keeps forked
workers, sweeps and several processes on one machine safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_alone: dict[tuple[int, int], ThreadPoolExecutor] = {}
_making = threading.Lock()


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)  # a forked child must not wait for its parent's threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, thread_name_prefix="levytorch")
    return _pools[key]


def in_blocks(kernel: Callable[..., Any], n: int, *arguments: Any, grain: int = 256) -> list[Any]:
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


@contextmanager
def one_thread() -> Iterator[None]:
    """torch in one thread, and as many as before afterwards.

    For many small operations, as those of a small network: shared out to threads that spin while they wait, they are
    far slower on a busy machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[work(item) for item in items], on as many threads as torch uses, in each of which torch is alone.

    Operations of a millisecond that are shared out one by one spend their time waiting for each other, on a busy
    machine nearly all of it. Work that is spread within such a thread stays in it.
    """
    items, threads = list(items), torch.get_num_threads()
    if min(threads, len(items)) <= 1:
        return [work(item) for item in items]
    grad = torch.is_grad_enabled()

    def one(item: Item) -> Result:
        with torch.set_grad_enabled(grad):  # which every thread has its own of
            return work(item)

    return list(_lone_threads(threads).map(one, items))


def _lone_threads(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)
    with _making:
        if key not in _alone:
            pool, ready = ThreadPoolExecutor(workers, thread_name_prefix="levytorch-alone"), threading.Barrier(workers)

            def settle(_: int) -> None:
                torch.get_num_threads()  # a thread that is new to torch takes over what was set last
                torch.set_num_threads(1)
                ready.wait()

            list(pool.map(settle, range(workers)))
            torch.set_num_threads(workers)
            _alone[key] = pool
    return _alone[key]
