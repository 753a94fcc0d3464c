"""Observations in any order, each with its place in a file -> Trajectories: missing cells, order, gaps, groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data.arrays import Array, Counts
from levytorch.data.even import check_dt
from levytorch.data.trajectories import Trajectories
from levytorch.errors import InputError


@dataclass
class Points:
    """One entry per observation.

    values is (N, d) with NaN for an empty cell, columns its d names; group is the number of the trajectory, ids their
    names; row is the row in the file; cell, where given, names the column of each observation (wide tables); times
    beside a dt are only compared with it, and unit_known says whether they are in its unit.
    """

    file: Path
    values: Array
    columns: list[str]
    group: Counts
    row: Counts
    ids: list[Any] | None = None
    times: Array | None = None
    time_column: str | None = None
    reward: Array | None = None
    reward_column: str | None = None
    cell: list[str] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    unit_known: bool = True

    def assemble(
        self, dt: float | None, *, log: bool, max_dt: float | None, drop_missing: bool, sort: bool, drop_short: bool
    ) -> Trajectories:
        """Check, order and group the observations."""
        if drop_missing and np.isnan(self.values).any(axis=1).all():
            self.refuse_empty()
        self.clean(drop_missing, dt, log)
        order = np.argsort(self.group, kind="stable")
        if sort and self.times is not None:
            order = np.lexsort((self.times, self.group))
        self._take(order)
        self._short(drop_short)
        if self.times is not None:
            self._clock()
        counts = np.bincount(self.group, minlength=0)
        keep = counts > 0
        new = Trajectories(
            self.values[:, 0].copy() if self.values.shape[1] == 1 else self.values,
            np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64),
            dt=dt,
            times=self.times,
            reward=self.reward,
            ids=None if self.ids is None else [self.ids[k] for k in np.flatnonzero(keep)],
            max_dt=max_dt,
            dropped=self.dropped,
        )
        if dt is not None and self.times is not None:
            where = f"{self.file}, column {self.time_column!r}"
            check_dt(where, self.times, new.offsets, dt, self.unit_known)
            new.times = None
        new.check_motion([f"{self.file}: column {name!r}" for name in self.columns])
        return new

    def clean(self, drop_missing: bool, dt: float | None, log: bool) -> None:
        """Without rows that lack a value; the logarithm where it is asked for."""
        self._missing(drop_missing, dt)
        if log:
            self._logarithm()

    def joined(self, other: Points) -> Points:
        """These observations, then the first of others (what the order of times between the two needs)."""
        assert self.times is not None
        assert other.times is not None
        return replace(
            self,
            group=np.append(self.group, other.group[0]),
            row=np.append(self.row, other.row[0]),
            times=np.append(self.times, other.times[0]),
        )

    def clock_problem(self, before: Points | None) -> InputError | None:
        """What is wrong with the order of times, here or between these observations and the last one before."""
        try:
            if before is not None:
                before.joined(self)._clock()
            self._clock()
        except InputError as error:
            return error
        return None

    def tail(self) -> Points:
        """The last observation alone."""
        last = replace(self, dropped={})
        last._take(np.array([len(self.group) - 1]))
        return last

    def place(self, k: int, coordinate: int = 0) -> str:
        """Where observation k stands in the file."""
        column = self.columns[coordinate] if self.cell is None else self.cell[k]
        return f"{self.file}, column {column!r}, row {self.row[k]}"

    def _missing(self, drop: bool, dt: float | None) -> None:
        infinite = np.isinf(self.values)
        if infinite.any():
            k, coordinate = (int(i) for i in np.argwhere(infinite)[0])
            self._refuse(k, coordinate, "a finite number", self.values[k, coordinate], "remove the row")
        empty = np.isnan(self.values)
        if empty.any():
            self._drop_empty(empty, drop, dt)
        if self.reward is not None and not np.isfinite(self.reward).all():
            k = int(np.argmax(~np.isfinite(self.reward)))
            raise InputError(
                f"{self.file}, column {self.reward_column!r}, row {self.row[k]}: a reward was expected, found "
                f"{self.reward[k]}: fill the cell."
            )

    def _drop_empty(self, empty: NDArray[np.bool_], drop: bool, dt: float | None) -> None:
        k, coordinate = (int(i) for i in np.argwhere(empty)[0])
        if not drop:
            self._refuse(k, coordinate, "a number", "none", "fill the cell, or pass missing='drop'")
        if dt is not None:
            self._refuse(k, coordinate, "a number", "none", "name a time column (missing='drop' needs one)")
        rows = empty.any(axis=1)
        self.dropped["row without a value"] = int(rows.sum())
        self._take(np.flatnonzero(~rows))

    def _logarithm(self) -> None:
        low = ~(self.values > 0)
        if low.any():
            k, coordinate = (int(i) for i in np.argwhere(low)[0])
            self._refuse(k, coordinate, "a positive number (log=True)", self.values[k, coordinate], "use log=False")
        self.values = np.log(self.values)

    def _short(self, drop: bool) -> None:
        counts = np.bincount(self.group)
        single = np.flatnonzero(counts == 1)
        if len(single) == 0:
            return
        if not drop or len(single) == (counts > 0).sum():
            self.refuse_short(int(np.flatnonzero(self.group == single[0])[0]))
        self.dropped["trajectory of one point"] = len(single)
        self._take(np.flatnonzero(~np.isin(self.group, single)))

    def _clock(self) -> None:
        assert self.times is not None
        steps = np.diff(self.times)
        bad = (self.group[1:] == self.group[:-1]) & ~(steps > 0)
        if not bad.any():
            return
        k = int(np.argmax(bad))
        where = f"{self.file}, column {self.time_column!r}, row {self.row[k + 1]}"
        if steps[k] == 0:
            raise InputError(
                f"{where}: times must differ within a trajectory, found that of row {self.row[k]} again: remove one "
                "row."
            )
        raise InputError(
            f"{where}: times must increase within a trajectory, found an earlier one than in row {self.row[k]}: sort "
            "the table, name the id column, or pass sort=True."
        )

    def _take(self, rows: NDArray[np.int64]) -> None:
        self.values, self.group, self.row = self.values[rows], self.group[rows], self.row[rows]
        self.times = None if self.times is None else self.times[rows]
        self.reward = None if self.reward is None else self.reward[rows]
        self.cell = None if self.cell is None else [self.cell[k] for k in rows]

    def refuse_empty(self) -> None:
        k, coordinate = (int(i) for i in np.argwhere(np.isnan(self.values))[0])
        self._refuse(k, coordinate, "a number somewhere in the column", "none", "choose another column")

    def refuse_short(self, k: int) -> None:
        name = "" if self.ids is None else f" {self.ids[int(self.group[k])]!r}"
        raise InputError(
            f"{self.place(k)}: a trajectory needs at least two points, found one in trajectory{name}: remove it, or "
            "pass short='drop'."
        )

    def _refuse(self, k: int, coordinate: int, expected: str, found: Any, remedy: str) -> None:
        raise InputError(f"{self.place(k, coordinate)}: {expected} was expected, found {found}: {remedy}.")
