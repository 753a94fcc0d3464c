"""What deserves a second look, each with a sentence that says why and what to do."""

from __future__ import annotations

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.comparison import Comparison
from levytorch.diagnostics.components import p_text
from levytorch.diagnostics.diagnosis import SURE, Diagnosis
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.predictive import PredictiveCheck
from levytorch.diagnostics.step_size import StepCheck
from levytorch.training.recovery import Recovery

FEW_JUMPS = 30
INSEPARABLE = 0.98
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


def raise_alarms(diagnosis: Diagnosis, recovery: Recovery, scale: float) -> dict[str, str]:
    """New alarms of these checks, by name; `scale`: pairs of the data per pair that was looked at."""
    out: dict[str, str] = {}
    fit, jumps, step, ahead = diagnosis.fit, diagnosis.jumps, diagnosis.step_size, diagnosis.predictive
    if isinstance(diagnosis.laws, Comparison):
        out |= _of_laws(diagnosis.laws, recovery)
    if isinstance(fit, FitCheck):
        out |= _of_fit(fit, recovery, scale)
    if isinstance(jumps, JumpCheck) and not jumps.needed:
        out["jumps_not_needed"] = (
            f"a law without jumps describes the data as well (BIC {jumps.bic:+.3g} for {jumps.extra} more parameters); "
            "do not read anything into D_f."
        )
    if isinstance(step, StepCheck):
        if step.p_value < SURE:
            out["step_size"] = (
                f"the coefficients change by up to {step.max_z:.1f} standard errors when every second observation is "
                f"used ({p_text(step.p_value)}): {_cause(step, fit, recovery.dim)}."
            )
        if not step.converged:
            out["step_size_not_converged"] = (
                "a fit of the step-size check stopped before it had converged; read its numbers with care."
            )
    if isinstance(ahead, PredictiveCheck) and ahead.p_value < SURE:
        out["predictive"] = (
            f"the fit does not predict several steps ahead ({p_text(ahead.p_value)}): {ahead.sentence()}; find the "
            "cause before forecasts or values."
        )
    return out


def _of_laws(laws: Comparison, recovery: Recovery) -> dict[str, str]:
    """Another law of a step that describes the same pairs clearly better."""
    rows = {row.model: row for row in laws.rows}
    best, ours = laws.rows[0], rows["tempered"]
    if best.model in ("Student t", "NIG") and -ours.difference > _BETTER * ours.difference_std:
        return {
            "other_law": f"{best.model} describes the steps better than the tempered law ({-ours.difference:.2g} per "
            f"pair in log-likelihood, standard error {ours.difference_std:.1g}): constants of this model class may not "
            "be what the data is; let the coefficients depend on x."
        }
    plain = rows["stable"]
    gain = ours.log_likelihood - plain.log_likelihood
    better = gain > _BETTER * plain.difference_std and plain.aic - ours.aic > _AIC
    if not recovery.head.tempered and best is ours and better:
        return {
            "tempered_jumps": f"jumps have an end: the tempered law describes the steps better than the stable one "
            f"({gain:.2g} per pair in log-likelihood, standard error {plain.difference_std:.1g}); use tempering=learn."
        }
    return {}


def _of_fit(fit: FitCheck, recovery: Recovery, scale: float) -> dict[str, str]:
    out: dict[str, str] = {}
    if fit.p_value < SURE:
        failed = sorted((part[0], name) for name, part in fit.parts.items() if part[0] < SURE)
        named = [name for _, name in failed] or [min(fit.parts, key=lambda name: fit.parts[name][0])]
        out["misfit"] = (
            f"the law does not fit: {', and '.join(_PARTS[name] for name in named)} ({p_text(fit.p_value)}); look at "
            "figures/diagnostics_fit before using the coefficients."
        )
    if fit.conservative:
        out["away_from_maximum"] = (
            f"the estimate is {fit.away:.1f} standard errors per parameter from the largest likelihood, so that "
            "standard errors do not hold; let the engine converge, or drop a coefficient that is zero."
        )
    if fit.correlation > INSEPARABLE and "D_o_D_f_correlation" not in recovery.metrics:
        out["hardly_separable"] = (
            f"D_o and D_f are hardly separable here (correlation {fit.correlation:.3f} of their estimates); "
            "trust their combined effect, or fix one (D_o=<number> or D_f=<number>)."
        )
    if fit.jumps * scale < FEW_JUMPS:
        out["few_jumps"] = (
            f"only {round(fit.jumps * scale)} steps are clearly jumps, on which D_f and a learned alpha rest; "
            "bring more data or give alpha."
        )
    return out


def _cause(step: StepCheck, fit: object, dim: int) -> str:
    """Why coefficients change with dt, from what successive steps have to do with each other."""
    found = []
    misfit = False
    if isinstance(fit, FitCheck):
        misfit = fit.p_value < SURE
        if fit.sign is not None and fit.sign[1] < -_CLEAR:
            found.append(
                f"a step is partly undone by the next (correlation {fit.sign[0]:.2f}), as with noise of the "
                "observations, which longer steps feel less"
            )
        if fit.sign is not None and fit.sign[1] > _CLEAR:
            found.append(f"a step is partly repeated by the next (correlation {fit.sign[0]:.2f}), a memory")
        if fit.size is not None and fit.size[1] > _CLEAR:
            found.append(
                f"large steps follow large ones (correlation {fit.size[0]:.2f} of their sizes), as with a volatility "
                "that comes and goes"
            )
    if found:
        return f"{', and '.join(found)}; the model has independent steps"
    if step.law == "exact":
        return "the process is not the one that was fitted, which has the same coefficients at any dt"
    vary = "the coefficients vary within a step"
    if dim == 1:
        vary += ' (law="exact" follows them along it)'
    if misfit or not isinstance(fit, FitCheck):
        return f"{vary}, or the law of a step is another one"
    return vary if dim == 1 else f"{vary}, and shorter steps would be more accurate"


def earlier_alarms(recovery: Recovery) -> dict[str, str]:
    """What the fit itself has warned of already."""
    out: dict[str, str] = {}
    metrics = recovery.metrics
    if not recovery.converged:
        why = f" ({metrics['not_converged']})" if "not_converged" in metrics else ""
        out["not_converged"] = f"the engine stopped before it had converged{why}; raise engine.max_steps."
    if metrics.get("D_o_D_f_correlation", 0.0) > INSEPARABLE:
        correlation = f"{metrics['D_o_D_f_correlation']:.3f}"
        out["hardly_separable"] = f"D_o and D_f have a correlation of {correlation}; trust their combined effect."
    if metrics.get("CT_halvings", 0) > 0:
        halvings = metrics["CT_halvings"]
        out["few_tail_points"] = f"CT was halved {halvings} times to fill the tail pool; lower tail.CT or add data."
    return out
