"""The module on its own under a Lightning trainer: any loader of weighted batches, no data module of ours."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from levytorch import recover
from levytorch.coefficients import FourierHead, build_head
from levytorch.data.batches import Batch
from levytorch.errors import InputError
from levytorch.likelihood.tail import TailSettings
from levytorch.training.engines.adam import AdamEngine
from levytorch.training.module import LevyModule
from tests.training.problems import ALPHA, D_F, D_O, B, constant

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


def test_a_recovery_of_a_fit_without_data_of_its_own():
    batch = weighted()
    module = LevyModule(HEAD, {"name": "fisher"})
    trainer(12).fit(module, DataLoader([batch] * 12, batch_size=None))
    found = module.fit.recovery()
    assert torch.equal(found.theta, module.head.flat())
    assert (found.law, found.metrics["steps"]) == ("frozen", 12)
    # weights count like repetitions: four standard errors of each constant hold the truth
    for value, error, true in zip(found.coefficients(0.0)[:3], found.std(0.0), (B, D_O, D_F)):
        assert abs(float(value) - true) < 4 * float(error)


def doubled(batch: Batch) -> Batch:
    return batch._replace(dx=2 * batch.dx)


def heavier(batch: Batch) -> Batch:
    return batch._replace(weight=batch.weight * (1 + (batch.dx.abs() < batch.dx.abs().median())))


@pytest.mark.parametrize("change", [doubled, heavier])
def test_a_full_batch_engine_follows_when_another_batch_comes(change):
    first, ends = weighted(), []
    for batches in ([first] * 8 + [change(first)] * 15, [change(first)] * 15):
        module = LevyModule(HEAD, {"name": "fisher"})
        trainer(len(batches)).fit(module, DataLoader(batches, batch_size=None))
        assert module.fit.phase.engine.converged(module.fit.phase.optimizer)
        ends.append(module.head.flat())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)  # converged to a thousandth of a standard error


def test_batches_that_all_differ_are_each_a_step():
    batches = [weighted(), doubled(weighted())] * 4
    module = LevyModule(HEAD, {"name": "fisher"})
    trainer(8).fit(module, DataLoader(batches, batch_size=None))
    after_doubled = float(module.head(torch.zeros(1, dtype=torch.float64)).D_o)
    trainer(9).fit(module := LevyModule(HEAD, {"name": "fisher"}), DataLoader([*batches, weighted()], batch_size=None))
    assert float(module.head(torch.zeros(1, dtype=torch.float64)).D_o) < 0.8 * after_doubled


def test_held_out_batches_of_a_torch_loader():
    batch = weighted(400)
    loader = DataLoader(TensorDataset(*batch), batch_size=200)
    module = LevyModule(HEAD, {"name": "adam", "max_steps": 4})
    (told,) = trainer(4).validate(module, loader, verbose=False)
    with torch.no_grad():
        expected = -(batch.weight * module.likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum()
    assert told["val/nll"] == pytest.approx(float(expected), rel=1e-6)
    trainer(4).fit(module, loader, loader)
    assert float(trainer(4).validate(module, loader, verbose=False)[0]["val/nll"]) < told["val/nll"]


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
    with pytest.raises(InputError, match=r"must have the observed states and thresholds.*use a LevyDataModule"):
        trainer(2).fit(module, DataLoader([weighted(100)], batch_size=None))


def test_head_and_engine_objects_are_used_as_they_are():
    head, engine, tail = build_head(HEAD), AdamEngine(max_steps=3), TailSettings("conditional", CT=2.0, TRT=20.0)
    module = LevyModule(head, engine, tail)
    assert module.head is head
    assert module.engine is engine
    assert module.likelihood.tail is tail
    assert module.hparams["engine"] == engine.config()
    again = LevyModule(**module.hparams)
    assert again.engine == engine
    assert again.likelihood.tail == tail
    assert again.head.config() == head.config()

    class Mine(FourierHead):
        pass

    assert "head" not in LevyModule(Mine(1), engine).hparams  # it would come back as another
