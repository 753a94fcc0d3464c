"""Values that nobody should pass, and some that look odd but are fine; each is made anew for every use."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Make = Callable[[], Any]

SCALARS: dict[str, Make] = {
    "None": lambda: None,
    "text": lambda: "a",
    "empty text": lambda: "",
    "number as text": lambda: "0.5",
    "bytes": lambda: b"0.5",
    "True": lambda: True,
    "False": lambda: False,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "-0.5": lambda: -0.5,
    "0": lambda: 0,
    "-0.0": lambda: -0.0,
    "1": lambda: 1,
    "2.5": lambda: 2.5,
    "7": lambda: 7,
    "1e308": lambda: 1e308,
    "-1e308": lambda: -1e308,
    "1e-320": lambda: 1e-320,
    "1e200": lambda: 1e200,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "complex": lambda: 0.5 + 1j,
    "Decimal": lambda: decimal.Decimal("0.5"),
    "Fraction": lambda: fractions.Fraction(1, 2),
    "np.float32": lambda: np.float32(0.5),
    "np.int64": lambda: np.int64(1),
    "np.bool": lambda: np.True_,
    "np.str": lambda: np.str_("a"),
    "np.datetime64": lambda: np.datetime64("2024-01-01"),
    "np.timedelta64": lambda: np.timedelta64(1, "h"),
    "date": lambda: datetime.date(2024, 1, 1),
    "path": lambda: pathlib.Path("nowhere"),
    "object": object,
    "type": lambda: int,
    "lambda": lambda: lambda x: x,
    "lambda that raises": lambda: _raises,
    "lambda of text": lambda: lambda x: "a",
    "lambda of None": lambda: lambda x: None,
    "lambda of a wrong shape": lambda: lambda x: torch.zeros(3, 5),
    "lambda of nan": lambda: lambda x: x * math.nan,
    "lambda of no argument": lambda: lambda: 1.0,
    "module": lambda: math,
}

CONTAINERS: dict[str, Make] = {
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set": lambda: {0.5},
    "dict": lambda: {"a": 0.5},
    "generator": lambda: (v for v in (0.5, 0.6)),
    "range": lambda: range(3),
    "[None]": lambda: [None],
    "['a']": lambda: ["a"],
    "[0.5, 'a']": lambda: [0.5, "a"],
    "ragged": lambda: [[0.5], [0.5, 0.6]],
    "[nan]": lambda: [math.nan],
    "[0.5]": lambda: [0.5],
    "[0.5, 0.6]": lambda: [0.5, 0.6],
    "nested": lambda: [[[[0.5]]]],
    "np empty": lambda: np.array([]),
    "np (0, 3)": lambda: np.zeros((0, 3)),
    "np (3,)": lambda: np.full(3, 0.5),
    "np (2, 3)": lambda: np.full((2, 3), 0.5),
    "np int": lambda: np.array([1, 2]),
    "np bool": lambda: np.array([True, False]),
    "np complex": lambda: np.array([0.5 + 0j]),
    "np object": lambda: np.array([None, "x"], dtype=object),
    "np object numbers": lambda: np.array([0.5, 0.6], dtype=object),
    "np text": lambda: np.array(["a", "b"]),
    "np text of numbers": lambda: np.array(["0.5", "0.6"]),
    "np dates": lambda: np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]"),
    "np longdouble": lambda: np.array([0.5], dtype=np.longdouble),
    "np float16": lambda: np.array([0.5], dtype=np.float16),
    "np big endian": lambda: np.array([0.5, 0.6], dtype=">f8"),
    "np negative stride": lambda: np.array([0.6, 0.5])[::-1],
    "np read-only": lambda: _readonly(),
    "np record": lambda: np.array([(0.5, 1)], dtype=[("a", "f8"), ("b", "i4")]),
    "np masked": lambda: np.ma.masked_array([0.5, 0.6], mask=[False, True]),
    "np uint64 max": lambda: np.array([2**64 - 1], dtype=np.uint64),
    "torch empty": lambda: torch.empty(0),
    "torch int": lambda: torch.tensor([1, 2]),
    "torch bool": lambda: torch.tensor([True]),
    "torch complex": lambda: torch.tensor([0.5 + 1j]),
    "torch half": lambda: torch.tensor(0.5, dtype=torch.float16),
    "torch bfloat16": lambda: torch.tensor([0.5], dtype=torch.bfloat16),
    "torch float32": lambda: torch.tensor(0.5),
    "torch grad": lambda: torch.tensor([0.5, 0.6], dtype=torch.float64, requires_grad=True),
    "torch (2, 3)": lambda: torch.full((2, 3), 0.5),
    "torch (1,)": lambda: torch.tensor([0.5]),
    "torch nan": lambda: torch.tensor([0.5, math.nan]),
    "torch sparse": lambda: torch.eye(2).to_sparse(),
    "torch meta": lambda: torch.empty(2, device="meta"),
    "torch transposed": lambda: torch.full((3, 2), 0.5).T,
    "torch uint8": lambda: torch.tensor([1], dtype=torch.uint8),
}

ALL = {**SCALARS, **CONTAINERS}


def plain(value: Any) -> np.ndarray | None:
    """The real numbers that a value stands for beyond doubt, or None: what an accepted value must be equivalent to."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.dtype == torch.bool or value.is_sparse or value.is_meta or value.is_quantized:
            return None
        return value.detach().to(torch.float64).numpy()
    if isinstance(value, np.ma.MaskedArray):
        return None
    if value is None or isinstance(value, (str, bytes, bool, np.bool_, dict, set)) or callable(value):
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
        return array.astype(np.float64) if array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, OverflowError):
        return None


def _readonly() -> np.ndarray:
    array = np.array([0.5, 0.6])
    array.flags.writeable = False
    return array


def _raises(x: Any) -> Any:
    raise RuntimeError("the user's function has a bug")
