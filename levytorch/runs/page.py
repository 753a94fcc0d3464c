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

from levytorch.diagnostics.verdicts import BAD, LOOK, OK, Verdict
from levytorch.files import write_text
from levytorch.runs.command_line import is_clone
from levytorch.runs.resume import without_resume
from levytorch.runs.terminal import value_sentence
from levytorch.runs.words import for_command_line
from levytorch.training.fit_report import table_rows

if TYPE_CHECKING:
    from levytorch.runs.report import Outcome

NAME = "report.html"
_CLASSES = {verdict: verdict for verdict in (OK, LOOK, BAD)}
CAPTIONS = {
    "trajectories": "Some of the trajectories. Dots mark steps of more than eight times the usual size, mostly jumps.",
    "coefficients": "Recovered coefficients with pointwise 95 % bands. Grey: where data was observed; elsewhere the "
    "curves are extrapolation.",
    "history": "Progress of the fit. It has finished when the lines are flat.",
    "diagnostics_fit": "Does the model fit? If it does, 95 % of every line lies within the amber band.",
    "diagnostics_predictive": "Predictions over several steps: data (dots) should lie within the bands of simulated "
    "paths.",
    "diagnostics_step_size": "Is the time step short enough? Fits to every observation and to every second one should "
    "agree within the amber bands.",
    "value": "The value function with its 95 % band, and its difference from the truth where that is known.",
    "baselines": "The value function beside other estimates: LSTD, PhiBE and a fit without jumps (95 % bands).",
    "policy_improved": "The improved policy as a function of the state; hatched where few pairs support it.",
    "selection": "Held-out log-likelihood of every candidate; the chosen one is marked.",
    "errors": "Relative errors of V, one point per run.",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 66rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0.2rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p.told { color: #555; margin: 0.2rem 0; white-space: pre-line; }
table { border-collapse: collapse; overflow-wrap: normal; } th, td { padding: 0.25rem 0.8rem; text-align: right; }
th { border-bottom: 2px solid #6A3D9A; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
tr + tr td { border-top: 1px solid #eee; }
table { margin: 0.8rem 0; } caption { text-align: left; color: #555; font-size: 0.9rem; padding-bottom: 0.3rem; }
table.facts th, table.facts td { border: 0; text-align: left; padding: 0.1rem 1.6rem 0.1rem 0; }
table.facts th { color: #555; font-weight: 400; } th[colspan] { text-align: left; border: 0; padding-top: 0.8rem; }
pre { background: #f5f5f7; padding: 0.6rem 0.8rem; white-space: pre-wrap; border-radius: 6px; font-size: 0.85rem; }
details { margin: 0.3rem 0; } summary { cursor: pointer; } details p, details pre { margin: 0.3rem 0 0.6rem 1.1rem; }
ul.verdicts { list-style: none; padding: 0; margin: 0.5rem 0; }
ul.verdicts li { margin: 0.35rem 0; padding: 0.35rem 0.7rem; border-left: 5px solid #888; background: #f5f5f7; }
ul.verdicts li.ok { border-color: #009E73; background: #eef8f4; }
ul.verdicts li.look { border-color: #E69F00; background: #fff8e8; }
ul.verdicts li.bad { border-color: #C62828; background: #fdeeee; }
ul.verdicts b { display: inline-block; min-width: 2.6rem; text-transform: uppercase; font-size: 0.8rem; }
li.ok b { color: #00694D; } li.look b { color: #8A5A00; } li.bad b { color: #A11; } li.none b { color: #555; }
ul.verdicts span.check { font-weight: 600; } ul.verdicts p.numbers { color: #444; font-size: 0.88rem; }
figure { margin: 1.2rem 0; } figure div { display: flex; flex-wrap: wrap; gap: 0.4rem; align-items: flex-end; }
figure img { height: auto; max-width: min(100%, 28rem); flex: 1 1 18rem; min-width: 0; }
figure img.one { flex: 0 1 auto; max-width: 100%; } figcaption { color: #555; font-size: 0.9rem; }
@media (max-width: 40rem) { body { padding: 0.6rem; } th, td { padding: 0.25rem 0.2rem; font-size: 0.78rem; }
  table { display: block; overflow-x: auto; }
  table.facts th, table.facts td { padding-right: 0.5rem; }
  figure img { flex-basis: 100%; } pre { font-size: 0.75rem; } }
"""
# no scripts, no other files, wherever a text may lead
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass
class Shown:
    """What an evaluation shows beside its files: figures by name, its tables as the terminal has them, scalars for
    TensorBoard (tag, value, step), and the numbers that the page makes tables of.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    scalars: list[tuple[str, float, int]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


def write_run_page(outcome: Outcome, overrides: Sequence[str]) -> Path:
    """The page of a training run, also of one on data with actions."""
    metrics, directory, report = outcome.metrics, outcome.directory, outcome.report
    kind, own, further = "Recovery", "", []
    guide = "docs/outputs.md explains every file and number here, docs/diagnostics.md every alarm."
    if report.pairs:
        kind = "ControlledRecovery" if metrics["actions"] else "ContinuousRecovery"
        if metrics["actions"]:
            own = paragraph(
                "actions/<number> holds the fit of every action and its checks, in the order of the labels."
            )
        further = ["policy=[behaviour,uniform,improved]", "reward=cosine_power"]
        guide = "docs/policy.md explains policies, docs/outputs.md every file here."
    train, evaluate = _commands()
    repeat = shlex.join([*train, *without_resume(overrides)])
    after = shlex.join([*evaluate, f"run={directory}", *further])
    return _write(
        directory,
        f"levytorch run {directory.name}",
        paragraph(metrics.get("opening", "")),
        heading("Verdicts"),
        verdict_list(outcome.verdicts or [Verdict("Warnings", OK, "There were no warnings.")]),
        heading("The fit"),
        report.html(),
        *(paragraph(for_command_line(note)) for note in report.notes),
        *_details(metrics),
        *_laws(metrics),
        *_value(metrics),
        *_pictures(outcome.pictures),
        own,
        heading("Again, and further"),
        code(f"{repeat}\n{after}"),
        code(f"from levytorch import {kind}\nfound = {kind}.load({str(directory)!r})"),
        paragraph(guide),
    )


def write_evaluation_page(
    out: Path, settings: Mapping[str, Any], shown: Shown, pictures: Mapping[str, Sequence[bytes]]
) -> Path:
    """The page of an evaluation."""
    parts = [code("\n".join(shown.tables))] if shown.tables else []
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


def _details(metrics: Mapping[str, Any]) -> list[str]:
    """Numbers about the likelihood that few readers need, behind a click."""
    details = []
    if "law/log_p_error" in metrics:
        details.append(f"log p on {metrics['law/grid']} grid points is accurate to {metrics['law/log_p_error']:.1g}.")
    if "modulation/range" in metrics:
        low, high = metrics["modulation/range"]
        details.append(f"The covariate multiplies D_o and D_f by {low:.3g} to {high:.3g}.")
    if "memory" in metrics:
        found = ", ".join(f"{h:.3g}" for h in metrics["memory"]["rule"]["half_lives"])
        said = f"D_o and D_f depend on the size of past steps, with half-lives {found}"
        low, high = metrics["memory"].get("f", (1.0, 1.0))
        details.append(f"{said}; f is {low:.3g} to {high:.3g} (5 and 95 % of the pairs).")
    if "seconds" in metrics:
        details.append(f"The fit took {metrics['seconds']:.1f} s.")
    return [folded("Details of the fit", paragraph(" ".join(details)))] if details else []


def _value(metrics: Mapping[str, Any]) -> list[str]:
    """How well the value function is known; the table of policies."""
    if "values" in metrics:
        return [heading("Policies"), code("\n".join(metrics["values"]["text"]))]
    sentence = value_sentence(metrics)
    if sentence is None:
        return []
    plain = sentence.removeprefix("Value function: ")
    return [heading("Value function"), paragraph(plain[:1].upper() + plain[1:])]


def _laws(metrics: Mapping[str, Any]) -> list[str]:
    """The table of laws, where it was made."""
    if "laws" not in metrics:
        return []
    kind = "held-out log p per pair" if metrics["laws_held_out"] else "log p per pair"
    rows = [
        [
            *(str(law["model"]), f"{law['log_likelihood']:.6g} ({_told(law['std'], '.1g')})"),
            f"{_told(law['difference'], '.2g')} ({_told(law['difference_std'], '.1g')})" if number else "",
            *(f"{law['aic']:.1f}", f"{law['parameters']:.1f}"),
        ]
        for number, law in enumerate(metrics["laws"])
    ]
    columns = ["", kind, "difference", "AIC", "parameters"]
    return [
        heading(f"Laws of a step on the same {metrics['laws_pairs']:,} pairs"),
        html_table(columns, rows),
        paragraph(metrics["laws_sentence"]),
        paragraph("Standard errors are in brackets."),
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


def _pictures(pictures: Mapping[str, Sequence[bytes]]) -> list[str]:
    """The figures below their heading, where there are some, in the order of their captions."""
    known = [*(name for name in CAPTIONS if name in pictures), *(name for name in pictures if name not in CAPTIONS)]
    shown = [picture(pictures[name], name, CAPTIONS.get(name, name)) for name in known]
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


def verdict_list(items: Iterable[Verdict]) -> str:
    """A line per check: the verdict, its name, one sentence; its numbers can be unfolded."""
    rows = []
    for one in items:
        line = f'<b>{escape(one.verdict)}</b> <span class="check">{escape(one.name)}.</span> {escape(one.sentence)}'
        if one.details and one.details.rstrip(".") != one.sentence.rstrip("."):
            line = f'<details><summary>{line}</summary><p class="numbers">{escape(one.details)}</p></details>'
        rows.append(f'<li class="{_CLASSES.get(one.verdict, "none")}">{line}</li>')
    return '<ul class="verdicts">\n' + "\n".join(rows) + "\n</ul>" if rows else ""


def folded(title: str, content: str) -> str:
    """Content that a click shows."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"<table>\n{table_rows([head], 'th')}\n{table_rows(rows)}\n</table>"


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def picture(panels: Sequence[bytes], name: str, caption: str) -> str:
    """The panels of a figure, side by side where there is room."""
    alone = ' class="one"' if len(panels) == 1 else ""
    images = "".join(
        f'<img{alone} alt="{escape(name)}" src="data:image/svg+xml;base64,{base64.b64encode(panel).decode("ascii")}">'
        for panel in panels
    )
    return f"<figure><div>{images}</div><figcaption>{escape(caption)}</figcaption></figure>"
