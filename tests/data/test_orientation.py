"""Which way an array lies: a warning where its columns look like the trajectories, and none where its rows are."""

import warnings

import numpy as np
import pytest

from levytorch import Dynamics, Trajectories, simulate
from levytorch.errors import LevytorchWarning

SAID = r"should have a row per trajectory and a column per time, found .*; transpose it \(x\.T\), pass one path in d"


def rng():
    return np.random.default_rng(0)


def silent(x, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*row per trajectory")
        return Trajectories.from_arrays(x, **(options or {"dt": 1.0}))


def doubtful(x):
    with pytest.warns(LevytorchWarning, match=SAID) as caught:
        paths = Trajectories.from_arrays(x, dt=1.0)
    assert caught[0].filename == __file__
    return paths


def simulated(name, n, steps, dt=1 / 40, **options):
    return simulate(Dynamics.named(name), n, steps, dt, progress=False, **options).to_array()


@pytest.mark.parametrize("name", ["constant", "variable", "asymptotic"])
def test_transposed_arrays(name):
    x = simulated(name, 100, 200)
    silent(x)
    assert len(doubtful(x.T)) == 201  # taken as it is
    far = simulated(name, 25, 30, 1e-3, x0=rng().uniform(-100, 100, 25))
    silent(far)
    doubtful(far.T)


@pytest.mark.parametrize("walk", ["standard_normal", "standard_cauchy"])
def test_one_path_in_two_dimensions(walk):
    x = np.cumsum(getattr(rng(), walk)((1000, 2)), axis=0)
    doubtful(x)
    assert silent(x[None]).dim == 2
    assert silent([x]).dim == 2


def test_rows_of_time_and_x():
    x = np.cumsum(rng().standard_cauchy(500))
    pairs = np.stack([np.arange(500) / 40, x], axis=1)
    doubtful(pairs)
    doubtful(pairs.tolist())
    silent(x, times=pairs[:, 0])


@pytest.mark.parametrize("name", ["constant", "variable", "asymptotic"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("start", ["usual", "anywhere", "a grid", "one place"])
def test_many_short_trajectories(name, steps, start):
    x0 = {
        "usual": None,
        "anywhere": rng().uniform(-1e3, 1e3, 2000),
        "a grid": np.linspace(0.0, 5.0, 2000),
        "one place": np.zeros(2000),
    }[start]
    silent(simulated(name, 2000, steps, x0=x0))


@pytest.mark.parametrize(
    "name", ["constant", *(pytest.param(n, marks=pytest.mark.slow) for n in ("variable", "asymptotic"))]
)
def test_one_path_cut_into_trajectories(name):
    path = simulated(name, 1, 10_000)[0]
    silent(np.stack([path[:-1], path[1:]], axis=1))  # pairs, one after the other
    silent(path[:10_000].reshape(100, 100))
    silent(path[:10_000].reshape(1000, 10))
    silent(np.lib.stride_tricks.sliding_window_view(path, 50))


def test_prices_cut_into_windows():
    """Prices on a grid of ticks, most of which do not move."""
    ticks = np.cumsum(rng().choice([-1, 0, 0, 0, 1], 20_000)) / 100 + 50
    silent(ticks.reshape(200, 100))
    silent(np.stack([ticks[:-1], ticks[1:]], axis=1))


def test_a_trend_that_all_share():
    x = np.arange(30) * 100.0 + np.cumsum(rng().standard_normal((40, 30)), axis=1)
    silent(x)


def test_few_rows_and_many_columns():
    walks = np.cumsum(rng().standard_normal((19, 300)), axis=0)
    silent(walks)  # too few to tell
    doubtful(np.cumsum(rng().standard_normal((1000, 3000)), axis=0))  # judged by some of its numbers


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_files_of_arrays(tmp_path, suffix, disk):
    options = {"dt": 1.0, **({"on_disk": tmp_path / "cache"} if disk else {})}
    x, file = simulated("constant", 100, 200), tmp_path / f"a{suffix}"
    save = np.save if suffix == ".npy" else np.savez
    save(file, np.ascontiguousarray(x.T))
    with pytest.warns(LevytorchWarning, match=SAID):
        Trajectories.from_file(file, **options)
    save(file, x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*row per trajectory")
        Trajectories.from_file(file, **options)
