"""report.html: what a run or an evaluation has found, as one page for people.

A page is one file: text from outside is escaped, pictures are part of it, nothing is loaded or run.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levytorch.files import write_text
from levytorch.runs.command_line import is_clone
from levytorch.runs.resume import without_resume
from levytorch.runs.terminal import fit_words, location, table_of_actions, unreached

if TYPE_CHECKING:
    from levytorch.runs.report import Outcome

NAME = "report.html"
CAPTIONS = {
    "coefficients": "Recovered coefficients, pointwise 95 % bands. Grey: where the data is; the rest is extrapolation.",
    "history": "The fit itself: it is done when the lines stand still.",
    "diagnostics_fit": "Does the law fit? The lines should stay within what chance does (amber).",
    "diagnostics_predictive": "Several steps ahead: the data (dots) should lie within the paths of the fit (bands).",
    "diagnostics_step_size": "Is the step short enough? Both lines should agree within what chance does (amber).",
    "value": "The value function with its band, and its distance to the truth or the reference where there is one.",
    "baselines": "The same beside what needs no model, or both: LSTD, PhiBE, a fit without jumps (95 % bands).",
    "policy_improved": "The policy that was found, over the state; hatched where few pairs speak for it.",
    "selection": "What was held out, under every candidate: the chosen one is marked.",
    "errors": "Relative errors of V, a point per run.",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0.2rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p.told { color: #555; margin: 0.2rem 0; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: 0.25rem 0.8rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #6A3D9A; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
tr + tr td { border-top: 1px solid #eee; }
pre { background: #f5f5f7; padding: 0.6rem 0.8rem; white-space: pre-wrap; border-radius: 6px; font-size: 0.85rem; }
ul.verdicts { list-style: none; padding: 0; } ul.verdicts li { margin: 0.4rem 0; padding: 0.5rem 0.8rem;
  border-left: 5px solid #E69F00; background: #fff8e8; } ul.verdicts li.well { border-color: #009E73;
  background: #eef8f4; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #555; font-size: 0.9rem; }
@media (max-width: 40rem) { figure.wide div { overflow-x: auto; } figure.wide img { max-width: none; width: 46rem; } }
"""
# no scripts, no other files, wherever a text may lead
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass
class Shown:
    """What an evaluation shows beside its files: figures by name, its tables as the terminal has them, scalars for
    TensorBoard (tag, value, step), and the numbers that the page makes tables of.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    scalars: list[tuple[str, float, int]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


def write_run_page(outcome: Outcome, overrides: Sequence[str]) -> Path:
    """The page of a training run, also of one on data with actions."""
    metrics, directory = outcome.metrics, outcome.directory
    if "by_action" in metrics:
        kind = "ControlledRecovery" if metrics["actions"] else "ContinuousRecovery"
        doubts = [(doubt, False) for doubt in metrics["warnings"]] or [("no warning was raised", True)]
        found = [verdicts(doubts), heading("Actions and policies"), code(table_of_actions(metrics))]
        own = paragraph(
            "actions/<number> holds the fit of every action, with its own checks, in the order of the labels."
        )
        further = ["policy=[behaviour,uniform,improved]", "reward=cosine_power"]
        guide = "docs/policy.md explains policies, docs/outputs.md every file here."
    else:
        kind = "Recovery"
        law = f"law {metrics['law']} ({metrics['law_reason']}); " if "law_reason" in metrics else ""
        found = [
            verdicts(_verdicts(metrics)),
            heading("Coefficients at the observed states"),
            _coefficients(metrics),
            *(paragraph(note) for note in (location(metrics), unreached(metrics)) if note is not None),
            paragraph(law + fit_words(metrics)),
            *_laws(metrics),
        ]
        own, further = "", []
        guide = "docs/outputs.md explains every file and number here, docs/diagnostics.md every alarm."
    train, evaluate = _commands()
    repeat = shlex.join([*train, *without_resume(overrides)])
    after = shlex.join([*evaluate, f"run={directory}", *further])
    return _write(
        directory,
        f"levytorch run {directory.name}",
        paragraph(metrics.get("opening", "")),
        heading("Verdict"),
        *found,
        *_pictures(outcome.pictures),
        own,
        heading("Again, and further"),
        code(f"{repeat}\n{after}"),
        code(f"from levytorch import {kind}\nfound = {kind}.load({str(directory)!r})"),
        paragraph(guide),
    )


def write_evaluation_page(out: Path, settings: Mapping[str, Any], shown: Shown, pictures: Mapping[str, bytes]) -> Path:
    """The page of an evaluation."""
    parts = [code("\n".join(shown.told))] if shown.told else []
    if shown.metrics:
        parts += [heading("Groups"), _groups(shown.metrics), heading("Runs"), _runs(shown.metrics)]
    return _write(
        out,
        "levytorch evaluation",
        paragraph(f"reward {settings['reward'].get('name')}, beta {settings['beta']}"),
        *parts,
        *_pictures(pictures),
        heading("Again"),
        code(shlex.join([*_commands()[1], *_overrides()])),
    )


def _commands() -> tuple[list[str], list[str]]:
    if is_clone():
        return ["python", "train.py"], ["python", "evaluate.py"]
    return ["levytorch-train"], ["levytorch-evaluate"]


def _overrides() -> list[str]:
    from hydra.core.hydra_config import HydraConfig

    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def _verdicts(metrics: Mapping[str, Any]) -> list[tuple[str, bool]]:
    named = metrics.get("alarms") or {}
    items = [(f"{name.replace('_', ' ')}: {sentence}", False) for name, sentence in named.items()]
    items += [(doubt, False) for doubt in metrics.get("warnings", []) if doubt not in named.values()]
    if not metrics["converged"]:
        why = f" ({metrics['not_converged']})" if "not_converged" in metrics else ""
        items += [(f"the fit has not converged{why}: raise engine.max_steps, or read its errors with care", False)]
    if not items:
        checked = "diagnosis" in metrics
        items = [("no alarm was raised" if checked else "no warning was raised; the checks were not made", checked)]
    return items + [(line, True) for line in metrics.get("diagnosis", [])]


def _coefficients(metrics: Mapping[str, Any]) -> str:
    rows = []

    def error(std: float | None) -> str:
        told = _told(std, ".3g")
        return told if metrics["converged"] or told == "-" else f"({told})"

    for name, row in (metrics.get("observed") or {}).items():
        rows.append([name, f"{row['mean']:.4g}", error(row.get("std")), _told(row.get("error"), ".2%")])
    for name in ("alpha", "tempering"):
        if metrics.get(name) is not None:
            std = metrics.get(f"{name}_std")
            rows.append([name, f"{metrics[name]:.4g}", "given" if std == 0.0 else error(std), "-"])
    if "error_V" in metrics:
        expected = f"{metrics['std_V']:.2%} of V" if "std_V" in metrics else "-"
        rows.append(["V", "-", expected, f"{metrics['error_V']:.2%}"])
    return html_table(["", "mean", "standard error", "relative L2 error"], rows)


def _laws(metrics: Mapping[str, Any]) -> list[str]:
    """The table of laws, where it was made."""
    if "laws" not in metrics:
        return []
    kind = "held-out log p per pair" if metrics["laws_held_out"] else "log p per pair"
    rows = [
        [
            *(str(law["model"]), f"{law['log_likelihood']:.6g}", _told(law["std"], ".2g")),
            *(_told(law["difference"], ".2g"), _told(law["difference_std"], ".2g")),
            *(f"{law['aic']:.1f}", f"{law['parameters']:.1f}"),
        ]
        for law in metrics["laws"]
    ]
    columns = ["", kind, "standard error", "difference", "standard error", "AIC", "parameters"]
    return [
        heading(f"Laws of a step on the same {metrics['laws_pairs']:,} pairs"),
        html_table(columns, rows),
        paragraph(metrics["laws_sentence"]),
    ]


def _groups(metrics: Mapping[str, Any]) -> str:
    keys = ("relative_l2_mean", "relative_l2_sd", "relative_l2_of_mean", "coverage")
    rows = [
        [label, str(group["runs"]), *(_told(group[key], ".2%") for key in keys)]
        for label, group in metrics["groups"].items()
    ]
    rows += [[name, "", _told(error, ".2%"), "", "", ""] for name, error in metrics["baselines"].items()]
    for name, beside in metrics.get("from_data", {}).items():
        rows.append([name, "", _told(beside["relative_l2"], ".2%"), "", "", _told(beside["coverage"], ".2%")])
    return html_table(["group", "runs", "relative L2 error", "sd", "of the mean", "coverage"], rows)


def _runs(metrics: Mapping[str, Any]) -> str:
    rows = [
        [str(run["path"]), str(run["group"]), _told(run["relative_l2"], ".2%"), "yes" if run["converged"] else "NO"]
        for run in metrics["runs"]
    ]
    return html_table(["run", "group", "relative L2 error", "V converged"], rows)


def _pictures(pictures: Mapping[str, bytes]) -> list[str]:
    """The figures below their heading, where there are some."""
    shown = [picture(png, name, CAPTIONS.get(name, name)) for name, png in pictures.items()]
    return [heading("Figures"), *shown] if shown else []


def _told(value: float | None, form: str) -> str:
    return "-" if value is None or value != value else format(value, form)


# -- pieces of a page -------------------------------------------------------------------------------------------------
def _write(directory: Path, title: str, *parts: str) -> Path:
    return document(directory / NAME, title, *parts)


def document(file: Path, title: str, *parts: str) -> Path:
    """A complete document."""
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"
    )
    write_text(file, text)
    return file


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f'<p class="told">{escape(text)}</p>'


def verdicts(items: Iterable[tuple[str, bool]]) -> str:
    """Sentences, each with whether all is well."""
    rows = [f'<li class="well">{escape(text)}</li>' if well else f"<li>{escape(text)}</li>" for text, well in items]
    return '<ul class="verdicts">\n' + "\n".join(rows) + "\n</ul>" if rows else ""


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{cells}</tr>\n{body}\n</table></div>'


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def picture(png: bytes, name: str, caption: str) -> str:
    content = base64.b64encode(png).decode("ascii")
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # where a PNG file has them
    wide = ' class="wide"' if width > 2 * height else ""
    return (
        f'<figure{wide}><div><img alt="{escape(name)}" src="data:image/png;base64,{content}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
