"""Standard errors that do not take the law's word for it: from blocks of trajectories, by sandwich or bootstrap."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead, linear
from levytorch.coefficients.clock import ClockedHead
from levytorch.coefficients.head import Units
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Transitions, make_pools
from levytorch.data.batches import Batch
from levytorch.data.lattice import Lattice
from levytorch.data.thresholds import threshold_from
from levytorch.errors import InputError
from levytorch.likelihood.corrected import Information, Strata, expected_by_state, informations
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.network import LayerPenalty, prior_of
from levytorch.likelihood.penalty import Strength, symmetric_inverse
from levytorch.likelihood.simulated import SimulatedScore, windows_of
from levytorch.likelihood.tail import TailCorrection, TailSettings
from levytorch.training.blocks import Blocks, blocks_of, counted
from levytorch.training.engines.base import maximise
from levytorch.training.engines.lbfgs import LBFGSEngine
from levytorch.training.inputs import with_inputs_of
from levytorch.training.noise import refuse_noise
from levytorch.training.progress import counted_off
from levytorch.training.reweighting import FirstOrder, Refitted, Reweighting, block_sandwiches, block_scores

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

REPLICAS, FEW = 200, 40  # by default; a replica of a head that is not linear takes seconds


class Replicas(Sequence["Recovery"]):
    """Recoveries of resampled data: `replicas[i]`, loops, and standard errors over all of them.

    theta: (n, P).
    """

    def __init__(self, of: Recovery, found: Sequence[Refitted]) -> None:
        self._of, self._found = of, list(found)
        self.theta = torch.stack([f.theta for f in found])

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, which: int) -> Recovery: ...
    @overload
    def __getitem__(self, which: slice) -> Replicas: ...
    def __getitem__(self, which: int | slice) -> Recovery | Replicas:
        if isinstance(which, slice):
            return Replicas(self._of, self._found[which])
        head = copy.deepcopy(self._of.head)
        head.set_flat(self._found[which].theta)
        metrics = {**self._of.metrics, "tcf": self._found[which].tcf, "replica": which % len(self)}
        nothing: dict[str, Any] = {
            "log_likelihood": float("nan"),
            "covariance": None,
            "history": [],
            "blocks": None,
            "replicas": {},
        }
        return replace(self._of, head=head, tcf=self._found[which].tcf, metrics=metrics, **nothing)

    def std(self, x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pointwise standard deviations of b, D_o, D_f and alpha at x over the replicas."""
        values = [replica.coefficients(x) for replica in self]
        b, D_o, D_f, alpha = (torch.stack(v).std(0) for v in zip(*values))
        return b, D_o, D_f, alpha

    def __repr__(self) -> str:
        return f"Replicas({len(self)} of {self._of!r})"


def robust_covariances(recovery: Recovery, data: Transitions | Lattice | None) -> list[Tensor]:
    """(P, P) covariances of theta that do not trust the law: the widest of them holds, whatever depends on what.

    From the scatter of the scores of blocks, and of trajectories where these are few, each with the variance of
    smoothing; and the one that trusts the law, below which a scatter of few blocks may fall by chance.
    """
    refuse_noise(recovery, "kind robust", "use kind fisher")
    _check_scores(recovery, "kind robust")
    made = _reweighting(recovery, data)
    parameters = float(recovery.metrics.get("parameters", len(made.theta)))
    found = [one + made.smoothing for one in block_sandwiches(made.influence, made.blocks, parameters)]
    if isinstance(made.head, TangentHead):
        found = [made.head.covariance_of_head(one) for one in found]
    return found if recovery.covariance is None else [*found, recovery.covariance]


def block_influence(recovery: Recovery, data: Transitions | Lattice | None) -> Tensor:
    """(n_blocks, P): what theta changes by, to first order, when a block counts once more."""
    refuse_noise(recovery, "influences", "use kind fisher")
    _check_scores(recovery, "influences")
    made = _reweighting(recovery, data)
    return made.influence if not isinstance(made.head, TangentHead) else made.head.spread(made.influence)


def bootstrap(
    recovery: Recovery, n: int, seed: int, data: Transitions | Lattice | None, progress: bool = False
) -> Replicas:
    """Refits to blocks drawn with replacement, each from the fit to all of them."""
    refuse_noise(recovery, "a bootstrap", "use kind fisher")
    refit, _, blocks = refitting(recovery, data)
    generator = torch.Generator().manual_seed(seed)
    found = [refit(times) for times in counted_off(_draws(blocks, n, generator), "refits", progress)]
    return Replicas(recovery, found)


Refit = Callable[[Tensor], Refitted]


def refitting(recovery: Recovery, data: Transitions | Lattice | None = None) -> tuple[Refit, Likelihood, Blocks]:
    """What refits a recovery to weighted blocks, the likelihood it maximises, and the blocks."""
    if _has_scores(recovery):
        made = _reweighting(recovery, data)
        tangent = made.head
        if not isinstance(tangent, TangentHead):
            return made.refit, made.likelihood, made.blocks

        def refit(times: Tensor) -> Refitted:
            found = made.refit(times)
            return replace(found, theta=tangent.parameters_of_head(found.theta))

        return refit, replace(made.likelihood, head=copy.deepcopy(recovery.head)), made.blocks
    likelihood, blocks = _setting(recovery, data)
    counts = blocks.state_counts(likelihood)
    return lambda times: _quasi_newton(likelihood, blocks, counts, times), likelihood, blocks


def _draws(blocks: Blocks, n: int, generator: torch.Generator) -> list[Tensor]:
    """How often each block is drawn, n times over; blocks without pairs take no part."""
    filled = torch.nonzero(blocks.pairs[0] > 0).reshape(-1)
    if len(filled) < 2:
        raise InputError("at least two blocks must hold data, found one; use more data.")
    out = []
    for _ in range(n):
        chosen = filled[torch.randint(len(filled), (len(filled),), generator=generator)]
        out.append(torch.bincount(chosen, minlength=blocks.n_blocks).to(torch.float64))
    return out


def _quasi_newton(
    likelihood: Likelihood, blocks: Blocks, counts: tuple[Tensor, Tensor] | None, times: Tensor
) -> Refitted:
    """A refit of any head, from where it is."""
    own = replace(likelihood, head=copy.deepcopy(likelihood.head), correction=TailCorrection())
    own = counted(own, counts, times)
    own.correct()
    batch = blocks.weighted(times)
    maximise(LBFGSEngine(max_steps=12, iterations=8, tolerance=0.05), own, batch)
    return Refitted(own.head.flat(), own.correction.tcf, batch.n_main)


def _check_scores(recovery: Recovery, purpose: str) -> None:
    if not _has_scores(recovery):
        raise InputError(f"the law must have scores for {purpose}, found law {recovery.law} without; use a bootstrap.")


def _has_scores(recovery: Recovery) -> bool:
    """Whether the law of a fit has derivatives in closed form: levytorch's own laws, and those made from them."""
    return recovery.own_law is None or isinstance(recovery.own_law, FrozenLaw)


def _reweighting(recovery: Recovery, data: Transitions | Lattice | None) -> Reweighting | _Influence | FirstOrder:
    if data is None and "reweighting" in recovery.replicas:
        return recovery.replicas["reweighting"]
    likelihood, blocks = _setting(recovery, data)
    strengths: Strength = recovery.metrics.get("penalty_strengths") or "none"
    made: Reweighting | _Influence
    simulated = recovery.law == "simulated"
    frozen = recovery.law not in ("exact", "corrected", "simulated")
    if not isinstance(likelihood.head, LinearHead):
        likelihood = _along_tangent(likelihood, blocks, strengths, balance=frozen)
    if frozen:
        made = Reweighting(likelihood, blocks, strengths)
    elif simulated:
        made = CenteredBySimulation(likelihood, blocks, strengths, recovery.tcf)
    else:
        made = Centered(likelihood, blocks, strengths, recovery.tcf)
    if data is None:
        recovery.replicas["reweighting"] = made
    return made


def _setting(recovery: Recovery, data: Transitions | Lattice | None) -> tuple[Likelihood, Blocks]:
    """The likelihood that was maximised and its data in blocks."""
    if recovery.metrics.get("drift") == "mean":
        raise InputError(
            'b must maximise the likelihood for errors from blocks, found drift "mean", whose errors are robust '
            'as they are; use kind="fisher".'
        )
    blocks = recovery.blocks if data is None else blocks_from(recovery, data)
    if blocks is None:
        raise InputError(
            "standard errors from blocks must have the data of the fit, found a recovery without (it was loaded, made "
            "by adam or by several processes, or its data was too large to keep); fit again or pass data=..."
        )
    if blocks.n_blocks < 2:
        raise InputError("data must come in at least two blocks, found one; make the lattice with n_blocks=60.")
    head = copy.deepcopy(recovery.head).in_units(blocks.units)
    blocks = blocks.on_a_lattice(head)
    law = recovery.own_law or blocks.law or FrozenLaw(steady_method("auto", head), recovery.dim)
    return blocks.likelihood(head, law, blocks.treatment or TailSettings()), blocks


def _along_tangent(likelihood: Likelihood, blocks: Blocks, strengths: Strength, *, balance: bool) -> Likelihood:
    """The same with the tangent of a head that is not linear at the fit, where refits to other weights stay.

    balance: whether the fit is the maximum of this likelihood.
    """
    assert likelihood.bins is not None
    prior = LayerPenalty(likelihood.head, strengths)
    network = likelihood.head
    tangent = TangentHead(network, network.clamped(likelihood.bins.x), prior.full_precision(), network.flat())
    own = replace(likelihood, head=tangent)
    if balance:
        objective = blocks.on_nodes(own).objective(blocks.whole)
        tangent.balanced(objective.n * objective.gradient(objective.evaluate()))
    return own


def of_files(recovery: Recovery, blocks: Blocks, kind: type[Reweighting]) -> FirstOrder:
    """The influence of blocks whose pairs are elsewhere, for standard errors and replicas after these are gone."""
    head = copy.deepcopy(recovery.head).in_units(blocks.units)
    likelihood = blocks.likelihood(head, FrozenLaw(steady_method("auto", head), recovery.dim), TailSettings())
    return FirstOrder.of(kind(likelihood, blocks, recovery.metrics.get("penalty_strengths") or "none"))


def blocks_from(recovery: Recovery, data: Any) -> Blocks:
    """Data in blocks, treated as the fit has treated its own, which its metrics say."""
    metrics = recovery.metrics
    method, of_dt = metrics.get("tail_method", "none"), metrics.get("CT_of_dt")
    CT, TRT = metrics.get("CT"), metrics.get("TRT")
    tail = TailSettings()
    if method != "none":
        CT = of_dt["CT"] if of_dt else CT
        tail = TailSettings(method=method, CT=CT, TRT=TRT, region=metrics.get("region") or "auto")
    units = recovery.head.units if recovery.own_law is None else Units()
    scale = units.length, units.time
    if isinstance(data, Lattice):
        return blocks_of(data.in_units(*scale), units, tail)
    if not isinstance(data, Transitions):
        raise InputError(
            f"data must be the Transitions or the Lattice of the fit, found {type(data).__name__}; use .transitions()."
        )
    if isinstance(recovery.head, ClockedHead):
        data, _ = with_inputs_of(recovery, data)
    strata = tail.active and not (method == "conditional" and tail.conditions_on == "TRT")
    cut = None if not strata else threshold_from(of_dt) if of_dt else CT
    pools = make_pools(data, CT=cut, TRT=TRT, min_tail=1).in_units(*scale)
    return blocks_of(pools, units, tail)


class _Influence:
    """What a fit changes by, to first order, when blocks count differently often; refits are of first order.

    influence: (n_blocks, P); smoothing: (P, P), as that of `Reweighting`.
    """

    influence: Tensor
    smoothing: Tensor

    def __init__(self, likelihood: Likelihood, blocks: Blocks, tcf: float) -> None:
        self.head, self.blocks, self.likelihood, self.tcf = linear(likelihood.head), blocks, likelihood, tcf
        self.theta = self.head.flat()

    def _of(self, u: Tensor, information: Information, precision: Tensor, n: float) -> None:
        """From the centered scores of the blocks, (n_blocks, K P)."""
        turn = information.slope.T @ symmetric_inverse(information.variance)
        inverse = symmetric_inverse(n * turn @ information.slope + torch.diag(precision))
        share = self.blocks.pairs[0] / self.blocks.pairs[0].sum()
        self.influence = (u - share[:, None] * u.sum(0)) @ turn.T @ inverse
        root = inverse * precision.sqrt()
        self.smoothing = root @ root.T

    def refit(self, times: Tensor) -> Refitted:
        """The fit in which block k counts times[k] times."""
        return Refitted(self.theta + (times - 1.0) @ self.influence, self.tcf, float(times @ self.blocks.pairs[0]))


class CenteredBySimulation(_Influence):
    """For fits under the simulated law: the influence of the statistics of a block, less their simulated means."""

    @torch.no_grad()
    def __init__(self, likelihood: Likelihood, blocks: Blocks, strengths: Strength, tcf: float) -> None:
        own = replace(likelihood, head=copy.deepcopy(linear(likelihood.head)), correction=TailCorrection())
        own = blocks.on_nodes(own)
        super().__init__(own, blocks, tcf)
        counts = blocks.state_counts(own)
        objective = counted(own, counts, blocks.once).objective(blocks.whole, strengths)
        score = SimulatedScore(objective, windows=windows_of(objective))
        _, ev = score.centered()
        score.noise = None  # that of the few simulations here
        laws = [own.frozen_law] if score.windows is None else [score.windows.law_of(k) for k in range(score.count)]

        def sums(part: Batch) -> Tensor:
            return torch.cat([block_scores(self.head, law, blocks, part) for law in laws], dim=1)

        u = sums(blocks.main)
        strata = score.strata(ev)
        if strata and blocks.tail is not None and len(strata) > 1:
            assert counts is not None
            beyond = sums(blocks.tail)
            parts = [(u - beyond, counts[0] - counts[1]), (beyond, counts[1])]
            u = torch.zeros_like(u)
            for stratum, (scores, number) in zip(strata, parts):
                total = number.sum(1, keepdim=True)
                means = scores.sum(0) / total.sum()  # within a stratum; how many a block has of it says nothing
                u += score.weight(stratum) * (scores - total * means)
        self._of(u, score.information(ev), objective.precision(), objective.n)


class Centered(_Influence):
    """What `Reweighting` is for the frozen law, for fits under the exact law of a step, corrected or exact.

    The influence of a block is that of its centered scores (`likelihood.corrected`): the root of their sum is the
    corrected fit itself, and they stand for the exact law's scores as well as the frozen law's can. Refits are of first
    order. tcf: of the fit.
    """

    def __init__(self, likelihood: Likelihood, blocks: Blocks, strengths: Strength, tcf: float) -> None:
        head, law = linear(likelihood.head), likelihood.frozen_law
        assert likelihood.bins is not None
        super().__init__(replace(likelihood, head=copy.deepcopy(head)), blocks, tcf)
        main = blocks.counts(likelihood.bins, "main")
        tail = blocks.counts(likelihood.bins, "tail") if blocks.tail is not None else torch.zeros_like(main)
        strata = Strata.on(likelihood.bins, likelihood.masses, likelihood.tail, main.sum(0), tail.sum(0))
        exact = ExactLaw()
        rates, R_theta = expected_by_state(head, law, exact, strata)
        scores = block_scores(head, law, blocks, blocks.main)
        if strata.split and blocks.tail is not None:
            beyond = block_scores(head, law, blocks, blocks.tail)
            parts = {"core": scores - beyond - (main - tail) @ rates["core"], "tail": beyond - tail @ rates["tail"]}
        else:
            parts = {"main": scores - main @ rates["main"]}
        u = sum((strata.scale(name, R_theta) * part for name, part in parts.items()), start=torch.zeros_like(scores))
        own = informations(head, law, exact, strata, R_theta).corrected
        self._of(u, own, prior_of(head, strengths).precision(), strata.n)
