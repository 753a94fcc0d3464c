"""diagnose(): does the law fit, does the data need jumps, is the step short enough, are several steps predicted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from levytorch.convert import whole_number
from levytorch.data import Trajectories, Transitions
from levytorch.diagnostics.alarms import earlier_alarms, raise_alarms
from levytorch.diagnostics.brownian import check_jumps
from levytorch.diagnostics.diagnosis import Diagnosis
from levytorch.diagnostics.exact_step_size import check_exact_step_size
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.goodness import FitCheck, check_fit, goodness_arrays
from levytorch.diagnostics.law_table import table_of_laws
from levytorch.diagnostics.predictive import PredictiveCheck, check_predictions
from levytorch.diagnostics.sample import Region, Sample, make_sample
from levytorch.diagnostics.step_size import Skipped, StepCheck, check_step_size
from levytorch.diagnostics.tangent import Tangent
from levytorch.errors import InputError, LevytorchError, LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.training.covariate import unmodulated
from levytorch.training.law_of import law_of
from levytorch.training.line import inside
from levytorch.training.recovery import Recovery

CHECKS = ("fit", "jumps", "step_size", "predictive")
ALL_CHECKS = (*CHECKS, "laws")
MAX_PAIRS = 100_000
_COST = {1: 1, 2: 8, 3: 2}  # a tail mass in d dimensions, in those of one
_FEWEST = 50


def diagnose(
    recovery: Recovery,
    data: Transitions | Trajectories,
    *,
    checks: Sequence[str] = CHECKS,
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> Diagnosis:
    """Check a recovery against the data it was made from.

    Args:
        data: the transitions (censored ones as they were fitted), or trajectories that were not censored.
        checks: which of "fit", "jumps", "step_size", "predictive" and "laws" (a table of laws on the same pairs, which
            train.py makes where the truth is not known).
        max_pairs: at most so many pairs are looked at, in blocks drawn at random: the cost does not grow with the data.
        seed: of that choice and of the draws from the fitted law.

    Every alarm is also a LevytorchWarning.

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 500, 40, 1 / 40, seed=1).transitions()
        >>> found = diagnose(recover(data, alpha=0.3, n_basis=1), data)
        >>> found.ok, found.fit.p_value > 0.001, found.jumps.needed
        (True, True, True)
    """
    began = time.perf_counter()
    check_options(checks, max_pairs)
    transitions = check_data(recovery, data)
    region = Region.of(recovery)
    law = law_of(recovery)
    exact = None
    if isinstance(law, ExactLaw):
        exact = ExactTangent(recovery.head, region, transitions.mu, uniform_dt=transitions.uniform_dt)
    diagnosis = Diagnosis()
    scale = 1.0
    if "step_size" in checks:
        step = _attempt(_step_size, recovery, transitions, region, exact, most=max_pairs, seed=seed)
        diagnosis.step_size = step
        if isinstance(step, StepCheck) and recovery.dim == 1:
            diagnosis.arrays["step_size"] = step.arrays()
    if "fit" in checks or "jumps" in checks:
        sample = make_sample(transitions, region, max(_FEWEST, max_pairs // _COST[recovery.dim]), seed)
        scale = 1.0 / sample.share
        tangent: Tangent | ExactTangent
        if isinstance(law, ExactLaw):
            assert exact is not None
            tangent = exact
        else:
            tangent = Tangent(recovery.head, law, region, transitions.mu, sample.step_dt)
        _laws(diagnosis, sample, tangent, checks, seed)
    if "predictive" in checks:
        ahead = _attempt(check_predictions, recovery.head, transitions, region, exact=exact is not None, seed=seed)
        diagnosis.predictive = ahead
        if isinstance(ahead, PredictiveCheck):
            diagnosis.arrays["predictive"] = ahead.arrays
    if "laws" in checks:
        strengths = recovery.metrics.get("penalty_strengths")
        diagnosis.laws = _attempt(table_of_laws, recovery.head, transitions, region, strengths, seed=seed)
    found = raise_alarms(diagnosis, recovery, scale)
    diagnosis.alarms = earlier_alarms(recovery) | found
    diagnosis.seconds = time.perf_counter() - began
    for sentence in found.values():
        warnings.warn(sentence, LevytorchWarning, stacklevel=2)
    return diagnosis


def check_options(checks: Any, max_pairs: Any) -> None:
    """Refuse options that mean nothing."""
    if not isinstance(checks, (list, tuple)) or not all(isinstance(c, str) and c in ALL_CHECKS for c in checks):
        raise InputError(f"checks must be some of {', '.join(ALL_CHECKS)}, found {checks!r}; pass a list of these.")
    whole_number("max_pairs", max_pairs, 1000, remedy="100000 is the default")


def check_data(recovery: Any, data: Any) -> Transitions:
    """Refuse what cannot be diagnosed; trajectories become transitions."""
    if not isinstance(recovery, Recovery):
        raise InputError(f"recovery must be a Recovery, found {type(recovery).__name__}; make one with recover().")
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"data must be Transitions or Trajectories, found {type(data).__name__}; pass what was fitted."
        )
    if transitions.dim != recovery.dim:
        raise InputError(
            f"data must have the dimension of the recovery, {recovery.dim}, found {transitions.dim}; pass what was "
            "fitted."
        )
    if recovery.period is None:  # a law of dx given x holds for any selection of x, and this is the one that was fitted
        kept = inside(transitions, recovery.head.bounds)
        assert isinstance(kept, Transitions)
        transitions = kept
    return unmodulated(recovery, transitions)


def _laws(
    diagnosis: Diagnosis, sample: Sample, tangent: Tangent | ExactTangent, checks: Sequence[str], seed: int
) -> None:
    """The two checks that look at single pairs under the fitted law."""
    if len(sample) < _FEWEST:
        diagnosis.fit = diagnosis.jumps = Skipped(
            f"only {len(sample)} pairs lie where the law was fitted and {_FEWEST} are needed; bring more data"
        )
        return
    fit = _attempt(check_fit, tangent, sample, seed=seed)
    if "fit" in checks:
        diagnosis.fit = fit
        if isinstance(fit, FitCheck):
            diagnosis.arrays["fit"] = goodness_arrays(fit, sample, tangent.head)
    if "jumps" in checks:
        log_p = fit.log_p if isinstance(fit, FitCheck) else None
        diagnosis.jumps = fit if log_p is None else _attempt(check_jumps, tangent, sample, log_p)


def _step_size(
    recovery: Recovery, transitions: Transitions, region: Region, exact: ExactTangent | None, **options: Any
) -> StepCheck | Skipped:
    strengths = recovery.metrics.get("penalty_strengths")
    if exact is not None:
        n = recovery.metrics.get("n_main", len(transitions))
        return check_exact_step_size(exact, transitions, strengths=strengths, n_fitted=n, **options)
    return check_step_size(recovery.head, transitions, region, strengths=strengths, **options)


def _attempt(check: Any, *arguments: Any, **options: Any) -> Any:
    """A check that breaks down says so; the fit it looks at is there all the same."""
    try:
        return check(*arguments, **options)
    except LevytorchError as error:
        return Skipped(f"it broke down: {error}")  # says itself what to do
    except torch.linalg.LinAlgError:
        return Skipped(
            "its equations have no solution, because the data does not determine all coefficients; use engine=evidence "
            "(penalty='evidence'), fewer basis functions (n_basis), or a period near the range of the data"
        )
