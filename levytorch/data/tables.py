"""Tables (.csv, .tsv, .parquet) -> points -> Trajectories, by polars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.atomic import replacing
from levytorch.data.arrays import Array
from levytorch.data.clock import MAX_DT, dt_in_unit
from levytorch.data.headers import check_header, refuse_clock, refuse_index, refuse_unnamed
from levytorch.data.points import Points
from levytorch.data.table_columns import (
    check_columns,
    check_id,
    has_max_dt,
    listed,
    load_table,
    max_dt_of,
    name_columns,
    no_clock,
    no_id,
    numbers,
    one_number,
    refuse_twice,
    times_of,
    with_points,
)
from levytorch.data.trajectories import Trajectories
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl


def read_table(
    file: Path,
    *,
    layout: str,
    value: list[str] | None,
    id: str | None,
    time: str | None,
    reward: str | None,
    dt: float | str | None,
    units: tuple[str | None, str | None, str | None],
    separator: str | None,
    decimal: str,
    max_dt: float | None,
    **handling: Any,
) -> Trajectories:
    """See files.read, which checked the options."""
    table = load_table(file, separator)
    asked = {"value": value, "id": id, "time": time, "reward": reward, "dt": dt}
    if file.suffix.lower() != ".parquet":
        check_header(file, table.columns, layout, asked, comma=decimal != ".")
        refuse_twice(file, table.columns)
        table = table if decimal == "." else with_points(file, table)
    check_columns(file, table.columns, len(table), asked)
    if layout == "long":
        points, dt = _long(file, table, asked, units)
        if max_dt is None and has_max_dt(table.columns, asked):
            max_dt = max_dt_of(file, [table[MAX_DT]], units)
    else:
        absent = (("reward", reward), ("id", id) if layout == "wide" else ("time", time))
        for option, name in absent:
            if name is not None:
                raise InputError(
                    f"{file}: layout {layout!r} has no {option} column, found {name!r}: use layout='long'."
                )
        points = _wide(file, table, value, time, dt, units) if layout == "wide" else _rows(file, table, value, id)
    if isinstance(dt, str) or (dt is None and points.times is None):
        raise no_clock(file, table.columns)
    return points.assemble(dt, max_dt=max_dt, **handling)


def write_table(t: Trajectories, file: Path) -> None:
    """A long table: id, time or dt, x (or x1, x2, ...), reward, max_dt."""
    import polars as pl

    names: Any = np.arange(len(t)) if t.ids is None else np.asarray(t.ids)
    columns: dict[str, Any] = {"id": np.repeat(names, t.lengths)}
    columns["dt" if t.times is None else "time"] = np.full(len(t.x), t.dt) if t.times is None else t.times
    for k, column in enumerate(t.x.reshape(len(t.x), -1).T):
        columns["x" if t.dim == 1 else f"x{k + 1}"] = column
    if t.reward is not None:
        columns["reward"] = t.reward
    if t.max_dt is not None:
        columns[MAX_DT] = np.full(len(t.x), t.max_dt)
    table = pl.DataFrame(columns)
    with replacing(file) as temporary:
        try:
            if file.suffix.lower() == ".parquet":
                table.write_parquet(temporary)
            else:
                table.write_csv(temporary, separator="\t" if file.suffix.lower() == ".tsv" else ",")
        except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
            raise OSError(str(error)) from error


# -------------------------------------------------------------------------------------------------------------- layouts


def _long(
    file: Path, table: pl.DataFrame, asked: dict[str, Any], units: tuple[str | None, str | None, str | None]
) -> tuple[Points, float | None]:
    """One row per observation."""
    value, id, time, reward, dt = name_columns(file, table.columns, asked)
    n = len(table)
    group, ids = np.zeros(n, dtype=np.int64), None
    if id is not None:
        column = table[id]
        check_id(file, id, column.dtype, on_disk=False)
        if column.null_count():
            raise no_id(file, id, int(column.is_null().arg_max() or 0) + 1)
        unique = column.unique(maintain_order=True)
        ids = unique.to_list()
        group = column.replace_strict(unique, np.arange(len(unique))).to_numpy().astype(np.int64)
    times, unit_known = times_of(file, table, time, units, beside_dt=dt is not None)
    points = Points(
        file,
        np.stack([numbers(file, table[name]) for name in value], axis=1),
        value,
        group,
        np.arange(1, n + 1),
        ids,
        times,
        time,
        None if reward is None else numbers(file, table[reward]),
        reward,
        unit_known=unit_known,
    )
    if isinstance(dt, str):
        step = one_number(file, [table[dt]], "dt", "name a column of times instead")
        dt = dt_in_unit(f"{file}, column {dt!r}", step, *units[:2])
    return points, dt


def _wide(
    file: Path,
    table: pl.DataFrame,
    value: list[str] | None,
    time: str | None,
    dt: float | str | None,
    units: tuple[str | None, str | None, str | None],
) -> Points:
    """One column per trajectory; it ends where its cells become empty."""
    time = time or ("time" if "time" in table.columns and "time" not in (value or []) else None)
    columns = value or [name for name in table.columns if name != time]
    times, unit_known = times_of(file, table, time, units, beside_dt=dt is not None)
    if value is None:  # columns that were asked for are what was meant
        refuse_unnamed(file, table, columns, "wide")
    parts = [_trim(numbers(file, table[name])) for name in columns]
    if value is None:
        refuse_clock(file, columns, parts)
    kept = [k for k, part in enumerate(parts) if len(part)]
    if not kept:
        raise InputError(f"{file}: numbers were expected in {listed(columns)}, found none: check the layout.")
    rows = np.concatenate([np.arange(len(parts[k])) for k in kept])
    return Points(
        file,
        np.concatenate([parts[k] for k in kept])[:, None],
        ["of every trajectory"],
        np.repeat(np.arange(len(kept)), [len(parts[k]) for k in kept]),
        rows + 1,
        [columns[k] for k in kept],
        None if times is None else times[rows],
        time,
        cell=[columns[k] for k in kept for _ in range(len(parts[k]))],
        dropped=_lost(parts, kept),
        unit_known=unit_known,
    )


def _rows(file: Path, table: pl.DataFrame, value: list[str] | None, id: str | None) -> Points:
    """One row per trajectory; it ends where its cells become empty."""
    id = id or ("id" if "id" in table.columns and "id" not in (value or []) else None)
    columns = value or [name for name in table.columns if name != id]
    if value is None:  # columns that were asked for are what was meant
        refuse_unnamed(file, table, columns, "rows")
    grid = np.stack([numbers(file, table[name]) for name in columns], axis=1)
    if value is None:
        refuse_index(file, columns, grid)
    parts = [_trim(line) for line in grid]
    if id is not None:
        check_id(file, id, table[id].dtype, on_disk=False)
    names = list(range(1, len(parts) + 1)) if id is None else table[id].to_list()
    kept = [k for k, part in enumerate(parts) if len(part)]
    if not kept:
        raise InputError(f"{file}: numbers were expected in {listed(columns)}, found none: check the layout.")
    return Points(
        file,
        np.concatenate([parts[k] for k in kept])[:, None],
        ["of every trajectory"],
        np.repeat(np.arange(len(kept)), [len(parts[k]) for k in kept]),
        np.repeat(np.array(kept) + 1, [len(parts[k]) for k in kept]),
        [names[k] for k in kept],
        cell=[columns[j] for k in kept for j in range(len(parts[k]))],
        dropped=_lost(parts, kept),
    )


def _trim(values: Array) -> Array:
    """Without the empty cells at the end."""
    filled = np.flatnonzero(~np.isnan(values))
    return values[: filled[-1] + 1] if len(filled) else values[:0]


def _lost(parts: list[Array], kept: list[int]) -> dict[str, int]:
    return {"trajectory without a value": len(parts) - len(kept)} if len(kept) < len(parts) else {}
