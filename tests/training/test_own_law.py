"""A law of the user's own: in `recover`, in a Trainer of the user's own, in train.py, saved and resumed."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch.utils.data import DataLoader

from examples.own_law import FlowLaw
from levytorch import Recovery, compare, diagnose, recover
from levytorch.data.batches import Batch
from levytorch.diagnostics.diagnosis import Skipped
from levytorch.errors import ConfigError, InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.laws import Capability, Law
from levytorch.runs import allow_list
from levytorch.runs.settings import prepare_run
from levytorch.training.module import LevyModule
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train
from tests.training.problems import ALPHA, constant

ROOT = Path(__file__).parents[2]
TARGET = "law._target_=examples.own_law.FlowLaw"
CONSTANTS = {"alpha": ALPHA, "n_basis": 1}


@pytest.fixture(scope="module")
def found():
    return recover(constant(4000), **CONSTANTS, law=FlowLaw())


def test_for_constants_it_is_the_frozen_law(found):
    """Where b is constant the flow is b dt, and the two likelihoods are one function."""
    frozen = recover(constant(4000), **CONSTANTS, law="frozen")
    assert (found.law, found.metrics["engine"]) == ("flow", "lbfgs")
    assert found.metrics["engine_reason"] == "auto: a law without scores"
    assert found.log_likelihood == pytest.approx(frozen.log_likelihood, abs=2e-2)  # the tolerance of lbfgs
    for mine, theirs, error in zip(found.coefficients(0.0)[:3], frozen.coefficients(0.0)[:3], frozen.std(0.0)):
        assert abs(float(mine - theirs)) < 0.1 * float(error)
    # observed information against the mean product of scores, of 4000 pairs: relative error sqrt(kurtosis / n)
    ratio = found.covariance.diagonal() / frozen.covariance.diagonal()
    assert float((ratio - 1).abs().max()) < 4 * (10 / 4000) ** 0.5


def test_lost_tails_are_treated_under_the_law():
    tail = {"TRT": 2.0, "method": "conditional", "region": "TRT"}
    data = constant(4000).censor(CT=1.9, TRT=2.0, drop_tail=0.0, seed=1)
    mine, theirs = (recover(data, **CONSTANTS, law=law, tail=tail) for law in (FlowLaw(), "frozen"))
    for one, other, error in zip(mine.coefficients(0.0)[:3], theirs.coefficients(0.0)[:3], theirs.std(0.0)):
        assert abs(float(one - other)) < 0.1 * float(error)


def test_what_a_recovery_under_it_can_be_asked(found, tmp_path):
    data = constant(4000)
    again = Recovery.load(found.save(tmp_path / "own.pt"), law=FlowLaw())
    assert again.law == "flow"
    one, other = compare({"flow": again, "frozen": recover(data, **CONSTANTS, law="frozen")}, data).rows[:2]
    assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-5)  # per pair
    assert isinstance(diagnose(found, data, checks=("fit",)).fit, Skipped)
    assert float(found.bootstrap(4).std(0.0)[1]) > 0
    with pytest.raises(InputError, match="must have scores for kind robust"):
        found.std(0.0, kind="robust")
    with pytest.raises(InputError, match=r"Recovery.load\(path, law=...\)"):
        compare({"a": Recovery.load(tmp_path / "own.pt"), "b": found}, data)
    with pytest.raises(InputError, match="must be the one that was fitted, flow, found exact"):
        Recovery.load(tmp_path / "own.pt", law=ExactLaw())


def test_a_trainer_and_the_configuration_give_the_same(found, tmp_path):
    run = train(constant(4000), make_settings(**CONSTANTS, law=FlowLaw()))
    assert torch.equal(run.recovery.theta, found.theta)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", ["coefficients.n_basis=1", "beta=null", TARGET])
    assert isinstance(prepare_run(config, tmp_path).fit.law, FlowLaw)
    # a run directory from someone else does not import it, unless the command line names it again
    with pytest.raises(ConfigError, match=r"repeat law\._target_ there"):
        prepare_run(config, tmp_path, resumed=True)
    own = allow_list.own_targets([TARGET])
    assert isinstance(prepare_run(config, tmp_path, resumed=True, own_targets=own).fit.law, FlowLaw)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", ["beta=null", "law._target_=tests.runs.parts.Plain"])
    with pytest.raises(ConfigError, match=r"law\._target_ must name a Law"):
        prepare_run(config, tmp_path)


@pytest.mark.parametrize("law", [FlowLaw(), pytest.param("exact", marks=pytest.mark.slow)])
def test_in_a_trainer_of_the_users_own(law):
    data = constant(400)
    head = {"name": "fourier", "n_basis": 1, "alpha": ALPHA, "length": 0.4, "time": 1 / 40}
    batch = Batch(data.x, data.dx, data.dt.clone(), torch.ones(400, dtype=torch.float64))
    module = LevyModule(head, {"name": "lbfgs", "max_steps": 20}, law=law)
    assert ("law" in module.hparams) == isinstance(law, str)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    L.Trainer(max_steps=20, accelerator="cpu", enable_model_summary=False, **quiet).fit(
        module, DataLoader([batch] * 20, batch_size=None)
    )
    frozen = recover(data, **CONSTANTS, law="frozen")
    c = module.head(torch.zeros(1, dtype=torch.float64))
    for mine, theirs, error in zip(c[:3], frozen.coefficients(0.0)[:3], frozen.std(0.0)):
        assert abs(float(mine) - float(theirs)) < 0.1 * float(error)


class NoTails(Law):
    name = "no tails"

    def log_prob(self, head, x, dx, dt):
        return FrozenLaw().log_prob(head, x, dx, dt)


class HalfFrozen(FrozenLaw):
    """Has another density than its scores are of."""

    def log_prob(self, head, x, dx, dt):
        return super().log_prob(head, x, dx, dt)


class OneStep(NoTails):
    supports = Capability(dimensions=1, distinct_dt=1, tails=False)


def test_refusals():
    data = constant(400)
    with pytest.raises(InputError, match="must be a name or an object with name, supports, log_prob"):
        recover(data, **CONSTANTS, law=lambda head, x, dx, dt: dx)
    with pytest.raises(InputError, match="must be a name or an object"):
        recover(data, **CONSTANTS, law=FlowLaw)
    with pytest.raises(InputError, match="engine must be lbfgs or adam for law flow, which has no scores"):
        recover(data, **CONSTANTS, law=FlowLaw(), engine="fisher")
    with pytest.raises(InputError, match=r"law no tails must have mass_beyond for tail\.method tcf"):
        recover(data, **CONSTANTS, law=NoTails(), tail={"CT": 2.0, "TRT": 20.0})
    with pytest.raises(InputError, match="must define mass_beyond beside log_prob"):
        recover(data, **CONSTANTS, law=HalfFrozen())
    several = type(data)(data.x, data.dx, torch.linspace(0.02, 0.03, 400))
    with pytest.raises(InputError, match=r"at most 1 distinct dt, found more"):
        recover(several, **CONSTANTS, law=OneStep())
    module = LevyModule({"name": "fourier", "n_basis": 1, "alpha": ALPHA}, {"name": "fisher"}, law="corrected")
    with pytest.raises(InputError, match="must have all of the data, found a loader of batches"):
        L.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(
            module, DataLoader([Batch(data.x, data.dx, data.dt[0], torch.ones(400))], batch_size=None)
        )
