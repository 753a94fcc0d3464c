"""Coefficients at their boundary: a D_o or D_f that the fit has driven to zero leaves the parameters.

Such a coefficient has no gradient and no curvature left, so that every later solve (corrections, the choice of the
law, covariances, V) would divide by next to nothing. It becomes the known constant zero and the others are fitted once
more; without jumps there is no alpha to learn and no tempering either.

Its error is one-sided. An information matrix at the boundary says how precise the others are if the coefficient *is*
zero, which can be far too little: a smaller alpha with a positive D_o may describe the data as well. So the likelihood
is profiled: the coefficient is held at larger and larger constants, the others are fitted to each, and where the
log-likelihood has fallen by 1/2 is one standard error. How far the others have moved on the way is added to their
covariance, as the share of their error that this coefficient is responsible for.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from levytorch.coefficients import LinearHead, linear
from levytorch.coefficients.head import KNOWABLE
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.likelihood.tail import TailCorrection
from levytorch.training.engines.base import Maximised, maximise
from levytorch.training.engines.fisher import FisherScoring
from levytorch.training.recovery import Recovery
from levytorch.training.report import (
    AS_WELL,
    Maximum,
    alpha_at_bound,
    evaluation_of,
    given_zero,
    loss_without,
    vanishing,
)

ONE_STD = 0.5  # fall of the log-likelihood at one standard error
UPPER = 0.5 * 1.6449**2  # and at the end of a one-sided interval of 95 %
_SMALLEST, _FACTOR, _TRIALS = 1e-3, 4.0, 12  # constants to try, in the unit of the coefficient
_PASSES = 25  # of one of the fits with the coefficient held
_NEAR = 1e-2  # twice the log-likelihood that such a fit may leave
_FAR = 20.0  # of log-likelihood that is lost without a coefficient, all else as it is
_STATES = 64  # at which coefficients are compared
_SLOPE = 0.1  # share of an error that parameters may fail to make
_REFINED = 3  # times that the place of a given fall is looked for between two constants


@dataclass(frozen=True)
class Vanished:
    """A coefficient at zero, or near it. std: where the profiled log-likelihood has fallen by 1/2; upper: by 1.35
    (95 %); change: what all coefficients do between zero and std, (m,) each at the states `x`. Infinite std: the
    log-likelihood never fell so far. gone: False for one that is near zero only, and stays a parameter.
    """

    name: str
    std: float
    upper: float
    x: Tensor
    change: tuple[Tensor, ...]
    gone: bool = True
    alpha_learned: bool = False


def without_vanished(first: Maximum) -> tuple[Maximum, Vanished | None]:
    """The same fit without a coefficient that has vanished, and what the data says about that one."""
    head, likelihood = first.likelihood.head, first.likelihood
    full_batch = first.engine.full_batch  # the other engines do not come close enough to zero for their end to say it
    if not full_batch or not isinstance(head, LinearHead) or head.dim > 1 or likelihood.tail.method == "tcf":
        return first, None
    objective = first.engine.objective(likelihood, first.done.optimizer, first.batch)
    ev = evaluation_of(first.done.optimizer, objective)
    names = [n for n in vanishing(objective, ev) if loss_without(n, head, first.batch) < AS_WELL]
    gone = len(names) == 1
    # jumps whose alpha has run to its end near 1 are no jumps, but a second D_o
    like_D_o = head.learns_alpha and alpha_at_bound(head) == head.alpha_spec.link.high
    if not names:
        # where there are clear jumps the law without them has no finite slopes: D_f is then distinguished from zero
        near = near_zero(objective, ev) or ["D_f"] * like_D_o
        names = [n for n in near if n == "D_o" or loss_without(n, head, first.batch) < _FAR]
    if len(names) != 1:
        return first, None
    name = names[0]
    own = replace(likelihood, head=with_constant(head, name, 0.0), correction=TailCorrection())
    try:
        done = maximise(first.engine, own, first.batch)
    except ArithmeticError:
        return first, None
    fitted = first.engine.objective(own, done.optimizer, first.batch)
    best = fitted.n * fitted.value(evaluation_of(done.optimizer, fitted), penalised=False)
    here = objective.n * objective.value(ev, penalised=False)
    gone = gone or (name == "D_f" and like_D_o and best > here - AS_WELL)
    allowed = AS_WELL if gone else 2.0 * AS_WELL  # errors that are too wide do less harm than an estimate that is moved
    if gone and objective.penalty is not None and objective.penalty.active:
        allowed += 0.5 * len(ev.theta)  # what other strengths of the penalty may cost: nothing else has changed
    if not best > here - allowed:
        return first, None  # the data does tell it from zero, or this is another maximum, and a worse one
    found = replace(profile(name, own, fitted.penalty, first), gone=gone, alpha_learned=head.learns_alpha)
    warn_of(found)
    if not gone:
        return first, found
    finished = Maximised(done.optimizer, done.converged, first.done.steps + done.steps)
    return replace(first, likelihood=own, done=finished), found


def vanished_later(first: Maximum) -> Vanished | None:
    """A coefficient that a law which follows the coefficients along a step has driven to zero, although the frozen law
    had not. What the data say about its size is profiled under the frozen law, which is nearly the same near zero.
    """
    head, likelihood = first.likelihood.head, first.likelihood
    linear_head = isinstance(head, LinearHead) and head.dim == 1
    if not (linear_head and first.engine.full_batch and likelihood.tail.method != "tcf"):
        return None
    objective = likelihood.objective(first.batch)
    names = vanishing(objective, objective.evaluate())
    if len(names) != 1:
        return None
    own = replace(likelihood, head=with_constant(linear(head), names[0], 0.0), correction=TailCorrection())
    try:
        done = maximise(first.engine, own, first.batch)
        penalty = first.engine.objective(own, done.optimizer, first.batch).penalty
        found = profile(names[0], own, penalty, first)
    except ArithmeticError:
        return None
    found = replace(found, gone=False, alpha_learned=linear(head).learns_alpha)
    warn_of(found)
    return found


def near_zero(objective: FullBatchObjective, ev: Evaluation) -> list[str]:
    """D_o or D_f, where its mean over the pairs is less than its standard error by the information matrix."""
    head, seen = objective.head, ev.main.second[0, 0]
    information = objective.penalised_information(ev)
    if head.units.length * head.scale.length == 1.0 or not bool(torch.isfinite(information).all()):
        return []
    covariance, chain = symmetric_inverse(information), head.chain(ev.theta, objective.design)
    weight, out = seen / seen.sum(), []
    for name in KNOWABLE:
        if name in head.known:
            continue
        row = head.layout.row(name)
        part = head.part(row)
        slope = objective.design[row] @ (weight * chain.slope[row])
        std = float((slope @ covariance[part, part] @ slope).clamp(min=0.0).sqrt())
        if float(weight @ chain.coefficients[1 + KNOWABLE.index(name)]) < std:
            out.append(name)
    return out


def with_constant(head: LinearHead, name: str, value: float) -> LinearHead:
    """A copy of a head with D_o or D_f as a known constant, in the units of the data; at D_f = 0 alpha and tempering
    are no longer learned.
    """
    out = copy.deepcopy(head)
    gone = torch.zeros(head.theta.numel(), dtype=torch.bool)
    gone[head.part(head.layout.row(name))] = True
    if name == "D_f" and value == 0.0:
        for row in range(head.n_linear, len(head.sizes)):
            gone[head.part(row)] = row != head.clock_row
        with torch.no_grad():
            alpha = float(head(head.grid(16)).alpha.mean())
        out.alpha_spec, out.tempering_spec = AlphaSpec("fixed", alpha), TemperingSpec()
        out.alpha_basis, out.n_basis_alpha = None, 0
    out.known = {**head.known, name: value}
    out.theta = nn.Parameter(head.theta.detach()[~gone].clone())
    return out


def profile(name: str, likelihood: Likelihood, penalty: RoughnessPenalty | None, first: Maximum) -> Vanished:
    """Where the log-likelihood has fallen by 1/2 and by 1.35 as the coefficient rises from zero."""
    zero = linear(likelihood.head)
    alpha = torch.tensor(zero.alpha_spec.value, dtype=torch.float64)
    unit, data = ((u.D_o if name == "D_o" else float(u.D_f(alpha))) for u in (zero.units, zero.scale))
    unit = unit * data  # in those of the data, in which constants are known
    values: dict[float, tuple[float, Tensor]] = {}

    def fit(value: float, start: Tensor) -> tuple[float, Tensor]:
        head = copy.deepcopy(zero)
        head.known = {**head.known, name: value}
        head.set_flat(start)
        objective = replace(likelihood, head=head, correction=TailCorrection()).objective(first.batch)
        if penalty is not None:
            objective.penalty = RoughnessPenalty(head, penalty.strengths.tolist())
        scoring = FisherScoring([head.theta], damping=1e-3)
        scoring.objective = objective
        for _ in range(_PASSES):
            scoring.step(objective.evaluate)
            if scoring.converged or scoring.memory["decrement"] < _NEAR:
                break
        assert scoring.accepted is not None
        return objective.n * objective.value(scoring.accepted), scoring.accepted.theta

    top, start = fit(0.0, zero.flat())
    values[0.0] = (0.0, start)
    value = _SMALLEST * unit
    for _ in range(_TRIALS):
        try:
            height, start = fit(value, start)
        except ArithmeticError:
            break
        values[value] = (top - height, start)
        if top - height > UPPER:
            break
        value *= _FACTOR

    def reach(fall: float) -> tuple[float, Tensor]:
        """The constant at which the log-likelihood has fallen so far, and the parameters there."""
        for _ in range(_REFINED):
            below = max((v for v, (f, _) in values.items() if f <= fall), default=0.0)
            above = [v for v, (f, _) in values.items() if f > fall and v > below]
            if not above:
                return math.inf, start
            right = min(above)
            f0, f1 = values[below][0], values[right][0]
            if abs(f1 - fall) < 0.05 * fall:
                break
            # falls grow between linearly and quadratically: their roots are nearly straight
            share = (math.sqrt(fall) - math.sqrt(max(f0, 0.0))) / (math.sqrt(f1) - math.sqrt(max(f0, 0.0)))
            at = below + min(max(share, 0.05), 0.95) * (right - below)
            height, theta = fit(at, values[right][1])
            values[at] = (top - height, theta)
        last = max((v for v, (f, _) in values.items() if f <= fall), default=0.0)
        nearest = min((v for v in values if v >= last and v > 0), key=lambda v: abs(values[v][0] - fall))
        return nearest, values[nearest][1]

    std, theta = reach(ONE_STD)
    upper, _ = reach(UPPER)
    x, ends = zero.grid(_STATES), []
    for constant, parameters in ((std if math.isfinite(std) else value, theta), (0.0, values[0.0][1])):
        head = copy.deepcopy(zero)
        head.known = {**head.known, name: constant}
        head.set_flat(parameters)
        with torch.no_grad():
            ends.append([v.expand(len(x)) for v in head(x)])
    return Vanished(name, std, upper, x, tuple(one - other for one, other in zip(*ends)))


def warn_of(found: Vanished) -> None:
    name = found.name
    size = f"at most {found.upper:.3g} (95 %, one-sided)" if math.isfinite(found.upper) else "not bounded by these data"
    where = "is estimated as zero" if found.gone else "cannot be distinguished from zero"
    alpha = ", and without jumps alpha has no meaning" if name == "D_f" and found.gone and found.alpha_learned else ""
    warnings.warn(
        f"{name} {where}: it is {size}{alpha}; the standard errors of the other coefficients include this "
        f"uncertainty; use {name}=0 if it is known to be absent.",
        LevytorchWarning,
        stacklevel=5,
    )


def include_vanished(recovery: Recovery, found: Vanished | None) -> None:
    """What a fit says about a coefficient at or near zero; that one's share of the errors, into the covariance."""
    if found is None:
        return
    head, covariance = linear(recovery.head), recovery.covariance
    moves = _moves(head, found)
    plain = {"std": found.std, "upper": found.upper, "moves": moves.tolist(), "alpha_learned": found.alpha_learned}
    if found.gone:
        recovery.metrics["at_zero"] = {found.name: plain}
        recovery.metrics["vanishing"] = [*recovery.metrics.get("vanishing", []), found.name]
    else:
        recovery.metrics["near_zero"] = {found.name: plain | {"missing": _missing(head, found, moves)}}
    if covariance is None or not math.isfinite(found.std):
        return
    if not found.gone and found.name not in recovery.metrics.get("vanishing", []):
        covariance = given_zero(covariance, head, [found.name])
    recovery.covariance = covariance + torch.outer(moves, moves)


def _missing(head: LinearHead, found: Vanished, moves: Tensor) -> float:
    """The part of the error that no move of the parameters makes: where a coefficient is all but zero, it has all but
    no slope. 0 where the parameters make nearly all of it.
    """
    row = 1 + KNOWABLE.index(found.name)
    made = float((head.jacobian(found.x)[row].detach() @ moves).mean())
    missing = max(found.std - made, 0.0)
    return missing if missing > _SLOPE * found.std else 0.0


def _moves(head: LinearHead, found: Vanished) -> Tensor:
    """(P,) of theta, by which the coefficients change as they do between zero and one standard error."""
    with torch.no_grad():
        sizes = [v.abs().mean().clamp(min=1e-300) for v in head(found.x)]
    rows, values = [], []
    for J, change, size in zip(head.jacobian(found.x), found.change, sizes):
        scale = torch.maximum(size, change.abs().mean())
        rows.append(J.detach() / scale)
        values.append(change / scale)
    matrix, wanted = torch.cat(rows), torch.cat(values)
    size = matrix.norm(dim=0).clamp(min=1e-300)  # a coefficient that is all but zero has all but no slope
    return torch.linalg.pinv(matrix / size, rtol=1e-8) @ wanted / size
