"""recover for data with actions: one fit per action, moved to what they share.

The fits are independent. What they share is estimated by the vector that is nearest to all of them in the metric of
their covariances: asymptotically that is the maximum of the joint likelihood under any law, treatment of tails or
penalty, and the distance that is left is the Wald test of the sharing.

A learned tempering is shared in the parameter of its link, the root of eta = (lam length)^(2 alpha): large jumps are
counted, as by a Poisson law, and the error of the root of a count does not depend on its size.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head, linear
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.init import initial_guess
from levytorch.coefficients.links import tempering_eta, tempering_of
from levytorch.convert import listed, shown
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.training.controlled import CellParts, ControlledRecovery
from levytorch.training.memory import range_of_f, with_shared_memory
from levytorch.training.recovery import Recovery
from levytorch.training.report import NOT_TOLD, TOLD, warn_of_no_tempering
from levytorch.training.settings import FitSettings
from levytorch.training.start import Fitting, on_the_line

NAMES = ("b", "D_o", "D_f")
_RELATIVE = 1e-12  # of the largest variance: what rounding has left of a parameter that is fixed
_ONE_SIDED = 1.6449  # standard errors


def recover_by_action(
    transitions: Transitions, settings: FitSettings, fit: Fitting, shared: Sequence[str]
) -> ControlledRecovery:
    """One head per action; alpha, tempering, memory and the coefficients named in `shared` are the same for all."""
    names = check_shared(shared, settings)
    transitions, own = common_settings(transitions, settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NOT_TOLD)  # by one action; whether all of them tell is said at the end
        found = [fit_action(pairs, own, fit, action) for action, pairs in by_action(transitions)]
    return recovery_of_actions(transitions, found, names, settings)


def by_action(transitions: Transitions) -> list[tuple[Any, Transitions]]:
    """Every action and its pairs."""
    codes = transitions.action_codes
    return [(action, transitions[codes == i]) for i, action in enumerate(transitions.actions)]


def common_settings(transitions: Transitions, settings: FitSettings) -> tuple[Transitions, FitSettings]:
    """What all fits have in common, from all pairs: units, so that parameters mean the same, the alpha of the
    exponent in which a tempering is learned, the m of a memory, and the window of a line (the pairs that start in it
    come back).
    """
    if settings.memory is not None:
        transitions, settings = with_shared_memory(transitions, settings)
    if settings.plain is None:
        return transitions, settings
    if not settings.head.repeats:
        transitions, settings = on_the_line(transitions, settings)
    exponent = settings.tempering.learned and settings.alpha.learned
    if settings.units != "data" and not exponent:
        return transitions, settings
    options: dict[str, Any] = {"uniform_dt": transitions.uniform_dt, "known": settings.head.known}
    asked = (settings.alpha, settings.tempering if exponent else None)
    guess = initial_guess(transitions.dx, transitions.dt, transitions.mu, *asked, **options)
    if exponent:
        settings = replace(settings, exponent=guess.alpha)
    if settings.units == "data":
        assert settings.plain is not None
        units = {"length": guess.units.length, "time": guess.units.time}
        settings = replace(settings.with_head({**settings.plain, **units}), units="none")
    return transitions, settings


def recovery_of_actions(
    transitions: Transitions, found: Sequence[Recovery], shared: Sequence[str], settings: FitSettings
) -> ControlledRecovery:
    """One recovery of the fits of all actions, moved to what they share."""
    actions = transitions.actions
    counts = CellParts(found[0].head).counts(transitions.x, transitions.action_codes, len(actions))
    metrics: dict[str, Any] = {"actions": list(actions), "shared": list(shared), "n_main": int(counts.sum())}
    same = ("engine", "tail_method", "law", "law_reason", "seed")
    metrics |= {key: found[0].metrics[key] for key in same if key in found[0].metrics}
    metrics |= {"steps": sum(int(one.metrics["steps"]) for one in found), "tcf": [one.tcf for one in found]}
    covariance = None
    if all(one.covariance is not None for one in found):
        covariance = torch.block_diag(*(one.covariance for one in found))  # fits that share nothing
    if shared or settings.alpha.learned or settings.tempering.learned or settings.memory is not None:
        covariance = share_among(found, shared, metrics)
    if (memory := found[0].memory) is not None:
        own = found[0].metrics["memory"] | {"f": range_of_f(memory)}
        metrics["memory"] = own
        for action, one in zip(actions, found):
            one.metrics["memory"] = own | {"action": action}
    return ControlledRecovery(tuple(actions), tuple(found), covariance, counts, metrics)


def fit_action(pairs: Transitions, settings: FitSettings, fit: Fitting, action: Any) -> Recovery:
    try:
        return fit(pairs, settings)
    except InputError as error:
        raise InputError(f"action {shown(action)}, of {len(pairs)} pairs: {error}") from error


def check_shared(shared: Sequence[str], settings: FitSettings) -> tuple[str, ...]:
    """The names of what is shared; refuses what cannot be."""
    names = (shared,) if isinstance(shared, str) else tuple(listed("shared", shared, f"name some of {NAMES}"))
    if not all(isinstance(name, str) and name in NAMES for name in names):
        raise InputError(
            f"shared must name some of {NAMES}, found {shown(shared)}; alpha, tempering and memory are always shared."
        )
    if settings.drift == "mean":
        raise InputError(
            'drift "mean" must be fitted to pairs of one kind, found actions; pass actions=None, or drift="location".'
        )
    if settings.observation_noise is not None:
        raise InputError(
            "observation_noise must be fitted to pairs that follow each other, found actions, whose pairs are fitted "
            "separately; pass actions=None, or leave observation_noise out."
        )
    if settings.alpha.mode == "function":
        raise InputError(
            'alpha must be one number for all actions, found alpha="function": generators of different alpha cannot '
            'be averaged; give a number, or "learn".'
        )
    learned = settings.alpha.learned or settings.tempering.learned or settings.memory is not None
    if (names or learned) and (settings.plain is None or settings.plain["name"] not in LINEAR):
        raise InputError(
            "coefficients must be a linear head (Fourier, splines) where actions share something, found another; "
            "leave shared and memory out, and give alpha and tempering as numbers."
        )
    if names and settings.left_open:
        raise InputError(
            f"{settings.left_open[0]} must be given for shared coefficients, found it left to cross-validation; give a "
            "number."
        )
    return names


# -- what is shared ----------------------------------------------------------------------------------------------------


def share_among(found: Sequence[Recovery], names: Sequence[str], metrics: dict[str, Any]) -> Tensor:
    """Move all fits to what they share; returns their joint covariance."""
    thetas, covariances = zip(*(_estimate(one) for one in found))
    joint = share(thetas, covariances, [_rows(one.head, names) for one in found])
    for one, theta, covariance in zip(found, joint.theta, joint.blocks):
        one.head.set_flat(theta)
        one.covariance = covariance.clone()
    metrics |= {"shared/chi2": joint.distance, "shared/freedom": joint.freedom}
    if found[0].head.tempering_spec.learned:
        metrics |= _judged(found)
    return joint.covariance


def _estimate(one: Recovery) -> tuple[Tensor, Tensor]:
    """Parameters and their covariance. If tempering cannot be distinguished from zero its row has no meaning
    and is taken from how the likelihood falls, so that this action does not decide for the others.
    """
    theta, covariance = one.theta.clone(), one.covariance
    assert covariance is not None
    if not one.head.tempering_spec.learned:
        return theta, covariance
    sign = torch.ones_like(theta)
    sign[-1] = -1.0 if theta[-1] < 0 else 1.0  # the link is even
    theta, covariance = sign * theta, sign[:, None] * covariance * sign
    if "tempering_step" in one.metrics:
        step, row = torch.tensor(one.metrics["tempering_step"], dtype=torch.float64), covariance[-1]
        given = torch.outer(row, row) / row[-1] if row[-1] > 0 else 0.0
        covariance = covariance - given + torch.outer(step, step)
    return theta, covariance


def _judged(found: Sequence[Recovery]) -> dict[str, Any]:
    """Whether tempering can be distinguished from zero, as in a single fit: by all actions together and by one alone,
    since of estimates none of which is negative the mean is never as good as zero.
    """
    one = found[0]
    assert one.covariance is not None
    eta, slope = tempering_eta(one.theta[-1])
    error = float(slope.abs() * one.covariance[-1, -1].clamp(min=0).sqrt())
    z = min(float(eta) / max(error, 1e-300), max(each.metrics.get("tempering_z", math.inf) for each in found))
    bound = tempering_of(float(eta) + _ONE_SIDED * error, one.head.alpha_spec.value, one.head.units.length)
    if z < TOLD:
        warn_of_no_tempering(z, bound)
    return {"tempering_z": z, "tempering_upper": bound, "tempering_told_from_zero": bool(z >= TOLD)}


def _rows(head: Head, names: Sequence[str]) -> Tensor:
    """Which parameters are shared, (P,) bool: those of the coefficients in `names`, of alpha, tempering and memory."""
    shared = {*names, "alpha", "tempering", "clock"}
    return torch.cat([torch.full((size,), name in shared) for name, size in zip(head.layout.names, linear(head).sizes)])


@dataclass(frozen=True)
class Shared:
    """Parameters of all fits, (P,) each, their joint covariance, and the test of what is shared."""

    theta: tuple[Tensor, ...]
    covariance: Tensor
    distance: float  # chi squared with `freedom` degrees where the sharing is right
    freedom: int

    @property
    def blocks(self) -> list[Tensor]:
        """The covariance of every fit's own parameters."""
        ends = [0, *itertools.accumulate(len(theta) for theta in self.theta)]
        return [self.covariance[i:j, i:j] for i, j in itertools.pairwise(ends)]


def share(thetas: Sequence[Tensor], covariances: Sequence[Tensor], shared: Sequence[Tensor]) -> Shared:
    """The nearest parameters whose entries at `shared`, (P,) bool for each fit, are the same in all of them."""
    own = [int((~mask).sum()) for mask in shared]
    common = int(shared[0].sum())
    theta, total = torch.cat(list(thetas)), sum(own)
    # column of the joint vector that each entry of each fit reads: first what is each fit's own, then what is shared
    S = torch.zeros((len(theta), total + common), dtype=torch.float64)
    mask = torch.cat(list(shared))
    S[torch.nonzero(~mask).flatten(), torch.arange(total)] = 1.0
    S[torch.nonzero(mask).flatten(), total + torch.arange(common).repeat(len(shared))] = 1.0
    precision = torch.block_diag(*(_inverse(C) for C in covariances))
    weighed = precision @ S
    cov = _inverse(S.T @ weighed)
    joint = S @ (cov @ (weighed.T @ theta))
    off = theta - joint
    parts = torch.split(joint, [len(one) for one in thetas])
    return Shared(parts, S @ cov @ S.T, float(off @ precision @ off), (len(thetas) - 1) * common)


def _inverse(matrix: Tensor) -> Tensor:
    """Of a symmetric positive matrix, through its scaled eigenvectors: parameters differ by orders of magnitude."""
    scale = matrix.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values, vectors = torch.linalg.eigh(matrix / torch.outer(scale, scale))
    values = values.clamp(min=_RELATIVE * float(values.max()))
    return (vectors / values) @ vectors.T / torch.outer(scale, scale)
