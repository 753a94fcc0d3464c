"""What a terminal shows of a run: a line before the fit, the table after it, and the alarms, one line each."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.training.engines.base import engine_facts
from levytorch.training.settings import FitSettings

OPEN_LEVEL = 0.1  # of the size of V: a standard error of its mean above this leaves its level open
LONGEST = 140  # letters of an alarm on a line


def opening(data: Transitions | Lattice, settings: FitSettings, config: Mapping[str, Any]) -> str:
    """What is being fitted, and what chose it where the configuration left the choice open."""
    engine = "engine {engine} ({engine_reason})".format(**engine_facts(settings.engine, settings.engine_reason))
    parts = [f"law {settings.law}", _head(settings), engine, _tail(settings)]
    alpha = settings.alpha
    parts.append("alpha " + (f"= {alpha.value:g}" if alpha.mode == "fixed" else f"{config['alpha']}"))
    if settings.tempering.active:
        parts.append("tempering " + ("learn" if settings.tempering.learned else f"= {settings.tempering.value:g}"))
    return f"fitting {_pairs(data)}: " + "; ".join(parts)


def _pairs(data: Transitions | Lattice) -> str:
    if isinstance(data, Lattice):
        return f"a lattice of {data.n_main:,} pairs"
    if data.uniform_dt:
        dt = f"dt = {float(data.dt[0]):.6g}"
    else:
        dt = f"dt around {float(data.median_dt):.6g} (varies)"
    lost = sum(data.dropped.values())
    many = "trajectory" if data.n_trajectories == 1 else "trajectories"
    pairs = f"{len(data):,} pairs of {data.n_trajectories:,} {many} at {dt}"
    if lost:
        pairs += f" ({lost:,} left out)"
    return pairs


def _head(settings: FitSettings) -> str:
    plain = settings.plain
    if plain is None:
        return f"head {type(settings.head).__name__}"
    name = plain["name"]
    if "n_basis" not in plain:
        return f"head {name}"
    open_ = "n_basis" in settings.left_open
    return f"head {name}, " + ("n_basis by cross-validation" if open_ else f"{plain['n_basis']} functions")


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


LOCATION = (
    "2 alpha <= 1 without tempering: steps have no mean, and b is a location (where their center goes), not a mean; "
    "tempering=learn gives jumps an end and b its meaning"
)


def location(metrics: Mapping[str, Any]) -> str | None:
    """What has to be said of b where steps have no mean."""
    alpha = metrics.get("alpha")
    return LOCATION if metrics.get("tempering") is None and alpha is not None and alpha <= 0.5 else None


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


def coefficient_table(metrics: Mapping[str, Any]) -> str:
    """The coefficients at the observed states, what the fit took, what the checks say, and V."""
    if "by_action" in metrics:
        return table_of_actions(metrics)
    observed = metrics.get("observed") or {}
    known = any("error" in row for row in observed.values())
    head = f"{'':6}{'mean':>12}{'std error':>12}" + (f"{'rel. L2 error':>16}" if known else "")
    lines = [f"{head}    averaged over the observed states"]
    reached = metrics["converged"]
    for name, row in observed.items():
        cells = f"{name:6}{row['mean']:>12.4g}{_error(row.get('std'), reached):>12}"
        lines.append(cells + (f"{row['error']:>16.2%}" if "error" in row else ""))
    if metrics.get("alpha") is not None:
        error = metrics.get("alpha_std")
        given = "    given" if error == 0.0 else ""
        lines.append(f"{'alpha':6}{metrics['alpha']:>12.4g}{_error(error or None, reached):>12}{given}")
    if metrics.get("tempering") is not None:
        error, bound = metrics.get("tempering_std"), ""
        if not metrics.get("tempering_told_from_zero", True):
            bound = f"    not told from 0; at most {metrics['tempering_upper']:.3g} (95 %)"
        lines.append(f"{'lam':6}{metrics['tempering']:>12.4g}{_error(error or None, reached):>12}{bound}")
    elif (note := location(metrics)) is not None:
        lines.append(note)
    if (note := unreached(metrics)) is not None:
        lines.append(note)
    lines.append(fit_words(metrics))
    if metrics.get("left_out"):
        lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in metrics["left_out"].items()))
    lines += metrics.get("diagnosis", [])
    if (sentence := value_sentence(metrics)) is not None:
        lines.append(sentence)
    return "\n".join(lines)


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


def alarms(metrics: Mapping[str, Any]) -> list[str]:
    """Alarms and warnings, a short line each, and where they are explained."""
    named = {sentence: name.replace("_", " ") for name, sentence in (metrics.get("alarms") or {}).items()}
    sentences = [*named, *(doubt for doubt in metrics.get("warnings", []) if doubt not in named)]
    if not sentences:
        return []
    count = f"{len(sentences)} alarm{'s' if len(sentences) > 1 else ''}"
    lines = [f"  {named.get(sentence, 'warning')}: {short(sentence)}" for sentence in sentences]
    return [f"{count} (in full in report.html and train.log, explained in docs/diagnostics.md):", *lines]


def short(sentence: str) -> str:
    """What is wrong and what to do about it, on a line: without what stands in brackets or between the two."""
    text = " ".join(sentence.split())
    while (bare := re.sub(r" ?\([^()]*\)", "", text)) != text:
        text = bare
    what, *rest = text.split("; ")
    told = "; ".join([what, *rest[-1:]])
    if len(told) > LONGEST:
        told = "; ".join([what.split(": ")[0], *rest[-1:]]) if rest else what.split(": ")[0] + "."
    return told if len(told) <= LONGEST else told[: LONGEST - 1].rsplit(" ", 1)[0] + " …"


def in_full(log: logging.Logger, metrics: Mapping[str, Any]) -> None:
    """Alarms with all their numbers: into the log file, not onto the terminal, which has had them in short."""
    sentences = dict.fromkeys([*metrics["warnings"], *metrics.get("alarms", {}).values()])
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            for sentence in sentences:
                handler.handle(log.makeRecord(log.name, logging.WARNING, __file__, 0, sentence, (), None))
