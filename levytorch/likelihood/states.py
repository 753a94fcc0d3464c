"""A histogram of the observed states: what stands for "all x" where a sum over samples only depends on the state.

Tail masses, kept masses and products of scores vary over x as slowly as the coefficients do, so that bins of a small
fraction of the shortest wave carry them; nothing of the size of the data is held.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.data.quantiles import cut, order_statistics

_MAX_DISTINCT_DT = 32
_DT_GROUPS = 16
CHUNK = 1 << 17  # pairs at a time


class StateBins:
    """Bins in x (one cell of the head's period, or its window on a line) times groups of dt.

    Node m has a state x[m] and an interval dt[m]. In d > 1 dimensions the bins are a grid of `side` per coordinate.
    centered: the first bin lies around the cell's origin, not behind it, so that the bins' centers are the states of a
    lattice with as many nodes.
    """

    def __init__(self, head: Head, dt: Tensor, n_bins: int = 512, *, centered: bool = False) -> None:
        self.dim, self.place, self.cell = head.dim, head.place, head.cell
        if centered:
            self.cell = [(o - 0.5 * p / n_bins, p) for o, p in self.cell]
        self.side = 1 if head.is_constant else n_bins if self.dim == 1 else _side(head, n_bins)
        self.n_x = self.side**self.dim
        self.dt_edges, dt_nodes = _dt_groups(dt)
        axes = [o + (torch.arange(self.side, dtype=torch.float64) + 0.5) * (p / self.side) for o, p in self.cell]
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
            columns = self.place(x).reshape(x.shape[0], -1).T
            for column, (o, p) in zip(columns, self.cell):
                cell = torch.remainder(column - o, p) * (self.side / p)
                index = index * self.side + cell.to(torch.int64).clamp_(max=self.side - 1)
        if self.dt_edges.numel():
            index = index + self.n_x * torch.bucketize(dt.expand(x.shape[0]), self.dt_edges)
        return index

    def are_states(self, x: Tensor) -> bool:
        """Whether every one of the states lies on the center of a bin (of a cell)."""
        ((origin, period),) = self.cell
        for part in (x[:64], x):  # a look at a few tells samples from a lattice
            places = torch.remainder(self.place(part) - origin, period) * (self.side / period) - 0.5
            if not bool(((places - places.round()).abs() < 1e-9 * self.side).all()):
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

    def means(self, values: Callable[[slice], Tensor], dt: Tensor) -> Tensor:
        """Mean of a per-pair quantity over each group of dt, at every node (thresholds that depend on dt)."""
        return _group_means(values, dt, self.dt_edges).repeat_interleave(self.n_x)


def _side(head: Head, n_bins: int) -> int:
    """Bins per coordinate in d > 1: about 4 n_bins in all, and at least four per shortest wave of a Fourier head."""
    waves = (getattr(head, "n_basis", 1) - 1) // 2
    return max(4, round((4 * n_bins) ** (1 / head.dim)), 4 * waves if n_bins >= 256 else 0)


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
