"""Tiny runs of every experiment: one real fit per arm by train.py's own code, and replicas drawn from its own
uncertainty, written by the same code. The numbers mean little; they are files as a sweep leaves them."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks.paper.collect import collect
from levytorch.dynamics import Dynamics
from levytorch.policy.rates import rate_study
from levytorch.runs import run as training
from levytorch.runs.evaluation_report import write_marker, write_rates
from levytorch.training.recovery import Recovery

ROOT = Path(__file__).parents[2]
QUIET = ["logger=none", "trainer.progress=false", "callbacks.figures.files=[]", "diagnostics=none"]
ADAM = ["engine.max_steps=60", "engine.window=20", "tail.start=20", "trainer.log_every=2"]
VARIABLE = ["coefficients.n_basis=3", "data.n_trajectories=200"]
CONSTANT = ["data.n_trajectories=300"]
METROPOLIS = [*CONSTANT, "data.burn_in=200"]
# (folder, overrides, replicas, sizes the replicas claim to have)
PLAN = [
    *((f"unbiased_constant/alpha{a}", ["experiment=unbiased_constant", f"dynamics.alpha={a}", *CONSTANT], 3, (100, 300))
      for a in (0.3, 0.6)),
    ("unbiased_variable", ["experiment=unbiased_variable", *VARIABLE], 6, (200,)),
    *((f"censored_variable/{arm}", ["experiment=censored_variable", f"arm={arm}", *VARIABLE], 3, (200,))
      for arm in ("unbiased", "censored", "tcf", "conditional")),
    *((f"censored_constant/{arm}", ["experiment=censored_constant", f"arm={arm}", *CONSTANT], 3, (300,))
      for arm in ("censored", "tcf")),
    *((f"censored_mcmc/{arm}", ["experiment=censored_mcmc", f"arm={arm}", *METROPOLIS], 3, (300,))
      for arm in ("censored", "tcf")),
    ("censored_variable_literal/tcf", ["experiment=censored_variable", "arm=tcf", "paper=literal", *VARIABLE, *ADAM], 2,
     (200,)),
    ("learning_history", ["experiment=learning_history", *METROPOLIS, *ADAM], 1, (300,)),
]  # fmt: skip


def train_module():
    spec = importlib.util.spec_from_file_location("train_script", ROOT / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration(overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=[*QUIET, *overrides])


def finish(train, outcome, config, settings):
    """What comes after the fit: the value function, and hydra's record of the configuration."""
    train.add_value(outcome, settings)
    (outcome.directory / ".hydra").mkdir()
    OmegaConf.save(config, outcome.directory / ".hydra" / "config.yaml")


def make_runs(top, train, folder, overrides, replicas, sizes):
    config = configuration(overrides)
    settings = OmegaConf.to_container(config, resolve=True)
    source = instantiate(config.data, _convert_="all")()
    first = training.run(settings, source, top / folder / f"n{sizes[-1]}" / "seed0")
    finish(train, first, config, settings)
    generator = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(first.recovery.covariance + 1e-12 * torch.eye(len(first.recovery.theta)))
    for n in sizes:
        for seed in range(replicas):
            directory = top / folder / f"n{n}" / f"seed{seed}"
            if directory.exists():
                continue
            head = copy.deepcopy(first.recovery.head)
            noise = torch.randn(len(root), generator=generator, dtype=torch.float64)
            head.set_flat(first.recovery.theta + (sizes[-1] / n) ** 0.5 * root @ noise)
            drawn = Recovery(head, first.recovery.tcf, covariance=first.recovery.covariance * sizes[-1] / n,
                             metrics=first.recovery.metrics, history=first.recovery.history)  # fmt: skip
            directory.mkdir(parents=True)
            drawn.save(directory / "recovery.pt")
            metrics = dict(first.metrics) | training.summary(drawn, source.dynamics) | {"seed": seed}
            outcome = training.Outcome(drawn, source, metrics, directory, [], ())
            training.write_report(outcome, settings)
            own = OmegaConf.merge(config, {"seed": seed, "data": {"n_trajectories": n}})
            finish(train, outcome, own, settings)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The folder of all runs, with an error-bound study beside them."""
    top = tmp_path_factory.mktemp("runs")
    train = train_module()
    for folder, overrides, replicas, sizes in PLAN:
        make_runs(top, train, folder, overrides, replicas, sizes)
    study = top / "rate_study"
    study.mkdir()
    write_marker(study, {"rates": {"enabled": True}})
    write_rates([rate_study(Dynamics.named("asymptotic"), [0.03, 0.01, 0.003], n_trials=20, n_modes=32)], study)
    return top


@pytest.fixture(scope="session")
def runs(root):
    return collect(root)
