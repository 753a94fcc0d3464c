"""How much memory this process may still take, and a refusal before more is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from levytorch.errors import InputError

_SMALL = 1 << 26  # bytes that nobody needs to ask for


def available() -> float:
    """Bytes left: of the machine, of the control group and of the process's own limits; infinite where unknown."""
    status = _fields(Path("/proc/self/status"))
    left = [_fields(Path("/proc/meminfo")).get("MemAvailable", float("inf"))]
    try:
        import resource

        for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY and used in status:
                left.append(soft - status[used])
    except ImportError:  # not on Windows
        pass
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            left.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0.0, min(left))


def require(file: Path, rows: int, columns: int) -> None:
    """Refuse a table that cannot fit: x, dx and dt of every row, and the columns they are made of."""
    needed = 8 * rows * (columns + 2)
    if needed < _SMALL:
        return
    left = available()
    if needed > left:
        raise too_large(file, f"about {_size(needed)} for {rows:,} rows", f"{_size(left)} left")


def physical() -> int:
    """Bytes of the machine's memory; no limit where that cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@contextmanager
def within_memory(file: Path) -> Iterator[None]:
    """An allocation that fails while a file is read, as a sentence with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise too_large(file, f"more for {_size(os.stat(file).st_size)} on disk", "none left") from None


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory could not be had (torch has no type of its own for that)."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def too_large(file: Path, needed: str, found: str) -> InputError:
    return InputError(
        f"{file}: memory must hold the data, {needed}, found {found}; pass on_disk=<directory> (train.py: "
        "data.on_disk=true)."
    )


def _fields(file: Path) -> dict[str, float]:
    """Numbers of a /proc file, in bytes."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): 1024.0 * int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}


def _size(bytes: float) -> str:
    return f"{bytes / 2**30:.1f} GiB" if bytes >= 2**30 else f"{bytes / 2**20:.0f} MiB"
