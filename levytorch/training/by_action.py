"""recover for data with actions: one fit per action, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head
from levytorch.coefficients.head import known_constants
from levytorch.coefficients.init import initial_guess
from levytorch.convert import shown
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.training.controlled import ControlledRecovery, bin_index
from levytorch.training.problem import Fitting
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.sharing import independent, share

NAMES = ("b", "D_o", "D_f")
_BINS = {1: 64, 2: 256, 3: 512}  # of the cell, for counts of actions


def recover_by_action(
    transitions: Transitions, settings: FitSettings, fit: Fitting, shared: Sequence[str]
) -> ControlledRecovery:
    """One head per action; alpha, and the coefficients named in `shared`, are the same for all."""
    names = _check_shared(shared, settings)
    actions, codes = transitions.actions, transitions.action_codes
    known = {} if isinstance(settings.head, Head) else known_constants(settings.head)
    guess = initial_guess(
        transitions.dx, transitions.dt, transitions.mu, settings.alpha, uniform_dt=transitions.uniform_dt, known=known
    )
    own = settings
    if not isinstance(settings.head, Head) and settings.units == "data":
        # the same units for all, so that parameters mean the same in every fit
        units = {"length": guess.units.length, "time": guess.units.time}
        own = replace(settings, head={**settings.head, **units}, units="none")
    found = [_fit(transitions[codes == i], own, fit, action) for i, action in enumerate(actions)]
    head = found[0].head
    size = _BINS[head.dim]
    index = bin_index(transitions.x, size, head.period, head.origin, head.dim)
    counts = torch.bincount(codes * size + index, minlength=len(actions) * size).reshape(len(actions), size)
    metrics: dict[str, Any] = {"actions": list(actions), "shared": list(names)}
    covariance = None
    if all(one.covariance is not None for one in found):
        covariance = independent([one.covariance for one in found])  # type: ignore[misc]
    if names or settings.alpha.learned:
        covariance = _share(found, names, metrics)
    return ControlledRecovery(tuple(actions), tuple(found), covariance, counts.to(torch.float64), metrics)


def _fit(pairs: Transitions, settings: FitSettings, fit: Fitting, action: Any) -> Recovery:
    try:
        return fit(pairs, settings)
    except InputError as error:
        raise InputError(f"action {shown(action)}, of {len(pairs)} pairs: {error}") from error


def _check_shared(shared: Sequence[str], settings: FitSettings) -> tuple[str, ...]:
    names = tuple(shared) if not isinstance(shared, str) else (shared,)
    if not set(names) <= set(NAMES):
        raise InputError(f"shared must name some of {NAMES}, found {shown(shared)}; alpha is always shared.")
    if settings.alpha.mode == "function":
        raise InputError(
            'alpha must be one number for all actions, found alpha="function": generators of different alpha cannot '
            'be averaged; give a number, or "learn".'
        )
    if (names or settings.alpha.learned) and (isinstance(settings.head, Head) or settings.head["name"] != "fourier"):
        raise InputError(
            "what actions share is found for Fourier heads, found another; leave shared out and give alpha as a number."
        )
    if names and settings.left_open:
        raise InputError('shared coefficients need one n_basis for all actions, found "auto"; give a number.')
    return names


def _share(found: list[Recovery], names: Sequence[str], metrics: dict[str, Any]) -> Tensor:
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
    assert isinstance(head, FourierHead)
    order = ["b"] * head.dim + ["D_o", "D_f", "alpha"]
    parts = [torch.full((size,), name in names or name == "alpha") for name, size in zip(order, head.sizes)]
    return torch.cat(parts)
