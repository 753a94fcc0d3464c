"""What a fit with observation noise makes of observations: their log-likelihood, and paths of the states behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Trajectories, Transitions
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.filter import Chains, NoisyLikelihood
from levytorch.likelihood.frozen import FrozenLaw, steady_method

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

_STATES = 256  # at which a head that is not linear is asked
_STREAM = 0x6E6F  # of random numbers for errors of observations, beside those of paths


def filter_of(recovery: Recovery, pairs: Transitions) -> NoisyLikelihood:
    """The filter of a fit, for pairs of trajectories in their order."""
    head = recovery.head
    own = head if isinstance(head, LinearHead) else TangentHead(head, head.grid(_STATES))
    chains = Chains.of(pairs, recovery.period)
    law: FrozenLaw | ExactLaw = FrozenLaw(steady_method("auto", own))
    if recovery.law == "exact":
        law = ExactLaw(TOLERANCE).fixed(own, torch.unique(chains.dt))
    return NoisyLikelihood(own, law, chains, max(recovery.observation_noise, 4.0 * chains.noise_of_steps()))


def log_prob_of_observations(recovery: Recovery, pairs: Transitions) -> Tensor:
    """log p of every observation given those before it, (n,)."""
    return filter_of(recovery, pairs).steps(recovery.observation_noise)


def states_behind(recovery: Recovery, pairs: Transitions, seed: int) -> Transitions:
    """Pairs of states instead of those of observations: one path of each trajectory, drawn given the observations.

    If the fit is right they are steps of its law, so that whatever is asked of steps can be asked of them.
    """
    x, dx = filter_of(recovery, pairs).drawn(recovery.observation_noise, seed)
    return pairs.at(x, dx)


def observed(paths: Trajectories, noise: float, seed: int) -> Trajectories:
    """The same paths as they would be observed."""
    errors = np.random.default_rng([_STREAM, seed]).standard_normal(paths.x.shape)
    made = Trajectories(
        paths.x + noise * errors, paths.offsets, dt=paths.dt, times=paths.times, ids=paths.ids, max_dt=paths.max_dt
    )
    made.seed, made.repeats = paths.seed, paths.repeats
    return made


def refuse_noise(recovery: Any, what: str, instead: str) -> None:
    """Refuse what asks for pairs that stand for themselves."""
    if getattr(recovery, "observation_noise", 0.0):
        raise InputError(
            f"{what} must be asked of a fit without observation noise, found noise of "
            f"{recovery.observation_noise:.3g}; {instead}."
        )
