"""The half-lives of a memory by profile likelihood: constants are fitted with a clock of log m for every candidate, and
of the covariate that the fit has beside it.

The same pairs are compared for all candidates: those for which the slowest one has filled. One time scale is a
candidate of a ladder with steps of two, refined by parabolas in log h. A second and a third are added where each
raises the log-likelihood by more than AIC asks for its two parameters, the half-life and the exponent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.coefficients import AlphaSpec, Head, linear
from levytorch.coefficients.clock import ClockedHead, times
from levytorch.coefficients.head import Units
from levytorch.coefficients.links import TemperingSpec
from levytorch.convert import real_tensor, seed_of, whole_number
from levytorch.data import Trajectories, Transitions
from levytorch.data.batches import FullBatch, full_batch, make_pools
from levytorch.data.memory import Memory
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import LevyStep
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.simulation.euler import initial_states
from levytorch.spaces import space_of
from levytorch.training.engines.base import maximise
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.inputs import FittedMemory, action_of, check_inputs, clock_of, covariate_of
from levytorch.training.settings import FitSettings
from levytorch.training.start import constants, guess_from, starting_head

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

MOST_SCALES = 3
UNFILLED = "before the memory has filled"
_MOST_PAIRS = 30_000  # for the profile
_LADDER = range(1, 10)  # powers of two, in usual steps
_TRAJECTORY = 4.0  # half-lives that a trajectory must be as long as
_WORTH = 4.0  # of log-likelihood, for two more parameters: twice what AIC asks
_PASSES, _NEAR = 40, 0.05
_CLOSER = 0.15  # of log h, at least, between the three points of the last parabola


@dataclass
class Profile:
    """Log-likelihoods of constants with a memory, by half-lives; errors: of log h, one per half-life."""

    pairs: Transitions
    rule: Memory
    settings: FitSettings
    found: dict[tuple[float, ...], float] = field(default_factory=dict)
    errors: tuple[float, ...] = ()
    last: Head = field(init=False)

    def __post_init__(self) -> None:
        _, self.filled = self.rule.means(self.pairs)
        if int(self.filled.sum()) < 500:
            raise InputError(
                f"a learned memory must have 500 pairs after it has filled, found {int(self.filled.sum())}; give a "
                "half-life (memory=h), or use longer trajectories."
            )
        self.start: dict[int, torch.Tensor] = {}
        self.guess = guess_from(self.pairs, self.settings)
        self.none = self._fit((), self.settings)
        self._hold_tails()

    def _hold_tails(self) -> None:
        """Take alpha and tempering from one fit with a memory: they hardly depend on its half-lives."""
        learned = self.settings
        if not (learned.alpha.learned or learned.tempering.learned):
            return
        self._fit((self.rule.half_lives[0] ** 0.5 * self.rule.dt**0.5,), learned)
        with torch.no_grad():
            c = self.last(self.last.grid(1))
        plain = learned.plain
        assert plain is not None
        tempering = TemperingSpec.build("fixed", float(c.tempering))
        held = replace(learned, alpha=AlphaSpec("fixed", float(c.alpha.mean())), tempering=tempering)
        self.settings, self.start = held.with_head(plain), {}
        self.guess = guess_from(self.pairs, self.settings)

    def log_likelihood(self, half_lives: Sequence[float]) -> float:
        """Of the constants that are best with these half-lives."""
        key = tuple(sorted(half_lives))
        if key not in self.found:
            self.found[key] = self._fit(key, self.settings)
        return self.found[key]

    def _fit(self, half_lives: tuple[float, ...], settings: FitSettings) -> float:
        pairs = self.pairs
        columns = [] if settings.modulation is None else [covariate_of(pairs).unsqueeze(1)]
        if half_lives:
            rule = self.rule.with_half_lives(half_lives)
            columns, settings = [*columns, rule.inputs(pairs)[0]], replace(settings, memory=rule)
        if columns:
            pairs = pairs.with_inputs(torch.cat(columns, dim=1))
        pairs = pairs[self.filled]
        head = linear(starting_head(settings, self.guess, pairs))
        units = self.guess.units if settings.units == "data" else Units()
        own = head.in_units(units)
        if len(half_lives) in self.start:
            own.set_flat(self.start[len(half_lives)])
        pools = make_pools(pairs, None).in_units(units.length, units.time)
        likelihood = Likelihood(own, FrozenLaw(steady_method(settings.density, own), own.dim))
        likelihood.observe(pools)
        batch: FullBatch = full_batch(pools)
        done = maximise(FisherEngine(max_steps=_PASSES, tolerance=_NEAR), likelihood, batch)
        self.start[len(half_lives)], self.last = own.flat(), head
        return float(done.optimizer.accepted.main.log_p)  # type: ignore[attr-defined]

    def report(self, rule: Memory) -> dict[str, Any]:
        """What metrics say about the half-lives that were learned."""
        rows = [[list(h), value - self.none] for h, value in sorted(self.found.items())]
        std = [h * error for h, error in zip(rule.half_lives, self.errors)]
        return {"std": std, "gains": rows, "pairs": int(self.filled.sum()), "start": self.constants(rule.half_lives)}

    def constants(self, half_lives: tuple[float, ...]) -> dict[str, Any]:
        """The coefficients that are best with these half-lives, from where the fit to all pairs begins."""
        self._fit(half_lives, self.settings)
        assert isinstance(self.last, ClockedHead)
        with torch.no_grad():
            c = self.last(self.last.grid(1))
        b = c.b.reshape(-1).tolist()
        numbers = {name: float(getattr(c, name).reshape(-1)[0]) for name in ("D_o", "D_f", "alpha", "tempering")}
        return {**numbers, "b": b[0] if len(b) == 1 else b, "gamma": self.last.gamma.tolist()}

    # -- searches -----------------------------------------------------------------------------------------------------
    def climb(self, half_lives: Sequence[float], ladder: Sequence[float]) -> tuple[float, ...]:
        """From candidates to better ones on the ladder, one half-life after the other, while any is better."""
        best = tuple(sorted(half_lives))
        moved = True
        while moved:
            moved = False
            for i, h in enumerate(best):
                at = ladder.index(h)
                for other in (at - 1, at + 1):
                    tried = (*best[:i], ladder[other], *best[i + 1 :]) if 0 <= other < len(ladder) else best
                    if len(set(tried)) == len(best) and self.log_likelihood(tried) > self.log_likelihood(best) + 1e-6:
                        best, moved = tuple(sorted(tried)), True
                        break
                if moved:
                    break
        return best

    def refine(self, half_lives: tuple[float, ...]) -> tuple[float, ...]:
        """The half-lives at the tops of parabolas in log h, and their errors where the others are held."""
        found, errors = list(half_lives), []
        for i in range(len(found)):
            width, error = math.log(2.0), math.inf
            for _ in range(2):
                at = [found[i] * math.exp(shift) for shift in (-width, 0.0, width)]
                low, middle, high = (self.log_likelihood([*found[:i], h, *found[i + 1 :]]) for h in at)
                bend = (2 * middle - low - high) / width**2
                if bend <= 0:
                    break
                shift = max(-width, min(width, 0.5 * (high - low) / width / bend))
                found[i] *= math.exp(shift)
                error = bend**-0.5
                width = max(_CLOSER, min(width, 1.5 * error))
            errors.append(error)
        self.errors = tuple(errors)
        return tuple(found)


def learned_memory(data: Transitions, settings: FitSettings) -> tuple[Memory, Profile]:
    """The rule whose half-lives are the most likely ones, and the profile that has shown it."""
    dt, some = data.median_dt, _some(data)
    ladder = [dt * 2.0**k for k in _LADDER if dt * 2.0**k <= _typical_duration(data) / _TRAJECTORY] or [2.0 * dt]
    quick = constants(replace(settings, memory=None, law="frozen"), data)
    period = settings.head.period
    profile = Profile(some, Memory.of(data, [ladder[-1]], period), quick)
    best: tuple[float, ...] = (max(ladder, key=lambda h: profile.log_likelihood([h])),)
    for _ in range(MOST_SCALES - 1):
        more = _with_one_more(best, ladder)
        if more is None:
            break
        more = profile.climb(more, ladder)
        if profile.log_likelihood(more) < profile.log_likelihood(best) + _WORTH:
            break
        best = more
    best = profile.refine(best)
    gain = max(profile.found.values()) - profile.none
    if gain <= 2 * len(best):  # a half-life and an exponent each
        warnings.warn(
            f"a memory must predict the sizes of steps, found that its {2 * len(best)} parameters raise the "
            f"log-likelihood by only {gain:.2g}, so that AIC prefers no memory; leave memory out.",
            LevytorchWarning,
            stacklevel=2,
        )
    return profile.rule.with_half_lives(best), profile


def _with_one_more(best: tuple[float, ...], ladder: Sequence[float]) -> tuple[float, ...] | None:
    """Candidates to begin with: the present ones farther apart, and one between or beyond them."""
    free = [h for h in ladder if h not in best]
    if not free:
        return None
    apart = [min(abs(math.log(h / other)) for other in best) for h in free]
    target = math.log(8.0)
    chosen = min(zip(free, apart), key=lambda one: abs(one[1] - target))[0]
    return tuple(sorted((*best, chosen)))


def _typical_duration(data: Transitions) -> float:
    """Of the trajectories that pairs come from, in the mean over the pairs."""
    ids = data.trajectory
    length = torch.zeros(int(ids.max()) + 1, dtype=torch.float64).index_add_(0, ids, data.dt.to(torch.float64))
    return float(length[ids].mean())


def _some(data: Transitions) -> Transitions:
    """At most so many pairs, in a row."""
    if len(data) <= _MOST_PAIRS:
        return data
    begin = (len(data) - _MOST_PAIRS) // 2
    return data[begin : begin + _MOST_PAIRS]


def with_inputs(data: Transitions, settings: FitSettings) -> tuple[Transitions, FitSettings]:
    """The pairs with the inputs that the settings ask for, and the settings with the rule of the memory.

    Pairs for which the memory has not filled are left out.
    """
    if settings.n_action is not None:
        return data.with_inputs(action_of(data)), settings
    columns, settled = [], settings
    if settings.modulation is not None:
        columns.append(covariate_of(data).unsqueeze(1))
    if settings.memory is None:
        return data.with_inputs(columns[0]), settings
    rule = settings.memory
    if settings.clock is not None:  # of pairs that have their inputs
        return data, settings
    if isinstance(rule, str):
        rule, profile = learned_memory(data, settings)
        settled = replace(settings, profile=profile.report(rule))
    elif isinstance(rule, tuple):
        rule = Memory.of(data, rule, settings.head.period)
    inputs, filled = rule.inputs(data)
    long_ = _typical_duration(data)
    if not bool(filled.any()) or max(rule.half_lives) > long_:
        least = max(rule.wait, *rule.half_lives)
        raise InputError(
            f"trajectories must be longer than {least:g} for this memory (its half-lives, and the steps that fill it), "
            f"found {long_:g}; give a shorter half-life, or use longer trajectories."
        )
    settled = replace(settled, memory=rule.with_levels(inputs[filled]))
    data = data.with_inputs(torch.cat([*columns, inputs], dim=1))
    data = data._take(filled, {UNFILLED: int((~filled).sum())})
    return data, settled


def with_shared_memory(data: Transitions, settings: FitSettings) -> tuple[Transitions, FitSettings]:
    """The pairs of all actions with their m, and settings for the fits of some of them each."""
    check_inputs(data, settings)
    data, settings = with_inputs(data, settings)
    assert data.inputs is not None
    return data, replace(settings, clock=clock_of(data.inputs, settings))


def settled_memory(settings: FitSettings) -> dict[str, Any] | None:
    """The memory of a fit as plain numbers, with which a resumed fit continues."""
    if not isinstance(settings.memory, Memory):
        return None
    return {"rule": settings.memory.plain(), "profile": settings.profile}


def with_settled_memory(settings: FitSettings, settled: Mapping[str, Any] | None) -> FitSettings:
    """The settings with the memory of `settled_memory`."""
    if settled is None:
        return settings
    return replace(settings, memory=Memory.from_plain(settled["rule"]), profile=settled["profile"])


# -- paths of a fit with memory ----------------------------------------------------------------------------------------
_SAME = 1e-6  # relative difference of lengths of a step
_PATHS, _HALF_LIVES, _STEPS = (
    400,
    8.0,
    (100, 1500),
)  # of the check of the level: slowest half-lives, steps at least, most
_QUANTILES = (0.1, 0.5, 0.9)
_MOVED = math.log(2.0)  # of a quantile of log m, from which on a chain does not stay where the data stays


@torch.no_grad()
def simulate_with_memory(
    recovery: Recovery,
    n_trajectories: int,
    n_steps: int,
    dt: float | None = None,
    *,
    x0: Any = None,
    m0: Any = None,
    seed: Any = 0,
) -> Trajectories:
    """Paths of the chain that was fitted.

    Args:
        dt: the one that was fitted, or None.
        x0: as for `levytorch.simulate`.
        m0: the means of the sizes of past steps to begin with, one per half-life; None: each path begins with those
            before some pair of the data that were fitted, drawn at random.

    A covariate with a period, such as the hour of the day, has its mean effect.
    """
    memory = recovery.memory
    assert memory is not None
    rule = memory.rule
    check_dt(rule, dt)
    n, steps = whole_number("n_trajectories", n_trajectories, 1), whole_number("n_steps", n_steps, 1)
    seed = seed_of(seed)
    x = torch.as_tensor(initial_states(recovery.dynamics(), n, x0, seed), dtype=torch.float64)
    x = x.reshape(n) if recovery.dim == 1 else x.reshape(n, recovery.dim)
    generator = torch.Generator().manual_seed(seed)
    if m0 is None:
        m = observed_means(rule, n, generator)
    else:
        k, start = len(rule.half_lives), real_tensor("m0", m0).reshape(-1)
        if start.shape != (k,) or not bool((start > 0).all()):
            raise InputError(f"m0 must be {k} positive numbers, found {tuple(start.tolist())}; give one per half-life.")
        m = start.expand(n, k)
    if (moved := recovery.metrics["memory"].get("level")) is not None and abs(moved) > _MOVED:
        warnings.warn(f"{level_sentence(moved)}; simulate few steps only.", LevytorchWarning, stacklevel=3)
    points = [x, *(x for x, _ in chain_of(recovery, memory, x, m, steps, generator))]
    made = Trajectories.from_arrays(torch.stack(points, dim=1).numpy(), dt=rule.dt)
    made.seed = seed
    return made


def observed_means(rule: Memory, n: int, generator: torch.Generator) -> Tensor:
    """(n, number of half-lives): m before pairs of the data, drawn at random."""
    levels = torch.tensor(rule.levels or [[rule.start] * len(rule.half_lives)], dtype=torch.float64)
    return levels[torch.randint(len(levels), (n,), generator=generator)]


def chain_of(
    recovery: Recovery, memory: FittedMemory, x: Tensor, m: Tensor, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """States and m after each of some steps."""
    rule, head = memory.rule, recovery.head
    space, dt = space_of(head), torch.tensor(rule.dt, dtype=torch.float64)
    constants = head(x[:1]) if head.is_constant else None
    for _ in range(steps):
        c = times(constants or head(space.inside(x)), memory.f(m))
        dx = LevyStep(*c[:4], dt, head.dim, c.tempering, validate_args=False).sample(generator=generator)
        m, x = rule.after(m, dx, rule.dt), x + dx
        yield x, m


@torch.no_grad()
def level_moved(recovery: Recovery) -> float:
    """By how much log m of simulated paths has moved from that of the data, which they begin with: the largest of three
    quantiles and of all half-lives.

    The exponents say what follows steps of a given size, not where sizes settle. Where 2 alpha is about the sum of the
    exponents the level of the chain is a balance of small effects, and it may lie far from that of the data.
    """
    memory = recovery.memory
    assert memory is not None
    rule, generator = memory.rule, torch.Generator().manual_seed(0)
    steps = round(_HALF_LIVES * max(rule.half_lives) / rule.dt)
    begin = observed_means(rule, _PATHS, generator)
    states = torch.as_tensor(recovery.metrics["states"], dtype=torch.float64)
    x = states[torch.randint(len(states), (_PATHS,), generator=generator)]
    *_, (_, m) = chain_of(recovery, memory, x, begin, min(max(steps, _STEPS[0]), _STEPS[1]), generator)
    levels = torch.tensor(_QUANTILES, dtype=torch.float64)
    moved = (torch.quantile(rule.log(m), levels, dim=0) - torch.quantile(rule.log(begin), levels, dim=0)).reshape(-1)
    return float(moved[moved.abs().argmax()])


def level_sentence(moved: float) -> str:
    """What is wrong with a chain whose level has moved."""
    return (
        "simulated paths must keep the size of the steps of the data, found that the 10, 50 or 90 % quantile of their "
        f"mean size is {math.exp(moved):.3g} times the data's after some half-lives of the memory"
    )


def with_level(recovery: Recovery) -> None:
    """Find out where the chain of a fit with memory settles, and warn where that is far from the data."""
    moved = recovery.metrics["memory"]["level"] = level_moved(recovery)
    if abs(moved) > _MOVED:
        warnings.warn(
            f'{level_sentence(moved)}; use longer half-lives, or tempering="learn".', LevytorchWarning, stacklevel=2
        )


@torch.no_grad()
def range_of_f(memory: FittedMemory) -> list[float]:
    """The 5 and 95 % quantiles of f over the data."""
    f = memory.f(torch.tensor(memory.rule.levels, dtype=torch.float64)).reshape(-1)
    return [float(torch.quantile(f, level)) for level in (0.05, 0.95)]


def check_dt(rule: Memory, dt: float | None) -> None:
    """Refuse another length of a step than the fitted one."""
    if dt is not None and abs(dt - rule.dt) > _SAME * rule.dt:
        raise InputError(
            f"dt must be {rule.dt:g} for a fit with memory, which is a chain of steps of that length, found {dt:g}; "
            "leave dt out, or fit data with that dt."
        )
