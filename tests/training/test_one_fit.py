"""recover and a Trainer drive the same fit: the same numbers, checkpoints of the reported model, resumption."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch

from levytorch import Dynamics, recover, simulate
from levytorch.errors import LevytorchWarning
from levytorch.training import selection
from levytorch.training.callbacks import Checkpoints
from levytorch.training.module import LevyModule
from levytorch.training.phases import last_layer, prepare
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train
from tests.golden import cases

VARIABLE = Dynamics.named("variable", alpha=0.3)
LINEAR = {"alpha": 0.3, "n_basis": 5}
NETWORK = {"law": "frozen", "alpha": 0.3, "coefficients": "mlp", "width": 4, "depth": 1, "max_steps": 6}
BATCHES = {"engine": "adamw", "max_steps": 40, "window": 10, "batch_size": 50, "patience": 3, "look_every": 5}
KINDS = {
    "frozen": LINEAR | {"law": "frozen"},
    "exact": LINEAR | {"law": "exact"},
    "corrected": LINEAR | {"law": "corrected"},
    "auto": LINEAR | {"law": "auto", "n_basis": 7},
    "tcf": LINEAR | {"law": "exact", "tail": {"CT": 2.0, "TRT": 20.0}},
    "strata": LINEAR | {"law": "frozen", "tail": {"CT": 2.0, "TRT": 20.0, "method": "conditional"}},
    "network": NETWORK,
    "adam": LINEAR | {"engine": "adam", "max_steps": 60, "window": 20},
    "adamw": NETWORK | BATCHES | {"validation": 0.2},
    "selection": {"alpha": 0.3, "n_basis": "auto", "law": "frozen", "tail": "auto"},
}
LONG, SLOW = ("strata", "adamw"), ("tcf", "exact", "auto", "selection")


def marked(kind):
    marks = [mark for mark, kinds in ((pytest.mark.long, LONG), (pytest.mark.slow, SLOW)) if kind in kinds]
    return pytest.param(kind, marks=marks)


@pytest.fixture(scope="module")
def pairs():
    return simulate(VARIABLE, 60, 40, 1 / 10, seed=2).transitions().censor(TRT=20.0, CT=2.0, drop_tail=0.3, seed=1)


class Keep(Checkpoints):
    """Keeps the checkpoint of every step."""

    def on_train_batch_end(self, trainer, *arguments):
        super().on_train_batch_end(trainer, *arguments)
        source = self.directory / "last.ckpt"
        if source.exists():
            shutil.copy(source, self.directory / f"{trainer.global_step:04d}.kept")


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return function(*arguments, **options)


@pytest.mark.parametrize("kind", map(marked, KINDS))
def test_a_trainer_gives_what_recover_gives_and_every_checkpoint_leads_there(kind, pairs, tmp_path):
    settings = KINDS[kind]
    found = quietly(recover, pairs, **settings)
    flags = {"enable_checkpointing": True}
    run = quietly(train, pairs, make_settings(**settings), callbacks=[Keep(tmp_path, every=10)], trainer=flags)
    assert torch.equal(run.recovery.theta, found.theta)
    assert run.recovery.log_likelihood == found.log_likelihood
    assert len(run.recovery.history) == len(found.history)
    assert run.recovery.metrics["law"] == found.metrics["law"]
    # the last checkpoint holds the reported model
    module = LevyModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(module.head.flat(), found.theta)
    kept = sorted(Path(tmp_path).glob("*.kept"))
    chosen = [kept[len(kept) // 2], kept[-2]] if kind not in SLOW else kept
    for checkpoint in chosen:
        again = quietly(train, pairs, make_settings(**settings), resume=str(checkpoint))
        assert torch.equal(again.recovery.theta, found.theta), checkpoint
        assert [e["step"] for e in again.recovery.history] == [e["step"] for e in found.history]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"n_basis": "auto", "tail": "auto"},
        {"n_basis": "auto", "coefficients": "spline", "period": None, "validation": 0.2},
        {"n_basis": 5, "engine": {"name": "fisher", "penalty": "cross_validation"}},
    ],
    ids=["n_basis and CT", "window", "penalty"],
)
def test_what_has_been_settled_is_in_the_checkpoint_and_is_not_settled_again(options, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "CANDIDATES", (1, 3, 5))
    monkeypatch.setattr(selection, "SPLINES", (1, 4, 6))
    monkeypatch.setattr(selection, "FACTORS", (10.0, 1.0, 0.1))
    settings = make_settings(**{"alpha": 0.3, "law": "frozen"} | options)
    flags = {"enable_checkpointing": True}
    run = quietly(train, pairs[:1000], settings, callbacks=[Keep(tmp_path, every=10)], trainer=flags)
    kept = sorted(tmp_path.glob("*.kept"))
    states = [torch.load(path, weights_only=True)["fit"]["phases"] for path in kept]
    # the first step settles thresholds and windows, each of the next looks at a candidate
    looked = run.recovery.metrics["steps_of"].get("prepare", 0)
    assert [len(phases) for phases in states][: looked + 1] == [1] * looked + [2]
    assert looked == (3 if options["n_basis"] == "auto" or "engine" in options else 0)
    assert run.recovery.history[looked - 1]["prepare/candidate"] == run.recovery.metrics["selection"]["candidates"][-1]
    monkeypatch.setattr(prepare, "problem_of", lambda *_: pytest.fail("prepared again"))
    for checkpoint in (kept[0], kept[looked // 2], kept[looked]):
        again = quietly(train, pairs[:1000], settings, resume=str(checkpoint))
        assert torch.equal(again.recovery.theta, run.recovery.theta), checkpoint
        assert again.recovery.metrics["selection"] == run.recovery.metrics["selection"]
        assert [e["step"] for e in again.recovery.history] == [e["step"] for e in run.recovery.history]
        assert again.module.hparams == run.module.hparams


@pytest.mark.slow
@pytest.mark.parametrize("space", ["torus", "line"])
def test_the_last_checkpoint_is_the_reported_model(space, tmp_path):
    """Also where the drift is corrected at the end, and where the exact law sees a padded head."""
    case = cases.Case("arrays", space, "corrected", "none", "none")
    flags = {"enable_checkpointing": True}
    settings = make_settings(**cases.settings(case))
    run = quietly(train, cases.data(case, tmp_path), settings, callbacks=[Checkpoints(tmp_path)], trainer=flags)
    module = LevyModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(module.head.flat(), run.recovery.theta)


@pytest.mark.long
def test_a_lattice_is_cut_to_the_window_in_both():
    system = Dynamics.named("double_well")
    pairs = simulate(system, 400, 50, 0.05, x0=0.0, seed=1).transitions()
    data = pairs.lattice(period=None)
    settings = {"alpha": 0.75, "n_basis": 7, "period": None, "window": (-1, 1), "law": "frozen"}
    found = quietly(recover, data, **settings)
    # up to pairs that a node at an end of the window stands for
    inside = int((pairs.x.abs() <= 1).sum())
    assert abs(found.metrics["n_main"] - inside) < 0.01 * len(pairs)
    assert found.metrics["left_out"]["outside the window"] == len(pairs) - found.metrics["n_main"]
    direct = quietly(recover, pairs, **settings)
    for one, other, error in zip(found.coefficients(0.5)[:3], direct.coefficients(0.5)[:3], direct.std(0.5)):
        assert abs(float(one - other)) < 0.5 * float(error)
    run = quietly(train, data, make_settings(**settings))
    assert torch.equal(run.recovery.theta, found.theta)


@pytest.mark.long
@pytest.mark.parametrize("head", [{"n_basis": 1}, {"coefficients": "mlp", "width": 4, "depth": 1, "last_layer": False}])
def test_the_reported_tcf_is_the_one_that_was_used(head):
    constants = Dynamics.named("constant", alpha=0.3)
    data = simulate(constants, 100, 40, 1 / 40, seed=2).transitions().censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=1)
    options = {"alpha": 0.3, "engine": "adam", "max_steps": 100, "window": 20, "log_every": 10, **head}
    for start in (1000, 10):
        tail = {"CT": 8.0, "TRT": 20.0, "start": start, "min_tail": 5}
        found = quietly(recover, data, **options, tail=tail)
        assert found.tcf == found.metrics["tcf"] == pytest.approx(found.history[-1]["tail/TCF"], rel=0.2)
        assert (found.tcf == 0.0) == (start == 1000)


def test_a_tail_correction_that_never_starts_is_a_warning(pairs):
    tail = {"CT": 2.0, "TRT": 20.0, "start": 100}
    with pytest.warns(LevytorchWarning, match="never mixed in"):
        found = recover(pairs, **LINEAR, engine="adam", max_steps=20, window=10, tail=tail)
    assert found.tcf == 0.0


def test_a_tail_correction_that_the_last_layer_alone_uses_is_no_warning(pairs, monkeypatch):
    monkeypatch.setattr(last_layer, "PASSES", 2)
    tail = {"CT": 2.0, "TRT": 20.0, "start": 100}
    network = {"alpha": 0.3, "coefficients": "mlp", "width": 4, "depth": 1}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = recover(pairs, **network, engine="adam", max_steps=20, window=10, tail=tail)
    assert found.tcf > 0
    assert not [one for one in told if "never mixed in" in str(one.message)]
