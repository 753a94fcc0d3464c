"""What a fit takes from the data, where the settings leave it open: constants to start from (curves through groups of
states where alpha is learned), CT by a preliminary fit (Appendix A), the region of conditioning, the window of a line.

Also what is made of the thresholds after a fit, when the counts beyond CT are compared with what the core of the law
says.

States on a line: a head is fitted over a window, and pairs that start outside of it are left out. That loses nothing
but those pairs: a law of dx given x holds for any selection of x, and what lies far out (a jump of a double well,
hurled back within the next step) says nothing about the middle.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import torch
from scipy.special import chdtrc
from torch import Tensor

from levytorch.coefficients import Head, initial_guess
from levytorch.coefficients.init import Groups, Guess, group_states, randomise, thinned
from levytorch.coefficients.layout import ISOTROPIC
from levytorch.coefficients.network import NetworkHead
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.quantiles import cut, order_statistics
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import cutting_threshold
from levytorch.likelihood.tail import TailSettings
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.inputs import head_of_inputs, set_clock
from levytorch.training.settings import FitSettings

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

_MOST_COMPARED = 50_000
_DIFFERENT = 1e-4  # p-value

Fitting = Callable[[Transitions, FitSettings], "Recovery"]
_PLACES, _STEPS = 48, 200_000  # of a period, or states of a lattice; steps from these that stand for all of them
_AGREES = 3.0  # standard deviations within which a count is what the core of the law says
_AGREES_WITH_A_GUESS = 2.0  # the same, where disagreement costs precision and agreement may cost the answer
_CENTRAL = (0.005, 0.995)  # quantiles of the states
ANYWHERE = (-math.inf, math.inf)
_NEAR = 0.1  # of their distance: so far beyond the central ones states are kept, which the ends of a fit rest on
_MARGIN = 1 / 32  # of the range of the states: a lattice has nodes a little beyond the last pair


class StatesOfData(Protocol):
    """What pairs and a lattice both say of the states that they were observed at."""

    @property
    def dim(self) -> int: ...

    def quantiles_of_states(self, levels: Sequence[float], axis: int = 0) -> list[float]: ...

    def starting_in(self, bounds: Sequence[tuple[float, float]]) -> Self: ...


Pairs = TypeVar("Pairs", bound=StatesOfData)


def guess_from(data: Transitions | Lattice, settings: FitSettings) -> Guess:
    """Constants at the scale of the data; where alpha is learned, D_o and D_f of groups of states beside them."""
    known, plain = settings.head.known, settings.plain  # a user's own head knows where it starts
    functions = plain is not None and (plain.get("n_basis") != 1 or "n_basis" in settings.left_open)
    by_state = settings.alpha.learned and functions
    asked, groups = (settings.alpha, settings.tempering), None
    if isinstance(data, Lattice):
        # of few steps in each of many groups the rare ones, which tell alpha, would be missing
        x, dx, dt = data.typical_steps(_STEPS, _PLACES) if by_state else data.typical_steps()
        if by_state:
            groups = group_states(x, [(data.origin, data.period)])
        uniform = not data.mu_is_rate
        return initial_guess(dx, dt, data.mu, *asked, uniform_dt=uniform, known=known, groups=groups)
    if by_state:
        groups = groups_of(data, settings)
    mu = torch.as_tensor(data.mu, dtype=torch.float64)
    at = (data.dx, data.dt, float(mu) if data.dim == 1 else mu, *asked)
    anisotropic = data.dim > 1 and settings.head.noise is not ISOTROPIC
    return initial_guess(*at, uniform_dt=data.uniform_dt, known=known, groups=groups, anisotropic=anisotropic)


def starting_head(
    settings: FitSettings, guess: Guess, data: Transitions | Lattice, start: Tensor | None = None
) -> Head:
    """The head where the fit begins, in internal units: at the scale of the data, at random (the paper), or at given
    parameters; a head of the user's own has its own start.
    """
    head = copy.deepcopy(settings.head)
    if settings.plain is not None or isinstance(head, NetworkHead):
        if settings.units == "data":
            head.units = guess.units
        if settings.alpha.learned:
            head.alpha_spec = replace(head.alpha_spec, value=settings.exponent or guess.alpha)
        head.tempering_spec = replace(head.tempering_spec, value=guess.tempering)
        if settings.init == "random":
            randomise(head, torch.Generator().manual_seed(settings.seed))
        else:
            guess.apply(head)
    if settings.has_inputs:
        assert isinstance(data, Transitions)
        head = head_of_inputs(head, data, settings, guess)
        if settings.profile is not None and settings.init == "data":
            set_clock(head, settings.profile["start"]["gamma"])
    head.prior_center = head.flat()
    if start is not None:
        head.set_flat(start)
    return head


def groups_of(data: Transitions, settings: FitSettings) -> Groups | None:
    """Groups of the states of the pairs that a start is made from."""
    return group_states(thinned(data.x).to(torch.float64), settings.head.cells)


def resolve_tail(data: Transitions | Lattice, settings: FitSettings, fit: Fitting) -> TailSettings:
    """Numbers for CT = "auto" (by a preliminary `fit` of constants) and for a conditional region."""
    tail = settings.tail
    if not tail.active:
        return tail
    if isinstance(data, Lattice):
        return _of_lattice(data, tail)
    if tail.CT == "auto":
        tail = replace(tail, CT=_preliminary_CT(data, settings, fit))
        if tail.method == "conditional" and tail.TRT is None:
            # whatever was cut was cut beyond the largest step that is left
            largest = max(float(data.deviation_of(rows).max()) for rows in data.blocks())
            tail = replace(tail, TRT=math.nextafter(largest, math.inf) * (1 + 1e-12))
        if tail.TRT is not None and isinstance(tail.CT, float) and tail.CT >= tail.TRT:
            tail = replace(tail, CT=0.5 * tail.TRT)
    if tail.method == "conditional" and (tail.region == "CT" or tail.TRT is None):
        # conditioning on |dx - mu| < CT: the pairs beyond are left out, CT plays TRT's part
        if tail.CT is None:
            raise InputError("tail.CT must be given for tail.region CT, found none; give it, or use region TRT.")
        tail = _core_only(tail)
    if tail.method == "conditional" and isinstance(tail.CT, (int, float)) and tail.TRT is not None:
        between = _count_between(data, tail.CT, tail.TRT)
        if between < tail.min_tail and tail.region != "TRT":
            warnings.warn(
                f"only {between} pairs lie between CT and TRT ({tail.min_tail} are wanted for their own stratum): the "
                "likelihood is conditioned on |dx - mu| < CT and leaves them out; lower tail.min_tail to use them.",
                LevytorchWarning,
                stacklevel=3,
            )
            tail = _core_only(tail)
    if tail.method == "conditional" and tail.CT is None:
        tail = replace(tail, region="TRT")
    return tail


def _of_lattice(lattice: Lattice, tail: TailSettings) -> TailSettings:
    """The thresholds are those the lattice was made with; refuses others."""
    own = lattice.facts()
    for name in ("CT", "TRT"):
        asked, found = getattr(tail, name), getattr(own, name)
        if asked not in (None, "auto") and asked != found:
            raise InputError(
                f"tail.{name} must be that of the lattice, {found}, found {asked}; make a lattice with {name}={asked}."
            )
    if tail.method == "tcf" and not lattice.n_tail:
        raise InputError(
            "the lattice must have a tail pool for the TCF, found none; make it with CT=..., or use tail none."
        )
    if tail.method == "conditional" and not lattice.n_tail and not np.isfinite(lattice.TRT).all():
        raise InputError(
            "the lattice must have a threshold for the conditional likelihood, found none; make it with TRT=... or "
            "CT=..., or use tail none."
        )
    CT = None if tail.method == "conditional" and not lattice.n_tail else own.CT
    return replace(tail, CT=CT, TRT=own.TRT, region="TRT" if CT is None else tail.region)


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
            else f"steps are missing beyond {tail.CT:.3g} ({z:+.1f} standard deviations), and all of those are left out"
        )
        warnings.warn(
            f"tail.CT should be given for a precise estimate, found auto: {found}; if steps were lost beyond a "
            "threshold, give it as tail.CT.",
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


def constants(settings: FitSettings, data: Transitions) -> FitSettings:
    """The same settings for constants, of all pairs, as quick as may be."""
    head = settings.head
    kind: dict[str, Any] = {"name": "fourier", "period": head.period}
    if head.dim > 1 and not head.repeats and any(head.periods):
        kind = {"name": "product", "period": list(head.periods), "origin": head.origin, "window": head.window}
    elif head.period is None:
        kind = {"name": "spline", "period": None, "window": head.window or _around(data)}
    quick = replace(settings, engine=FisherEngine(), tail=TailSettings(), data={}, init="data", left_open=())
    return quick.with_head({**kind, "n_basis": 1, "dim": data.dim, **head.known})


def _around(data: Transitions) -> list[Any]:
    """A window that holds all states."""
    low, high = data.x.reshape(len(data), -1).aminmax(dim=0)
    window = [[a, b] for a, b in zip(low.tolist(), (high + 1e-9 * (high - low) + 1e-300).tolist())]
    return window[0] if data.dim == 1 else window


def _preliminary_CT(transitions: Transitions, settings: FitSettings, fit: Fitting) -> float:
    """Appendix A: the central `mass` of one step under constants fitted without correction, D_o included."""
    found = fit(transitions, replace(constants(settings, transitions), progress=False))
    n, steps = len(transitions), transitions.dt
    dt = float(steps[0] if transitions.uniform_dt else order_statistics(cut(steps.numpy()), [(n - 1) // 2])[0])
    alpha = found.alpha
    assert isinstance(alpha, float)
    D_o, D_f = float(found.D_o(found.origin)), float(found.D_f(found.origin))
    return float(cutting_threshold(alpha, D_f, dt, settings.tail.mass, D_o=D_o, dim=transitions.dim))


# -- a line ------------------------------------------------------------------------------------------------------------


def on_the_line(data: Pairs, settings: FitSettings) -> tuple[Pairs, FitSettings]:
    """Fills in the window and the knots of a head on a line, and leaves out the pairs that start elsewhere."""
    if settings.plain is None:
        return data.starting_in(settings.head.fitted_range), settings
    plain, head = dict(settings.plain), settings.head
    if plain.get("window") is None:
        periods = head.periods if len(head.periods) == data.dim else (None,) * data.dim
        ranges = [ANYWHERE if p is not None else kept_range(data, axis) for axis, p in enumerate(periods)]
        data = data.starting_in(ranges)
        windows = [None if p is not None else list(_widened(*ends)) for p, ends in zip(periods, ranges)]
        plain["window"] = windows[0] if data.dim == 1 else windows
    else:
        data = data.starting_in(head.fitted_range)
    if plain.get("knots") == "quantiles":
        plain["knots"] = _knots(data, int(plain["n_basis"]), plain["window"])
    return data, settings if plain == settings.plain else settings.with_head(plain)


def kept_range(data: StatesOfData, axis: int = 0) -> tuple[float, float]:
    """All states except those far beyond 99 % of the others."""
    low, first, last, high = data.quantiles_of_states((0.0, *_CENTRAL, 1.0), axis)
    near = _NEAR * (last - first)
    return max(low, first - near), min(high, last + near)


def _widened(low: float, high: float) -> tuple[float, float]:
    span = high - low
    if not span > 1e-8 * max(abs(low), abs(high)):
        raise InputError(
            f"x must vary for coefficients on a line, found states from {low:.9g} to {high:.9g}; subtract a constant "
            "near them, or give a window."
        )
    return low - _MARGIN * span, high + _MARGIN * span


def _knots(data: StatesOfData, n_basis: int, window: list[float]) -> list[float] | str:
    """Where the cubics meet: at quantiles of the states, each with as many pairs on either side."""
    if n_basis < 5:
        return "even"
    levels = tuple(float(v) for v in np.linspace(0, 1, n_basis - 2))
    inner = data.quantiles_of_states(levels)[1:-1]
    if not (np.diff([window[0], *inner, window[1]]) > 1e-6 * (window[1] - window[0])).all():
        raise InputError(
            "knots at quantiles must differ from each other, found states that repeat too often; use knots even."
        )
    return inner


def cut_batch(batch: FullBatch, head: Head) -> FullBatch:
    """A batch without the nodes outside of the window of a head on a line; the same object where there are none."""
    if head.period is not None or head.dim > 1:
        return batch
    low, high = head.window

    def part(pool: Batch) -> Batch:
        keep = (pool.x >= low) & (pool.x <= high)
        return pool if bool(keep.all()) else Batch(*(values[keep] for values in pool))

    main, tail = part(batch.main), None if batch.tail is None else part(batch.tail)
    if main is batch.main:
        return batch
    n_tail = 0.0 if tail is None else float(tail.weight.sum())
    return batch._replace(main=main, tail=tail, n_main=float(main.weight.sum()), n_tail=n_tail)


def cells_differ(head: Head, transitions: Transitions) -> bool:
    """Whether steps one period apart clearly differ, in any coordinate with a period.

    Pairs in the lower and in the upper half of the periods that x runs through are compared at the same place of the
    period: how many steps lie above the common median, and how many are larger than usual. Under a periodic system
    these numbers are hypergeometric in each bin, whatever the law of a step is.
    """
    stride = max(1, len(transitions) // _MOST_COMPARED)
    x, dx, dt = (v[::stride] for v in (transitions.x, transitions.dx, transitions.dt))
    x, dx = x.reshape(len(x), -1), dx.reshape(len(x), -1) / (dt / dt.mean()).sqrt()[:, None]
    columns = zip(x.T, dx.T, head.cells)
    return any(
        period is not None and _p_value((column - origin) / period, step) < _DIFFERENT
        for column, step, (origin, period) in columns
    )


def _p_value(turns: Tensor, dx: Tensor) -> float:
    """turns: states in periods."""
    cell = turns.floor()
    upper = cell > cell.median()
    if not bool(upper.any()):
        upper = cell >= cell.median()
    place = ((turns - cell) * _PLACES).long().clamp(max=_PLACES - 1)
    statistic, df = 0.0, 0
    for bin_ in range(_PLACES):
        here = place == bin_
        step, above = dx[here], upper[here].double()
        n, m = len(step), float(above.sum())
        if min(m, n - m) < 5:
            continue
        away = step - step.median()
        for mark in (away > 0, away.abs() > away.abs().median()):
            share = float(mark.double().mean())
            variance = share * (1 - share) * m * (n - m) / (n - 1)
            if variance > 0:
                statistic += (float(above[mark].sum()) - share * m) ** 2 / variance
                df += 1
    return float(chdtrc(df, statistic)) if df else 1.0
