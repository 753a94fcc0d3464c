"""A run directory as a place to write: claimed by one process, never written over, put in place when it is complete.

The claim is an operating system lock, which ends with the process however that ends. Every file in it is written by
`levytorch.files`, complete or absent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from levytorch.errors import ConfigError, InputError, LevytorchError, OutputError
from levytorch.files import check_place, move_directory, remove_leftovers, unwritable, write_json, write_text
from levytorch.ranks import is_first
from levytorch.runs.reading import DEFAULTS, MARKER, RECORD

try:
    import fcntl
except ImportError:  # Windows: no lock, two resumes at once are then the user's affair
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_GOES_ON = ("checkpoints/*.ckpt", "actions/*/checkpoints/*.ckpt", "files/*")  # what a resumed run begins with
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """The directory is this process's until the block ends; refused while another has it.

    Of several processes of one run the first owns it.
    """
    if not is_first():
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
        for place in (directory, *(directory / "actions").glob("*")):
            for part in (".", "checkpoints", "figures", ".hydra", "values"):
                remove_leftovers(place / part)
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
    places = [directory, *sorted((directory / "actions").glob("*"))]
    found = [
        directory / "recovery.pt",
        *(file for place in places for file in sorted(place.glob("checkpoints/*.ckpt"))),
    ]
    held = next((path for path in found if path.exists()), None)
    if held is not None:
        raise ConfigError(
            f"a new run must have a directory without results, found {held}; continue there with resume={directory}, "
            "or choose another."
        )


def remove_unused(directory: Path, *, resumed: bool) -> bool:
    """Remove the directory of a run that was refused before it had a result, with what it wrote about itself.

    Anything else in it stays, and so does the directory then. What a resumed run finds is another run's. Where there
    are checkpoints, or lattices of files, everything stays, and True says that the run can be gone on with.
    """
    goes_on = any(any(directory.glob(pattern)) for pattern in _GOES_ON)
    if resumed or goes_on or not is_first():
        return goes_on
    for name in (LOCK, "train.log", RECORD, *(f".hydra/{part}.yaml" for part in ("config", "hydra", "overrides"))):
        with suppress(OSError):
            (directory / name).unlink()
    with suppress(OSError):
        (directory / ".hydra").rmdir()
    here = Path.cwd()
    for place in (directory, *(one for one in directory.resolve().parents if here in one.parents)):
        try:
            place.rmdir()  # which an empty one alone lets happen
        except OSError:
            break
    return False


def write_record(directory: Path, config: Any, overrides: Sequence[str], *, new: bool) -> None:
    """What a training run was started with: run.json for going on, .hydra/ for reading. Each complete or absent."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra = OmegaConf.masked_copy(HydraConfig.instance().cfg, ["hydra"])
    for name, content in (("config", config), ("hydra", hydra), ("overrides", OmegaConf.create(list(overrides)))):
        write_text(directory / ".hydra" / f"{name}.yaml", OmegaConf.to_yaml(content))
    if new:
        write_json(directory / RECORD, {"overrides": list(overrides), "defaults": DEFAULTS})


def check_output(out: str | Path) -> Path:
    """The directory asked for, which must be empty or absent: earlier results are never written over."""
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"out={target} must be a new or empty directory, found something in it; choose another name.")
    return target


def planned_output(out: str | Path | None) -> Path:
    """Where the results of an evaluation go: `out`, or outputs/<date>/<time>-evaluation. Nothing is made yet."""
    if out is not None:
        target = check_output(out)
    else:
        now = datetime.now()
        target = Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-evaluation"
    check_place(target)
    return target


def publish(written: Path, target: Path) -> Path:
    """Put a complete directory in its place, or beside what another evaluation has put there in the meantime."""
    for number in range(1000):
        place = target.with_name(target.name + (f"-{number}" if number else ""))
        try:
            move_directory(written, place)
        except FileExistsError:
            continue
        return place
    raise InputError(f"there must be a free name beside {target}, found a thousand in use; give out=.")


def write_marker(out: Path, settings: Mapping[str, Any]) -> None:
    """The resolved settings, first of all files: it also tells that this directory is an evaluation."""
    import yaml  # type: ignore[import-untyped]

    (out / MARKER).write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")


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
