"""The main and the tail pool (equations 3.3 and 3.4, Algorithm B.1, appendix E), and all of them as one batch.

    P_main = {|dx - mu| < TRT},    P_tail = {pairs of P_main with |dx - mu| > CT},    R_sample = |P_tail| / |P_main|

With uneven sampling mu becomes mu dt and CT a function CT(dt).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Integers, choice, number_within, whole_number
from levytorch.data.thresholds import (
    HALF_THE_INDEX,
    Threshold,
    check_thresholds,
    ct_of_dt,
    half,
    in_units,
    threshold_at,
    threshold_settings,
)
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError, LevytorchWarning

S = TypeVar("S")

CHUNK = 65_536  # pairs of a full batch at a time
LARGEST = 1 << 24  # pairs of a mini-batch: hashed and gathered 256 steps at a time
MIXINGS = ("stratified", "bernoulli")
LATTICES = ("auto", "always", "never")
ENOUGH = 300_000  # pairs from which on a lattice has markedly fewer nodes
MOST_DT = 12  # distinct dt of a lattice
_MOST_HALVINGS = 60
_BEYOND = "beyond TRT"


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "lattice": lambda given: given if given is None else choice("lattice", given, LATTICES),
    "mixing": lambda given: choice("mixing", given, MIXINGS),
    "batch_size": lambda given: given if given is None else whole_number("batch_size", given, 1, LARGEST),
    "chunk_size": lambda given: whole_number("chunk_size", given, 1),
    "validation": lambda given: number_within("validation", given, "[0, 1)", "pass the fraction to hold out"),
}


def check_data_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that are given, checked; known before there is data."""
    return {name: _OPTIONS[name](given) if name in _OPTIONS else given for name, given in options.items()}


def check_transitions(transitions: Any) -> None:
    """Refuse anything else; Trajectories are the likely mistake."""
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"transitions must be Transitions, found {type(transitions).__name__}; call .transitions() on Trajectories."
        )


@dataclass(frozen=True, eq=False)
class Pools:
    """The two pools, as row numbers: pairs are copied when somebody asks for `main`, and only if TRT removes some.

    Attributes:
        data: all pairs, those that TRT removes among them.
        tail_of_data: rows of `data` in the tail pool, (n_tail,) int64, ascending.
        CT: the threshold in use: None (no tail pool), a number, or a function of dt.
        TRT: the removal threshold, or None.
        halvings: how often CT was halved to fill the tail pool.
        removed: rows of `data` at or beyond TRT, int64, ascending.
    """

    data: Transitions
    tail_of_data: Tensor
    CT: Threshold | None
    TRT: Threshold | None
    halvings: int = 0
    removed: Integers = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @functools.cached_property
    def main(self) -> Transitions:
        """The pairs within TRT; the data itself, uncopied, when that is all of them."""
        return self.data._without(self.removed, {_BEYOND: len(self.removed)}) if len(self.removed) else self.data

    @property
    def n_main(self) -> int:
        return len(self.data) - len(self.removed)

    @property
    def n_tail(self) -> int:
        return len(self.tail_of_data)

    @functools.cached_property
    def tail(self) -> Tensor:
        """The tail pool as rows of `main`."""
        rows = self.tail_of_data.numpy()
        return torch.from_numpy(rows - np.searchsorted(self.removed, rows))

    @property
    def dropped(self) -> dict[str, int]:
        """How many pairs were left out, by reason."""
        found = dict(self.data.dropped)
        if len(self.removed):
            found[_BEYOND] = found.get(_BEYOND, 0) + len(self.removed)
        return found

    def kept(self, rows: slice) -> NDArray[np.bool_]:
        """Which of some rows of `data` belong to the main pool."""
        low, high = np.searchsorted(self.removed, [rows.start, rows.stop])
        mask = np.ones(rows.stop - rows.start, dtype=bool)
        mask[self.removed[low:high] - rows.start] = False
        return mask

    def in_units(self, length: float, time: float) -> Pools:
        """The same pools with x measured in units of `length` and dt in units of `time`: the same rows in each."""
        self.mu  # noqa: B018 - of these pairs, before they are copied
        CT, TRT = (in_units(v, length, time) for v in (self.CT, self.TRT))
        return replace(self, data=self.data.in_units(length, time), CT=CT, TRT=TRT)

    @property
    def R_sample(self) -> float:
        """|P_tail| / |P_main|."""
        return self.n_tail / self.n_main

    @property
    def mu(self) -> Tensor:
        """The center of dx (of dx / dt when dt varies), from the data before any removal."""
        return self.data.mu

    def threshold_of(self, rows: slice) -> Tensor:
        """CT of some pairs, one each."""
        dt = self.data.dt[rows] if self.data.uniform_dt else self.main.dt[rows]
        value = float("inf") if self.CT is None else threshold_at(self.CT, dt)
        return torch.as_tensor(value, dtype=torch.float64).expand(len(dt))


@dataclass(frozen=True)
class PoolFacts:
    """What a fit reports of its data; plain numbers."""

    n_main: int
    n_tail: int
    mu: float | list[float]
    CT: float | None
    TRT: float | None
    dropped: dict[str, int]
    x_range: tuple[float, float] | None
    halvings: int = 0
    CT_of_dt: dict[str, float] | None = None

    @classmethod
    def of(cls, pools: Pools) -> PoolFacts:
        CT, TRT = (v if isinstance(v, (int, float)) else None for v in (pools.CT, pools.TRT))
        x_range = None
        if pools.data.dim == 1:
            low, high = np.inf, -np.inf
            for rows in pools.data.blocks():
                x = pools.data.x[rows].numpy()
                x = x[pools.kept(rows)] if len(pools.removed) else x
                low, high = min(low, float(x.min(initial=np.inf))), max(high, float(x.max(initial=-np.inf)))
            x_range = (low, high)
        return cls(
            pools.n_main,
            pools.n_tail,
            pools.mu.tolist(),
            CT,
            TRT,
            pools.dropped,
            x_range,
            pools.halvings,
            threshold_settings(pools.CT),
        )


def make_pools(
    transitions: Transitions,
    CT: Threshold | None,
    TRT: Threshold | None = None,
    *,
    min_tail: int = 100,
    alpha: float | None = None,
    D_o: float | None = None,
) -> Pools:
    """Split transitions into main and tail pool.

    Args:
        CT: cutting threshold, a number or a function of dt; None makes no tail pool.
        TRT: pairs at least this far from mu are removed from both pools; None removes none.
        min_tail: CT is halved (with a warning) until the tail pool holds this many pairs: at least a batch.
        alpha: when dt varies and CT is a number, CT is meant at the median dt and scaled by `ct_of_dt` with this alpha.
        D_o: for the same purpose; None estimates it from the central half of the data.
    """
    check_transitions(transitions)
    min_tail = whole_number("min_tail", min_tail, 1)
    alpha = None if alpha is None else number_within("alpha", alpha, "(0, 1)", HALF_THE_INDEX)
    D_o = None if D_o is None else number_within("D_o", D_o, "[0, inf)", "pass 0 or more")
    CT, TRT = check_thresholds(CT, TRT, transitions.dt)
    return pools_of(transitions, CT, TRT, min_tail, alpha, D_o)


def pools_of(
    transitions: Transitions,
    CT: Threshold | None,
    TRT: Threshold | None,
    min_tail: int,
    alpha: float | None = None,
    D_o: float | None = None,
) -> Pools:
    """`make_pools` of what has been checked."""
    if isinstance(CT, float) and not transitions.uniform_dt:
        if alpha is None:
            warnings.warn(
                f"dt varies from {float(transitions.dt.min()):g} to {float(transitions.dt.max()):g} but CT = {CT:g} is "
                "one number for all pairs, so that pairs with a long dt exceed it more often; pass alpha to scale it "
                "with dt.",
                LevytorchWarning,
                stacklevel=3,
            )
        else:
            D_o = central_D_o(transitions) if D_o is None else D_o
            CT = ct_of_dt(CT, transitions.median_dt, alpha, D_o)
    removed = np.empty(0, dtype=np.int64) if TRT is None else transitions.beyond(TRT, included=True)
    if len(removed) == len(transitions):
        transitions._without(removed, {})  # refuses
    n_main, empty = len(transitions) - len(removed), torch.empty(0, dtype=torch.int64)
    if CT is None:
        return Pools(transitions, empty, None, TRT, removed=removed)
    if n_main < min_tail:
        raise InputError(
            f"the tail pool must hold at least {min_tail} pairs, found {n_main} pairs in all; use more data or a "
            "smaller batch."
        )
    tail, halvings = _tail(transitions, CT, removed), 0
    found, asked = len(tail), CT
    while len(tail) < min_tail:
        halvings += 1
        if halvings > _MOST_HALVINGS:
            raise InputError(
                f"the tail pool must hold at least {min_tail} pairs, found {len(tail)} even after {_MOST_HALVINGS} "
                "halvings of CT; the increments hardly vary, so check the data with describe()."
            )
        CT = half(CT)
        tail = _tail(transitions, CT, removed)
    if halvings:
        now = f"{CT:.6g}" if isinstance(CT, float) else f"{0.5**halvings:.6g} of its value"
        before = f"{asked:g}" if isinstance(asked, float) else "CT(dt)"
        warnings.warn(
            f"CT was halved {halvings} times, from {before} to {now}, where the tail pool holds {len(tail)} pairs, "
            f"because it held {found} and a batch needs {min_tail}; lower CT or min_tail, or use more data.",
            LevytorchWarning,
            stacklevel=3,
        )
    return Pools(transitions, tail, CT, TRT, halvings, removed)


def central_D_o(transitions: Transitions) -> float:
    """D_o of a Gaussian with the interquartile range of (dx - mu dt) / sqrt(dt), averaged over coordinates.

    An upper estimate, since jumps widen the range.
    """
    n = len(transitions)
    some = transitions[slice(None, None, max(1, n // 1_000_000))] if n > 1_000_000 else transitions
    scaled = some.dx.reshape(len(some), -1) / some.dt.sqrt()[:, None]
    low, high = np.quantile(scaled.numpy(), [0.25, 0.75], axis=0)
    return float(np.mean(((high - low) / 1.3489795003921634) ** 2) / 2)


def _tail(t: Transitions, CT: Threshold, removed: Integers) -> Tensor:
    """Rows beyond CT that are not removed."""
    return torch.from_numpy(np.setdiff1d(t.beyond(CT), removed, assume_unique=True))


def split(transitions: Transitions, validation: float, seed: int) -> tuple[Transitions, Transitions | None]:
    """Training and held-out transitions: whole trajectories at random, or the last part of a single one."""
    if validation == 0.0:
        return transitions, None
    names = transitions.membership.occurring()
    if len(names) == 1:
        cut = len(transitions) - max(1, round(validation * len(transitions)))
        if cut < 1:
            raise InputError(f"validation = {validation:g} must leave pairs to train on, found none; lower it.")
        return transitions[:cut], transitions[cut:]
    out = np.random.default_rng(seed).permutation(len(names))[: max(1, round(validation * len(names)))]
    if len(out) == len(names):
        raise InputError(f"validation = {validation:g} must leave trajectories to train on, found none; lower it.")
    held = torch.from_numpy(transitions.membership.among(names[out]))
    return transitions[~held], transitions[held]


# ---------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Pairs and their weights: the objective is sum(weight * log_p). Weights sum to one (on average over processes)."""

    x: Tensor
    dx: Tensor
    dt: Tensor
    weight: Tensor

    def summed(self, work: Callable[[Batch], S]) -> S:
        """What `work` sums over all pairs; a batch whose pairs are elsewhere has it done there."""
        return work(self)


class FullBatch(NamedTuple):
    """All the data at once: pairs, or the nodes that stand for them; weights are numbers of pairs.

    `tail` are the pairs of the tail pool once more; n_main, n_tail: sizes of the pools.
    """

    main: Batch
    tail: Batch | None
    n_main: float
    n_tail: float
    tcf: float = 0.0
    chunk: int = CHUNK

    def holds(self, other: FullBatch) -> bool:
        """Whether the pairs and their weights are those of another batch, whatever the TCF."""
        one, two = ((*b.main, *(b.tail or ())) for b in (self, other))
        return len(one) == len(two) and all(a is b or torch.equal(a, b) for a, b in zip(one, two))

    def chunks(self) -> Iterator[Batch]:
        """Views of at most `chunk` entries, weighted (1 - TCF) / n_main in the main pool, TCF / n_tail in the tail;
        the weights sum to one, and sum(weight * log_p) is the objective.
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


def full_batch(pools: Pools, chunk: int = CHUNK, *, copied: bool = True) -> FullBatch:
    """Every pair.

    copied: where TRT removes pairs, a copy of the others; else all of them, with weight 0 or 1 in a byte each.
    """
    data, tail = (pools.main, pools.tail) if copied else (pools.data, pools.tail_of_data)
    n, x, one = len(data), data.states, torch.ones(1, dtype=torch.float64)
    weight = one.expand(n)
    if n > pools.n_main:
        weight = torch.from_numpy(pools.kept(slice(0, n)).view(np.uint8))
    main = Batch(x, data.dx, data.dt, weight)
    if not pools.n_tail:
        return FullBatch(main, None, pools.n_main, 0, chunk=chunk)
    dt = data.dt[:1].expand(len(tail)) if data.uniform_dt else data.dt[tail]
    again = Batch(x[tail], data.dx[tail], dt, one.expand(len(tail)))
    return FullBatch(main, again, pools.n_main, pools.n_tail, chunk=chunk)


def wanted(transitions: Transitions, mode: str, enough: int = ENOUGH) -> bool:
    """Whether a fit takes the lattice of its data: "always", "never", or "auto", where that is faster and possible.

    enough: pairs from which on it is faster.
    """
    if mode != "auto":
        return mode == "always"
    if transitions.dim > 1 or transitions.inputs is not None or len(transitions) < enough:
        return False
    distinct = transitions.dt[:1]
    if not transitions.uniform_dt:
        for rows in transitions.blocks():
            distinct = torch.unique(torch.cat([distinct, transitions.dt[rows]]))
            if len(distinct) > MOST_DT:
                return False
    return True
