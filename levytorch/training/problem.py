"""The problem of a fit, posed once what was left to the data is settled, and all of the data as one batch.

A problem is posed in the units of the data. Batches, and heads that are fitted to them (`Head.in_units`), are in the
units of the fit (`Problem.units`), in which a step and a dt are of order one; `Fit` reports in those of the data again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.build import LINEAR, head_dim
from levytorch.coefficients.head import Units
from levytorch.coefficients.init import Guess
from levytorch.convert import shown
from levytorch.data import Pools, Transitions, make_pools
from levytorch.data.batches import CHUNK, FullBatch, PoolFacts, full_batch, split, wanted
from levytorch.data.describe import in_degrees, rounding
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.data.transitions import OUTSIDE
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.exact import MANY_STEPS, ExactLaw
from levytorch.likelihood.filter import Chains
from levytorch.likelihood.laws import Missing, distinct_steps
from levytorch.likelihood.tail import TailSettings
from levytorch.spaces.basis import per_coordinate
from levytorch.training.blocks import Blocks, kept_for_later, n_blocks_for
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.inputs import check_inputs
from levytorch.training.memory import settled_memory, with_inputs, with_settled_memory
from levytorch.training.selection import Selection
from levytorch.training.settings import FitSettings
from levytorch.training.start import (
    Fitting,
    cells_differ,
    cut_batch,
    guess_from,
    on_the_line,
    resolve_tail,
    starting_head,
)

_FOLLOWING = 0.5  # of the pairs, for observation noise
_TINY = 1e-3  # of the period: a cell that the data hardly touches


class DistantPairs(Protocol):
    """All pairs, where `data` is a lattice or a sample of them and the pairs are on other machines.

    scale: units of length and time of the fit; a lattice is given in those of the data, a batch in those of the fit.
    """

    def of_lattice(self, lattice: Lattice, fitted: FullBatch, scale: tuple[float, float]) -> FullBatch: ...

    def of_sample(self, sample: FullBatch, scale: tuple[float, float]) -> FullBatch: ...


@dataclass
class Problem:
    """What every fit starts from: settings, a head at its start, the data to train on.

    data: as it was given; kept: on a line the range of the states of the pairs that are used, one per coordinate;
    began: when, by `time.perf_counter`; selection: how what was left open has been chosen; batches: made of all data,
    where cross-validation needed them.
    """

    settings: FitSettings
    head: Head
    guess: Guess
    data: Transitions | Lattice
    train: Transitions | Lattice
    held_out: Transitions | None
    guessed_CT: bool
    began: float
    kept: list[tuple[float, float]] | None = None
    selection: Selection | None = None
    batches: AllData | None = None
    distant: DistantPairs | None = None

    @property
    def units(self) -> Units:
        """The length and the time in which everything is fitted: about one step and one dt of the data.

        Results do not depend on the units of the data then, nor does the way to them. The paper's settings
        (units="none") and a law of the user's own, which may have constants of its own, keep the units of the data.
        """
        if not isinstance(self.settings.law, str):
            return Units()
        if self.settings.plain is not None:
            return self.head.units
        return self.guess.units if self.settings.units == "data" else Units()

    @property
    def pairs(self) -> Transitions:
        """The pairs to train on, where the data is no lattice."""
        assert isinstance(self.train, Transitions)
        return self.train

    def settled(self) -> dict[str, Any]:
        """What was left to the data, as plain numbers and tensors; `restored` poses the same problem from it."""
        return {
            "head": self.settings.plain,
            "theta": self.head.flat(),
            "tail": asdict(self.settings.tail),
            "guess": asdict(self.guess),
            "guessed_CT": self.guessed_CT,
            "kept": self.kept,
            "left_open": list(self.settings.left_open),
            "penalty": getattr(self.settings.engine, "penalty", None),
            "selection": None if self.selection is None else self.selection.state_dict(),
            "memory": settled_memory(self.settings),
        }

    def check_law(self) -> None:
        """Refuse a head and data that the law cannot be used with, before anything is fitted."""
        law, lacking = self.settings.law, None
        if law == "exact":
            lacking = unavailable(self.head, self.data, started=self.settings.init == "data")
        elif not isinstance(law, str):
            lacking = law.supports.missing(self.head, self.data)
        if lacking is not None:
            name = law if isinstance(law, str) else law.name
            raise InputError(f'law "{name}" must have {lacking.needed}, found {lacking.found}; use law="auto".')

    def drawing(self) -> dict[str, Any]:
        """The options of mini-batches."""
        given = {key: self.settings.data.get(key) for key in ("batch_size", "mixing", "tail_share")}
        chosen = {key: value for key, value in given.items() if value is not None}
        return {
            "batch_size": self.settings.engine.batch_size,
            "mixing": "stratified",
            **chosen,
            "seed": self.settings.seed,
        }


def problem_of(
    data: Transitions | Lattice, settings: FitSettings, fit: Fitting, start: Tensor | None = None
) -> Problem:
    """Fill in what is left to the data, and refuse data that the settings cannot be fitted to.

    settings: those of `settings_for`; fit: for a preliminary fit of constants, where CT is left to the data.
    """
    began, given, kept = time.perf_counter(), data, None
    if settings.drift == "mean" and not isinstance(data, Transitions):
        raise InputError('drift "mean" must be computed from pairs, found a lattice; pass the pairs.')
    if settings.has_inputs:
        assert isinstance(data, Transitions)
        data, settings = with_inputs(data, settings)
    if not settings.head.repeats:
        data, settings = on_the_line(data, settings)
        if isinstance(data, Transitions):
            kept = [(float(column.min()), float(column.max())) for column in data.x.reshape(len(data), -1).T]
    guess = guess_from(data, settings)
    if settings.profile is not None:  # constants beside the memory, in which steps are of one size already
        found = {name: value for name, value in settings.profile["start"].items() if name != "gamma"}
        guess = replace(guess, **found, profile=None)
    guessed = settings.tail.CT == "auto" and not isinstance(data, Lattice)  # which has its own
    settings = replace(settings, tail=resolve_tail(data, settings, fit))
    train, held_out = _held_out(data, settings)
    head = starting_head(settings, guess, train, start)
    check_head_and_data(head, data)
    if isinstance(data, Transitions) and not data.repeats:
        differ = cells_differ(head, data)
        check_numbers(head, data)
        check_cell(head, *(v.numpy() for v in torch.aminmax(data.x, dim=0)), differ=differ)
    return Problem(settings, head, guess, given, train, held_out, guessed, began, kept)


def restored(given: Transitions | Lattice, settings: FitSettings, settled: Mapping[str, Any]) -> Problem:
    """The problem whose `settled()` this is, posed without another look at what was settled."""
    if settings.plain is not None:
        settings = settings.with_head(settled["head"])
    if "penalty" in settings.left_open and "penalty" not in settled["left_open"]:
        assert isinstance(settings.engine, FisherEngine)
        settings = replace(settings, engine=replace(settings.engine, penalty=settled["penalty"]))
    settings = replace(settings, tail=TailSettings(**settled["tail"]), left_open=tuple(settled["left_open"]))
    guess, kept, data = Guess.from_plain(settled["guess"]), settled["kept"], given
    if settings.has_inputs:
        assert isinstance(data, Transitions)
        data, settings = with_inputs(data, with_settled_memory(settings, settled["memory"]))
    train, held_out = _held_out(data if kept is None else data.starting_in(kept), settings)
    head = starting_head(settings, guess, train, settled["theta"])
    selection = None if settled["selection"] is None else Selection.from_state(settled["selection"])
    guessed, began = settled["guessed_CT"], time.perf_counter()
    return Problem(settings, head, guess, given, train, held_out, guessed, began, kept, selection)


def _held_out(data: Transitions | Lattice, settings: FitSettings) -> tuple[Transitions | Lattice, Transitions | None]:
    """The data to train on, and the pairs that are held out."""
    if isinstance(data, Lattice):
        return data, None
    return split(data, settings.data.get("validation") or 0.0, settings.seed)


@dataclass
class AllData:
    """What a full-batch engine works on, and the data it was made from, in the units of the fit.

    facts: what is reported of the data, in its own units; fitted: the batch to maximise over; observed: where tail
    masses come from; samples: all pairs where `fitted` is a lattice made of them (None where it is those
    pairs, or where a lattice is all there is); blocks: the same data in blocks.
    """

    fitted: FullBatch
    observed: Pools | Lattice
    facts: PoolFacts
    samples: FullBatch | None = None
    from_lattice: bool = False
    blocks: Blocks | None = None


def all_data(problem: Problem) -> AllData:
    """All of the data as one batch: a lattice where that is wanted, or the pairs."""
    settings, units = problem.settings, problem.units
    scale, head = (units.length, units.time), problem.head.in_units(units)
    if isinstance(problem.train, Lattice):
        lattice = problem.train.in_units(*scale)
        whole = lattice.full_batch()
        fitted = whole if head.period is not None else cut_batch(whole, head)
        facts, distant = problem.train.facts(), problem.distant
        samples = None if distant is None else distant.of_lattice(problem.train, fitted, scale)
        if fitted is whole:
            return AllData(fitted, lattice, facts, samples, True, kept_for_later(lattice, units))
        return AllData(fitted, lattice, facts_within(facts, fitted, units.length), samples, from_lattice=True)
    pools = make_pools(problem.train, **pool_options(settings, problem.guess))
    check_pools(pools, settings, problem.train)
    facts, pools = PoolFacts.of(pools), pools.in_units(*scale)
    chunk = settings.data.get("chunk_size") or CHUNK
    if problem.distant is not None:
        batch = problem.distant.of_sample(full_batch(pools), scale)
        return AllData(batch, pools, replace(facts, n_main=int(batch.n_main)))
    # nodes stand for pairs under levytorch's own laws; one of the user's own sees the pairs unless asked otherwise
    asked = settings.data.get("lattice") or "auto"
    if asked == "auto" and not isinstance(settings.law, str):
        asked = "never"
    if not (settings.engine.full_batch and wanted(pools.data, asked)):
        pairs = full_batch(pools, chunk)
        alone = kept_for_later(pools, units) if settings.engine.full_batch else None
        return AllData(pairs, pools, facts, blocks=alone)
    lattice = lattice_of(pools, head.period, head.origin, n_blocks_for(pools.data))
    blocks = kept_for_later(lattice, units, pools.data)
    pairs = full_batch(pools, chunk, copied=False)
    return AllData(lattice.full_batch(), pools, facts, pairs, from_lattice=True, blocks=blocks)


def facts_within(facts: PoolFacts, kept: FullBatch, length: float) -> PoolFacts:
    """What a fit reports of a lattice that was cut to a window; length: the unit of x in what was kept."""
    x = kept.main.x * length
    n_main, n_tail = round(kept.n_main), round(kept.n_tail)
    dropped = {**facts.dropped, OUTSIDE: facts.n_main - n_main}
    within = (float(x.min()), float(x.max()))
    return replace(facts, n_main=n_main, n_tail=n_tail, dropped=dropped, x_range=within)


def unavailable(head: Head, data: Transitions | Lattice, *, started: bool = True) -> Missing | None:
    """What this head and data lack for the exact law; None: nothing. started: whether the head has the scale of the
    data, so that the grid for its steps is known.
    """
    lacking = ExactLaw.supports.missing(head, data)
    if lacking is not None or not started:
        return lacking
    try:
        for dt in distinct_steps(data, MANY_STEPS):
            ExactLaw().rule(head, dt)
    except InputError as error:
        return Missing("a dt that is long enough for its grid", f"a shorter one ({error})")
    return None


def settings_for(transitions: Transitions | Lattice, settings: FitSettings) -> FitSettings:
    """Refuse data the settings cannot be fitted to; the head's dimension is the data's where it was left open."""
    if settings.has_inputs:
        check_inputs(transitions, settings)
    if settings.observation_noise is not None:
        check_chains(transitions, settings.head.period)
    if isinstance(transitions, Lattice):
        check_lattice(settings)
        return settings
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"transitions must be a Transitions or a Lattice, found {type(transitions).__name__}; use "
            "trajectories.transitions()."
        )
    plain = settings.plain
    wanted = settings.head.dim if plain is None else head_dim(plain)
    if wanted is not None and wanted != transitions.dim:
        raise InputError(
            f"the head must have the dimension of the data, {transitions.dim}, found a head of dimension {wanted}; "
            "leave dim out, or give as many periods as the data has columns."
        )
    if transitions.dim == 1 and plain is not None and plain.get("noise", "isotropic") != "isotropic":
        raise InputError(
            f"noise must be isotropic for one coordinate, found {shown(plain['noise'])}; leave it out, or pass data of "
            "several coordinates."
        )
    if transitions.dim > 1:
        if settings.density == "windowed":
            raise InputError(f"dim must be 1 for density windowed, found {transitions.dim}; use auto.")
        if plain is not None and settings.head.dim != transitions.dim:
            settings = settings.with_head({**plain, "dim": transitions.dim})
    if plain is not None and plain["name"] in LINEAR and len(transitions) < 20:
        raise InputError(f"transitions must hold at least 20 pairs for a fit, found {len(transitions)}; use more data.")
    return settings


def check_chains(data: Transitions | Lattice, period: Any) -> None:
    """Refuse pairs without the ones before them: it is these that tell observation noise from steps."""
    found = None
    if not isinstance(data, Transitions):
        found = "a lattice"
    elif data.dim > 1:
        found = f"{data.dim} coordinates"
    else:
        pairs = Chains.of(data, period if isinstance(period, int | float) else None)
        if pairs.neighbours < _FOLLOWING * len(data):
            found = f"{pairs.neighbours} of {len(data)} pairs that begin where the pair before them ended"
    if found is not None:
        raise InputError(
            "observation_noise must be fitted to the pairs of whole trajectories in one dimension, in their order, "
            f"found {found}; pass Trajectories or their transitions(), or leave observation_noise out."
        )


def check_head_and_data(head: Head, data: Transitions | Lattice) -> None:
    """Refuse fewer pairs than parameters, states outside of a window, a cell that is not the lattice's."""
    n, P = len(data), head.flat().numel()
    if isinstance(head, LinearHead) and n < P:
        raise InputError(f"data must hold at least {P} pairs for {P} parameters, found {n}; use fewer basis functions.")
    if isinstance(data, Lattice):
        if head.dim > 1 or head.period != data.period or (data.period is not None and head.origin != data.origin):
            raise InputError(
                f"the head must be on the cell of the lattice, of period {data.period} from {data.origin:g} on, found "
                f"period {head.period} from {head.origin} on; give that period and origin, or make the lattice again."
            )
    elif head.repeats and not getattr(head, "periodic", True):
        _check_window(data, head)


def check_lattice(settings: FitSettings) -> None:
    """Refuse what needs the pairs themselves."""
    if settings.data.get("validation"):
        raise InputError(
            "data must be the pairs themselves for validation, found a lattice; pass transitions, or use its folds."
        )
    if not settings.engine.full_batch:
        raise InputError(
            "the engine must be a full-batch one for a lattice, which cannot be drawn from, found "
            f"{settings.engine.name}; use fisher, evidence or lbfgs."
        )


def _check_window(transitions: Transitions, head: Head) -> None:
    columns = transitions.x.reshape(len(transitions), -1).T
    origins, periods = (per_coordinate(name, getattr(head, name), head.dim) for name in ("origin", "period"))
    for column, origin, period in zip(columns, origins, periods):
        low, high = float(column.min()), float(column.max())
        if low < origin or high > origin + period:
            raise InputError(
                f"x must lie in the window [{origin:g}, {origin + period:g}] of a head without period, "
                f"found [{low:g}, {high:g}]; widen origin and period."
            )


def pool_options(settings: FitSettings, guess: Guess) -> dict[str, Any]:
    """Thresholds of the pools of these tail settings."""
    tail = settings.tail
    strata = tail.active and not (tail.method == "conditional" and tail.region == "TRT")
    return {
        "CT": tail.CT if strata else None,
        "TRT": tail.TRT,
        "alpha": guess.alpha,
        "min_tail": tail.min_tail if tail.method == "tcf" else 1,  # strata must not have their CT moved
    }


def check_pools(pools: Pools, settings: FitSettings, transitions: Transitions) -> None:
    """Warn of pairs that are left out without a correction; refuse a tail pool that has all pairs."""
    lost = pools.dropped.get("beyond TRT", 0) - transitions.dropped.get("beyond TRT", 0)
    if lost and not settings.tail.active:
        warnings.warn(
            f"{lost} pairs lie beyond tail.TRT = {settings.tail.TRT:g} and are left out without a correction "
            "(tail.method none): D_f will be too small; remove TRT, or use tail.method conditional.",
            LevytorchWarning,
            stacklevel=2,
        )
    if pools.n_tail == pools.n_main:
        raise InputError(
            f"CT must leave pairs below it, found all {pools.n_main} within TRT beyond it; raise CT, shorten dt, or "
            "use more data."
        )


def unwrapped(head: Any, data: Transitions) -> Transitions:
    """The pairs with displacements taken the short way round where x is an angle that was wrapped, with a warning."""
    pairs = data.unwrapped(head.period)
    if pairs is not data:
        changed = int((pairs.dx != data.dx).reshape(len(data), -1).any(dim=1).sum())
        warnings.warn(
            f"x is an angle wrapped into one period: {changed} displacements are taken the short way round, so that "
            "jumps of more than half a period count as shorter ones; pass unwrapped angles if you have them, or with "
            "a learned alpha use tail.method conditional with half a period as TRT.",
            LevytorchWarning,
            stacklevel=3,
        )
    return pairs


def check_numbers(head: Any, data: Transitions) -> None:
    """Warn of states that are rounded coarsely, and of angles in degrees where the period is 2 pi."""
    every = max(1, len(data) // 50_000)
    x, dx = (v[::every].reshape(-1, data.dim).numpy() for v in (data.x, data.dx))
    said = [remark for k in range(data.dim) for remark in rounding("x" if data.dim == 1 else f"x{k + 1}", dx[:, k])]
    radians = head.dim == 1 and head.period is not None and abs(head.period - 2 * np.pi) < 1e-9
    if radians and in_degrees(x[:, 0], dx[:, 0]):
        said.append(
            "x looks like an angle in degrees, while the period is 2 pi; pass period=360, or convert x to radians."
        )
    for sentence in said:
        warnings.warn(sentence, LevytorchWarning, stacklevel=3)


def check_cell(head: Any, low: Any, high: Any, *, differ: bool = True) -> None:
    """Warn where coefficients that depend on x are folded, or spread over a cell that the data hardly touches.

    low, high: the range of the states, one number per coordinate; differ: whether steps one period apart differ. For
    data whose system is not known to be periodic: all but that of a simulation on a cell.
    """
    if head.period is None or head.is_constant or not getattr(head, "periodic", True):
        return
    for axis, (first, last, period) in enumerate(zip(np.atleast_1d(low), np.atleast_1d(high), head.periods)):
        if period is None:
            continue
        name = "x" if head.dim == 1 else f"x_{axis + 1}"
        seen, share = f"{name} runs from {first:.6g} to {last:.6g}", (last - first) / period
        if share > 1 and differ:
            warnings.warn(
                f"{seen}, farther than the period {period:.6g}, and steps one period apart differ, although the model "
                "gives them the same coefficients; use period=None (a line), or a period and an origin of a cell that "
                "holds all x.",
                LevytorchWarning,
                stacklevel=3,
            )
        elif share < _TINY:
            warnings.warn(
                f"{seen}, which is only {share:.1g} of the period {period:.6g}: coefficients hardly change over such a "
                "small part; use period=None (a line), or a period and an origin of a cell a little wider "
                "than x.",
                LevytorchWarning,
                stacklevel=3,
            )
