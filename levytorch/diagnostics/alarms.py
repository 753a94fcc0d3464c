"""From numbers to sentences: when a check deserves a warning."""

from __future__ import annotations

from levytorch.diagnostics.brownian import JumpCheck
from levytorch.diagnostics.diagnosis import FEW_JUMPS, INSEPARABLE, SURE, Diagnosis
from levytorch.diagnostics.goodness import FitCheck
from levytorch.diagnostics.step_size import StepCheck
from levytorch.training.recovery import Recovery

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
    fit, jumps, step = diagnosis.fit, diagnosis.jumps, diagnosis.step_size
    if isinstance(fit, FitCheck):
        if fit.p_value < SURE:
            worst = min((name for name in fit.parts), key=lambda name: fit.parts[name][0])
            out["misfit"] = (
                f"the fitted law does not describe these steps (p = {fit.p_value:.1g}): {_PARTS[worst]}, and "
                f"probabilities are off by up to {fit.gap:.1%}; look at the figure before using the coefficients."
            )
        if fit.conservative:
            out["away_from_maximum"] = (
                f"the estimate is {fit.away:.1f} standard errors per parameter away from the largest likelihood of "
                "these pairs (an engine that stopped early, or a coefficient at zero): the p-value is conservative "
                "and standard errors do not hold."
            )
        if fit.correlation > INSEPARABLE and "D_o_D_f_correlation" not in recovery.metrics:
            out["hardly_separable"] = (
                f"D_o and D_f are hardly separable from this data (correlation {fit.correlation:.3f} of their "
                "estimates): trust their combined effect, not each alone, or fix one."
            )
        if fit.jumps * scale < FEW_JUMPS:
            out["few_jumps"] = (
                f"only {round(fit.jumps * scale)} steps are clearly jumps (beyond six widths of the Gaussian part): "
                "D_f and a learned alpha rest on them; bring more data or give alpha."
            )
    if isinstance(jumps, JumpCheck) and not jumps.needed:
        out["jumps_not_needed"] = (
            f"a law without jumps describes the data as well (log-likelihood {jumps.gain:+.3g} for {jumps.extra} more "
            f"parameters, BIC {jumps.bic:+.3g}): do not read anything into D_f."
        )
    if isinstance(step, StepCheck):
        if step.p_value < SURE:
            out["step_size"] = (
                f"the coefficients change when every second observation is used (p = {step.p_value:.1g}, up to "
                f"{step.max_z:.1f} standard errors; {step.changes()}): if the law fits otherwise, the coefficients "
                "vary within a step, the estimates are off by about as much, and shorter steps are needed."
            )
        if not step.converged:
            out["step_size_not_converged"] = (
                "a fit of the step-size check stopped before it had converged: read its numbers with care."
            )
    return out


def earlier_alarms(recovery: Recovery) -> dict[str, str]:
    """What the fit itself has warned of already."""
    out: dict[str, str] = {}
    metrics = recovery.metrics
    if not recovery.converged:
        out["not_converged"] = "the engine stopped before it had converged."
    if metrics.get("D_o_D_f_correlation", 0.0) > INSEPARABLE:
        out["hardly_separable"] = f"D_o and D_f have a correlation of {metrics['D_o_D_f_correlation']:.3f}."
    if metrics.get("CT_halvings", 0) > 0:
        out["few_tail_points"] = f"CT was halved {metrics['CT_halvings']} times to fill the tail pool."
    return out
