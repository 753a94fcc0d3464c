"""diagnose(): does the law fit, does the data need jumps, is the step short enough, are several steps predicted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from levytorch.coefficients import LinearHead
from levytorch.coefficients.layout import ISOTROPIC
from levytorch.convert import seed_of, whole_number
from levytorch.data import Trajectories, Transitions
from levytorch.diagnostics.brownian import check_jumps
from levytorch.diagnostics.diagnosis import Diagnosis, earlier_alarms, may_be_noise, raise_alarms
from levytorch.diagnostics.exact_tangent import ExactTangent
from levytorch.diagnostics.goodness import FitCheck, check_fit, clear_jumps, goodness_arrays
from levytorch.diagnostics.isotropy import check_isotropy
from levytorch.diagnostics.laws import table_of_laws
from levytorch.diagnostics.predictive import PredictiveCheck, check_predictions
from levytorch.diagnostics.sample import Region, data_for, make_sample, subsample
from levytorch.diagnostics.stability import check_time, check_trajectories
from levytorch.diagnostics.step_size import ExactStepSize, Skipped, StepCheck, check_step_size
from levytorch.diagnostics.tail_shares import check_tail_shares
from levytorch.diagnostics.tangent import Tangent
from levytorch.errors import InputError, LevytorchError, LevytorchWarning
from levytorch.law.threads import spread
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.laws import Law
from levytorch.training.recovery import Recovery, law_of

CHECKS = ("fit", "jumps", "step_size", "predictive", "tails", "time", "trajectories")
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
    seed: Any = 0,
) -> Diagnosis:
    """Check a fit against its data: the law, the jumps, the time step, and predictions over several steps.

    Every alarm is also a LevytorchWarning.

    Args:
        recovery: what `recover` returned.
        data: the transitions that were fitted (censored ones as they are), or trajectories that were not censored.
        checks: which of "fit", "jumps", "step_size", "predictive", "tails" (of a fit with the TCF: were tails lost at
            the same rate in all states), "time" and "trajectories" (is the law the same throughout), and "laws" (a
            table of laws on the same pairs).
        max_pairs: at most this many pairs are used, in blocks drawn at random, so that the cost does not grow with
            the data.
        seed: of that choice and of the draws from the fitted law.

    Returns:
        A Diagnosis: `.ok`, `.alarms`, and one result per check, such as `.fit.p_value` and `.jumps.needed`. Print it or
        plot it.

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 500, 40, 1 / 40, seed=1).transitions()
        >>> found = diagnose(recover(data, alpha=0.3, n_basis=1), data)
        >>> found.ok, found.fit.p_value > 0.001, found.jumps.needed
        (True, True, True)
    """
    began = time.perf_counter()
    check_options(checks, max_pairs)
    seed = seed_of(seed)
    given = recovery
    recovery, transitions = data_for(given, data, seed)
    region = Region.of(recovery)
    law = law_of(recovery)
    diagnosis = Diagnosis(seed=seed)
    jobs = _Jobs(diagnosis, recovery, transitions, region, tuple(checks), max_pairs, seed, law)
    # two at a time: together they take about half as long
    spread(lambda checks: [check() for check in checks], jobs.apart())
    jobs.join()
    if "laws" in jobs.checks:
        strengths = roughness_of(recovery)
        noise = may_be_noise(given)
        diagnosis.laws = _attempt(table_of_laws, recovery.head, transitions, region, strengths, seed=seed, noise=noise)
    found = raise_alarms(diagnosis, given, jobs.scale)
    diagnosis.alarms = earlier_alarms(given) | found
    diagnosis.seconds = time.perf_counter() - began
    for sentence in found.values():
        warnings.warn(sentence, LevytorchWarning, stacklevel=2)
    return diagnosis


def check_options(checks: Any, max_pairs: Any) -> None:
    """Refuse options that mean nothing."""
    if not isinstance(checks, (list, tuple)) or not all(isinstance(c, str) and c in ALL_CHECKS for c in checks):
        raise InputError(f"checks must be some of {', '.join(ALL_CHECKS)}, found {checks!r}; pass a list of these.")
    whole_number("max_pairs", max_pairs, 1000, remedy="100000 is the default")


@dataclass
class _Jobs:
    """The checks in two lists of about the same length, neither of which needs what the other finds."""

    diagnosis: Diagnosis
    recovery: Recovery
    transitions: Transitions
    region: Region
    checks: tuple[str, ...]
    max_pairs: int
    seed: int
    law: Law
    scale: float = 1.0
    sides: dict[str, Any] = field(default_factory=dict)
    exact: ExactTangent | None = None
    two_lengths: ExactStepSize | Skipped | None = None  # of the exact law

    def apart(self) -> list[list[Callable[[], None]]]:
        if not isinstance(self.law, (FrozenLaw, ExactLaw)):
            for name in set(self.checks) - {"laws"}:
                text = f"checks of a fit support the frozen and the exact law, not {self.law.name}; use compare"
                setattr(self.diagnosis, name, Skipped(text))
            return []
        if self.recovery.head.noise is not ISOTROPIC:
            for name in set(self.checks) - {"predictive"}:
                text = "checks of single steps support a D_o that is a number, not a matrix; use predictive, or compare"
                setattr(self.diagnosis, name, Skipped(text))
            self.checks = tuple(name for name in self.checks if name == "predictive")
        if not isinstance(self.law, ExactLaw):
            return [[self._laws], [self._step_size, self._ahead]]
        uniform = self.transitions.uniform_dt
        self.exact = ExactTangent(self.recovery.head, self.region, self.transitions.mu, uniform_dt=uniform)
        if "step_size" in self.checks:
            n = self.recovery.metrics.get("n_main", len(self.transitions))
            options = {"strengths": self._strengths, "n_fitted": n, "most": self.max_pairs, "seed": self.seed}
            self.two_lengths = _attempt(ExactStepSize, self.exact, self.transitions, **options)
        return [[partial(self._side, "short"), self._laws], [partial(self._side, "long"), self._ahead]]

    def join(self) -> None:
        """What needs the results of both."""
        lengths = self.two_lengths
        if isinstance(lengths, ExactStepSize):
            skipped = next((s for s in (lengths.skipped, *self.sides.values()) if isinstance(s, Skipped)), None)
            self.diagnosis.step_size = skipped or _attempt(lengths.test, self.sides["short"], self.sides["long"])
        elif lengths is not None:
            self.diagnosis.step_size = lengths
        step, ahead = self.diagnosis.step_size, self.diagnosis.predictive
        if isinstance(step, StepCheck) and self.recovery.dim == 1:
            self.diagnosis.arrays["step_size"] = step.arrays()
        if isinstance(ahead, PredictiveCheck):
            self.diagnosis.arrays["predictive"] = ahead.arrays

    @property
    def _strengths(self) -> list[float] | None:
        return roughness_of(self.recovery)

    def _step_size(self) -> None:
        if "step_size" in self.checks:
            options = {"strengths": self._strengths, "most": self.max_pairs, "seed": self.seed}
            self.diagnosis.step_size = _attempt(
                check_step_size, self.recovery.head, self.transitions, self.region, **options
            )

    def _side(self, name: str) -> None:
        if isinstance(self.two_lengths, ExactStepSize) and self.two_lengths.skipped is None:
            self.sides[name] = _attempt(getattr(self.two_lengths, name))

    def _laws(self) -> None:
        """The two checks that look at single pairs under the fitted law."""
        checks, diagnosis, seed = self.checks, self.diagnosis, self.seed
        tails = "tails" in checks and self.recovery.metrics.get("tail_method") == "tcf" and not self.region.whole
        if not tails and not {"fit", "jumps", "time", "trajectories"} & set(checks):
            return
        most = max(_FEWEST, self.max_pairs // _COST[self.recovery.dim])
        sample = make_sample(self.transitions, self.region, most, seed)
        self.scale = 1.0 / sample.share
        if len(sample) < _FEWEST:
            diagnosis.fit = diagnosis.jumps = diagnosis.time = diagnosis.trajectories = Skipped(
                f"only {len(sample)} pairs lie where the law was fitted and {_FEWEST} are needed; use more data"
            )
            return
        tangent: Tangent | ExactTangent
        if isinstance(self.law, ExactLaw):
            assert self.exact is not None
            tangent = self.exact
        else:
            assert isinstance(self.law, FrozenLaw)
            tangent = Tangent(self.recovery.head, self.law, self.region, self.transitions.mu, sample.step_dt)
        fit = _attempt(check_fit, tangent, sample, seed=seed)
        if isinstance(fit, FitCheck) and self.recovery.metrics.get("tail_method") == "tcf":
            fit.jumps += self._jumps_in_the_tail(most)
        if "fit" in checks:
            diagnosis.fit = fit
            diagnosis.isotropy = check_isotropy(self.recovery.head, sample)
            if isinstance(fit, FitCheck):
                diagnosis.arrays["fit"] = goodness_arrays(fit, sample, tangent.head)
        if "jumps" in checks and tangent.head.without_jumps:
            diagnosis.jumps = Skipped("D_f is zero, so that the fit has no jumps")
        elif "jumps" in checks:
            log_p = fit.log_p if isinstance(fit, FitCheck) else None
            diagnosis.jumps = fit if log_p is None else _attempt(check_jumps, tangent, sample, log_p)
        for name, check in (("time", check_time), ("trajectories", check_trajectories)):
            if name in checks:
                same = _attempt(check, tangent, fit, sample) if isinstance(fit, FitCheck) else fit
                setattr(diagnosis, name, same)
        if tails:
            options = (self.transitions, self.region, most, seed)
            diagnosis.tails = _attempt(check_tail_shares, tangent, fit, *options) if isinstance(fit, FitCheck) else fit

    def _jumps_in_the_tail(self, most: int) -> int:
        """Clear jumps among the pairs beyond CT, which the TCF uses as well."""
        chosen = subsample(self.transitions, most, self.seed)
        beyond = (self.region.labels(chosen.deviation, chosen.dt) < 0) & (
            Region(removed=self.region.removed).labels(chosen.deviation, chosen.dt) == 0
        )
        if not bool(beyond.any()):
            return 0
        pairs = chosen[beyond]
        return clear_jumps(self.recovery.coefficients(pairs.x), pairs.dx, pairs.dt)

    def _ahead(self) -> None:
        if "predictive" in self.checks:
            exact = isinstance(self.law, ExactLaw)
            options = {"exact": exact, "covariance": self.recovery.covariance, "seed": self.seed}
            self.diagnosis.predictive = _attempt(
                check_predictions, self.recovery.head, self.transitions, self.region, **options
            )


def roughness_of(recovery: Recovery) -> list[float] | None:
    """Strengths of the roughness penalty of a fit; those of a network are of its weights, and say nothing of others."""
    return recovery.metrics.get("penalty_strengths") if isinstance(recovery.head, LinearHead) else None


def _attempt(check: Any, *arguments: Any, **options: Any) -> Any:
    """A check that breaks down says so; the fit it looks at is there all the same."""
    try:
        return check(*arguments, **options)
    except LevytorchError as error:
        return Skipped(f"it failed: {error}")  # says itself what to do
    except torch.linalg.LinAlgError:
        return Skipped(
            "its equations have no solution, because the data does not determine all coefficients; use "
            "engine='evidence', fewer basis functions (n_basis), or a period near the range of the data"
        )
