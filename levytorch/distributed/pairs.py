"""The pairs of many files, where the workers are: sums over them are computed there, and only sums travel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from levytorch.data import Trajectories, Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.places import data_file
from levytorch.distributed.cluster import Runner
from levytorch.distributed.tree import Tree
from levytorch.errors import InputError

T = TypeVar("T")
MOST_FILES = 64  # that a sample is taken from: each is read as a whole for it


@dataclass(frozen=True)
class Pool:
    """Which pairs count: those closer than TRT to the center, in a window of states; `tail`: beyond CT only.

    Thresholds are one number per distinct dt, as in a lattice. scale: units of length and time that the pairs are then
    measured in.
    """

    dt: tuple[float, ...] = ()
    mu: float = 0.0
    mu_is_rate: bool = False
    CT: tuple[float, ...] = ()
    TRT: tuple[float, ...] = ()
    window: tuple[float, float] | None = None
    tail: bool = False
    scale: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(
        cls,
        lattice: Lattice,
        window: tuple[float, float] | None,
        tail: bool,
        scale: tuple[float, float] = (1.0, 1.0),
    ) -> Pool:
        thresholds = tuple(lattice.CT.tolist()), tuple(lattice.TRT.tolist())
        return cls(tuple(lattice.dt.tolist()), lattice.mu, lattice.mu_is_rate, *thresholds, window, tail, scale)

    def rows(self, pairs: Transitions) -> Any:
        """A mask of the pairs of the pool, or None for all."""
        kept = None
        if self.window is not None:
            kept = (pairs.x >= self.window[0]) & (pairs.x <= self.window[1])
        if self.dt and np.isfinite([*self.CT, *self.TRT]).any():
            nearest = (pairs.dt.log().unsqueeze(1) - torch.tensor(self.dt, dtype=torch.float64).log()).abs().argmin(1)
            center = self.mu * pairs.dt if self.mu_is_rate else self.mu
            far, TRT, CT = (pairs.dx - center).abs(), torch.tensor(self.TRT)[nearest], torch.tensor(self.CT)[nearest]
            inside = (far < TRT) & (far > CT) if self.tail else far < TRT
            kept = inside if kept is None else kept & inside
        return kept


def pairs_of(name: str, reading: Mapping[str, Any], pool: Pool) -> Batch | None:
    """The pairs of a pool in one file; None where there are none."""
    pairs = Trajectories.from_file(data_file(name), **reading).transitions()
    rows = pool.rows(pairs)
    x, dx, dt = (pairs.x, pairs.dx, pairs.dt) if rows is None else (pairs.x[rows], pairs.dx[rows], pairs.dt[rows])
    if not len(x):
        return None
    if pairs.uniform_dt:
        dt = dt[:1].expand(len(x))
    length, time = pool.scale
    if pool.scale != (1.0, 1.0):
        x, dx, dt = x / length, dx / length, (dt[:1] / time).expand(len(x)) if pairs.uniform_dt else dt / time
    return Batch(x, dx, dt, torch.ones(1, dtype=torch.float64).expand(len(x)))


def summed_here(batch: Batch | None, work: Callable[[Batch], T]) -> T | None:
    """What a worker does with the pairs of one file."""
    return None if batch is None else work(batch)


def summed_of_file(name: str, reading: Mapping[str, Any], pool: Pool, work: Callable[[Batch], T]) -> T | None:
    """The same with pairs that are not held."""
    return summed_here(pairs_of(name, reading, pool), work)


def some_pairs(name: str, reading: Mapping[str, Any], most: int) -> Transitions:
    """The first trajectories of a file, up to so many pairs (one trajectory at least, cut where it is longer)."""
    pairs = Trajectories.from_file(data_file(name), **reading).transitions()
    return pairs if len(pairs) <= most else pairs[:most]


def count_pairs(name: str, reading: Mapping[str, Any]) -> int:
    return len(Trajectories.from_file(data_file(name), **reading).transitions())


class Distant:
    """The pairs of files on the workers of a runner.

    held: whether workers keep the pairs in their memory between two sums; else they read their files again.
    """

    def __init__(
        self, names: Sequence[str], reading: Mapping[str, Any], runner: Runner, held: bool = False, retries: int = 3
    ) -> None:
        self.names, self.reading, self.runner, self.held, self.retries = list(names), reading, runner, held, retries
        self._kept: dict[Pool, list[Any]] = {}

    def total(self, pool: Pool, work: Callable[[Batch], T]) -> T:
        """The sum of `work` over all files, in a tree of fixed order."""
        tree: Tree[T] = Tree(len(self.names), operator.add)
        for k, result in self._results(self._tasks(pool, work)):
            tree.give(k, result)
        if tree.total is None:
            raise InputError("files must hold pairs in the window of the fit, found none; check the window and TRT.")
        return tree.total

    def sample(self, n: int) -> Transitions:
        """About n pairs, from all files alike (from some, evenly spread, where there are many), as consecutive as they
        are there.
        """
        names = self.names[:: -(-len(self.names) // MOST_FILES)]
        share = max(1, n // len(names))
        tasks = [(some_pairs, (name, self.reading, share)) for name in names]
        parts = self._in_order(tasks)
        before = np.cumsum([0, *(len(part.membership.occurring()) for part in parts)])
        numbers = [
            start + np.searchsorted(part.membership.occurring(), part.membership.numbers())
            for start, part in zip(before, parts)
        ]
        together = [torch.cat([getattr(part, name) for part in parts]) for name in ("x", "dx", "dt")]
        if all(part.uniform_dt and part.dt[0] == parts[0].dt[0] for part in parts):
            together[2] = float(parts[0].dt[0])  # type: ignore[call-overload]
        return Transitions(*together, trajectory=np.concatenate(numbers))

    def counts(self) -> list[int]:
        """The pairs of every file."""
        return self._in_order([(count_pairs, (name, self.reading)) for name in self.names])

    def each(self, pool: Pool, work: Callable[[Batch], T]) -> list[T | None]:
        """`work` of every file, None where it has no pairs."""
        return self._in_order(self._tasks(pool, work))

    def _tasks(self, pool: Pool, work: Callable[[Batch], Any]) -> list[Any]:
        shared = self.runner.share(work)
        if not self.held:
            return [(summed_of_file, (name, self.reading, pool, shared)) for name in self.names]
        if pool not in self._kept:
            self._kept[pool] = [self.runner.keep(pairs_of, name, self.reading, pool) for name in self.names]
        return [(summed_here, (batch, shared)) for batch in self._kept[pool]]

    def _in_order(self, tasks: Sequence[Any]) -> list[Any]:
        return [result for _, result in sorted(self._results(tasks), key=lambda one: one[0])]

    def _results(self, tasks: Sequence[Any]) -> Any:
        for k, result in self.runner.run(tasks, self.retries, lambda k, error: None):
            if isinstance(result, BaseException):
                raise result
            yield k, result


class DistantBatch(Batch):
    """Pairs that are known here by a sample, whose sums are computed where the pairs are."""

    distant: Distant
    pool: Pool

    @classmethod
    def of(cls, sample: Batch, distant: Distant, pool: Pool) -> DistantBatch:
        new = cls(*sample)
        new.distant, new.pool = distant, pool
        return new

    def summed(self, work: Callable[[Batch], T]) -> T:
        return self.distant.total(self.pool, work)


@dataclass(frozen=True)
class PairsOfFiles:
    """All pairs of some files, for a fit to a lattice or to a sample of them (`training.problem.DistantPairs`).

    n: how many there are, where no lattice has counted them. window: pairs that start elsewhere are not in the lattice.
    """

    distant: Distant
    n: int = 0
    window: tuple[float, float] | None = None

    def of_lattice(self, lattice: Lattice, fitted: FullBatch, scale: tuple[float, float]) -> FullBatch:
        """The pairs that a lattice was made of, for the last step of a fit."""
        main = DistantBatch.of(fitted.main, self.distant, Pool.of(lattice, self.window, False, scale))
        tail = fitted.tail
        if tail is not None:
            tail = DistantBatch.of(tail, self.distant, Pool.of(lattice, self.window, True, scale))
        return fitted._replace(main=main, tail=tail)

    def of_sample(self, sample: FullBatch, scale: tuple[float, float]) -> FullBatch:
        """All pairs, where no lattice can stand for them; those of the sample weigh as much together."""
        size = len(sample.main.x)
        weight = torch.tensor([self.n / size], dtype=torch.float64).expand(size)
        main = DistantBatch.of(sample.main._replace(weight=weight), self.distant, Pool(scale=scale))
        return sample._replace(main=main, n_main=float(self.n))
