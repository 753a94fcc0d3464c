"""Policies over actions: what they are made of, closed loops, ranking, improvement."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from levytorch import ControlledDynamics, Dynamics, InputError, Trajectories, improve, recover, simulate, solve_value
from levytorch.policies import Policy
from levytorch.policy.ranking import rank
from levytorch.training.controlled import ControlledRecovery

X = torch.linspace(0.05, 6.2, 57, dtype=torch.float64)
PUSHES = ControlledDynamics.named("pushes")
# the same every step, so that the frozen law is exact and the recovery unbiased
STEADY = ControlledDynamics(lambda x, a: 1.5 * a + 0 * x, 1.0, lambda x, a: 0.6 + 0.2 * a + 0 * x, 0.6, actions=(-1, 1))


def cost(x, a):
    return torch.cos(x) - 0.1 * abs(a)


@pytest.fixture(scope="module")
def steady() -> ControlledRecovery:
    data = simulate(STEADY, [0.3, 0.7], 1500, 40, 1 / 40, substeps=1, seed=3).transitions()
    return recover(data, alpha=0.6, n_basis=1)


# -- policies ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "given",
    [
        lambda x: torch.stack([0.25 + 0 * x, 0.75 + 0 * x], dim=-1),
        [0.25, 0.75],
        {"left": 0.25, "right": 0.75},
    ],
)
def test_probabilities_in_every_form(given):
    found = Policy(given, ("left", "right"))(X)
    assert torch.equal(found, torch.tensor([[0.25, 0.75]], dtype=torch.float64).expand(len(X), 2))


def test_actions_in_every_form():
    right = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(len(X), 2)
    assert torch.equal(Policy("right", ("left", "right"))(X), right)
    assert torch.equal(Policy(lambda x: ["right"] * len(x), ("left", "right"))(X), right)
    assert torch.equal(Policy(lambda x: torch.ones_like(x), (-1, 1))(X), right)
    assert torch.equal(Policy("uniform", (0, 1, 2, 3))(X), torch.full((len(X), 4), 0.25, dtype=torch.float64))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("up", "found 'up'"),
        ([0.5, 0.6], "sum to one"),
        ([1.5, -0.5], "sum to one"),
        ([0.2, 0.3, 0.5], "must have shape"),
        ({"left": 0.5, "up": 0.5}, "found 'up'"),
        (lambda x: ["right"], "one action per state"),
        (lambda x: torch.full((len(x), 2), math.nan), "sum to one"),
        (lambda x: 1 / 0, "found that it raises ZeroDivisionError"),
    ],
)
def test_refused_policies(given, word):
    with pytest.raises(InputError, match=word):
        Policy(given, ("left", "right"))(X)


# -- closed loops -----------------------------------------------------------------------------------------------------
def test_the_closed_loop_of_one_action_is_that_system():
    for action in PUSHES.actions:
        loop, alone = PUSHES.under(action), PUSHES.of(action)
        for name in ("b", "D_o", "D_f"):
            assert torch.allclose(getattr(loop, name)(X), getattr(alone, name)(X), rtol=1e-14)
        V = solve_value(loop, cost, 0.7)
        W = solve_value(alone, lambda x, action=action: cost(x, action), 0.7)
        assert torch.allclose(V(X), W(X), atol=1e-12)


def test_value_of_a_randomised_policy_is_that_of_the_averaged_system():
    mixed = Dynamics(
        lambda x: 3 * torch.sin(x) + 0.5 * torch.sin(x) * (2 + torch.cos(x)),
        lambda x: torch.exp(0.5 * torch.sin(x + 1)) * (1 + 0.3 * (0.6 + 0.2 * torch.cos(x))),
        lambda x: 1 + 0.5 * torch.cos(2 * x) + 0.2 * 0.5 * torch.sin(x) ** 2,
        0.6,
    )

    def pi(x):  # mean of a: sin(x) / 2, mean of |a|: 0.6 + cos(x) / 5
        some, tilt = 0.6 + 0.2 * torch.cos(x), 0.5 * torch.sin(x)
        return torch.stack([(some - tilt) / 2, 1 - some, (some + tilt) / 2], dim=-1)

    V = solve_value(PUSHES.under(pi), cost, 1.0)
    W = solve_value(mixed, lambda x: torch.cos(x) - 0.1 * (0.6 + 0.2 * torch.cos(x)), 1.0)
    assert torch.allclose(V(X), W(X), atol=1e-10)


def test_monte_carlo_of_short_holds_agrees_with_the_averaged_generator():
    beta, dt, n = 2.0, 0.01, 1000
    pi = [0.2, 0.3, 0.5]
    paths = simulate(PUSHES, pi, n, 300, dt, substeps=1, x0=1.0, seed=5)
    x = torch.from_numpy(paths.to_array())
    weights = torch.exp(-beta * dt * torch.arange(301, dtype=torch.float64)) * dt
    weights[[0, -1]] /= 2  # trapezoidal; what comes after is at most exp(-6) / 2 of max |r|
    returns = torch.cos(x) @ weights
    V = solve_value(PUSHES.under(pi), torch.cos, beta)
    error = float(returns.std() / math.sqrt(n))
    assert abs(float(returns.mean()) - float(V(1.0))) < 4 * error + math.exp(-6) / beta


# -- recovery ---------------------------------------------------------------------------------------------------------
def test_every_action_has_its_own_coefficients(steady):
    assert steady.actions == (-1, 1)
    for action in steady.actions:
        std = steady.std(0.0, action)
        for name, error in zip(("b", "D_o", "D_f"), std):
            off = getattr(steady, name)(0.0, action) - getattr(STEADY.of(action), name)(0.0)
            assert abs(float(off)) < 4 * float(error)
    assert float(steady.b(0.0, 1) - steady.b(0.0, -1)) == pytest.approx(3.0, abs=0.5)


def test_what_is_shared_is_the_fit_of_all_pairs():
    """Minimum distance is maximum likelihood up to terms that vanish beside the standard error as 1 / sqrt(n)."""
    same = ControlledDynamics(1.0, 1.0, 0.6, 0.6, actions=(-1, 1))
    data = simulate(same, [0.5, 0.5], 1000, 40, 1 / 40, substeps=1, seed=4).transitions()
    shared = recover(data, alpha="learn", n_basis=1, shared=["b", "D_o", "D_f"])
    pooled = recover(data, alpha="learn", n_basis=1, actions=None)
    for i, (name, error) in enumerate(zip(("b", "D_o", "D_f"), pooled.std(0.0))):
        one, both = (float(getattr(shared, name)(0.0, action)) for action in (-1, 1))
        assert one == both
        assert abs(one - float(getattr(pooled, name)(0.0))) < 0.5 * float(error)
        assert float(shared.std(0.0, 1)[i]) == pytest.approx(float(error), rel=0.15)
    assert shared.metrics["shared/chi2"] < 18.5  # 0.1 % of chi squared with 4 degrees of freedom
    assert shared.metrics["shared/freedom"] == 4


def test_what_differs_is_not_shared_in_silence(steady):
    data = simulate(STEADY, [0.5, 0.5], 100, 40, 1 / 40, substeps=1, seed=4).transitions()
    assert recover(data, alpha=0.6, n_basis=1, shared=["b"]).metrics["shared/chi2"] > 50  # about 100 +- 20


@pytest.mark.long
def test_error_of_a_difference_is_that_of_shared_parameters(steady):
    table = rank(steady, {"mostly right": [0.1, 0.9], "right": 1, "behaviour": "behaviour"}, torch.cos, 1.0)
    gap, error = table.gap("right", "mostly right")
    root = math.hypot(table.mean_std("right"), table.mean_std("mostly right"))
    assert error < 0.5 * root
    assert gap == pytest.approx(table.mean("right") - table.mean("mostly right"), abs=1e-12)
    # against the gradient of the gap in every parameter, by central differences
    heads, kept, size = [f.head for f in steady.recoveries], torch.cat([f.theta for f in steady.recoveries]), 1e-5
    slopes = []
    for step in size * torch.eye(len(kept), dtype=torch.float64):
        gaps = []
        for theta in (kept + step, kept - step):
            for head, part in zip(heads, theta.chunk(2)):
                head.set_flat(part)
            one, other = (solve_value(steady.under(p), torch.cos, 1.0, n_modes=65) for p in (1, [0.1, 0.9]))
            gaps.append(float(table.weights @ (one(table.states) - other(table.states))))
        slopes.append((gaps[0] - gaps[1]) / (2 * size))
    for head, part in zip(heads, kept.chunk(2)):
        head.set_flat(part)
    slope = torch.tensor(slopes, dtype=torch.float64)
    assert error == pytest.approx(math.sqrt(float(slope @ steady.covariance @ slope)), rel=1e-5)
    assert "behaviour" in str(table)


def test_behaviour_is_what_was_done(steady):
    pi = steady.behaviour(X)
    assert float((pi[:, 1] - 0.7).abs().max()) < 5 * math.sqrt(0.21 / (60_000 / 64 / 4))
    assert torch.allclose(pi.sum(1), torch.ones(len(X), dtype=torch.float64))


@pytest.mark.long
@pytest.mark.long
def test_what_the_data_does_not_show_is_said():
    everywhere = simulate(STEADY, [0.5, 0.5], 400, 40, 1 / 40, substeps=1, seed=6).transitions()
    state = torch.remainder(everywhere.x, 2 * math.pi)
    lopsided = everywhere[(everywhere.action < 0) | (state < 1.0)]
    found = recover(lopsided, alpha=0.6, n_basis=3, engine="fisher")
    with pytest.warns(match="are supported by fewer than 50 pairs"):
        found.under(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.under("behaviour")
    pairs = found.effective_pairs(1)
    assert float(pairs[: 64 // 7].min()) > 50 > float(pairs[64 // 5 :].max())


def test_saved_and_loaded(steady, tmp_path):
    steady.save(tmp_path / "r.pt")
    again = ControlledRecovery.load(tmp_path / "r.pt")
    assert again.actions == steady.actions
    assert torch.equal(again.covariance, steady.covariance)
    assert torch.equal(again.b(X, 1), steady.b(X, 1))
    (tmp_path / "r.pt").write_bytes(b"not a recovery")
    with pytest.raises(InputError, match="something else"):
        ControlledRecovery.load(tmp_path / "r.pt")


def test_refused():
    data = simulate(STEADY, "uniform", 50, 40, 1 / 40, seed=1).transitions()
    with pytest.raises(InputError, match="shared must name"):
        recover(data, alpha=0.6, n_basis=1, shared=["alpha"])
    with pytest.raises(InputError, match="one number for all actions"):
        recover(data, alpha="function", n_basis=1)
    few = torch.cat([torch.nonzero(data.action < 0)[:3, 0], torch.nonzero(data.action > 0)[:, 0]]).sort().values
    with pytest.raises(InputError, match="action -1, of 3 pairs"):
        recover(data[few], alpha=0.6, n_basis=1)
    with pytest.raises(InputError, match="found 5"):
        recover(data, alpha=0.6, n_basis=1).under(5)


# -- improvement ------------------------------------------------------------------------------------------------------
def test_policy_iteration_is_monotone_and_best():
    best = improve(PUSHES, cost, 1.0)
    assert best.converged
    assert all(later >= earlier - 1e-12 for earlier, later in zip(best.history, best.history[1:]))
    assert len(best.history) < 12
    for policy in (-1, 0, 1, "uniform", lambda x: torch.stack([(x > 2) + 0.0, 0 * x, (x <= 2) + 0.0], -1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a policy that jumps has no spectral convergence
            V = solve_value(PUSHES.under(policy), cost, 1.0, n_modes=257)
        assert float((best.V(X) - V(X)).min()) > -1e-3
    # Bellman's equation: no action gains on V, the chosen ones neither lose
    q = best.q(X)
    assert float(q.amax(-1).abs().max()) < 0.02 * float(q.abs().max())


def test_temperature_gives_the_boltzmann_policy():
    soft = improve(PUSHES, cost, 1.0, temperature=0.2)
    assert all(later >= earlier - 1e-12 for earlier, later in zip(soft.history, soft.history[1:]))
    assert torch.allclose(soft.policy(X), torch.softmax(soft.q(X) / 0.2, dim=-1))
    assert float(soft.V(X).mean()) < float(improve(PUSHES, cost, 1.0).V(X).mean())


@pytest.mark.long
def test_gain_is_corrected_for_having_chosen(steady):
    found = improve(steady, torch.cos, 1.0)
    truth = improve(STEADY, torch.cos, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        V, W = (solve_value(STEADY.under(p), torch.cos, 1.0, n_modes=257) for p in (found.policy, [0.3, 0.7]))
    weights = steady.counts.sum(0) / steady.counts.sum()
    real = float(weights @ (V(steady.centers()) - W(steady.centers())))
    assert abs(found.gain - real) < 4 * found.gain_std
    assert float((truth.V(X) - V(X)).abs().max()) < 0.02 * float(truth.V(X).abs().max())
    with pytest.raises(InputError, match="system with actions"):
        improve(STEADY.of(1), torch.cos, 1.0)


# -- files ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("names", [(-1, 1), ("left", "right")])
def test_actions_go_through_files(tmp_path, suffix, names):
    x, held = torch.arange(12.0).reshape(3, 4).sqrt(), torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0]])
    written = Trajectories.from_arrays(x, dt=0.5, action=[[names[i] for i in row] for row in held.tolist()])
    written.to_file(tmp_path / f"logs{suffix}")
    read = Trajectories.from_file(tmp_path / f"logs{suffix}").transitions()
    assert read.actions == names
    assert read.action_codes.tolist() == held.reshape(-1).tolist()
    assert list(read.action) == list(written.transitions().action)


def test_an_action_that_is_missing_is_named_with_its_row(tmp_path):
    (tmp_path / "logs.csv").write_text("time,x,push\n0,1,up\n1,2,\n2,3,down\n")
    with pytest.raises(InputError, match=r"column 'push', row 2: there must be an action"):
        Trajectories.from_file(tmp_path / "logs.csv", action="push")
    (tmp_path / "logs.csv").write_text("time,x,push\n0,1,up\n1,2,up\n2,3.5,down\n3,2,up\n")
    read = Trajectories.from_file(tmp_path / "logs.csv", action="push").transitions()
    assert list(read.action) == ["up", "up", "down"]
    assert "action" in read.describe()
