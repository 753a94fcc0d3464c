"""What engine "auto" is: smoothed where there are many functions, and why is told."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from levytorch import InputError, LevytorchWarning, Transitions
from levytorch import recover as recover_under
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.training.engines.base import FEW, Engine, engine_facts
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.engines.lbfgs import full_nll
from levytorch.training.settings import make_settings
from tests.training.problems import frozen_recover as recover
from tests.training.problems import steps, variable

PAPER = {"CT": 8.0, "TRT": 20.0}


def chosen(**options) -> tuple[str, str]:
    settings = make_settings(**{"alpha": 0.3} | options)
    facts = engine_facts(settings.engine, settings.engine_reason)
    return facts["engine"], facts["engine_reason"]


@pytest.mark.parametrize(
    ("options", "engine", "why"),
    [
        ({}, "evidence", "21 functions"),
        ({"n_basis": FEW + 2}, "evidence", f"{FEW + 2} functions"),
        ({"n_basis": FEW}, "fisher", f"at most {FEW}"),
        ({"n_basis": 1}, "fisher", f"at most {FEW}"),
        ({"n_basis": "auto"}, "evidence", "cross-validation chooses"),
        ({"n_basis": "auto", "units": "none"}, "fisher", "internal units"),
        ({"n_basis": "auto", "engine": "fisher"}, "fisher", "as requested"),
        ({"units": "none"}, "fisher", "internal units"),
        ({"penalty": 3.0}, "fisher", "penalty that was given"),
        ({"penalty": "none"}, "fisher", "penalty that was given"),
        ({"engine": {"name": "auto", "penalty": "evidence", "max_steps": None}, "n_basis": 3}, "evidence", "given"),
        ({"engine": {"name": "auto", "penalty": None, "max_steps": None}}, "evidence", "21 functions"),
        ({"coefficients": "mlp"}, "evidence", "a network"),
        ({"coefficients": FourierHead(9, alpha=AlphaSpec.parse(0.3))}, "evidence", "9 functions"),
        ({"coefficients": FourierHead(3, alpha=AlphaSpec.parse(0.3))}, "fisher", "at most"),
        ({"engine": "fisher"}, "fisher", "as requested"),
        ({"engine": "evidence", "n_basis": 3}, "evidence", "as requested"),
        ({"engine": "adam"}, "adam", "as requested"),
    ],
)
def test_choice_and_reason(options, engine, why):
    found, reason = chosen(**options)
    assert found == engine
    assert why in reason


@pytest.mark.parametrize("engine", ["auto", "evidence"])
def test_fourier_series_are_smoothed_harmonic_by_harmonic(engine):
    assert make_settings(alpha=0.3, engine=engine).engine.penalty == "harmonics"
    assert make_settings(alpha=0.3, engine=engine, period=None).engine.penalty == "evidence"
    assert make_settings(alpha=0.3, engine=engine, penalty="evidence").engine.penalty == "evidence"


def test_steps_are_enough_for_the_engine_that_was_chosen():
    assert make_settings(alpha=0.3).engine.max_steps == 200
    assert make_settings(alpha=0.3, max_steps=7).engine.max_steps == 7
    assert make_settings(alpha=0.3, n_basis=3).engine == FisherEngine()


def test_auto_is_the_evidence_to_the_last_bit():
    data = variable(20_000, 1)
    auto, named = recover(data, alpha=0.3, n_basis=9), recover(data, alpha=0.3, n_basis=9, engine="evidence")
    assert torch.equal(auto.theta, named.theta)
    assert auto.metrics["engine"] == named.metrics["engine"] == "evidence"
    assert "9 functions" in auto.metrics["engine_reason"]
    assert len(auto.metrics["penalty_strengths"]) == 3 * 5  # of every harmonic of every coefficient
    plain = recover(data, alpha=0.3, n_basis=9, engine="fisher")
    assert plain.metrics["engine"] == "fisher"
    assert plain.log_likelihood > auto.log_likelihood  # nothing can be likelier than the maximum


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.3, "tail": PAPER},
        {"alpha": 0.3, "tail": {**PAPER, "method": "conditional"}},
        pytest.param({"alpha": "learn", "tail": "auto"}, marks=pytest.mark.slow),
        {"alpha": "function"},
        {"alpha": 0.3, "init": "random"},
        {"alpha": 0.3, "validation": 0.2},
        {"alpha": 0.3, "lattice": "always"},
    ],
)
def test_auto_works_for_what_fisher_works_for(options):
    data = variable(20_000, 2)
    data = Transitions(data.x, data.dx, data.dt, trajectory=np.arange(20_000) // 20)
    found = recover(data.censor(seed=1) if options.get("tail") else data, n_basis=7, **options)
    assert found.metrics["engine"] == "evidence"
    assert found.converged
    assert all(bool(torch.isfinite(s).all()) for s in found.std(torch.tensor([0.3, 2.0])))


def test_several_dt():
    parts = [steps(10_000, k, dt=dt) for k, dt in enumerate((1 / 40, 1 / 20, 1 / 10))]
    data = Transitions(*(torch.cat([getattr(p, name) for p in parts]) for name in ("x", "dx", "dt")))
    found = recover(data, alpha=0.3, n_basis=7)
    assert found.metrics["engine"] == "evidence"
    assert found.converged


@pytest.mark.slow
def test_two_dimensions():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 2 * np.pi, (4000, 2))
    dx = 0.1 * np.sin(x) + 0.3 * rng.standard_normal((4000, 2)) + 0.01 * rng.standard_cauchy((4000, 1))
    found = recover(Transitions(x, dx, 0.1), alpha=0.5, n_basis=7)
    assert found.metrics["engine"] == "evidence"
    assert found.converged


def test_a_penalty_for_other_heads_is_refused():
    with pytest.raises(InputError, match="penalty"):
        recover(variable(2000), alpha=0.3, coefficients="mlp", penalty="cross_validation")


@dataclass
class Creeping(Engine):
    """Gradient descent with a step length of its own: all that an engine must be."""

    max_steps: int = 3
    length: float = 1e-4
    name = "creeping"
    full_batch = True

    def optimizer(self, likelihood):
        return torch.optim.SGD(likelihood.head.parameters(), lr=self.length)

    def step(self, likelihood, optimizer, batch, step, seed=0):
        optimizer.zero_grad()
        nll = full_nll(likelihood, batch)
        optimizer.step()
        return float(nll)


def test_an_engine_object_is_used_as_it_is():
    data = variable(2_000, 3)
    engine = FisherEngine(max_steps=50, penalty=2.0)
    found = recover(data, alpha=0.3, n_basis=5, engine=engine)
    named = recover(data, alpha=0.3, n_basis=5, engine={"name": "fisher", "max_steps": 50, "penalty": 2.0})
    assert torch.equal(found.theta, named.theta)
    assert make_settings(alpha=0.3, engine=engine).engine is engine
    assert found.metrics["engine_reason"] == "as requested"
    with pytest.raises(InputError, match=r"options for a fourier head with engine fisher.* found 'penalty'"):
        recover(data, alpha=0.3, engine=engine, penalty=3.0)


class Nameless(Creeping):
    name = None


def test_what_is_no_engine_is_refused():
    data = variable(2_000, 3)
    with pytest.raises(InputError, match="name of an engine must be a str, found None in Nameless"):
        recover(data, alpha=0.3, engine=Nameless())
    with pytest.raises(InputError, match="or an Engine, found"):
        recover(data, alpha=0.3, engine=FisherEngine)


@pytest.mark.long
@pytest.mark.parametrize(
    ("law", "head"),
    [
        ("frozen", {"n_basis": 3}),
        ("exact", {"n_basis": 3}),
        ("frozen", {"coefficients": "mlp", "width": 4, "depth": 1, "n_features": 1}),
    ],
)
def test_an_engine_of_ones_own(law, head):
    """Under the exact law it brings the start."""
    data = variable(2_000, 3)
    with pytest.warns(LevytorchWarning) if law == "frozen" else nullcontext():
        found = recover_under(data, alpha=0.3, engine=Creeping(max_steps=20), law=law, **head)
    assert found.metrics["engine"] == "creeping"
    assert found.metrics["law"] == law
    losses = [one["train/nll"] for one in found.history[:3]]
    assert losses[0] > losses[1] > losses[2]
    assert found.converged == (law == "exact")
