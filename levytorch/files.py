"""Files written so that they appear whole or not at all, whatever happens meanwhile: a kill, a full disk.

They go through a temporary file beside their target and one rename.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import numbers
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch import exchange
from levytorch.errors import OutputError, printable

_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # file systems that have none
_LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  # the names of _beside


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary path beside the target; it takes the target's place when the block ends without an error."""
    temporary = _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _to_disk(temporary)
        # replaces a symbolic link itself, never what it points to
        os.replace(temporary, target)
        _to_disk(target.parent)
    except OutputError:
        raise
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save_tensors(content: Any, target: Path) -> None:
    """torch.save, or safetensors where the name ends so, complete or absent.

    A full disk is an OutputError: torch's own writer would not say which it is.
    """
    if exchange.is_exchange(target):
        packed = exchange.pack(content)
    else:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        packed = buffer.getvalue()  # not a view of it: Python 3.12.1 dies collecting views
    with replacing(target) as temporary:
        temporary.write_bytes(packed)


@contextmanager
def temporary_directory(target: Path) -> Iterator[Path]:
    """A directory beside the target, removed when the block ends: fill it, then `move_directory` it into place."""
    temporary = _beside(target)
    try:
        temporary.mkdir(parents=True)
        yield temporary
    except OutputError:
        raise
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_directory(source: Path, target: Path) -> None:
    """One rename; FileExistsError when something is at the target already (other than an empty directory)."""
    try:
        os.rename(source, target)
    except OSError as error:
        if target.exists():
            raise FileExistsError(str(target)) from error
        raise
    _to_disk(target.parent)


def check_place(path: Path) -> None:
    """Refuse a place where nothing can be written, without writing anything there."""
    place = Path(os.path.abspath(path))
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"{path} must be a directory that can be written to, found the file {place}; choose another.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path} must be a directory that can be written to, found that {place} is read-only; choose another."
        )


def remove_leftovers(directory: Path) -> None:
    """Temporary files that a killed process left in a directory which is certainly nobody else's now."""
    for path in directory.glob(".*.tmp"):
        if _LEFTOVER.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def unwritable(target: str | os.PathLike[str], error: OSError) -> OutputError:
    """The error of a file that could not be written, in one sentence."""
    reason = error.strerror or str(error)
    return OutputError(
        f"{target} could not be written ({reason}); what was there before is unchanged: make room or choose another "
        "place, then continue."
    )


def write_text(path: Path, text: str) -> None:
    """Through a temporary file beside the target, then one rename; what a terminal would act on is spelt out."""
    with replacing(path) as temporary:
        temporary.write_text(printable(text), encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Numbers that are not finite become null: JSON has none."""
    write_text(path, json.dumps(plain_values(content), indent=2) + "\n")


def write_csv(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Columns of equal length, with a header; numbers as Python writes them, so that they come back the same.

    Whole numbers stay whole; None is an empty field, True is true, and anything else is written as its text.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*([_field(v) for v in column] for column in columns.values())))
    write_text(path, buffer.getvalue())


def _field(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, numbers.Real | torch.Tensor) and not isinstance(value, numbers.Integral):
        return repr(float(value))
    return str(value)


def plain_values(value: Any) -> Any:
    """Tensors, arrays and paths as what JSON knows."""
    if isinstance(value, Mapping):
        return {str(k): plain_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(v) for v in value]
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return plain_values(value.tolist())
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return str(value)


def _beside(target: Path) -> Path:
    # the random part keeps threads of one process, and processes of other machines, apart
    return target.parent / (f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _to_disk(path: Path) -> None:
    """Without this a rename can reach the disk before the content: a power failure would leave an empty file."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return  # directories cannot be opened everywhere
    try:
        os.fsync(handle)
    except OSError as error:
        if path.is_file() and error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(handle)
