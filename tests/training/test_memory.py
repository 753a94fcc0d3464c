"""Memory of the size of past steps: known half-lives come out, and everything that uses a fit carries m along."""

import copy
import math

import numpy as np
import pytest
import torch

from levytorch import ControlledRecovery, LevyStep, Recovery, Trajectories, Transitions, diagnose, recover, solve_value
from levytorch.data.memory import CAP, Memory
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.memory import observed_means, with_level

ALPHA, HALF_LIFE, EXPONENT = 0.7, 20.0, 0.8


def noise(n, seed):
    """Gaussian and stable steps, and the size of their sum, which is that of a step where m is one."""
    generator = torch.Generator().manual_seed(seed)
    gauss = torch.randn(n, generator=generator, dtype=torch.float64).numpy()
    law = LevyStep(0.0, 0.0, 0.5, ALPHA, 1.0)
    jumps = law.expand((n,)).sample(generator=generator).numpy()
    return gauss, jumps, np.minimum(np.abs(gauss + jumps), np.quantile(np.abs(gauss + jumps), 0.99)).mean()


def path(n, seed, exponent=EXPONENT, half_life=HALF_LIFE):
    """A path whose D_o and D_f are those of 1/2 times m^exponent, between 1/2 and 2."""
    gauss, jumps, usual = noise(n, seed)
    w, m, dx = 2 ** (-1 / half_life), 1.0, np.empty(n)
    for i in range(n):
        f = min(max(m**exponent, 0.5), 2.0)
        dx[i] = math.sqrt(f) * gauss[i] + f ** (1 / (2 * ALPHA)) * jumps[i]
        m = w * m + (1 - w) * min(abs(dx[i]) / usual, CAP)
    return np.concatenate([[0.0], np.cumsum(dx)])


SETTINGS = {"dt": 1.0, "alpha": ALPHA, "period": None, "n_basis": 1}


@pytest.fixture(scope="module")
def x():
    return path(6000, 3)


@pytest.fixture(scope="module")
def found(x):
    return recover(x, **SETTINGS, memory=HALF_LIFE)


@pytest.mark.long
def test_a_given_half_life(x, found):
    memory = found.memory
    assert abs(memory.exponents[0] - EXPONENT) < 3 * memory.exponents_std[0]
    assert float(memory.f(math.exp(memory.centers[0]))) == pytest.approx(1.0, abs=1e-12)
    for name, std in zip(("D_o", "D_f"), found.std(0.0)[1:]):
        assert abs(float(getattr(found, name)(0.0)) - 0.5) < 4 * float(std)
    plain = recover(x[40:], **SETTINGS)  # to the pairs for which the memory has filled
    assert found.log_likelihood > plain.log_likelihood + 10
    assert found.nobs == 6000 - 40
    assert "half-life 20" in " ".join(str(found.summary()).split())


def test_means_are_the_recursion():
    x = np.array([0.0, 1.0, -1.0, 0.5, 0.5, 3.0, 2.0])
    pairs = Trajectories.from_arrays([x, x[:3]], dt=0.5).transitions()
    rule = Memory((1.0,), 0.5, (0.0,), 2.0, 0.7, 1.0, levels=((0.5,), (2.0,)))
    m, filled = rule.means(pairs)
    expected, value = [], 0.7
    for step in np.diff(x):
        expected.append(value)
        value = 2**-0.5 * value + (1 - 2**-0.5) * abs(step) / 2
    np.testing.assert_allclose(m[:6, 0].numpy(), expected, rtol=1e-14)
    np.testing.assert_allclose(m[6:, 0].numpy(), expected[:2], rtol=1e-14)
    assert filled.tolist() == [False, False, True, True, True, True, False, False]
    np.testing.assert_allclose(rule.after(m[4:5], pairs.dx[4:5], 0.5)[0, 0], expected[5], rtol=1e-14)
    again = Memory.from_plain(rule.plain())
    assert again == rule
    for changes in ({"half_lives": [0.0]}, {"levels": [[1.0, 2.0]]}, {"start": -1.0}):
        with pytest.raises(InputError):
            Memory.from_plain(rule.plain() | changes)


def test_it_begins_again_after_a_lost_pair():
    rule = Memory((1.0,), 1.0, (0.0,), 1.0, 1.0, 2.0)
    pairs = Transitions([0.0, 1.0, 5.0, 6.0], [1.0, 2.0, 1.0, 1.0], 1.0)
    assert rule.means(pairs)[0][:, 0].tolist()[2] == 1.0


def test_it_is_saved_and_carried_along(x, found, tmp_path):
    again = Recovery.load(found.save(tmp_path / "memory.pt"))
    assert again.memory == found.memory
    paths = again.simulate(400, 800, 1.0, x0=0.0, seed=0)
    steps = np.abs(np.diff(paths.to_array(), axis=1))
    early, late = np.log(steps[:, 100:-3] + 0.1), np.log(steps[:, 103:] + 0.1)
    assert np.corrcoef(early.ravel(), late.ravel())[0, 1] > 0.01  # of 280,000 pairs of steps: an error of 0.002
    assert abs(again.metrics["memory"]["level"]) < 0.3  # the chain stays where the data stay
    ratio = np.median(steps[:, -100:]) / np.median(np.abs(np.diff(x)))
    assert abs(math.log(ratio)) < 0.1  # error of a median of 6,000 steps that depend on each other: 0.03
    calm, wild = (again.forecast(0.0, 10.0, m0=m, n_paths=2000).quantiles[-1, [1, 5]] for m in (0.4, 3.0))
    assert np.diff(wild) > 1.5 * np.diff(calm)
    with pytest.raises(InputError, match="dt must be 1 for a fit with memory"):
        again.simulate(2, 3, 0.5)
    with pytest.raises(InputError, match="m0 must be 1 positive number"):
        again.simulate(2, 3, 1.0, m0=[1.0, 2.0])


def test_paths_begin_with_the_means_of_the_data(x, found):
    rule, generator = found.memory.rule, torch.Generator().manual_seed(0)
    m = observed_means(rule, 4000, generator).log()
    m_of_data, filled = rule.inputs(Trajectories.from_arrays(x[None], dt=1.0).transitions())
    own = m_of_data[filled]
    assert abs(float(m.mean() - own.mean())) < 4 * float(own.std()) / math.sqrt(256)
    assert 0.8 < float(m.std() / own.std()) < 1.25


@pytest.mark.parametrize(
    "options",
    [
        {"period": 40 * math.pi, "n_basis": 3},
        {"tail": {"CT": 4.0, "TRT": 8.0, "method": "conditional"}},
        {"law": "simulated"},
        {"engine": "lbfgs"},
    ],
)
def test_with_everything_else(x, options):
    """A circle, lost tails, another law and another engine: the exponent is the same within errors."""
    found = recover(x[:3001], **SETTINGS | options, memory=HALF_LIFE)
    assert abs(found.memory.exponents[0] - EXPONENT) < 3 * found.memory.exponents_std[0]


def test_in_the_plane():
    """Two coordinates share m, the mean length of the steps."""
    both = np.stack([path(1500, 3), path(1500, 4)], 1)
    found = recover(both[None], **SETTINGS | {"period": [200.0, 200.0]}, memory=HALF_LIFE)
    memory = found.memory
    assert memory.exponents[0] > 3 * memory.exponents_std[0]
    assert found.simulate(3, 5, x0=[[0.0, 0.0]] * 3).to_array().shape == (3, 6, 2)


def test_a_chain_that_does_not_stay_is_named(found):
    """With a far larger exponent the sizes of steps collapse or explode."""
    again = copy.deepcopy(found)
    with torch.no_grad():
        again.head.theta[again.head.part(again.head.clock_row)] = 3.0
    with pytest.warns(LevytorchWarning, match="must keep the size of the steps of the data"):
        with_level(again)
    with pytest.warns(LevytorchWarning, match="simulate few steps only"):
        again.simulate(3, 2, x0=0.0)


@pytest.mark.long
def test_checks_see_it(x, found):
    told = diagnose(found, Trajectories.from_arrays(x[None], dt=1.0), checks=("fit", "predictive"))
    assert told.fit.p_value > 1e-3
    assert told.predictive.p_value > 1e-3
    robust, own = found.std(0.0, kind="robust"), found.std(0.0)
    assert all(0.5 < float(one / other) < 2.0 for one, other in zip(robust, own))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"memory": "long"}, "memory"),
        ({"memory": -1.0}, "memory must be a positive number"),
        ({"memory": [1.0, 1.0]}, "one to three different half-lives"),
        ({"memory": 5.0, "law": "exact"}, "found law exact"),
        ({"memory": 5.0, "lattice": "always"}, "found a lattice"),
        ({"memory": 1e6}, "longer than .* for this memory"),
    ],
)
def test_refusals(x, options, match):
    with pytest.raises(InputError, match=match):
        recover(x[:400], **SETTINGS, **options)


def test_actions_on_a_scale_are_refused(x):
    pairs = Transitions(x[:400], np.diff(x[:401]), 1.0, action=np.linspace(0.0, 1.5, 400))
    with pytest.raises(InputError, match="found a memory"):
        recover(pairs, alpha=ALPHA, period=None, n_basis=1, memory=5.0)


@pytest.fixture(scope="module")
def steered(x):
    """The same steps with a push to the right or to the left, of which m knows nothing, drawn at every step."""
    push = np.random.default_rng(0).choice([-1, 1], len(x) - 1)
    dx = np.diff(x)
    moved = np.concatenate([[0.0], np.cumsum(dx + 0.2 * push)])
    return Trajectories.from_arrays(moved[None], dt=1.0, action=np.where(push > 0, "right", "left")[None])


@pytest.fixture(scope="module")
def by_action(steered):
    return recover(steered, alpha=ALPHA, period=100.0, n_basis=1, memory=HALF_LIFE, law="frozen")


def test_labelled_actions_share_a_memory(found, by_action, steered):
    """m is that of all pairs in their order, although the pairs of an action are fitted apart."""
    memory, alone = by_action.memory, found.memory
    assert abs(memory.exponents[0] - EXPONENT) < 3 * memory.exponents_std[0]
    assert memory.exponents_std[0] == pytest.approx(alone.exponents_std[0], rel=0.2)  # the two halves know as much
    assert by_action.metrics["shared/freedom"] == 1
    assert by_action.metrics["shared/chi2"] < 10.8
    assert by_action.nobs == 6000 - 40
    for action, push in (("left", -0.2), ("right", 0.2)):
        b, std = float(by_action.b(0.0, action)), float(by_action.std(0.0, action)[0])
        assert abs(b - push) < 4 * std
        assert float(by_action.D_f(0.0, action)) == pytest.approx(float(found.D_f(0.0)), rel=0.25)
    own = diagnose(by_action.of("left"), steered, checks=("fit",))  # it picks its own pairs of all
    assert own.fit.p_value > 1e-3
    assert "memory" in " ".join(str(by_action.summary()).split())


@pytest.mark.long
def test_a_policy_carries_the_memory(by_action, tmp_path):
    again = ControlledRecovery.load(by_action.save(tmp_path / "steered.pt"))
    assert again.memory == by_action.memory
    loop = again.under("right")
    calm, wild = (loop.simulate(2000, 1, 1.0, x0=0.0, m0=m, seed=0).to_array()[:, 1] for m in (0.4, 3.0))
    assert np.subtract(*np.quantile(wild, [0.75, 0.25])) > 1.5 * np.subtract(*np.quantile(calm, [0.75, 0.25]))
    V = solve_value(loop, lambda x: torch.cos(2 * math.pi * x / 100), 0.05)
    assert float(V.given(0.4)(0.0)) > float(V.given(3.0)(0.0))  # calm times stay where the reward is high


@pytest.mark.long
def test_a_learned_half_life(x):
    found = recover(x, **SETTINGS, memory="learn")
    memory = found.memory
    assert len(memory.half_lives) == 1
    assert abs(memory.half_lives[0] - HALF_LIFE) < 3 * memory.half_lives_std[0]
    assert found.n_parameters == 5


@pytest.mark.long
def test_the_range_of_long_stretches_carries_it():
    """Without the memory on its way a path would follow the sizes of the data's steps instead of its own."""
    steps = np.diff(path(6000, 21))
    home = np.zeros(len(steps) + 1)
    for i, step in enumerate(steps):
        home[i + 1] = 0.97 * home[i] + step
    own = recover(home, dt=1.0, alpha=ALPHA, period=None, n_basis=4, memory=HALF_LIFE, law="frozen")
    told = diagnose(own, Trajectories.from_arrays(home[None], dt=1.0), checks=("predictive",))
    assert told.predictive.range.p_value > 1e-3
    assert 0.8 < told.predictive.range.ratio < 1.25


@pytest.mark.long
def test_where_there_is_none():
    """AIC prefers none to a memory of steps that do not depend on each other, and the fit says so."""
    with pytest.warns(LevytorchWarning, match="AIC prefers no memory"):
        recover(path(3000, 11, exponent=0.0), **SETTINGS, memory="learn")


@pytest.mark.slow
def test_half_lives_and_bands_over_seeds():
    """Half-lives within two standard errors, and intervals of D_o and D_f, over 40 paths."""
    z, covered = [], []
    for seed in range(40):
        found = recover(path(12_000, 100 + seed), **SETTINGS, memory="learn")
        memory = found.memory
        if len(memory.half_lives) == 1:
            z.append((memory.half_lives[0] - HALF_LIFE) / memory.half_lives_std[0])
        low, high = (torch.stack(ends) for ends in zip(*(one.unbind(-1) for one in found.conf_int(0.0)[1:])))
        level = math.exp(np.mean(memory.centers)) * memory.rule.size / noise(12_000, 100 + seed)[2]
        true = 0.5 * level**EXPONENT  # where log m has its mean over the data
        covered.append((low < true) & (high > true))
    assert len(z) >= 36
    assert np.mean(np.abs(z) < 2) > 0.8
    assert 0.8 < float(torch.stack(covered).double().mean())
