"""Which law of steps describes the data: Gaussian, stable, tempered, and two that are not this package's model.

`compare_laws` fits them; `table_of_laws`, for `diagnose`, takes the head of a recovery: coefficients are frozen over a
step in all of them, alpha (and the tempering) are learned, and nothing else differs. For constants Student's t and the
normal inverse Gaussian law stand beside them (`other_laws`), each with a location, a scale and a shape, fitted by SciPy
to steps of one length: where they describe the steps better, constants of this model class are not what the data is.
Where no tails are lost the likelihood is that of pairs a fit has not seen: each fifth
of the blocks of trajectories (of time where there are few) under the parameters that the others lead to, to first
order, theta - (n F - n_k F)^-1 (score of the fifth).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from levytorch.coefficients import Head, LinearHead, build_head
from levytorch.coefficients.build import LINEAR
from levytorch.convert import Array
from levytorch.data import Trajectories, Transitions
from levytorch.diagnostics.brownian import LawWithoutJumps, fit_without_jumps
from levytorch.diagnostics.chain import starts_within
from levytorch.diagnostics.compare import ComparedModel, Comparison, Extra, compare_on, ranked
from levytorch.diagnostics.noisy import NOISY, NoisyFit
from levytorch.diagnostics.refit import Fitted, StepPairs, curvature, fit_again, scores, stand_in
from levytorch.diagnostics.sample import Region, Sample, make_sample, subsample
from levytorch.diagnostics.step_size import Skipped
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.training.api import recover
from levytorch.training.blocks import N_BLOCKS, block_of
from levytorch.training.engines.fisher import within_scale
from levytorch.training.recovery import Recovery
from levytorch.training.selection import N_FOLDS

_STEP = 1e-4  # of a parameter, for scores by differences
MOST = 8_000  # pairs that are used
FEWEST = 200
_COST = {1: 1, 2: 8, 3: 4}  # of the tempered law in d dimensions, in fewer pairs
_RATES = (0.5, 3.0, 10.0)  # per largest step: where a tempering may start
_AT_ONCE = 1 << 14
_HALVINGS = 5
_LARGE = 1e5  # of the argument of K_1


def compare_laws(data: Transitions | Trajectories, *, n_basis: int = 1, **options: Any) -> Comparison:
    """Fit and compare the laws on the same pairs: log-likelihood per pair with its standard error, and AIC.

    Args:
        data: transitions or trajectories.
        n_basis: of the coefficients; 1 gives constants, for which Student's t and the normal inverse Gaussian law
            (d = 1, all dt alike, no lost tails) are compared, too.
        options: of `recover`, without alpha and tempering, which are learned.

    >>> from levytorch import Dynamics, simulate
    >>> steps = simulate(Dynamics(0.0, 0.1, 1.0, 0.45, tempering=0.4), 400, 20, 0.25, seed=1)
    >>> found = compare_laws(steps)
    >>> min(found.rows, key=lambda row: row.aic).model
    'tempered'
    """
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    named: dict[str, Recovery] = {
        "stable": recover(transitions, alpha="learn", n_basis=n_basis, **options),
        "tempered": recover(transitions, alpha="learn", tempering="learn", n_basis=n_basis, **options),
    }
    constants = n_basis == 1 and transitions.dim == 1 and transitions.uniform_dt
    return compare_on(named, transitions, _others if constants else None)


def _others(sample: Sample) -> list[Extra]:
    if bool((sample.label != 0).any()):  # strata: these laws know nothing of lost tails
        return []
    dx = sample.dx.numpy()
    return [Extra(law.name, torch.from_numpy(law.log_prob(dx)), 3.0) for law in other_laws(dx)]


class OtherLaw(NamedTuple):
    """log p of steps z in units of their width, as a function of three parameters, at which it was fitted."""

    name: str
    log_p: Callable[[Array, Array], Array]
    parameters: Array
    center: float
    width: float

    def log_prob(self, dx: Array, parameters: Array | None = None) -> Array:
        """log p of steps in the units of the data, at the fitted parameters or at others."""
        z = (dx - self.center) / self.width
        return self.log_p(z, self.parameters if parameters is None else parameters) - np.log(self.width)

    def scores(self, dx: Array) -> Array:
        """d log p / d parameters, (3, n), by central differences."""
        p = self.parameters
        rows = [self.log_prob(dx, p + shift) - self.log_prob(dx, p - shift) for shift in _STEP * np.eye(3)]
        return np.stack(rows) / (2 * _STEP)


def other_laws(dx: Array) -> list[OtherLaw]:
    """Both, by maximum likelihood."""
    from scipy.optimize import minimize  # not wanted by every run

    center = float(np.median(dx))
    width = float(np.percentile(np.abs(dx - center), 60)) or 1.0
    z = (dx - center) / width
    found = []
    for name, law, start in (("Student t", _student, (0.0, 0.0, 1.0)), ("NIG", _nig, (0.0, 0.0, 0.0))):
        best = minimize(_mean, start, (law, z), method="BFGS", options={"gtol": 1e-6})
        found.append(OtherLaw(name, law, best.x, center, width))
    return found


def _mean(p: Array, law: Callable[[Array, Array], Array], z: Array) -> float:
    return -float(law(z, p).mean())


def _student(z: Array, p: Array) -> Array:
    """log p at location p[0], log scale p[1] and log degrees of freedom p[2]."""
    df, scale = np.exp(np.clip(p[2], -5.0, 12.0)), np.exp(p[1])
    size = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(df * np.pi) - p[1]
    return np.asarray(size - (df + 1) / 2 * np.log1p(((z - p[0]) / scale) ** 2 / df))


def _nig(z: Array, p: Array) -> Array:
    """Symmetric: a delta / pi exp(delta a) K_1(a s) / s, s = sqrt(z^2 + delta^2), delta and a from p[1] and p[2].

    Of Gaussian steps delta and a are very large: s - delta is computed without cancellation, and K_1, of which SciPy
    has few digits there, by its asymptotic series.
    """
    delta, a = np.exp(np.clip(p[1:], -20.0, 20.0))
    y = z - p[0]
    s = np.hypot(y, delta)
    bessel = np.log(special.k1e(np.minimum(a * s, _LARGE)))
    far = 0.5 * np.log(0.5 * np.pi / (a * s)) + 3.0 / (8.0 * a * s)
    bessel = np.where(a * s > _LARGE, far, bessel)
    return np.asarray(np.log(a * delta / np.pi) + bessel - a * y**2 / (s + delta) - np.log(s))


def table_of_laws(
    head: Head,
    transitions: Transitions,
    region: Region,
    strengths: list[float] | None = None,
    *,
    seed: int = 0,
    most: int = MOST,
    noise: bool = False,
) -> Comparison | Skipped:
    """strengths: of the roughness penalty of the fit; most: pairs that are looked at; noise: whether observations may
    have errors, so that the stable law with noise is compared, too.
    """
    chosen = subsample(transitions, max(FEWEST, most // _COST[transitions.dim]), seed)
    if not bool((within := starts_within(head, chosen.x)).all()):
        transitions, chosen = transitions[starts_within(head, transitions.x)], chosen[within]
    side = StepPairs(chosen, region.core(), head)
    if side.n < FEWEST:
        return Skipped(f"only {side.n} pairs lie where laws can be compared and {FEWEST} are needed; use more data")
    start = head if isinstance(head, LinearHead) and head.config()["name"] in LINEAR else stand_in(head)
    n_blocks = min(N_BLOCKS, len(chosen))
    work = _Work(side, block_of(chosen, n_blocks)[side.inside], n_blocks, len(transitions) / len(chosen), region.whole)
    sample = make_sample(chosen, region.core(), len(chosen), seed)
    models = [work.brownian(fit_without_jumps(start, region.core(), sample), sample)]
    stable = fit_again(as_law(start, tempered=False), side, _strengths(start, strengths, False), work.share)
    models.append(work.levy("stable", stable))
    tempered = fit_again(_tempered(start, stable, side), side, _strengths(start, strengths, True), work.share)
    models.append(work.levy("tempered", tempered))
    if noise and region.whole and (found := NoisyFit.of(stable, side.kept)) is not None:
        models.append(work.noisy(found))
    if start.is_constant and start.dim == 1 and chosen.uniform_dt and region.whole:
        models += [work.other(law) for law in other_laws(side.kept.dx.numpy())]
    return ranked(models, work.pairs, held_out=work.held_out)


def as_law(head: LinearHead, *, tempered: bool, rate: float = 0.0) -> LinearHead:
    """The head with its b, D_o and D_f, a learned alpha, and a learned tempering or none."""
    plain: dict[str, Any] = {k: v for k, v in head.config().items() if k not in ("tempering", "tempering_mode")}
    learned = head.learns_alpha
    with torch.no_grad():
        alpha = float(head(head.grid(1)).alpha.mean())
    if not learned:
        plain |= {"alpha_mode": "constant", "alpha": alpha}
    if tempered:
        plain |= {"tempering_mode": "learn", "tempering": rate}
    made = build_head(plain)
    assert isinstance(made, LinearHead)
    old, theta = head.flat(), made.flat()
    first = head.starts[head.n_linear]
    theta[:first] = old[:first]
    size = made.sizes[made.n_linear]
    theta[first : first + size] = old[first : first + size] if learned else made.alpha_spec.link.inverse(alpha)
    made.set_flat(theta)
    return made


def _tempered(head: LinearHead, stable: Fitted, side: StepPairs) -> LinearHead:
    """Where the tempered law starts: at the fit itself where that is one, else the stable law with a rate added."""
    with torch.no_grad():
        own = float(head(head.grid(1)).tempering)
    rates = [r / float(side.kept.deviation.max()) for r in _RATES]
    starts = [as_law(stable.head, tempered=True, rate=rate) for rate in rates]
    if own > 0:
        starts.append(as_law(head, tempered=True, rate=own))

    def fit(start: LinearHead) -> float:
        kept = side.kept
        with torch.no_grad():
            return float(stable.objective.law.log_prob(start, kept.x, kept.dx, kept.dt).sum())

    return max(starts, key=fit)


def _strengths(head: LinearHead, strengths: list[float] | None, tempered: bool) -> list[float] | None:
    """Those of a penalty of the head, for one with a learned alpha and a learned tempering or none (not penalised)."""
    if strengths is None or len(strengths) in (0, 1):
        return strengths
    own = RoughnessPenalty(head, strengths)
    kept = head.n_linear + (head.alpha_basis is not None)
    count = sum(len(part) for part in own.apart[:kept]) if own.by_harmonic else sum(own.n_strengths[:kept])
    return strengths[:count] + [0.0] * ((not head.learns_alpha) + tempered)


class _Work:
    """The pairs in blocks and folds, and what each law makes of them."""

    def __init__(self, side: StepPairs, ids: Tensor, n_blocks: int, scale: float, whole: bool) -> None:
        self.side, self.ids, self.n_blocks, self.scale = side, ids, n_blocks, scale
        self.pairs = torch.bincount(ids, minlength=n_blocks).to(torch.float64)
        self.share = 1.0 / scale
        self.held_out = whole and n_blocks >= 2 * N_FOLDS
        self.fold = ids % N_FOLDS

    def levy(self, name: str, fitted: Fitted) -> ComparedModel:
        kept, head, objective = self.side.kept, fitted.head, fitted.objective

        @torch.no_grad()
        def log_p(rows: Tensor) -> Tensor:
            dt = kept.dt[0] if kept.uniform_dt else kept.dt[rows]
            out = objective.law.log_prob(head, kept.x[rows], kept.dx[rows], dt)
            if fitted.evaluation.kept is not None:
                out = out - fitted.evaluation.kept[0][objective.bins.index(kept.x[rows], dt)]
            return out

        every = torch.arange(self.side.n)
        seen = log_p(every)
        used = _free_parameters(fitted)
        if not self.held_out:
            return self._model(name, seen, seen, used)
        sums = torch.zeros((N_FOLDS, head.flat().numel()), dtype=torch.float64)
        for low in range(0, self.side.n, _AT_ONCE):
            rows = every[low : low + _AT_ONCE]
            part = scores(fitted, kept, rows, torch.ones(len(rows), dtype=torch.float64))
            sums.index_add_(0, self.fold[rows], part.T)
        theta = head.flat()

        def at(move: Tensor) -> Tensor:
            if head.tempering_spec.learned:
                move = torch.cat([move[:-1], within_scale(theta[-1:], move[-1:])])
            head.set_flat(theta + move)
            return log_p(every)

        out = self._left_out(sums, symmetric_inverse(curvature(fitted) * objective.n), at, seen)
        head.set_flat(theta)
        return self._model(name, seen, out, used)

    def brownian(self, plain: LawWithoutJumps, sample: Sample) -> ComparedModel:
        head = plain.head
        seen = plain.log_prob(sample)
        J_b, J_D_o = (J.detach() for J in head.jacobian(sample.x)[:2])
        used = (J_b.reshape(-1, J_b.shape[-1]).abs().sum(0) + J_D_o.abs().sum(0)) > 0
        count = float(used.sum())
        if not self.held_out:
            return self._model("Gaussian", seen, seen, count)
        with torch.no_grad():
            c = head(sample.x)
        d, dt = sample.dim, sample.dt
        y = (sample.dx - c.b * (dt if d == 1 else dt.unsqueeze(-1))).reshape(len(dt), d)
        J_b, J_D_o = J_b.reshape(len(dt), d, -1)[:, :, used], J_D_o[:, used]
        each = (J_b * (y / (2 * c.D_o[:, None]))[:, :, None]).sum(1)
        each = each + J_D_o * ((y * y).sum(1) / (4 * c.D_o**2 * dt) - d / (2 * c.D_o))[:, None]
        F = torch.einsum("ndp,ndq,n->pq", J_b, J_b, dt / (2 * c.D_o))
        F = F + torch.einsum("np,nq,n->pq", J_D_o, J_D_o, d / (2 * c.D_o**2))
        inverse, theta = symmetric_inverse(F), head.flat()

        def at(move: Tensor) -> Tensor:
            moved = theta.clone()
            moved[used] += move
            head.set_flat(moved)
            return plain.log_prob(sample)

        out = self._left_out(self._by_fold(each.T), inverse, at, seen)
        head.set_flat(theta)
        return self._model("Gaussian", seen, out, count)

    def noisy(self, found: NoisyFit) -> ComparedModel:
        seen, used = found.log_p(), float(len(found.theta))
        if not self.held_out:
            return self._model(NOISY, seen, seen, used)
        sums = torch.stack([found.score_of(self.fold == k) for k in range(N_FOLDS)])
        out = self._left_out(sums, symmetric_inverse(found.information), found.log_p_at, seen)
        return self._model(NOISY, seen, out, used)

    def other(self, law: OtherLaw) -> ComparedModel:
        dx = self.side.kept.dx.numpy()
        seen = torch.from_numpy(law.log_prob(dx))
        if not self.held_out:
            return self._model(law.name, seen, seen, 3.0)
        each = torch.from_numpy(law.scores(dx))

        def at(move: Tensor) -> Tensor:
            return torch.from_numpy(law.log_prob(dx, np.asarray(law.parameters + move.numpy())))

        out = self._left_out(self._by_fold(each), symmetric_inverse(each @ each.T), at, seen)
        return self._model(law.name, seen, out, 3.0)

    def _by_fold(self, each: Tensor) -> Tensor:
        return torch.zeros((N_FOLDS, len(each)), dtype=torch.float64).index_add_(0, self.fold, each.T)

    def _left_out(self, sums: Tensor, inverse: Tensor, at: Callable[[Tensor], Tensor], seen: Tensor) -> Tensor:
        """log p of every pair without its fold.

        sums: (folds, P) of scores; at: log p of all pairs after a move of the parameters; seen: at none. A move that
        the pairs of the other folds do not agree with, because first order is not enough, is halved.
        """
        out = seen.clone()
        for k, score in enumerate(sums):
            held = self.fold == k
            move = -(inverse @ score) * (self.side.n / (~held).sum())
            for half in range(_HALVINGS):
                log_p = at(move * 0.5**half)
                if float((log_p - seen)[~held].sum()) >= 0:
                    out[held] = log_p[held]
                    break
        return out

    def _model(self, name: str, seen: Tensor, judged: Tensor, parameters: float) -> ComparedModel:
        blocks = torch.zeros(self.n_blocks, dtype=torch.float64).index_add_(0, self.ids, judged)
        return ComparedModel(name, blocks, self.scale * float(seen.sum()), parameters)


def _free_parameters(fitted: Fitted) -> float:
    """How many parameters the data determines, where a penalty shrinks them."""
    objective = fitted.objective
    if objective.penalty is None:
        return float(len(objective.head.flat()))
    return objective.penalty.determined(objective.penalised_information(fitted.evaluation))
