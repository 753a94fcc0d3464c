"""Every slow test: one process per test file, to the end whatever fails, and a page of results.

    benchmarks/nightly.sh [--jobs 2] [--again]

What a file gave is kept under outputs/nightly/<commit>/ as soon as it is known, so that an interrupted night goes on
where it stopped. Lines that are not green are explained in benchmarks/results/nightly_remarks.csv (test, remark); the
page shows the remark beside the line, and the exit status is 1 while a line is neither green nor explained.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "results" / "nightly.md"
REMARKS = PAGE.with_name("nightly_remarks.csv")
LIMIT = 4 * 3600.0  # seconds of one file
FAULTS = "10"  # of every kind


@dataclass
class FileResult:
    """What the slow tests of one file gave."""

    file: str
    passed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, str]] = field(default_factory=list)  # test, first line of what went wrong
    counted: list[str] = field(default_factory=list)  # faults survived, inputs tried

    @property
    def tests(self) -> int:
        return self.passed + self.skipped + len(self.failures)


def slow_files(paths: Iterable[str]) -> list[str]:
    """Test files that hold a slow test, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "slow", "-p", "no:cacheprovider", *paths],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    found = sorted({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line})
    if not found:
        raise SystemExit(f"no slow tests were found; pytest said:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def run_file(file: str, directory: Path, limit: float = LIMIT) -> FileResult:
    """The slow tests of one file, in a process of their own, unless their results are there already."""
    name = file.removesuffix(".py").replace("/", ".")
    report, output = directory / f"{name}.xml", directory / f"{name}.txt"
    if not report.exists():
        temporary = report.with_suffix(".part")
        environment = {"LEVYTORCH_FAULTS": FAULTS} | os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", file]
        began, ended = time.monotonic(), ""
        with output.open("w") as stream:
            try:
                subprocess.run(
                    [*command, f"--junitxml={temporary}"],
                    cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, timeout=limit,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                ended = f"did not end within {limit:.0f} s"
        if not temporary.exists():
            ended = ended or f"the process died: {_last_line(output)}"
            result = FileResult(file, seconds=time.monotonic() - began, failures=[(file, ended)])
            return result  # no report is kept: it is tried again next time
        os.replace(temporary, report)
    return read_report(file, report, output)


def read_report(file: str, report: Path, output: Path) -> FileResult:
    """The results in a JUnit file and in what pytest printed."""
    result = FileResult(file)
    for case in ET.parse(report).getroot().iter("testcase"):
        result.seconds += float(case.get("time") or 0.0)
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        if problem is not None:
            told = (problem.get("message") or problem.text or "").strip().splitlines()
            result.failures.append((f"{file}::{case.get('name')}", told[0] if told else "failed"))
        elif any(part.tag == "skipped" for part in case):
            result.skipped += 1
        else:
            result.passed += 1
    text = output.read_text(errors="replace") if output.exists() else ""
    survived = text.partition("faults survived")[2]
    result.counted = re.findall(r"^ *(\d+  [^\n]+)$", survived, re.MULTILINE)
    result.counted += re.findall(r"^inputs tried: \d+", text, re.MULTILINE)
    return result


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "nothing was printed"


def remarks() -> dict[str, str]:
    """Explanations of lines that are not green, by test."""
    if not REMARKS.exists():
        return {}
    with REMARKS.open(newline="") as file:
        return {row["test"]: row["remark"] for row in csv.DictReader(file)}


def page(results: list[FileResult], explained: dict[str, str], facts: dict[str, str]) -> str:
    """One page: totals, a line per file, then every line that is not green with its remark."""
    failures = [failure for result in results for failure in result.failures]
    open_ones = [test for test, _ in failures if test not in explained]
    verdict = "every line is green" if not failures else f"{len(failures)} failed, {len(open_ones)} without a remark"
    lines = ["# Slow tests, run as a whole", "", "Written by `benchmarks/nightly.sh`.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    total = sum(result.tests for result in results)
    passed, skipped = (sum(getattr(r, name) for r in results) for name in ("passed", "skipped"))
    lines += [f"- {total} tests: {passed} passed, {skipped} skipped; **{verdict}**", ""]
    lines += ["| file | passed | failed | skipped | seconds |", "|---|---|---|---|---|"]
    lines += [f"| {r.file} | {r.passed} | {len(r.failures)} | {r.skipped} | {r.seconds:.0f} |" for r in results]
    if failures:
        lines += ["", "## Not green", "", "| test | what happened | remark |", "|---|---|---|"]
        lines += [f"| {_cell(test)} | {_cell(told)} | {_cell(explained.get(test, ''))} |" for test, told in failures]
    counted = [(result.file, line) for result in results for line in result.counted]
    if counted:
        lines += ["", "## Faults survived and inputs tried", ""]
        lines += [f"- {file}: {line}" for file, line in counted]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


def facts_of(commit: str) -> dict[str, str]:
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return {"commit": commit, "date": time.strftime("%Y-%m-%d"), "machine": f"{os.cpu_count()} cores, {versions}"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["tests"], help="tests to take the slow ones of")
    parser.add_argument("--jobs", type=int, default=2, help="files at the same time")
    parser.add_argument("--again", action="store_true", help="also files that this commit has been through")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--keep", type=Path, default=ROOT / "outputs" / "nightly", help="where results are kept")
    options = parser.parse_args(arguments)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    directory = options.keep / (commit or "unknown")
    directory.mkdir(parents=True, exist_ok=True)
    if options.again:
        for report in directory.glob("*.xml"):
            report.unlink()
    files, explained, results = slow_files(options.paths), remarks(), {}
    with ThreadPoolExecutor(options.jobs) as workers:
        for result in workers.map(lambda file: run_file(file, directory), files):
            results[result.file] = result
            told = f"{result.passed} passed, {len(result.failures)} failed, {result.skipped} skipped"
            print(f"{time.strftime('%H:%M')} {result.file}: {told}, {result.seconds:.0f} s", flush=True)
            options.page.parent.mkdir(parents=True, exist_ok=True)
            options.page.write_text(page(list(results.values()), explained, facts_of(commit)))
    failures = [test for result in results.values() for test, _ in result.failures]
    print(f"{options.page}: {len(failures)} failed, {sum(test not in explained for test in failures)} without a remark")
    return int(any(test not in explained for test in failures))


if __name__ == "__main__":
    sys.exit(main())
