"""Inputs of the pairs, beside the state: an action on a scale, or covariates that multiply D_o and D_f.

Where they come from, the head that depends on them, and how checks that know the state alone see pairs with covariates.

Under the frozen law a pair (dx, dt) at which D_o and D_f are multiplied by f is one of (dx + b (f - 1) dt, f dt)
without covariates (`without_covariates`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead, linear
from levytorch.coefficients.clock import Clock, ClockedHead, Covariate, Modulation
from levytorch.coefficients.init import Guess
from levytorch.coefficients.inputs import ActionHead
from levytorch.convert import real_tensor
from levytorch.data import Transitions
from levytorch.data.memory import Memory
from levytorch.errors import InputError
from levytorch.likelihood.penalty import RoughnessPenalty

if TYPE_CHECKING:
    from levytorch.coefficients import Head
    from levytorch.training.recovery import Recovery
    from levytorch.training.settings import FitSettings


_SMALLEST, _RIDGE = 0.05, 1e-6  # of a step, in usual ones; of the regression
_POWER = 1.7  # of a step that f is proportional to: 2 for D_o alone, 2 alpha for D_f alone


def covariate_of(transitions: Transitions) -> Tensor:
    """(n,) the covariate of each pair: what its action column holds."""
    action = transitions.action
    if not isinstance(action, Tensor) or action.ndim > 1:
        found = "none" if action is None else "two" if action.ndim > 1 else f"names such as {transitions.actions[0]!r}"
        raise InputError(
            f"a modulation must have one number per pair, found {found}; give the covariate as action=... where the "
            "trajectories are made."
        )
    return action.to(torch.float64)


def action_of(transitions: Transitions) -> Tensor:
    """(n, m) the actions of the pairs, numbers on m scales."""
    action = transitions.action
    assert isinstance(action, Tensor)
    return action.reshape(len(transitions), -1)


def check_inputs(data: Any, settings: FitSettings) -> None:
    """Refuse what inputs cannot be fitted with."""
    found = None
    if not isinstance(data, Transitions) or settings.data.get("lattice") == "always":
        found = "a lattice"
    elif not isinstance(settings.law, str) or settings.law in ("exact", "corrected"):
        found = f"law {settings.law if isinstance(settings.law, str) else settings.law.name}"
    elif not isinstance(settings.head, LinearHead):
        found = f"a {type(settings.head).__name__}"
    if found is not None:
        what = "covariates" if settings.n_action is None else "actions on a scale"
        raise InputError(
            f"{what} must be fitted to pairs, with a Fourier, spline or polynomial head, under the frozen or the "
            f"simulated law, found {found}; leave that out, or the {what}."
        )
    if settings.n_action is not None:
        _check_action(data, settings)


def _check_action(data: Transitions, settings: FitSettings) -> None:
    found = None
    if data.dim > 2:
        found = f"{data.dim} coordinates"
    elif settings.plain is None:
        found = f"a {type(settings.head).__name__} of your own"
    elif settings.alpha.mode == "function":
        found = 'alpha="function"'
    elif settings.memory is not None:
        found = "a memory"
    elif settings.drift == "mean":
        found = 'drift "mean"'
    if found is not None:
        raise InputError(
            "actions on a scale must be fitted in one or two dimensions, with a head of levytorch's, one alpha, b as "
            f"the location and no memory, found {found}; group the actions into labels for others."
        )


def head_of_inputs(head: Head, data: Transitions, settings: FitSettings, guess: Guess) -> LinearHead:
    """The head with the inputs that the pairs have."""
    assert data.inputs is not None
    if settings.n_action is not None:
        return _head_of_action(linear(head), data.inputs, settings.n_action, guess)
    out = ClockedHead(linear(head), settings.clock or clock_of(data.inputs, settings))
    with torch.no_grad():
        out.gamma.copy_(_first_guess(out.clock, data))
    return out


def clock_of(inputs: Tensor, settings: FitSettings) -> Clock:
    """The clock of these covariates, (n, number of covariates)."""
    covariates = [settings.modulation] if settings.modulation is not None else []
    if isinstance(settings.memory, Memory):
        covariates += [Covariate(f"log m, half-life {h:.4g}") for h in settings.memory.half_lives]
    return Clock.of(covariates, inputs)


@torch.no_grad()
def set_clock(head: LinearHead, gamma: Sequence[float]) -> None:
    """Begin with these parameters of the clock."""
    assert isinstance(head, ClockedHead)
    head.theta[head.part(head.clock_row)] = torch.tensor(gamma, dtype=torch.float64)


def _head_of_action(head: LinearHead, action: Tensor, n_action: int, guess: Guess) -> ActionHead:
    low, high = action.amin(0), action.amax(0)
    if not bool((high > low).all()):
        raise InputError(
            f"every number of an action must vary, found {low.tolist()} to {high.tolist()}; leave out what does not."
        )
    out = ActionHead(head, n_action, list(zip(low.tolist(), high.tolist())))
    replace(guess, profile=None).apply(out)  # the profile is of states alone
    return out


def _first_guess(clock: Clock, data: Transitions) -> Tensor:
    """Parameters of the clock from a regression of the logarithms of the sizes of steps."""
    assert data.inputs is not None
    size = data.deviation
    usual = size.mean()
    if not usual > 0:
        return torch.zeros(clock.size, dtype=torch.float64)
    logs = (size / usual + _SMALLEST).log() - 0.5 * (data.dt / data.dt.mean()).log()
    rows = clock.functions(data.inputs)
    ridge = _RIDGE * torch.eye(clock.size, dtype=torch.float64)
    return _POWER * torch.linalg.solve(rows @ rows.T / len(logs) + ridge, rows @ (logs - logs.mean()) / len(logs))


def modulation_of(recovery: Recovery) -> Modulation | None:
    """f of the covariate with a period, where the fit had one."""
    head = recovery.head
    if not isinstance(head, ClockedHead):
        plain = recovery.metrics.get("modulation")  # of a file that was written before heads had clocks
        return None if plain is None else Modulation.from_plain(plain)
    periodic = [i for i, one in enumerate(head.clock.covariates) if one.period is not None]
    if not periodic:
        return None
    part, covariance = head.part(head.clock_row), recovery.covariance
    own = None if covariance is None else covariance[part, part]
    return Modulation(head.clock, head.gamma.detach(), own, periodic[0])


def without_covariates(recovery: Recovery, transitions: Transitions) -> tuple[Recovery, Transitions]:
    """The recovery of the state alone, at f = 1, and pairs that are to it what these are to the whole recovery.

    Pairs for which a memory had not filled are left out.
    """
    head = recovery.head
    if isinstance(head, ClockedHead):
        transitions, _ = with_inputs_of(recovery, transitions)
        assert transitions.inputs is not None
        f = (head.gamma.detach() @ head.clock.functions(transitions.inputs)).exp()
        plain, kept = head.without_clock()
        covariance = None if recovery.covariance is None else recovery.covariance[kept][:, kept]
        metrics = {name: value for name, value in recovery.metrics.items() if name != "modulation"}
        metrics["penalty_strengths"] = _strengths_of_states(head, metrics.get("penalty_strengths"))
        recovery = replace(recovery, head=plain, covariance=covariance, metrics=metrics, blocks=None, replicas={})
    elif (modulation := modulation_of(recovery)) is not None:
        f = modulation(covariate_of(transitions))
    else:
        return recovery, transitions
    more = (f - 1) * transitions.dt
    b = recovery.b(transitions.x)
    dx = transitions.dx + b * (more if b.dim() == 1 else more.unsqueeze(1))
    moved: dict[str, Any] = {"dx": dx, "dt": transitions.dt + more, "membership": transitions.membership}
    return recovery, Transitions._build(transitions.x, **moved, dropped=transitions.dropped)


def _strengths_of_states(head: ClockedHead, strengths: Any) -> Any:
    """The strengths of a roughness penalty without that of the clock."""
    if not isinstance(strengths, list):
        return strengths
    penalty = RoughnessPenalty(head, strengths)
    sizes = [len(h) for h in penalty.apart] if penalty.by_harmonic else penalty.n_strengths
    begin = sum(sizes[: head.clock_row])
    return strengths[:begin] + strengths[begin + sizes[head.clock_row] :]


def with_inputs_of(recovery: Recovery, transitions: Transitions) -> tuple[Transitions, Tensor | None]:
    """Pairs with the covariates that a fit has taken, and which of those given they are, where a memory had to fill.

    Of the fit of one action with memory these are its own pairs; those given are the pairs of all actions.
    """
    rule, head = memory_of(recovery), recovery.head
    assert isinstance(head, ClockedHead)
    if transitions.inputs is not None:
        return transitions, None
    columns, filled = [], None
    if len(head.clock.covariates) > (0 if rule is None else len(rule.half_lives)):
        columns.append(covariate_of(transitions).unsqueeze(1))
    if rule is not None:
        log_m, filled = rule.inputs(transitions)
        columns.append(log_m)
        action = recovery.metrics["memory"].get("action")
        if action is not None and action in transitions.actions:
            filled &= transitions.action_codes == transitions.actions.index(action)
    pairs = transitions.with_inputs(torch.cat(columns, dim=1))
    return (pairs if filled is None else pairs[filled]), filled


def memory_of(recovery: Recovery) -> Memory | None:
    """The rule of the memory of a fit, where it has one."""
    plain = recovery.metrics.get("memory")
    return None if plain is None else Memory.from_plain(plain["rule"])


def covariate_facts(recovery: Recovery, settings: FitSettings) -> dict[str, Any]:
    """What the metrics say about the covariates of a fit."""
    memory: dict[str, Any] = {}
    if isinstance(settings.memory, Memory):
        memory["memory"] = {"rule": settings.memory.plain(), "profile": settings.profile}
        if settings.profile is not None:  # half-lives are parameters too
            memory["parameters"] = recovery.n_parameters + len(settings.memory.half_lives)
    found = modulation_of(recovery)
    if found is None:
        return memory
    assert found.period is not None
    values = found(torch.linspace(0, found.period, 241, dtype=torch.float64))
    return memory | {"modulation": found.plain(), "modulation/range": [float(values.min()), float(values.max())]}


@dataclass(frozen=True)
class FittedMemory:
    """What a fit found about the memory of the sizes of past steps: D_o and D_f are multiplied by f(m).

    f is the product of m^exponent over the time scales, divided by its value at the mean of log m. Errors of half-lives
    are NaN where these were given.
    """

    half_lives: tuple[float, ...]
    half_lives_std: tuple[float, ...]
    exponents: tuple[float, ...]
    exponents_std: tuple[float, ...]
    centers: tuple[float, ...]
    rule: Memory

    def f(self, m: Any) -> Tensor:
        """f at means m of the sizes of past steps, (..., number of half-lives), or (...) for one half-life."""
        log_m = self.rule.log(real_tensor("m", m))
        one = log_m.dim() == 0 or log_m.shape[-1] != len(self.half_lives)
        rows = log_m.unsqueeze(-1) if one else log_m
        gamma, centers = (torch.tensor(v, dtype=torch.float64) for v in (self.exponents, self.centers))
        return ((rows - centers) @ gamma).exp()

    def __str__(self) -> str:
        rows = zip(self.half_lives, self.half_lives_std, self.exponents, self.exponents_std)
        return "; ".join(
            f"half-life {h:.3g}{f' +- {dh:.2g}' if math.isfinite(dh) else ''}, exponent {a:.3f} +- {da:.2g}"
            for h, dh, a, da in rows
        )


def fitted_memory(recovery: Recovery) -> FittedMemory | None:
    """The memory of a fit, or None."""
    rule, head = memory_of(recovery), recovery.head
    if rule is None or not isinstance(head, ClockedHead):
        return None
    k, profile = len(rule.half_lives), recovery.metrics["memory"].get("profile")
    part, nothing = head.part(head.clock_row), (math.nan,) * k
    errors = nothing
    if recovery.covariance is not None:
        errors = tuple(recovery.covariance.diagonal()[part].clamp(min=0).sqrt()[-k:].tolist())
    found = tuple(head.gamma.detach()[-k:].tolist()), errors, head.clock.centers[-k:]
    return FittedMemory(rule.half_lives, nothing if profile is None else tuple(profile["std"]), *found, rule)
