"""What a terminal shows of a run, in 80 columns: what is fitted before the fit; the coefficients and one verdict per
check after it. All numbers are in report.html and metrics.json.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.diagnostics.verdicts import plain_sentence
from levytorch.errors import printable
from levytorch.runs.words import for_command_line
from levytorch.training.engines.base import engine_facts
from levytorch.training.fit_report import LAW_WORDS, LOCATION
from levytorch.training.settings import FitSettings

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


def location(metrics: Mapping[str, Any]) -> str | None:
    """What has to be said of b where steps have no mean."""
    alpha = metrics.get("alpha")
    return (
        for_command_line(LOCATION) if metrics.get("tempering") is None and alpha is not None and alpha <= 0.5 else None
    )


def unreached(metrics: Mapping[str, Any]) -> str | None:
    """What has to be said of standard errors where a fit has not converged, and why it has not."""
    if metrics["converged"]:
        return None
    why = f": {metrics['not_converged']}" if "not_converged" in metrics else ""
    return f"errors in brackets are those of a maximum that was not reached{why}"


def _error(std: float | None, reached: bool) -> str:
    """A standard error; in brackets where it is that of a maximum that was not reached."""
    if std is None:
        return "-"
    return f"{std:.4g}" if reached else f"({std:.4g})"


def fit_words(metrics: Mapping[str, Any]) -> str:
    """What the fit took, and what it came to; every action of several has a TCF of its own."""
    TCF = "" if isinstance(metrics["tcf"], list) else f"TCF {metrics['tcf']:.4g}, "
    return (
        f"engine {metrics['engine']}, {metrics['steps']} steps in {metrics['seconds']:.1f} s, "
        f"{'converged' if metrics['converged'] else 'NOT converged'}; {metrics['n_main']} pairs, "
        f"tail {metrics['tail_method']}, {TCF}"
        f"log-likelihood per pair {metrics['log_likelihood'] / metrics['n_main']:.6g}"
    )


def closing(metrics: Mapping[str, Any], width: int = WIDTH, color: bool = False) -> str:
    """The coefficients at the observed states, one verdict per check, and V, for a terminal of that width."""
    if "by_action" in metrics:
        return table_of_actions(metrics)
    parts: list[Any] = [_coefficients(metrics), ""]
    if "law" in metrics:
        parts.append(f"Likelihood: {law_sentence(metrics)}")
    parts += [note for note in (location(metrics), unreached(metrics)) if note is not None]
    if left_out := {reason: n for reason, n in (metrics.get("left_out") or {}).items() if n}:
        parts.append("Pairs left out: " + ", ".join(f"{n:,} {reason}" for reason, n in left_out.items()) + ".")
    parts += ["", _checks(metrics.get("verdicts", []))]
    if (sentence := value_sentence(metrics)) is not None:
        parts += ["", sentence]
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


def _coefficients(metrics: Mapping[str, Any]) -> Any:
    """A table of means over the observed states, standard errors, and errors where the truth is known."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    observed, reached = metrics.get("observed") or {}, metrics["converged"]
    known = any("error" in row for row in observed.values())
    table.add_column("")
    for head in ("mean", "std error", *(["error (L2)"] if known else []), ""):
        table.add_column(head, justify="left" if head == "" else "right")

    def add(name: str, mean: float, std: float | None, error: float | None = None, note: str = "") -> None:
        cells = [name, f"{mean:.4g}", _error(std, reached), *(["-" if error is None else f"{error:.2%}"] * known), note]
        table.add_row(*(printable(cell) for cell in cells))

    for name, row in observed.items():
        first = "over the observed states" if name == next(iter(observed)) else ""
        add(name, row["mean"], row.get("std"), row.get("error"), first)
    if metrics.get("alpha") is not None:
        error = metrics.get("alpha_std")
        add("alpha", metrics["alpha"], error or None, note="given" if error == 0.0 else "")
    if metrics.get("tempering") is not None:
        bound = ""
        if not metrics.get("tempering_told_from_zero", True):
            bound = f"not told from 0; at most {metrics['tempering_upper']:.3g} (95 %)"
        add("lam", metrics["tempering"], metrics.get("tempering_std") or None, note=bound)
    if metrics.get("tail_method") == "tcf":
        table.add_row("TCF", f"{metrics['tcf']:.4g}", *([""] * (2 + known)))
    return table


def _checks(verdicts: Sequence[Mapping[str, str]]) -> Any:
    """A row per check: its verdict, and a sentence."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in verdicts:
        mark = Text(row["verdict"], style=_STYLES.get(row["verdict"], ""))
        table.add_row(mark, printable(row["name"]), Text(printable(row["sentence"])))
    return table


def law_sentence(metrics: Mapping[str, Any]) -> str:
    """Which law of a step the fit ended under, and why."""
    words = LAW_WORDS.get(str(metrics.get("law")), str(metrics.get("law")))
    reason = str(metrics.get("law_reason", ""))
    if refused := re.match(r"the exact law must (.+?), found ", reason):
        return f"{words}; the exact law is not available, because it must {refused[1]}."
    short = plain_sentence(re.sub(r"^available[;,]? *(and )?", "", reason)).rstrip(".") if reason else ""
    return f"{words} ({short[:1].lower()}{short[1:]})." if short else f"{words}."


def value_sentence(metrics: Mapping[str, Any]) -> str | None:
    """How well V is known; where the data leaves its level open, level and shape apart."""
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
        return f"Value function: its level is known to {level:.2%}, its shape to {metrics['shape_std_V']:.2%}."
    return None


def table_of_actions(metrics: Mapping[str, Any]) -> str:
    """The same for a run on data with actions: a row per action, then the policies."""
    known = any("error" in row["b"] for row in metrics["by_action"].values())
    names, reached = ("b", "D_o", "D_f"), metrics["converged"]
    rows = [
        [_number(row[name].get(key), key == "mean" or reached) for name in names for key in ("mean", "std")]
        for row in metrics["by_action"].values()
    ]
    widths = [2 + max(8, *(len(cell) for cell in column)) for column in zip(*rows)]
    heads = [text for name in names for text in (name, "+-")]
    lines = [f"{'action':>10}{'pairs':>12}" + "".join(f"{text:>{width}}" for text, width in zip(heads, widths))]
    lines[0] += f"{'rel. L2 errors':>26}" if known else ""
    for (label, row), own in zip(metrics["by_action"].items(), rows):
        cells = "".join(f"{cell:>{width}}" for cell, width in zip(own, widths))
        errors = ", ".join(f"{row[name]['error']:.1%}" for name in names) if known else ""
        lines.append(f"{label[:10]:>10}{row.get('pairs', ''):>12}{cells}{errors:>26}")
    lines.append(f"alpha {metrics['alpha']:.4g}{_rate(metrics)}; means over the observed states")
    if "shared/chi2" in metrics:
        always = ["alpha", "tempering"] if "tempering_z" in metrics else ["alpha"]
        lines.append(
            f"shared {', '.join([*always, *metrics['shared']])}: chi squared {metrics['shared/chi2']:.1f} with "
            f"{metrics['shared/freedom']} degrees of freedom"
        )
    if (note := unreached(metrics)) is not None:
        lines.append(note)
    lines.append(fit_words(metrics))
    return "\n".join([*lines, *metrics.get("values", {}).get("text", [])])


def _rate(metrics: Mapping[str, Any]) -> str:
    """The tempering of all actions, where there is one."""
    if metrics.get("tempering") is None:
        return ""
    if not metrics.get("tempering_told_from_zero", True):
        return f", lam {metrics['tempering']:.4g} (not told from 0; at most {metrics['tempering_upper']:.3g})"
    error = metrics.get("tempering_std")
    return f", lam {metrics['tempering']:.4g}" + (f" +- {error:.2g}" if error else "")


def _number(value: Any, reached: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return _error(value, reached)
    told = "(" + ", ".join(f"{v:.2g}" for v in value) + ")"
    return told if reached else f"({told})"


def in_full(log: logging.Logger, metrics: Mapping[str, Any]) -> None:
    """Alarms with all their numbers: into the log file, not onto the terminal, which has had them in short."""
    sentences = dict.fromkeys([*metrics["warnings"], *metrics.get("alarms", {}).values()])
    _into_file(log, logging.WARNING, sentences)


def show(log: logging.Logger, metrics: Mapping[str, Any]) -> None:
    """The closing table: in colours on a terminal, plain in a log file or a pipe."""
    if not sys.stdout.isatty() or not logging.getLogger().isEnabledFor(logging.INFO):
        log.info(closing(metrics))
        return
    width = max(60, min(100, shutil.get_terminal_size((WIDTH, 24)).columns))
    sys.stdout.write(closing(metrics, width, color="NO_COLOR" not in os.environ) + "\n")
    sys.stdout.flush()
    _into_file(log, logging.INFO, [closing(metrics)])


def _into_file(log: logging.Logger, level: int, texts: Iterable[str]) -> None:
    """Into the log file, not onto the terminal."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            for text in texts:
                handler.handle(log.makeRecord(log.name, level, __file__, 0, text, (), None))
