"""What a fit says about itself at the end: covariance, likelihood, diagnostics, warnings."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.links import ALPHA_MAX, ALPHA_MIN
from levytorch.data.batches import FullBatch, PoolFacts, Pools
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective, covariance, separability
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.student import widening
from levytorch.likelihood.sums import project
from levytorch.ranks import Ranks
from levytorch.training import boundary
from levytorch.training.boundary import judge_tempering, loss_without, vanishing
from levytorch.training.engines import Engine
from levytorch.training.engines.base import bare
from levytorch.training.engines.exact import ExactObjective
from levytorch.training.engines.fisher import FisherScoring
from levytorch.training.recovery import Recovery

_INSEPARABLE = 0.98
_AT_THE_END = 0.005  # from an end of the range of alpha
_MOST_REMOVED = 0.05  # share of all pairs beyond TRT
_SHORT = 0.05  # standard errors: Newton's step is then right to a small part of that
_PASSES = 30  # over the samples, after a lattice


def finish(
    likelihood: Likelihood,
    engine: Engine,
    optimizer: Optimizer,
    facts: PoolFacts,
    batch: FullBatch,
    converged: bool,
    steps: int,
    samples: FullBatch | None = None,
) -> Recovery:
    """A Recovery at the likelihood's head, by at most one more pass over the batch that was fitted.

    samples: where that batch was a lattice, all pairs themselves; the head moves to the maximum of their likelihood.
    """
    head, tail = likelihood.head, likelihood.tail
    metrics: dict[str, Any] = {
        "engine": engine.name,
        "steps": steps,
        "converged": bool(converged),
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
        warnings.warn(
            f"{removed} pairs lie beyond TRT and {facts.n_main} within it: so many are no tail, and the fit has not "
            "seen them; raise tail.TRT, which is a distance in the units of x, or leave it out.",
            LevytorchWarning,
            stacklevel=2,
        )
    if not converged:
        metrics["not_converged"] = _why(engine, optimizer, head)
        warnings.warn(
            f"the {engine.name} engine stopped after {metrics['steps']} steps before it had converged "
            f"({metrics['not_converged']}): raise max_steps, or read the standard errors with care, which are those of "
            "a maximum that was not reached.",
            LevytorchWarning,
            stacklevel=2,
        )
    bound = boundary.alpha_at_bound(head)
    if bound is not None:
        metrics["alpha_at_bound"] = bound
    cov = None
    if isinstance(head, LinearHead):
        fitted = objective = engine.objective(likelihood, optimizer, batch)
        if samples is None:
            ev = _evaluation(optimizer, objective)
        else:
            metrics["lattice_nodes"] = batch.main.x.shape[0]
            objective, ev, metrics["lattice_distance"] = polish(likelihood, objective, samples)
        if isinstance(objective, ExactObjective) and objective.own is not None:
            cov = objective.covariance()
        else:
            if objective.method == "tcf":
                fitted.add_hessian(ev)  # second derivatives of all data, at the cost of a lattice where there is one
            cov = covariance(objective, ev)
        if cov is None:
            warnings.warn(
                "there are no standard errors: second derivatives are not finite where D_o or D_f vanishes; use "
                "positivity softplus, or a bootstrap.",
                LevytorchWarning,
                stacklevel=2,
            )
        penalty = objective.penalty
        if cov is not None and penalty is not None and penalty.adaptive and penalty.by_harmonic:
            information = objective.n * objective.information(ev) + torch.diag(penalty.precision())
            wider = widening(penalty, ev.theta, symmetric_inverse(information))
            cov = cov * wider.outer(wider)
        log_likelihood = objective.n * objective.value(ev, penalised=False)
        tcf = ev.tcf
        if ev.R_theta is not None:
            metrics["R_theta"] = ev.R_theta
        if head.tempering_spec.learned:
            told, cov = judge_tempering(objective, ev, cov)
            metrics |= told
        metrics["vanishing"] = vanishing(objective, ev)
        losses = {name: loss_without(name, head, batch) for name in metrics["vanishing"]}
        if losses:
            metrics["vanishing_loss"] = losses
            boundary.warn_of_vanishing(losses)
            at_zero = boundary.on_the_boundary(losses)
            if cov is not None and at_zero:
                cov = boundary.held_at_zero(cov, head, at_zero)
        correlation = 0.0 if head.known else _correlation(objective, ev)
        metrics["D_o_D_f_correlation"] = correlation
        if correlation > _INSEPARABLE:
            warnings.warn(
                f"D_o and D_f are hardly separable from this data (correlation {correlation:.3f} of their estimates): "
                "trust their combined effect, not each alone, or fix one (D_o=<number> or D_f=<number>).",
                LevytorchWarning,
                stacklevel=2,
            )
        if objective.method == "conditional" and objective.region == "strata" and cov is not None:
            metrics["missing_between_CT_and_TRT_z"] = missing_between(objective, ev.kept, cov)
        if penalty is not None:
            metrics["penalty_strengths"] = penalty.strengths.tolist()
    else:
        tcf = likelihood.correction.tcf
        log_likelihood = facts.n_main * likelihood.mean((samples or batch)._replace(tcf=tcf))
        if tail.method == "tcf":
            metrics["R_theta"] = likelihood.seen().R_theta(head)
    region = tail.conditions_on if tail.method == "conditional" else None
    metrics |= {"tcf": tcf, "log_likelihood": log_likelihood, "region": region}
    return Recovery(head, tcf, log_likelihood, converged, cov, metrics)


@dataclass
class Ended:
    """Where a maximisation under the frozen law has ended, for the law that follows; samples: see `finish`."""

    likelihood: Likelihood
    engine: Engine
    optimizer: Optimizer
    batch: FullBatch
    observed: Pools | Lattice
    facts: PoolFacts
    converged: bool
    steps: int
    samples: FullBatch | None = None
    ranks: Ranks = field(default_factory=Ranks)

    def frozen(self, reason: str = "asked for") -> tuple[Recovery, Likelihood]:
        """A recovery under the frozen law."""
        done = (self.likelihood, self.engine, self.optimizer, self.facts, self.batch, self.converged, self.steps)
        recovery = finish(*done, samples=self.samples)
        recovery.metrics |= {"law": "frozen", "law_reason": reason}
        return recovery, self.likelihood


def _why(engine: Engine, optimizer: Optimizer, head: Head) -> str:
    """What an engine that has not converged says, and whether a learned alpha has run to an end of its range."""
    told = engine.unfinished(bare(optimizer))
    if head.alpha_spec.mode == "constant":
        with torch.no_grad():
            alpha = float(head(head.grid(1)).alpha)
        if not ALPHA_MIN + _AT_THE_END < alpha < ALPHA_MAX - _AT_THE_END:
            told += f"; alpha = {alpha:.3f} is at an end of its range, {ALPHA_MIN} to {ALPHA_MAX}"
    return told


def _correlation(objective: FullBatchObjective, ev: Evaluation) -> float:
    """Of the estimates of D_o and D_f."""
    head, mean = objective.head, None
    if head.window is not None:  # a line: over the states that were observed, of which its ends hold few
        weight = ev.main.second[head.dim, head.dim]
        mean = objective.design[head.dim] @ weight / weight.sum()
    return separability(objective.n * objective.information(ev), head.starts, head.dim, mean)


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


def _evaluation(optimizer: Optimizer, objective: FullBatchObjective) -> Evaluation:
    """What the last pass left behind, when it was made at the final parameters; one more pass otherwise."""
    accepted = getattr(optimizer, "accepted", None)
    if isinstance(accepted, Evaluation) and torch.equal(accepted.theta, objective.head.flat()):
        return replace(accepted, main=replace(accepted.main), tail=accepted.tail and replace(accepted.tail))
    return objective.evaluate()


@torch.no_grad()
def polish(
    likelihood: Likelihood, on_lattice: FullBatchObjective, samples: FullBatch
) -> tuple[FullBatchObjective, Evaluation, float]:
    """The last step is on the samples: what the interpolation of a lattice has left is removed by Newton's method.

    One pass over all pairs gives the exact log-likelihood and score where the fit on the lattice ended, and the step to
    the maximum of the samples' own likelihood. When that is short, as it is for all but the coarsest lattices, nothing
    more is needed; otherwise scoring goes on over the samples until it has converged.

    Moves the head; returns the samples' objective, its last evaluation (before a short last step, which changes nothing
    that is reported) and how far the lattice's maximum was from it, in standard errors.
    """
    head = cast(LinearHead, likelihood.head)
    objective = likelihood.objective(samples)
    objective.penalty = on_lattice.penalty
    scoring = FisherScoring([head.theta], damping=1e-9)
    scoring.objective = objective
    distances = []
    for _ in range(_PASSES):
        scoring.step(objective.evaluate)
        distances.append(math.sqrt(max(0.0, scoring.memory["decrement"])))
        if scoring.converged or distances[-1] < _SHORT:
            break
    evaluation = scoring.accepted
    assert evaluation is not None
    if not scoring.converged and distances[-1] < _SHORT:
        head.theta.copy_(evaluation.theta + scoring.newton_step())
    return objective, evaluation, distances[0]
