"""Tempered jumps with actions: simulation, recovery, what actions share, closed loops and their errors, improvement."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch

from levytorch import (
    ControlledDynamics,
    ControlledRecovery,
    Dynamics,
    InputError,
    improve,
    recover,
    simulate,
    solve_value,
)
from levytorch.errors import LevytorchWarning
from levytorch.policy.ranking import rank
from levytorch.training.by_action import share_among
from levytorch.training.continuous import ContinuousRecovery

D = torch.float64
X = torch.linspace(0.1, 6.2, 23, dtype=D)
LAM, ALPHA = 0.4, 0.45
# the same at every state, so that the frozen law is exact
STEADY = ControlledDynamics(
    lambda x, a: 1.0 * a + 0 * x, 0.1, lambda x, a: 1 + 0.3 * a + 0 * x, ALPHA, actions=(-1, 1), tempering=LAM
)
FAST = {"n_basis": 1, "engine": "fisher", "law": "frozen"}


def cost(x, a):
    return torch.cos(x) - 0.1 * abs(a)


@pytest.fixture(scope="module")
def data():
    return simulate(STEADY, [0.4, 0.6], 500, 20, 0.25, substeps=1, seed=3).transitions()


@pytest.fixture(scope="module")
def learned(data) -> ControlledRecovery:
    return recover(data, alpha=ALPHA, tempering="learn", **FAST)


def slopes(heads, function, size=1e-4):
    """d function() / d theta by central differences, (P,), over the parameters of all heads."""
    kept = [head.flat() for head in heads]
    sizes, theta = [len(part) for part in kept], torch.cat(kept)
    out = []
    for step in size * torch.eye(len(theta), dtype=D):
        found = []
        for moved in (theta + step, theta - step):
            for head, part in zip(heads, torch.split(moved, sizes)):
                head.set_flat(part)
            found.append(function())
        out.append((found[0] - found[1]) / (2 * size))
    for head, part in zip(heads, kept):
        head.set_flat(part)
    return torch.tensor(out, dtype=D)


# -- systems ----------------------------------------------------------------------------------------------------------
def test_every_view_of_a_system_has_its_tempering():
    assert [STEADY.of(1).tempering, STEADY.under([0.5, 0.5]).tempering, STEADY.tempering] == [LAM] * 3
    scale = ControlledDynamics.named("thrust", tempering=2.0)
    assert [scale.of(1.0).tempering, scale.under("uniform").tempering, scale.on([0, 1]).tempering] == [2.0] * 3
    assert "tempering=2" in repr(scale)
    assert "tempering" not in repr(ControlledDynamics.named("pushes"))
    for bad in (-1.0, math.nan, "much"):
        with pytest.raises(InputError, match="tempering"):
            ControlledDynamics.named("pushes", tempering=bad)


def test_the_simulated_step_has_the_law_of_the_policys_mixture():
    """E exp(i X) of one step, by the symbol of each action; its standard error is below 1 / sqrt(n)."""
    pi, dt, n = (0.3, 0.7), 0.5, 20_000
    x = simulate(STEADY, pi, n, 1, dt, substeps=1, x0=0.0, seed=2).to_array()[:, 1]
    symbol = (1 + LAM**2) ** ALPHA - LAM ** (2 * ALPHA)
    want = sum(p * torch.exp(dt * torch.tensor(-0.1 - (1 + 0.3 * a) * symbol + a * 1j)) for p, a in zip(pi, (-1, 1)))
    found = torch.exp(1j * torch.as_tensor(x)).mean()
    assert abs(complex(found - want)) < 4 / math.sqrt(n)


# -- recovery ---------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_known_system_is_recovered(learned):
    assert learned.converged
    assert learned.tempered
    assert abs(learned.tempering - LAM) < 4 * learned.tempering_std
    assert learned.tempering_std < 0.1
    assert learned.metrics["tempering_told_from_zero"]
    assert learned.metrics["tempering_upper"] > learned.tempering
    for action in learned.actions:
        assert learned.of(action).tempering == pytest.approx(learned.tempering, rel=1e-12)
        for name, error in zip(("b", "D_o", "D_f"), learned.std(0.0, action)):
            off = getattr(learned, name)(0.0, action) - getattr(STEADY.of(action), name)(0.0)
            assert abs(float(off)) < 4 * float(error)
    assert "tempering=" in repr(learned)
    assert learned.dynamics().tempering == learned.tempering


def test_a_given_tempering_is_that_of_all_actions(data, learned):
    known = recover(data, alpha=ALPHA, tempering=LAM, **FAST)
    assert [known.of(a).tempering for a in known.actions] == [LAM, LAM]
    assert known.tempering_std == 0.0
    assert known.under("behaviour").tempering == LAM
    assert known.log_likelihood == pytest.approx(learned.log_likelihood, abs=0.5 * 13.8)  # 0.1 % of chi squared / 2


def test_the_value_of_a_policy_and_its_error(learned):
    """V of the recovered closed loop: near the true one, and with the error of all parameters, tempering included."""
    pi = [0.2, 0.8]
    V, truth = (solve_value(system.under(pi), cost, 0.5, n_modes=33) for system in (learned, STEADY))
    assert bool(((V(X) - truth(X)).abs() < 4 * V.std(X)).all())

    def value():
        return float(solve_value(learned.under(pi), cost, 0.5, n_modes=33)(1.0))

    slope = slopes(learned.heads, value)
    # every head has the shared tempering, and moves it: the closed loop reads the first
    assert abs(float(slope[len(slope) // 2 - 1])) > 1e-3
    assert float(V.std(1.0)) == pytest.approx(float((slope @ learned.covariance @ slope).sqrt()), rel=1e-5)


def test_errors_of_differences(learned):
    table = rank(learned, {"right": 1, "mostly": [0.1, 0.9]}, cost, 0.5, n_modes=33)
    gap, error = table.gap("right", "mostly")

    def moved():
        one, other = (solve_value(learned.under(p), cost, 0.5, n_modes=33) for p in (1, [0.1, 0.9]))
        return float(table.weights @ (one(table.states) - other(table.states)))

    assert moved() == pytest.approx(gap, abs=1e-12)
    slope = slopes(learned.heads, moved)
    assert error == pytest.approx(float((slope @ learned.covariance @ slope).sqrt()), rel=1e-4)


def test_saved_and_loaded(learned, tmp_path):
    again = ControlledRecovery.load(learned.save(tmp_path / "recovery.pt"))
    assert again.tempering == learned.tempering
    assert again.tempering_std == learned.tempering_std
    one, other = (solve_value(r.under(1), cost, 0.5, n_modes=33) for r in (again, learned))
    assert torch.equal(one(X), other(X))
    assert torch.equal(one.std(X), other.std(X))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [ALPHA, "learn"])
def test_what_is_shared_is_the_fit_of_all_pairs(alpha):
    """Minimum distance is maximum likelihood up to terms that vanish beside the standard error as 1 / sqrt(n)."""
    same = ControlledDynamics(1.0, 0.1, 1.0, ALPHA, actions=(-1, 1), tempering=LAM)
    pairs = simulate(same, [0.3, 0.7], 1500, 20, 0.25, substeps=1, seed=4).transitions()
    shared = recover(pairs, alpha=alpha, tempering="learn", shared=["b", "D_o", "D_f"], **FAST)
    pooled = recover(pairs, alpha=alpha, tempering="learn", actions=None, **FAST)
    assert shared.tempering == pytest.approx(pooled.tempering, abs=0.5 * pooled.tempering_std)
    assert shared.tempering_std == pytest.approx(pooled.tempering_std, rel=0.15)
    assert float(shared.alpha) == pytest.approx(float(pooled.alpha), abs=0.5 * float(pooled.alpha_std) + 1e-12)
    for name, error in zip(("b", "D_o", "D_f"), pooled.std(0.0)):
        assert abs(float(getattr(shared, name)(0.0, 1)) - float(getattr(pooled, name)(0.0))) < 0.5 * float(error)
    assert shared.metrics["shared/freedom"] == (4 if alpha == ALPHA else 5)
    assert shared.metrics["shared/chi2"] < 20.5  # 0.1 % of chi squared with 5 degrees of freedom


def test_an_action_without_tempering_does_not_decide_for_the_others(learned):
    """Its row of the covariance is empty; what counts is how the likelihood falls: 0.2 of the root of eta here."""
    told, gone = (copy.deepcopy(one) for one in learned.recoveries)
    P, error, size = len(told.theta), 0.05, 0.2
    for one in (told, gone):
        one.covariance = torch.diag(torch.full((P,), error**2, dtype=D))
        one.metrics = {}
    gone.covariance[-1] = gone.covariance[:, -1] = 0.0
    gone.head.set_flat(torch.cat([gone.theta[:-1], torch.full((1,), -1e-6, dtype=D)]))  # the link is even
    gone.metrics["tempering_step"] = [0.3, 0.0, 0.0, size]
    root, b = float(told.theta[-1]), float(gone.theta[0])
    metrics: dict = {}
    share_among([told, gone], (), metrics)
    mean = (root / error**2 + 1e-6 / size**2) / (1 / error**2 + 1 / size**2)
    assert float(told.theta[-1]) == pytest.approx(mean, rel=1e-9)
    assert float(gone.theta[-1]) == pytest.approx(mean, rel=1e-9)
    # b of the action moves with its tempering, as the step says: covariance 0.3 * 0.2 over variance 0.2^2
    assert float(gone.theta[0]) - b == pytest.approx(0.3 / size * (mean - 1e-6), rel=1e-9)
    assert metrics["shared/chi2"] == pytest.approx(root**2 / (error**2 + size**2), rel=1e-4)
    variance = 1 / (1 / error**2 + 1 / size**2)
    assert told.tempering_std == pytest.approx(float(told.head.tempering_slope()[-1]) * math.sqrt(variance), rel=1e-9)


def test_the_fall_of_the_likelihood():
    """Steps without tempering: where it is not told from zero the parabola of eta = root^2 says how far it may rise."""
    pairs = simulate(Dynamics(1.0, 0.1, 1.0, ALPHA), 60, 10, 0.25, seed=3).transitions()
    with pytest.warns(LevytorchWarning, match="distinguished from zero"):
        found = recover(pairs, alpha=ALPHA, tempering="learn", **FAST)
    step = torch.tensor(found.metrics["tempering_step"], dtype=D)
    root = abs(float(found.theta[-1]))
    eta, z = root**2, found.metrics["tempering_z"]
    assert (root + float(step[-1])) ** 2 == pytest.approx(eta * (1 + 1 / z), rel=1e-3)  # a standard error of eta more
    # of the others: the maximum given that tempering, by the covariance
    cov = found.covariance
    rise = (root + float(step[-1])) ** 2 - eta
    torch.testing.assert_close(step[:-1], cov[:-1, -1] / cov[-1, -1] * rise / (2 * root), rtol=1e-3, atol=1e-9)


def test_jointly_not_told_from_zero_is_said_once():
    stable = ControlledDynamics(1.0, 0.1, 1.0, ALPHA, actions=(-1, 1))
    pairs = simulate(stable, "uniform", 100, 10, 0.25, substeps=1, seed=3).transitions()
    with pytest.warns(LevytorchWarning) as caught:
        found = recover(pairs, alpha=ALPHA, tempering="learn", **FAST)
    assert sum("distinguished from zero" in str(w.message) for w in caught) == 1
    assert not found.metrics["tempering_told_from_zero"]
    assert found.tempering < found.metrics["tempering_upper"] < 0.1
    assert found.metrics["tempering_z"] == max(one.metrics["tempering_z"] for one in found.recoveries)  # 2.2 together


WAYS = [
    {"lattice": "always", "law": "frozen", "n_basis": 1, "engine": "fisher"},
    {"law": "frozen", "n_basis": 7, "engine": "evidence"},
    {"law": "frozen", "n_basis": 1, "engine": "lbfgs"},
    {"law": "exact", "n_basis": 3, "engine": "fisher"},
    {"law": "corrected", "n_basis": 3, "engine": "fisher"},
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(map(str, way.values())))
def test_engines_laws_and_batches_agree(data, learned, way):
    """More functions than the truth has, and another law, cost a part of a standard error."""
    found = recover(data, alpha=ALPHA, tempering="learn", **way)
    same = way["n_basis"] == 1
    assert found.tempering == pytest.approx(learned.tempering, abs=(0.01 if same else 0.5) * learned.tempering_std)
    assert found.log_likelihood == pytest.approx(learned.log_likelihood, abs=0.01 if same else 16)  # 12 more: 0.1 %
    for action in found.actions:
        D_f, error = found.of(action).D_f(X).mean(), found.std(X, action)[2].mean()
        assert abs(float(D_f) - (1 + 0.3 * action)) < 4 * float(error)


@pytest.mark.slow
def test_lost_tails(data):
    """Steps beyond a threshold removed, or half of the large ones: what is found is the law that was cut."""
    cut, half = data.censor(TRT=3.0, CT=2.0, drop_tail=0.0, seed=1), data.censor(TRT=5.0, CT=2.0, drop_tail=0.5, seed=1)
    for pairs, tempering, tail in (
        (cut, "learn", {"method": "conditional", "TRT": 3.0}),
        (half, LAM, {"method": "tcf", "CT": 2.0, "TRT": 5.0}),
    ):
        found = recover(pairs, alpha=ALPHA, tempering=tempering, tail=tail, **FAST)
        assert abs(found.tempering - LAM) <= 4 * found.tempering_std
        for action in found.actions:
            error = float(found.std(0.0, action)[2])
            assert abs(float(found.D_f(0.0, action)) - (1 + 0.3 * action)) < 4 * error


def test_refused(data):
    with pytest.raises(InputError, match="alpha, tempering and memory are always shared"):
        recover(data, alpha=ALPHA, tempering="learn", n_basis=1, shared=["tempering"])
    with pytest.raises(InputError, match="give alpha and tempering as numbers"):
        recover(data, alpha=ALPHA, tempering="learn", coefficients="mlp")
    with pytest.raises(InputError, match="tempering"):
        recover(data, alpha=ALPHA, tempering="yes", n_basis=1)


# -- elsewhere --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_actions_on_a_scale(tmp_path):
    system = ControlledDynamics(
        lambda x, a: 1.5 * a + 0 * x, 0.1, lambda x, a: 1 + 0.3 * a + 0 * x, ALPHA, action_range=(-1, 1), tempering=LAM
    )
    pairs = simulate(system, "uniform", 800, 20, 0.25, substeps=1, seed=5).transitions()
    found = recover(pairs, alpha=ALPHA, tempering="learn", n_basis=1, engine="fisher", n_action=2)
    assert abs(found.tempering - LAM) < 4 * found.tempering_std
    pi = lambda x: 0.5 * torch.sin(x)  # noqa: E731
    V, truth = (solve_value(s.under(pi), torch.cos, 0.5, n_modes=33) for s in (found, system))
    assert bool(((V(X) - truth(X)).abs() < 4 * V.std(X)).all())
    slope = slopes([found.head], lambda: float(solve_value(found.under(pi), torch.cos, 0.5, n_modes=33)(1.0)))
    assert abs(float(slope[-1])) > 1e-3
    assert float(V.std(1.0)) == pytest.approx(float((slope @ found.covariance @ slope).sqrt()), rel=1e-5)
    again = ContinuousRecovery.load(found.save(tmp_path / "recovery.pt"))
    assert (again.tempering, again.tempering_std) == (found.tempering, found.tempering_std)
    assert again.dynamics().tempering == found.on([-0.5, 0.5]).tempering == found.tempering


@pytest.mark.slow
def test_on_a_line():
    system = ControlledDynamics(
        lambda x, a: a - x, 0.3, 0.5, 0.6, period=None, window=(-2, 2), actions=(-1, 1), tempering=1.0
    )
    pairs = simulate(system, "uniform", 150, 60, 0.1, substeps=1, x0=0.0, seed=6).transitions()
    linear = {"name": "polynomial", "degree": 1, "n_basis": 1}
    found = recover(pairs, alpha=0.6, tempering="learn", period=None, coefficients=linear, law="frozen")
    assert abs(found.tempering - 1.0) < 4 * found.tempering_std
    options = {"window": (-1.5, 1.5), "n_modes": 64}
    V, truth = (solve_value(s.under([0.3, 0.7]), lambda x: x * x, 1.0, **options) for s in (found, system))
    x = torch.linspace(-1.4, 1.4, 9, dtype=D)
    assert bool(((V(x) - truth(x)).abs() < 4 * V.std(x)).all())
    slope = slopes(
        found.heads, lambda: float(solve_value(found.under([0.3, 0.7]), lambda x: x * x, 1.0, **options)(0.4))
    )
    assert float(V.std(0.4)) == pytest.approx(float((slope @ found.covariance @ slope).sqrt()), rel=1e-3)


# -- improvement ------------------------------------------------------------------------------------------------------
SYSTEMS = {
    "circle": (ControlledDynamics.named("pushes", tempering=1.5), X, {"n_modes": 129}),
    "line": (
        ControlledDynamics.named("thrust", tempering=1.5).on([-2, 0, 2]),
        torch.linspace(-2.5, 2.5, 11, dtype=D),
        {"n_modes": 128, "window": (-3.0, 3.0)},
    ),
    "torus": (ControlledDynamics.named("sails", tempering=1.5), torch.cartesian_prod(X[::5], X[::5]), {"n_modes": 24}),
}


@pytest.mark.parametrize("where", SYSTEMS)
def test_no_constant_policy_beats_the_improved_one(where):
    system, x, options = SYSTEMS[where]

    def reward(x, a):
        return (torch.cos(x) if x.ndim == 1 else torch.cos(x).sum(-1)) - 0.1 * abs(a)

    best = improve(system, reward, 1.0, **options)
    assert best.converged
    assert all(later >= earlier - 1e-12 for earlier, later in zip(best.history, best.history[1:]))
    values = [solve_value(system.under(a), reward, 1.0, **options)(x) for a in system.actions]
    assert float((best.V(x) - torch.stack(values).amax(0)).min()) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a policy that jumps has no spectral convergence
        own = solve_value(system.under(best.policy), reward, 1.0, **options)(x)
    torch.testing.assert_close(best.V(x), own, rtol=0.0, atol=1e-9 * float(own.abs().max()))
    # Bellman's equation between the nodes as well: no action gains on V, the best does not lose
    q = best.q(x)
    assert float(q.amax(-1).abs().max()) < 0.03 * float(q.abs().max())


@pytest.mark.slow
def test_error_of_the_gain(learned):
    """Of a policy that hardly depends on the draw the bootstrap's error is that of the difference of two values."""
    best = improve(learned, cost, 0.5, n_modes=65)
    table = rank(learned, {"best": best.policy, "behaviour": "behaviour"}, cost, 0.5, n_modes=65)
    gap, error = table.gap("best", "behaviour")
    assert best.gain_std == pytest.approx(error, rel=0.3)  # of 100 draws: four times their 7 %
    assert abs(best.gain - gap) < error
