"""levytorch.datasets: what the simulated ones say of themselves, and readers of tables in the form that is told."""

import numpy as np
import polars as pl
import pytest

from levytorch import datasets, simulate


@pytest.mark.long
@pytest.mark.parametrize("name", ["load_track", "load_double_well", "load_phase"])
def test_simulated_ones_come_from_their_truth(name):
    found = getattr(datasets, name)()
    t = found.transitions()
    assert len(t) >= 8000
    paths = found.trajectories
    again = simulate(found.truth, 1, 3, paths.dt, seed=paths.seed, x0=float(paths.x[0]))
    np.testing.assert_allclose(again.x, paths.x[:4], rtol=1e-12)
    assert found.to_frame().columns == ["id", "dt", "x"]


def test_readers(tmp_path):
    pl.DataFrame({"timestamp": [0, 180, 360], "open": [10.0, 11.0, 10.5]}).write_parquet(tmp_path / "b.parquet")
    np.testing.assert_allclose(datasets.load_btc_3min(tmp_path / "b.parquet").transitions().dt, 0.05)
    rows = ["Time,Close", "2024-01-01 00:00,1.1", "2024-01-01 00:05,1.2", "2024-01-01 08:00,1.3"]
    (tmp_path / "e.csv").write_text("\n".join(rows) + "\n")
    t = datasets.load_eurusd_m5(tmp_path / "e.csv").transitions()
    np.testing.assert_allclose(t.dx, np.log(1.2 / 1.1))
    assert t.dropped == {"across a gap": 1}
    pl.DataFrame({"id": [1, 1, 2, 2], "t": [0, 3600, 0, 3600], "x": [0.0, 1, 2, 3], "y": [0.0, 2, 1, 5]}).write_csv(
        tmp_path / "h.csv"
    )
    herd = datasets.load_buffalo(tmp_path / "h.csv")
    assert herd.trajectories.dim == 2
    assert herd.truth is None


def test_the_module_is_found_from_the_package():
    import levytorch

    assert levytorch.datasets is datasets
