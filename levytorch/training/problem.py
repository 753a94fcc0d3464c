"""What every fit starts from: settings that fit the data, a head at its start, the pools."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head, build_head, initial_guess
from levytorch.coefficients.basis import per_coordinate
from levytorch.coefficients.build import head_dim
from levytorch.coefficients.init import Guess, randomise
from levytorch.data import Pools, Transitions, make_pools
from levytorch.data.pools import split
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.thresholds import resolve_tail


@dataclass
class Problem:
    """What every fit starts from: settings without open ends, a head at its start, the data to train on."""

    settings: FitSettings
    head: Head
    guess: Guess
    train: Transitions
    held_out: Transitions | None
    guessed_CT: bool

    def judge(self, likelihood: Likelihood, recovery: Recovery) -> None:
        """The likelihood of what was held out, into the metrics."""
        if self.held_out is not None:
            with torch.no_grad():
                total = sum(
                    float(likelihood.log_prob(self.held_out.x[r], self.held_out.dx[r], self.held_out.dt[r]).sum())
                    for r in self.held_out.blocks()
                )
            recovery.metrics["val/nll"] = -total / len(self.held_out)


Fitting = Callable[[Transitions, FitSettings], Recovery]


def prepare(
    transitions: Transitions, settings: FitSettings, preliminary: Fitting, start: Tensor | None = None
) -> Problem:
    """Refuse data that the settings cannot be fitted to, and fill in what is left to the data.

    preliminary: what fits the constants from which a CT is chosen.
    """
    settings = check_data(transitions, settings)
    mu = torch.as_tensor(transitions.mu, dtype=torch.float64)
    center = float(mu) if transitions.dim == 1 else mu
    guess = initial_guess(transitions.dx, transitions.dt, center, settings.alpha, uniform_dt=transitions.uniform_dt)
    guessed = settings.tail.CT == "auto"
    settings = replace(settings, tail=resolve_tail(transitions, settings, preliminary))
    train, held_out = split(transitions, settings.data.get("validation") or 0.0, settings.seed)
    return Problem(settings, starting_head(settings, guess, start), guess, train, held_out, guessed)


def check_data(transitions: Transitions, settings: FitSettings) -> FitSettings:
    """Refuse data the settings cannot be fitted to; the head's dimension is the data's where it was left open."""
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"transitions must be a Transitions, found {type(transitions).__name__}; use trajectories.transitions()."
        )
    wanted = settings.head.dim if isinstance(settings.head, Head) else head_dim(settings.head)
    if wanted is not None and wanted != transitions.dim:
        raise InputError(
            f"the head must have the dimension of the data, {transitions.dim}, found a head of dimension {wanted}; "
            "leave dim out, or give as many periods as the data has columns."
        )
    if transitions.dim > 1:
        if settings.density == "windowed":
            raise InputError(
                f"density windowed is one-dimensional, found data of dimension {transitions.dim}; use auto."
            )
        if not isinstance(settings.head, Head):
            settings = replace(settings, head={**settings.head, "dim": transitions.dim})
    head: Head = settings.head if isinstance(settings.head, Head) else build_head(settings.head)
    n, P = len(transitions), head.flat().numel()
    if isinstance(head, FourierHead) and n < max(20, P):
        raise InputError(
            f"at least {max(20, P)} pairs are needed for {P} parameters, found {n}; use fewer basis functions."
        )
    if not getattr(head, "periodic", True):
        _check_window(transitions, head)
    return settings


def _check_window(transitions: Transitions, head: Head) -> None:
    columns = transitions.x.reshape(len(transitions), -1).T
    origins, periods = (per_coordinate(name, getattr(head, name), head.dim) for name in ("origin", "period"))
    for column, origin, period in zip(columns, origins, periods):
        low, high = float(column.min()), float(column.max())
        if low < origin or high > origin + period:
            raise InputError(
                f"x must lie in the window [{origin:g}, {origin + period:g}] of a head without period, "
                f"found [{low:g}, {high:g}]; widen origin and period."
            )


def head_settings(settings: FitSettings, guess: Guess) -> dict[str, Any]:
    """Plain settings of a head in internal units; alpha is the known one, or where a learned one starts."""
    assert not isinstance(settings.head, Head)
    alpha = guess.alpha if settings.alpha.learned else settings.alpha.value
    units = {"length": guess.units.length, "time": guess.units.time} if settings.units == "data" else {}
    return settings.head | {"alpha_mode": settings.alpha.mode, "alpha": alpha} | units


def starting_head(settings: FitSettings, guess: Guess, start: Tensor | None = None) -> Head:
    """The head where the fit begins: at the scale of the data, at random (the paper), or at given parameters."""
    head: Head
    if isinstance(settings.head, Head):
        head = copy.deepcopy(settings.head)  # the user's own knows where it starts
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            head = build_head(head_settings(settings, guess))
        if settings.init == "random":
            randomise(head, torch.Generator().manual_seed(settings.seed))
        else:
            guess.apply(head)
    if start is not None:
        head.set_flat(start)
    return head


def pool_options(settings: FitSettings, guess: Guess) -> dict[str, Any]:
    """Thresholds of the pools of these tail settings."""
    tail = settings.tail
    strata = tail.active and not (tail.method == "conditional" and tail.region == "TRT")
    return {
        "CT": tail.CT if strata else None,
        "TRT": tail.TRT,
        "alpha": guess.alpha,
        "min_tail": tail.min_tail if tail.method == "tcf" else 1,  # strata must not have their CT moved
    }


def make_checked_pools(problem: Problem) -> Pools:
    """The pools of the data to train on."""
    pools = make_pools(problem.train, **pool_options(problem.settings, problem.guess))
    check_pools(pools, problem.settings, problem.train)
    return pools


def check_pools(pools: Pools, settings: FitSettings, transitions: Transitions) -> None:
    """Warn of pairs that are lost for nothing, and refuse a tail pool that is everything."""
    lost = pools.main.dropped.get("beyond TRT", 0) - transitions.dropped.get("beyond TRT", 0)
    if lost and not settings.tail.active:
        warnings.warn(
            f"{lost} pairs lie beyond tail.TRT = {settings.tail.TRT:g} and are left out, which tail.method none does "
            "not correct: D_f comes out too small; remove TRT, or use tail.method conditional.",
            LevytorchWarning,
            stacklevel=2,
        )
    if pools.n_tail == pools.n_main:
        raise InputError(
            f"CT must leave pairs below it, found all {pools.n_main} within TRT beyond it; raise CT, shorten dt, or "
            "bring more data."
        )
