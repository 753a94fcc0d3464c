"""What the checks found, as numbers, sentences and alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.p_values import p_text
from levytorch.diagnostics.step_size import Skipped, StepCheck
from levytorch.training.recovery import Recovery

SURE = 1e-3  # p-value below which an alarm is raised
FEW_JUMPS = 30
INSEPARABLE = 0.98
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
    """fit, jumps, step_size: the checks, each None when it was not asked for and Skipped when it could not be made.

    alarms: what deserves a second look, by name, with a sentence. arrays: the numbers behind the figures.
    """

    fit: FitCheck | Skipped | None = None
    jumps: JumpCheck | Skipped | None = None
    step_size: StepCheck | Skipped | None = None
    alarms: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when no alarm was raised."""
        return not self.alarms

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
        for name in ("fit", "jumps", "step_size"):
            check = getattr(self, name)
            if isinstance(check, Skipped):
                out[f"{name}_skipped"] = check.reason
        return out | {"alarms": dict(self.alarms), "seconds_diagnostics": self.seconds}

    def text(self) -> str:
        """A few lines for a terminal."""
        lines = []
        if isinstance(self.fit, FitCheck):
            worst = min(self.fit.parts, key=lambda name: self.fit.parts[name][0])  # type: ignore[union-attr]
            sign = "<=" if self.fit.conservative else "="
            lines.append(
                f"goodness of fit: {p_text(self.fit.p_value, sign)} (worst part: {worst}, "
                f"{p_text(self.fit.parts[worst][0])}); probabilities off by at most {self.fit.gap:.2%}; "
                f"{self.fit.pairs} pairs"
            )
        if isinstance(self.jumps, JumpCheck):
            lines.append(
                f"jumps against none: log-likelihood {self.jumps.gain:+.5g} in all, {self.jumps.per_pair:+.4g} per "
                f"pair; AIC {self.jumps.aic:+.5g}, BIC {self.jumps.bic:+.5g} in favour of jumps"
            )
        if isinstance(self.step_size, StepCheck):
            step = self.step_size
            # the largest of many pointwise changes is worth a word only when the test finds that there is a change
            largest = f"largest change {step.max_z:.1f} standard errors ({step.where[0]})"
            verdict = largest if step.p_value < SURE else "no clear change"
            lines.append(f"dt against 2 dt: {p_text(step.p_value)}, {verdict}; relative changes {step.changes()}")
        for name in ("fit", "jumps", "step_size"):
            check = getattr(self, name)
            if isinstance(check, Skipped):
                lines.append(f"{name.replace('_', ' ')}: not checked, {check.reason}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.text(), *(f"{name}: {sentence}" for name, sentence in self.alarms.items())])


def raise_alarms(diagnosis: Diagnosis, recovery: Recovery, scale: float) -> dict[str, str]:
    """New alarms of these checks, by name; `scale`: pairs of the data per pair that was looked at."""
    out: dict[str, str] = {}
    fit, jumps, step = diagnosis.fit, diagnosis.jumps, diagnosis.step_size
    if isinstance(fit, FitCheck):
        if fit.p_value < SURE:
            worst = min((name for name in fit.parts), key=lambda name: fit.parts[name][0])
            out["misfit"] = (
                f"the law does not fit: {_PARTS[worst]} ({p_text(fit.p_value)}, probabilities off by up to "
                f"{fit.gap:.1%}); look at figures/diagnostics_fit before using the coefficients."
            )
        if fit.conservative:
            out["away_from_maximum"] = (
                f"the estimate is {fit.away:.1f} standard errors per parameter from the largest likelihood, so that "
                "standard errors do not hold; let the engine converge, or drop a coefficient that is zero."
            )
        if fit.correlation > INSEPARABLE and "D_o_D_f_correlation" not in recovery.metrics:
            out["hardly_separable"] = (
                f"D_o and D_f are hardly separable here (correlation {fit.correlation:.3f} of their estimates); "
                "trust their combined effect, or fix one."
            )
        if fit.jumps * scale < FEW_JUMPS:
            out["few_jumps"] = (
                f"only {round(fit.jumps * scale)} steps are clearly jumps, on which D_f and a learned alpha rest; "
                "bring more data or give alpha."
            )
    if isinstance(jumps, JumpCheck) and not jumps.needed:
        out["jumps_not_needed"] = (
            f"a law without jumps describes the data as well (BIC {jumps.bic:+.3g} for {jumps.extra} more parameters); "
            "do not read anything into D_f."
        )
    if isinstance(step, StepCheck):
        if step.p_value < SURE:
            remedy = "use shorter steps" if recovery.law == "exact" else "use law=exact or shorter steps"
            out["step_size"] = (
                f"the estimates change when every second observation is used ({p_text(step.p_value)}), by up to "
                f"{step.max_z:.1f} standard errors; {remedy}."
            )
        if not step.converged:
            out["step_size_not_converged"] = (
                "a fit of the step-size check stopped before it had converged; read its numbers with care."
            )
    return out


def earlier_alarms(recovery: Recovery) -> dict[str, str]:
    """What the fit itself has warned of already."""
    out: dict[str, str] = {}
    metrics = recovery.metrics
    if not recovery.converged:
        out["not_converged"] = "the engine stopped before it had converged; raise engine.max_steps."
    if metrics.get("D_o_D_f_correlation", 0.0) > INSEPARABLE:
        correlation = f"{metrics['D_o_D_f_correlation']:.3f}"
        out["hardly_separable"] = f"D_o and D_f have a correlation of {correlation}; trust their combined effect."
    if metrics.get("CT_halvings", 0) > 0:
        halvings = metrics["CT_halvings"]
        out["few_tail_points"] = f"CT was halved {halvings} times to fill the tail pool; lower tail.CT or add data."
    return out
