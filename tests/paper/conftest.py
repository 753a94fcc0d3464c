"""Tiny runs of every experiment: one real fit per arm by train.py's own code, and replicas drawn from its own
uncertainty, written by the same code. The numbers mean little; they are files as a sweep leaves them."""

import copy
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks.paper.collect import collect
from benchmarks.paper.rates import rate_study, write_rates
from levytorch.dynamics import Dynamics
from levytorch.errors import LevytorchWarning
from levytorch.runs import report
from levytorch.runs.directory import write_marker
from levytorch.runs.training import train
from levytorch.runs.value import add_value
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


def composed(*overrides, script="train", hydra=False):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3", job_name=script):
        return compose(script, list(overrides), return_hydra_config=hydra)


def write_config(config, directory):
    (directory / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, directory / ".hydra" / "config.yaml")


def train_run(config, directory):
    """What train.py does, in this process."""
    write_config(config, directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return train(config, directory)


def make_runs(top, folder, overrides, replicas, sizes):
    config = composed(*QUIET, *overrides)
    settings = OmegaConf.to_container(config, resolve=True)
    first = train_run(config, top / folder / f"n{sizes[-1]}" / "seed0")
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
            write_config(OmegaConf.merge(config, {"seed": seed, "data": {"n_trajectories": n}}), directory)
            drawn.save(directory / "recovery.pt")
            metrics = dict(first.metrics) | report.summary(drawn, first.source.dynamics) | {"seed": seed}
            outcome = report.Outcome(drawn, first.source, first.report, metrics, directory, [], ())
            report.write_fit(outcome)
            report.write_checks(outcome, settings)
            add_value(outcome, settings)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The folder of all runs, with an error-bound study beside them."""
    top = tmp_path_factory.mktemp("runs")
    for plan in PLAN:
        make_runs(top, *plan)
    study = top / "rate_study"
    study.mkdir()
    write_marker(study, {"rates": {"enabled": True}})
    write_rates([rate_study(Dynamics.named("asymptotic"), [0.03, 0.01, 0.003], n_trials=20, n_modes=32)], study)
    return top


@pytest.fixture(scope="session")
def runs(root):
    return collect(root)


# the prices cover a sixtieth of the period: three functions and a reward that they can represent
PRICES = ["data.first=900", "empirical.n_terms=1001", "tail.CT=75", "tail.TRT=400", "empirical.bootstrap.block=90"]
PRICES += ["empirical.n_modes=3", "empirical.n_basis=3", "reward.power=1", "empirical.bootstrap.replicas=0"]


@pytest.fixture(scope="session")
def prices(tmp_path_factory):
    """A file of made-up prices."""
    rng = np.random.default_rng(0)
    x = 45000 + np.cumsum(40 * rng.standard_t(3, 3000))
    file = tmp_path_factory.mktemp("data") / "prices.parquet"
    pl.DataFrame({"timestamp": 1_600_000_000 + 180 * np.arange(3000), "open": x}).write_parquet(file)
    return file


@pytest.fixture(scope="session")
def price_runs(prices, tmp_path_factory):
    """The folder of a sweep over prices: three arms, and two random starts of Algorithm B.1 with and without TCF."""
    root = tmp_path_factory.mktemp("sweep")
    adam = ["paper=prices", "engine.max_steps=40", "engine.window=20", "++tail.start=10"]
    plan = {"tcf/K11": ["empirical.bootstrap.replicas=3"], "none/K11": ["tail=none"]}
    plan["none/K1"] = ["tail=none", "coefficients.n_basis=1"]
    plan |= {
        f"adam/{tail}/seed{seed}": [*adam, f"tail={tail}", f"seed={seed}"]
        for tail in ("tcf", "none")
        for seed in (0, 1)
    }
    for folder, overrides in plan.items():
        base = ["experiment=btc_first6000", f"data.path={prices}", *PRICES, *QUIET]
        train_run(composed(*base, *overrides), root / folder)
    return root
