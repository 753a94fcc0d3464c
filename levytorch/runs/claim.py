"""One process per run directory: an operating system lock, which ends with the process however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from levytorch.atomic import check_place, remove_leftovers, unwritable
from levytorch.errors import ConfigError, LevytorchError, OutputError
from levytorch.ranks import is_first

try:
    import fcntl
except ImportError:  # Windows: no lock, two resumes at once are then the user's affair
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def is_helper_process() -> bool:
    """Whether this is a further process of one distributed run; the first one owns the directory."""
    return not is_first()


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """The directory is this process's until the block ends; refused while another has it."""
    if is_helper_process():
        yield
        return
    check_place(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | _NOT_A_LINK, 0o644)
    except OSError as error:
        raise unwritable(directory, error) from error
    try:
        _lock(handle, directory)
        for part in (".", "checkpoints", "figures", ".hydra"):
            remove_leftovers(directory / part)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, directory: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(handle, 20).decode("ascii", "replace").strip()
        raise OutputError(
            f"{directory} must be used by one run at a time, found that process {owner or 'unknown'} is working in it; "
            "wait for it, or choose another directory."
        ) from None
    except OSError:
        return  # a file system without locks
    with suppress(OSError):  # only a note for the message above, and the disk may be full
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def check_unused(directory: Path) -> None:
    """A new run must not write over an old one."""
    found = [directory / "recovery.pt", *sorted((directory / "checkpoints").glob("*.ckpt"))]
    held = next((path for path in found if path.exists()), None)
    if held is not None:
        raise ConfigError(
            f"a new run needs a directory without results, found {held}; go on there with resume={directory}, or "
            "choose another."
        )


class CheckPlace(Callback):
    """hydra makes the run directory before anything of ours runs: say first, and in one sentence, when it cannot."""

    def on_run_start(self, config: Any, **kwargs: Any) -> None:
        _check(config.hydra.run.dir)

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        _check(config.hydra.sweep.dir)


def _check(directory: str) -> None:
    try:
        check_place(Path(directory))
    except LevytorchError as error:
        # hydra turns exceptions of callbacks into warnings, but not this one
        sys.exit(f"{type(error).__name__}: {error}")
