"""LevyDataModule: what batches estimate, which TCF they use, resuming, shards."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from levytorch import Dynamics, Transitions, simulate
from levytorch.data import FullBatch, LevyDataModule
from levytorch.data.batches import full_batch
from levytorch.data.drawing import AHEAD, Drawer
from levytorch.errors import InputError

TCF = 0.013


@dataclass
class Correction:
    """A TCF as the likelihood's correction holds it."""

    tcf: float


@pytest.fixture(scope="module")
def censored():
    return simulate(Dynamics.named("constant"), 2000, 40, 1 / 40, seed=3).transitions().censor(seed=2000)


@pytest.fixture(scope="module")
def uneven():
    rng = np.random.default_rng(0)
    return Transitions(rng.normal(size=5000), rng.standard_cauchy(5000), rng.uniform(0.5, 2.0, 5000))


def module(transitions, **options):
    return LevyDataModule(transitions, **{**dict(CT=8.0, TRT=20.0), **options})


def rows(drawer, step):
    """Which pairs of the main pool the batch of a step holds."""
    drawer.draw(step, 0.0)
    return drawer._rows[step % AHEAD]


def statistic(batch):
    """Something that looks at every field; like a score it is larger in the tail."""
    value = torch.log1p(batch.dx.abs()) + 0.1 * torch.sin(batch.x) + batch.dt
    return float((batch.weight * value).sum())


def objective(pools, tcf):
    """(1 - TCF) mean over main + TCF mean over tail, spelled out."""
    main = pools.main
    value = torch.log1p(main.dx.abs()) + 0.1 * torch.sin(main.x) + main.dt
    return float((1 - tcf) * value.mean() + tcf * value[pools.tail].mean())


@pytest.mark.parametrize("mixing", ["stratified", "bernoulli"])
@pytest.mark.parametrize("tcf", [0.0, TCF, 0.3])
def test_batches_estimate_the_objective(censored, mixing, tcf):
    data = module(censored, mixing=mixing)
    data.correction = Correction(tcf)
    found = [statistic(data.draw(step)) for step in range(4000)]
    assert np.mean(found) == pytest.approx(objective(data.pools, tcf), abs=4.5 * np.std(found) / np.sqrt(len(found)))


def test_stratified_batches_vary_less(censored):
    spread = []
    for mixing in ("stratified", "bernoulli"):
        data = module(censored, mixing=mixing)
        data.correction = Correction(0.1)
        spread.append(np.std([statistic(data.draw(step)) for step in range(1000)]))
    assert spread[0] < 0.5 * spread[1]


def test_both_pools_are_in_every_stratified_batch(censored):
    data = module(censored, tail_share=0.2)
    data.correction = Correction(TCF)
    pools = data.pools
    for step in (0, 1, 255, 256, 1000):
        batch = data.draw(step)
        tail = (batch.dx - pools.mu).abs() > 8
        assert int(tail.sum()) == 20
        R = (1 - TCF) * pools.R_sample + TCF
        assert float(batch.weight[tail].sum()) == pytest.approx(R)
        assert float(batch.weight.sum()) == pytest.approx(1.0)


def test_every_pair_has_the_same_chance_within_its_part(censored):
    small = censored[:3000]
    data = module(small, CT=1.0, batch_size=50)
    drawer = Drawer(data.pools, 50, "stratified", seed=1)
    counts = np.bincount(np.concatenate([rows(drawer, step) for step in range(6000)]), minlength=data.pools.n_main)
    is_tail = torch.isin(torch.arange(data.pools.n_main), data.pools.tail)
    for part, drawn in ((is_tail, drawer.n_tail), (~is_tail, 50 - drawer.n_tail)):
        expected = 6000 * drawn / int(part.sum())
        chi2 = ((counts[part.numpy()] - expected) ** 2 / expected).sum()
        n = int(part.sum())
        assert abs(chi2 - n) < 4.5 * np.sqrt(2 * n)


def test_bernoulli_chooses_the_tail_with_probability_tcf(censored):
    data = module(censored, mixing="bernoulli")
    data.correction = Correction(0.2)
    tails = [bool(((data.draw(step).dx - data.pools.mu).abs() > 8).all()) for step in range(2000)]
    assert np.mean(tails) == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 2000))
    data.correction = Correction(0.0)
    assert not any(bool(((data.draw(step).dx - data.pools.mu).abs() > 8).all()) for step in range(300))


@pytest.mark.parametrize("mixing", ["stratified", "bernoulli"])
def test_a_draw_depends_on_seed_and_step_alone(censored, mixing):
    one, two, other = (module(censored, mixing=mixing, seed=s) for s in (5, 5, 6))
    for step in (700, 3, 256, 3):
        assert all(torch.equal(a, b) for a, b in zip(one.draw(step), two.draw(step)))
        assert not torch.equal(one.draw(step).x, other.draw(step).x)
    assert not torch.equal(one.draw(1).x, one.draw(2).x)


def test_uneven_steps_travel_with_their_pairs(uneven):
    lookup = {x: (dx, dt) for x, dx, dt in zip(uneven.x.tolist(), uneven.dx.tolist(), uneven.dt.tolist())}
    for mixing in ("stratified", "bernoulli"):
        data = LevyDataModule(uneven, CT=3.0, alpha=0.5, mixing=mixing)
        data.correction = Correction(0.5)
        for step in range(5):
            batch = data.draw(step)
            assert [lookup[x] for x in batch.x.tolist()] == list(zip(batch.dx.tolist(), batch.dt.tolist()))


def test_without_a_tail_pool(censored):
    data = LevyDataModule(censored)
    assert (data.pools.R_sample, data.draw(0).x.shape) == (0.0, (100,))
    data.correction = Correction(0.1)  # there is nothing to mix
    assert data.tcf == 0.0


def test_a_tail_pool_of_everything():
    t = Transitions(np.zeros(100), np.random.default_rng(0).standard_cauchy(100), 0.1)
    data = LevyDataModule(t, CT=1e-12)
    data.correction = Correction(0.5)
    assert data.pools.R_sample == 1.0
    assert float(data.draw(0).weight.sum()) == pytest.approx(1.0)


def test_several_dimensions():
    rng = np.random.default_rng(0)
    plane = Transitions(rng.normal(size=(500, 2)), rng.standard_cauchy((500, 2)), 0.1)
    data = LevyDataModule(plane, CT=3.0)
    assert data.draw(0).dx.shape == (100, 2)
    full = LevyDataModule(plane, CT=3.0, full_batch=True, chunk_size=128)
    assert len(full.draw(0).main.x) == 500


# ------------------------------------------------------------------------------------------ full batch


def test_full_batches_are_the_objective(censored):
    data = module(censored, full_batch=True, chunk_size=1000)
    for tcf in (0.0, TCF, 0.4, -0.001):
        data.correction = Correction(tcf)
        full = data.draw(0)
        assert isinstance(full, FullBatch)
        chunks = list(full.chunks())
        assert max(len(batch.x) for batch in chunks) == 1000
        assert sum(float(batch.weight.sum()) for batch in chunks) == pytest.approx(1.0)
        assert sum(statistic(batch) for batch in chunks) == pytest.approx(objective(data.pools, tcf), rel=1e-12)


def test_full_batches_copy_nothing(censored):
    data = module(censored, full_batch=True, chunk_size=1000)
    second = list(data.draw(0).chunks())[1]
    assert second.x.data_ptr() == data.pools.main.x.data_ptr() + 8 * 1000


# ------------------------------------------------------------------------------------------ several processes


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_data_among_them(censored, world):
    pools = module(censored[:5000], CT=2.0).pools
    seen = []
    for rank in range(world):
        drawer = Drawer(pools, 100, "stratified", seed=1, rank=rank, world=world)
        seen.append(set(np.concatenate([rows(drawer, step) for step in range(2000)]).tolist()))
        assert not np.array_equal(rows(drawer, 0), rows(Drawer(pools, 100, "stratified", seed=1), 0))
    assert set.union(*seen) == set(range(pools.n_main))
    assert sum(len(s) for s in seen) == pools.n_main  # disjoint


def test_the_average_over_processes_is_the_objective(censored):
    pools = module(censored[:5000], CT=2.0).pools
    total = sum(statistic(batch) for batch in full_batch(pools, chunk=700)._replace(tcf=TCF).chunks())
    assert total == pytest.approx(objective(pools, TCF), rel=1e-12)
    drawers = [Drawer(pools, 100, "stratified", 1, rank=rank, world=3) for rank in range(3)]
    found = [np.mean([statistic(d.draw(step, TCF)) for d in drawers]) for step in range(3000)]
    assert np.mean(found) == pytest.approx(objective(pools, TCF), abs=4.5 * np.std(found) / np.sqrt(3000))


# ------------------------------------------------------------------------------------------ validation


def test_validation_splits_by_trajectory(censored):
    data = module(censored, validation=0.25, chunk_size=5000)
    trained, held = set(data.transitions.trajectory.tolist()), set(data.held_out.trajectory.tolist())
    assert not trained & held
    assert len(held) == 500
    assert len(data.transitions) + len(data.held_out) == len(censored)
    assert float(data.pools.mu) == float(censored.mu)
    batches = list(data.val_dataloader())
    assert len(batches) == len(data.val_dataloader())
    assert sum(float(batch.weight.sum()) for batch in batches) == pytest.approx(1.0)
    assert sum(len(batch.x) for batch in batches) == len(data.held_out)
    assert module(censored).val_dataloader() == []


def test_validation_of_a_single_trajectory_is_its_end(uneven):
    data = LevyDataModule(uneven, validation=0.2)
    assert torch.equal(data.held_out.x, uneven.x[4000:])


# -------------------------------------------------------------------------------------------------- under a trainer


class Recorder(lightning.LightningModule):
    """Remembers every batch; one parameter, so that there is something to save."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append((batch.x.clone(), batch.weight.clone(), self.trainer.datamodule.tcf))
        return (self.weight - (batch.weight * batch.dx).sum()) ** 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Raise(Callback):
    """Moves the TCF after every step, as the tail correction does."""

    def on_train_start(self, trainer, *_):
        trainer.datamodule.correction = Correction(0.001 * trainer.global_step)

    def on_train_batch_end(self, trainer, *_):
        trainer.datamodule.correction = Correction(0.001 * trainer.global_step)


def fit(data, steps, folder, resume=None, **options):
    model = Recorder()
    saver = ModelCheckpoint(folder, every_n_train_steps=7, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Raise(), saver], log_every_n_steps=1, **options,
    )  # fmt: skip
    trainer.fit(model, datamodule=data, ckpt_path=resume)
    return model


def test_a_batch_knows_the_tcf_of_its_own_step(censored, tmp_path):
    data = module(censored, max_steps=10)
    model = fit(data, 10, tmp_path)
    for step, (_, weight, tcf) in enumerate(model.seen):
        assert tcf == pytest.approx(0.001 * step)
        R = (1 - tcf) * data.pools.R_sample + tcf
        assert float(weight[: len(weight) // 10].sum()) == pytest.approx(R)


@pytest.mark.parametrize("max_steps", [30, 5])  # within an epoch, and over several
@pytest.mark.parametrize("mixing", ["stratified", "bernoulli"])
def test_resuming_draws_what_would_have_been_drawn(censored, tmp_path, mixing, max_steps):
    whole = fit(module(censored, max_steps=max_steps, mixing=mixing), 20, tmp_path / "a")
    fit(module(censored, max_steps=max_steps, mixing=mixing), 14, tmp_path / "b")
    last = next((tmp_path / "b").glob("*14.ckpt"))
    rest = fit(module(censored, max_steps=max_steps, mixing=mixing), 20, tmp_path / "c", resume=last)
    assert len(rest.seen) == 6
    for (x, weight, tcf), (x_again, weight_again, tcf_again) in zip(whole.seen[14:], rest.seen):
        assert torch.equal(x, x_again)
        assert torch.equal(weight, weight_again)
        assert tcf == tcf_again
    assert whole.weight.item() == rest.weight.item()


def test_state_restores_other_thresholds(censored):
    first = module(censored, CT=None)
    first.repool(8.0, 20.0)
    again = module(censored, CT=None)
    again.load_state_dict(first.state_dict())
    assert (again.pools.CT, again.pools.R_sample) == (8.0, first.pools.R_sample)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(mixing="even"), "mixing must be one of stratified, bernoulli"),
        (dict(batch_size=0), "batch_size must be a positive integer"),
        (dict(chunk_size=1.5), "chunk_size must be a positive integer"),
        (dict(max_steps=-1), "max_steps must be a positive integer"),
        (dict(validation=1.0), r"validation must lie in \[0, 1\)"),
        (dict(tail_share=0.0), r"tail_share must lie in \(0, 1\)"),
        (dict(seed=-1), "seed must be an integer"),
        (dict(CT=30.0), "CT must be smaller than TRT"),
        (dict(transitions=[1, 2]), "transitions must be Transitions, found list"),
    ],
)
def test_bad_input(censored, options, message):
    with pytest.raises(InputError, match=message):
        LevyDataModule(**{**dict(transitions=censored, CT=8.0, TRT=20.0), **options})


def test_numbers_of_numpy_are_numbers(censored):
    options = dict(transitions=censored, CT=np.float32(8), TRT=torch.tensor(20.0))
    data = LevyDataModule(**options, batch_size=np.int64(50), seed=np.int64(3), max_steps=np.int32(4))
    same = LevyDataModule(censored, CT=8.0, TRT=20.0, batch_size=50, seed=3, max_steps=4)
    assert torch.equal(data.draw(1).dx, same.draw(1).dx)
    state = data.state_dict()
    pairs = state.pop("pairs")
    assert state == {"step": 0, "CT": 8.0, "TRT": 20.0}
    assert {type(v) for v in [*state.values(), *pairs]} == {int, float}  # what a checkpoint may hold
    with pytest.raises(InputError, match="validation must be a finite number"):
        LevyDataModule(censored, validation="some")


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Under DDP processes see different pairs of different shares and keep the same parameter."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch, lightning\n"
        "from levytorch import Dynamics, simulate\n"
        "from levytorch.data import LevyDataModule\n"
        "from tests.data.test_module import Recorder\n"
        "t = simulate(Dynamics.named('constant'), 500, 40, 1 / 40, seed=3).transitions()\n"
        "data, model = LevyDataModule(t, CT=8.0, TRT=20.0, max_steps=5), Recorder()\n"
        "trainer = lightning.Trainer(max_steps=5, accelerator='cpu', devices=2, strategy='ddp', logger=False,\n"
        "                            enable_checkpointing=False, enable_progress_bar=False, "
        "enable_model_summary=False)\ntrainer.fit(model, datamodule=data)\n"
        "torch.save([[x for x, _, _ in model.seen], model.weight.item()], f'{sys.argv[1]}/{trainer.global_rank}.pt')\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    (first, weight), (second, same) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert weight == same
    assert not set(torch.cat(first).tolist()) & set(torch.cat(second).tolist())
