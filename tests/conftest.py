"""Counts of inputs tried, summed over all tests (and all xdist workers), at the end of a run."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name.startswith("inputs") and getattr(report, "when", "") == "call":
                    counts[name] = counts.get(name, 0) + value
    if counts:
        terminalreporter.write_line(f"inputs tried: {sum(counts.values())} ({counts})")
