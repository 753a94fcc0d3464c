"""Fits under the simulated law: what they gain, what they agree with, what they report and refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch import ControlledDynamics, Dynamics, InputError, Transitions, compare, recover, simulate
from levytorch.data import make_pools
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import make_objective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.simulated import SimulatedScore
from levytorch.likelihood.tail import TailSettings
from levytorch.training.fit import Fit
from levytorch.training.recovery import law_of
from levytorch.training.settings import make_settings
from tests.training.test_exact_fit import GRID, STEEP, THRESHOLDS, TRUTH, excess, steep
from tests.training.test_line import MIDDLE, SYSTEM


def fitted(data: Transitions, law: str, **options):
    return recover(data, **{"alpha": 0.5, "n_basis": 5, "engine": "fisher", "law": law, **options})


def apart(one, two) -> float:
    """The largest distance of two fits, in standard errors of the first."""
    pairs = zip(one.coefficients(GRID)[:3], two.coefficients(GRID)[:3], one.std(GRID))
    return max(float(((a - b) / std).abs().max()) for a, b, std in pairs)


@pytest.mark.long
def test_it_finds_what_the_corrected_law_finds():
    frozen, corrected, found = (fitted(steep(), law, n_basis=3) for law in ("frozen", "corrected", "simulated"))
    assert found.converged
    assert apart(found, frozen) > 5
    # the simulation makes up 4 % of the variance at most: a fifth of a standard error
    assert apart(found, corrected) < 4 * 0.2
    assert max(excess(found)[:2]) < 1 < max(excess(frozen)[:2])
    for a, b in zip(found.std(GRID), corrected.std(GRID)):
        assert float((a / b - 1).abs().max()) < 0.2
    metrics = found.metrics
    assert 0 < metrics["law/simulation_share"] < 0.02
    assert metrics["law/simulations"] >= 1 << 14
    assert metrics["law/substeps"] >= 8
    assert (metrics["covariance"], metrics["law/judged_by"]) == ("simulated", "exact")
    assert isinstance(law_of(found), ExactLaw)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tcf", "conditional"])
def test_lost_tails(method):
    data = steep().censor(**THRESHOLDS, seed=1)
    tail = {**THRESHOLDS, "method": method}
    corrected, found = (fitted(data, law, tail=tail) for law in ("corrected", "simulated"))
    assert found.converged
    assert apart(found, corrected) < 4 * 0.2
    if method == "tcf":
        assert found.metrics["R_theta"] == pytest.approx(corrected.metrics["R_theta"], rel=0.02)
        assert found.tcf == pytest.approx(corrected.tcf, rel=0.05)


@pytest.mark.long
def test_auto_simulates_where_there_is_no_exact_law():
    data = steep()
    parts = [
        simulate(STEEP, 400, 2, float(dt), substeps=40, seed=k).transitions()
        for k, dt in enumerate(np.linspace(0.09, 0.11, 40))
    ]
    many = Transitions(*(torch.cat([getattr(p, name) for p in parts]) for name in ("x", "dx", "dt")))
    found = recover(many, alpha=0.5, n_basis=3)
    assert found.law == "simulated"
    assert "at most 12 distinct dt" in found.metrics["law_reason"]
    assert found.metrics["law/judged_by"] == "frozen"
    assert isinstance(law_of(found), FrozenLaw)
    frozen = recover(many, alpha=0.5, n_basis=3, law="frozen")
    errors = [float((one.D_o(GRID) - TRUTH[1]).norm()) for one in (found, frozen)]
    assert errors[0] < 0.5 * errors[1]
    # and where the frozen law is good enough it stands
    short = Transitions(data.x[:4000], data.dx[:4000] / 1000, 1e-7)
    found = recover(short, alpha=0.5, n_basis=3)
    assert found.law == "frozen"
    assert (
        "long enough for its grid" in found.metrics["law_reason"]
        or "as simulations show" in (found.metrics["law_reason"])
    )


def test_constant_coefficients_are_frozen():
    found = recover(steep()[:2000], alpha=0.5, n_basis=1, law="simulated")
    assert (found.law, found.metrics["law_reason"]) == ("frozen", "constant coefficients, for which it is exact")


@pytest.mark.long
def test_a_fit_that_was_stopped_goes_on_to_the_same_numbers():
    settings = make_settings(alpha=0.5, n_basis=3, engine="fisher", law="simulated")
    data = steep()[:3000]
    whole = Fit.of(data, settings)
    states = []
    while not whole.done:
        whole.step(whole.batch())
        whole.update_tcf()
        whole.advance()
        states.append((whole.phase.name, whole.state_dict()))
    inside = [state for name, state in states if name == "simulated"]
    assert len(inside) > 3
    for state in (inside[1], inside[-1]):
        resumed = Fit.of(data, settings)
        resumed.load_state_dict(state)
        assert torch.equal(resumed.run().theta, whole.recovery().theta)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 12])
def test_rounds_under_a_penalty_converge_on_a_line(seed):
    """There are few pairs towards the ends of the window, of which the data says less than the prior."""
    x0 = np.random.default_rng(seed).normal(size=400)
    data = simulate(SYSTEM, 400, 50, 0.005, x0=x0, seed=seed, substeps=20).transitions()
    frozen, found = (
        recover(data, alpha=0.75, period=None, engine="evidence", law=law) for law in ("frozen", "simulated")
    )
    assert found.converged
    for name, std in zip(("b", "D_o", "D_f"), found.std(MIDDLE)):
        z = (getattr(found, name)(MIDDLE) - getattr(SYSTEM, name)(MIDDLE)) / std
        assert float(z.square().mean().sqrt()) < 2.5
        moved = (getattr(found, name)(MIDDLE) - getattr(frozen, name)(MIDDLE)) / std
        assert float(moved.abs().max()) < 3


@pytest.mark.long
def test_more_statistics_than_the_score():
    data = steep()
    assert len(data) > 1000 * 3 * 9
    exact, found = (fitted(data, law, n_basis=3) for law in ("exact", "simulated"))
    assert found.converged
    # nearly the exact law's errors, and close to its estimates: a fifth of a standard error of it is the simulation's
    for a, b in zip(found.std(GRID), exact.std(GRID)):
        assert float((a / b - 1).abs().max()) < 0.2
    assert apart(exact, found) < 1.5


@pytest.mark.long
@pytest.mark.parametrize("method", [None, "conditional"])
def test_replicas_spread_as_the_simulated_law_says(method):
    data, tail = steep(), None
    if method is not None:
        data, tail = data.censor(**THRESHOLDS, seed=1), {**THRESHOLDS, "method": method}
    found = fitted(data, "simulated", n_basis=3, tail=tail)
    replicas, robust = found.bootstrap(200), found.std(GRID, kind="robust")
    for spread, one, std in zip(replicas.std(GRID), robust, found.std(GRID)):
        # 200 replicas tell a spread to 5 %, and the scatter of 100 blocks is known to 7 %
        assert 0.8 < float((spread / std).mean()) < 1.25
        assert 0.9 < float((one / std).mean()) < 1.3
    off = (replicas.theta.mean(0) - found.theta) / replicas.theta.std(0)
    assert float(off.abs().max()) < 4.5 / math.sqrt(200)


@pytest.mark.long
def test_no_likelihood_to_compare_by():
    found = fitted(steep()[:4000], "simulated", n_basis=3)
    with pytest.raises(InputError, match="must have a likelihood"):
        compare([found, found])


@pytest.mark.long
def test_a_series_by_mini_batches_has_the_standard_errors_of_its_equation():
    data = steep()[:20_000]
    with pytest.warns(LevytorchWarning, match="max_steps = 100 were not enough"):
        found = fitted(data, "simulated", n_basis=3, engine="adam", batch_size=2048, max_steps=100, window=50)
    assert (found.law, found.metrics["covariance"]) == ("simulated", "simulated")
    objective = make_objective(found.head, make_pools(data, CT=None), TailSettings(), FrozenLaw("table"))
    score = SimulatedScore(objective, seed=5, n_simulated=2048 * 50)
    _, ev = score.centered()
    stds = []
    for information in (score.information(ev).godambe, objective.information(ev)):
        covariance = symmetric_inverse(objective.n * information)
        stds.append([((J @ covariance) * J).sum(-1).sqrt() for J in found.jacobian(GRID)[:3]])
    of_law, of_frozen = (max(float((a / b).log().abs().max()) for a, b in zip(found.std(GRID), one)) for one in stds)
    assert of_law < 0.06 < of_frozen  # both informations are simulated, from 65,000 paths


@pytest.mark.slow
def test_a_network_by_mini_batches():
    how = {"coefficients": "mlp", "engine": "adam", "batch_size": 2048, "max_steps": 1500, "window": 500, "lr": 5e-3}
    frozen, found = (recover(steep(), alpha=0.5, law=law, **how) for law in ("frozen", "simulated"))
    assert found.law == "simulated"
    errors = [float((one.D_o(GRID) - TRUTH[1]).norm() / TRUTH[1].norm()) for one in (found, frozen)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.slow
def test_a_network_by_lbfgs():
    how = {"coefficients": "mlp", "engine": "lbfgs"}
    frozen, found = (recover(steep(), alpha=0.5, law=law, **how) for law in ("frozen", "simulated"))
    assert (found.law, found.metrics["law/rounds"] >= 2) == ("simulated", True)
    errors = [float((one.D_o(GRID) - TRUTH[1]).norm() / TRUTH[1].norm()) for one in (found, frozen)]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.slow
def test_in_the_plane():
    system = Dynamics(
        b=lambda x: torch.stack([torch.cos(x[..., 0]), torch.sin(x[..., 1])], -1),
        D_o=lambda x: torch.exp(0.7 * torch.sin(x[..., 0]) + 0.5 * torch.cos(x[..., 1])),
        D_f=2.0,
        alpha=0.3,
        dim=2,
    )
    data = simulate(system, 10_000, 10, 1 / 20, substeps=40, order=2, seed=1).transitions()
    found, frozen = (recover(data, alpha=0.3, n_basis=5, law=law) for law in ("auto", "frozen"))
    assert found.law == "simulated"
    x = 2 * math.pi * torch.rand((500, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = [float((one.D_o(x) - system.D_o(x)).norm()) for one in (found, frozen)]
    assert errors[0] < 0.5 * errors[1]
    assert found.bootstrap(20).theta.shape == (20, len(found.theta))


@pytest.mark.slow
def test_actions_on_a_scale():
    system = ControlledDynamics(
        lambda x, a: STEEP.b(x) + a,
        lambda x, a: STEEP.D_o(x) * torch.exp(a / 4),
        lambda x, a: STEEP.D_f(x) + 0 * a,
        0.5,
        action_range=(-1.0, 1.0),
    )
    data = simulate(system, "uniform", 2000, 10, 1 / 10, substeps=40, seed=0).transitions()
    frozen, found = (recover(data, alpha=0.5, n_basis=5, law=law) for law in ("frozen", "simulated"))
    assert (found.metrics["law"], found.converged) == ("simulated", True)
    assert found.metrics["law/simulation_share"] < 0.02
    a = torch.full_like(GRID, 0.5)
    true = TRUTH[1] * math.exp(0.125)
    errors = [float((one.D_o(GRID, a) - true).norm()) for one in (found, frozen)]
    assert errors[0] < 0.5 * errors[1]
