"""What the checks found: as numbers, as a few lines, and as alarms, what deserves a second look, each with a sentence
that says why and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.compare import Comparison
from levytorch.diagnostics.components import Check, p_text
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.isotropy import IsotropyCheck
from levytorch.diagnostics.noisy import NOISY
from levytorch.diagnostics.predictive import PredictiveCheck
from levytorch.diagnostics.stability import StabilityCheck
from levytorch.diagnostics.step_size import Skipped, StepCheck
from levytorch.diagnostics.tail_shares import TailShareCheck
from levytorch.plots import plotted
from levytorch.training.outcome import hardly_separable
from levytorch.training.recovery import Recovery

LEVEL = 0.01  # probability with which tests raise any alarm in a run whose model is right
TESTS = ("fit", "isotropy", "step_size", "predictive", "tails", "time", "trajectories")  # the checks with a p-value
_CHECKS = ("fit", "isotropy", "jumps", "step_size", "predictive", "tails", "time", "trajectories", "laws")
FEW_JUMPS = 30
_BETTER = 3.0  # standard errors of a difference of log-likelihoods
_AIC = 10.0
_CLEAR = 4.0  # standard errors of a correlation between successive steps
_PARTS = {
    "shape": "the shape of the step's law is wrong",
    "tails": "there are too many or too few large steps",
    "state": "the misfit depends on the state",
    "time step": "the misfit depends on the time step",
    "direction": "steps are not isotropic",
    "memory": "steps depend on the step before",
}


@dataclass
class Diagnosis:
    """fit, jumps, step_size, predictive, tails, time, trajectories, laws: the checks, each None when it was not asked
    for, Skipped when it could not be made; tails is None without a TCF, trajectories with a single one.

    alarms: what deserves a second look, by name, with a sentence. arrays: the numbers behind the figures.
    """

    fit: FitCheck | Skipped | None = None
    isotropy: IsotropyCheck | None = None  # made with "fit" in several dimensions where D_o is a number
    jumps: JumpCheck | Skipped | None = None
    step_size: StepCheck | Skipped | None = None
    predictive: PredictiveCheck | Skipped | None = None
    tails: TailShareCheck | Skipped | None = None
    time: StabilityCheck | Skipped | None = None
    trajectories: StabilityCheck | Skipped | None = None
    laws: Comparison | Skipped | None = None
    alarms: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)
    seconds: float = 0.0
    seed: int = 0

    @property
    def ok(self) -> bool:
        """True when no alarm was raised."""
        return not self.alarms

    @property
    def p_values(self) -> dict[str, float]:
        """Of the tests that were made."""
        found = {name: getattr(getattr(self, name), "p_value", math.nan) for name in TESTS}
        return {name: p for name, p in found.items() if not math.isnan(p)}

    def checks(self) -> dict[str, Check]:
        """What was asked for, by name; what could not be made comes last."""
        found = {name: getattr(self, name) for name in _CHECKS if getattr(self, name) is not None}
        return dict(sorted(found.items(), key=lambda item: isinstance(item[1], Skipped)))

    def metrics(self) -> dict[str, Any]:
        """Plain numbers under flat names, as metrics.json holds them."""
        out: dict[str, Any] = {}
        for name, check in self.checks().items():
            out |= check.metrics(name)
        return out | {"alarms": dict(self.alarms), "seconds_diagnostics": self.seconds, "seed_diagnostics": self.seed}

    def text(self) -> str:
        """A few lines for a terminal."""
        rejected, lines = significant(self.p_values), []
        for name, check in self.checks().items():
            about = f"{name.replace('_', ' ')}: " if isinstance(check, Skipped) else ""
            lines += [about + line for line in check.lines(rejected)]
        return "\n".join(lines)

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): how well the fitted law describes the steps; see `levytorch.figures.diagnostics.overview`."""
        return plotted("diagnosis", self, **options)

    def __str__(self) -> str:
        return "\n".join([self.text(), *(f"{name}: {sentence}" for name, sentence in self.alarms.items())])


# -- alarms ------------------------------------------------------------------------------------------------------------


def significant(p_values: Mapping[str, float], level: float = LEVEL) -> set[str]:
    """Tests that reject although all of them share one level (Holm's procedure).

    Whatever the tests have to do with each other, the probability of any false rejection is at most the level.

    >>> sorted(significant({"fit": 0.004, "time": 0.001, "tails": 0.3}))  # 0.001 < 0.01 / 3, 0.004 < 0.01 / 2
    ['fit', 'time']
    """
    out: set[str] = set()
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if not p_values[name] < level / (len(p_values) - rank):
            break
        out.add(name)
    return out


def raise_alarms(diagnosis: Diagnosis, recovery: Recovery, scale: float) -> dict[str, str]:
    """New alarms of these checks, by name; `scale`: pairs of the data per pair that was looked at."""
    out: dict[str, str] = {}
    rejected = significant(diagnosis.p_values)
    fit, step = diagnosis.fit, diagnosis.step_size
    if isinstance(diagnosis.laws, Comparison):
        out |= _of_laws(diagnosis.laws, recovery)
    if isinstance(fit, FitCheck):
        out |= _of_fit(fit, "fit" in rejected, recovery, scale)
    if isinstance(step, StepCheck):
        if "step_size" in rejected:
            out["step_size"] = (
                f"the coefficients change by up to {step.max_z:.1f} standard errors when every second observation is "
                f"used ({p_text(step.p_value)}): {_cause(step, fit, 'fit' in rejected, recovery)}."
            )
        if not step.converged:
            out["step_size_not_converged"] = (
                "a fit of the step-size check stopped before it had converged; read its numbers with care."
            )
    for name, check in diagnosis.checks().items():
        out |= check.alarms(name, name in rejected)
    return out


def _of_laws(laws: Comparison, recovery: Recovery) -> dict[str, str]:
    """Another law of a step that describes the same pairs clearly better."""
    rows = {row.model: row for row in laws.rows}
    best, ours, plain = laws.rows[0], rows["tempered"], rows["stable"]
    clearly = -ours.difference > _BETTER * ours.difference_std
    if best.model == NOISY and clearly and min(plain.aic, ours.aic) - best.aic > _AIC:
        return {
            "observation_noise": f"observations have errors: with noise the law describes them better "
            f"({-ours.difference:.2g} per pair in log-likelihood, standard error {ours.difference_std:.1g}); use "
            'observation_noise="learn".'
        }
    if best.model in ("Student t", "NIG") and clearly:
        return {
            "other_law": f"{best.model} describes the steps better than the tempered law ({-ours.difference:.2g} per "
            f"pair in log-likelihood, standard error {ours.difference_std:.1g}): constant coefficients may not "
            "describe the data; let the coefficients depend on x."
        }
    gain = ours.log_likelihood - plain.log_likelihood
    better = gain > _BETTER * plain.difference_std and plain.aic - ours.aic > _AIC
    if not recovery.head.tempered and best is ours and better:
        return {
            "tempered_jumps": f"jumps are truncated: the tempered law describes the steps better than the stable one "
            f"({gain:.2g} per pair in log-likelihood, standard error {plain.difference_std:.1g}); use "
            'tempering="learn".'
        }
    return {}


def _of_fit(fit: FitCheck, rejected: bool, recovery: Recovery, scale: float) -> dict[str, str]:
    out: dict[str, str] = {}
    if rejected:
        parts = {name: part[0] for name, part in fit.parts.items()}
        named = sorted(significant(parts), key=lambda name: parts[name]) or [min(parts, key=lambda name: parts[name])]
        out["misfit"] = (
            f"the law does not fit: {', and '.join(_PARTS[name] for name in named)} ({p_text(fit.p_value)}); look at "
            "figures/diagnostics_fit before using the coefficients."
        )
        if "memory" in named and fit.sign is not None and fit.sign[1] < -_CLEAR and may_be_noise(recovery):
            out["observation_noise"] = (
                f"a step is partly undone by the next (correlation {fit.sign[0]:.2f}): observations may have errors; "
                'use observation_noise="learn".'
            )
    if fit.conservative:
        out["away_from_maximum"] = (
            f"the estimate is {fit.away:.1f} standard errors per parameter from the largest likelihood, so that "
            "standard errors are not valid; let the engine converge, or drop a coefficient that is zero."
        )
    if "D_o_D_f_correlation" not in recovery.metrics and (doubt := hardly_separable(recovery, fit.correlation)):
        out["hardly_separable"] = doubt
    if fit.jumps * scale < FEW_JUMPS and not recovery.head.without_jumps:
        rest, remedy = ("D_f and alpha", "use more data or give alpha")
        if not recovery.head.learns_alpha:
            rest, remedy = ("D_f", "use more data")
        out["few_jumps"] = f"only {round(fit.jumps * scale)} steps are clearly jumps, which determine {rest}; {remedy}."
    return out


def may_be_noise(recovery: Recovery) -> bool:
    """Whether observation noise could be asked for, and was not."""
    return recovery.dim == 1 and recovery.memory is None and "observation_noise" not in recovery.metrics


def _cause(step: StepCheck, fit: object, misfit: bool, recovery: Recovery) -> str:
    """Why coefficients change with dt, from what successive steps have to do with each other."""
    found = []
    if isinstance(fit, FitCheck):
        if fit.sign is not None and fit.sign[1] < -_CLEAR:
            found.append(
                f"a step is partly undone by the next (correlation {fit.sign[0]:.2f}), as with noisy observations"
                + (' (use observation_noise="learn")' if may_be_noise(recovery) else "")
            )
        if fit.sign is not None and fit.sign[1] > _CLEAR:
            found.append(
                f"a step is partly repeated by the next (correlation {fit.sign[0]:.2f}): the steps have a memory"
            )
        if fit.size is not None and fit.size[1] > _CLEAR:
            found.append(
                f"large steps follow large ones (correlation {fit.size[0]:.2f} of their sizes), as with a volatility "
                "that changes in time"
            )
    if found:
        return f"{', and '.join(found)}; the model has independent steps"
    if step.law == "exact":
        return "the coefficients of the fitted process do not depend on dt, those of the data do"
    vary = "the coefficients vary within a step"
    if misfit or not isinstance(fit, FitCheck):
        vary += ", or the law of a step is wrong"
    # where the law was left open, one that follows the coefficients was not to be had, or would change nothing
    asked = recovery.metrics.get("law_reason") == "as requested"
    instead = 'law="auto", or ' if asked and recovery.dim == 1 else ""
    return f"{vary}; use {instead}observations at shorter steps"


def earlier_alarms(recovery: Recovery) -> dict[str, str]:
    """What the fit itself has warned of already."""
    out: dict[str, str] = {}
    metrics = recovery.metrics
    if not recovery.converged:
        why = f" ({metrics['not_converged']})" if "not_converged" in metrics else ""
        remedy = metrics.get("remedy", "raise max_steps")
        out["not_converged"] = f"the engine stopped before it had converged{why}; {remedy}."
    if (doubt := hardly_separable(recovery, metrics.get("D_o_D_f_correlation", 0.0))) is not None:
        out["hardly_separable"] = doubt
    if metrics.get("CT_halvings", 0) > 0:
        halvings = metrics["CT_halvings"]
        out["few_tail_points"] = f"CT was halved {halvings} times to fill the tail pool; lower tail.CT or add data."
    return out
