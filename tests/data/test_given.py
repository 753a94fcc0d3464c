"""recover takes whatever has the data: frames, arrays, trajectories; and any kind of seed."""

import numpy as np
import pytest
import torch

from levytorch import Dynamics, diagnose, recover, simulate
from levytorch.convert import seed_of
from levytorch.errors import InputError

FIT = {"alpha": 0.3, "n_basis": 1, "law": "frozen"}


@pytest.fixture(scope="module")
def paths():
    return simulate(Dynamics.named("constant"), 50, 40, 1 / 40, seed=1)


def test_every_kind_of_data_gives_the_same_numbers(paths):
    expected = recover(paths.transitions(), **FIT).theta
    frame = paths.to_frame().rename({"id": "animal", "x": "here"})
    for data, options in (
        (paths, {}),
        (frame, {"id": "animal", "value": "here", "dt": 1 / 40}),
        (paths.to_frame("dict"), {}),
        (paths.to_array(), {"dt": 1 / 40}),
        (torch.from_numpy(paths.to_array()), {"dt": 1 / 40}),
        (list(paths.to_array()), {"times": np.arange(41) / 40}),
    ):
        torch.testing.assert_close(recover(data, **options, **FIT).theta, expected, rtol=1e-9, atol=1e-12)


def test_what_is_no_data(paths):
    with pytest.raises(InputError, match=r"data must be Transitions.* found .x.csv.; read a file with"):
        recover("x.csv", **FIT)
    with pytest.raises(InputError, match="dt must be left out for Trajectories"):
        recover(paths, dt=0.1, **FIT)
    with pytest.raises(InputError, match="found 'nbasis'; use n_basis, or remove it"):
        recover(paths, alpha=0.3, nbasis=1)
    with pytest.raises(InputError, match="found 'vlaue'; use value, or remove it"):
        recover(paths.to_frame(), vlaue="x", **FIT)


def test_seeds(paths):
    assert seed_of(7) == 7
    for make in (lambda: torch.Generator().manual_seed(5), lambda: np.random.default_rng(5)):
        generator = make()
        first, second = seed_of(generator), seed_of(generator)
        assert first == seed_of(make())
        assert 0 <= first != second
    assert seed_of(None) != seed_of(None)
    with pytest.raises(InputError, match="seed must be an integer of at least 0"):
        seed_of(-1)
    one = simulate(Dynamics.named("constant"), 2, 3, 0.1, seed=None)
    np.testing.assert_array_equal(simulate(Dynamics.named("constant"), 2, 3, 0.1, seed=one.seed).x, one.x)
    assert f"seed={one.seed}" in repr(one)
    found = recover(paths, seed=np.random.default_rng(0), **FIT)
    assert f"seed {found.metrics['seed']}" in repr(found)
    assert str(found.metrics["seed"]) in str(found.summary())
    assert diagnose(found, paths, checks=["jumps"], seed=np.random.default_rng(1)).seed > 0
    fan = found.forecast(0.0, 0.1, n_paths=100, n_steps=2, seed=None)
    assert f"seed {fan.seed}" in repr(fan)
