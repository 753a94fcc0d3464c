"""What the checks found, as numbers and as a few lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.comparison import Comparison
from levytorch.diagnostics.components import p_text
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.predictive import PredictiveCheck
from levytorch.diagnostics.step_size import Skipped, StepCheck

SURE = 1e-3  # p-value below which an alarm is raised
_CHECKS = ("fit", "jumps", "step_size", "predictive", "laws")


@dataclass
class Diagnosis:
    """fit, jumps, step_size, predictive, laws: the checks, each None when it was not asked for, Skipped when it could
    not be made.

    alarms: what deserves a second look, by name, with a sentence. arrays: the numbers behind the figures.
    """

    fit: FitCheck | Skipped | None = None
    jumps: JumpCheck | Skipped | None = None
    step_size: StepCheck | Skipped | None = None
    predictive: PredictiveCheck | Skipped | None = None
    laws: Comparison | Skipped | None = None
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
            out |= {f"fit_rare_{level:g}": ratio for level, ratio in self.fit.rare.items()}
            for name, found in (("steps", self.fit.sign), ("sizes", self.fit.size)):
                if found is not None:
                    out[f"fit_correlation_{name}"] = found[0]
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
        if isinstance(self.laws, Comparison):
            out |= {"laws": [asdict(row) for row in self.laws.rows], "laws_held_out": self.laws.held_out}
            out |= {"laws_pairs": self.laws.n_pairs, "laws_sentence": self.laws.sentence}
        for name in _CHECKS:
            check = getattr(self, name)
            if isinstance(check, Skipped):
                out[f"{name}_skipped"] = check.reason
        return out | {"alarms": dict(self.alarms), "seconds_diagnostics": self.seconds}

    def text(self) -> str:
        """A few lines for a terminal."""
        lines = []
        if isinstance(self.fit, FitCheck):
            lines.append(_fit_line(self.fit))
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
        if isinstance(self.predictive, PredictiveCheck):
            ahead = self.predictive
            shown = ", ".join(
                f"{k} step{'s' * (k > 1)} {ahead.ratio[k]:.2f} +- {ahead.ratio_std[k]:.2f}" for k in ahead.parts
            )
            lines.append(f"several steps ahead: {p_text(ahead.p_value)}; spread of the fit over the data's: {shown}")
        if isinstance(self.laws, Comparison):
            lines.append(_laws_line(self.laws))
        for name in _CHECKS:
            check = getattr(self, name)
            if isinstance(check, Skipped):
                lines.append(f"{name.replace('_', ' ')}: not checked, {check.reason}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.text(), *(f"{name}: {sentence}" for name, sentence in self.alarms.items())])


def _fit_line(fit: FitCheck) -> str:
    worst = min(fit.parts, key=lambda name: fit.parts[name][0])
    sign = "<=" if fit.conservative else "="
    return (
        f"goodness of fit: {p_text(fit.p_value, sign)} (worst part: {worst}, {p_text(fit.parts[worst][0])}); "
        f"{off(fit)}; {fit.pairs} pairs"
    )


def _laws_line(laws: Comparison) -> str:
    best, *others = laws.rows
    kind = "held-out log p" if laws.held_out else "log p"
    apart = ", ".join(f"{row.model} {row.difference:+.2g} ({row.difference_std:.1g})" for row in others)
    by_aic = min(laws.rows, key=lambda row: row.aic).model
    told = f"{best.model} {best.log_likelihood:.5g} ({best.std:.1g})"
    return f"laws of a step, {kind} per pair: {told}; {apart}; AIC: {by_aic}"


def off(fit: FitCheck) -> str:
    """How wrong probabilities are, and, which that does not bound, how wrong those of the rarest steps are."""
    text = f"probabilities off by at most {100 * fit.gap:.2g} percentage points"
    if fit.rare:
        level = min(fit.rare)
        text += f", steps as rare as {level:.2%} are {fit.rare[level]:.2g} times as frequent as the law says"
    return text
