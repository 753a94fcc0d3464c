"""Files and directories that appear whole or not at all, also when the process is killed or the disk is full."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from levytorch.errors import InputError, OutputError

_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # file systems that have none
_LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  # the names of _beside
_LONGEST_NAME = 255  # bytes, in every common file system


def path_of(path: Any, name: str = "path") -> Path:
    """A path from text or a path; anything else is refused (open(5) would be somebody's socket)."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(
            f"{name} must be the path of a file, found {' '.join(repr(path).split())[:80]}; pass text or a "
            "pathlib.Path."
        )
    if any(len(part.encode(errors="surrogateescape")) > _LONGEST_NAME for part in Path(text).parts):
        raise InputError(
            f"{name} must have names of at most {_LONGEST_NAME} bytes, found {text[:60]!r}...; shorten it."
        )
    return Path(text)


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


def save(content: Any, target: Path) -> None:
    """torch.save, whole or not at all; a full disk is an OutputError (torch's own writer would not say which it is)."""
    import torch

    buffer = io.BytesIO()
    torch.save(content, buffer)
    with replacing(target) as temporary:
        temporary.write_bytes(buffer.getbuffer())


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
        "place, then go on."
    )


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
