"""What a fit starts from, where the settings leave it open: constants at the scale of the data (curves through groups
of states where alpha is learned), CT by a preliminary fit (Appendix A), the region of conditioning.

Also what is made of the thresholds after a fit, when the counts beyond CT are compared with what the core of the law
says.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from levytorch.coefficients import initial_guess
from levytorch.coefficients.init import Cell, Groups, Guess, group_states, thinned
from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.data.quantiles import cut, order_statistics
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import cutting_threshold
from levytorch.likelihood.tail import TailSettings
from levytorch.training.settings import FitSettings

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

_PLACES = 48  # states that stand for all of those of a lattice
_AGREES = 3.0  # standard deviations within which a count is what the core of the law says
_AGREES_WITH_A_GUESS = 2.0  # the same, where disagreement costs precision and agreement may cost the answer


def guess_from(data: Transitions | Lattice, settings: FitSettings) -> Guess:
    """Constants at the scale of the data; where alpha is learned, D_o and D_f of groups of states beside them."""
    known, plain = settings.head.known, settings.plain  # a user's own head knows where it starts
    functions = plain is not None and (plain.get("n_basis") != 1 or "n_basis" in settings.left_open)
    by_state = settings.alpha.learned and functions
    asked, groups = (settings.alpha, settings.tempering), None
    if isinstance(data, Lattice):
        x, dx, dt = data.typical_steps(n_groups=_PLACES if by_state else 1)
        if by_state:
            groups = group_states(x, [(data.origin, data.period)])
        uniform = not data.mu_is_rate
        return initial_guess(dx, dt, data.mu, *asked, uniform_dt=uniform, known=known, groups=groups)
    if by_state:
        groups = groups_of(data, settings)
    mu = torch.as_tensor(data.mu, dtype=torch.float64)
    at = (data.dx, data.dt, float(mu) if data.dim == 1 else mu, *asked)
    return initial_guess(*at, uniform_dt=data.uniform_dt, known=known, groups=groups)


def groups_of(data: Transitions, settings: FitSettings) -> Groups | None:
    """Groups of the states of the pairs that a start is made from."""
    line: list[Cell] = [(0.0, None)] * data.dim
    return group_states(thinned(data.x).to(torch.float64), line if settings.head.period is None else settings.head.cell)


def resolve_tail(
    transitions: Transitions, settings: FitSettings, fit: Callable[[Transitions, FitSettings], Recovery]
) -> TailSettings:
    """Numbers for CT = "auto" (by a preliminary `fit` of constants) and for a conditional region."""
    tail = settings.tail
    if not tail.active:
        return tail
    if tail.CT == "auto":
        tail = replace(tail, CT=_preliminary_CT(transitions, settings, fit))
        if tail.method == "conditional" and tail.TRT is None:
            # whatever was cut was cut beyond the largest step that is left
            largest = max(float(transitions.deviation_of(rows).max()) for rows in transitions.blocks())
            tail = replace(tail, TRT=math.nextafter(largest, math.inf) * (1 + 1e-12))
        if tail.TRT is not None and isinstance(tail.CT, float) and tail.CT >= tail.TRT:
            tail = replace(tail, CT=0.5 * tail.TRT)
    if tail.method == "conditional" and (tail.region == "CT" or tail.TRT is None):
        # conditioning on |dx - mu| < CT: the pairs beyond are left out, CT plays TRT's part
        if tail.CT is None:
            raise InputError("tail.region CT needs a CT, found none; give CT or use region TRT.")
        tail = _core_only(tail)
    if tail.method == "conditional" and isinstance(tail.CT, (int, float)) and tail.TRT is not None:
        between = _count_between(transitions, tail.CT, tail.TRT)
        if between < tail.min_tail and tail.region != "TRT":
            warnings.warn(
                f"only {between} pairs lie between CT and TRT ({tail.min_tail} are wanted for their own stratum): the "
                "likelihood is conditioned on |dx - mu| < CT and leaves them out.",
                LevytorchWarning,
                stacklevel=3,
            )
            tail = _core_only(tail)
    if tail.method == "conditional" and tail.CT is None:
        tail = replace(tail, region="TRT")
    return tail


def reconsidered(tail: TailSettings, recovery: Recovery, guessed_CT: bool) -> TailSettings | None:
    """What to condition on after the strata have been compared; None: as it was.

    Where the counts agree with a plain cut at TRT: on that, which uses them and is more precise. Where they do not, the
    strata are right if CT is where the losses begin; a guessed CT may lie far below, and only the core is left then.
    """
    z = recovery.metrics.get("missing_between_CT_and_TRT_z")
    if tail.method != "conditional" or tail.region != "auto" or tail.CT is None or z is None:
        return None
    agrees = abs(z) < (_AGREES_WITH_A_GUESS if guessed_CT else _AGREES)
    if not (agrees or guessed_CT):
        return None
    if guessed_CT:
        found = (
            f"no sign of lost steps within |dx - mu| < {tail.TRT:.4g} was found ({z:+.1f} standard deviations beyond "
            f"{tail.CT:.3g}), and none are assumed"
            if agrees
            else f"steps are lost somewhere beyond {tail.CT:.3g} ({z:+.1f} standard deviations), and all of those are "
            "left out"
        )
        warnings.warn(
            f"tail.CT must be known for a sharp answer, found auto: {found}; if steps were lost beyond some threshold, "
            "give it as tail.CT.",
            LevytorchWarning,
            stacklevel=3,
        )
    return replace(tail, region="TRT") if agrees else _core_only(tail)


def _core_only(tail: TailSettings) -> TailSettings:
    """|dx - mu| < CT is all that is looked at."""
    assert not isinstance(tail.CT, str)
    return replace(tail, CT=None, TRT=tail.CT, region="TRT")


def _count_between(transitions: Transitions, CT: float, TRT: float) -> int:
    total = 0
    for rows in transitions.blocks():
        deviation = transitions.deviation_of(rows)
        total += int(((deviation > CT) & (deviation < TRT)).sum())
    return total


def _preliminary_CT(
    transitions: Transitions, settings: FitSettings, fit: Callable[[Transitions, FitSettings], Recovery]
) -> float:
    """Appendix A: the central `mass` of one step under constants fitted without correction, D_o included."""
    head = settings.head
    kind = {"name": "fourier", "period": head.period}
    if head.period is None:
        kind = {"name": "spline", "period": None, "window": head.window}
    quick = replace(settings, engine={"name": "fisher"}, tail=TailSettings(), data={}, init="data", progress=False)
    found = fit(transitions, quick.with_head({**kind, "n_basis": 1, "dim": transitions.dim, **head.known}))
    n, steps = len(transitions), transitions.dt
    dt = float(steps[0] if transitions.uniform_dt else order_statistics(cut(steps.numpy()), [(n - 1) // 2])[0])
    alpha = found.alpha
    assert isinstance(alpha, float)
    D_o, D_f = float(found.D_o(found.origin)), float(found.D_f(found.origin))
    return float(cutting_threshold(alpha, D_f, dt, settings.tail.mass, D_o=D_o, dim=transitions.dim))
