"""The source of train.py for many files: `data=files`, read here or by a cluster (`cluster=dask`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from levytorch.convert import choice, known_keys, shown, switch, whole_number
from levytorch.data.places import file_names
from levytorch.data.sources import SourceData
from levytorch.data.trajectories import OPTIONS
from levytorch.distributed.cluster import Here, cluster_of
from levytorch.distributed.lattices import Progress, lattice_with
from levytorch.distributed.pairs import Distant
from levytorch.errors import ConfigError

log = logging.getLogger("levytorch.train")
CLUSTERS = {"here": (), "dask": ("address", "n_workers")}


class FromFiles:
    """The lattice of many files.

    Args:
        path: a pattern, a directory, a URL, or a list of these.
        cluster: {"name": "here"}, or {"name": "dask", "address": ..., "n_workers": ...}.
        progress: show a bar that counts files.
        sample: about how many pairs the checks of the fit look at, from up to 64 of the files; 0: no checks.
        options: those of `levytorch.distributed.lattice` and `Trajectories.from_file`; None leaves one out.
    """

    def __init__(
        self, path: Any, *, cluster: Any = None, progress: bool = False, sample: int = 0, **options: Any
    ) -> None:
        self.path = list(path) if isinstance(path, Sequence) and not isinstance(path, str) else path
        self.cluster = {"name": "here"} if cluster is None else cluster
        if not isinstance(self.cluster, Mapping):
            raise ConfigError(f"cluster must be a group of settings, found {shown(cluster)}; use cluster=dask.")
        name = choice("cluster.name", self.cluster.get("name"), tuple(CLUSTERS))
        known_keys("the settings of cluster", set(self.cluster) - {"name"}, CLUSTERS[name], ConfigError)
        self.progress, self.sample = switch("progress", progress), whole_number("sample", sample, 0, 10**8)
        # a period of None is a line, every other None a setting that is left out
        self.options = {key: value for key, value in options.items() if value is not None or key == "period"}

    def __call__(self) -> SourceData:
        names = file_names(self.path)
        bar = _Bar(len(names), self.progress)
        job: AbstractContextManager[Any] = nullcontext(Here())
        if self.cluster["name"] == "dask":
            job = cluster_of(self.cluster)
        with job as used, bar:
            made = lattice_with(names, used, bar.tell, **self.options)
            usable = [name for name in names if name not in bar.last.failed]
            reading = {key: value for key, value in self.options.items() if key in OPTIONS}
            sample = Distant(usable, reading, used).sample(self.sample) if self.sample else None
        facts = bar.last.metrics() | {"cluster": self.cluster["name"]}
        return SourceData(made, facts={"reading": facts}, sample=sample)


class _Bar:
    """Files that are done, on the terminal; what went wrong is in the log."""

    def __init__(self, total: int, shown: bool) -> None:
        self.last, self.total, self.shown = Progress(total), total, shown
        self._line: Any = None

    def __enter__(self) -> _Bar:
        if self.shown:
            from tqdm import tqdm

            self._line = tqdm(total=self.total, unit="file", desc="reading", leave=False)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._line is not None:
            self._line.close()
        done = self.last
        text = f"{done.n_files:,} files, {done.pairs:,} pairs: {done.read} read, {done.kept} from the checkpoint"
        log.info(f"{text}, {len(done.failed)} could not be used, {sum(done.retried.values())} attempts repeated")

    def tell(self, progress: Progress) -> None:
        self.last = progress
        if self._line is not None:
            self._line.update(progress.done - self._line.n)
