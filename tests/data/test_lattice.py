"""The lattice: sums over nodes are sums over pairs."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Lattice, Transitions, log_density, simulate
from levytorch.data import make_pools
from levytorch.data.batches import MOST_DT
from levytorch.data.lattice_grid import choose_grid
from tests.data.folds import fold

DT = 0.025


def smooth(dt=DT, alpha=0.3, period=2 * math.pi):
    """log p of a law whose coefficients are smooth in x."""
    wave = 2 * math.pi / period

    def log_p(x, dx, dt=dt):
        b = 3 * torch.cos(wave * x) + torch.sin(3 * wave * x)
        D_o = torch.exp(0.8 * torch.sin(wave * x + 1) + 0.5)
        D_f = 2 + torch.exp(torch.sin(2 * wave * x) * torch.cos(3 * wave * x))
        return log_density(dx, b, D_o, D_f, alpha, dt, method="contour")

    return log_p


def some_pairs(n=20_000, seed=0, dt=DT, trajectories=200):
    """Pairs of the variable example."""
    return simulate(Dynamics.named("variable"), trajectories, n // trajectories, dt, seed=seed).transitions()


def total(batch, log_p):
    return float((batch.weight * log_p(batch.x, batch.dx, batch.dt)).sum())


def test_sums_over_nodes_are_sums_over_pairs():
    t = some_pairs()
    lattice = t.lattice()
    batch = lattice.batch()
    assert batch.x.dtype == batch.dx.dtype == batch.weight.dtype == torch.float64
    assert batch.dt.shape == batch.x.shape
    assert bool((batch.dt == DT).all())
    assert float(batch.weight.sum()) == pytest.approx(len(t), rel=1e-12)
    assert lattice.n_nodes == len(batch.x) < 36 * len(t)
    assert bool((batch.weight != 0).all())
    for alpha in (0.15, 0.3, 0.7, 0.95):
        log_p = smooth(alpha=alpha)
        exact = float(log_p(t.x, t.dx).sum())
        assert total(batch, log_p) == pytest.approx(exact, abs=0.02)  # a log-likelihood of some -2e4
    coarse = t.lattice(order=4).batch()
    exact = float(smooth()(t.x, t.dx).sum())
    assert total(batch, smooth()) == pytest.approx(exact, abs=0.001)
    assert 0.001 < abs(total(coarse, smooth()) - exact) < 0.5


def test_scores_are_those_of_the_pairs():
    """The gradient in parameters of all coefficients, in units of its own standard deviation."""
    t = some_pairs(100_000)
    batch = t.lattice().batch()

    def scores(x, dx, weight):
        theta = torch.zeros(12, dtype=torch.float64, requires_grad=True)
        waves = [torch.ones_like(x), torch.cos(x), torch.sin(5 * x), torch.cos(10 * x)]
        b, D_o, D_f = (sum(p * w for p, w in zip(theta[4 * k : 4 * k + 4], waves)) for k in range(3))
        log_p = log_density(
            *(dx, 4 * torch.cos(x) + b, torch.exp(torch.sin(x) + D_o), torch.exp(1 + torch.cos(2 * x) + D_f), 0.3, DT)
        )
        return torch.autograd.grad((weight * log_p).sum(), theta)[0]

    one = torch.ones(len(t), dtype=torch.float64)
    blocks = [scores(t.x[k::50], t.dx[k::50], one[k::50]) for k in range(50)]
    deviation = torch.stack(blocks).std(0) * math.sqrt(50)
    error = (scores(batch.x, batch.dx, batch.weight) - sum(blocks)) / deviation
    assert float(error.abs().max()) < 1e-3


@pytest.mark.parametrize("order", [4, 6])
@pytest.mark.parametrize("period", [2 * math.pi, None])
def test_polynomials_are_exact(order, period):
    """Polynomials in the numbers of the nodes, of a degree below the order, are summed to rounding."""
    rng = np.random.default_rng(0)
    x = rng.uniform(1.0, 5.0, 500)  # far from the ends of the cell, where the numbers jump
    t = Transitions(x, 0.3 * rng.standard_cauchy(500), 0.1)
    lattice = t.lattice(order=order, period=period)
    grid = lattice.grid
    center, scale = grid.sheet(0.1)

    def polynomial(x, dx):
        u = (x - grid.origin) / grid.spacing / 100
        w = (dx - center) / scale
        v = (np.arcsinh(w) * 4 + grid.density * w / np.sqrt(1 + w * w)) / 100
        powers = range(order)
        return sum(np.cos(i + 3 * k) * u**i * v**k for i in powers for k in powers)

    batch = lattice.batch()
    found = float((batch.weight.numpy() * polynomial(batch.x.numpy(), batch.dx.numpy())).sum())
    assert found == pytest.approx(float(polynomial(t.x.numpy(), t.dx.numpy()).sum()), rel=1e-11)


def test_far_jumps_and_pairs_that_do_not_move():
    rng = np.random.default_rng(1)
    dx = np.concatenate([0.2 * rng.standard_normal(5000), [0.0, 1e10, -1e10, 1e300, -3e7, 1e-200]])
    t = Transitions(rng.uniform(0, 6, len(dx)), dx, DT)
    lattice = t.lattice()
    assert len(lattice.loose.x) == 1  # beyond the last node
    batch = lattice.batch()
    assert float(batch.dx.max()) == 1e300
    near = Transitions(t.x[-6:-3], t.dx[-6:-3], DT).lattice(like=lattice).batch()
    exact = float(smooth()(t.x[-6:-3], t.dx[-6:-3]).sum())
    assert total(near, smooth()) == pytest.approx(exact, abs=1e-4)
    still = Transitions([0.5, 1.0], [0.0, 0.0], 1.0).lattice().batch()
    assert float(still.weight.sum()) == pytest.approx(2.0)


def test_a_center_far_from_zero():
    t = some_pairs()
    moved = Transitions(t.x, t.dx + 1000.0, DT)
    lattice = moved.lattice()
    assert abs(lattice.grid.sheet(DT).center - 1000.0) <= lattice.grid.sheet(DT).scale
    log_p = lambda x, dx, dt=DT: smooth()(x, dx - 1000.0)  # noqa: E731
    assert total(lattice.batch(), log_p) == pytest.approx(float(log_p(moved.x, moved.dx).sum()), abs=0.005)


def test_states_are_reduced_to_the_cell():
    t = some_pairs()
    turns = torch.from_numpy(np.random.default_rng(0).integers(-5, 5, len(t))).double()
    for period, origin in ((2 * math.pi, 0.0), (3.0, -1.0)):
        x = torch.remainder(t.x, period)
        a = Transitions(x, t.dx, DT).lattice(period=period, origin=origin)
        b = Transitions(x + period * turns, t.dx, DT).lattice(like=a, period=period)
        batch = a.batch()
        assert origin <= float(batch.x.min())
        assert float(batch.x.max()) < origin + period
        log_p = smooth(period=period)
        assert total(b.batch(), log_p) == pytest.approx(total(batch, log_p), abs=1e-6)
        assert total(batch, log_p) == pytest.approx(float(log_p(x, t.dx).sum()), abs=0.002)


def test_a_line():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(100.0, 20.0, 20_000), [1e9, -1e9, 1e4]])
    t = Transitions(x, 0.3 * rng.standard_normal(len(x)), DT)
    lattice = t.lattice(period=None)
    assert math.frexp(lattice.grid.spacing)[0] == 0.5
    assert len(lattice.loose.x) == 3
    log_p = smooth(period=60.0)
    assert total(lattice.batch(), log_p) == pytest.approx(float(log_p(t.x, t.dx).sum()), abs=0.02)
    states = lattice.counts_of_states()
    assert int(states.pairs.sum()) == len(t) == lattice.n_main
    width = lattice.grid.spacing / 2
    for center, pairs in zip(states.x.tolist()[::50], states.pairs.tolist()[::50]):
        assert pairs == int(((x >= center - width / 2) & (x < center + width / 2)).sum())
    assert "on a line" in repr(lattice)
    # other states, far from these: the same nodes, the same ladder
    other = Transitions(x[:5000] - 250.0, t.dx[:5000], DT).lattice(period=None, like=lattice)
    both = lattice + other
    exact = float(log_p(t.x, t.dx).sum() + log_p(t.x[:5000] - 250.0, t.dx[:5000]).sum())
    assert total(both.batch(), log_p) == pytest.approx(exact, abs=0.02)


def close(a, b):
    """The same weights to rounding, node by node."""
    for pool in ("main", "tail") if a.has_tail else ("main",):
        first, second = a.batch(pool), b.batch(pool)
        keys = [set(zip(p.x.tolist(), p.dx.tolist(), p.dt.tolist())) for p in (first, second)]
        weights = [
            dict(zip(zip(p.x.tolist(), p.dx.tolist(), p.dt.tolist()), p.weight.tolist())) for p in (first, second)
        ]
        assert max((abs(w[k]) for w, o in (weights, weights[::-1]) for k in w if k not in o), default=0) < 1e-9
        common = keys[0] & keys[1]
        assert max(abs(weights[0][k] - weights[1][k]) for k in common) < 1e-9 * len(common)
        assert torch.equal(a.counts_of_states(pool).pairs, b.counts_of_states(pool).pairs)
    assert (a.n_main, a.n_tail, a.dropped, a.x_range) == (b.n_main, b.n_tail, b.dropped, b.x_range)


@pytest.mark.parametrize("options", [{}, {"CT": 2.0, "TRT": 50.0}, {"CT": 2.0, "reach": 5.0}, {"n_blocks": 7}])
def test_pieces_and_shards_add_to_the_whole(options):
    t = some_pairs()
    mu = float(t.mu)
    whole = Lattice.from_transitions(t, mu=mu, **options)
    cuts = [0, 7000, 7001, 15_000, len(t)]
    pieces = [t[a:b] for a, b in itertools.pairwise(cuts)]
    like = Lattice.from_blocks(iter([t, *pieces]), mu=mu, **options)
    close(like, whole + whole)
    shards = [piece.lattice(like=whole) for piece in pieces]
    added = shards[0] + shards[1] + shards[2] + shards[3]
    close(added, whole)


@pytest.mark.parametrize("held", [1, 3000, 1 << 20])
def test_small_pieces_wait_for_each_other(monkeypatch, held):
    """Pieces with a dt each and with both, summed at once or one by one."""
    monkeypatch.setattr("levytorch.data.lattice_build._HELD", held)
    monkeypatch.setattr("levytorch.data.lattice_build._TASK", 2500)
    t = some_pairs(10_000)
    dt = torch.where(torch.arange(len(t)) < 6000, 0.025, 0.05).double()
    t = Transitions(t.x, t.dx, dt, trajectory=t.trajectory)
    whole = t.lattice(n_blocks=3, CT=2.0, reach=4.0)
    pieces = [t[a : a + 700] for a in range(0, len(t), 700)]
    close(Lattice.from_blocks(pieces, like=whole), whole)
    assert whole.n_tail > 50
    assert len(whole.loose.x) > 50


def test_what_is_computed_does_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr("levytorch.data.lattice_build._TASK", 1000)
    t = some_pairs()
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append([t.lattice(CT=2.0, n_blocks=n).weights for n in (1, 5)])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*found):
        assert np.array_equal(a.keys, b.keys)
        assert np.array_equal(a.values, b.values)


def test_pools_are_those_of_the_samples():
    t = some_pairs()
    pools = make_pools(t, 2.0, 30.0)
    lattice = t.lattice(CT=2.0, TRT=30.0)
    assert (lattice.n_main, lattice.n_tail) == (pools.n_main, pools.n_tail)
    assert lattice.R_sample == pools.R_sample
    assert lattice.dropped == {"beyond TRT": len(t) - pools.n_main}
    log_p = smooth()
    main, tail = pools.main, pools.main[pools.tail]
    for pool, pairs in (("main", main), ("tail", tail)):
        assert total(lattice.batch(pool), log_p) == pytest.approx(float(log_p(pairs.x, pairs.dx).sum()), abs=0.002)
        counts = np.histogram(np.remainder(pairs.x.numpy(), 2 * math.pi), 512, (0, 2 * math.pi))[0]
        states = lattice.counts_of_states(pool)
        assert np.array_equal(states.pairs.numpy(), counts)
        assert states.x[0].item() == pytest.approx(math.pi / 512)
    both = lattice.batch("core").weight.sum() + lattice.batch("tail").weight.sum()
    assert float(both) == pytest.approx(lattice.n_main)


def test_pairs_beyond_reach_stay_as_they_are():
    t = some_pairs()
    lattice = t.lattice(reach=3.0)
    far = t.deviation > 3.0
    assert len(lattice.loose.x) == int(far.sum()) > 50
    batch = lattice.batch()
    assert sorted(t.dx[far].tolist()) == sorted(batch.dx[-int(far.sum()) :].tolist())
    assert total(batch, smooth()) == pytest.approx(float(smooth()(t.x, t.dx).sum()), abs=0.001)


def test_several_dt():
    parts = [some_pairs(4000, seed=k, dt=dt, trajectories=40) for k, dt in enumerate((0.01, 0.025, 0.1))]
    order = np.random.default_rng(0).permutation(12_000)
    x, dx, dt = (np.concatenate([getattr(p, name).numpy() for p in parts])[order] for name in ("x", "dx", "dt"))
    dt = dt * (1 + 1e-12 * np.random.default_rng(0).uniform(-1, 1, len(dt)))  # as differences of times are
    t = Transitions(x, dx, dt)
    lattice = t.lattice(CT=lambda dt: 20 * dt.sqrt())
    assert lattice.dt == pytest.approx([0.01, 0.025, 0.1], rel=1e-6)
    assert lattice.CT == pytest.approx(20 * np.sqrt(lattice.dt), rel=1e-6)
    assert "3 dt" in repr(lattice)
    log_p = smooth(dt=None)
    exact = float(log_p(t.x, t.dx, t.dt).sum())
    assert total(lattice.batch(), log_p) == pytest.approx(exact, abs=0.01)
    tail = t[t.deviation > 20 * t.dt.sqrt()]
    assert lattice.n_tail == len(tail)
    assert total(lattice.batch("tail"), log_p) == pytest.approx(float(log_p(tail.x, tail.dx, tail.dt).sum()), abs=0.01)
    states = lattice.counts_of_states()
    assert states.pairs.shape == (3 * 512,)
    assert [int(s) for s in states.pairs.reshape(3, 512).sum(1)] == [4000, 4000, 4000]
    # one dt at a time, in any order, gives the same sheets
    one = [Transitions(p.x, p.dx, p.dt, mu=t.mu) for p in parts]
    split = Lattice.from_blocks(one[::-1], like=lattice)
    close(split, lattice)


def test_blocks_of_trajectories():
    t = some_pairs(trajectories=100)
    lattice = t.lattice(n_blocks=8, CT=2.0)
    log_p = smooth()
    per_block = lattice.batch_of_blocks()
    assert per_block.weight.shape == (8, len(per_block.x))
    sums = per_block.weight @ log_p(per_block.x, per_block.dx)
    for k in range(8):
        mine = t[t.trajectory % 8 == k]
        exact = float(log_p(mine.x, mine.dx).sum())
        assert float(sums[k]) == pytest.approx(exact, abs=0.001)
        assert len(mine) == lattice.pairs_per_block()[k]
    counts = lattice.counts_of_states(per_block=True).pairs
    assert counts.shape == (8, 512)
    assert counts.sum(1).tolist() == lattice.pairs_per_block().tolist()
    shuffled = torch.randperm(len(t), generator=torch.Generator().manual_seed(0))
    close(t[shuffled].lattice(like=lattice), lattice)


@pytest.mark.slow
def test_blocks_of_time_where_trajectories_are_few():
    t = some_pairs(10_000, trajectories=1)
    starts = [int(runs[0][0]) for runs in t.membership.runs_by_block(8)]
    assert starts == [1250 * k for k in range(8)]
    lattice = t.lattice(n_blocks=8)
    assert lattice.pairs_per_block().tolist() == [1250.0] * 8
    mine = t[2500:3750]
    x, dx, _, weight = lattice.batch_of_blocks()
    assert float(weight[2] @ smooth()(x, dx)) == pytest.approx(float(smooth()(mine.x, mine.dx).sum()), abs=1e-3)


def test_folds():
    lattice = some_pairs().lattice(n_blocks=10, CT=2.0, reach=30.0)
    log_p = smooth()
    x, dx, _, weight = lattice.batch_of_blocks()
    sums, held = weight @ log_p(x, dx), 0.0
    for k in range(5):
        train, test = fold(lattice, k, 5)
        assert (train.n_blocks, test.n_blocks) == (8, 2)
        assert train.n_main + test.n_main == lattice.n_main
        assert train.n_tail + test.n_tail == lattice.n_tail
        held += total(test.batch(), log_p)
        both = total(train.batch(), log_p) + total(test.batch(), log_p)
        assert both == pytest.approx(total(lattice.batch(), log_p), rel=1e-10)
        assert total(test.batch(), log_p) == pytest.approx(float(sums[k] + sums[k + 5]), rel=1e-10)
    assert held == pytest.approx(total(lattice.batch(), log_p), rel=1e-10)


def test_the_grid_is_chosen_from_a_ladder():
    t = some_pairs()
    grid = choose_grid(t)
    assert grid == choose_grid(t) == choose_grid(some_pairs(seed=7))
    assert grid.n_x == 128
    assert grid.drift == 0.0
    assert math.frexp(grid.sheet(DT).scale)[0] == 0.5
    wider = choose_grid(Transitions(t.x, 64 * t.dx, DT))
    assert wider.sheet(DT).scale == 64 * grid.sheet(DT).scale
    assert wider.density == grid.density
    assert choose_grid(t, n_x=512).n_x == 512
    numbers = np.arange(-grid.last, grid.last + 1)
    nodes = grid.dx(numbers, DT)
    assert (np.diff(nodes) > 0).all()
    assert nodes[grid.last] == 0.0
    assert nodes[-1] > 1e12
    w = nodes / grid.sheet(DT).scale
    assert np.arcsinh(w) * 4 + grid.density * w / np.sqrt(1 + w * w) == pytest.approx(numbers, abs=1e-9)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_lattices_that_do_not_add():
    t = some_pairs(2000)
    a = t.lattice(CT=2.0)
    others = {
        "grid": t.lattice(CT=2.0, n_x=64),
        "same dt": Transitions(t.x, t.dx, DT / 1.5).lattice(CT=2.0, mu=a.mu),
        "pools": t.lattice(CT=2.5),
        "blocks": t.lattice(CT=2.0, n_blocks=2),
    }
    others["same dt"] = replace(others["same dt"], grid=a.grid)
    for word, other in others.items():
        with pytest.raises(InputError, match=word) as caught:
            a + other
        assert "like=" in str(caught.value)
        assert "\n" not in str(caught.value)
    moved = Transitions(t.x, t.dx, DT, mu=float(t.mu) + 0.01)
    with pytest.raises(InputError, match="pools"):
        a + moved.lattice(CT=2.0)
    assert (t.lattice() + moved.lattice()).n_main == 4000  # without pools mu does not matter
    with pytest.raises(TypeError):
        a + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: Transitions(torch.zeros(5, 2), torch.ones(5, 2), 1.0).lattice(), "one-dimensional"),
        (lambda t: Transitions(t.x, t.dx, torch.arange(1.0, 2001.0)).lattice(), f"at most {MOST_DT}"),
        (lambda t: t.lattice(order=5), "order"),
        (lambda t: t.lattice(n_x=100), "power of two, found 100; pass 128"),
        (lambda t: t.lattice(period=-1.0), "period"),
        (lambda t: t.lattice(period="x"), "period"),
        (lambda t: t.lattice(origin=math.nan), "origin"),
        (lambda t: t.lattice(n_blocks=0), "n_blocks"),
        (lambda t: t.lattice(reach=0.0), "reach"),
        (lambda t: t.lattice(CT=8.0, TRT=2.0), "CT must be smaller"),
        (lambda t: t.lattice(TRT=1e-9), "TRT must leave"),
        (lambda t: t.lattice(like=t.lattice(), CT=1.0), "left out beside like"),
        (lambda t: t.lattice(like=t.lattice(), period=1.0), "leave it out"),
        (lambda t: t.lattice(like=3), "like must be a Lattice"),
        (lambda t: Transitions(t.x, t.dx, 1.0).lattice(like=t.lattice()), "like=..., 0.025, found 1"),
        (lambda t: Lattice.from_blocks([]), "no data"),
        (lambda t: Lattice.from_transitions(t.x), "must be made of Transitions, found Tensor"),
        (lambda t: Lattice.from_blocks([t, t.x]), "found Tensor"),
        (lambda t: Lattice.from_blocks(5), "iterable"),
        (lambda t: t.lattice().batch("tail"), "tail pool, found none"),
        (lambda t: t.lattice().batch("other"), "pool must be one of"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make(some_pairs(2000))
    assert "\n" not in str(caught.value)
