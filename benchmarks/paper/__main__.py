"""Figures, tables and the results page out of run directories, without running anything again.

    python -m benchmarks.paper figure=comparison runs='multirun/censored_variable*' out=figures
    python -m benchmarks.paper tables runs='multirun/censored_variable*' out=tables
    python -m benchmarks.paper report runs=multirun/censored_variable out=report      figures and tables
    python -m benchmarks.paper page runs=multirun out=docs                            docs/results.md
    python -m benchmarks.paper literal                  Algorithm B.1 on unbiased data -> benchmarks/results
    python -m benchmarks.paper rates                    error of V against that of coefficients -> multirun/rate_study
    python -m benchmarks.paper contraction              how fast the TCF converges     -> benchmarks/results

figure: a name, the paper's number, or all. runs: a directory (searched to any depth) or a glob, several with commas.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from levytorch.convert import known_keys
from levytorch.errors import ConfigError, LevytorchError

_KEYS = ("figure", "runs", "out", "replicas", "trajectories", "steps", "trials", "modes")
_STUDIES = ("literal", "contraction", "rates")  # what computes something, and takes no runs
_COMMANDS = ("figure", "tables", "report", "page", *_STUDIES)


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The command and its key=value settings."""
    words = [a for a in arguments if "=" not in a]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    known_keys("settings", given, _KEYS, ConfigError)
    if not words and "figure" in given:
        words = ["figure"]
    if len(words) != 1 or words[0] not in _COMMANDS:
        raise ConfigError(
            f"the command must be one of {', '.join(_COMMANDS)}, found {' '.join(words) or 'none'}; give one."
        )
    needed = () if words[0] in _STUDIES else ("runs", "figure") if words[0] == "figure" else ("runs",)
    missing = [key for key in needed if key not in given]
    if missing:
        raise ConfigError(f"{words[0]} needs {missing[0]}=..., found none; give it.")
    return words[0], given


def main(arguments: Sequence[str]) -> None:
    """What the command line asks for."""
    if not arguments or arguments[0] in ("help", "-h", "--help"):
        print(__doc__)
        return
    from benchmarks.paper import report
    from benchmarks.paper.collect import collect
    from benchmarks.paper.figures import FIGURES, figure
    from benchmarks.paper.page import write_page

    command, given = parse(arguments)
    if command in _STUDIES:
        print(f"written: {_study(command, given)}")
        return
    sources = given["runs"].split(",")
    out = Path(given.get("out", "docs" if command == "page" else "."))
    if command == "page":
        print(f"written: {write_page([Path(s) for s in sources], out)}")
    elif command == "figure":
        name = given["figure"]
        entries = FIGURES if name == "all" else {name: figure(name)}
        written = report.write_figures(collect(sources), entries, out)
        print("written: " + (", ".join(map(str, written)) or "nothing"))
    else:
        write = report.write_tables if command == "tables" else report.write_report
        print(write(collect(sources), out))


def _study(command: str, given: dict[str, str]) -> Path:
    from benchmarks.paper import contraction, literal, rates

    out = {"out": Path(given["out"])} if "out" in given else {}
    if command == "contraction":
        return contraction.study(**out)
    if command == "rates":
        options = {"n_trials": int(given.get("trials", 10_000)), "n_modes": int(given.get("modes", 64))}
        return rates.study(out.get("out", Path("multirun/rate_study")), **options)
    numbers = {key: int(given[key]) for key in ("trajectories", "steps") if key in given}
    return literal.study(int(given.get("replicas", 12)), **numbers, **out)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    try:
        main(sys.argv[1:])
    except LevytorchError as error:
        sys.exit(f"{type(error).__name__}: {error}")
