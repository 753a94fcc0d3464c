"""Sums in a fixed order, and lattices side by side, as sums and in pickles."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Lattice, recover, simulate
from levytorch.distributed.lattices import own_blocks
from levytorch.distributed.tree import Tree


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13])
def test_the_order_of_arrival_does_not_matter(n):
    def total(order, left_out=()):
        tree = Tree(n, lambda a, b: f"({a}{b})")
        for k in order:
            tree.give(k, None if k in left_out else chr(97 + k))
        assert not tree._waiting
        return tree.total

    expected = total(range(n))
    assert [c for c in expected if c.isalpha()] == [chr(97 + k) for k in range(n)]
    for seed in range(20):
        order = random.Random(seed).sample(range(n), n)
        assert total(order) == expected
        assert total(order, {0}) == total(range(n), {0})
    assert total(range(n), set(range(n))) is None


def test_few_sums_are_held_when_terms_arrive_in_order():
    tree = Tree(1000, lambda a, b: a + b)
    most = 0
    for k in range(1000):
        tree.give(k, 1)
        most = max(most, len(tree._waiting))
    assert tree.total == 1000
    assert most <= 10


@pytest.fixture(scope="module")
def days():
    return [simulate(Dynamics.named("variable"), 300, 40, 1 / 40, seed=k).transitions() for k in range(3)]


OPTIONS = [{}, {"CT": 3.0, "TRT": 20.0, "reach": 15.0}, {"period": None, "CT": 2.0, "n_blocks": 3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_sum_adds_lattices(days, options):
    first = days[0].lattice(**options)
    lattices = [first, *(day.lattice(like=first, period=options.get("period", first.period)) for day in days[1:])]
    total, by_hand = sum(lattices), lattices[0] + lattices[1] + lattices[2]
    assert all(torch.equal(a, b) for a, b in zip(total.batch(), by_hand.batch()))
    assert len(total) == sum(map(len, lattices))
    with pytest.raises(TypeError):
        sum(lattices, 1)


@pytest.mark.parametrize("options", OPTIONS)
def test_pickled_lattices_are_the_same_and_small(days, options):
    lattice = days[0].lattice(**options)
    packed = pickle.dumps(lattice)
    other = pickle.loads(packed)
    assert all(torch.equal(a, b) for a, b in zip(other.batch_of_blocks(), lattice.batch_of_blocks()))
    assert other.facts() == lattice.facts()
    assert other.grid == lattice.grid
    assert len(packed) < 0.7 * (lattice.weights.keys.nbytes + lattice.weights.values.nbytes)


def test_a_file_of_a_lattice_of_sixty_blocks_travels_in_less_than_a_megabyte(days):
    """Whole files go into one block, so that one block is what travels; all sixty are never sent."""
    assert own_blocks(60, 64) == 1
    one = days[0].lattice(n_blocks=own_blocks(60, 64))
    assert len(pickle.dumps(one)) < 1_000_000


@pytest.mark.parametrize("options", OPTIONS)
def test_blocks_side_by_side(days, options):
    first = days[0].lattice(**options)
    period = options.get("period", first.period)
    others = [day.lattice(like=first, period=period) for day in days[1:]]
    wide = Lattice.side_by_side([first, *others])
    assert wide.n_blocks == 3 * first.n_blocks
    np.testing.assert_array_equal(
        wide.pairs_per_block(), np.concatenate([lattice.pairs_per_block() for lattice in (first, *others)])
    )
    added = sum([first, *others])
    for pool in ("main", "tail") if first.has_tail else ("main",):
        a, b = wide.batch(pool), added.batch(pool)
        assert torch.equal(a.x, b.x) or set(a.x.tolist()) == set(b.x.tolist())  # loose pairs in another order
        assert float(a.weight.sum()) == pytest.approx(float(b.weight.sum()), rel=1e-12)
    assert wide.facts() == added.facts()
    found = recover(wide, alpha=0.3, n_basis=1, period=period, law="frozen", max_steps=30)
    other = recover(added, alpha=0.3, n_basis=1, period=period, law="frozen", max_steps=30)
    assert float((found.theta - other.theta).abs().max()) < 1e-8


def test_an_empty_lattice_adds_nothing(days):
    lattice = days[0].lattice(CT=3.0, n_blocks=2)
    assert all(torch.equal(a, b) for a, b in zip((lattice.empty() + lattice).batch(), lattice.batch()))
    assert (lattice.empty() + lattice).facts() == lattice.facts()
    assert pickle.loads(pickle.dumps(lattice.empty(5))).n_blocks == 5
    with pytest.raises(InputError, match="number of blocks"):
        lattice.empty(5) + lattice


@pytest.mark.parametrize(
    ("blocks", "files", "expected"), [(60, 64, 1), (60, 60, 1), (60, 59, 2), (60, 7, 10), (1, 9, 1), (7, 2, 7)]
)
def test_blocks_of_a_file_divide_all_blocks(blocks, files, expected):
    assert own_blocks(blocks, files) == expected
