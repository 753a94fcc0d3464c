"""What a terminal shows of a run, in 80 columns: what is fitted before the fit; the report of the fit and one verdict
per check after it. All numbers are in report.html and metrics.json.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.diagnostics.verdicts import Verdict
from levytorch.errors import printable
from levytorch.runs.words import for_command_line
from levytorch.training.engines.base import engine_facts
from levytorch.training.settings import FitSettings

if TYPE_CHECKING:
    from levytorch.runs.report import Outcome

OPEN_LEVEL = 0.1  # of the size of V: a standard error of its mean above this leaves its level open
WIDTH = 80
_STYLES = {"ok": "bold green", "look": "bold yellow", "bad": "bold red", "-": "dim"}


def opening(data: Transitions | Lattice, settings: FitSettings, config: Mapping[str, Any]) -> str:
    """What is being fitted, and what chose it where the configuration left the choice open: three lines."""
    alpha, tempering = settings.alpha, settings.tempering
    model = [_head(settings), "alpha " + (f"= {alpha.value:g}" if alpha.mode == "fixed" else f"{config['alpha']}")]
    if tempering.active:
        model.append("tempering " + ("learn" if tempering.learned else f"= {tempering.value:g}"))
    engine = engine_facts(settings.engine, settings.engine_reason)
    fit = [f"law {settings.law}", f"engine {engine['engine']}", _tail(settings), f"seed {settings.seed}"]
    lines = (("Data", _pairs(data)), ("Model", "; ".join(model)), ("Fit", "; ".join(fit)))
    return "\n".join(f"{name:<7}{text}" for name, text in lines)


def _pairs(data: Transitions | Lattice) -> str:
    if isinstance(data, Lattice):
        return f"a lattice of {data.n_main:,} pairs"
    if data.uniform_dt:
        dt = f"dt = {float(data.dt[0]):.6g}"
    else:
        dt = f"dt around {float(data.median_dt):.6g} (varies)"
    lost = sum(data.dropped.values())
    many = "trajectory" if data.n_trajectories == 1 else "trajectories"
    pairs = f"{len(data):,} pairs of {data.n_trajectories:,} {many}, {dt}"
    if lost:
        pairs += f" ({lost:,} left out)"
    return pairs


def _head(settings: FitSettings) -> str:
    plain = settings.plain
    if plain is None:
        return type(settings.head).__name__
    name = plain["name"]
    if "n_basis" not in plain:
        return str(name)
    open_ = "n_basis" in settings.left_open
    return f"{name}, " + ("n_basis by cross-validation" if open_ else f"{plain['n_basis']} functions per coefficient")


def _tail(settings: FitSettings) -> str:
    tail = settings.tail
    if tail.method == "none":
        return "tail none"
    thresholds = [
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in (("CT", tail.CT), ("TRT", tail.TRT))
        if value is not None
    ]
    auto = "; CT from a first fit" if tail.CT in (None, "auto") and tail.method == "tcf" else ""
    return f"tail {tail.method} ({', '.join(thresholds) or 'no threshold given'}{auto})"


def closing(outcome: Outcome, width: int = WIDTH, color: bool = False) -> str:
    """The table of the fit, one verdict per check, and V or the policies, for a terminal of that width."""
    parts: list[Any] = [outcome.report.text(doubts=False, words=for_command_line), ""]
    if outcome.verdicts:
        parts += [_checks(outcome.verdicts), ""]
    if (sentence := value_sentence(outcome.metrics)) is not None:
        parts.append(sentence)
    parts += outcome.metrics.get("values", {}).get("text", [])
    return _rendered(parts, width, color)


def _rendered(parts: Sequence[Any], width: int, color: bool) -> str:
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    for part in parts:
        console.print(Text(printable(part)) if isinstance(part, str) else part)
    text = stream.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines())


def _checks(verdicts: Sequence[Verdict]) -> Any:
    """A row per check: its verdict, and a sentence."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in verdicts:
        mark = Text(one.verdict, style=_STYLES.get(one.verdict, ""))
        table.add_row(mark, printable(one.name), Text(printable(one.sentence)))
    return table


def value_sentence(metrics: Mapping[str, Any]) -> str | None:
    """The error of V, or its standard error; level and shape separately if the data do not determine the level."""
    level = metrics.get("level_std_V")
    if level is not None and level > OPEN_LEVEL:
        level_error, shape_error = (
            f" (error {metrics[key]:.2%})" if key in metrics else "" for key in ("level_error_V", "shape_error_V")
        )
        return (
            f"Value function: the data does not determine its level, the standard error of its mean is {level:.0%} of "
            f"its size{level_error}. Its shape, V without its mean, has a standard error of "
            f"{metrics['shape_std_V']:.2%}{shape_error}. A larger beta determines the level better."
        )
    if "error_V" in metrics:
        expected = f" (standard error {metrics['std_V']:.2%})" if "std_V" in metrics else ""
        return f"Value function: the relative L2 error is {metrics['error_V']:.2%}{expected}."
    if level is not None:
        return (
            f"Value function: standard errors relative to the size of V: level {level:.2%}, shape "
            f"{metrics['shape_std_V']:.2%}."
        )
    return None


def in_full(log: logging.Logger, metrics: Mapping[str, Any]) -> None:
    """Alarms with all their numbers: into the log file, not onto the terminal, which has had them in short."""
    sentences = dict.fromkeys([*metrics["warnings"], *metrics.get("alarms", {}).values()])
    _into_file(log, logging.WARNING, sentences)


def show(log: logging.Logger, outcome: Outcome) -> None:
    """The closing table: in colours on a terminal, plain in a log file or a pipe."""
    if not sys.stdout.isatty() or not logging.getLogger().isEnabledFor(logging.INFO):
        log.info(closing(outcome))
        return
    width = max(60, min(100, shutil.get_terminal_size((WIDTH, 24)).columns))
    sys.stdout.write(closing(outcome, width, color="NO_COLOR" not in os.environ) + "\n")
    sys.stdout.flush()
    _into_file(log, logging.INFO, [closing(outcome)])


def _into_file(log: logging.Logger, level: int, texts: Iterable[str]) -> None:
    """Into the log file, not onto the terminal."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            for text in texts:
                handler.handle(log.makeRecord(log.name, level, __file__, 0, text, (), None))
