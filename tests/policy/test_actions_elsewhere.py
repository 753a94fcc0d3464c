"""Policies on a line and in the plane, vectors of actions, logged rewards: against independent answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch import (
    ContinuousRecovery,
    ControlledDynamics,
    Dynamics,
    InputError,
    LevyStep,
    Trajectories,
    Transitions,
    improve,
    recover,
    simulate,
    solve_value,
)
from levytorch.policies import NumberPolicy
from levytorch.policy.ranking import rank
from levytorch.policy.rewards import logged_reward
from tests.inputs.judge import judge

pytestmark = pytest.mark.filterwarnings("ignore:.*are supported by fewer than 50 pairs")  # data of tests is small
X = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64)
THRUST = ControlledDynamics.named("thrust")
SAILS = ControlledDynamics.named("sails")
WINDOW = (-3.0, 3.0)


def steer(x):
    return -torch.tanh(x)


def costly(x, a):
    return torch.exp(-(x**2)) - 0.1 * a**2


# -- policies over numbers --------------------------------------------------------------------------------------------
def test_number_policies_in_every_form():
    one, two = ((-2.0, 2.0),), ((-1.0, 1.0), (0.0, 4.0))
    assert torch.allclose(NumberPolicy(steer, one)(X), steer(X))
    assert torch.equal(NumberPolicy(0.5, one)(X), torch.full_like(X, 0.5))
    assert torch.allclose(NumberPolicy((0.5, 3.0), two)(X), torch.tensor([0.5, 3.0]).double().expand(len(X), 2))
    # the mean of a drawn action, by Gauss's rule: E u^3 = 1 / 4
    assert torch.allclose(NumberPolicy(lambda x, u: u**3, one)(X), torch.full_like(X, 0.25))
    assert torch.allclose(NumberPolicy("uniform", two)(X), torch.tensor([0.0, 2.0]).double().expand(len(X), 2))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (2.5, r"range \[-2, 2\], found 2.5"),
        (lambda x: 3 * x, "found -4.5"),
        ((0.5, 0.5), "must have 1 numbers, found 2"),
        (lambda x: torch.zeros(7), "one action of 1 numbers per state"),
        (lambda x: x * math.nan, "found nan"),
        ("up", "numeric"),
    ],
)
def test_refused_number_policies(given, word):
    with pytest.raises(InputError, match=word):
        NumberPolicy(given, ((-2.0, 2.0),))(X)


def test_the_averaged_generator_of_a_drawn_action():
    """b is linear and D_o quadratic in a: E a = 0 and E a^2 = 4 / 3 for a uniform on (-2, 2)."""
    loop = THRUST.under("uniform")
    assert torch.allclose(loop.b(X), -2 * torch.tanh(X), atol=1e-12)
    assert torch.allclose(loop.D_o(X), torch.full_like(X, 0.3 + 0.1 * 4 / 3), atol=1e-12)
    r = loop.policy.averaged(costly)
    assert torch.allclose(r(X), torch.exp(-(X**2)) - 0.1 * 4 / 3, atol=1e-12)


def test_simulated_thrust_is_what_was_held():
    paths = simulate(THRUST, "uniform", 400, 5, 0.001, substeps=1, x0=0.0, seed=2)
    data = paths.transitions()
    assert float(data.action.min()) >= -2
    assert float(data.action.max()) <= 2
    # short steps: the median of dx / dt follows b = 1.5 a - 2 tanh x; scale by its standard error under the noise
    fast = data.dx / data.dt
    slope = float(torch.median((fast * torch.sign(data.action))[data.action.abs() > 1]))
    width = float((fast - fast.median()).abs().median()) * 1.5 / math.sqrt(len(fast) / 2)
    assert abs(slope - 1.5 * 1.5) < 4 * width


def test_monte_carlo_of_a_policy_on_the_line():
    """V with exterior constant on a window that paths hardly leave within 1 / beta."""
    calm = ControlledDynamics(
        lambda x, a: a - 4 * x, 0.2, 0.02, 0.75, period=None, action_range=(-2, 2), window=(-1, 1)
    )
    beta, dt, n = 4.0, 0.01, 1500
    paths = simulate(calm, steer, n, 200, dt, substeps=1, x0=0.4, seed=5)
    x = torch.from_numpy(paths.to_array())
    weights = torch.exp(-beta * dt * torch.arange(201, dtype=torch.float64)) * dt
    weights[[0, -1]] /= 2
    returns = costly(x, steer(x)) @ weights
    V = solve_value(calm.under(steer), costly, beta, window=(-4.0, 4.0))
    error = float(returns.std() / math.sqrt(n))
    assert abs(float(returns.mean()) - float(V(0.4))) < 4 * error + 3e-3  # Euler's bias, of order dt


# -- recovery ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def on_line() -> ContinuousRecovery:
    """Pairs from the law itself: the frozen law is exact."""
    torch.manual_seed(1)
    x = 5 * torch.rand(8000, dtype=torch.float64) - 2.5
    a = 4 * torch.rand(8000, dtype=torch.float64) - 2
    b, D_o, D_f = (THRUST.at(name, x, a[:, None]) for name in ("b", "D_o", "D_f"))
    pairs = Transitions(x, LevyStep(b, D_o, D_f, 0.75, 1 / 40).sample(), 1 / 40, action=a)
    return recover(pairs, alpha=0.75, n_basis=6, period=None, engine="fisher", law="frozen")


def test_coefficients_of_a_thrust_on_a_line(on_line):
    assert on_line.converged
    for action in (-1.0, 1.5):
        true = THRUST.of(action)
        for name, std in zip(("b", "D_o", "D_f"), on_line.std(X, action)):
            z = (getattr(on_line, name)(X, action) - getattr(true, name)(X)) / std
            assert float(z.abs().max()) < 4.5, name  # six splines hold tanh and exp to a tenth of these errors


def test_value_of_policies_on_a_line(on_line):
    names = {"steer": steer, "rest": 0.0, "behaviour": "behaviour"}
    table = rank(on_line, names, costly, 1.0, window=(-2.4, 2.4), n_modes=128)
    for name in ("steer", "rest"):
        V, true = (
            table.values[name],
            solve_value(THRUST.under(names[name]), costly, 1.0, window=(-2.4, 2.4), n_modes=128),
        )
        assert float(((V(X) - true(X)) / V.std(X)).abs().max()) < 4
    D = table.difference("steer", "rest")
    both = torch.hypot(table.values["steer"].std(X), table.values["rest"].std(X))
    assert bool((D.std(X) < both).all())
    gap, error = table.gap("steer", "rest")
    assert gap == pytest.approx(table.mean("steer") - table.mean("rest"), abs=1e-12)
    assert 0 < error < float(both.max())
    # what was done is the uniform policy
    uniform = solve_value(on_line.under("uniform"), costly, 1.0, window=(-2.4, 2.4), n_modes=128)
    assert float((table.values["behaviour"](X) - uniform(X)).abs().max()) < 0.02 * float(uniform(X).abs().max())


@pytest.mark.slow
def test_improvement_on_a_line(on_line):
    options = {"window": (-2.4, 2.4), "n_modes": 96}
    best, optimal = (improve(system, costly, 1.0, **options) for system in (on_line, THRUST))
    assert all(later >= earlier - 1e-9 for earlier, later in zip(best.history, best.history[1:]))
    V = solve_value(THRUST.under(best.policy), costly, 1.0, window=(-2.4, 2.4), n_modes=256)
    assert float((optimal.V(X) - V(X)).max()) < 0.02 * float(optimal.V(X).abs().max())
    assert float(best.policy(torch.tensor([2.0]).double())) < 0 < float(best.policy(torch.tensor([-2.0]).double()))
    truth = solve_value(THRUST.under("uniform"), costly, 1.0, window=(-2.4, 2.4))
    at, weights = on_line.centers(), on_line.counts.sum(0)
    weights = weights * ((at > -2.4) & (at < 2.4))
    real = float(weights @ (V(at) - truth(at)) / weights.sum())
    assert abs(best.gain - real) < 4 * best.gain_std + 0.01 * abs(real)  # bins of the behaviour


def test_saved_with_its_scale(on_line, tmp_path):
    on_line.save(tmp_path / "r.pt")
    again = ContinuousRecovery.load(tmp_path / "r.pt")
    assert torch.equal(again.b(X, 0.7), on_line.b(X, 0.7))
    assert again.action_range == on_line.action_range
    assert torch.equal(again.behaviour(X), on_line.behaviour(X))
    assert torch.equal(again.std(X, 0.7)[0], on_line.std(X, 0.7)[0])
    (tmp_path / "r.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"ContinuousRecovery\.save"):
        ContinuousRecovery.load(tmp_path / "r.pt")


def test_where_a_policy_leaves_the_scale_of_the_data():
    torch.manual_seed(0)
    x, a = 5 * torch.rand(9000, dtype=torch.float64) - 2.5, 2 * torch.rand(9000, dtype=torch.float64) - 1
    a = torch.where(torch.rand(9000) < 0.002, torch.full_like(a, 3.0), a)  # a rare kick
    pairs = Transitions(x, LevyStep(a, 0.3, 0.5, 0.75, 1 / 40).sample(), 1 / 40, action=a)
    found = recover(pairs, alpha=0.75, n_basis=1, period=None, engine="fisher")
    with pytest.warns(match="actions near its own"):
        found.under(2.5)
    with pytest.raises(InputError, match="logged range"):
        found.under(3.5)
    assert found.extrapolated(0.0) < 0.05 < found.extrapolated(2.5)


def test_labels_on_a_line():
    """Actions with labels share the window of the line; b differs by the push."""
    push = ControlledDynamics(lambda x, a: a - 2 * x, 0.5, 0.3, 0.75, period=None, actions=(-1, 1), window=(-1, 1))
    data = simulate(push, "uniform", 120, 40, 1 / 40, substeps=5, seed=3).transitions()
    found = recover(data, alpha=0.75, n_basis=4, period=None, engine="fisher", law="frozen", shared=["D_o", "D_f"])
    assert found.of(-1).head.window == found.of(1).head.window
    gap = float(found.b(0.0, 1) - found.b(0.0, -1))
    assert abs(gap - 2.0) < 4 * math.hypot(*(float(found.std(0.0, a)[0]) for a in (-1, 1)))
    low, high = found.support
    table = rank(
        found, {"left": -1, "right": 1}, lambda x: torch.tanh(x), 1.0, window=(max(low, -2), min(high, 2)), n_modes=64
    )
    assert table.order == ["right", "left"]
    best = improve(found, lambda x, a: torch.tanh(x), 1.0, n_modes=64)
    assert float(best.policy(torch.zeros(1).double())[0, 1]) == 1.0


@pytest.fixture(scope="module")
def with_lost_tails():
    """Pairs of a scale, half of those beyond CT lost, and their D_f."""
    torch.manual_seed(1)
    x, a = 2 * math.pi * torch.rand(20_000, dtype=torch.float64), 4 * torch.rand(20_000, dtype=torch.float64) - 2

    def D_f(x, a):
        return 0.6 + 0.2 * torch.cos(x) + 0.05 * a

    dx = LevyStep(torch.sin(x) + a, 0.5 + 0.1 * a**2, D_f(x, a), 0.6, 1 / 40).sample()
    pairs = Transitions(x, dx, 1 / 40, action=a)
    return pairs.censor(TRT=3.0, CT=0.6, drop_tail=0.5, seed=1), D_f


@pytest.mark.parametrize("method", ["tcf", "conditional"])
def test_lost_tails_of_a_scale(with_lost_tails, method):
    pairs, D_f = with_lost_tails
    tail = {"CT": 0.6, "TRT": 3.0, "method": method}
    found = recover(pairs, alpha=0.6, n_basis=3, engine="fisher", law="frozen", tail=tail)
    at = torch.linspace(0.3, 6.0, 7, dtype=torch.float64)
    z = (found.D_f(at, 1.5) - D_f(at, torch.tensor(1.5))) / found.std(at, 1.5)[2]
    assert float(z.abs().max()) < 4


@pytest.mark.slow
def test_validation_and_functions_left_to_cross_validation():
    torch.manual_seed(5)
    x, a = (2 * torch.rand(600, dtype=torch.float64) - 1 for _ in range(2))
    pairs = Transitions(3 * x, LevyStep(a - torch.sin(3 * x), 0.5, 0.3, 0.75, 1 / 40).sample(), 1 / 40, action=a)
    found = recover(pairs, alpha=0.75, n_basis="auto", n_action=2, validation=0.2, law="frozen")
    assert found.metrics["selection"]["chosen"] == found.head.n_basis
    assert math.isfinite(found.metrics["val/nll"])


# -- vectors and the plane --------------------------------------------------------------------------------------------
def test_vectors_of_actions():
    """b = a_1 + sin(x) a_2, D_o with a_2^2: recovered from pairs of the law itself."""
    torch.manual_seed(2)
    n = 12_000
    x = 2 * math.pi * torch.rand(n, dtype=torch.float64)
    a = 2 * torch.rand(n, 2, dtype=torch.float64) - 1

    def b(x, a):
        return 2 * a[:, 0] + torch.sin(x) * a[:, 1]

    def D_o(x, a):
        return 1 + 0.3 * a[:, 1] ** 2 + 0 * x

    system = ControlledDynamics(b, D_o, 0.8, 0.6, action_range=[(-1, 1), (-1, 1)])
    dx = LevyStep(b(x, a), D_o(x, a), torch.full_like(x, 0.8), 0.6, 1 / 40).sample()
    found = recover(Transitions(x, dx, 1 / 40, action=a), alpha=0.6, n_basis=3, engine="fisher")
    at = torch.linspace(0.2, 6.0, 9, dtype=torch.float64)
    for action in ((0.5, -0.5), (-0.8, 0.9)):
        for name, std in zip(("b", "D_o", "D_f"), found.std(at, action)):
            z = (getattr(found, name)(at, action) - getattr(system.of(action), name)(at)) / std
            assert float(z.abs().max()) < 4.5, name

    def policy(x):
        return torch.stack([-0.5 * torch.sin(x), 0.5 * torch.cos(x)], dim=-1)

    V, W = (solve_value(s.under(policy), lambda x, a: torch.cos(x) - a[:, 0] ** 2, 1.0) for s in (found, system))
    assert float(((V(at) - W(at)) / V.std(at)).abs().max()) < 4
    few = found.on([(-0.9, 0.0), (0.9, 0.0), (0.0, 0.0)])
    best = improve(few, torch.cos, 1.0, n_modes=65)
    assert best.policy(torch.tensor([1.0, -1.0]).double()).argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_vectors_go_through_files(tmp_path, suffix):
    x, held = torch.arange(12.0).reshape(3, 4).sqrt(), torch.rand(3, 3, 2, dtype=torch.float64)
    written = Trajectories.from_arrays(x, dt=0.5, action=held)
    written.to_file(tmp_path / f"logs{suffix}")
    read = Trajectories.from_file(tmp_path / f"logs{suffix}").transitions()
    assert torch.equal(read.action, held.reshape(-1, 2))
    assert "a[1]" in read.describe()
    assert torch.equal(read[torch.tensor([2, 5])].action, held.reshape(-1, 2)[[2, 5]])


def test_columns_of_a_vector_are_named(tmp_path):
    (tmp_path / "logs.csv").write_text("time,x,u,v\n0,1,0.1,1\n1,2,0.2,2\n2,3.5,0.3,3\n")
    read = Trajectories.from_file(tmp_path / "logs.csv", value="x", action=["u", "v"]).transitions()
    assert read.action.tolist() == [[0.1, 1.0], [0.2, 2.0]]
    (tmp_path / "logs.csv").write_text("time,x,u,v\n0,1,a,1\n1,2,b,2\n2,3.5,c,3\n")
    with pytest.raises(InputError, match="must be numbers, found text"):
        Trajectories.from_file(tmp_path / "logs.csv", value="x", action=["u", "v"])


@pytest.mark.slow
def test_policies_in_the_plane():
    data = simulate(SAILS, "uniform", 150, 40, 1 / 40, substeps=4, seed=1).transitions()
    found = recover(data, alpha=0.6, n_basis=3, engine="fisher", law="frozen")

    def r(x, a):
        return torch.cos(x[..., 0]) * torch.cos(x[..., 1]) - 0.05 * a

    table = rank(found, {"uniform": "uniform", "first": 0}, r, 1.0, n_modes=16)
    at = SAILS.first.points(12)
    for name, policy in (("uniform", "uniform"), ("first", 0)):
        true = solve_value(SAILS.under(policy), r, 1.0)
        V = table.values[name]
        assert float(((V(at) - true(at)) / V.std(at)).abs().max()) < 4.5
    D = table.difference("first", "uniform")
    assert D.std(at).shape == (12,)
    assert table.gap("first", "uniform")[1] > 0
    best = improve(SAILS, r, 1.0, n_modes=12)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(best.history, best.history[1:]))
    for action in (0, 1, 2):
        assert float((best.V(at) - solve_value(SAILS.under(action), r, 1.0)(at)).min()) > -0.02
    assert best.q(at).shape == (12, 3)


def test_one_thrust_held_is_a_system_on_the_line():
    alone = Dynamics(
        lambda x: 1.5 - 2 * torch.tanh(x), 0.4, lambda x: 0.5 + 0.25 * torch.exp(-(x**2)), 0.75, period=None
    )
    V = solve_value(THRUST.under(1.0), costly, 1.0, window=WINDOW)
    W = solve_value(alone, lambda x: costly(x, 1.0), 1.0, window=WINDOW)
    assert torch.allclose(V(X), W(X), atol=1e-10)


# -- rewards ----------------------------------------------------------------------------------------------------------
def test_logged_rewards_of_pairs():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 2 * math.pi, (50, 41))
    a = rng.integers(0, 2, (50, 40))
    noise = 0.1 * rng.standard_normal((50, 40))
    paths = Trajectories.from_arrays(x, dt=0.1, action=a, reward=np.cos(x[:, :-1]) * (1 + a) + noise)
    pairs = paths.transitions()
    r = logged_reward(pairs, n_basis=5)
    at = torch.linspace(0, 6, 13, dtype=torch.float64)
    for action in (0, 1):
        # five functions of about 1000 pairs each: standard errors of at most 0.1 sqrt(5 / 1000) sqrt(2)
        assert float((r(at, action) - (1 + action) * torch.cos(at)).abs().max()) < 4 * 0.1 * math.sqrt(10 / 1000)
    with pytest.raises(InputError, match="with logged rewards"):
        r(at, 3)
    with pytest.raises(InputError, match="found none; give reward="):
        logged_reward(Trajectories.from_arrays(x, dt=0.1).transitions())


def test_logged_rewards_on_a_scale():
    rng = np.random.default_rng(1)
    x, a = rng.uniform(-2, 2, 3000), rng.uniform(-1, 1, 3000)
    pairs = Transitions(x, 0.1 * rng.standard_normal(3000), 0.1, action=a, reward=x**2 - x * a + a**2)
    r = logged_reward(pairs, period=None, n_basis=5)
    at = torch.linspace(-1.8, 1.8, 7, dtype=torch.float64)
    assert torch.allclose(r(at, 0.5), at**2 - 0.5 * at + 0.25, atol=1e-6)  # splines and parabolas hold it


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"law": "exact"}, "found law exact"),
        ({"coefficients": "mlp", "engine": "lbfgs"}, "found a MLPHead"),
        ({"n_action": 1}, "n_action"),
        ({"alpha": "function"}, "alpha"),
        ({"tempering": -0.1}, "tempering must be >= 0"),
    ],
)
def test_refused_fits_of_a_scale(more, word):
    torch.manual_seed(0)
    x, a = torch.rand(200, dtype=torch.float64), torch.rand(200, dtype=torch.float64)
    pairs = Transitions(x, 0.1 * torch.randn(200, dtype=torch.float64), 0.1, action=a)
    with pytest.raises(InputError, match=word):
        recover(pairs, **{"alpha": 0.6, "n_basis": 1, "engine": "fisher", **more})


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (np.full((2, 3, 3), 0.5), "vectors of actions"),
        (np.array([[[0, np.nan], [0, 0], [0, 0]]] * 2), "no gaps"),
        ([[0.1, np.nan, 0.2], [0.1, 0.1, 0.2]], "no gaps"),
        ([["up", None, "up"], ["up", "up", "up"]], "numbers or strings"),
        ([["up", "up"], ["up", "up"]], "must have 4 entries"),
        ([["up", "up", "up"]], "must have 2 trajectories"),
    ],
)
def test_actions_with_gaps_or_of_another_shape(action, word):
    with pytest.raises(InputError, match=word):
        Trajectories.from_arrays(torch.zeros(2, 4), dt=0.1, action=action)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"actions": (1,)}, "two or more"),
        ({"actions": (1, 1)}, "two or more"),
        ({}, "found neither"),
        ({"actions": (0, 1), "action_range": (0, 1)}, "found both"),
        ({"action_range": (1, 0)}, "low < high"),
        ({"action_range": [(0, 1)] * 3}, "low < high"),
    ],
)
def test_refused_systems(given, word):
    with pytest.raises(InputError, match=word):
        ControlledDynamics(0.0, 1.0, 1.0, 0.5, **given)


def test_rows_that_are_left_out_may_hide_an_action(tmp_path):
    (tmp_path / "logs.csv").write_text("time,x,push\n0,1,up\n1,,down\n2,3.5,down\n3,2,up\n4,2.5,up\n")
    with pytest.warns(match="another action may have been held"):
        Trajectories.from_file(tmp_path / "logs.csv", action="push", missing="drop")


def test_a_scale_of_actions_in_the_plane(tmp_path):
    torch.manual_seed(3)
    n = 6000
    x, a = 2 * math.pi * torch.rand(n, 2, dtype=torch.float64), 2 * torch.rand(n, dtype=torch.float64) - 1

    def b(x, a):
        return torch.stack([2 * a + 0 * x[:, 0], torch.cos(x[:, 0])], dim=-1)

    def D_o(x, a):
        return 1 + 0.2 * a**2

    system = ControlledDynamics(b, D_o, 0.8, 0.6, dim=2, action_range=(-1, 1))
    dx = LevyStep(b(x, a), D_o(x, a), torch.full((n,), 0.8, dtype=torch.float64), 0.6, 1 / 40, dim=2).sample()
    found = recover(Transitions(x, dx, 1 / 40, action=a), alpha=0.6, n_basis=3, engine="fisher")
    at = system.first.points(7)
    for name, std in zip(("b", "D_o", "D_f"), found.std(at, 0.8)):
        z = (getattr(found, name)(at, 0.8) - getattr(system.of(0.8), name)(at)) / std
        assert float(z.abs().max()) < 4.5, name
    found.save(tmp_path / "r.pt")
    assert torch.equal(ContinuousRecovery.load(tmp_path / "r.pt").b(at, 0.3), found.b(at, 0.3))


# -- odd inputs -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "odd", [None, True, math.nan, "a", b"a", object(), [], [[1], [2, 3]], {"a": 1}, np.zeros((2, 3)), int]
)
def test_odd_inputs_are_answered_or_refused_in_a_sentence(on_line, odd):
    calls = [
        lambda: THRUST.under(odd).b(X),
        lambda: THRUST.of(odd),
        lambda: THRUST.on(odd),
        lambda: SAILS.under(odd),
        lambda: SAILS.of(odd),
        lambda: on_line.under(odd),
        lambda: on_line.b(odd, 0.5),
        lambda: on_line.b(0.5, odd),
        lambda: on_line.on(odd),
        lambda: rank(on_line, odd, torch.cos, 1.0, window=(-1, 1), n_modes=16),
        lambda: rank(on_line, {"a": 0.5}, odd, 1.0, window=(-1, 1), n_modes=16),
        lambda: improve(on_line.on([-1.0, 1.0]), odd, 1.0, window=(-1, 1), n_modes=16),
        lambda: improve(odd, torch.cos, 1.0),
        lambda: ControlledDynamics(0.0, 1.0, 1.0, 0.5, actions=odd),
        lambda: ControlledDynamics(0.0, 1.0, 1.0, 0.5, action_range=odd),
        lambda: Trajectories.from_arrays(torch.zeros(2, 4), dt=0.1, action=odd),
    ]
    for number, call in enumerate(calls):
        judge(call, f"call {number}")


def test_numbers_and_arrays_of_states_and_actions_broadcast(on_line):
    assert on_line.b(0.1, 0.5).shape == ()
    assert on_line.b(X, 0.5).shape == on_line.b(0.1, X / 2).shape == X.shape
    assert on_line.D_f(X[:, None], X[None] / 2).shape == (31, 31)
