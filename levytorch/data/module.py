"""Data modules: pools, or a lattice alone, as batches for Lightning.

The next batch is mixed by the TCF of `correction`, which the fit's likelihood hands over and updates. The loaders have
a length, because Lightning fetches one batch ahead from loaders that do not, and that batch would know the TCF of the
step before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import lightning
import torch

from levytorch.convert import number_within, switch, whole_number
from levytorch.data.batches import (
    CHUNK,
    Batch,
    FullBatch,
    PoolFacts,
    Pools,
    check_data_options,
    check_transitions,
    full_batch,
    pools_of,
    split,
    wanted,
)
from levytorch.data.drawing import Drawer
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.data.thresholds import HALF_THE_INDEX, Threshold, check_thresholds
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError


class Correction(Protocol):
    """What mixes the pools: `TailCorrection` of the likelihood."""

    tcf: float


class BatchModule(lightning.LightningDataModule):
    """A data module that draws the batch of every step, mixed by the TCF of `correction`; its state is the step.

    observed: where tail masses come from; held_out: pairs of validation batches.
    """

    observed: Pools | Lattice
    held_out: Transitions | None = None

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self.max_steps = whole_number("max_steps", max_steps, 1)
        self.correction: Correction | None = None
        self._step = 0  # batches drawn so far

    @property
    def tcf(self) -> float:
        """The tail correction factor that the next batch will use."""
        return 0.0 if self.correction is None or self.observed.n_tail == 0 else float(self.correction.tcf)

    def draw(self, step: int) -> Batch | FullBatch:
        """The batch of a step."""
        raise NotImplementedError

    def train_dataloader(self) -> Steps:
        return Steps(self)

    def val_dataloader(self) -> Any:
        return []


class LevyDataModule(BatchModule):
    """Batches of transitions from the main and the tail pool.

    Args:
        transitions: the data.
        held_out: pairs of validation batches; None: those that `validation` splits off.
        CT, TRT: thresholds of the pools, see `make_pools`; CT = None has no tail pool.
        batch_size: pairs per step (the paper: 100).
        mixing: "stratified" (both pools in every batch) or "bernoulli" (the paper's choice of one pool per step).
        full_batch: every step sees all pairs, as a FullBatch of views.
        chunk_size: pairs per chunk of a full batch, and per validation batch.
        validation: fraction of the trajectories held out; of a single trajectory, its last part.
        seed: of the draws and of the split. Each process of several draws differently, from its own share.
        max_steps: steps per epoch, the length of the loader.
        tail_share: part of a stratified batch that comes from the tail pool.
        alpha: scales CT with dt when dt varies, see `make_pools`.
        lattice: whether full batches are a lattice of the data: "auto", "always" or "never".
        period_and_origin: of the head, which a lattice needs.
        min_tail: CT is halved until the tail pool holds this many pairs; None: a batch, as in the paper.
    """

    def __init__(
        self,
        transitions: Transitions,
        held_out: Transitions | None = None,
        *,
        CT: Threshold | None = None,
        TRT: Threshold | None = None,
        batch_size: int = 100,
        mixing: str = "stratified",
        full_batch: bool = False,
        chunk_size: int = CHUNK,
        validation: float = 0.0,
        seed: int = 0,
        max_steps: int = 40_000,
        tail_share: float = 0.1,
        alpha: float | None = None,
        min_tail: int | None = None,
        lattice: str = "auto",
        period_and_origin: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(max_steps)
        check_transitions(transitions)
        checked = check_data_options(
            dict(batch_size=batch_size, chunk_size=chunk_size, mixing=mixing, validation=validation, lattice=lattice)
        )
        self._wish, self._period_and_origin = lattice, period_and_origin
        self.batch_size, self.chunk_size, self.mixing = (checked[k] for k in ("batch_size", "chunk_size", "mixing"))
        self.tail_share = number_within("tail_share", tail_share, "(0, 1)", "pass the tail's part of a batch")
        self.full_batch = switch("full_batch", full_batch)
        self.seed = whole_number("seed", seed, 0, 2**63 - 1)
        self.alpha = None if alpha is None else number_within("alpha", alpha, "(0, 1)", HALF_THE_INDEX)
        self.min_tail = self.batch_size if min_tail is None else whole_number("min_tail", min_tail, 1)
        self.transitions, own = split(transitions, checked["validation"], self.seed)
        self.held_out = own if held_out is None else held_out
        self.repool(CT, TRT)

    # ------------------------------------------------------------------------------------------------ pools and the TCF

    def repool(self, CT: Threshold | None, TRT: Threshold | None = None) -> None:
        """Build the pools again, with other thresholds (Appendix A needs a preliminary fit before it can name CT)."""
        # plain floats: a NumPy number would make a checkpoint that weights-only loading refuses
        self._asked = check_thresholds(CT, TRT, self.transitions.dt)
        min_tail = min(self.min_tail, len(self.transitions))
        self.pools: Pools = pools_of(self.transitions, *self._asked, min_tail, self.alpha)
        self.observed = self.pools
        self._drawers: dict[tuple[int, int], Drawer] = {}
        self._full: FullBatch | None = None
        self._lattice: Lattice | None = None
        self._as_lattice = (
            self.full_batch and self._period_and_origin is not None and wanted(self.pools.data, self._wish)
        )

    def facts(self) -> PoolFacts:
        """What a fit reports of its data."""
        return PoolFacts.of(self.pools)

    # ---------------------------------------------------------------------------------------------------------- batches

    def draw(self, step: int) -> Batch | FullBatch:
        """The batch of a step: depends on the seed, the process, the step and the present TCF, on nothing else."""
        trainer = self.trainer
        shard = (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
        if self.full_batch:
            return self.everything()._replace(tcf=self.tcf)
        if shard not in self._drawers:
            settings = (self.batch_size, self.mixing, self.seed, self.tail_share)
            self._drawers[shard] = Drawer(self.pools, *settings, *shard)
        return self._drawers[shard].draw(step, self.tcf)

    @property
    def lattice(self) -> Lattice | None:
        """The lattice that full batches are made of; None where they are made of the pairs."""
        if self._lattice is None and self._as_lattice:
            assert self._period_and_origin is not None
            self._lattice = lattice_of(self.pools, *self._period_and_origin)
        return self._lattice

    def everything(self) -> FullBatch:
        """All of the data as one batch, the same tensors every time: an engine sees by them that it is the same."""
        if self._full is None:
            lattice = self.lattice
            self._full = full_batch(self.pools, self.chunk_size) if lattice is None else lattice.full_batch()
        return self._full

    def val_dataloader(self) -> Any:
        return [] if self.held_out is None else HeldOut(self.held_out, self.chunk_size)

    # ----------------------------------------------------------------------------------------------------------- resume

    def state_dict(self) -> dict[str, Any]:
        """The step and the thresholds in use (functions of dt are not saved: pass them again)."""
        CT, TRT = (value if not callable(value) else None for value in self._asked)
        return {"step": self._step, "CT": CT, "TRT": TRT, "pairs": fingerprint(self.transitions)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["pairs"] != fingerprint(self.transitions):
            raise InputError(
                f"a resumed run must have the data it was started with, found {len(self.transitions)} pairs that are "
                f"not its {state_dict['pairs'][0]:.0f}; name that file, or start a new run."
            )
        CT, TRT = state_dict["CT"], state_dict["TRT"]
        if self._asked != (CT, TRT) and not any(callable(value) for value in self._asked):
            self.repool(CT, TRT)
        self._step = int(state_dict["step"])


class Steps:
    """`max_steps` batches per epoch, each drawn when it is requested; continues where a resumed run stopped."""

    def __init__(self, module: BatchModule) -> None:
        self.module = module

    def __len__(self) -> int:
        return self.module.max_steps

    def state_dict(self) -> dict[str, Any]:
        """Tells Lightning that a resumed run continues with the next step and not with the first."""
        return {"step": self.module._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module._step = int(state_dict["step"])

    def __iter__(self) -> Iterator[Batch | FullBatch]:
        module = self.module
        for _ in range(module._step % len(self), len(self)):
            batch = module.draw(module._step)
            module._step += 1
            yield batch


class HeldOut:
    """The held-out pairs in chunks; the weights of all of them sum to one."""

    def __init__(self, transitions: Transitions, chunk_size: int = CHUNK) -> None:
        self.transitions, self.chunk_size = transitions, chunk_size

    def __len__(self) -> int:
        return -(-len(self.transitions) // self.chunk_size)

    def __iter__(self) -> Iterator[Batch]:
        t, n = self.transitions, len(self.transitions)
        weight = torch.full((1,), 1.0 / n, dtype=torch.float64)
        for low in range(0, n, self.chunk_size):
            rows = slice(low, min(low + self.chunk_size, n))
            yield Batch(t.x[rows], t.dx[rows], t.dt[rows], weight.expand(rows.stop - low))


def fingerprint(data: Transitions | Lattice) -> list[float]:
    """A fingerprint of the data of constant size: the number of pairs, and some of them."""
    if isinstance(data, Lattice):
        batch = data.full_batch().main
        sums = float(batch.weight.abs().sum()), float((batch.weight * batch.dx).sum())
        return [float(data.n_main), float(len(batch.weight)), *sums]
    rows = torch.linspace(0, len(data) - 1, min(len(data), 64), dtype=torch.float64).long()
    return [float(len(data)), *(float(part[rows].sum()) for part in (data.x, data.dx))]
