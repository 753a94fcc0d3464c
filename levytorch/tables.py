"""Files of a run directory; each appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.atomic import replacing


def write_text(path: Path, text: str) -> None:
    """Through a temporary file beside the target, then one rename."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Numbers that are not finite become null: JSON has none."""
    write_text(path, json.dumps(plain(content), indent=2) + "\n")


def write_csv(path: Path, columns: Mapping[str, Sequence[float] | np.ndarray[Any, Any]]) -> None:
    """Columns of equal length, with a header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*[[repr(float(v)) for v in column] for column in columns.values()]))
    write_text(path, buffer.getvalue())


def plain(value: Any) -> Any:
    """Tensors, arrays and paths as what JSON knows."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return str(value)
