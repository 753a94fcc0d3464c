"""Files as the data of `recover`: `recover(Files("data/*.parquet", value="x", time="t"), alpha=0.3, client=client)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levytorch.convert import known_keys, whole_number
from levytorch.data.batches import MOST_DT
from levytorch.data.lattice import Lattice
from levytorch.data.places import file_names
from levytorch.data.trajectories import OPTIONS
from levytorch.data.transitions import Transitions
from levytorch.distributed.cluster import Runner, running
from levytorch.distributed.lattices import lattice_with
from levytorch.distributed.pairs import Distant

SAMPLE = 200_000  # pairs that this process looks at


class Files:
    """Many files, which the workers of a cluster read.

    Args:
        paths: a pattern, a directory, a URL of fsspec, or a list of these.
        checkpoint, retries, across, bad_files: as for `levytorch.distributed.lattice`.
        sample: about how many pairs this process looks at itself, for scales and thresholds.
        reading: options of `Trajectories.from_file`.

    Example:
        >>> from levytorch import recover
        >>> recover(Files("tracks/*.parquet", value="x", time="t"), alpha=0.3, client=client)  # doctest: +SKIP
    """

    def __init__(
        self,
        paths: Any,
        *,
        checkpoint: str | Path | None = None,
        retries: int = 3,
        across: str = "refuse",
        bad_files: str = "error",
        sample: int = SAMPLE,
        **reading: Any,
    ) -> None:
        known_keys("options of files", reading, OPTIONS - {"on_disk"})
        self.names, self.reading = file_names(paths), reading
        self.options: Mapping[str, Any] = {
            "checkpoint": checkpoint,
            "retries": whole_number("retries", retries, 0, 100),
            "across": across,
            "bad_files": bad_files,
        }
        self.n_sample = whole_number("sample", sample, 1000, 10**8)

    def sample(self, client: Any = None) -> Transitions:
        """About as many pairs as `sample` says, from up to 64 files, for `diagnose` and figures."""
        with running(client) as job:
            return self.on(job).sample(self.n_sample)

    def on(self, runner: Runner, held: bool = False) -> Distant:
        """The pairs of these files on the workers of a runner."""
        return Distant(self.names, self.reading, runner, held, self.options["retries"])

    def lattice(self, runner: Runner, **options: Any) -> Lattice:
        """The lattice of these files."""
        progress = options.pop("progress", None)
        return lattice_with(self.names, runner, progress, **self.options, **self.reading, **options)


def can_be_a_lattice(sample: Transitions) -> bool:
    """Whether data like this sample fits a lattice: one dimension, few distinct dt."""
    return sample.dim == 1 and (sample.uniform_dt or len(sample.dt.unique()) <= MOST_DT)
