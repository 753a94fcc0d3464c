"""Mini-batches for networks: schedules, weight decay, clipping, early stopping, averages, and the last layer."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from levytorch import Recovery, recover
from levytorch.coefficients.mlp import MLPHead
from levytorch.coefficients.network import parameters_of_features
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.averaging import HeldOutWatch
from levytorch.training.engines.adam import SCHEDULES, AdamWEngine
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train
from tests.training.problems import ALPHA, truth, variable

SMALL = {"alpha": ALPHA, "coefficients": "mlp", "width": 8, "engine": "adamw", "law": "frozen"}
SHORT = SMALL | {"max_steps": 60, "window": 20, "batch_size": 64, "look_every": 5}


def likelihood_of(data) -> tuple[Likelihood, Batch]:
    torch.manual_seed(0)
    batch = Batch(data.x[:256], data.dx[:256], data.dt[:256], torch.full((256,), 1 / 256, dtype=torch.float64))
    return Likelihood(MLPHead(width=4), FrozenLaw()), batch


def test_the_one_cycle_schedule_is_that_of_torch():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50, cycle_momentum=False)
    for step in range(50):
        assert SCHEDULES["one_cycle"](step, 50) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_the_cosine_schedule_is_that_of_torch():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    for step in range(30):
        assert SCHEDULES["cosine"](step, 30) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_a_step_is_that_of_torch_with_decay_of_weights_alone_and_a_clipped_gradient():
    likelihood, batch = likelihood_of(variable(20_000))
    head, engine = likelihood.head, AdamWEngine(clip=0.01, weight_decay=0.3, max_steps=10)
    before = {name: p.detach().clone() for name, p in head.named_parameters()}
    optimizer = engine.optimizer(likelihood)
    engine.step(likelihood, optimizer, batch, 3)
    gradients = [p.grad for p in head.parameters()]
    assert torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients])) <= 0.01 * (1 + 1e-6)
    lr = 0.01 * SCHEDULES["one_cycle"](3, 10)
    for name, p in head.named_parameters():
        # the first step of Adam is lr in the direction of the sign of every gradient
        moved = lr * p.grad / (p.grad.abs() + engine.eps)
        free = name in {f"nets.{net}.4.bias" for net in ("b", "D_o", "D_f")}
        decay = 1.0 if free else 1.0 - 0.3 * lr
        torch.testing.assert_close(p.detach(), decay * before[name] - moved, rtol=1e-9, atol=1e-12)


def test_a_watch_stops_when_held_out_pairs_get_worse_and_keeps_the_best():
    data = variable(20_000)
    likelihood, _ = likelihood_of(data)
    head = likelihood.head
    head.set_constants(0.0, 2.0, 2.0)
    good = head.flat()
    watch = HeldOutWatch(likelihood, data[:2000], every=2, patience=3)
    path = [good + 0.5 * k for k in range(4) for _ in range(2)]
    for i, theta in enumerate(path):
        assert watch.stopped == (i >= 8)
        head.set_flat(theta)
        watch.add(theta)
    assert watch.stopped
    assert torch.equal(watch.best, good)
    again = HeldOutWatch(likelihood, data[:2000], every=2, patience=3)
    again.load_state_dict(watch.state_dict())
    assert again.stopped
    assert torch.equal(again.best, good)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_a_fit_stops_early_on_held_out_pairs_alone():
    data = variable(20_000)[:2000]
    options = SHORT | {"lr": 3.0, "clip": 0.0, "last_layer": False}
    stopped = recover(data, **options, validation=0.3, patience=1)
    assert 5 <= stopped.metrics["steps_of"]["frozen"] < 60
    assert recover(data, **options, patience=1).metrics["steps_of"]["frozen"] == 60


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_the_last_layer_is_at_its_maximum_and_all_others_stay():
    data = variable(20_000)
    found = recover(data, **SHORT)
    alone = recover(data, **SHORT, last_layer=False)
    assert found.converged
    assert found.metrics["steps_of"]["last_layer"] > 1
    features = parameters_of_features(found.head)
    for (name, p), (_, q) in zip(found.head.named_parameters(), alone.head.named_parameters()):
        assert torch.equal(p, q) == (name in features)
    assert found.log_likelihood > alone.log_likelihood
    # errors only of what the last layer can do, and of no other parameter
    moved = found.covariance.abs().sum(0) > 0
    names = [name for name, p in found.head.named_parameters() for _ in range(p.numel())]
    assert {name for name, at in zip(names, moved.tolist()) if at}.isdisjoint(features)
    assert alone.covariance is None
    assert all(bool((s > 0).all()) for s in found.std(torch.linspace(0, 6, 5)))


def test_a_tangent_of_the_last_layer_is_the_network_itself():
    head = MLPHead(width=5, trained="last_layer")
    tangent = TangentHead(head, head.grid(64))
    torch.manual_seed(1)
    z = tangent.z0 + torch.randn_like(tangent.z0)
    tangent.set_flat(z)
    head.set_flat(tangent.parameters_of_head())
    for one, other in zip(tangent(head.grid(50))[:3], head(head.grid(50))[:3]):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_a_saved_recovery_knows_that_only_its_last_layer_was_judged(tmp_path):
    found = recover(variable(20_000), **SHORT)
    found.save(tmp_path / "found.pt")
    again = Recovery.load(tmp_path / "found.pt")
    assert again.head.fixed == found.head.fixed != frozenset()
    x = torch.linspace(0, 6, 7)
    for one, other in zip(found.std(x), again.std(x)):
        assert torch.equal(one, other)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_early_stopping_of_lightning_ends_the_mini_batches_and_the_last_layer_follows():
    settings = make_settings(**SHORT, validation=0.2, patience=0)
    stop = EarlyStopping("val/nll", patience=1, min_delta=1e6)  # no likelihood is that much better than the first one
    run = train(variable(20_000)[:4000], settings, callbacks=[stop], trainer={"val_check_interval": 10})
    assert run.recovery.metrics["steps_of"]["frozen"] == 20  # after the second look; the first step was to prepare
    assert run.recovery.metrics["steps_of"]["last_layer"] > 0
    assert run.recovery.converged
    assert isinstance(run.trainer, L.Trainer)


def test_weights_of_a_series_do_not_decay():
    with pytest.raises(InputError, match="engine adamw must have a network"):
        recover(variable(20_000), alpha=ALPHA, n_basis=5, engine="adamw")


@pytest.mark.slow
def test_mini_batches_come_close_to_fisher_scoring():
    x = torch.linspace(0, 6.2, 100, dtype=torch.float64)
    data = variable(60_000)
    errors = []
    for engine in ("auto", "adamw"):
        found = recover(data, **SMALL | {"engine": engine, "width": 16})
        assert found.converged
        errors.append([float((v - t).norm() / t.norm()) for v, t in zip(found.coefficients(x)[:3], truth(x))])
    for fisher, adamw in zip(*errors):
        assert adamw < 2.0 * fisher + 0.01
