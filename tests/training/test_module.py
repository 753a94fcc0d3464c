"""The LightningModule and its checkpoints: plain contents, bad numbers, held-out data, resuming in one process."""

import warnings

import pytest
import torch

from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.training.callbacks import Checkpoints
from levytorch.training.module import LevyModule
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train as fit
from tests.training.problems import ALPHA, constant

pytestmark = pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
TAIL = {"CT": 2.0, "TRT": 20.0, "start": 10}


def run(tmp_path, name, *, n=4000, resume=None, **options):
    settings = make_settings(**{"alpha": ALPHA, "n_basis": 3, "tail": TAIL, "log_every": 5} | options)
    checkpoints = Checkpoints(tmp_path / name, every=20)
    return fit(
        constant(n, 1).censor(),
        settings,
        callbacks=[checkpoints],
        trainer={"enable_checkpointing": True},
        resume=resume,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "adam", "max_steps": 90, "window": 40},
        pytest.param(
            {"engine": "adam", "max_steps": 90, "window": 40, "mixing": "bernoulli", "gradient": "mixture"},
            marks=pytest.mark.long,
        ),
        pytest.param({"engine": "fisher", "tolerance": 1e-16}, marks=pytest.mark.long),
        {"engine": "lbfgs", "max_steps": 6, "iterations": 2, "law": "frozen"},
        {"engine": "fisher", "penalty": "evidence", "law": "frozen"},
    ],
    ids=["adam", "adam-mixture", "fisher", "lbfgs", "penalty"],
)
def test_interrupted_and_resumed_is_uninterrupted(tmp_path, options, monkeypatch):
    whole = run(tmp_path, "whole", **options)
    calls = {"left": 33 if options["engine"] == "adam" else 2}
    step = LevyModule.training_step

    def failing(self, batch, batch_idx):
        calls["left"] -= 1
        if calls["left"] < 0:
            raise KeyError("stop here")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(LevyModule, "training_step", failing)
    with pytest.raises(KeyError):
        run(tmp_path, "parts", **options)
    monkeypatch.setattr(LevyModule, "training_step", step)
    assert (tmp_path / "parts" / "last.ckpt").exists()
    again = run(tmp_path, "parts", resume=str(tmp_path / "parts" / "last.ckpt"), **options)
    if options["engine"] == "adam":
        assert torch.equal(whole.recovery.theta, again.recovery.theta)
        assert whole.recovery.tcf == again.recovery.tcf
    else:
        torch.testing.assert_close(again.recovery.theta, whole.recovery.theta, rtol=1e-10, atol=1e-10)
    assert [e["step"] for e in again.recovery.history] == [e["step"] for e in whole.recovery.history]


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "adam", "max_steps": 20, "window": 10, "n_basis": 1},
        {"engine": "fisher", "law": "frozen"},
        pytest.param({"engine": "lbfgs"}, marks=pytest.mark.slow),
    ],
)
def test_a_finished_run_that_is_resumed_warns_as_it_did(tmp_path, options):
    told = []
    for resume in (None, str(tmp_path / "run" / "last.ckpt")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LevytorchWarning)
            run(tmp_path, "run", n=20_000, resume=resume, tail={**TAIL, "CT": 8.0}, **options)
        told.append([str(w.message) for w in caught if issubclass(w.category, LevytorchWarning)])
    assert told[0] == told[1]
    assert any("n_min / TCF" in message for message in told[0]) == (options["engine"] == "adam")


@pytest.mark.long
def test_checkpoints_hold_plain_values_only(tmp_path):
    whole = run(tmp_path, "run", engine="fisher")
    path = tmp_path / "run" / "last.ckpt"
    torch.load(path, weights_only=True)
    module = LevyModule.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(module.head.flat(), whole.module.head.flat())
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("engine", ["adam", "lbfgs", "fisher"])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_sample(tmp_path, engine, monkeypatch):
    calls = {"left": 3}

    def poisoned(original):
        def method(self, *arguments, **keywords):
            out = original(self, *arguments, **keywords)
            calls["left"] -= 1
            if calls["left"] >= 0:
                return out
            if isinstance(out, torch.Tensor):
                spoiled = torch.zeros_like(out)
                spoiled[7] = float("nan")
                return out + spoiled
            out.log_p[7] = float("nan")
            return out

        return method

    monkeypatch.setattr(FrozenLaw, "log_prob", poisoned(FrozenLaw.log_prob))
    monkeypatch.setattr(FrozenLaw, "score", poisoned(FrozenLaw.score))
    with pytest.raises(NumericalError, match=r"(sample|pair) 7 .*dx = ") as error:
        run(tmp_path, "run", engine=engine)
    assert "\n" not in str(error.value)
    if engine == "adam":
        saved = torch.load(tmp_path / "run" / "exception.ckpt", weights_only=True)
        assert saved["global_step"] == 3
        assert all(torch.isfinite(v).all() for v in saved["state_dict"].values())


@pytest.mark.parametrize("engine", ["adam", "fisher"])
def test_held_out_likelihood_is_reported(tmp_path, engine):
    data = constant(8000, 1)
    parts = type(data)(data.x, data.dx, data.dt[0], trajectory=torch.arange(8000) // 40)
    options = {"max_steps": 20, "window": 10} if engine == "adam" else {}
    settings = make_settings(alpha=ALPHA, n_basis=1, engine=engine, validation=0.25, **options)
    found = fit(parts, settings)
    nll = float(found.trainer.callback_metrics["val/nll"])
    assert found.recovery.metrics["n_main"] == 6000
    assert nll == pytest.approx(-found.recovery.log_likelihood / 6000, abs=0.1)
    entries = found.recovery.history
    if engine == "fisher":  # after every pass; the last one is that of the recovery, whose law is the frozen one
        assert all("val/nll" in entry for entry in entries)
        assert entries[-1]["val/nll"] == pytest.approx(nll, rel=1e-12)
        assert found.recovery.metrics["val/nll"] == pytest.approx(nll, abs=1e-6)


def test_held_out_likelihood_of_a_resumed_run(tmp_path):
    """A checkpoint is written before the validation of its step: what is missing is filled in."""
    options = {"engine": "fisher", "validation": 0.25, "n_basis": 1, "law": "frozen"}
    whole = run(tmp_path, "whole", **options)
    again = run(tmp_path, "whole", resume=str(tmp_path / "whole" / "last.ckpt"), **options)
    values = [[entry["val/nll"] for entry in found.recovery.history] for found in (whole, again)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("engine", ["adam", "fisher"])
def test_a_checkpoint_is_gone_on_with_on_its_own_data_only(tmp_path, engine):
    options = {"engine": engine, "n_basis": 1, "law": "frozen"}
    options |= {"max_steps": 20, "window": 10} if engine == "adam" else {}
    run(tmp_path, "run", **options)
    with pytest.raises(InputError, match=r"must have the data it was started with, found .* start a new run"):
        run(tmp_path, "run", n=5000, resume=str(tmp_path / "run" / "last.ckpt"), **options)


@pytest.mark.long
def test_the_best_checkpoint_of_adam_is_judged_by_many_batches(tmp_path):
    found = run(tmp_path, "run", engine="adam", max_steps=100, window=10)
    nll = [entry["train/nll"] for entry in found.recovery.history]  # every 5 steps; a checkpoint every 20
    means = [sum(nll[k : k + 4]) / 4 for k in range(0, 20, 4)]
    best = torch.load(tmp_path / "run" / "best.ckpt", weights_only=True)
    assert best["global_step"] == 20 * (1 + means.index(min(means)))
