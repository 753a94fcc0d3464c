"""What the checks found: as numbers, as a few lines, and as alarms, what deserves a second look, each with a sentence
that says why and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.compare import Comparison
from levytorch.diagnostics.components import p_text
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.isotropy import IsotropyCheck
from levytorch.diagnostics.predictive import PredictiveCheck
from levytorch.diagnostics.stability import StabilityCheck
from levytorch.diagnostics.step_size import Skipped, StepCheck
from levytorch.diagnostics.tail_shares import TailShareCheck
from levytorch.plots import plotted
from levytorch.training.outcome import hardly_separable
from levytorch.training.recovery import Recovery

LEVEL = 0.01  # probability with which tests raise any alarm in a run whose model is right
TESTS = ("fit", "isotropy", "step_size", "predictive", "tails", "time", "trajectories")  # the checks with a p-value
_CHECKS = ("fit", "jumps", "step_size", "predictive", "tails", "time", "trajectories", "laws")
FEW_JUMPS = 30
_BETTER = 3.0  # standard errors of a difference of log-likelihoods
_AIC = 10.0
_AIC_ALIKE = 2.0  # models that AIC does not tell apart
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

    def metrics(self) -> dict[str, Any]:
        """Plain numbers under flat names, as metrics.json holds them."""
        out: dict[str, Any] = {}
        if isinstance(self.fit, FitCheck):
            out |= {
                "fit_p_value": self.fit.p_value,
                "fit_statistic": self.fit.statistic,
                "fit_df": self.fit.df,
                "fit_gap": self.fit.gap,
                "fit_pairs": self.fit.pairs,
                "fit_away_from_maximum": self.fit.away,
                "fit_conservative": self.fit.conservative,
                "clear_jumps": self.fit.jumps,
            }
            out |= {f"fit_p_{name.replace(' ', '_')}": part[0] for name, part in self.fit.parts.items()}
            out |= {f"fit_rare_{level:g}": ratio for level, ratio in self.fit.rare.items()}
            for name, found in (("steps", self.fit.sign), ("sizes", self.fit.size)):
                if found is not None:
                    out[f"fit_correlation_{name}"] = found[0]
        if self.isotropy is not None:
            out |= {f"isotropy_{name}": value for name, value in asdict(self.isotropy).items()}
        if isinstance(self.jumps, JumpCheck):
            out |= {
                "jumps_gain": self.jumps.gain,
                "jumps_gain_per_pair": self.jumps.per_pair,
                "jumps_gain_per_pair_std": self.jumps.per_pair_std,
                "jumps_aic": self.jumps.aic,
                "jumps_bic": self.jumps.bic,
            }
        if isinstance(self.step_size, StepCheck):
            out |= {
                "step_size_p_value": self.step_size.p_value,
                "step_size_statistic": self.step_size.statistic,
                "step_size_df": self.step_size.df,
                "step_size_max_z": self.step_size.max_z,
            }
            out |= {f"step_size_change_{name}": value for name, value in self.step_size.change.items()}
            out |= {f"step_size_chance_{name}": value for name, value in self.step_size.chance.items()}
        if isinstance(self.predictive, PredictiveCheck):
            ahead = self.predictive
            out["predictive_p_value"] = ahead.p_value
            for k in ahead.parts:
                out |= {
                    f"predictive_p_{k}": ahead.parts[k],
                    f"predictive_spread_{k}": ahead.ratio[k],
                    f"predictive_spread_std_{k}": ahead.ratio_std[k],
                    f"predictive_windows_{k}": ahead.windows[k],
                }
            if ahead.range is not None:
                out |= {f"predictive_range_{name}": value for name, value in asdict(ahead.range).items()}
        if isinstance(self.tails, TailShareCheck):
            out |= {
                "tails_p_value": self.tails.p_value,
                "tails_kept": self.tails.kept,
                "tails_pairs": self.tails.tail,
                "tails_ratio": list(self.tails.ratio),
            }
        for name in ("time", "trajectories"):
            same = getattr(self, name)
            if isinstance(same, StabilityCheck):
                out[f"{name}_p_value"] = same.p_value
        if isinstance(self.laws, Comparison):
            out |= {"laws": [asdict(row) for row in self.laws.rows], "laws_held_out": self.laws.held_out}
            out |= {"laws_pairs": self.laws.n_pairs, "laws_sentence": self.laws.sentence}
        for name in _CHECKS:
            check = getattr(self, name)
            if isinstance(check, Skipped):
                out[f"{name}_skipped"] = check.reason
        return out | {"alarms": dict(self.alarms), "seconds_diagnostics": self.seconds, "seed_diagnostics": self.seed}

    def text(self) -> str:
        """A few lines for a terminal."""
        lines = []
        if isinstance(self.fit, FitCheck):
            lines.append(_fit_line(self.fit))
        if self.isotropy is not None:
            lines.append(
                f"Directions of steps: {p_text(self.isotropy.p_value)}; variances differ by a factor of up to "
                f"{self.isotropy.ratio:.2g} between directions"
            )
        if isinstance(self.jumps, JumpCheck):
            lines.append(
                f"Jumps, gain over a law without them: log-likelihood {self.jumps.gain:+.5g} in all, "
                f"{self.jumps.per_pair:+.4g} per pair; AIC {self.jumps.aic:+.5g}, BIC {self.jumps.bic:+.5g}"
            )
        if isinstance(self.step_size, StepCheck):
            step = self.step_size
            # the largest of many pointwise changes is worth a word only when the test finds that there is a change
            largest = f"largest change {step.max_z:.1f} standard errors ({step.where[0]})"
            verdict = largest if "step_size" in significant(self.p_values) else "no clear change"
            lines.append(
                f"Time step (dt against 2 dt): {p_text(step.p_value)}, {verdict}; relative changes {step.changes()}"
            )
        if isinstance(self.predictive, PredictiveCheck):
            ahead = self.predictive
            shown = ", ".join(
                f"{k} step{'s' * (k > 1)} {ahead.ratio[k]:.2f} +- {ahead.ratio_std[k]:.2f}" for k in ahead.parts
            )
            lines.append(
                f"Several steps ahead: {p_text(ahead.p_value)}; spread of the fit over that of the data: {shown}"
            )
            if ahead.range is not None:
                lines.append(
                    f"Range of the states over {ahead.range.steps} steps: {p_text(ahead.range.p_value)}; that of the "
                    f"fit over that of the data {ahead.range.ratio:.2f} +- {ahead.range.ratio_std:.2f}"
                )
        if isinstance(self.tails, TailShareCheck):
            low, high = self.tails.ratio
            lines.append(
                f"Lost tails, the same share in all states: {p_text(self.tails.p_value)}; steps beyond CT over those "
                f"expected, in quarters of the states: {low:.2f} to {high:.2f}"
            )
        if isinstance(self.time, StabilityCheck):
            lines.append(f"The same law over time: {p_text(self.time.p_value)}")
        if isinstance(self.trajectories, StabilityCheck):
            number = self.trajectories.groups
            lines.append(f"The same law in {number} trajectories: {p_text(self.trajectories.p_value)}")
        if isinstance(self.laws, Comparison):
            lines.append(_laws_line(self.laws))
        for name in _CHECKS:
            check = getattr(self, name)
            if isinstance(check, Skipped):
                lines.append(f"{name.replace('_', ' ')}: not checked, {check.reason}")
        return "\n".join(lines)

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): how well the fitted law describes the steps; see `levytorch.figures.diagnostics.overview`."""
        return plotted("diagnosis", self, **options)

    def __str__(self) -> str:
        return "\n".join([self.text(), *(f"{name}: {sentence}" for name, sentence in self.alarms.items())])


def _fit_line(fit: FitCheck) -> str:
    worst = min(fit.parts, key=lambda name: fit.parts[name][0])
    sign = "<=" if fit.conservative else "="
    return (
        f"Goodness of fit: {p_text(fit.p_value, sign)} (weakest part: {worst}, {p_text(fit.parts[worst][0])}); "
        f"{off(fit)}; {fit.pairs} pairs"
    )


def _laws_line(laws: Comparison) -> str:
    best, *others = laws.rows
    kind = "held-out log p" if laws.held_out else "log p"
    apart = ", ".join(f"{row.model} {row.difference:+.2g} ({row.difference_std:.1g})" for row in others)
    least = min(row.aic for row in laws.rows)
    by_aic = " or ".join(row.model for row in laws.rows if row.aic - least < _AIC_ALIKE)
    first = f"{best.model} {best.log_likelihood:.5g} ({best.std:.1g})"
    return f"Law of a step, {kind} per pair: {first}; {apart}; AIC: {by_aic}"


def off(fit: FitCheck) -> str:
    """The largest error of the step probabilities, and the observed over the expected frequency of the rarest steps."""
    text = f"step probabilities match the data within {100 * fit.gap:.2g} percentage points"
    if fit.rare:
        level = min(fit.rare)
        times = f"{fit.rare[level]:.2g}"
        often = "as frequent" if times == "1" else f"{times} times as frequent"
        text += f", the rarest {100 * level:.3g} % of steps are {often} as expected"
    return text


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
    fit, jumps, step, ahead = diagnosis.fit, diagnosis.jumps, diagnosis.step_size, diagnosis.predictive
    if isinstance(diagnosis.laws, Comparison):
        out |= _of_laws(diagnosis.laws, recovery)
    if isinstance(fit, FitCheck):
        out |= _of_fit(fit, "fit" in rejected, recovery, scale)
    if diagnosis.isotropy is not None and "isotropy" in rejected and diagnosis.isotropy.is_large:
        out["anisotropic"] = (
            f"steps are longer in some directions than in others ({p_text(diagnosis.isotropy.p_value)}; variances "
            f"differ by a factor of up to {diagnosis.isotropy.ratio:.2g}), while D_o is a number at every state; fit "
            'with noise="matrix".'
        )
    if isinstance(jumps, JumpCheck) and not jumps.needed:
        out["jumps_not_needed"] = (
            f"a law without jumps describes the data equally well (BIC {jumps.bic:+.3g} for {jumps.extra} more "
            "parameters); do not interpret D_f."
        )
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
    if isinstance(ahead, PredictiveCheck) and "predictive" in rejected:
        out["predictive"] = (
            f"the fit does not predict several steps ahead ({p_text(ahead.p_value)}): {ahead.sentence()}; find the "
            "cause before you use forecasts or values."
        )
    if isinstance(diagnosis.time, StabilityCheck) and "time" in rejected:
        out["time"] = (
            f"the {diagnosis.time.what} changes over time ({p_text(diagnosis.time.p_value)}), while the model has "
            "coefficients of the state alone; fit shorter stretches of time separately, or add what changes as a state."
        )
    if isinstance(diagnosis.trajectories, StabilityCheck) and "trajectories" in rejected:
        out["trajectories"] = (
            f"the {diagnosis.trajectories.what} differs between trajectories "
            f"({p_text(diagnosis.trajectories.p_value)}), while they were fitted as one system; fit them separately "
            "(recover_each)."
        )
    tails = diagnosis.tails
    if isinstance(tails, TailShareCheck) and "tails" in rejected:
        out["tail_shares"] = (
            f"the share of lost tails depends on the state ({p_text(tails.p_value)}; steps beyond CT over those "
            f"expected: {tails.ratio[0]:.2f} to {tails.ratio[1]:.2f}), while the TCF assumes that it does not, "
            'so that D_f is biased; use tail={"method": "conditional"}.'
        )
    return out


def _of_laws(laws: Comparison, recovery: Recovery) -> dict[str, str]:
    """Another law of a step that describes the same pairs clearly better."""
    rows = {row.model: row for row in laws.rows}
    best, ours = laws.rows[0], rows["tempered"]
    if best.model in ("Student t", "NIG") and -ours.difference > _BETTER * ours.difference_std:
        return {
            "other_law": f"{best.model} describes the steps better than the tempered law ({-ours.difference:.2g} per "
            f"pair in log-likelihood, standard error {ours.difference_std:.1g}): constant coefficients may not "
            "describe the data; let the coefficients depend on x."
        }
    plain = rows["stable"]
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
    if fit.conservative:
        out["away_from_maximum"] = (
            f"the estimate is {fit.away:.1f} standard errors per parameter from the largest likelihood, so that "
            "standard errors are not valid; let the engine converge, or drop a coefficient that is zero."
        )
    if "D_o_D_f_correlation" not in recovery.metrics and (doubt := hardly_separable(recovery, fit.correlation)):
        out["hardly_separable"] = doubt
    if fit.jumps * scale < FEW_JUMPS and not recovery.head.without_jumps:
        out["few_jumps"] = (
            f"only {round(fit.jumps * scale)} steps are clearly jumps, which determine D_f and a learned alpha; "
            "use more data or give alpha."
        )
    return out


def _cause(step: StepCheck, fit: object, misfit: bool, recovery: Recovery) -> str:
    """Why coefficients change with dt, from what successive steps have to do with each other."""
    found = []
    if isinstance(fit, FitCheck):
        if fit.sign is not None and fit.sign[1] < -_CLEAR:
            found.append(
                f"a step is partly undone by the next (correlation {fit.sign[0]:.2f}), as with noisy observations"
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
        return "the fitted process has the same coefficients at any dt, the data do not"
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
