"""One file per value function: the fields of its dataclass, plain tensors and numbers, read without executing any."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from levytorch import files
from levytorch.errors import InputError
from levytorch.files import load_tensors, path_of

T = TypeVar("T")


def save(value: Any, mark: str, path: str | os.PathLike[str]) -> Path:
    """Write the fields; an earlier file is replaced once the new one is complete. `mark` says what is inside."""
    target = path_of(path)
    files.save({"format": mark, **{f.name: getattr(value, f.name) for f in fields(value)}}, target)
    return target


def load(kind: type[T], mark: str, path: str | os.PathLike[str], sound: Callable[[Mapping[str, Any]], bool]) -> T:
    """What `save` wrote, if it has the mark, all fields, and is `sound`."""
    target = path_of(path)
    if not target.is_file():
        raise InputError(f"A saved value function was expected at {target}, found no such file; check the path.")
    try:
        content: Any = load_tensors(target)
    except Exception:  # pickle, zip, torch and I/O errors of foreign files have no common base
        content = None
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if (
        not isinstance(content, dict)
        or content.pop("format", None) != mark
        or set(content) != names
        or not sound(content)
    ):
        raise InputError(
            f"{target} must be a value function saved by levytorch, but is not; give a file of {kind.__name__}.save."
        )
    return kind(**content)
