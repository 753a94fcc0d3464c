"""Where files of data are: paths, patterns, directories, lists of them, compressed text, and remote places by fsspec.

`data_files` turns any of these into files that can be read from the local disk. A remote file is copied to a temporary
directory, a compressed one is unpacked there; both are removed when nothing refers to them any more.
"""

from __future__ import annotations

import glob
import gzip
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from levytorch.convert import path_of, shown
from levytorch.errors import InputError

TEXT = (".csv", ".tsv")
ARROW = (".feather", ".arrow")
TABLES = (*TEXT, ".parquet", *ARROW)
COMPRESSED = tuple(f"{suffix}.gz" for suffix in TEXT)
SUFFIXES = (".npz", ".npy", *TABLES, *COMPRESSED)
_MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".parquet": b"PAR1", **dict.fromkeys(ARROW, b"ARROW1")}
_OLD_FEATHER = b"FEA1"
_GZIP = b"\x1f\x8b"
_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class DataFile:
    """A file of data that can be read.

    name: as the caller wrote it, for messages. local: where its bytes are. suffix: of the content, in lower case.
    version: what changes when a remote file does; None for a file on this disk.
    """

    name: str
    local: Path
    suffix: str
    version: str | None = None
    _keep: Any = field(default=None, repr=False)  # the temporary directory, which lives as long as this object

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """Bytes on disk; 0 for what is in memory."""
        return self.local.stat().st_size if self.suffix else 0

    def identity(self) -> dict[str, Any]:
        """What tells this content from that of any other file, and from an earlier one of the same file."""
        status = self.local.stat()
        if self.version is None:
            return {"file": str(self.local.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}
        return {"file": self.name, "size": status.st_size, "changed": self.version}


def data_file(path: Any) -> DataFile:
    """One file: a path on this disk, or a URL that fsspec can open. Its suffix must fit its content."""
    if is_remote(path):
        return _remote(str(path))
    file = path_of(path)
    suffix = suffix_of(file.name)
    _check_suffix(str(file), suffix)
    if not file.is_file():
        raise InputError(f"{file}: a file must exist there, found none; check the path (from {Path.cwd()}).")
    return _readable(str(file), file, suffix)


def data_files(paths: Any) -> list[DataFile]:
    """The files of a path, a pattern such as "tracks/*.csv", a directory, a URL, or a list of any of these."""
    return [data_file(name) for name in file_names(paths)]


def file_names(paths: Any) -> list[str]:
    """The names of all files that a path, a pattern, a directory, a URL or a list of these means, sorted within each.

    Nothing is read or copied. A directory means all files directly in it whose suffix is known.
    """
    if isinstance(paths, list | tuple | set | frozenset):
        names = [name for one in paths for name in file_names(one)]
        if not names:
            raise InputError(f"path must name at least one file, found {shown(paths)}; list the files to read.")
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise InputError(f"path must name each file once, found {name} {times} times; remove the others.")
        return names
    return _remote_names(str(paths)) if is_remote(paths) else _local_names(path_of(paths))


def mark_of(name: str) -> list[Any]:
    """The name, size and time of change (or version) of a file, told without reading it."""
    if is_remote(name):
        system, path = _opened(name)
        with _asking(name):
            return [name, int(system.size(path) or 0), str(system.ukey(path))]
    file = path_of(name)
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"{file}: a file must exist there, found {error.strerror}; check the path.") from None
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def is_many(paths: Any) -> bool:
    """Whether these are, or may be, several files."""
    if isinstance(paths, DataFile):
        return False
    if isinstance(paths, str) and is_remote(paths):
        return bool(_PATTERN & set(paths)) or suffix_of(paths) not in SUFFIXES
    if isinstance(paths, list | tuple | set | frozenset):
        return True
    file = path_of(paths)
    return not file.is_file() and (file.is_dir() or bool(_PATTERN & set(str(file))))


def is_remote(path: Any) -> bool:
    """Whether a path is a URL of some protocol, such as s3://bucket/tracks.csv."""
    return isinstance(path, str) and "://" in path


def suffix_of(name: str) -> str:
    """The suffix that says what a file holds; that of compressed text has two parts."""
    parts = [part.lower() for part in Path(name).suffixes[-2:]]
    both = "".join(parts)
    return both if both in COMPRESSED else (parts or [""])[-1]


def _local_names(path: Path) -> list[str]:
    if path.is_dir():
        found = [entry for entry in path.iterdir() if suffix_of(entry.name) in SUFFIXES and entry.is_file()]
        names = sorted(str(entry) for entry in found if not entry.name.startswith((".", "_")))
        if not names:
            raise InputError(
                f"{path}: a directory must hold files of data ({', '.join(SUFFIXES)}), found none; check the path."
            )
        return names
    if path.exists() or not _PATTERN & set(str(path)):
        return [str(path)]
    names = sorted(name for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not names:
        raise InputError(f"{path}: a file must match this pattern, found none; check it (from {Path.cwd()}).")
    return names


def _remote_names(url: str) -> list[str]:
    if not _PATTERN & set(url) and suffix_of(url) in SUFFIXES:
        return [url]
    system, path = _opened(url)
    with _asking(url):
        if _PATTERN & set(url):
            found = system.glob(path)
        else:
            found = [entry for entry in system.ls(path, detail=False) if suffix_of(str(entry)) in SUFFIXES]
    if not found:
        raise InputError(f"{url}: a file must be there, found none; check the address.")
    return sorted(str(system.unstrip_protocol(name)) for name in found)


def _remote(url: str) -> DataFile:
    """A copy of a remote file."""
    suffix = suffix_of(url)
    _check_suffix(url, suffix)
    system, path = _opened(url)
    keep = tempfile.TemporaryDirectory(prefix="levytorch-")
    copy = Path(keep.name) / f"data{suffix}"
    with _asking(url):
        version = str(system.ukey(path))
        system.get_file(path, str(copy))
    return _readable(url, copy, suffix, version, keep)


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    if "::" in url:
        raise InputError(f"{url}: a path must have one protocol, found a chain of them; name the file itself.")
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{url}: the protocol must be one that fsspec can open here, found that it cannot "
            f"({' '.join(str(error).split())[:120]}); install what it needs, or download the file."
        ) from None
    return system, path


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """An error at a remote location, in one sentence."""
    try:
        yield
    except Exception as error:  # every file system has its own errors
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"{url}: the file must be readable, found {type(error).__name__} ({reason}); check the address and your "
            "access to it."
        ) from None


def _readable(name: str, local: Path, suffix: str, version: str | None = None, keep: Any = None) -> DataFile:
    """The file itself, or its text where it is compressed; content that belies the suffix is refused."""
    if suffix in COMPRESSED:
        plain = suffix.removesuffix(".gz")
        with local.open("rb") as stream:
            if stream.read(2) != _GZIP:
                raise InputError(f"{name} must be a {suffix} file, found other content; correct the suffix.")
        unpacked = tempfile.TemporaryDirectory(prefix="levytorch-")
        text = Path(unpacked.name) / f"data{plain}"
        try:
            with gzip.open(local) as source, text.open("wb") as target:
                _unpack(name, source, target)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(
                f"{name} must be a readable {suffix} file, found a damaged one ({error}); copy or write it again."
            ) from None
        status = local.stat()
        mark = version or f"{status.st_size} {status.st_mtime_ns}"
        return _readable(name, text, plain, mark, unpacked)
    with local.open("rb") as stream:
        head = stream.read(4096)
    if not head:
        raise InputError(f"{name}: the file must not be empty, found 0 bytes; check how it was written.")
    if suffix in ARROW and head.startswith(_OLD_FEATHER):
        raise InputError(f"{name} must be a feather file of version 2, found version 1; write it again.")
    if suffix in _MAGIC:
        if not head.startswith(_MAGIC[suffix]):
            raise InputError(f"{name} must be a {suffix} file, found other content; correct the suffix.")
    elif b"\0" in head or any(head.startswith(magic) for magic in (*_MAGIC.values(), _GZIP)):
        raise InputError(f"{name} must be text, as {suffix} files are, found binary content; correct the suffix.")
    return DataFile(name, local, suffix, version, keep)


def _unpack(name: str, source: BinaryIO | gzip.GzipFile, target: BinaryIO) -> None:
    """Copy as long as there is room: a small file can unpack to one that fills the disk."""
    while part := source.read(1 << 22):
        if shutil.disk_usage(target.name).free < (1 << 28):
            raise InputError(f"{name}: the disk must hold the unpacked text, found no room; unpack it elsewhere.")
        target.write(part)


def _check_suffix(name: str, suffix: str) -> None:
    if suffix not in SUFFIXES:
        raise InputError(
            f"{name}: the suffix must be one of {', '.join(SUFFIXES)}, found {suffix!r}; convert the file."
        )


def short_names(files: Sequence[DataFile]) -> list[str]:
    """What tells files apart in the names of their trajectories: the file name alone where these differ."""
    last = [file.name.rsplit("/", 1)[-1][: -len(suffix_of(file.name))] for file in files]
    return last if len(set(last)) == len(last) else [file.name for file in files]
