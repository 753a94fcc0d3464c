"""The module on its own under a Lightning trainer: any loader of weighted batches, no data module of ours."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from levytorch import recover
from levytorch.data.batches import Batch
from levytorch.errors import InputError
from levytorch.training.module import LevyModule
from tests.training.problems import ALPHA, constant

HEAD = {"name": "fourier", "n_basis": 1, "alpha": ALPHA, "length": 0.4, "time": 1 / 40}


def trainer(steps: int) -> L.Trainer:
    return L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def weighted(n: int = 4000) -> Batch:
    """Every second pair twice as heavy as a repetition of it."""
    data = constant(n, 1)
    return Batch(data.x, data.dx, data.dt.clone(), 1.0 + torch.arange(n, dtype=torch.float64) % 2)


def test_a_full_batch_engine_fits_whatever_batch_it_is_handed():
    batch = weighted()
    module = LevyModule(HEAD, {"name": "fisher"})
    trainer(12).fit(module, DataLoader([batch] * 12, batch_size=None))
    rows = torch.repeat_interleave(torch.arange(len(batch.x)), batch.weight.long())
    data = constant(4000, 1)
    repeated = type(data)(data.x[rows], data.dx[rows], data.dt[0])
    found = recover(repeated, alpha=ALPHA, n_basis=1)
    c = module.head(torch.zeros(1, dtype=torch.float64))
    # both stop within a thousandth of a standard error of the maximum
    for mine, theirs, error in zip(c[:3], found.coefficients(0.0)[:3], found.std(0.0)):
        assert abs(float(mine) - float(theirs)) < 2e-3 * float(error)


def test_drawn_batches_of_a_torch_loader_reach_adam():
    batch = weighted()
    loader = DataLoader(TensorDataset(*batch), batch_size=200)
    module = LevyModule(HEAD, {"name": "adam", "max_steps": 20})
    with torch.no_grad():
        before = -(batch.weight * module.likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum()
    trainer(20).fit(module, loader)
    with torch.no_grad():
        after = -(batch.weight * module.likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum()
    assert float(after) < float(before) - 100


def test_lost_tails_need_to_know_the_observed_states():
    module = LevyModule(HEAD, {"name": "adam", "max_steps": 2}, {"CT": 2.0, "TRT": 20.0, "method": "conditional"})
    with pytest.raises(InputError, match=r"needs the observed states and thresholds.*use a LevyDataModule"):
        trainer(2).fit(module, DataLoader([weighted(100)], batch_size=None))
