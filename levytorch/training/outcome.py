"""The recovery of a fit that has ended, in the units of the data, with everything that is known about it."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, linear
from levytorch.coefficients.clock import ClockedHead
from levytorch.coefficients.head import Units
from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.boundary import include_vanished, vanished_later, with_constant
from levytorch.training.drift import with_mean
from levytorch.training.engines.base import engine_facts
from levytorch.training.inputs import covariate_facts
from levytorch.training.memory import range_of_f, with_level
from levytorch.training.phases import Course
from levytorch.training.recovery import Recovery

KEPT = 512
INSEPARABLE = 0.98  # correlation of the estimates of D_o and D_f, and
_KNOWN = 0.5  # relative standard error up to which a coefficient is known all the same


def outcome(course: Course, head: Head) -> tuple[Recovery, Likelihood]:
    """The recovery of the phase whose parameters stand, and the likelihood that it is judged by.

    head: `reported_head`.
    """
    assert course.answer is not None
    recovery, likelihood = course.answer.result()
    if course.vanished is None and course.answer.name in ("corrected", "exact", "simulated"):
        course.vanished = vanished_later(course.end)
    include_vanished(recovery, course.vanished)
    problem, settings, metrics = course.problem, course.problem.settings, recovery.metrics
    log_unit = head.dim * problem.units.log_length
    if course.noise_at_zero is not None:
        metrics["observation_noise"] = {"value": 0.0, "learned": True, **course.noise_at_zero}
    if course.data.blocks is not None and not recovery.observation_noise:
        recovery.blocks = replace(course.data.blocks, law=course.end.likelihood.law, treatment=settings.tail)
    metrics |= engine_facts(settings.engine, settings.engine_reason)
    if problem.selection is not None:
        chosen = problem.selection.summary()
        metrics["selection"] = chosen | {"held_out": [value - log_unit for value in chosen["held_out"]]}
    recovery.head = head
    if isinstance(head, ClockedHead):
        assert problem.pairs.inputs is not None
        head.clock = head.clock.referring_to(head.gamma.detach(), problem.pairs.inputs)
        metrics |= covariate_facts(recovery, settings)
    summed = course.data.samples or course.data.fitted  # nodes at the ends of a window stand for parts of pairs
    recovery.log_likelihood -= summed.n_main * log_unit
    metrics["states"] = observed_states(recovery, problem.data).tolist()
    if settings.drift == "mean":
        with_mean(recovery, problem.pairs)
    metrics |= {"log_likelihood": recovery.log_likelihood, "seed": settings.seed}
    if (memory := recovery.memory) is not None:
        metrics["memory"]["f"] = range_of_f(memory)
        if settings.clock is None:  # m of one action among others depends on all of them
            with_level(recovery)
    if doubt := hardly_separable(recovery, metrics.get("D_o_D_f_correlation", 0.0)):
        warnings.warn(doubt, LevytorchWarning, stacklevel=2)
    if problem.held_out is not None:
        metrics["val/nll"] = log_unit + _held_out_nll(likelihood, problem.held_out, problem.units)
    metrics["seconds"] = time.perf_counter() - problem.began
    return recovery, likelihood


@torch.no_grad()
def _held_out_nll(likelihood: Likelihood, pairs: Transitions, units: Units) -> float:
    """Per pair, in the units of the fit."""
    out = pairs.in_units(units.length, units.time)
    total = sum(float(likelihood.log_prob(out.states[r], out.dx[r], out.dt[r]).sum()) for r in out.blocks())
    return -total / len(out)


def reported_head(course: Course) -> Head:
    """The head in the units of the data, with the parameters of the one that was fitted.

    That of the problem has one more coefficient where one has vanished.
    """
    head, fitted = course.problem.head, course.end.likelihood.head
    gone = set(fitted.known) - set(head.known)
    if fitted.scale == Units() or not gone:
        return fitted if fitted.scale == Units() else head
    out = with_constant(linear(head), gone.pop(), 0.0)
    out.theta = linear(fitted).theta
    return out


def hardly_separable(recovery: Any, correlation: float) -> str | None:
    """The warning where D_o and D_f are known together, but one of them is not known by itself.

    A high correlation alone is no reason to warn: with enough data both are known well.
    """
    if not correlation > INSEPARABLE or recovery.covariance is None:
        return None
    x = recovery.states
    stds = recovery.std(x)[1:]
    errors = [float(std.mean() / v(x).mean().clamp(min=1e-300)) for std, v in zip(stds, (recovery.D_o, recovery.D_f))]
    if max(errors) <= _KNOWN:
        return None
    return (
        f"D_o and D_f are hardly separable from this data (correlation {correlation:.3f} of their estimates, relative "
        f"standard errors {errors[0]:.0%} and {errors[1]:.0%}); trust their combined effect, not each alone, or fix "
        "one (D_o=<number> or D_f=<number>)."
    )


def observed_states(recovery: Any, data: Transitions | Lattice) -> Tensor:
    """(n,) or (n, d): evenly spaced quantiles of the states in one dimension, every so many-th state in more.

    States on a circle are folded into one period. Those outside the window of a line were not fitted, and are left out.
    """
    x, weight = data.some_states(KEPT if recovery.dim > 1 else 200_000)
    if not recovery.head.repeats:
        low, high = torch.as_tensor(recovery.head.fitted_range, dtype=torch.float64).T
        within = (x >= low) & (x <= high)
        within = within if recovery.dim == 1 else within.all(1)
        x, weight = x[within], weight[within]
    elif recovery.dim == 1:
        x = recovery.origin + torch.remainder(x - recovery.origin, recovery.period)
    if recovery.dim > 1 or (len(x) <= KEPT and bool((weight == weight[0]).all())):
        return x[:KEPT]
    order = torch.argsort(x)
    share = torch.cumsum(weight[order].double(), 0)
    levels = (np.arange(KEPT) + 0.5) / KEPT * float(share[-1])
    return x[order][torch.from_numpy(np.searchsorted(share.numpy(), levels))]
