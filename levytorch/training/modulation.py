"""A covariate that quickens and slows everything: D_o(x) m(c) and D_f(x) m(c), m a positive periodic function.

Time of day is the usual c: spreads of exchange rates vary fourfold over it. log m is a short Fourier series, m has mean
one over the data, and its coefficients are fitted together with those of the head, by Fisher scoring over the pairs
under the frozen law. Under that law a pair (dx, dt) at c is one of (dx + b (m - 1) dt, m dt) without modulation, which
is how everything else that is asked of a fit sees it (`unmodulated`).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, LinearHead
from levytorch.coefficients.modulation import Modulation, ModulationSpec, functions
from levytorch.data import Transitions
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.likelihood.frozen import FrozenLaw, steady_method, to_predictors
from levytorch.likelihood.penalty import RoughnessPenalty, lead_to_evidence, symmetric_inverse
from levytorch.training.engines.base import SMOOTHING
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.settings import FitSettings

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

_CHUNK = 1 << 14
_STEPS = 60
_DONE = 1e-4  # twice the log-likelihood still to be gained
_HALVINGS = 12
_EVIDENCE = 0.05  # slope of the evidence at which strengths stay


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


def unmodulated(recovery: Recovery, transitions: Transitions) -> Transitions:
    """Pairs that are without modulation what these are with it, under the frozen law; these themselves without one."""
    modulation = recovery.modulation
    if modulation is None:
        return transitions
    more = (modulation(covariate_of(transitions)) - 1) * transitions.dt
    dx = transitions.dx + recovery.b(transitions.x) * more
    return Transitions._build(
        transitions.x,
        dx,
        transitions.dt + more,
        transitions.membership,
        dropped=transitions.dropped,
    )


def check_modulation(transitions: Any, settings: FitSettings) -> None:
    """Refuse what a modulation is not fitted with, before anything is."""
    found = None
    if not isinstance(transitions, Transitions):
        found = "a lattice"
    elif transitions.dim > 1:
        found = f"{transitions.dim} coordinates"
    elif settings.tail.active:
        found = f"tail.method {settings.tail.method}"
    elif settings.law not in ("auto", "frozen"):
        found = f"law {settings.law}"
    elif not isinstance(settings.engine, FisherEngine):
        found = f"engine {settings.engine.name}"
    elif settings.alpha.mode == "function":
        found = 'alpha="function"'
    elif settings.data.get("validation"):
        found = "pairs held out for validation"
    if found is not None:
        raise InputError(
            "a modulation must be fitted to pairs in one dimension, by Fisher scoring under the frozen law without a "
            f"treatment of tails, found {found}; leave that out, or the modulation."
        )
    covariate_of(transitions)


@torch.no_grad()
def modulate(recovery: Recovery, data: Transitions, settings: FitSettings) -> None:
    """Moves a recovery without modulation to the maximum of the likelihood with one.

    Standard errors of the coefficients are those beside an m that is estimated too.
    """
    head, spec = recovery.head, settings.modulation
    assert spec is not None
    assert isinstance(head, LinearHead)
    strengths = recovery.metrics.get("penalty_strengths")
    penalty = RoughnessPenalty(head, strengths if strengths else "none")
    penalty.adaptive = bool(strengths) and getattr(settings.engine, "penalty", None) in SMOOTHING
    joint = _Joint(head, FrozenLaw(steady_method(settings.density, head)), data, spec)
    theta, gamma = head.flat(), torch.zeros(spec.n_basis - 1, dtype=torch.float64)
    P = len(theta)
    here = joint.evaluate(theta, gamma)
    converged, steps = False, 0
    for _ in range(_STEPS):
        steps += 1
        own = here.information[:P, :P]
        moved = penalty.update(theta, own)
        if moved >= _EVIDENCE:
            lead_to_evidence(penalty, theta, here.gradient[:P], own, own, 1.0)
        precision = torch.cat([penalty.precision(), torch.zeros_like(gamma)])
        both = torch.cat([theta, gamma])
        step = symmetric_inverse(here.information + torch.diag(precision)) @ (here.gradient - precision * both)
        gain = float(step @ (here.gradient - precision * both))
        if gain < _DONE and moved < _EVIDENCE:
            converged = True
            break
        value = here.log_p - 0.5 * float((precision * both**2).sum())
        for halving in range(_HALVINGS):
            tried = both + step * 0.5**halving
            there = joint.evaluate(tried[:P], tried[P:])
            if there.log_p - 0.5 * float((precision * tried**2).sum()) > value - 1e-9 * abs(value):
                break
        else:
            break
        theta, gamma, here = tried[:P], tried[P:], there
    information = here.information + torch.diag(precision)
    covariance = symmetric_inverse(information)
    of_theta = penalty.widened(covariance[:P, :P], theta, information[:P, :P])
    head.set_flat(theta)
    found = Modulation(spec.period, gamma, covariance[P:, P:].clone(), here.centers, here.log_mean)
    recovery.covariance, recovery.log_likelihood, recovery.shift = of_theta.clone(), here.log_p, None
    recovery.converged = bool(recovery.converged and converged)
    recovery.metrics |= {
        "law": "frozen",
        "law_reason": "pairs with a modulation are fitted under it",
        "law_judged": recovery.head.is_constant,
        "modulation": found.plain(),
        "modulation/steps": steps,
        "modulation/range": _range(found),
        "converged": recovery.converged,
        "log_likelihood": here.log_p,
        "penalty_strengths": penalty.strengths.tolist() if penalty.active else strengths,
        "left_out_of_series": penalty.left_out(),
    }
    if not converged:
        warnings.warn(
            f"the fit with a modulation stopped after {steps} steps before it had converged, short of the maximum; use "
            "fewer functions (n_modulation), or read it with care.",
            LevytorchWarning,
            stacklevel=2,
        )


def _range(modulation: Modulation) -> list[float]:
    values = modulation(torch.linspace(0, modulation.period, 241, dtype=torch.float64))
    return [float(values.min()), float(values.max())]


@dataclass
class _Evaluation:
    """Sums over the pairs: log p, its gradient (P + K,), products of scores; and how m was centered."""

    log_p: float
    gradient: Tensor
    information: Tensor
    centers: Tensor
    log_mean: float


class _Joint:
    """The likelihood of head and modulation together, chunk by chunk."""

    def __init__(self, head: LinearHead, law: FrozenLaw, data: Transitions, spec: ModulationSpec) -> None:
        self.head, self.law, self.data = head, law, data
        self.rows = functions(covariate_of(data), spec.period, spec.n_basis - 1)  # (K, n)

    def evaluate(self, theta: Tensor, gamma: Tensor) -> _Evaluation:
        log_m = gamma @ self.rows
        log_mean = float(torch.logsumexp(log_m, 0)) - math.log(len(log_m))
        m = (log_m - log_mean).exp()
        centers = self.rows @ m / len(m)
        size = len(theta) + len(gamma)
        gradient, information = torch.zeros(size, dtype=torch.float64), torch.zeros((size, size), dtype=torch.float64)
        total = 0.0
        for low in range(0, len(m), _CHUNK):
            part = slice(low, low + _CHUNK)
            log_p, scores = self._scores(theta, m[part], self.rows[:, part] - centers[:, None], part)
            total += float(log_p.sum())
            gradient += scores.sum(1)
            information += scores @ scores.T
        if not math.isfinite(total):
            raise NumericalError("the likelihood with a modulation must be finite, found that it is not; leave it out.")
        return _Evaluation(total, gradient, information, centers, log_mean)

    def _scores(self, theta: Tensor, m: Tensor, rows: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """log p (n,) and scores (P + K, n) of some pairs."""
        head, data = self.head, self.data
        design = head.design(data.x[part])
        chain = head.chain(theta, design)
        c = chain.coefficients
        at = Coefficients(c.b, c.D_o * m, c.D_f * m, c.alpha, c.tempering)
        s = self.law.score(at, data.dx[part], data.dt[part], wrt_alpha=head.learns_alpha)
        s = s._replace(D_o=s.D_o * m, D_f=s.D_f * m)
        own = [value * phi for value, phi in zip(to_predictors(head.layout.scores(s, c), chain), design)]
        return s.log_p, torch.cat([*own, (s.D_o * c.D_o + s.D_f * c.D_f) * rows])
