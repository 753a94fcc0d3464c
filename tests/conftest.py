"""Threads of the workers; counts of inputs tried, summed over all tests (and all workers), at the end of a run."""

from __future__ import annotations

import os

import pytest

# Workers share the cores: with all of them in every worker, threads wait for each other more than they compute. Here,
# before torch is imported; processes that tests start inherit it.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1:
    _CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _CORES // _WORKERS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name.startswith("inputs") and getattr(report, "when", "") == "call":
                    counts[name] = counts.get(name, 0) + value
    if counts:
        terminalreporter.write_line(f"inputs tried: {sum(counts.values())} ({counts})")
