"""Sandwich and bootstrap errors from blocks of trajectories."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from levytorch import InputError, Recovery, Transitions, solve_value
from levytorch.likelihood.tail import TailSettings
from levytorch.training.reweighting import Reweighting, block_scores
from tests.training.problems import constant, steps, variable
from tests.training.problems import frozen_recover as recover

X = torch.linspace(0, 2 * np.pi, 9, dtype=torch.float64)[:-1]
PAPER = {"CT": 8.0, "TRT": 20.0}
TAILS = {"none": None, "tcf": PAPER, "conditional": {**PAPER, "method": "conditional"}}


def data_for(tail: str, n: int = 60_000, seed: int = 0) -> Transitions:
    data = variable(n, seed)
    return data if tail == "none" else data.censor(seed=1)


@pytest.fixture(scope="module", params=["none", "tcf", pytest.param("conditional", marks=pytest.mark.slow)])
def fitted(request):
    tail = request.param
    return recover(data_for(tail), alpha=0.3, n_basis=5, tail=TAILS[tail])


@pytest.mark.long
def test_robust_agrees_with_the_information_where_the_law_is_right(fitted):
    ratio = torch.stack(fitted.std(X, kind="robust")) / torch.stack(fitted.std(X))
    # 60 blocks: a relative error of 1 / (2 * 60)^(1/2) = 9 % each; the mean over 24 dependent ones is far closer
    assert float((ratio - 1).abs().max()) < 5 * 0.09
    assert abs(float(ratio.mean()) - 1) < 0.12


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.3, "learn"])
def test_scores_of_blocks_by_nodes_and_by_entries(alpha):
    """A lattice has few distinct states: functions of the state may be applied to sums over each of them."""
    lattice = variable(4000, 0).lattice(n_blocks=20)
    found = recover(lattice, alpha=alpha, n_basis=5, engine="fisher", tolerance=1.0)
    blocks = found.blocks
    head = found.head.in_units(blocks.units)
    nodes = blocks.on_nodes(blocks.likelihood(head, found.blocks.law, TailSettings()))
    assert nodes.bins.are_states(blocks.main.x)
    plain = block_scores(head, found.blocks.law, blocks, blocks.main)
    quickly = block_scores(head, found.blocks.law, blocks, blocks.main, nodes.bins)
    assert float((quickly - plain).abs().max()) < 1e-10 * float(plain.abs().max())
    batch = blocks.whole
    fine, coarse = (
        v.objective(batch).evaluate() for v in (blocks.likelihood(head, found.blocks.law, TailSettings()), nodes)
    )
    assert float(coarse.main.log_p) == pytest.approx(float(fine.main.log_p), rel=1e-12)
    assert torch.allclose(coarse.main.gradient, plain.sum(0), rtol=0, atol=1e-10 * float(plain.abs().sum(0).max()))
    assert nodes.mean(batch) * batch.n_main == pytest.approx(float(fine.main.log_p), rel=1e-9)


@pytest.mark.long
def test_bootstrap_agrees_with_robust(fitted):
    replicas = fitted.bootstrap(100).std(X)[:3]
    ratio = torch.stack(replicas) / torch.stack(fitted.std(X, kind="robust"))
    # 100 replicas: 7 % each
    assert float((ratio - 1).abs().max()) < 5 * 0.07
    assert abs(float(ratio.mean()) - 1) < 0.1


def test_replicas_are_true_refits(fitted):
    """A replica is the fit to the data in which its blocks are repeated: within 0.02 standard errors of one."""
    from levytorch.training.resampling import _draws, _reweighting

    made: Reweighting = _reweighting(fitted, None)
    std = fitted.covariance.diagonal().sqrt()
    for times in _draws(made.blocks, 3, torch.Generator().manual_seed(4)):
        quick = made.refit(times)
        slow = made._scored(times, made.objective_of(times))
        assert float(((quick.theta - slow.theta) / std).abs().max()) < 0.02
        assert quick.tcf == pytest.approx(slow.tcf, abs=1e-4)


def test_influence_is_the_derivative_of_the_refit(fitted):
    from levytorch.training.resampling import _reweighting

    made = _reweighting(fitted, None)
    made.close = 1e-4
    width = 0.05
    times = made.blocks.once
    times[7] += width
    up = made.refit(times).theta
    times[7] -= 2 * width
    slope = (up - made.refit(times).theta) / (2 * width)
    made.close = 0.02
    # relative to the largest: the second order has dropped out
    assert float((slope - made.influence[7]).abs().max()) < 0.02 * float(made.influence[7].abs().max())


@pytest.mark.long
def test_dependent_steps_widen_robust_errors_only():
    """Every pair four times over, in the same trajectory: the information counts four times, the sandwich does not."""
    base = steps(15_000, 3)
    rows = np.repeat(np.arange(15_000), 4)
    data = Transitions(base.x[rows], base.dx[rows], 1 / 40, trajectory=rows // 50)
    once = recover(Transitions(base.x, base.dx, 1 / 40), alpha=0.3, n_basis=1)
    found = recover(data, alpha=0.3, n_basis=1)
    for kind, factor in (("fisher", 0.5), ("robust", 1.0), ("bootstrap", 1.0)):
        ratio = torch.stack(found.std(0.0, kind=kind)) / torch.stack(once.std(0.0))
        # 60 blocks, and 200 replicas: 10 % each, four standard errors
        assert ratio.numpy() == pytest.approx(factor * np.ones(3), rel=0.02 if kind == "fisher" else 0.4)


@pytest.mark.slow
def test_coverage_under_a_misspecified_law():
    """alpha is 0.45 and taken as 0.3: bands around the best wrong constants, which a long sample tells."""
    wrong = dict(alpha=0.3, n_basis=1)
    far = recover(steps(1_500_000, 1000, alpha=0.45), **wrong)
    target = torch.stack([far.b(0.0), far.D_o(0.0), far.D_f(0.0)])
    scores = {"fisher": [], "robust": []}
    for seed in range(60):
        found = recover(steps(10_000, seed, alpha=0.45), **wrong)
        error = torch.stack([found.b(0.0), found.D_o(0.0), found.D_f(0.0)]) - target
        for kind, values in scores.items():
            values.append((error / torch.stack(found.std(0.0, kind=kind))).numpy())
    spread = {kind: np.sqrt(np.mean(np.square(v), axis=0)) for kind, v in scores.items()}
    # 60 seeds: 9 % each; four standard errors, and the band's own 9 % from 60 blocks
    assert np.abs(spread["robust"] - 1).max() < 0.4
    assert np.abs(spread["fisher"] - 1).max() > np.abs(spread["robust"] - 1).max()


@pytest.mark.long
def test_bootstrap_gives_recoveries_for_anything():
    found = recover(constant(), alpha=0.3, n_basis=1)
    replicas = found.bootstrap(20, seed=3)
    assert len(replicas) == 20
    assert isinstance(replicas[0], Recovery)
    assert len(replicas[:5]) == 5
    V = [float(solve_value(r, torch.cos, 1.0)(0.0)) for r in replicas]
    assert np.std(V, ddof=1) == pytest.approx(float(solve_value(found, torch.cos, 1.0).std(0.0)), rel=0.8)
    again = recover(constant(), alpha=0.3, n_basis=1).bootstrap(20, seed=3)
    torch.testing.assert_close(again.theta, replicas.theta)
    assert not torch.equal(found.bootstrap(20, seed=4).theta, replicas.theta)


@pytest.mark.slow
def test_mlp_heads_get_bootstrap_errors():
    data = variable(20_000, 1)
    found = recover(data, alpha=0.3, coefficients={"name": "mlp", "width": 4, "depth": 1, "n_features": 2})
    robust, laplace = found.std(X, kind="robust"), found.std(X)
    assert all(0.5 < float((a / b).mean()) < 2.0 for a, b in list(zip(robust, laplace))[:3])
    told = torch.stack(found.bootstrap(16).std(X)[:3])
    head = {"name": "mlp", "width": 4, "depth": 1, "n_features": 2}
    fits = [recover(variable(20_000, seed), alpha=0.3, coefficients=head) for seed in range(2, 14)]
    with torch.no_grad():
        spread = torch.stack([torch.stack(fit.head(X)[:3]) for fit in fits]).std(0)  # of the estimate, over data sets
    # log of a standard deviation from m values: 1 / (2 (m - 1))^(1/2), and means over X are no worse; three of that
    bound = 3 * (1 / (2 * 15) + 1 / (2 * 11)) ** 0.5
    assert float((told.mean(1) / spread.mean(1)).log().abs().max()) < bound


@pytest.mark.long
def test_loaded_recoveries_need_the_data(tmp_path):
    data = data_for("tcf")
    found = recover(data, alpha=0.3, n_basis=3, tail=PAPER)
    loaded = Recovery.load(found.save(tmp_path / "r.pt"))
    with pytest.raises(InputError, match="pass data="):
        loaded.std(X, kind="robust")
    with pytest.raises(InputError, match="pass data="):
        loaded.bootstrap(5)
    for mine, theirs in zip(loaded.std(X, kind="robust", data=data), found.std(X, kind="robust")):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=0.0)
    lattice = data.lattice(CT=8.0, TRT=20.0, n_blocks=60)
    for mine, theirs in zip(loaded.std(X, kind="robust", data=lattice), found.std(X, kind="robust")):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=0.0)


def test_refusals():
    found = recover(constant(), alpha=0.3, n_basis=1)
    with pytest.raises(InputError, match="kind"):
        found.std(0.0, kind="sandwich")
    with pytest.raises(InputError, match="Transitions or the Lattice"):
        found.std(0.0, kind="robust", data=[1, 2])
    for n in (1, -3, "many"):
        with pytest.raises(InputError):
            found.bootstrap(n)
    one = recover(variable().lattice(), alpha=0.3, n_basis=1)
    with pytest.raises(InputError, match="pass data="):
        one.std(0.0, kind="robust")
