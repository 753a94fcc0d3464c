"""Threads and shares of the workers; skips that are not allowed; samples of slow tests; counts of inputs tried, summed
over all tests (and all workers), at the end of a run.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests import sampling
from tests.skips import may_skip

# Workers share the cores: with all of them in every worker, threads wait for each other more than they compute. Here,
# before torch is imported; processes that tests start inherit it.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1:
    _CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _CORES // _WORKERS)))


# the same examples every time, unless a sample of its own is asked for
hypothesis.settings.register_profile("levytorch", derandomize=not sampling.SAMPLE)
hypothesis.settings.load_profile("levytorch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=float,
        metavar="SECONDS",
        help="run the tests in an order that depends on LEVYTORCH_SAMPLE, and start none after so many seconds",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile: a file stays on one worker, and so do all files that share runs of the paper's examples."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/paper" if nodeid.startswith("tests/paper/") else super()._split_scope(nodeid)

    return Together(config, log)


def pytest_collection_finish() -> None:
    """Modules and tests stay: nobody needs to look through them for garbage, again and again."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sample") is not None:
        items.sort(key=lambda item: sampling.order(item.nodeid))


_BEGAN = pytest.StashKey[float]()


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """True: the test counts as done, without a report."""
    seconds = item.config.getoption("--sample")
    if seconds is None:
        return None
    began = item.session.stash.setdefault(_BEGAN, time.monotonic())
    return True if time.monotonic() - began > seconds else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # the value that a wrapper returns is its report
    report = yield
    return _judged(report, item.nodeid)  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    return _judged(report, collector.nodeid)  # type: ignore[return-value]


def _judged(report, nodeid: str):
    """A skip that is not on the list of tests/skips.py is a failure."""
    if report.skipped and not hasattr(report, "wasxfail") and not may_skip(nodeid):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{nodeid} must not be skipped unless tests/skips.py lists it, found {why}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name.startswith("inputs") and getattr(report, "when", "") == "call":
                    counts[name] = counts.get(name, 0) + value
    if counts:
        terminalreporter.write_line(f"inputs tried: {sum(counts.values())} ({counts})")
