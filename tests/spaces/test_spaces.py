"""Circles, intervals and products: reducing states, grids, bins, and which space a system has."""

import math
from types import SimpleNamespace

import pytest
import torch

from levytorch import Dynamics
from levytorch.spaces import Circle, Interval, Product, space_from, space_of

D = torch.float64
SPACES = [Circle(3.0, 0.5), Interval(-1.0, 2.0), Product((Circle(3.0, 0.5), Interval(-1.0, 2.0)))]


@pytest.mark.parametrize("space", SPACES)
def test_every_state_of_a_grid_has_its_own_bin(space):
    x = space.grid(5).reshape(-1, space.dim) if space.dim > 1 else space.grid(5)
    assert space.bins(x, 5).tolist() == list(range(5**space.dim))
    assert torch.equal(space.wrap(x), x)
    ends = torch.tensor(space.ends, dtype=D).reshape(-1, 2)
    inside = x.reshape(-1, space.dim)
    assert bool(((inside > ends[:, 0]) & (inside < ends[:, 1])).all())


@pytest.mark.parametrize("space", SPACES)
def test_a_space_is_stored_as_plain_values(space):
    assert space_from(space.config()) == space


@pytest.mark.parametrize("config", [None, {}, {"kind": "circle", "period": -1.0, "origin": 0.0}, {"kind": "interval"}])
def test_other_values_are_no_space(config):
    assert space_from(config) is None


def test_a_product_reduces_only_what_repeats():
    space = SPACES[2]
    x = torch.tensor([[4.0, 7.0]], dtype=D)
    assert space.wrap(x).tolist() == [[1.0, 7.0]]
    assert (space.dim, space.repeats, space.period) == (2, False, (3.0, None))


def test_which_space_a_system_has():
    assert space_of(Dynamics.named("variable")) == Circle(2 * math.pi, 0.0)
    assert space_of(Dynamics.named("double_well")) == Interval(-2.0, 2.0)
    assert space_of(Dynamics.named("plane")) == Product((Circle(), Circle()))
    mixed = SimpleNamespace(dim=2, period=(1.0, math.inf), origin=0.0)
    assert space_of(mixed) == Product((Circle(1.0), Interval()))
