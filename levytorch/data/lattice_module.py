"""LatticeModule: a lattice as batches for Lightning, where the pairs themselves are no longer there."""

from __future__ import annotations

from typing import Any

import lightning

from levytorch.convert import whole_number
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.module import Correction, Steps
from levytorch.data.pools import PoolFacts
from levytorch.errors import InputError


class LatticeModule(lightning.LightningDataModule):
    """Every step of a full-batch engine sees all of a lattice, its pools mixed by the TCF of `correction`.

    Under several processes each holds the whole lattice, and none has a share of its own.
    """

    held_out = None

    def __init__(self, lattice: Lattice, *, max_steps: int = 60) -> None:
        super().__init__()
        if not isinstance(lattice, Lattice):
            raise InputError(f"lattice must be a Lattice, found {type(lattice).__name__}; load one, or make one.")
        self.lattice = self.observed = lattice
        self.max_steps = whole_number("max_steps", max_steps, 1)
        self.correction: Correction | None = None
        self._batch = lattice.full_batch()
        self._step = 0

    @property
    def tcf(self) -> float:
        """The tail correction factor that the next batch will use."""
        return 0.0 if self.correction is None or not self.lattice.n_tail else float(self.correction.tcf)

    def facts(self) -> PoolFacts:
        """What a fit reports of its data."""
        return self.lattice.facts()

    def draw(self, step: int) -> FullBatch:
        """The batch of a step."""
        return self._batch._replace(tcf=self.tcf)

    def everything(self, rank: int = 0, world: int = 1) -> FullBatch:
        """All of the data as one batch."""
        return self._batch

    def behind(self, rank: int = 0, world: int = 1) -> None:
        """There are no pairs behind this lattice."""

    def train_dataloader(self) -> Steps:
        return Steps(self)

    def val_dataloader(self) -> list[Any]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "lattice": self._fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["lattice"] != self._fingerprint():
            raise InputError(
                f"a resumed run needs the lattice it was started with, found one of {self.lattice.n_main} pairs that "
                f"is not its own of {state_dict['lattice'][0]:.0f}; name that file, or start a new run."
            )
        self._step = int(state_dict["step"])

    def _fingerprint(self) -> list[float]:
        """What tells this lattice from others."""
        weight, dx = self._batch.main.weight, self._batch.main.dx
        return [float(self.lattice.n_main), float(len(weight)), float(weight.abs().sum()), float((weight * dx).sum())]
