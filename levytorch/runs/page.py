"""report.html: what a run or an evaluation has found, as one page for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levytorch.files import write_text
from levytorch.runs import html
from levytorch.runs.command_line import is_clone
from levytorch.runs.resume import without_resume
from levytorch.runs.terminal import location, table_of_actions, unreached

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
    "rates": "Error of V against the size of a perturbation of the coefficients.",
}


def write_run_page(outcome: Outcome, overrides: Sequence[str]) -> Path:
    """The page of a training run."""
    metrics, directory = outcome.metrics, outcome.directory
    train, evaluate = _commands()
    repeat = shlex.join([*train, *without_resume(overrides)])
    after = shlex.join([*evaluate, f"run={directory}"])
    load = f"from levytorch import Recovery\nfound = Recovery.load({str(directory)!r})"
    text = html.page(
        f"levytorch run {directory.name}",
        html.paragraph(metrics.get("opening", "")),
        html.heading("Verdict"),
        html.verdicts(_verdicts(metrics)),
        html.heading("Coefficients at the observed states"),
        _coefficients(metrics),
        *(html.paragraph(note) for note in (location(metrics), unreached(metrics)) if note is not None),
        html.paragraph(_fit_words(metrics)),
        *_laws(metrics),
        html.heading("Figures") if outcome.pictures else "",
        *_pictures(outcome.pictures),
        html.heading("Again, and further"),
        html.code(f"{repeat}\n{after}"),
        html.code(load),
        html.paragraph("docs/outputs.md explains every file and number here, docs/diagnostics.md every alarm."),
    )
    write_text(directory / NAME, text)
    return directory / NAME


def write_actions_page(outcome: Outcome, overrides: Sequence[str]) -> Path:
    """The page of a training run on data with actions."""
    metrics, directory = outcome.metrics, outcome.directory
    train, evaluate = _commands()
    repeat = shlex.join([*train, *without_resume(overrides)])
    after = shlex.join([*evaluate, f"run={directory}", "policy=[behaviour,uniform,improved]", "reward=cosine_power"])
    kind = "ControlledRecovery" if metrics["actions"] else "ContinuousRecovery"
    load = f"from levytorch import {kind}\nfound = {kind}.load({str(directory)!r})"
    doubts = [(doubt, False) for doubt in metrics["warnings"]] or [("no warning was raised", True)]
    text = html.page(
        f"levytorch run {directory.name}",
        html.paragraph(metrics.get("opening", "")),
        html.heading("Verdict"),
        html.verdicts(doubts),
        html.heading("Actions and policies"),
        html.code(table_of_actions(metrics)),
        html.heading("Figures") if outcome.pictures else "",
        *_pictures(outcome.pictures),
        html.paragraph(
            "actions/<number> holds the fit of every action, with its own checks, in the order of the labels."
        ),
        html.heading("Again, and further"),
        html.code(f"{repeat}\n{after}"),
        html.code(load),
        html.paragraph("docs/policy.md explains policies, docs/outputs.md every file here."),
    )
    write_text(directory / NAME, text)
    return directory / NAME


def write_evaluation_page(
    out: Path, settings: Mapping[str, Any], metrics: Mapping[str, Any] | None, pictures: Mapping[str, bytes], told: str
) -> Path:
    """The page of an evaluation; told: its table as the terminal shows it."""
    parts = [html.code(told)] if told else []
    if metrics is not None:
        parts += [html.heading("Groups"), _groups(metrics), html.heading("Runs"), _runs(metrics)]
    overrides = _overrides()
    text = html.page(
        "levytorch evaluation",
        html.paragraph(f"reward {settings['reward'].get('name')}, beta {settings['beta']}"),
        *parts,
        html.heading("Figures") if pictures else "",
        *_pictures(pictures),
        html.heading("Again"),
        html.code(shlex.join([*_commands()[1], *overrides])),
    )
    write_text(out / NAME, text)
    return out / NAME


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
    return html.table(["", "mean", "standard error", "relative L2 error"], rows)


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
        html.heading(f"Laws of a step on the same {metrics['laws_pairs']:,} pairs"),
        html.table(columns, rows),
        html.paragraph(metrics["laws_sentence"]),
    ]


def _fit_words(metrics: Mapping[str, Any]) -> str:
    law = f"law {metrics['law']} ({metrics['law_reason']}); " if "law_reason" in metrics else ""
    return (
        f"{law}engine {metrics['engine']}, {metrics['steps']} steps in {metrics['seconds']:.1f} s, "
        f"{'converged' if metrics['converged'] else 'NOT converged'}; tail {metrics['tail_method']}, "
        f"TCF {metrics['tcf']:.4g}; log-likelihood per pair {metrics['log_likelihood'] / metrics['n_main']:.6g}"
    )


def _groups(metrics: Mapping[str, Any]) -> str:
    keys = ("relative_l2_mean", "relative_l2_sd", "relative_l2_of_mean", "coverage")
    rows = [
        [label, str(group["runs"]), *(_told(group[key], ".2%") for key in keys)]
        for label, group in metrics["groups"].items()
    ]
    rows += [[name, "", _told(error, ".2%"), "", "", ""] for name, error in metrics["baselines"].items()]
    for name, beside in metrics.get("from_data", {}).items():
        rows.append([name, "", _told(beside["relative_l2"], ".2%"), "", "", _told(beside["coverage"], ".2%")])
    return html.table(["group", "runs", "relative L2 error", "sd", "of the mean", "coverage"], rows)


def _runs(metrics: Mapping[str, Any]) -> str:
    rows = [
        [str(run["path"]), str(run["group"]), _told(run["relative_l2"], ".2%"), "yes" if run["converged"] else "NO"]
        for run in metrics["runs"]
    ]
    return html.table(["run", "group", "relative L2 error", "V converged"], rows)


def _pictures(pictures: Mapping[str, bytes]) -> list[str]:
    return [html.picture(png, name, CAPTIONS.get(name, name)) for name, png in pictures.items()]


def _told(value: float | None, form: str) -> str:
    return "-" if value is None or value != value else format(value, form)
