"""Which law a fit ends under, and the fits under the exact law of a step, from the solution under the frozen one.

Under law "auto" it is the best that is to be had in reasonable time. Where the exact law is available, and the frozen
one neither exact already (constant coefficients) nor good (its answer would move by less than a tenth of a standard
error), the fit goes on from the frozen law's maximum under the exact law; where that would take too long, under the
corrected one; and where even that would, or the exact law is not available, the drift is freed of its bias to first
order.

The data of such a fit is a lattice; beyond one period log p carries the period of the coefficients, and pairs stay as
they are. A linear head goes to the root of the centered score first (law "corrected"), then, under law "exact", on by
Fisher scoring with the exact law's own information as curvature. Any other head climbs by L-BFGS.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead, SplineHead
from levytorch.data import Pools, Transitions
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.corrected import Informations, Strata, informations
from levytorch.likelihood.drift_bias import drift_step, moved_or_refused, shown_by_steps
from levytorch.likelihood.exact import MANY_STEPS, ExactLaw
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood, counts_on
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.ranks import Ranks
from levytorch.training.engines.base import Engine
from levytorch.training.finish import Ended
from levytorch.training.phases import ROUNDS, Corrected
from levytorch.training.recovery import Recovery

SECONDS = 60.0  # that auto may take beyond the frozen fit
GOOD = 0.1  # standard errors that the frozen law may be off
_ODDS = 3.0  # log odds for steps along which coefficients are held, beyond which they are taken for such
_EVALUATIONS = {True: 8, False: 80}  # that a linear head, and any other, is expected to take
_FORWARD, _GROWTH = 0.03, 2.5  # seconds of a forward evaluation on 65 points (two cores of 2026), and its power of n
_GRADIENT = 6.0  # what one with gradient costs, in forward evaluations as the corrected law takes them
_INFORMATION = 20.0  # and what the information costs
ACCURATE = 1e-4  # of log p; above it a fit is told to be inaccurate
# On a line the padding limits what far jumps are worth: a coarser grid will do, and accuracy is asked for where nearly
# all steps are
LINE_TOLERANCE, LINE_ACCURATE = 0.1, 1e-3
TIGHTER = 1e-3  # times the tolerance, where that was not enough
_FARTHEST = 2.5  # periods within which a lattice may stand for its pairs
MOVED = 0.5  # standard errors, over all parameters together, within which an information matrix stays what it is


def check_exact(head: Head, data: Transitions | Lattice, *, started: bool = True) -> None:
    """Refuse data that the exact law does not know, before anything is fitted."""
    lacking = unavailable(head, data, started=started)
    if lacking is not None:
        needed, found = lacking
        raise InputError(f'law "exact" must have {needed}, found {found}; use law="auto".')


def unavailable(head: Head, data: Transitions | Lattice, *, started: bool = True) -> tuple[str, str] | None:
    """What the exact law must have, and what was found, where it cannot be had for this head and data; else None.

    started: whether the head has the scale of the data.
    """
    if head.dim > 1:
        return "one-dimensional data", f"{head.dim} coordinates"
    if head.period is None and not isinstance(head, SplineHead):
        return "a head with a period, or splines on a line", f"a {type(head).__name__}"
    if head.period is None and isinstance(data, Lattice):
        return "the pairs themselves on a line", "a lattice"
    if not getattr(head, "periodic", True):
        return "a head with a period", "one without"
    if head.alpha_spec.mode == "function":
        return "one alpha", "alpha as a function of x"
    steps = distinct_steps(data)
    if len(steps) > MANY_STEPS:
        return f"at most {MANY_STEPS} distinct dt", "more"
    try:
        for dt in steps if started else ():
            ExactLaw().rule(head, dt)
    except InputError as error:
        return "steps that a grid can hold", f"others ({error})"
    return None


def distinct_steps(data: Transitions | Lattice) -> list[float]:
    """The distinct dt, up to rounding, and one more than the exact law takes at most."""
    if isinstance(data, Lattice):
        return data.dt.tolist()
    if data.uniform_dt:
        return [float(data.dt[0])]
    distinct = np.empty(0)
    for rows in data.blocks():
        distinct = np.unique(np.concatenate([distinct, data.dt[rows].numpy()]))
        distinct = distinct[np.diff(distinct, prepend=-1.0) > 1e-6 * distinct]
        if len(distinct) > MANY_STEPS:
            break
    return distinct.tolist()


def without_drift_bias(ended: Ended, law: str, reason: str) -> tuple[Recovery, Likelihood]:
    """Where the exact law is not to be had: the frozen law's answer, without the bias of its drift."""
    recovery, likelihood = ended.frozen(reason)
    head, bins = likelihood.head, likelihood.bins
    if not isinstance(head, LinearHead) or head.alpha_spec.mode == "function" or bins is None:
        return recovery, likelihood
    if law == "auto" and head.dim == 1 and (told := _held(ended, head)):
        recovery.metrics["law_reason"] += f"; {told}"
        return recovery, likelihood
    objective = ended.engine.objective(likelihood, ended.done.optimizer, ended.batch)
    ev = objective.evaluate()
    shift = ended.ranks.same(drift_step(objective, ev, counts_on(bins, ended.observed)))
    if law == "auto" and (recovery.covariance is None or _standard_errors(head, shift, recovery.covariance) < GOOD):
        recovery.metrics["law_reason"] += f"; the drift is off by less than {GOOD} standard errors"
        return recovery, likelihood
    if told := moved_or_refused(objective, ev, shift):
        recovery.metrics["law_reason"] += f"; {told}"
        return recovery, likelihood
    recovery.shift = shift
    recovery.metrics |= {"law": "corrected", "law/correction": "drift"}
    return recovery, likelihood


def _held(ended: Ended, head: LinearHead) -> str:
    """A sentence where the data itself says that coefficients are held along a step, as by Euler's rule; or nothing."""
    S, J = map(float, ended.ranks.sum(shown_by_steps(head, ended.batch.main)))
    if not S - 0.5 * J < -_ODDS:
        return ""
    return f"steps show {S / J:.2f} +- {J**-0.5:.2f} of the change of D_o along them that an equation asks for"


def affordable(setting: FitUnderLaw, head: Head) -> tuple[str, str]:
    """The law that auto can afford, and why.

    Times are nominal, from the size of the grid alone: the answer must not depend on the load of the machine, or on
    whether kernels were compiled before.
    """
    sizes = [setting.law.rule(head, dt).n for dt in setting.lattice.dt.tolist()]
    one = sum(_FORWARD * (n / 65) ** _GROWTH for n in sizes)
    linear = isinstance(head, LinearHead)
    corrected = one * (ROUNDS + 2 * _INFORMATION)
    exact = one * _GRADIENT * _EVALUATIONS[linear] + (corrected if linear else 0.0)
    if head.window is not None and corrected < SECONDS:
        # where a far jump lands the padding is wrong: the likelihood asks for it, the frozen law's score hardly does
        return "corrected", "a state on a line, whose frozen law would be off by more than a tenth of a standard error"
    if exact < SECONDS:
        return "exact", "available, and the frozen law would be off by more than a tenth of a standard error"
    too_long = f"the exact law would take about {exact:.0f} s on a grid of {max(sizes)} points, more than {SECONDS:g} s"
    return ("corrected", too_long) if linear and corrected < SECONDS else ("frozen", too_long)


def off_by(first: Corrected, head: Head, before: Tensor, penalty: RoughnessPenalty | None, n: float) -> float:
    """How far the frozen law's answer is from the corrected one, in its standard errors, where that is farthest."""
    information = n * first.informations.corrected.godambe
    if penalty is not None and penalty.active:
        information = information + torch.diag(penalty.precision())
    return _standard_errors(head, head.flat() - before, symmetric_inverse(information))


def _standard_errors(head: Head, moved: Tensor, covariance: Tensor) -> float:
    """How far coefficients move with theta, in standard errors, where that is farthest."""
    farthest = 0.0
    for J in head.jacobian(head.grid(128 if head.dim == 1 else 400)):
        std = ((J @ covariance) * J).sum(-1).clamp(min=0.0).sqrt()
        farthest = max(farthest, float(((J @ moved).abs() / std.clamp(min=1e-300)).max()))
    return farthest


def law_of(recovery: Recovery) -> FrozenLaw | ExactLaw:
    """For `log_prob(recovery.head, x, dx, dt)` and the masses beyond: exact unless the fit was frozen. Of coefficients
    that are corrected the exact law is right, the frozen one is not.

    An ExactLaw chooses its grid for the head and the dt it is asked for, and keeps its tables until they change.
    """
    if recovery.law == "frozen" or recovery.shift is not None:  # corrected where the exact law is not to be had
        return FrozenLaw(steady_method("auto", recovery.head), recovery.dim)
    return ExactLaw()


class FitUnderLaw:
    """The data of a fit as a lattice, the frozen law's likelihood of it, and the exact law for the head as it is."""

    def __init__(self, likelihood: Likelihood, engine: Engine, data: Pools | Lattice, ranks: Ranks) -> None:
        """likelihood: of the frozen law, whose head is the one that will move."""
        head = likelihood.head
        self.lattice = _lattice(data, head, ranks)
        self.likelihood = Likelihood(head, likelihood.law, likelihood.tail, likelihood.correction)
        self.likelihood.observe(self.lattice, engine.n_bins)
        self.strata = Strata.of(likelihood.tail, self.lattice)
        self.tolerance, self.accurate = (
            (TOLERANCE, ACCURATE) if head.window is None else (LINE_TOLERANCE, LINE_ACCURATE)
        )
        self.settle()

    @cached_property
    def batch(self) -> FullBatch:
        return self.lattice.full_batch()

    @property
    def frozen(self) -> FrozenLaw:
        assert isinstance(self.likelihood.law, FrozenLaw)
        return self.likelihood.law

    def around(self, penalty: RoughnessPenalty | None) -> FullBatchObjective:
        """The frozen law's objective, with a penalty that has been found already."""
        objective = self.likelihood.objective(self.batch)
        objective.penalty = penalty
        return objective

    def settle(self) -> None:
        """Choose the rules for the head as it now is."""
        self.law = ExactLaw(self.tolerance).fixed(self.likelihood.head, torch.from_numpy(self.lattice.dt))

    def error(self) -> float:
        """Of log p, against a finer rule."""
        return max(self.law.accuracy(self.likelihood.head, dt) for dt in self.lattice.dt.tolist())

    def informations(self, R_theta: float | None) -> Informations:
        return informations(self.likelihood.head, self.frozen, self.law, self.strata, R_theta)

    def exact_likelihood(self) -> Likelihood:
        """That of the exact law."""
        masses = self.likelihood.masses
        masses = None if masses is None else replace(masses, law=self.law)
        return replace(self.likelihood, law=self.law, masses=masses)

    def metrics(self, law: str, error: float) -> dict[str, Any]:
        """What every such fit reports; warns of a rule that is not fine enough."""
        if not error < self.accurate:
            warnings.warn(
                f"log p must be accurate to {self.accurate:g} under the exact law, found {error:.1g} at the solution "
                "against a finer grid; use fewer basis functions, or engine evidence.",
                LevytorchWarning,
                stacklevel=3,
            )
        return {"law": law, "law/grid": max(r.n for r in self.law.rules.values()), "law/log_p_error": error}


def _lattice(data: Pools | Lattice, head: Head, ranks: Ranks) -> Lattice:
    if isinstance(data, Pools):
        return lattice_of(data, head.period, head.origin, ranks, reach=head.period)
    if data.reach > _FARTHEST * head.period and (data.TRT > _FARTHEST * head.period).any():
        warnings.warn(
            f"a lattice for the exact law must keep pairs beyond a period of {head.period:g} as they are, found reach "
            f"{data.reach:g}, which may move coefficients by a standard error or so; make it with "
            f"reach={head.period:g}.",
            LevytorchWarning,
            stacklevel=3,
        )
    return data
