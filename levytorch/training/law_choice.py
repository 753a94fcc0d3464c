"""Which law a fit ends under: what was asked for, or, with law "auto", the best that is to be had in reasonable time.

Where the exact law is available, and the frozen one neither exact already (constant coefficients) nor good (its answer
would move by less than a tenth of a standard error), the fit goes on from the frozen law's maximum under the exact law;
where that would take too long, under the corrected one; and where even that would, or the exact law is not available,
the drift is freed of its bias to first order.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter as clock

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead, SplineHead
from levytorch.coefficients.padded import on_a_cell
from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.errors import InputError
from levytorch.likelihood.drift_bias import drift_step, shown_by_steps
from levytorch.likelihood.exact import MANY_STEPS, ExactLaw
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood, counts_on
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.ranks import Ranks
from levytorch.training.exact_engines import ROUNDS, Corrected
from levytorch.training.exact_fit import Setting, corrected_start, fit_any, fit_linear
from levytorch.training.finish import Ended
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings

SECONDS = 60.0  # that auto may take beyond the frozen fit
GOOD = 0.1  # standard errors that the frozen law may be off
_ODDS = 3.0  # log odds for steps along which coefficients are held, beyond which they are taken for such
_EVALUATIONS = {True: 8, False: 80}  # that a linear head, and any other, is expected to take
_FORWARD, _GROWTH = 0.03, 2.5  # seconds of a forward evaluation on 65 points (two cores of 2026), and its power of n
_GRADIENT = 6.0  # what one with gradient costs, in forward evaluations as the corrected law takes them
_INFORMATION = 20.0  # and what the information costs


def check_exact(head: Head, data: Transitions | Lattice, *, started: bool = True) -> None:
    """Refuse data that the exact law does not know, before anything is fitted."""
    found = unavailable(head, data, started=started)
    if found is not None:
        raise InputError(f'law "exact" must have {found}; use law="auto".')


def unavailable(head: Head, data: Transitions | Lattice, *, started: bool = True) -> str | None:
    """Why the exact law cannot be had for this head and data ("..., found ..."); None where it can.

    started: whether the head has the scale of the data.
    """
    if head.dim > 1:
        return f"one-dimensional data, found {head.dim} coordinates"
    if head.period is None and not isinstance(head, SplineHead):
        return f"a head with a period, or splines on a line, found a {type(head).__name__}"
    if head.period is None and isinstance(data, Lattice):
        return "the pairs themselves on a line, found a lattice"
    if not getattr(head, "periodic", True):
        return "a head with a period, found one without"
    if head.alpha_spec.mode == "function":
        return "one alpha, found alpha as a function of x"
    steps = distinct_steps(data)
    if len(steps) > MANY_STEPS:
        return f"at most {MANY_STEPS} distinct dt, found more"
    try:
        for dt in steps if started else ():
            ExactLaw().rule(head, dt)
    except InputError as error:
        return f"steps that a grid can hold, found others ({error})"
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


def conclude(ended: Ended, settings: FitSettings, data: Transitions | Lattice) -> tuple[Recovery, Likelihood]:
    """The recovery under the law of the settings, and the likelihood that judges held-out data."""
    law, head = settings.law, ended.likelihood.head
    reason = "asked for"
    if law == "auto" and head.is_constant:
        return ended.frozen("constant coefficients, for which it is exact")
    found = unavailable(head, data)
    if found is not None:
        return without_drift_bias(ended, law, f"the exact law must have {found}")
    began = clock()
    ranks = ended.ranks
    line, head = head, on_a_cell(head)
    setting = Setting.of(replace(ended.likelihood, head=head, ranks=Ranks()), ended.engine, ended.observed, ranks)
    if law == "auto":
        law, reason = affordable(setting, head)
        if law == "frozen":
            return without_drift_bias(ended, "auto", reason)
    if isinstance(head, LinearHead):
        penalty = ended.engine.objective(ended.likelihood, ended.optimizer, ended.batch).penalty
        before, strengths = head.flat(), None if penalty is None else penalty.state()
        first = corrected_start(setting, penalty)
        if settings.law == "auto" and ranks.agree(off_by(first, head, before, penalty, setting.strata.n) < GOOD):
            head.set_flat(before)
            if penalty is not None and strengths is not None:
                penalty.restore(strengths)
            return ended.frozen(f"it is off by less than {GOOD} standard errors everywhere")
        recovery = fit_linear(
            *(setting, ended.engine, penalty, first, ended.facts),
            law=law,
            std=settings.std,
            progress=settings.progress,
        )
    else:
        recovery = fit_any(setting, ended.engine, ended.facts, progress=settings.progress)
    head.set_flat(ranks.same(head.flat()))
    recovery.metrics |= {"law_reason": reason, "law/seconds": clock() - began}
    recovery.head = line  # whose parameters are those of the padded one
    likelihood = setting.exact_likelihood()
    likelihood.ranks = ranks
    return recovery, likelihood


def without_drift_bias(ended: Ended, law: str, reason: str) -> tuple[Recovery, Likelihood]:
    """Where the exact law is not to be had: the frozen law's answer, without the bias of its drift."""
    recovery, likelihood = ended.frozen(reason)
    head, bins = likelihood.head, likelihood.bins
    if not isinstance(head, LinearHead) or head.alpha_spec.mode == "function" or bins is None:
        return recovery, likelihood
    if law == "auto" and head.dim == 1 and (told := _held(ended, head)):
        recovery.metrics["law_reason"] += f"; {told}"
        return recovery, likelihood
    objective = ended.engine.objective(likelihood, ended.optimizer, ended.batch)
    shift = ended.ranks.same(drift_step(objective, objective.evaluate(), counts_on(bins, ended.observed)))
    if law == "auto" and (recovery.covariance is None or _standard_errors(head, shift, recovery.covariance) < GOOD):
        recovery.metrics["law_reason"] += f"; the drift is off by less than {GOOD} standard errors"
        return recovery, likelihood
    head.set_flat(head.flat() + shift)
    recovery.shift = shift
    recovery.metrics |= {"law": "corrected", "law/correction": "drift"}
    return recovery, likelihood


def _held(ended: Ended, head: LinearHead) -> str:
    """A sentence where the data itself says that coefficients are held along a step, as by Euler's rule; or nothing."""
    S, J = map(float, ended.ranks.sum(shown_by_steps(head, ended.batch.main)))
    if not S - 0.5 * J < -_ODDS:
        return ""
    return f"steps show {S / J:.2f} +- {J**-0.5:.2f} of the change of D_o along them that an equation asks for"


def affordable(setting: Setting, head: Head) -> tuple[str, str]:
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
