"""recover for data with actions: one fit per action, moved to what they share (`sharing`)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from levytorch.coefficients import Head
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.head import known_constants
from levytorch.coefficients.init import initial_guess
from levytorch.convert import listed, shown
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.training.boundary import NOT_TOLD
from levytorch.training.controlled import ControlledRecovery, Parts
from levytorch.training.line import on_the_line
from levytorch.training.problem import Fitting
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.sharing import NAMES, share_among


def recover_by_action(
    transitions: Transitions, settings: FitSettings, fit: Fitting, shared: Sequence[str]
) -> ControlledRecovery:
    """One head per action; alpha, tempering and the coefficients named in `shared` are the same for all."""
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
    exponent in which a tempering is learned, and the window of a line (the pairs that start in it come back).
    """
    if isinstance(settings.head, Head):
        return transitions, settings
    if settings.head["period"] is None:
        kept, settings = on_the_line(transitions, settings)
        assert isinstance(kept, Transitions)
        transitions = kept
        assert not isinstance(settings.head, Head)
        settings = replace(settings, head={**settings.head, "period": None})
    exponent = settings.tempering.learned and settings.alpha.learned
    if settings.units != "data" and not exponent:
        return transitions, settings
    assert not isinstance(settings.head, Head)
    options: dict[str, Any] = {"uniform_dt": transitions.uniform_dt, "known": known_constants(settings.head)}
    asked = (settings.alpha, settings.tempering if exponent else None)
    guess = initial_guess(transitions.dx, transitions.dt, transitions.mu, *asked, **options)
    own: dict[str, Any] = {"exponent": guess.alpha} if exponent else {}
    if settings.units == "data":
        units = {"length": guess.units.length, "time": guess.units.time}
        own |= {"head": {**settings.head, **units}, "units": "none"}
    return transitions, replace(settings, **own)


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
    if shared or settings.alpha.learned or settings.tempering.learned:
        covariance = share_among(found, shared, metrics)
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
            f"shared must name some of {NAMES}, found {shown(shared)}; alpha and tempering are always shared."
        )
    if settings.alpha.mode == "function":
        raise InputError(
            'alpha must be one number for all actions, found alpha="function": generators of different alpha cannot '
            'be averaged; give a number, or "learn".'
        )
    learned = settings.alpha.learned or settings.tempering.learned
    if (names or learned) and (isinstance(settings.head, Head) or settings.head["name"] not in LINEAR):
        raise InputError(
            "what actions share is found for linear heads (Fourier, splines), found another; leave shared out and give "
            "alpha and tempering as numbers."
        )
    if names and settings.left_open:
        raise InputError('shared coefficients need one n_basis for all actions, found "auto"; give a number.')
    return names
