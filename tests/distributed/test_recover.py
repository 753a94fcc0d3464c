"""recover(files, client=...): the numbers of a fit to all pairs in one process."""

from __future__ import annotations

import copy
import os
import signal
import warnings

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, Trajectories, Transitions, recover, simulate
from levytorch.distributed import Files
from levytorch.distributed.cluster import Here
from levytorch.distributed.pairs import Distant, Pool
from levytorch.training.resampling import block_influence

from .conftest import write_files


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def together(names) -> Transitions:
    return Trajectories.from_file(names).transitions()


def distance(one, other) -> float:
    """The largest difference of b, D_o and D_f on a grid, in standard errors; parameters may be in other units."""
    x = one.head.grid(16 if one.dim == 1 else 36)
    pairs = zip(one.coefficients(x), other.coefficients(x), one.std(x))
    return max(float(((a - b).abs() / std.clamp(min=1e-300)).max()) for a, b, std in pairs if std.ndim == a.ndim)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": 1e-12},
        {"tail": {"CT": 2.0, "TRT": 20.0, "min_tail": 20}},
        {"tail": {"CT": 2.0, "TRT": 20.0, "method": "conditional", "min_tail": 20}},
    ],
)
def test_a_lattice_with_the_last_step_over_the_files(options, files, client):
    """The last step is over the samples, as in one process."""
    options = options | {"alpha": 0.3, "n_basis": 3, "law": "frozen"}
    found = quietly(recover, files, client=client, **options)
    whole = quietly(recover, together(files), lattice="always", **options)
    assert distance(whole, found) < 1e-4
    assert found.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-6)
    assert found.metrics["lattice_distance"] >= 0
    assert found.metrics["reading"]["files_read"] == len(files)
    assert found.blocks is not None  # for the bootstrap


@pytest.mark.slow
def test_a_line(client, tmp_path):
    names = write_files(tmp_path, system="double_well", alpha=0.75)
    options = {"alpha": 0.75, "coefficients": "spline", "n_basis": 5, "period": None, "law": "frozen"}
    options |= {"tolerance": 1e-12}
    found = quietly(recover, names, client=client, **options)
    whole = quietly(recover, together(names), lattice="always", **options)
    assert found.head.window == whole.head.window
    assert distance(whole, found) < 1e-3


@pytest.mark.long
def test_the_last_step_is_that_over_the_samples(files, client):
    """Without it a fit to a lattice is some thousandths of a standard error away, with it 1e-8."""
    options = {"alpha": 0.3, "n_basis": 3, "law": "frozen", "tolerance": 1e-12}
    found = quietly(recover, files, client=client, **options)
    pairs = quietly(recover, together(files), lattice="never", **options)
    assert distance(pairs, found) < 1e-5


@pytest.mark.slow
def test_two_dimensions_have_no_lattice(client, tmp_path):
    names = []
    for k in range(4):
        names.append(str(tmp_path / f"{k}.npz"))
        simulate(Dynamics.named("plane"), 60, 20, 1 / 40, seed=k).to_file(names[-1])
    # a link that does not depend on the units, which the sample decides
    options = {"alpha": 0.3, "n_basis": 3, "law": "frozen", "tolerance": 1e-12, "positivity": "clamp"}
    whole = quietly(recover, together(names), **options)
    found = quietly(recover, Files(names, sample=1000), client=client, **options)
    assert found.metrics["n_main"] == whole.metrics["n_main"] == 4800
    assert distance(whole, found) < 1e-5


@pytest.mark.slow
def test_standard_errors_from_files_and_the_simulated_law_without_a_lattice(client, tmp_path):
    names = []
    for k in range(30):
        names.append(str(tmp_path / f"{k:02d}.npz"))
        simulate(Dynamics.named("plane"), 6, 20, 1 / 40, seed=k).to_file(names[-1])
    options = {"alpha": 0.3, "n_basis": 3, "positivity": "clamp", "tolerance": 1e-12}
    frozen = quietly(recover, Files(names, sample=1800), client=client, law="frozen", **options)
    whole = quietly(recover, together(names), law="frozen", **options)
    influence = block_influence(frozen, None)
    assert influence.shape == (30, len(frozen.theta))
    without = quietly(recover, together(names[1:]), law="frozen", **options)
    # one file less moves the fit as its influence says, to first order
    x = whole.head.grid(36)
    moved = copy.deepcopy(frozen)
    moved.head.set_flat(frozen.theta - influence[0])
    for now, then, found in zip(moved.coefficients(x)[:3], frozen.coefficients(x), without.coefficients(x)):
        assert float((now - found).norm()) < 0.3 * float((then - found).norm())
    for one, other in zip(frozen.std(x, kind="robust")[:3], whole.std(x, kind="robust")):
        assert 0.75 < float((one / other).median()) < 1.35
    assert len(frozen.bootstrap(5, seed=1)) == 5
    simulated = quietly(recover, Files(names, sample=1800), client=client, law="simulated", **options)
    expected = quietly(recover, together(names), law="simulated", **options)
    assert simulated.metrics["law"] == "simulated"
    assert distance(expected, simulated) < 0.5  # other states are simulated from
    assert distance(expected, simulated) < 0.5 * distance(whole, expected)


@pytest.mark.slow
def test_many_distinct_dt_have_no_lattice(client, tmp_path):
    rng, names = np.random.default_rng(4), []
    for k in range(3):
        paths = simulate(Dynamics.named("constant"), 30, 40, 1 / 400, seed=k).to_array()
        rows = np.sort(rng.permutation(41)[:25])
        names.append(str(tmp_path / f"{k}.npz"))
        steps = np.cumsum(rng.uniform(0.01, 0.05, 25))
        Trajectories.from_arrays(paths[:, rows], times=steps).to_file(names[-1])
    options = {"alpha": 0.3, "n_basis": 1, "law": "frozen", "tolerance": 1e-12}
    whole = quietly(recover, together(names), **options)
    found = quietly(recover, names, client=client, **options)
    assert distance(whole, found) < 1e-4


@pytest.mark.slow
def test_the_exact_law_on_the_lattice_of_files(files, client):
    """As for a lattice that is made here."""
    found = quietly(recover, files, alpha=0.3, n_basis=3, law="exact", positivity="clamp", client=client)
    lattice = together(files).lattice(n_blocks=60)
    whole = quietly(recover, lattice, alpha=0.3, n_basis=3, law="exact", positivity="clamp")
    assert found.metrics["law"] == whole.metrics["law"] == "exact"
    assert distance(whole, found) < 1e-3


def test_pools_of_files_are_those_of_a_lattice(tmp_path):
    names = write_files(tmp_path, 2)
    pairs = together(names)
    lattice = pairs.lattice(CT=1.0, TRT=3.0)
    distant = Distant(names, {}, Here())
    for tail, expected in ((False, lattice.n_main), (True, lattice.n_tail)):
        assert distant.total(Pool.of(lattice, None, tail), lambda batch: len(batch.x)) == expected
    inside = int(((pairs.x >= 1.0) & (pairs.x <= 2.0)).sum())
    assert distant.total(Pool(window=(1.0, 2.0)), lambda batch: len(batch.x)) == inside
    assert distant.counts() == [len(pairs) // 2] * 2
    assert distant.each(Pool(window=(1e9, 2e9)), lambda batch: 1) == [None, None]
    with pytest.raises(InputError, match="files must hold pairs in the window"):
        distant.total(Pool(window=(1e9, 2e9)), lambda batch: len(batch.x))


def test_a_sample_is_from_all_files(tmp_path):
    names = write_files(tmp_path, 3)
    sample = Distant(names, {}, Here()).sample(600)
    assert len(sample) == 600
    assert len(sample.membership.occurring()) == 24  # 8 trajectories of 25 pairs of each file
    assert sample.uniform_dt
    assert torch.equal(sample.x[:200], Trajectories.from_file(names[0]).transitions().x[:200])
    few = Distant(names * 50, {}, Here()).sample(600)  # of every third file
    assert len(few) == 50 * 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "adam"}, "engine must be fisher"),
        ({"validation": 0.2}, "must have the pairs in this process"),
        ({"modulation": 24.0}, "must have the pairs in this process"),
        ({"memory": "learn"}, "a memory must have the pairs in this process"),
        ({"observation_noise": 0.1}, "observation_noise must have the pairs in this process"),
    ],
)
def test_what_needs_the_pairs_here_is_refused(options, words, files, client):
    with pytest.raises(InputError, match=words):
        recover(files, alpha=0.3, n_basis=1, client=client, **options)
    with pytest.raises(InputError, match="colour"):
        Files(files, colour=1)
    with pytest.raises(InputError, match="an action must have the pairs in this process"):
        recover(Files(files, action="push"), alpha=0.3, n_basis=1, client=client)


@pytest.mark.slow
def test_a_worker_killed_during_a_fit_without_a_lattice_changes_nothing(tmp_path, monkeypatch):
    """The pairs that it held are read again."""
    from distributed import Client, LocalCluster

    names = [str(tmp_path / f"{k}.npz") for k in range(4)]
    for k, name in enumerate(names):
        simulate(Dynamics.named("plane"), 60, 20, 1 / 40, seed=k).to_file(name)
    sums, kill_at, every = [], [0], Distant._results
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as started, Client(started) as own:
        first = next(iter(own.run(os.getpid).values()))

        def watched(self, tasks):
            sums.append(len(tasks))
            if len(sums) == kill_at[0]:
                os.kill(first, signal.SIGKILL)
            yield from every(self, tasks)

        monkeypatch.setattr(Distant, "_results", watched)
        found = []
        for kill_at[0] in (0, 7):
            sums.clear()
            options = {"alpha": 0.3, "n_basis": 3, "period": (2 * torch.pi,) * 2, "law": "frozen"}
            found.append(recover(Files(names, across="apart"), client=own, **options).theta)
            assert len(sums) > 7
    assert torch.equal(*found)
