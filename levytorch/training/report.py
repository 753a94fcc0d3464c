"""What a fit says about itself at the end: covariance, likelihood, diagnostics, warnings.

Of coefficients that a fit has driven to zero estimates are one-sided, and information matrices that treat them like any
other parameter blame their supposed uncertainty on the rest (alpha most of all): they stay fixed at zero instead.

A learned tempering has its boundary at zero. An error bar of lam means nothing there: the likelihood is smooth in
eta = lam^(2 alpha) >= 0, and where its maximum is within two standard errors of zero only an upper bound is said: the
eta at which the log-likelihood, profiled over all other parameters by its quadratic model, has fallen by 1.353 (95 %,
one-sided) below its maximum.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.layout import scalar_size
from levytorch.coefficients.links import ALPHA_MAX, ALPHA_MIN, tempering_eta, tempering_of
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch, FullBatch, PoolFacts, Pools
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.law import log_density
from levytorch.likelihood.frozen import FrozenLaw, rate
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective, covariance, separability
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import project
from levytorch.training.engines import Engine
from levytorch.training.engines.base import Maximised, bare
from levytorch.training.engines.fisher import FisherEngine, polish
from levytorch.training.engines.lbfgs import full_nll
from levytorch.training.recovery import Recovery

_DIFFERENCE = 1e-4  # of a parameter in internal units, for differences of gradients
_AT_THE_END = 0.005  # from an end of the range of alpha
_MOST_REMOVED = 0.05  # share of all pairs beyond TRT
VANISHED = 1e-4
_NOTHING, _NEARLY_ALL = 1e-3, 0.8  # of the unit of D_o, and of the pairs
_AT_BOUND = 2e-3  # of a learned alpha from the end of its range
AS_WELL = 2.0  # in log-likelihood: what one parameter is worth by AIC, and a bit
# of a tempering: the log-likelihood may fall by (95 % on one side), clearly not zero, zero (eta in internal units)
_DROP, TOLD, _GONE = 0.5 * 1.6449**2, 2.0, 1e-6
NOT_TOLD = "tempering cannot be distinguished from zero with these data"


@dataclass
class Maximum:
    """The result of a maximisation.

    batch: what was maximised over; samples: where that was a lattice, all pairs themselves; observed: where tail masses
    came from.
    """

    likelihood: Likelihood
    engine: Engine
    done: Maximised
    batch: FullBatch
    observed: Pools | Lattice
    facts: PoolFacts
    samples: FullBatch | None = None


def finish(maximum: Maximum) -> Recovery:
    """A Recovery at the likelihood's head, by at most one more pass over the batch that was fitted.

    If the batch is a lattice made of samples, the head moves to the maximum of the likelihood of the samples.
    """
    likelihood, engine, facts, done = maximum.likelihood, maximum.engine, maximum.facts, maximum.done
    head, tail = likelihood.head, likelihood.tail
    metrics: dict[str, Any] = {
        "engine": engine.name,
        "steps": done.steps,
        "converged": bool(done.converged),
        "n_main": facts.n_main,
        "n_tail": facts.n_tail,
        "left_out": facts.dropped,
        "R_sample": facts.n_tail / facts.n_main,
        "mu": facts.mu,
        "CT": facts.CT,
        "TRT": facts.TRT,
        "CT_of_dt": facts.CT_of_dt,
        "CT_halvings": facts.halvings,
        "tail_method": tail.method,
    }
    if facts.x_range is not None:
        metrics |= {"x_min": facts.x_range[0], "x_max": facts.x_range[1]}
    removed = facts.dropped.get("beyond TRT", 0)
    if removed > _MOST_REMOVED * (facts.n_main + removed):
        _warn(
            f"{removed} pairs lie beyond TRT and {facts.n_main} within it: these are too many for a tail, and "
            "the fit did not use them; raise tail.TRT, which is a distance in the units of x, or leave it out."
        )
    if not done.converged:
        metrics["not_converged"] = _why(engine, done.optimizer, head)
        metrics["remedy"] = _remedy(engine, head, maximum.batch)
        _warn(
            f"the {engine.name} engine stopped after {done.steps} steps before it had converged "
            f"({metrics['not_converged']}): standard errors are those of a maximum that was not reached; "
            f"{metrics['remedy']}, or read them with care."
        )
    if (bound := alpha_at_bound(head)) is not None:
        metrics["alpha_at_bound"] = bound
        _warn(
            f"a learned alpha must lie within its bounds, found it at {bound:g}: the likelihood still rises there, "
            "and its standard error has no meaning; widen alpha_bounds, or give alpha (near 1 jumps and D_o are "
            "hardly separable)."
        )
    cov = None
    scored = isinstance(head, LinearHead) or isinstance(engine, FisherEngine)
    if scored and isinstance(likelihood.law, FrozenLaw):
        cov, ev, log_likelihood = _of_linear(maximum, metrics)
        tcf = ev.tcf
        if ev.R_theta is not None:
            metrics["R_theta"] = ev.R_theta
    else:
        tcf = likelihood.correction.tcf
        near = maximum.samples is not None and type(maximum.samples.main) is Batch  # in this process
        batch = (maximum.samples if near and maximum.samples is not None else maximum.batch)._replace(tcf=tcf)
        log_likelihood = batch.n_main * likelihood.mean(batch)
        if isinstance(head, LinearHead):
            cov = observed_covariance(likelihood, batch, facts.n_main)
        if tail.method == "tcf":
            metrics["R_theta"] = likelihood.observed_masses().R_theta(head)
    region = tail.conditions_on if tail.method == "conditional" else None
    metrics |= {"tcf": tcf, "log_likelihood": log_likelihood, "region": region}
    return Recovery(head, tcf, log_likelihood, done.converged, cov, metrics)


def _of_linear(maximum: Maximum, metrics: dict[str, Any]) -> tuple[Tensor | None, Evaluation, float]:
    """The covariance of theta, the last evaluation, and the log-likelihood; what else is found, into the metrics.

    A head that is not linear is judged by its tangent.
    """
    fitted = objective = maximum.engine.objective(maximum.likelihood, maximum.done.optimizer, maximum.batch)
    if maximum.samples is None:
        ev = evaluation_of(maximum.done.optimizer, objective)
    else:
        metrics["lattice_nodes"] = maximum.batch.main.x.shape[0]
        objective, ev, metrics["lattice_distance"] = polish(maximum.likelihood, objective, maximum.samples)
    if objective.method == "tcf" and not maximum.engine.full_batch:
        ev.tcf = float(
            maximum.likelihood.correction.tcf
        )  # the one that batches were mixed by, which may never have begun
    objective.look_from(ev)
    head = objective.head
    cov = objective.covariance_of_law()
    if cov is None:
        if objective.method == "tcf":
            fitted.look_from(ev)
            fitted.add_hessian(ev)  # second derivatives of all data, at the cost of a lattice where there is one
        cov = covariance(objective, ev)
    if cov is None:
        _warn(
            "there are no standard errors: second derivatives are not finite where D_o or D_f vanishes; use "
            "positivity softplus, or a bootstrap."
        )
    penalty = objective.penalty
    if cov is not None and penalty is not None and penalty.active:
        information = objective.penalised_information(ev)
        metrics["parameters"] = penalty.determined(information)
        cov = penalty.widened(cov, ev.theta, information)
        metrics["left_out_of_series"] = penalty.left_out()
    if head.tempering_spec.learned:
        tempering_report, cov = judge_tempering(objective, ev, cov)
        metrics |= tempering_report
    metrics["vanishing"] = vanishing(objective, ev)
    losses = {name: loss_without(name, head, maximum.batch) for name in metrics["vanishing"]}
    if losses:
        metrics["vanishing_loss"] = losses
        _warn_of_vanishing(losses)
        at_zero = [name for name, loss in losses.items() if loss < AS_WELL]
        if cov is not None and at_zero:
            cov = given_zero(cov, head, at_zero)
    metrics["D_o_D_f_correlation"] = 0.0 if head.known else _correlation(objective, ev)
    if objective.method == "conditional" and objective.region == "strata" and cov is not None:
        metrics["missing_between_CT_and_TRT_z"] = missing_between(objective, ev.kept, cov)
    if penalty is not None:
        metrics["penalty_strengths"] = penalty.strengths.tolist()
    if cov is not None and isinstance(head, TangentHead):
        cov = head.covariance_of_head(cov)
    return cov, ev, objective.n * objective.value(ev, penalised=False)


def observed_covariance(likelihood: Likelihood, batch: FullBatch, n: float) -> Tensor | None:
    """The inverse of the observed information of a law without scores: its gradient is differenced in every parameter.

    None with the TCF, which moves with the parameters and is no part of the likelihood, or at no maximum.
    """
    if likelihood.tail.method == "tcf":
        _warn(
            f"there are no standard errors with the TCF under law {likelihood.law.name}, which has no scores; use "
            "tail.method conditional, or a bootstrap."
        )
        return None
    head = likelihood.head
    theta, rows = head.flat(), []

    def gradient(at: Tensor) -> Tensor:
        head.set_flat(at)
        head.zero_grad()
        full_nll(likelihood, batch)
        return torch.cat(
            [torch.zeros(p.numel()).to(p) if p.grad is None else p.grad.reshape(-1) for p in head.parameters()]
        )

    for i in range(theta.numel()):
        h = torch.zeros_like(theta)
        h[i] = _DIFFERENCE * max(1.0, abs(float(theta[i])))
        rows.append((gradient(theta + h) - gradient(theta - h)) / (2 * h[i]))
    head.set_flat(theta)
    head.zero_grad()
    information = n * torch.stack(rows)
    information = 0.5 * (information + information.T)
    if not bool((torch.linalg.eigvalsh(information) > 0).all()):
        _warn(
            "there are no standard errors: the fit ended at a point that is not a maximum of the log-likelihood; use a "
            "bootstrap."
        )
        return None
    return symmetric_inverse(information)


def in_standard_errors(head: Head, moved: Tensor, covariance: Tensor) -> float:
    """How far coefficients move with theta, in standard errors, where that is farthest."""
    farthest = 0.0
    for J in head.jacobian(head.grid(128 if head.dim == 1 else 400)):
        std = ((J @ covariance) * J).sum(-1).clamp(min=0.0).sqrt()
        farthest = max(farthest, float(((J @ moved).abs() / std.clamp(min=1e-300)).max()))
    return farthest


def _warn(sentence: str) -> None:
    warnings.warn(sentence, LevytorchWarning, stacklevel=4)


def _why(engine: Engine, optimizer: Optimizer, head: Head) -> str:
    """What an engine that has not converged says, and whether a learned alpha has run to an end of its range."""
    reason = engine.unfinished(bare(optimizer))
    if head.alpha_spec.mode == "constant":
        with torch.no_grad():
            alpha = float(head(head.grid(1)).alpha)
        if not ALPHA_MIN + _AT_THE_END < alpha < ALPHA_MAX - _AT_THE_END:
            reason += f"; alpha = {alpha:.3f} is at an end of its range, {ALPHA_MIN} to {ALPHA_MAX}"
    return reason


@torch.no_grad()
def _remedy(engine: Engine, head: Head, batch: FullBatch) -> str:
    """What makes such a fit converge.

    Without a D_o at most states the likelihood has no maximum: D_o falls for ever there, and rises at a few pairs.
    """
    unsmoothed = isinstance(engine, FisherEngine) and engine.penalty == "none"
    many = isinstance(head, LinearHead) and not head.is_constant
    smoothing = " and engine='evidence'" if unsmoothed and many else ""
    scaled = isinstance(head, LinearHead) and head.units.length * head.scale.length != 1.0
    if scaled and many and "D_o" not in head.known:
        D_o, weight = scalar_size(head(batch.main.x).D_o), batch.main.weight
        share = float((weight * (D_o < _NOTHING * head.units.D_o)).sum() / weight.sum())
        if share > _NEARLY_ALL:
            return f"D_o is almost zero at {100 * share:.0f} % of the pairs: use D_o=0{smoothing} and compare the AIC"
    return "raise max_steps" + (", use engine='evidence'" if smoothing and head.dim > 1 else "")


def _correlation(objective: FullBatchObjective, ev: Evaluation) -> float:
    """Of the estimates of D_o and D_f."""
    head, mean = objective.head, None
    if isinstance(head, TangentHead):
        return _tangent_correlation(objective, ev, head)
    if head.window is not None:  # a line: over the states that were observed, of which its ends hold few
        row = head.layout.row("D_o")
        weight = ev.main.second[row, row]
        mean = objective.design[row] @ weight / weight.sum()
    return separability(objective.n * objective.information(ev), head, mean)


def _tangent_correlation(objective: FullBatchObjective, ev: Evaluation, head: TangentHead) -> float:
    """The same of the means over the observed states, whatever coordinates they share."""
    layout = head.layout
    weight = ev.main.second[layout.row("D_o"), layout.row("D_o")]
    weight = weight / weight.sum()
    rows = torch.zeros((2, len(layout), len(weight)), dtype=torch.float64)
    rows[0, layout.positive("D_o")], rows[1, layout.row("D_f")] = weight, weight
    means = project(head, rows, objective.design)
    cov = means @ symmetric_inverse(objective.penalised_information(ev)) @ means.T
    return float(cov[0, 1].abs() / (cov[0, 0] * cov[1, 1]).sqrt().clamp(min=1e-300))


def missing_between(
    objective: FullBatchObjective, kept: tuple[Tensor, Tensor, Tensor, Tensor] | None, cov: Tensor
) -> float | None:
    """How many standard deviations fewer pairs lie between CT and TRT than the fitted core says (negative: missing)."""
    if kept is None or objective.masses is None:
        return None
    core, middle, q_core, q_middle = kept
    p = torch.sigmoid(middle - core)  # P(middle) / (P(core) + P(middle)) at every state
    counts = objective.masses.counts
    n = float(counts.sum())
    expected = float((counts * p).sum())
    slope = project(objective.head, counts * p * (1 - p) * (q_middle - q_core), objective.design)
    variance = float((counts * p * (1 - p)).sum()) + float(slope @ cov @ slope)
    observed = float(objective.masses.tail_counts.sum())
    return (observed - expected) / math.sqrt(max(variance, 1.0)) if n else None


def evaluation_of(optimizer: Optimizer, objective: FullBatchObjective) -> Evaluation:
    """What the last pass left behind, when it was made at the final parameters; one more pass otherwise."""
    accepted = getattr(optimizer, "accepted", None)
    if isinstance(accepted, Evaluation) and objective.is_at(accepted):
        return replace(accepted, main=replace(accepted.main), tail=accepted.tail and replace(accepted.tail))
    return objective.evaluate()


# -- boundaries --------------------------------------------------------------------------------------------------------


def vanishing(objective: FullBatchObjective, ev: Evaluation) -> list[str]:
    """D_o or D_f, when it is below 1e-4 of its internal unit (the square of a typical step) at all observed states."""
    head = objective.head
    seen = ev.main.second[0, 0] > 0
    c = head.chain(ev.theta, objective.design).coefficients
    if head.units.length * head.scale.length == 1.0 or not bool(seen.any()):
        return []  # in the data's own units there is no scale to compare with
    sizes = {"D_o": scalar_size(c.D_o) / head.units.D_o, "D_f": c.D_f / head.units.D_f(c.alpha)}
    return [n for n, size in sizes.items() if n not in head.known and float(size[seen].max()) < VANISHED]


@torch.no_grad()
def loss_without(name: str, head: LinearHead, batch: FullBatch) -> float:
    """How much log-likelihood the main batch loses when D_o or D_f is exactly zero and all else stays.

    Without D_f, D_o may grow by what jumps of the size of a Brownian step add to it: near alpha = 1 they are the same.
    """
    main = batch.main
    c = head(main.x)

    def log_p(at: Coefficients) -> Tensor:
        lam = rate(at)
        return log_density(
            main.dx, at.b, at.D_o, at.D_f, at.alpha, main.dt, dim=head.dim, method="contour", tempering=lam
        )

    if name == "D_o":
        without = [c._replace(D_o=torch.zeros_like(c.D_o))]
    else:  # without jumps the law is a Gaussian: the smallest D_f that the quadrature takes
        plain = c._replace(D_f=torch.full_like(c.D_f, 1e-300))
        added = c.D_f * (2 * scalar_size(c.D_o) * main.dt) ** (1 - c.alpha)
        if c.D_o.dim() > added.dim():
            added = added[..., None, None] * torch.eye(head.dim, dtype=torch.float64)
        without = [plain, plain._replace(D_o=c.D_o + added)]
    value = log_p(c)
    return min(float((main.weight * (value - log_p(other))).sum()) for other in without)


def _warn_of_vanishing(losses: dict[str, float]) -> None:
    """A warning for each, which says what the likelihoods say."""
    for name, loss in losses.items():
        if loss < AS_WELL:
            sentence = (
                f"{name} is estimated as zero: the data are described as well without {name}, and its standard error "
                "has no meaning; "
                f"{'leave it out (D_o=0)' if name == 'D_o' else 'do not interpret it'}."
            )
        else:
            sentence = (
                f"{name} is very small against a typical step, but the log-likelihood falls by {loss:.3g} without it; "
                "look for steps that are equal or rounded before you interpret it."
            )
        _warn(sentence)


def alpha_at_bound(head: Head) -> float | None:
    """The end of its range that a learned alpha has run to; None: it lies within."""
    if not head.learns_alpha:
        return None
    link = head.alpha_spec.link
    with torch.no_grad():
        alpha = head(head.grid(64)).alpha
    return next((end for end in (link.low, link.high) if float((alpha - end).abs().min()) < _AT_BOUND), None)


def given_zero(covariance: Tensor, head: LinearHead, names: list[str]) -> Tensor:
    """The covariance of the other parameters given that these coefficients stay where they are (rows of zeros)."""
    fixed = torch.zeros(covariance.shape[0], dtype=torch.bool)
    for name in names:
        rows = head.layout.rows(name)
        for row in range(rows.start, rows.stop):
            fixed[head.part(row)] = True
    out = torch.zeros_like(covariance)
    free = torch.nonzero(~fixed).reshape(-1)
    bound = torch.nonzero(fixed).reshape(-1)
    cross = covariance[free][:, bound]
    given = covariance[free][:, free] - cross @ symmetric_inverse(covariance[bound][:, bound]) @ cross.T
    out[free[:, None], free] = given
    return out


def judge_tempering(
    objective: FullBatchObjective, ev: Evaluation, covariance: Tensor | None
) -> tuple[dict[str, Any], Tensor | None]:
    """What metrics say about a learned tempering, and the covariance of the others alone where it has run to zero."""
    head = objective.head
    information = objective.penalised_information(ev)
    value, slope = tempering_eta(ev.theta[-1])
    others = symmetric_inverse(information[:-1, :-1])
    row = information[:-1, -1]
    curvature = float((information[-1, -1] - row @ others @ row).clamp(min=1e-300) / slope**2)
    gradient = min(0.0, float(objective.n * objective.gradient(ev)[-1] / slope))  # zero at a maximum inside
    eta = float(value)
    upper = eta + (gradient + math.sqrt(gradient**2 + 2.0 * _DROP * curvature)) / curvature
    z = eta * math.sqrt(curvature)
    bound = tempering_of(upper, head.alpha_spec.value, head.units.length) / head.scale.length
    out: dict[str, Any] = {"tempering_z": z, "tempering_upper": bound, "tempering_told_from_zero": bool(z >= TOLD)}
    if z < TOLD:
        warn_of_no_tempering(z, bound)
        # to where that model of the log-likelihood has fallen by 1/2, for fits that share their tempering with this
        # one; in raw, the root of eta
        falls = (gradient + math.sqrt(gradient**2 + curvature)) / curvature
        rises = math.sqrt(eta + falls) - float(ev.theta[-1].abs())
        out["tempering_step"] = [*(-falls / slope * (others @ row)).tolist(), rises]
    if eta < _GONE and covariance is not None and objective.method != "tcf":
        alone = torch.zeros_like(covariance)
        alone[:-1, :-1] = others
        covariance = alone
    return out, covariance


def warn_of_no_tempering(z: float, bound: float) -> None:
    most = f"it is at most {bound:.3g} per unit of x (95 %, one-sided)" if bound < math.inf else "they do not bound it"
    _warn(
        f"{NOT_TOLD} (z = {z:.2f}): {most}, and its standard error has no meaning; use tempering=0 unless the AIC of "
        "this fit is lower."
    )
