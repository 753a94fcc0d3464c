"""recover for data with actions: one fit per action, and what they share, by minimum distance.

Fits of the single actions are independent. What they share is estimated by the vector that is nearest to all of them in
the metric of their covariances: asymptotically that is the maximum of the joint likelihood under any law, treatment of
tails or penalty, and the distance that is left is the Wald test of the sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.head import known_constants
from levytorch.coefficients.init import initial_guess
from levytorch.convert import listed, shown
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.training.controlled import ControlledRecovery, Parts
from levytorch.training.line import on_the_line
from levytorch.training.problem import Fitting
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings

NAMES = ("b", "D_o", "D_f")
_RELATIVE = 1e-12  # of the largest variance: what rounding has left of a parameter that is fixed


def recover_by_action(
    transitions: Transitions, settings: FitSettings, fit: Fitting, shared: Sequence[str]
) -> ControlledRecovery:
    """One head per action; alpha, and the coefficients named in `shared`, are the same for all."""
    names = check_shared(shared, settings)
    transitions, own = common_settings(transitions, settings)
    found = [fit_action(pairs, own, fit, action) for action, pairs in by_action(transitions)]
    return recovery_of_actions(transitions, found, names, settings)


def by_action(transitions: Transitions) -> list[tuple[Any, Transitions]]:
    """Every action and its pairs."""
    codes = transitions.action_codes
    return [(action, transitions[codes == i]) for i, action in enumerate(transitions.actions)]


def common_settings(transitions: Transitions, settings: FitSettings) -> tuple[Transitions, FitSettings]:
    """What all fits have in common, from all pairs: units, so that parameters mean the same, and the window of a line
    (the pairs that start in it come back).
    """
    if isinstance(settings.head, Head):
        return transitions, settings
    if settings.head["period"] is None:
        kept, settings = on_the_line(transitions, settings)
        assert isinstance(kept, Transitions)
        transitions = kept
        assert not isinstance(settings.head, Head)
        settings = replace(settings, head={**settings.head, "period": None})
    if settings.units != "data":
        return transitions, settings
    assert not isinstance(settings.head, Head)
    known = known_constants(settings.head)
    guess = initial_guess(
        transitions.dx, transitions.dt, transitions.mu, settings.alpha, uniform_dt=transitions.uniform_dt, known=known
    )
    units = {"length": guess.units.length, "time": guess.units.time}
    return transitions, replace(settings, head={**settings.head, **units}, units="none")


def recovery_of_actions(
    transitions: Transitions, found: Sequence[Recovery], shared: Sequence[str], settings: FitSettings
) -> ControlledRecovery:
    """One recovery of the fits of all actions, moved to what they share."""
    actions = transitions.actions
    counts = Parts(found[0].head).counts(transitions.x, transitions.action_codes, len(actions))
    metrics: dict[str, Any] = {"actions": list(actions), "shared": list(shared)}
    covariance = None
    if all(one.covariance is not None for one in found):
        covariance = torch.block_diag(*(one.covariance for one in found))  # fits that share nothing
    if shared or settings.alpha.learned:
        covariance = _share(found, shared, metrics)
    return ControlledRecovery(tuple(actions), tuple(found), covariance, counts, metrics)


def fit_action(pairs: Transitions, settings: FitSettings, fit: Fitting, action: Any) -> Recovery:
    try:
        return fit(pairs, settings)
    except InputError as error:
        raise InputError(f"action {shown(action)}, of {len(pairs)} pairs: {error}") from error


def check_with_actions(settings: FitSettings) -> None:
    """Refuse what no data with actions can be fitted with."""
    if settings.tempering.active:
        raise InputError(
            f"tempering must be 0 for transitions with actions, found "
            f"{shown('learn' if settings.tempering.learned else settings.tempering.value)}; leave it out, or give "
            "actions=None to fit all pairs alike."
        )


def check_shared(shared: Sequence[str], settings: FitSettings) -> tuple[str, ...]:
    """The names of what is shared; refuses what cannot be."""
    names = (shared,) if isinstance(shared, str) else tuple(listed("shared", shared, f"name some of {NAMES}"))
    if not all(isinstance(name, str) and name in NAMES for name in names):
        raise InputError(f"shared must name some of {NAMES}, found {shown(shared)}; alpha is always shared.")
    if settings.alpha.mode == "function":
        raise InputError(
            'alpha must be one number for all actions, found alpha="function": generators of different alpha cannot '
            'be averaged; give a number, or "learn".'
        )
    if (names or settings.alpha.learned) and (isinstance(settings.head, Head) or settings.head["name"] not in LINEAR):
        raise InputError(
            "what actions share is found for linear heads (Fourier, splines), found another; leave shared out and give "
            "alpha as a number."
        )
    if names and settings.left_open:
        raise InputError('shared coefficients need one n_basis for all actions, found "auto"; give a number.')
    return names


def _share(found: Sequence[Recovery], names: Sequence[str], metrics: dict[str, Any]) -> Tensor:
    """Move all fits to what they share; returns their joint covariance."""
    mask = _rows(found[0].head, names)
    covariances = [one.covariance for one in found]
    assert all(c is not None for c in covariances)
    joint = share([one.theta for one in found], covariances, mask)  # type: ignore[arg-type]
    P = mask.numel()
    for i, one in enumerate(found):
        one.head.set_flat(joint.theta[i])
        one.covariance = joint.covariance[i * P : (i + 1) * P, i * P : (i + 1) * P].clone()
    metrics |= {"shared/chi2": joint.distance, "shared/freedom": joint.freedom}
    return joint.covariance


def _rows(head: Head, names: Sequence[str]) -> Tensor:
    """Which parameters belong to coefficients that are shared, (P,) bool; those of alpha always."""
    assert isinstance(head, LinearHead)
    order = ["b"] * head.dim + ["D_o", "D_f", "alpha"]
    parts = [torch.full((size,), name in names or name == "alpha") for name, size in zip(order, head.sizes)]
    return torch.cat(parts)


@dataclass(frozen=True)
class Shared:
    """Parameters (A, P) of all fits, their joint covariance (A P, A P), and the test of what is shared."""

    theta: Tensor
    covariance: Tensor
    distance: float  # chi squared with `freedom` degrees where the sharing is right
    freedom: int


def share(thetas: Sequence[Tensor], covariances: Sequence[Tensor], shared: Tensor) -> Shared:
    """The nearest parameters whose entries at `shared` (P,) bool are the same in every fit."""
    A, P = len(thetas), thetas[0].numel()
    own = int((~shared).sum())
    # column of the joint vector that each entry of each fit reads: first what is each fit's own, then what is shared
    S = torch.zeros((A * P, A * own + P - own), dtype=torch.float64)
    for a in range(A):
        S[a * P + torch.nonzero(~shared).flatten(), a * own + torch.arange(own)] = 1.0
        S[a * P + torch.nonzero(shared).flatten(), A * own + torch.arange(P - own)] = 1.0
    precision = torch.block_diag(*(_inverse(C) for C in covariances))
    theta = torch.cat(list(thetas))
    weighed = precision @ S
    cov = _inverse(S.T @ weighed)
    joint = S @ (cov @ (weighed.T @ theta))
    off = theta - joint
    distance = float(off @ precision @ off)
    return Shared(joint.reshape(A, P), S @ cov @ S.T, distance, (A - 1) * (P - own))


def _inverse(matrix: Tensor) -> Tensor:
    """Of a symmetric positive matrix, through its scaled eigenvectors: parameters differ by orders of magnitude."""
    scale = matrix.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values, vectors = torch.linalg.eigh(matrix / torch.outer(scale, scale))
    values = values.clamp(min=_RELATIVE * float(values.max()))
    return (vectors / values) @ vectors.T / torch.outer(scale, scale)
