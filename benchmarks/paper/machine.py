"""What the results were made on: processor, cores, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("levytorch", "torch", "numpy", "scipy", "numba", "lightning", "hydra-core", "polars", "matplotlib")


def machine() -> str:
    """Processor and cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} core{'' if cores == 1 else 's'}, {platform.system()}"


def versions() -> str:
    """Python and the packages that numbers depend on."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout that is not installed
            continue
    return ", ".join(found)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
