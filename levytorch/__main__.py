"""`python -m levytorch`: versions, cores, whether the kernels are compiled, where the docs are."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import levytorch
from levytorch.working_directory import leave_import_path


def report() -> str:
    """What to say of this installation, a line each."""
    here = Path(levytorch.__file__).parent
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        f"levytorch {levytorch.__version__}    {here}",
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores} cores",
        ", ".join(f"{name} {_version(name)}" for name in _dependencies()),
        f"kernels: {kernels()}",
        f"docs: {_docs(here)}",
        "commands: levytorch-train --help, levytorch-evaluate --help (in a clone: python train.py, python evaluate.py)",
    ]
    return "\n".join(lines)


def kernels() -> str:
    """Whether the compiled kernels of this processor wait in the cache."""
    from levytorch.law import compiled, step_kernels

    folder = Path(step_kernels.table_step.stats.cache_path)
    if not any(folder.glob(f"*{compiled.processor()}*.nbi")):
        return "not compiled yet; the first fit compiles them, a minute or so, and keeps them"
    return f"compiled for {compiled.processor()}"


def _dependencies() -> list[str]:
    try:
        wanted = [line for line in requires("levytorch") or [] if "extra ==" not in line]
    except PackageNotFoundError:  # a clone that was not installed
        wanted = ["torch", "numpy", "scipy", "numba", "lightning", "hydra-core", "tensorboard", "matplotlib", "polars"]
    return [re.match(r"[\w-]+", line)[0] for line in wanted]  # type: ignore[index]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _docs(here: Path) -> str:
    found = next((place for place in (here / "docs", here.parent / "docs") if place.is_dir()), None)
    return "not installed" if found is None else f"{found}{os.sep}quickstart.md and other pages"


if __name__ == "__main__":
    leave_import_path()
    print(report())
