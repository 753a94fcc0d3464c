"""Block bootstrap: how much V would differ had another stretch of the same series been seen.

Blocks of consecutive transitions are drawn with replacement until there are as many transitions as in the data, the
coefficients are fitted again and V is solved again. Unlike V.std, which trusts the model, this sees what the model
leaves out as long as it lives within a block: clusters of volatility, dependent jumps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.data import Transitions
from levytorch.errors import LevytorchWarning, NumericalError


def block_rows(n: int, block: int, generator: torch.Generator) -> Tensor:
    """(n,) rows of a series of n transitions: whole blocks from random places, the last one cut to fit.

    Blocks wrap around the end, so that every transition is drawn equally often.
    """
    block = whole_number("block", block, 1, n, "give the length of a block")
    starts = torch.randint(n, (-(-n // block),), generator=generator)
    return ((starts[:, None] + torch.arange(block)) % n).reshape(-1)[:n]


@dataclass(frozen=True)
class Bootstrap:
    """Refits of one fit: `values` and `recoveries` of the replicas that worked, and what became of the others."""

    values: list[Any]
    recoveries: list[Any]
    block: int
    failed: int
    unconverged: int

    def std(self, x: Tensor) -> Tensor:
        """Standard deviation over the replicas at x."""
        return torch.stack([V(x) for V in self.values]).std(0)

    def numbers(self) -> dict[str, Any]:
        """What metrics.json says about the refits."""
        tcf = torch.tensor([float(recovery.tcf) for recovery in self.recoveries], dtype=torch.float64)
        alphas = [recovery.alpha for recovery in self.recoveries]
        out = {
            "kind": "block bootstrap: blocks of consecutive transitions, refitted",
            "replicas": len(self.values),
            "block": self.block,
            "failed": self.failed,
            "unconverged": self.unconverged,
            "tcf_sd": float(tcf.std()),
        }
        if not any(callable(alpha) for alpha in alphas):
            out["alpha_sd"] = float(torch.tensor(alphas, dtype=torch.float64).std())
        return out


def block_bootstrap(
    transitions: Transitions,
    refit: Callable[[Transitions], Any],
    solve: Callable[[Any], Any],
    *,
    replicas: int = 40,
    block: int = 240,
    seed: int = 0,
    progress: bool = False,
) -> Bootstrap:
    """Refit and solve on `replicas` resampled series.

    refit: transitions -> Recovery; solve: Recovery -> V. A replica whose fit or solve breaks down is left out and
    counted; with fewer than two left there is no band, which is refused.
    """
    from tqdm import tqdm

    replicas = whole_number("replicas", replicas, 2, remedy="40 give a band to about 11 %")
    n = len(transitions)
    generator = torch.Generator().manual_seed(seed)
    rows = [block_rows(n, block, generator) for _ in range(replicas)]
    values, recoveries, failed, unconverged = [], [], 0, 0
    for chosen in tqdm(rows, desc="bootstrap", unit=" refits", disable=not progress, leave=False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LevytorchWarning)  # counted below; one fit has said it already
                recovery = refit(transitions[chosen])
                V = solve(recovery)
        except (NumericalError, ArithmeticError):
            failed += 1
            continue
        unconverged += not recovery.converged
        values.append(V)
        recoveries.append(recovery)
    if len(values) < 2:
        raise NumericalError(
            f"at least two refits are needed for a band, found {len(values)} of {replicas} that worked; use longer "
            "blocks or a penalty."
        )
    if failed or unconverged:
        warnings.warn(
            f"of {replicas} refits {failed} broke down and {unconverged} had not converged: read the band with care.",
            LevytorchWarning,
            stacklevel=2,
        )
    return Bootstrap(values, recoveries, block, failed, unconverged)
