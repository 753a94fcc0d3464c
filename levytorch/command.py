"""`levytorch`, the command: `levytorch check file.csv`, `levytorch train ...`, `levytorch evaluate ...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levytorch import startup
from levytorch.errors import LevytorchError, printable

_USAGE = """levytorch check FILE [options]     are the jumps in a file real? A card as text, and as PNG with --png
levytorch train [settings]         fit a model: the same as levytorch-train, see levytorch train --help
levytorch evaluate [settings]      value functions of runs: the same as levytorch-evaluate
levytorch info                     versions, cores, where the docs are"""


def start(arguments: Sequence[str] | None = None) -> None:
    """The command line of this process."""
    if arguments is None:
        startup.prepare_process()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (given[0], given[1:]) if given else ("", [])
    if name == "check":
        check_file(rest)
    elif name in ("train", "evaluate"):
        sys.argv = [f"levytorch {name}", *rest]
        if name == "train":
            from levytorch.train import start as run
        else:
            from levytorch.evaluate import start as run
        run()
    elif name == "info":
        from levytorch.__main__ import report

        print(report())
    else:
        print(_USAGE, file=sys.stdout if name in ("", "-h", "--help") else sys.stderr)
        if name not in ("", "-h", "--help"):
            sys.exit(f"the command must be check, train, evaluate or info, found {printable(name)!r}; use one.")


def check_file(arguments: Sequence[str]) -> None:
    """`levytorch check`."""
    parser = argparse.ArgumentParser("levytorch check", description="Are the jumps in a file real?", allow_abbrev=False)
    parser.add_argument("file", nargs="+", help="a .csv, .csv.gz, .parquet, .feather, .npz or .npy file, or several")
    for name, text in (
        ("value", "column of x"),
        ("time", "column of times: numbers or dates"),
        ("id", "column that identifies trajectories"),
        ("time-unit", "unit of dt that you want: s, min, h, day, ...; needed for dates"),
        ("time-in", "unit of a column of times that holds numbers"),
        ("time-format", "of dates that are not ISO"),
    ):
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument("--dt", type=float, help="time between observations, if there is no column of times")
    parser.add_argument("--max-dt", type=float, help="longer steps are gaps")
    parser.add_argument("--log", action="store_true", help="logarithm of x (prices)")
    parser.add_argument("--drop-missing", action="store_true", help="leave rows without a value out")
    parser.add_argument("--period", type=float, help="period of x, if it is an angle (360 for degrees)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--png", type=Path, help="write the card to this file, too")
    known, unknown = parser.parse_known_args(list(arguments))
    given = vars(known)
    if unknown:
        _refuse_unknown(unknown[0], [f"--{name.replace('_', '-')}" for name in given if name != "file"])
    try:
        _print_card(given)
    except LevytorchError as error:
        from levytorch.runs.words import for_check

        said = for_check(
            str(error), {"value", "time", "id", "time_unit", "time_in", "time_format", "dt", "max_dt", "log"}
        )
        sys.exit(f"{type(error).__name__}: {printable(said)}")


def _refuse_unknown(name: str, flags: Sequence[str]) -> None:
    from levytorch.convert import nearest_names

    meant = nearest_names(name.partition("=")[0], flags)
    remedy = f"did you mean {meant[0]}?" if meant else "levytorch check --help lists the options."
    sys.exit(f"{printable(name)} names no option of levytorch check; {remedy}")


def _print_card(given: dict[str, Any]) -> None:
    given = dict(given)
    files, period, seed, png = (given.pop(name) for name in ("file", "period", "seed", "png"))
    options: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, False)}
    if options.pop("drop_missing", False):
        options["missing"] = "drop"

    from levytorch.data import Trajectories
    from levytorch.diagnostics.jumps_check import check

    card = check(Trajectories.from_file(files[0] if len(files) == 1 else files, **options), period=period, seed=seed)
    print(card)
    if png is not None:
        print(f"written: {card.save(png)}")


if __name__ == "__main__":
    start()
