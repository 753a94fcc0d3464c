"""Frames of pandas, polars and Arrow as polars frames, and trajectories as frames.

pandas and pyarrow are never imported here: a frame of theirs brings what is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import choice, shown
from levytorch.data.options import MAX_DT
from levytorch.errors import InputError, LevytorchWarning

if TYPE_CHECKING:
    import polars as pl

    from levytorch.data.trajectories import Trajectories

KINDS = ("polars", "pandas", "dict")


def is_frame(value: Any) -> bool:
    """Whether a value has named columns: a frame of pandas, polars or Arrow, or a mapping of columns."""
    if isinstance(value, Mapping):
        return True
    return _library(value) in ("pandas", "polars", "pyarrow") or hasattr(value, "__arrow_c_stream__")


def as_polars(frame: Any) -> pl.DataFrame:
    """A frame of any of these as one of polars; dates keep their instants, categories become their names."""
    import polars as pl

    library = _library(frame)
    try:
        if library == "pandas":
            return _of_pandas(frame)
        if isinstance(frame, pl.LazyFrame):
            return frame.collect()
        if isinstance(frame, pl.Series):
            return frame.alias(frame.name or "x").to_frame()
        if isinstance(frame, pl.DataFrame):
            return frame
        if isinstance(frame, Mapping) or hasattr(frame, "__arrow_c_stream__"):
            return pl.DataFrame(frame, strict=False)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"a frame must have columns of one type each, found {reason}; convert them.") from None
    raise InputError(
        f"a frame must be one of pandas, polars or pyarrow, or a dict of columns, found {shown(frame)}; pass arrays to "
        "from_arrays."
    )


def to_frame(t: Trajectories, kind: str = "polars") -> Any:
    """A long table of trajectories: id, time or dt, x (or x1, x2, ...), reward, action, terminal, max_dt."""
    import polars as pl

    table = pl.DataFrame(columns_of(t))  # which turns names into columns of their own types
    return frame_of({name: table[name].to_numpy() for name in table.columns}, kind)


def frame_of(columns: Mapping[str, Any], kind: str) -> Any:
    """Columns as a frame of polars or, where that is installed, of pandas; or as they are."""
    import polars as pl

    if choice("kind", kind, KINDS) != "pandas":
        return dict(columns) if kind == "dict" else pl.DataFrame(dict(columns))
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            "kind='pandas' must have pandas installed, found that it is not; install it, or use kind='polars'."
        ) from None
    return pd.DataFrame(dict(columns))


def columns_of(t: Trajectories) -> dict[str, Any]:
    """The columns of that table, as arrays."""
    names: Any = np.arange(len(t)) if t.ids is None else np.asarray(t.ids)
    columns: dict[str, Any] = {"id": np.repeat(names, t.lengths)}
    columns["dt" if t.times is None else "time"] = np.full(len(t.x), t.dt) if t.times is None else t.times
    for k, column in enumerate(t.x.reshape(len(t.x), -1).T):
        columns["x" if t.dim == 1 else f"x{k + 1}"] = column
    for name, values in t.labelled_columns().items():
        if values.ndim == 1:
            columns[name] = values
        else:  # actions that are vectors
            columns |= {f"{name}{k + 1}": part for k, part in enumerate(values.T)}
    if t.max_dt is not None:
        columns[MAX_DT] = np.full(len(t.x), t.max_dt)
    return columns


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _of_pandas(frame: Any) -> pl.DataFrame:
    """Column by column, which needs no pyarrow; an index that was named, or that holds times, becomes a column."""
    import polars as pl

    if frame.ndim == 1:
        frame = frame.to_frame(frame.name if frame.name is not None else "x")
    index = frame.index
    if index.nlevels > 1 or index.name is not None or index.dtype.kind in "mM" or hasattr(index.dtype, "tz"):
        names = [name if name is not None else ("time" if index.nlevels == 1 else f"index{k + 1}")
                 for k, name in enumerate(index.names)]  # fmt: skip
        clash = [name for name in names if name in frame.columns]
        if clash:
            warnings.warn(
                f"the frame has both an index and a column called {clash[0]!r}; the column is used.",
                LevytorchWarning,
                stacklevel=4,
            )
        else:
            frame = frame.rename_axis(index=names).reset_index()
    labels = [str(name) for name in frame.columns]
    if len(set(labels)) < len(labels):
        raise InputError(f"the frame must have columns of different names, found {labels}; rename some.")
    return pl.DataFrame([_column(name, frame.iloc[:, k]) for k, name in enumerate(labels)])


def _column(name: str, column: Any) -> pl.Series:
    import polars as pl

    kind = column.dtype
    if str(kind) == "category":
        column = column.astype(kind.categories.dtype)
        kind = column.dtype
    if hasattr(kind, "tz") or getattr(kind, "kind", "") == "M":
        stamps = column.dt.tz_convert("UTC").dt.tz_localize(None) if getattr(kind, "tz", None) else column
        return pl.Series(name, stamps.to_numpy(dtype="datetime64[ns]")).cast(pl.Datetime("ns"))
    if getattr(kind, "kind", "O") in "fiub":
        missing = column.isna()
        if bool(missing.any()):
            return pl.Series(name, column.astype("float64").to_numpy(dtype=np.float64, na_value=np.nan))
        return pl.Series(name, column.to_numpy(dtype=np.dtype(getattr(kind, "numpy_dtype", kind))))
    cells = [None if missing else cell for cell, missing in zip(column.tolist(), column.isna().tolist())]
    return pl.Series(name, cells, strict=False)
