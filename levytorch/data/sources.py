"""Sources: what a configuration's `data` group builds. A source is a callable that returns SourceData."""

from __future__ import annotations

import functools
import operator
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from levytorch.convert import positive_number, shown, whole_number
from levytorch.data.pairing import is_gap
from levytorch.data.store import Entry, within_memory
from levytorch.data.trajectories import Trajectories
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice


class SourceData(NamedTuple):
    """Transitions or the lattice of them, with the true dynamics and the trajectories where there are any."""

    transitions: Transitions | Lattice
    dynamics: Any = None  # a Dynamics, or a ControlledDynamics
    trajectories: Trajectories | None = None
    policy: Any = None  # that simulated actions were drawn from
    facts: Mapping[str, Any] | None = None  # of how it was read, for metrics.json
    sample: Transitions | None = None  # some of the pairs that a lattice was made of, for the checks of the fit


class FromFile:
    """Transitions of a file.

    Args:
        path: of the file; or a pattern, a directory, a URL, or a list of files.
        first: use only the first so many transitions.
        sample: use only so many transitions, drawn at random without replacement (the paper's BTC experiment: 60000).
        sample_seed: of that draw.
        modulation: the column of a covariate (or time_of_day, time_of_week of dates), kept as the action of the pairs.
        expected_dt: refuse a file that is not sampled at this dt (in time_unit) throughout. Gaps are refused too,
            unless `max_dt` says that longer steps are known to be gaps.
        options: those of `Trajectories.from_file`; lists from a configuration are accepted.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        first: int | None = None,
        sample: int | None = None,
        sample_seed: int = 0,
        expected_dt: float | None = None,
        modulation: str | None = None,
        **options: Any,
    ) -> None:
        if first is not None and sample is not None:
            raise InputError(f"first and sample must not both be given, found {first} and {sample}; remove one.")
        for name, count in (("first", first), ("sample", sample)):
            if count is not None:
                whole_number(name, count, 1, remedy="pass the number of transitions")
        whole_number("sample_seed", sample_seed, 0)
        self.path, self.first, self.sample, self.sample_seed = path, first, sample, sample_seed
        self.expected_dt = None if expected_dt is None else positive_number("expected_dt", expected_dt)
        self.options = {
            name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            for name, value in options.items()
        }
        self.modulation = modulation
        if modulation is not None:
            if self.options.get("action") is not None:
                raise InputError(
                    f"action and modulation must not both be given, found {self.options['action']!r} and "
                    f"{modulation!r}; remove one."
                )
            self.options["action"] = modulation

    def __call__(self) -> SourceData:
        trajectories = Trajectories.from_file(self.path, **self.options)
        if self.expected_dt is not None:
            self._check_dt(trajectories, self.expected_dt)
        with within_memory(self.path):
            transitions = trajectories.transitions()
        n, count = len(transitions), self.first or self.sample
        if count is not None:
            if count > n:
                name = "sample" if self.first is None else "first"
                raise InputError(f"{self.path}: {name} must not exceed {n} transitions, found {count}; lower it.")
            which = selected(n, self.first, self.sample, self.sample_seed, transitions.stored)
            # a part chosen before the analysis is the data: its mu is its own
            transitions = transitions._take(which, {"not selected": n - count}, keep_mu=False)
        return SourceData(transitions, None, trajectories)

    def _check_dt(self, trajectories: Trajectories, expected: float) -> None:
        """Refuse another resolution, named with the first step that differs."""
        unit = self.options.get("time_unit") or ""
        if trajectories.times is None:
            assert trajectories.dt is not None
            steps = np.array([trajectories.dt])
        else:
            steps = np.delete(np.diff(trajectories.times), trajectories.offsets[1:-1] - 1)
        within = ~is_gap(steps, trajectories.max_dt)
        judged = steps[within] if within.any() else steps  # where all steps are "gaps", the file has another resolution
        wrong = np.abs(judged - expected) > 1e-6 * expected
        if not wrong.any():
            return
        found, usual = float(judged[int(np.argmax(wrong))]), float(np.median(judged))
        length = f"{expected:g} {unit}".rstrip()
        if abs(usual - expected) > 1e-6 * expected:
            remedy = "give a file of that resolution, correct time_in and time_unit, or change expected_dt"
            raise InputError(
                f"{self.path}: steps must be {length} throughout (expected_dt), found mostly {usual:g}; {remedy}."
            )
        remedy = "remove the observations in between"
        if found > expected:
            remedy = f"fill the gaps, or pass max_dt={expected:g} to leave out the pairs across them"
        raise InputError(
            f"{self.path}: steps must be {length} throughout (expected_dt), found {int(wrong.sum())} others, the first "
            f"{found:g}; {remedy}."
        )


class FromLattice:
    """A lattice that `Lattice.save` wrote, or the sum of several: yesterday's and today's.

    path: of the file, or a list of such.
    """

    def __init__(self, path: str | Path | Sequence[str | Path]) -> None:
        self.paths = [path] if isinstance(path, (str, Path)) else list(path) if isinstance(path, Sequence) else []
        if not self.paths or not all(isinstance(one, (str, Path)) and str(one) for one in self.paths):
            raise InputError(f"path must be a file, or a list of files, found {shown(path)}; name what was saved.")

    def __call__(self) -> SourceData:
        from levytorch.data.lattice import Lattice  # compiled kernels, which few runs need

        return SourceData(functools.reduce(operator.add, (Lattice.load(path) for path in self.paths)))


def selected(n: int, first: int | None, sample: int | None, seed: int = 0, stored: Entry | None = None) -> Any:
    """The rows, ascending, of n transitions that `first` or `sample` choose: a slice, numbers, or None for all.

    A sample are the first ones of a permutation, which may itself be too large for memory: where the pairs are
    `stored`, it lies beside them.
    """
    if sample is None:
        return None if first is None else slice(0, first)
    random = np.random.default_rng(seed)
    if stored is None:
        return np.sort(random.permutation(n)[:sample])
    with tempfile.NamedTemporaryFile(dir=stored.directory.parent, suffix=".tmp") as file:
        order = np.memmap(file, dtype=np.int64, mode="w+", shape=(n,))
        for low in range(0, n, 1 << 17):
            order[low : low + (1 << 17)] = np.arange(low, min(low + (1 << 17), n))
        random.shuffle(order)
        return np.sort(np.array(order[:sample]))
