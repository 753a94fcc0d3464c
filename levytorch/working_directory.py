"""Imports that ignore what lies in the current directory, which may be a run directory from someone else.

numba reads `.numba_config.yaml` there, and its `cache_dir` names pickled code to load; matplotlib reads `matplotlibrc`;
`python -m` puts the directory first on sys.path, where hydra looks for plugins to import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMBA_SETTINGS, MATPLOTLIB_SETTINGS = ".numba_config.yaml", "matplotlibrc"
_PACKAGE = Path(__file__).parent


@contextmanager
def ignoring(*names: str) -> Iterator[None]:
    """Around the import of a library that would read one of these files: if there is one, another directory is the
    current one meanwhile.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it has been removed, so nothing can be read from it
        here = None
    if here is None or not any(os.path.lexists(name) for name in names):
        yield
        return
    os.chdir(_PACKAGE)
    try:
        yield
    finally:
        os.chdir(here)


def leave_import_path() -> None:
    """Take the current directory off sys.path if only `python -m` has put it there."""
    main = sys.modules["__main__"]
    started_by_name = getattr(main, "__spec__", None) is not None
    if started_by_name and sys.path and not sys.flags.safe_path and Path(sys.path[0] or ".") != _PACKAGE.parent:
        del sys.path[0]
