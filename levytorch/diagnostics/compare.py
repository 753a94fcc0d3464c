"""Which of several models describes the same data best: log-likelihood per pair with its standard error from blocks of
the data, differences, AIC.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.data import Trajectories, Transitions
from levytorch.data.lattice import Lattice
from levytorch.diagnostics.brownian import fit_without_jumps
from levytorch.diagnostics.components import Check
from levytorch.diagnostics.exact_tangent import rounded
from levytorch.diagnostics.sample import Region, Sample, data_for, make_sample, subsample
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.laws import Law
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import TailSettings, center_of
from levytorch.training.blocks import N_BLOCKS, Blocks, block_of, per_pair
from levytorch.training.noise import log_prob_of_observations, refuse_noise
from levytorch.training.recovery import Recovery, law_of
from levytorch.training.resampling import refitting
from levytorch.training.reweighting import block_log_likelihoods
from levytorch.training.selection import folds

MOST = 2_000_000  # pairs that are used one by one
_FAR_IN_AIC = 10.0  # a few extreme steps can make a standard error so large that it excludes nothing
_AIC_ALIKE = 2.0  # models that AIC does not tell apart
_CHUNK = 1 << 16
_CLEAR = 2.0  # standard errors


def compare(
    recoveries: Sequence[Recovery] | Mapping[str, Recovery], transitions: Transitions | Trajectories | None = None
) -> Comparison:
    """Compare models of the same data by their log-likelihood per pair.

    Every model is judged under the law that it was fitted with. If models treat lost tails, all are compared on the
    steps that are left by every treatment.

    Args:
        recoveries: a list, or a mapping from names.
        transitions: data to compare on: new data for an honest judgement, or the data of the fits. A law without jumps
            is then compared, too. None uses the likelihood of each fifth of the trajectories under refits to the
            others, which needs recoveries that still have their data and one treatment of the tails.

    Returns:
        A Comparison: `.rows`, best first, `.preferred`, the name of the best, and `.sentence`.

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 500, 40, 1 / 40, seed=1).transitions()
        >>> found = compare({f"alpha {a}": recover(data, alpha=a, n_basis=1) for a in (0.3, 0.45)})
        >>> found.preferred
        'alpha 0.3'
    """
    named = _named(recoveries)
    if transitions is None:
        models, pairs = _cross_validated(named)
    else:
        models, pairs = _on(named, transitions)
    return ranked(models, pairs, held_out=transitions is None)


def _named(recoveries: Any) -> dict[str, Recovery]:
    if isinstance(recoveries, Mapping):
        named = {str(name): recovery for name, recovery in recoveries.items()}
    elif isinstance(recoveries, Sequence) and not isinstance(recoveries, str):
        named = {f"{k}: {_described(r)}": r for k, r in enumerate(recoveries)}
    else:
        named = {}
    if not named or not all(isinstance(r, Recovery) for r in named.values()):
        raise InputError(
            "recoveries must be a list of Recovery, or a mapping from names to them, found "
            f"{type(recoveries).__name__}; make them with recover()."
        )
    simulated = [name for name, recovery in named.items() if recovery.law == "simulated"]
    if simulated:
        raise InputError(
            f"recoveries must have a likelihood, found law simulated in {simulated[0]}, which has none; "
            'fit with law="frozen" or law="exact" for the comparison.'
        )
    return named


def _described(recovery: Any) -> str:
    head = getattr(recovery, "head", None)
    size = f" n_basis={head.n_basis}" if isinstance(head, LinearHead) else ""
    return f"{type(head).__name__.removesuffix('Head').lower()}{size}"


def _parameters(recovery: Recovery) -> float:
    """How many parameters the data determines."""
    if "parameters" in recovery.metrics:
        return float(recovery.metrics["parameters"])
    strengths, P = recovery.metrics.get("penalty_strengths"), recovery.theta.numel()
    if not strengths or recovery.covariance is None or not isinstance(recovery.head, LinearHead):
        return float(P)
    shrunk = RoughnessPenalty(recovery.head, strengths).precision() * recovery.covariance.diagonal()
    return float(P - shrunk.clamp(max=1.0).sum())


# -- held out: folds of the data the recoveries still have ------------------------------------------------------------


def held_out(recovery: Recovery) -> dict[str, Any]:
    """The log-likelihood of held-out folds: per pair, and of every block of the data beside its number of pairs."""
    (model,), pairs = _cross_validated({"fit": recovery})
    blocks = model.blocks
    return {"per_pair": float(blocks.sum() / pairs.sum()), "blocks": blocks.tolist(), "pairs": pairs.tolist()}


def _cross_validated(named: dict[str, Recovery]) -> tuple[list[ComparedModel], Tensor]:
    for name, recovery in named.items():
        refuse_noise(recovery, f"a comparison without transitions ({name})", "pass transitions=...")
        if recovery.blocks is None:
            raise InputError(
                f"recoveries must have their data to be compared without transitions, found {name} without (it was "
                "loaded, or made by adam); pass transitions, or fit again."
            )
    kinds = {name: _treatment(recovery.blocks) for name, recovery in named.items() if recovery.blocks is not None}
    if len(set(kinds.values())) > 1:
        raise InputError(
            f"recoveries must treat lost tails in the same way to be compared without transitions, found {kinds}; pass "
            "transitions."
        )
    models: list[ComparedModel] = []
    first: Tensor | None = None
    for name, recovery in named.items():
        refit, likelihood, blocks = refitting(recovery)
        pairs = blocks.pairs[0]
        if first is not None and not torch.equal(first, pairs):
            raise InputError(
                f"recoveries must be of the same data, found other numbers of pairs in {name}; pass transitions."
            )
        first = pairs
        law = law_of(recovery)
        if isinstance(law, ExactLaw):
            blocks = _pairs_of(recovery, blocks)
        judged = _judge(blocks, likelihood.head, law, likelihood.tail)
        total = torch.zeros_like(blocks.once)
        for held, _ in folds(blocks):
            judged.head.set_flat(refit(blocks.once - held).theta)
            counts = blocks.state_counts(judged)
            total += held * block_log_likelihoods(judged, blocks, counts)
        judged.head.set_flat(recovery.theta)
        seen = float(block_log_likelihoods(judged, blocks, blocks.state_counts(judged)).sum())
        per_pair_of_data = recovery.dim * blocks.units.log_length  # blocks are in the units of their fit
        total, seen = total - per_pair_of_data * pairs, seen - per_pair_of_data * float(pairs.sum())
        models.append(ComparedModel(name, total, seen, _parameters(recovery)))
    assert first is not None
    return models, first


def _treatment(blocks: Blocks) -> tuple[Any, ...]:
    tail = blocks.treatment or TailSettings()
    return (tail.method, tail.CT, tail.TRT, tail.conditions_on) if tail.active else ("none",)


def _pairs_of(recovery: Recovery, blocks: Blocks) -> Blocks:
    """The pairs themselves where the recovery has them: beyond a period no node stands for them under the exact law."""
    own = recovery.blocks
    if own is None or isinstance(own.observed, Lattice) or not torch.equal(own.pairs[0], blocks.pairs[0]):
        return blocks
    return own


def _judge(blocks: Blocks, head: Any, law: Law, tail: TailSettings) -> Any:
    """The likelihood by which models are compared: a TCF is each model's own, the conditional likelihood is not."""
    if tail.method == "tcf":
        tail = TailSettings(method="conditional", CT=tail.CT, TRT=tail.TRT, region="strata")
    return blocks.likelihood(copy.deepcopy(head), law, tail)


# -- on given data ----------------------------------------------------------------------------------------------------


class Extra(NamedTuple):
    """log p of every pair of the sample under a law that is no recovery, and its number of parameters."""

    name: str
    log_p: Tensor
    parameters: float


def compare_on(
    named: dict[str, Recovery], data: Any, more: Callable[[Sample], list[Extra]] | None = None
) -> Comparison:
    """As `compare` on given data, with further laws of its pairs."""
    return ranked(*_on(named, data, more), held_out=False)


def _on(
    named: dict[str, Recovery], data: Any, more: Callable[[Sample], list[Extra]] | None = None
) -> tuple[list[ComparedModel], Tensor]:
    regions = []
    for recovery in named.values():
        _, transitions = data_for(recovery.without_noise(), data)
        regions.append(Region.of(recovery))
    treated = [region for region in regions if not region.whole] or regions
    if any(region != treated[0] for region in treated):
        raise InputError(
            "recoveries must have the same CT and TRT where they treat lost tails, found others; fit them with "
            "the same thresholds."
        )
    region = treated[0]
    chosen = subsample(transitions, MOST, 0)
    sample = make_sample(chosen, region, MOST, 0)
    n_blocks = min(N_BLOCKS, len(chosen))
    ids = block_of(chosen, n_blocks)[region.labels(chosen.deviation, chosen.dt) >= 0]
    pairs = torch.bincount(ids, minlength=n_blocks).to(torch.float64)
    scale = len(transitions) / len(chosen)

    def model(name: str, log_p: Tensor, parameters: float) -> ComparedModel:
        blocks = torch.zeros(n_blocks, dtype=torch.float64).index_add_(0, ids, log_p)
        return ComparedModel(name, blocks, scale * float(log_p.sum()), parameters)

    models = [
        model(name, _log_prob(recovery, sample, region, transitions.mu), _parameters(recovery))
        for name, recovery in named.items()
    ]
    head = max((r.head for r in named.values() if isinstance(r.head, LinearHead)), default=None, key=_size)
    if head is not None and scale == 1.0:
        plain = fit_without_jumps(head, region, sample)
        models.append(model("without jumps", plain.log_prob(sample), float(head.layout.row("D_f") * head.basis.size)))
    if more is not None:
        models += [model(*extra) for extra in more(sample)]
    return models, pairs


def _size(head: LinearHead) -> int:
    return head.basis.size


@torch.no_grad()
def _log_prob(recovery: Recovery, sample: Sample, region: Region, mu: Tensor) -> Tensor:
    """log p of every pair of the sample, given its stratum; with noise, of every observation given those before."""
    if recovery.observation_noise:
        pairs = Transitions(sample.x, sample.dx, sample.dt, trajectory=sample.trajectory.numpy())
        return log_prob_of_observations(recovery, pairs)
    head, law = recovery.head, law_of(recovery)
    out = torch.empty(len(sample), dtype=torch.float64)
    dt = rounded(sample.dt) if isinstance(law, ExactLaw) else sample.dt
    for low in range(0, len(sample), _CHUNK):
        rows = slice(low, low + _CHUNK)
        x, center = sample.x[rows], sample.center[rows]
        out[rows] = law.log_prob(head, x, sample.dx[rows], dt[rows])
        if not isinstance(law, FrozenLaw):
            masses = region.log_kept(partial(_beyond, law, head, x, center, dt[rows]), dt[rows])
            for stratum, mass in enumerate(masses):
                out[rows] -= torch.where(sample.label[rows] == stratum, mass, 0.0)
    if isinstance(law, FrozenLaw) and not region.whole:
        bins = StateBins(head, sample.step_dt)
        center = center_of(mu, bins.dt, uniform_dt=sample.uniform_dt)
        node = bins.index(sample.x, sample.step_dt)
        for stratum, mass in enumerate(region.log_kept(partial(_beyond, law, head, bins.x, center, bins.dt), bins.dt)):
            out = torch.where(sample.label == stratum, out - mass[node], out)
    return out


def _beyond(law: Law, head: Any, x: Tensor, center: Tensor, dt: Tensor, threshold: Tensor) -> Tensor:
    return law.mass_beyond(head, threshold, center, x, dt)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One model: log-likelihood per pair and its standard error, the same of its difference to the best, AIC (smaller
    is better), parameters (a penalty counts them by what it leaves of them)."""

    model: str
    log_likelihood: float
    std: float
    difference: float
    difference_std: float
    aic: float
    parameters: float


@dataclass
class Comparison(Check):
    """rows: best first; held_out: whether the likelihood is that of trajectories a fit has not seen; sentence: what
    it comes to."""

    rows: list[Row]
    held_out: bool
    n_pairs: int
    sentence: str

    def metrics(self, name: str) -> dict[str, Any]:
        rows = {name: [asdict(row) for row in self.rows], f"{name}_pairs": self.n_pairs}
        return rows | self.numbers(name, "held_out", "sentence")

    def lines(self, rejected: Collection[str]) -> list[str]:
        best, *others = self.rows
        kind = "held-out log p" if self.held_out else "log p"
        apart = ", ".join(f"{row.model} {row.difference:+.2g} ({row.difference_std:.1g})" for row in others)
        least = min(row.aic for row in self.rows)
        by_aic = " or ".join(row.model for row in self.rows if row.aic - least < _AIC_ALIKE)
        first = f"{best.model} {best.log_likelihood:.5g} ({best.std:.1g})"
        return [f"Law of a step, {kind} per pair: {first}; {apart}; AIC: {by_aic}"]

    @property
    def preferred(self) -> str:
        """The model with the largest log-likelihood."""
        return self.rows[0].model

    def __repr__(self) -> str:
        width = max(len("model"), *(len(row.model) for row in self.rows))
        kind = "held-out " if self.held_out else ""
        lines = [f"{'model':{width}}  {kind + 'log p per pair':>24}  {'difference':>20}  {'AIC':>14}  parameters"]
        for row in self.rows:
            value = f"{row.log_likelihood:.6f} ({row.std:.6f})"
            apart = "" if row is self.rows[0] else f"{row.difference:.2e} ({row.difference_std:.1e})"
            lines.append(f"{row.model:{width}}  {value:>24}  {apart:>20}  {row.aic:14.1f}  {row.parameters:10.1f}")
        return "\n".join([*lines, self.sentence])


@dataclass
class ComparedModel:
    """What one model makes of blocks of the data."""

    name: str
    blocks: Tensor  # (n_blocks,) log-likelihoods
    total: float  # of the data that a fit used, for AIC
    parameters: float


def ranked(models: list[ComparedModel], pairs: Tensor, held_out: bool) -> Comparison:
    """Best first; pairs: (n_blocks,) numbers of pairs."""
    n = float(pairs.sum())
    order = sorted(models, key=lambda model: -float(model.blocks.sum()))
    best = order[0]
    rows = []
    for model in order:
        mean, std = per_pair(model.blocks, pairs)
        apart, apart_std = per_pair(model.blocks - best.blocks, pairs)
        aic = 2 * model.parameters - 2 * model.total
        rows.append(Row(model.name, mean, std, apart, apart_std, aic, model.parameters))
    return Comparison(rows, held_out, round(n), _sentence(rows, n))


def _sentence(rows: list[Row], n: float) -> str:
    if len(rows) == 1:
        return f"There is nothing to compare {rows[0].model} with."
    best, second = rows[:2]
    gain, error = -second.difference, second.difference_std
    errors = gain / error if error > 0 else math.inf
    if errors >= _CLEAR:
        return (
            f'"{best.model}" describes the data best: its log-likelihood over {n:,.0f} pairs is {gain * n:.1f} larger '
            f'than that of "{second.model}", the next ({errors:.1f} standard errors).'
        )
    least = min(row.aic for row in rows)
    as_good = (r for r in rows if -r.difference < _CLEAR * r.difference_std and r.aic - least < _FAR_IN_AIC)
    simplest = min((best, *as_good), key=_parameters_of)
    return (
        f"The data cannot distinguish {best.model} and {second.model} ({gain * n:.1f} in log-likelihood, {errors:.1f} "
        f"standard errors); the simplest model that describes it as well is {simplest.model}."
    )


def _parameters_of(row: Row) -> float:
    return row.parameters
