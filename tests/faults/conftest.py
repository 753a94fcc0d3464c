"""The campaigns say at the end how many faults of each kind were survived."""

from tests.faults.processes import SURVIVED


def pytest_terminal_summary(terminalreporter):
    if SURVIVED:
        terminalreporter.section("faults survived")
        for kind, count in sorted(SURVIVED.items()):
            terminalreporter.write_line(f"{count:5d}  {kind}")
