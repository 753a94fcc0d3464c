"""Sources, and the configuration groups data and dynamics that build them."""

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from levytorch import Dynamics, Trajectories, simulate
from levytorch.data.sources import FromFile
from levytorch.errors import InputError
from levytorch.simulation import Simulated

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def configure(tmp_path):
    """A configuration of the two groups alone."""
    (tmp_path / "config.yaml").write_text(
        f"hydra:\n  searchpath: [file://{CONF}]\ndefaults:\n  - reward: cosine_power\n"
        "  - data: unbiased\n  - dynamics: constant\n  - _self_\nseed: 4\n"
    )

    def build(*overrides):
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            return instantiate(compose("config", overrides=list(overrides)).data)

    return build


def test_unbiased(configure):
    data = configure("data.n_trajectories=20")()
    expected = simulate(Dynamics.named("constant"), 20, 40, 0.025, seed=4)
    np.testing.assert_array_equal(data.transitions.dx, expected.transitions().dx)
    assert data.dynamics.alpha == 0.3
    assert len(data.trajectories) == 20


@pytest.mark.parametrize("name", ["constant", "variable", "asymptotic"])
def test_dynamics(configure, name):
    system = configure(f"dynamics={name}", "dynamics.alpha=0.6").dynamics
    assert system.alpha == 0.6
    assert float(system.D_f(1.0)) == float(Dynamics.named(name).D_f(1.0))


def test_censored_by_filter(configure):
    source = configure("data=censored_filter", "data.n_trajectories=300")
    t = source().transitions
    full = simulate(Dynamics.named("constant"), 300, 40, 0.025, seed=4).transitions()
    np.testing.assert_array_equal(t.dx, full.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=300).dx)


def test_censored_by_sampler(configure):
    data = configure("data=censored_mcmc", "data.n_trajectories=20", "data.burn_in=10", "data.reach=3.0")()
    assert float((data.transitions.dx - 0.125).abs().max()) <= 3.0


def test_file(configure, tmp_path):
    paths = Trajectories.from_arrays(np.random.default_rng(0).normal(size=(1, 200, 2)).cumsum(axis=1), dt=0.5)
    paths.to_file(tmp_path / "walk.csv")
    file = f"data.path={tmp_path / 'walk.csv'}"
    data = configure("data=file", file, "data.value=[x1,x2]")()
    assert data.dynamics is None
    np.testing.assert_array_equal(data.trajectories.x, paths.x)
    first = configure("data=file", file, "data.first=50")().transitions
    np.testing.assert_array_equal(first.x, paths.x[:50])
    assert first.dropped == {"not selected": 149}
    np.testing.assert_array_equal(first.mu, np.median(np.diff(paths.x[:51], axis=0), axis=0))
    some, same, other = (configure("data=file", file, "data.sample=50", f"data.sample_seed={s}")() for s in (0, 0, 1))
    assert len(some.transitions) == 50
    np.testing.assert_array_equal(some.transitions.x, same.transitions.x)
    assert not np.array_equal(some.transitions.x, other.transitions.x)


def test_columns_called_by_numbers(configure, tmp_path):
    (tmp_path / "a.csv").write_text("0,1,2\n0,5,7\n1,6,9\n3,8,8\n")
    file = f"data.path={tmp_path / 'a.csv'}"
    data = configure("data=file", file, "data.time=0", "data.value=1")().transitions
    assert (data.dx.tolist(), data.dt.tolist()) == ([1.0, 2.0], [1.0, 2.0])
    assert configure("data=file", file, "data.time=0", "data.value=[1,2]")().transitions.dim == 2


def test_every_option_of_a_file_is_in_the_group():
    import inspect

    from levytorch.data.options import FileOptions

    text = (CONF / "data" / "file.yaml").read_text()
    for option in [*inspect.signature(FileOptions).parameters, *inspect.signature(FromFile).parameters]:
        assert option == "options" or f"\n  {option}:" in text


def test_bad_selections(tmp_path):
    with pytest.raises(InputError, match="first and sample must not both be given"):
        FromFile("a.csv", first=1, sample=1)
    for first in (0, "ten", 2.5):
        with pytest.raises(InputError, match=f"first must be a positive integer, found {first!r}"):
            FromFile("a.csv", first=first)
    Trajectories.from_arrays([[0.0, 1.0, 3.0]], dt=0.5).to_file(tmp_path / "a.csv")
    with pytest.raises(InputError, match="first must not exceed 2 transitions, found 3"):
        FromFile(tmp_path / "a.csv", first=3)()


def test_simulated_without_a_configuration():
    assert len(Simulated(Dynamics.named("variable"), 3, 2, 0.1, seed=1)().transitions) == 6
