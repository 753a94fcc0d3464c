"""The results of the checks of a fit: a verdict each (ok, look or bad), one plain sentence, and its numbers.

The terminal, the report page and metrics.json show this list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.compare import Comparison
from levytorch.diagnostics.components import p_text
from levytorch.diagnostics.diagnosis import Diagnosis
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.predictive import PredictiveCheck
from levytorch.diagnostics.stability import StabilityCheck
from levytorch.diagnostics.step_size import Skipped, StepCheck
from levytorch.diagnostics.tail_shares import TailShareCheck
from levytorch.errors import plain_sentence
from levytorch.training.fit_report import FitReport

OK, LOOK, BAD, NONE = "ok", "look", "bad", "-"
# alarms after which the numbers should not be used as they are; others are worth a look
_SEVERE = ("not_converged", "misfit", "predictive", "away_from_maximum")
# what a warning of the fit says where an alarm says the same
_SAME = {
    "hardly_separable": "hardly separable",
    "not_converged": "before it had converged",
    "few_tail_points": "halved",
}


@dataclass(frozen=True)
class Verdict:
    """name: of the check; verdict: "ok", "look", "bad", or "-" where it was not made; details: its numbers."""

    name: str
    verdict: str
    sentence: str
    details: str = ""

    def plain(self) -> dict[str, str]:
        """As metrics.json has it."""
        return asdict(self)


def verdicts(report: FitReport, diagnosis: Diagnosis | None = None, warnings: Sequence[str] = ()) -> list[Verdict]:
    """Of a fit, the checks that were made of it, and what it warned of."""
    alarms = {} if diagnosis is None else diagnosis.alarms
    out = [_convergence(report)]
    if diagnosis is not None:
        lines = dict(zip(_TESTS, (_of(name, getattr(diagnosis, name), alarms) for name in _TESTS)))
        out += [verdict for verdict in lines.values() if verdict is not None]
    shown = {name for names in _TESTS.values() for name in names} | {"not_converged"}
    for name, sentence in alarms.items():
        if name not in shown:
            severity = BAD if name in _SEVERE else LOOK
            out.append(Verdict(name.replace("_", " ").capitalize(), severity, plain_sentence(sentence), sentence))
    same = [phrase for name, phrase in _SAME.items() if name in alarms]
    same += ["before it had converged"] if not report.converged else []
    said = [w for w in warnings if w not in alarms.values() and not any(phrase in w for phrase in same)]
    return out + warning_verdicts(said)


def warning_verdicts(warnings: Sequence[str]) -> list[Verdict]:
    """One verdict for every warning."""
    return [Verdict("Warning", LOOK, plain_sentence(sentence), sentence) for sentence in dict.fromkeys(warnings)]


def _convergence(report: FitReport) -> Verdict:
    how = f"engine {report.engine}, {report.steps} steps"
    if report.nobs and report.log_likelihood == report.log_likelihood:
        how += f", log-likelihood per pair {report.log_likelihood / report.nobs:.6g}"
    if report.converged:
        return Verdict("Convergence", OK, f"The fit converged after {report.steps} steps.", how)
    why = f" ({report.not_converged})" if report.not_converged else ""
    sentence = "The fit stopped before it converged, so its errors do not hold."
    if "remedy" in report.details:
        sentence += f" {plain_sentence(report.details['remedy'])}"
    elif "steps" in why or not why:  # more of them help only where they ran out
        sentence += " Raise max_steps."
    return Verdict("Convergence", BAD, sentence, how + why)


def _of(name: str, check: Any, alarms: Mapping[str, str]) -> Verdict | None:
    title = _TITLES[name]
    if check is None:
        return None
    if isinstance(check, Skipped):
        return Verdict(title, NONE, f"Not checked: {plain_sentence(check.reason)}", check.reason)
    sentence, details = _WORDS[name](check)
    raised = [alarm for alarm in _TESTS[name] if alarm in alarms]
    if raised:
        worst = BAD if any(alarm in _SEVERE for alarm in raised) else LOOK
        said = " ".join(plain_sentence(alarms[alarm]) for alarm in raised)
        return Verdict(title, worst, said, f"{details}. {' '.join(alarms[alarm] for alarm in raised)}")
    return Verdict(title, OK, sentence, details)


def _fit(check: FitCheck) -> tuple[str, str]:
    worst = min(check.parts, key=lambda part: check.parts[part][0])
    sign = "<=" if check.conservative else "="
    gap = f"{100 * check.gap:.1g}"
    said = f"The model's step probabilities match the data within {gap} percentage point{'s' * (gap != '1')}."
    details = (
        f"{p_text(check.p_value, sign)}; weakest part: {worst}, {p_text(check.parts[worst][0])}; {check.errors()}; "
    )
    return said, f"{details}{check.pairs:,} pairs"


def _jumps(check: JumpCheck) -> tuple[str, str]:
    details = (
        f"log-likelihood of a law without jumps: {-check.gain:+.5g} in all, {-check.per_pair:+.4g} per pair; "
        f"AIC {check.aic:+.5g} and BIC {check.bic:+.5g} in favour of jumps"
    )
    return "The data needs jumps: a law without them is far less likely.", details


def _step_size(check: StepCheck) -> tuple[str, str]:
    largest = f"largest change {check.max_z:.1f} standard errors ({check.where[0]})"
    said = "Every second observation gives the same coefficients within their errors."
    return said, f"dt against 2 dt: {p_text(check.p_value)}; {largest}; {check.changes()}"


def _predictive(check: PredictiveCheck) -> tuple[str, str]:
    spread = ", ".join(f"{k} step{'s' * (k > 1)} {check.ratio[k]:.2f} +- {check.ratio_std[k]:.2f}" for k in check.parts)
    longest = max(check.parts)
    said = f"Simulated paths spread like the data over up to {longest} steps."
    details = f"{p_text(check.p_value)}; spread of the fit over that of the data: {spread}"
    if (wide := check.range) is not None:
        details += f"; range of the states over {wide.steps} steps {wide.ratio:.2f} +- {wide.ratio_std:.2f}"
    return said, details


def _tails(check: TailShareCheck) -> tuple[str, str]:
    low, high = check.ratio
    details = f"{p_text(check.p_value)}; steps beyond CT over those expected, by quarters of the states: "
    return "Tails were lost at the same rate in all states.", f"{details}{low:.2f} to {high:.2f}"


def _time(check: StabilityCheck) -> tuple[str, str]:
    return "The law of a step stays the same over time.", p_text(check.p_value)


def _trajectories(check: StabilityCheck) -> tuple[str, str]:
    details = f"{p_text(check.p_value)}; {check.groups} trajectories"
    return "All trajectories follow the same law.", details


def _laws(check: Comparison) -> tuple[str, str]:
    best, *others = check.rows
    kind = "held-out log p" if check.held_out else "log p"
    apart = ", ".join(f"{row.model} {row.difference:+.2g} ({row.difference_std:.1g})" for row in others)
    details = f"{kind} per pair: {best.model} {best.log_likelihood:.5g} ({best.std:.1g}); {apart}"
    return plain_sentence(check.sentence), details


_TITLES = {
    "fit": "Fit",
    "jumps": "Jumps",
    "step_size": "Time step",
    "predictive": "Prediction",
    "tails": "Lost tails",
    "time": "Over time",
    "trajectories": "Trajectories",
    "laws": "Law of a step",
}
# the alarms that each check raises
_TESTS: dict[str, tuple[str, ...]] = {
    "fit": ("misfit", "away_from_maximum"),
    "jumps": ("jumps_not_needed", "few_jumps"),
    "step_size": ("step_size", "step_size_not_converged"),
    "predictive": ("predictive",),
    "tails": ("tail_shares",),
    "time": ("time",),
    "trajectories": ("trajectories",),
    "laws": ("other_law", "tempered_jumps"),
}
_WORDS: dict[str, Any] = {
    "fit": _fit,
    "jumps": _jumps,
    "step_size": _step_size,
    "predictive": _predictive,
    "tails": _tails,
    "time": _time,
    "trajectories": _trajectories,
    "laws": _laws,
}
