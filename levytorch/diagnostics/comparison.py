"""Models side by side: log-likelihood per pair with its standard error from blocks of the data, differences, AIC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.training.blocks import N_BLOCKS

_CLEAR = 2.0  # standard errors


@dataclass
class Row:
    """One model: log-likelihood per pair and its standard error, the same of its difference to the best, AIC (smaller
    is better), parameters (a penalty counts them by what it leaves of them)."""

    model: str
    log_likelihood: float
    std: float
    difference: float
    difference_std: float
    aic: float
    parameters: float


@dataclass
class Comparison:
    """rows: best first; held_out: whether the likelihood is that of trajectories a fit has not seen; sentence: what
    it comes to."""

    rows: list[Row]
    held_out: bool
    n_pairs: int
    sentence: str

    @property
    def preferred(self) -> str:
        """The model with the largest log-likelihood."""
        return self.rows[0].model

    def __repr__(self) -> str:
        width = max(len("model"), *(len(row.model) for row in self.rows))
        kind = "held-out " if self.held_out else ""
        lines = [f"{'model':{width}}  {kind + 'log p per pair':>24}  {'difference':>20}  {'AIC':>14}  parameters"]
        for row in self.rows:
            value = f"{row.log_likelihood:.6f} ({row.std:.6f})"
            apart = "" if row is self.rows[0] else f"{row.difference:.2e} ({row.difference_std:.1e})"
            lines.append(f"{row.model:{width}}  {value:>24}  {apart:>20}  {row.aic:14.1f}  {row.parameters:10.1f}")
        return "\n".join([*lines, self.sentence])


@dataclass
class ComparedModel:
    """What one model makes of blocks of the data."""

    name: str
    blocks: Tensor  # (n_blocks,) log-likelihoods
    total: float  # of the data a fit has seen, for AIC
    parameters: float


def block_of(pairs: Transitions) -> tuple[Tensor, int]:
    """The block of every pair, (n,) int64, and how many blocks there are."""
    ids = torch.empty(len(pairs), dtype=torch.int64)
    n_blocks = min(N_BLOCKS, len(pairs))
    for block, (starts, stops) in enumerate(pairs.membership.runs_by_block(n_blocks)):
        for start, stop in zip(starts.tolist(), stops.tolist()):
            ids[start:stop] = block
    return ids, n_blocks


def ranked(models: list[ComparedModel], pairs: Tensor, held_out: bool) -> Comparison:
    """Best first; pairs: (n_blocks,) numbers of pairs."""
    n = float(pairs.sum())
    order = sorted(models, key=lambda model: -float(model.blocks.sum()))
    best = order[0]
    rows = []
    for model in order:
        mean, std = _mean(model.blocks, pairs)
        apart, apart_std = _mean(model.blocks - best.blocks, pairs)
        aic = 2 * model.parameters - 2 * model.total
        rows.append(Row(model.name, mean, std, apart, apart_std, aic, model.parameters))
    return Comparison(rows, held_out, round(n), _sentence(rows, n))


def _mean(blocks: Tensor, pairs: Tensor) -> tuple[float, float]:
    """Per pair, and the standard error from the scatter of blocks."""
    n, used = float(pairs.sum()), int((pairs > 0).sum())
    mean = float(blocks.sum()) / n
    if used < 2:
        return mean, math.nan
    return mean, float(((blocks - mean * pairs).square().sum() * used / (used - 1)).sqrt()) / n


def _sentence(rows: list[Row], n: float) -> str:
    if len(rows) == 1:
        return f"There is nothing to compare {rows[0].model} with."
    best, second = rows[:2]
    gain, error = -second.difference, second.difference_std
    errors = gain / error if error > 0 else math.inf
    if errors >= _CLEAR:
        return (
            f"{best.model} is preferred: {gain * n:.1f} in log-likelihood over {n:.0f} pairs to the next, "
            f"{second.model}, which is {errors:.1f} standard errors."
        )
    simplest = min((r for r in rows if -r.difference < _CLEAR * r.difference_std or r is best), key=_parameters_of)
    return (
        f"The data does not tell {best.model} and {second.model} apart ({gain * n:.1f} in log-likelihood, {errors:.1f} "
        f"standard errors); the simplest of those it does not is {simplest.model}."
    )


def _parameters_of(row: Row) -> float:
    return row.parameters
