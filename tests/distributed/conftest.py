"""Files of many trajectories, and a cluster of two workers in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from levytorch import Dynamics, simulate

N_FILES = 6


@pytest.fixture(scope="session")
def cluster():
    """A scheduler and two workers with one thread each."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as started:
        yield started


@pytest.fixture
def client(cluster):
    from distributed import Client

    with Client(cluster) as started:
        yield started


def write_files(
    directory: Path, n: int = N_FILES, n_trajectories: int = 40, system: str = "variable", alpha: float = 0.3
) -> list[str]:
    """Parquet files of different trajectories, all with times."""
    names = []
    directory.mkdir(exist_ok=True)
    for k in range(n):
        paths = simulate(Dynamics.named(system, alpha=alpha), n_trajectories, 25, 1 / 40, seed=k)
        paths.ids = tuple(f"{k}-{i}" for i in range(n_trajectories))
        names.append(str(directory / f"part{k:02d}.parquet"))
        paths.to_file(names[-1])
    return names


@pytest.fixture
def files(tmp_path) -> list[str]:
    return write_files(tmp_path)
