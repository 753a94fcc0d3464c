"""Drawing batches from the pools: a pure function of (seed, rank, step) and of the TCF at that step.

The objective at a given TCF is (1 - TCF) mean over P_main + TCF mean over P_tail of log p (equation 3.5). With
R = (1 - TCF) R_sample + TCF, the tail's share after correction, the same objective is

    (1 - R) mean over P_main \\ P_tail + R mean over P_tail,

and that is what stratified batches estimate: a fixed number of pairs from each of the two disjoint parts, weighted by
1 - R and R. The paper's Bernoulli choice draws whole batches from P_tail with probability TCF and from P_main
otherwise: the same expectation, with far more variance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Array, Integers, choice, number_within, whole_number
from levytorch.data.pools import Pools
from levytorch.data.transitions import Transitions

CHUNK = 65_536  # pairs of a full batch at a time
AHEAD = 256  # steps whose pairs are gathered in one go: hashing and indexing cost microseconds per step, not tens
LARGEST = 1 << 24  # pairs of a mini-batch: hashed and gathered 256 steps at a time
MIXINGS = ("stratified", "bernoulli")
LATTICES = ("auto", "always", "never")
ENOUGH = 300_000  # pairs from which on a lattice has markedly fewer nodes
MOST_DT = 12  # distinct dt of a lattice
_GOLDEN, _MIX1, _MIX2 = (
    np.array([c], dtype=np.uint64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # SplitMix64; arrays, whose arithmetic wraps without warnings


def check_data_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of batch_size, chunk_size, mixing and validation that are given, checked; known before there is data."""
    checked = dict(options)
    if checked.get("lattice") is not None:
        choice("lattice", checked["lattice"], LATTICES)
    if "mixing" in checked:
        choice("mixing", checked["mixing"], MIXINGS)
    if "batch_size" in checked:
        checked["batch_size"] = whole_number("batch_size", checked["batch_size"], 1, LARGEST)
    if "chunk_size" in checked:
        checked["chunk_size"] = whole_number("chunk_size", checked["chunk_size"], 1)
    if "validation" in checked:
        remedy = "pass the fraction to hold out"
        checked["validation"] = number_within("validation", checked["validation"], "[0, 1)", remedy)
    return checked


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


class Batch(NamedTuple):
    """Pairs and their weights: the objective is sum(weight * log_p). Weights sum to one (on average over ranks)."""

    x: Tensor
    dx: Tensor
    dt: Tensor
    weight: Tensor


class FullBatch(NamedTuple):
    """All the data of one process at once: pairs, or the nodes that stand for them; weights are numbers of pairs.

    `tail` are the pairs of the tail pool once more; n_main, n_tail: sizes of the pools over all processes.
    """

    main: Batch
    tail: Batch | None
    n_main: float
    n_tail: float
    tcf: float = 0.0
    chunk: int = CHUNK

    def chunks(self) -> Iterator[Batch]:
        """Views of at most `chunk` entries, weighted (1 - TCF) / n_main in the main pool, TCF / n_tail in the tail;
        over all processes the weights sum to one, and sum(weight * log_p) is the objective.
        """
        for pool in self.pools():
            yield from pool

    def pools(self) -> Iterator[Iterator[Batch]]:
        """The chunks of the main pool, then those of the tail pool."""
        yield self._part(self.main, (1.0 - self.tcf) / self.n_main)
        if self.tail is not None and self.tcf != 0.0:
            yield self._part(self.tail, self.tcf / self.n_tail)

    def _part(self, batch: Batch, scale: float) -> Iterator[Batch]:
        for low in range(0, batch.x.shape[0], self.chunk):
            x, dx, dt, weight = (values[low : low + self.chunk] for values in batch)
            yield Batch(x, dx, dt, scale * weight.to(torch.float64))


def full_batch(pools: Pools, tcf: float = 0.0, rank: int = 0, world: int = 1, chunk: int = CHUNK) -> FullBatch:
    """Every pair of this rank's shard, uncopied; shards are whole chunks, so that what is computed of a chunk does not
    depend on the number of ranks.
    """
    main, n = pools.main, pools.n_main
    n_chunks = -(-n // chunk)
    start, stop = (min(k * n_chunks // world * chunk, n) for k in (rank, rank + 1))
    one = torch.ones(1, dtype=torch.float64)
    parts = Batch(main.x[start:stop], main.dx[start:stop], main.dt[start:stop], one.expand(stop - start))
    if not pools.n_tail:
        return FullBatch(parts, None, n, 0, tcf, chunk)
    rows = pools.tail[(pools.tail >= start) & (pools.tail < stop)]
    dt = main.dt[:1].expand(len(rows)) if main.uniform_dt else main.dt[rows]
    tail = Batch(main.x[rows], main.dx[rows], dt, one.expand(len(rows)))
    return FullBatch(parts, tail, n, pools.n_tail, tcf, chunk)


def uncopied(pools: Pools, rank: int = 0, world: int = 1, chunk: int = CHUNK) -> FullBatch:
    """The same pairs without a copy of those that TRT leaves: all of them, with weight 0 or 1 in a byte each."""
    if not len(pools.removed):
        return full_batch(pools, 0.0, rank, world, chunk)
    data, n = pools.data, len(pools.data)
    n_chunks = -(-n // chunk)
    start, stop = (min(k * n_chunks // world * chunk, n) for k in (rank, rank + 1))
    weight = torch.from_numpy(pools.kept(slice(start, stop))).to(torch.uint8)
    main = Batch(data.x[start:stop], data.dx[start:stop], data.dt[start:stop], weight)
    if not pools.n_tail:
        return FullBatch(main, None, pools.n_main, 0, chunk=chunk)
    rows = pools.tail_of_data[(pools.tail_of_data >= start) & (pools.tail_of_data < stop)]
    dt = data.dt[:1].expand(len(rows)) if data.uniform_dt else data.dt[rows]
    tail = Batch(data.x[rows], data.dx[rows], dt, torch.ones(1, dtype=torch.float64).expand(len(rows)))
    return FullBatch(main, tail, pools.n_main, pools.n_tail, chunk=chunk)


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
        *,
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
            rows, main = self._tail[self._pick(self._u[k], len(self._tail))], self.pools.main
            dt = main.dt[:1].expand(rows.shape) if main.uniform_dt else _gather(main.dt, rows)
            return Batch(_gather(main.x, rows), _gather(main.dx, rows), dt, self._weights(tcf))
        x, dx, dt = self._ahead
        return Batch(x[k], dx[k], dt[k], self._weights(tcf))

    def rows(self, step: int) -> Integers:
        """Which pairs of the main pool the batch of a step holds (with "bernoulli": unless the tail's turn comes)."""
        block, k = divmod(step, AHEAD)
        if block != self._block:
            self._fill(block)
        return self._rows[k]

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
        main = self.pools.main
        dt = main.dt[:1].expand(self._rows.shape) if main.uniform_dt else _gather(main.dt, self._rows)
        self._ahead = (_gather(main.x, self._rows), _gather(main.dx, self._rows), dt)
        self._block = block

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


def _gather(values: Tensor, rows: Integers) -> Tensor:
    """values[rows] by NumPy, which does not wake a pool of threads for a few thousand numbers."""
    return torch.from_numpy(values.numpy().take(rows, axis=0))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))
