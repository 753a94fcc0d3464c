"""Drawing batches from the pools: a pure function of (seed, rank, step) and of the TCF at that step.

The objective at a given TCF is (1 - TCF) mean over P_main + TCF mean over P_tail of log p (equation 3.5). With
R = (1 - TCF) R_sample + TCF, the tail's share after correction, the same objective is

    (1 - R) mean over P_main \\ P_tail + R mean over P_tail,

and that is what stratified batches estimate: a fixed number of pairs from each of the two disjoint parts, weighted by
1 - R and R. The paper's Bernoulli choice draws whole batches from P_tail with probability TCF and from P_main
otherwise: the same expectation, with far more variance.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Array, Integers
from levytorch.data.batches import Batch, Pools

AHEAD = 256  # steps whose pairs are gathered in one go: hashing and indexing cost microseconds per step, not tens
_GOLDEN, _MIX1, _MIX2 = (
    np.array([c], dtype=np.uint64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # SplitMix64; arrays, whose arithmetic wraps without warnings


class Drawer:
    """Mini-batches of the pools, drawn with replacement; `draw(step, tcf)` has no memory.

    Args:
        mixing: "stratified" or "bernoulli".
        tail_share: the part of a stratified batch that comes from the tail pool, at least one pair. The share decides
            the variance, never the expectation.
        rank, world: each rank draws from every world-th pair, with a seed of its own.
    """

    def __init__(
        self,
        pools: Pools,
        batch_size: int,
        mixing: str,
        seed: int,
        tail_share: float = 0.1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.pools, self.batch_size, self.mixing = pools, batch_size, mixing
        self.rank, self.world = rank, world
        self._key = _mix(_mix(np.array([seed], dtype=np.uint64) + _GOLDEN) + np.uint64(rank) * _MIX1)
        self._tail = pools.tail.numpy()
        self._before = self._tail - np.arange(len(self._tail))  # core pairs before each tail pair
        self._stratified = mixing == "stratified" and 0 < len(self._tail) < pools.n_main and batch_size > 1
        share = round(tail_share * batch_size)
        self.n_tail = min(max(share, 1), batch_size - 1) if self._stratified else 0
        self._block = -1
        self._rows: Integers = np.empty((0, 0), dtype=np.int64)
        self._ahead: tuple[Tensor, Tensor, Tensor] | None = None
        self._weight: tuple[float, Tensor] | None = None

    def draw(self, step: int, tcf: float) -> Batch:
        """The batch of one step."""
        block, k = divmod(step, AHEAD)
        if block != self._block:
            self._fill(block)
        assert self._ahead is not None
        if self.mixing == "bernoulli" and tcf > 0 and len(self._tail) and self._coin[k] <= tcf:
            rows = self._tail[self._pick(self._u[k], len(self._tail))]
            return Batch(*self._gathered(rows), self._weights(tcf))
        x, dx, dt = self._ahead
        return Batch(x[k], dx[k], dt[k], self._weights(tcf))

    def _fill(self, block: int) -> None:
        """Hash and gather the pairs of AHEAD steps; they do not depend on the TCF, which enters by the weights
        alone.
        """
        width = self.batch_size + 1
        counter = np.arange(block * AHEAD * width, (block + 1) * AHEAD * width, dtype=np.uint64) + np.uint64(1)
        words = _mix(self._key + counter * _GOLDEN) >> np.uint64(11)
        u = (words.astype(np.float64) * 2.0**-53).reshape(AHEAD, width)
        self._coin, self._u = u[:, -1], u[:, :-1]
        n_main = self.pools.n_main
        if self._stratified:
            core = self._pick(self._u[:, self.n_tail :], n_main - len(self._tail))
            core += np.searchsorted(self._before, core, side="right")
            tail = self._tail[self._pick(self._u[:, : self.n_tail], len(self._tail))]
            self._rows = np.concatenate([tail, core], axis=1)
        else:
            self._rows = self._pick(self._u, n_main)
        self._ahead, self._block = self._gathered(self._rows), block

    def _gathered(self, rows: Integers) -> tuple[Tensor, Tensor, Tensor]:
        """x, dx and dt by NumPy, which does not wake a pool of threads for a few thousand numbers."""
        main = self.pools.main
        x, dx = (torch.from_numpy(values.numpy().take(rows, axis=0)) for values in (main.states, main.dx))
        dt = main.dt[:1].expand(rows.shape) if main.uniform_dt else torch.from_numpy(main.dt.numpy().take(rows))
        return x, dx, dt

    def _pick(self, u: Array, n: int) -> Integers:
        """Uniform numbers of this rank's share of range(n); all of it where a share would be empty."""
        mine = self._shard(n)
        if mine == 0:
            return (u * n).astype(np.int64)
        return (u * mine).astype(np.int64) * self.world + self.rank

    def _shard(self, n: int) -> int:
        return len(range(self.rank, n, self.world))

    def _weights(self, tcf: float) -> Tensor:
        if self._weight is not None and self._weight[0] == tcf:
            return self._weight[1]
        weight = torch.full((self.batch_size,), 1.0 / self.batch_size, dtype=torch.float64)
        if self._stratified:
            n, n_tail = self.pools.n_main, len(self._tail)
            R = (1.0 - tcf) * n_tail / n + tcf
            weight[: self.n_tail] = R / self.n_tail * self._fair(n_tail)
            weight[self.n_tail :] = (1.0 - R) / (self.batch_size - self.n_tail) * self._fair(n - n_tail)
        elif not len(self._tail) or len(self._tail) == self.pools.n_main:
            weight *= self._fair(self.pools.n_main)
        self._weight = (tcf, weight)
        return weight

    def _fair(self, n: int) -> float:
        """Shards may differ by one pair: makes the average over ranks exact."""
        mine = self._shard(n)
        return mine * self.world / n if mine and self.world > 1 else 1.0


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))
