"""Bins of the observed states, the sums over weighted pairs that one pass leaves in them, and how these become vectors
and matrices in theta.

Tail masses, kept masses and products of scores vary over x as slowly as the coefficients do, so that bins of a small
fraction of the shortest wave carry them, a histogram stands for "all x", and nothing of the size of the data is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.inputs import HeadOfInputs
from levytorch.data.batches import Batch
from levytorch.data.quantiles import cut, order_statistics

CHUNK = 1 << 17  # pairs at a time
_MAX_DISTINCT_DT, _DT_GROUPS = 32, 16
_CELLS = {1: 48, 2: 20, 3: 10, 4: 7}  # of each input, by the number of inputs
_FEWER = 4  # times fewer bins of states and cells of inputs, where they are coarser


class StateBins:
    """Bins in x (one cell of the head's period, or its window on a line) times groups of dt.

    Node m has a state x[m] and an interval dt[m]. In d > 1 dimensions the bins are a grid of `side` per coordinate.
    centered: the first bin lies around the cell's origin, not behind it, so that the bins' centers are the states of a
    lattice with as many nodes.
    """

    def __init__(self, head: Head, dt: Tensor, n_bins: int = 512, *, centered: bool = False) -> None:
        self.dim, self.clamped, self.extents = head.dim, head.clamped, head.extents
        if centered:
            self.extents = [(o - 0.5 * p / n_bins, p) for o, p in self.extents]
        self.side: int = 1 if head.is_constant else n_bins if self.dim == 1 else _side(head, n_bins)
        self.n_x: int = self.side**self.dim
        self.dt_edges, dt_nodes = _dt_groups(dt)
        axes = [o + (torch.arange(self.side, dtype=torch.float64) + 0.5) * (p / self.side) for o, p in self.extents]
        if self.dim == 1:
            self.x = axes[0].repeat(dt_nodes.shape[0])
        else:
            centers = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.dim)
            self.x = centers.repeat(dt_nodes.shape[0], 1)
        self.dt = dt_nodes.repeat_interleave(self.n_x)

    @property
    def n_groups(self) -> int:
        """Groups of dt."""
        return self.dt_edges.numel() + 1

    def group(self, dt: Tensor, n: int) -> Tensor:
        """Group of each pair's dt: (n,) int64, or empty when there is one group."""
        if not self.dt_edges.numel():
            return torch.empty(0, dtype=torch.int64)
        return torch.bucketize(dt.expand(n), self.dt_edges)

    def __len__(self) -> int:
        return self.x.shape[0]

    def index(self, x: Tensor, dt: Tensor) -> Tensor:
        """Node of each pair: (n,) int64."""
        index = torch.zeros(x.shape[0], dtype=torch.int64)
        if self.n_x > 1:
            columns = self.clamped(x).reshape(x.shape[0], -1).T
            for column, (o, p) in zip(columns, self.extents):
                at = torch.remainder(column - o, p) * (self.side / p)
                index = index * self.side + at.to(torch.int64).clamp_(max=self.side - 1)
        if self.dt_edges.numel():
            index = index + self.n_x * torch.bucketize(dt.expand(x.shape[0]), self.dt_edges)
        return index

    def are_states(self, x: Tensor) -> bool:
        """Whether every one of the states lies on the center of a bin (of a cell)."""
        ((origin, period),) = self.extents
        for part in (x[:64], x):  # a look at a few tells samples from a lattice
            at = torch.remainder(self.clamped(part) - origin, period) * (self.side / period) - 0.5
            if not bool(((at - at.round()).abs() < 1e-9 * self.side).all()):
                return False
        return True

    def held(self, coefficients: Callable[[Tensor], Coefficients]) -> Callable[[Tensor], Coefficients]:
        """Coefficient functions that are evaluated once per bin, for states that are centers of bins."""
        at_bins, no_dt = coefficients(self.x[: self.n_x]), torch.zeros((), dtype=torch.float64)

        def at(x: Tensor) -> Coefficients:
            bins = self.index(x, no_dt) % self.n_x
            return at_bins.each(lambda values: values[bins] if values.dim() else values)

        return at

    def counts(self, x: Tensor, dt: Tensor, chunk: int = CHUNK) -> Tensor:
        """How many pairs fall on each node: (M,)."""
        total = torch.zeros(len(self), dtype=torch.float64)
        for lo in range(0, x.shape[0], chunk):
            part = dt if dt.dim() == 0 else dt[lo : lo + chunk]
            total += torch.bincount(self.index(x[lo : lo + chunk], part), minlength=len(self))
        return total

    def coarser(self, head: Head, n_bins: int) -> StateBins:
        """Fewer bins of states, for the same groups of dt."""
        return StateBins(head, torch.unique(self.dt), n_bins)

    def means(self, values: Callable[[slice], Tensor], dt: Tensor) -> Tensor:
        """Mean of a per-pair quantity over each group of dt, at every node (thresholds that depend on dt)."""
        return _group_means(values, dt, self.dt_edges).repeat_interleave(self.n_x)


class InputBins(StateBins):
    """Bins of states times cells of their inputs, for heads of rows (x, inputs).

    Every input is cut at its quantiles; a cell stands for the means of the inputs in it. Cells without pairs do not
    exist.
    """

    def __init__(self, head: HeadOfInputs, dt: Tensor, inputs: Tensor, n_bins: int, fewer: int = 1) -> None:
        super().__init__(head, dt, min(n_bins, head.bins_beside_inputs) // fewer)
        states, state_dt, self.n_states = self.x.reshape(len(self.dt), -1), self.dt, len(self.dt)
        m = inputs.shape[1]
        levels = torch.linspace(0, 1, max(2, _CELLS.get(m, 6) // fewer) + 1, dtype=torch.float64)[1:-1]
        some = inputs[:: max(1, len(inputs) // 100_000)]
        self.edges = [torch.unique(torch.quantile(column, levels)) for column in some.T]
        codes = self._codes(inputs)
        self.codes, cell, count = torch.unique(codes, return_inverse=True, return_counts=True)
        means = torch.zeros((len(self.codes), m), dtype=torch.float64).index_add_(0, cell, inputs) / count[:, None]
        rows = [states.repeat_interleave(len(means), 0), means.repeat(len(states), 1)]
        self.x, self.dt = torch.cat(rows, dim=1), state_dt.repeat_interleave(len(means))

    def _codes(self, inputs: Tensor) -> Tensor:
        out = torch.zeros(len(inputs), dtype=torch.int64)
        for column, edges in zip(inputs.T, self.edges):
            out = out * (len(edges) + 1) + torch.bucketize(column.contiguous(), edges)
        return out

    def index(self, x: Tensor, dt: Tensor) -> Tensor:
        states = x[:, 0].contiguous() if self.dim == 1 else x[:, : self.dim]
        cell = torch.searchsorted(self.codes, self._codes(x[:, self.dim :])).clamp_(max=len(self.codes) - 1)
        return super().index(states, dt) * len(self.codes) + cell

    def are_states(self, x: Tensor) -> bool:
        return False

    def coarser(self, head: Head, n_bins: int) -> StateBins:
        """Fewer bins of states and cells of inputs, for the same groups of dt."""
        inputs = self.x[:, self.dim :]
        return InputBins(cast(HeadOfInputs, head), torch.unique(self.dt), inputs, n_bins, _FEWER)

    def means(self, values: Callable[[slice], Tensor], dt: Tensor) -> Tensor:
        return super().means(values, dt).repeat_interleave(len(self.codes))


def _side(head: Head, n_bins: int) -> int:
    """Bins per coordinate in d > 1: about 4 n_bins in all, and at least four per shortest wave of a Fourier head."""
    waves: int = (getattr(head, "n_basis", 1) - 1) // 2
    evenly: float = (4 * n_bins) ** (1 / head.dim)
    return max(4, round(evenly), 4 * waves if n_bins >= 256 else 0)


def _dt_groups(dt: Tensor) -> tuple[Tensor, Tensor]:
    """Edges between groups of dt and one dt per group: every distinct value while they are few, else quantiles."""
    flat = (dt[:1] if dt.dim() and dt.stride(0) == 0 else dt).reshape(-1).to(torch.float64)
    distinct = flat[:1].clone()
    for lo in range(0, flat.numel(), CHUNK):
        distinct = torch.unique(torch.cat([distinct, flat[lo : lo + CHUNK]]))
        if distinct.numel() > _MAX_DISTINCT_DT:
            break
    if distinct.numel() == 1:
        return torch.empty(0, dtype=torch.float64), distinct
    if distinct.numel() <= _MAX_DISTINCT_DT:
        return 0.5 * (distinct[1:] + distinct[:-1]), distinct
    cuts = torch.linspace(0, flat.numel() - 1, _DT_GROUPS + 1).long()
    ordered = order_statistics(cut(flat.numpy()), cuts[1:-1].tolist())
    edges = torch.unique(torch.tensor(ordered, dtype=torch.float64))
    return edges, _group_means(lambda rows: flat[rows], flat, edges)


def _group_means(values: Callable[[slice], Tensor], dt: Tensor, edges: Tensor) -> Tensor:
    """Mean of a per-pair quantity over each group of dt, pair after pair."""
    size = edges.numel() + 1
    total, number = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
    for lo in range(0, dt.shape[0], CHUNK):
        rows = slice(lo, min(lo + CHUNK, dt.shape[0]))
        group = torch.bucketize(dt[rows], edges)
        total.index_add_(0, group, values(rows).to(torch.float64))
        number += torch.bincount(group, minlength=size)
    return total / number.clamp(min=1)


@dataclass
class ScoreSums:
    """Weighted sums over pairs (not means): they add over chunks, pools and processes.

    first (C, M) and second (C, C, M): scores in the predictors and their products, per bin; `hessian` likewise holds
    second derivatives of log p in the predictors, when asked for.
    """

    n: float
    log_p: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    hessian: Tensor | None = None

    def __add__(self, other: ScoreSums) -> ScoreSums:
        hessian = None if self.hessian is None or other.hessian is None else self.hessian + other.hessian
        return ScoreSums(
            self.n + other.n,
            self.log_p + other.log_p,
            self.gradient + other.gradient,
            self.first + other.first,
            self.second + other.second,
            hessian,
        )

    def __sub__(self, other: ScoreSums) -> ScoreSums:
        hessian = None if self.hessian is None or other.hessian is None else self.hessian - other.hessian
        return ScoreSums(
            self.n - other.n,
            self.log_p - other.log_p,
            self.gradient - other.gradient,
            self.first - other.first,
            self.second - other.second,
            hessian,
        )


def slices(batch: Batch, chunk: int = CHUNK) -> Iterable[Batch]:
    """Views of consecutive pairs; a dt that all share becomes 0-d, which the law takes faster, and so does a weight."""
    dt, weight = shared(batch.dt), shared(batch.weight)
    for low in range(0, batch.x.shape[0], chunk):
        rows = slice(low, low + chunk)
        yield Batch(
            batch.x[rows],
            batch.dx[rows],
            dt if not dt.dim() else dt[rows],
            weight if not weight.dim() else weight[rows].to(torch.float64),
        )


def shared(values: Tensor) -> Tensor:
    """0-d where one number was expanded to all pairs."""
    return values[0] if values.dim() and values.shape[0] and values.stride(0) == 0 else values


def assemble(head: LinearHead, per_bin: Tensor, design: Sequence[Tensor]) -> Tensor:
    """(P, P) matrix Phi^T diag(.) Phi from per-bin (C, C, M) sums."""
    P = head.theta.numel()
    out = torch.zeros((P, P), dtype=torch.float64)
    parts = [head.part(i) for i in range(len(head.sizes))]  # predictors of a shared network have the same one
    for i in range(len(parts)):
        for j in range(i, len(parts)):
            block = (design[i] * per_bin[i, j]) @ design[j].T
            out[parts[i], parts[j]] += block
            if j > i:
                out[parts[j], parts[i]] += block.T
    return out


def project(head: LinearHead, per_bin: Tensor, design: Sequence[Tensor]) -> Tensor:
    """(..., P) vectors Phi^T v from per-bin (..., C, M) sums."""
    out = torch.zeros((*per_bin.shape[:-2], head.theta.numel()), dtype=torch.float64)
    for i in range(len(head.sizes)):
        out[..., head.part(i)] += per_bin[..., i, :] @ design[i].T
    return out


def where(log_p: Tensor, offset: int, x: Tensor, dx: Tensor) -> str:
    """The sentence about the first pair whose log p is not a number."""
    bad = int(torch.nonzero(~torch.isfinite(log_p))[0])
    return (
        f"log p must be finite, found {float(log_p[bad])} at pair {offset + bad} (x = {x[bad].tolist()}, "
        f"dx = {dx[bad].tolist()}); check that pair or remove it."
    )
