"""Episodes of Gymnasium and Minari: a termination is an exit with a value, not a lost pair."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from levytorch import Trajectories, value_from_data
from levytorch.errors import InputError
from levytorch.policy.empirical import empirical_values

TWO = [
    {
        "observations": np.array([[0.0, 5.0], [0.1, 5.5], [0.3, 7.0]]),
        "actions": np.array([0, 1]),
        "rewards": np.array([1.0, 2.0]),
        "terminations": np.array([False, True]),
        "truncations": np.array([False, False]),
    },
    SimpleNamespace(
        observations=np.array([[1.0, 2.0], [2.0, 2.5]]),
        actions=np.array([1]),
        rewards=np.array([3.0]),
        terminations=np.array([False]),
        truncations=np.array([True]),
    ),
]


def test_fields_of_the_pairs():
    t = Trajectories.from_episodes(TWO, dt=0.5, state=1, terminal_value=-4.0).transitions()
    np.testing.assert_array_equal(t.x, [5.0, 5.5, 2.0])
    np.testing.assert_array_equal(t.reward, [2.0, 4.0, 6.0])  # per unit of time
    np.testing.assert_array_equal(t.action, [0, 1, 1])
    np.testing.assert_array_equal(t.terminal, [math.nan, -4.0, math.nan])
    np.testing.assert_array_equal(t[1:].terminal, [-4.0, math.nan])
    both = Trajectories.from_episodes(TWO, dt=0.5, action=None, reward_per="time").transitions()
    assert both.dim == 2
    assert both.action is None
    np.testing.assert_array_equal(both.reward, [1.0, 2.0, 3.0])
    size = Trajectories.from_episodes(TWO, dt=0.5, state=lambda o: np.hypot(*np.asarray(o).T)).transitions()
    np.testing.assert_allclose(size.x[2], math.sqrt(5.0))


@pytest.mark.parametrize("name", ["e.parquet", "e.npz", "e.csv", "e.feather"])
def test_files_keep_how_episodes_end(name, tmp_path):
    t = Trajectories.from_episodes(TWO, dt=0.5, state=0, terminal_value=1.5)
    t.to_file(tmp_path / name)
    back = Trajectories.from_file(tmp_path / name).transitions()
    np.testing.assert_array_equal(back.terminal, [math.nan, 1.5, math.nan])


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"rewards": [1.0]}, {}, "rewards of episode 0 must have 2 entries, one per step, found 1"),
        ({"observations": None}, {}, "episode 0 must have observations"),
        (
            {"observations": {"pos": [1.0, 2.0, 4.0]}},
            {"state": "p"},
            "state must be a key of the observations",
        ),
        ({}, {"state": 2}, "state must be numbers of the 2 coordinates of an observation, found 2"),
        ({"observations": np.zeros((3, 5))}, {}, "the state must have at most 3 coordinates, found 5"),
        ({}, {"reward_per": "day"}, "reward_per must be one of step, time"),
    ],
)
def test_refusals(change, options, said):
    with pytest.raises(InputError, match=said):
        Trajectories.from_episodes([TWO[0] | change], dt=0.5, **options)


@pytest.fixture(scope="module")
def exits():
    """Brownian motion with D_o = 1 in (-1, 1), stopped where it leaves; reward rate 1, value -1 after it."""
    rng, dt = np.random.default_rng(0), 2e-3
    episodes = []
    for _ in range(600):
        x = [rng.uniform(-0.9, 0.9)]
        while abs(x[-1]) < 1 and len(x) < 4000:
            x.append(x[-1] + math.sqrt(2 * dt) * rng.normal())
        n = len(x) - 1
        ends = np.arange(n) == n - 1
        episodes.append({"observations": x, "rewards": np.full(n, dt), "terminations": ends & (abs(x[-1]) >= 1)})
    return Trajectories.from_episodes(episodes, dt=dt, terminal_value=-1.0)


def true_value(x, beta, dt=2e-3):
    """beta V = 1 + V'', V = -1 where |x| >= L; observed only every dt, the motion leaves 0.5826 steps later."""
    L, k = 1.0 + 0.5826 * math.sqrt(2 * dt), math.sqrt(beta)
    return 1 / beta + (-1.0 - 1 / beta) * np.cosh(k * x) / math.cosh(k * L)


def test_a_terminal_value_is_used_by_lstd(exits):
    x = np.array([-0.6, 0.0, 0.6])
    V = value_from_data(exits.transitions(), lambda x: torch.ones_like(x), 2.0, method="lstd", n_basis=9, period=None)
    off = np.asarray(V(x)) - true_value(x, 2.0)
    assert (np.abs(off) < 4 * np.asarray(V.std(x))).all()
    assert float(V.std(x).max()) < 0.05  # without the ends V would be 1 / beta = 0.5 everywhere; it is about -0.3 to 0
    with pytest.raises(InputError, match="method must be 'lstd' for episodes that end in a terminal state"):
        value_from_data(exits.transitions(), 1.0, 2.0, method="brownian", period=None)


def test_a_terminal_value_ends_empirical_sums(exits):
    values = empirical_values(exits, lambda x: torch.ones_like(x), 2.0, linear=True)
    near = np.abs(np.asarray(values.x)) < 0.1
    found = np.asarray(values.V)[near]
    expected = true_value(np.asarray(values.x)[near], 2.0)
    # paths that pass this place: their values are far from independent, one path counts once
    assert abs((found - expected).mean()) < 4 * found.std() / math.sqrt(300)


def test_a_real_environment():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1", max_episode_steps=30)
    episodes = []
    for seed in range(8):
        episode = {name: [] for name in ("observations", "actions", "rewards", "terminations", "truncations")}
        observation, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        episode["observations"].append(observation)
        ended = cut = False
        while not (ended or cut):
            action = (
                env.action_space.sample() if seed else len(episode["actions"]) % 2
            )  # 0 balances until it is cut off
            observation, reward, ended, cut, _ = env.step(action)
            for name, value in zip(episode, (observation, action, reward, ended, cut)):
                episode[name].append(value)
        episodes.append(episode)
    paths = Trajectories.from_episodes(episodes, dt=0.02, state=[0, 2])
    t = paths.transitions()
    assert len(t) == sum(len(e["actions"]) for e in episodes)  # no pair is lost
    assert int((~t.terminal.isnan()).sum()) == sum(e["terminations"][-1] for e in episodes) > 0
    assert any(e["truncations"][-1] for e in episodes)
    assert t.actions == (0, 1)
    np.testing.assert_allclose(t.reward, 50.0)
    last = paths.offsets[1:] - 1
    angle = np.abs(paths.x[last, 1])
    ended = np.array([e["terminations"][-1] for e in episodes])
    assert (angle[ended] > 0.2).all()  # the state it fell in is there: beyond 12 degrees
