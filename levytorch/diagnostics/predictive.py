"""Does the fitted process predict several steps ahead: its paths from observed states, beside what happened.

One step can be right and ten wrong: steps whose size depends on that of the step before (volatility that comes and
goes) may have the law of one heavy-tailed step, but not the spread of ten independent ones. Windows of 1, 3, 10 and 30
successive pairs, and of as many as the data has 60 windows of, are compared with paths of the fit from the same state
over the same times. The rank of an observed displacement among those of its paths is uniform when the model is true,
whatever the states, because each is judged given where it began; windows that share no pair are independent, and how
those of different lengths depend on each other is seen from the blocks of 30 pairs that hold them. Windows begin at
random: at regular places they would meet the same minutes of every hour. That the coefficients were fitted to the same
data makes the test a little cautious. The law of a path is that of the fit: coefficients frozen over each step, or
followed along it by short Euler steps.

The longest stretches of the data show whether the fit stays where the data stays: see `levytorch.diagnostics.range`.

Lost tails: windows whose steps all lie in the core |dx - mu| < CT (or TRT) are compared with paths of which the same is
true.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data import Transitions
from levytorch.diagnostics.chain import Chain, follows, starts_within, through_everywhere
from levytorch.diagnostics.components import Check, chi_squared_sf, legendre, p_text, period_of, wrapped
from levytorch.diagnostics.paths import coefficients_of, steps_of_paths
from levytorch.diagnostics.range import RangeCheck, check_range
from levytorch.diagnostics.sample import Region, subsample
from levytorch.diagnostics.step_size import Skipped
from levytorch.likelihood.tail import center_of
from levytorch.spaces import space_of
from levytorch.spaces.states import lengths_of
from levytorch.training.inputs import FittedMemory

HORIZONS = (1, 3, 10, 30)
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_BLOCK = 128  # neighbours drawn together
_MOST = 480  # blocks
_FEWEST = 40
_COPIES = 9  # paths beside each window
_SUBSTEPS = 5  # Euler steps within a step, where coefficients are followed along it
_STATES = 6  # bins of x in the figure
_WINDOWS = 60  # of the longest horizon
_LONGEST, _LONGER = 1000, 1.3  # steps of that horizon, and by how much it must exceed the others
_PATHS = 30_000  # steps of all windows of the longest horizon
_GROUPS = 20  # of windows in the order of time, left out one by one for an error
_SPREAD, _OTHER = (1,), (0, 2, 3)  # rows of the components


class Windows(NamedTuple):
    """x: where each of n windows begins; dt, center: of dx in each of its k steps, (n, k[, d]); moved: over all of
    it, (n[, d]); block: which block of neighbours it belongs to; speed: the modulation in each of its steps, (n, k);
    means: of the sizes of past steps at its begin, (n, number of half-lives), of a fit with memory, else None."""

    x: Tensor
    dt: Tensor
    center: Tensor
    moved: Tensor
    block: Tensor
    speed: Tensor
    means: Tensor | None

    def of(self, rows: Tensor) -> Windows:
        return Windows._make(None if part is None else part[rows] for part in self)


def windows_of(
    head: Head, data: Chain, region: Region, lengths: Sequence[int], most: int, generator: torch.Generator
) -> dict[int, Windows]:
    """Windows of each length in at most `most` blocks as long as the longest.

    Runs of pairs that follow each other inside the region are cut into blocks, with random gaps between them. A block
    holds windows of each length that share no pair with others of that length, at most three, at random places. Each is
    taken when its own steps are there, whatever came after them: what ends a run may be a lost step, and to ask for
    more would choose among the outcomes.
    """
    starts, sizes = runs_of(data, region)
    long_ = max(lengths)
    number = -(-sizes // long_)
    widest = min(long_ // 3, int(sizes.median()) // 4) if len(sizes) else 0
    # blocks of all runs: where they begin, and how much of their run is left
    within = torch.cat([torch.arange(n) for n in number.tolist()]) if len(number) else number
    gaps = torch.randint(widest + 1, (len(within),), generator=generator).cumsum(0)
    before = torch.cat([gaps.new_zeros(1), gaps])[number.cumsum(0) - number]
    offset = long_ * within + gaps - before.repeat_interleave(number)
    begin, left = starts.repeat_interleave(number) + offset, sizes.repeat_interleave(number) - offset
    chosen = torch.randperm(len(begin), generator=generator)[:most].sort().values
    out = {}
    for k in lengths:
        each = max(1, min(3, long_ // k))
        places = torch.randint(long_ - each * k + 1, (len(chosen), each), generator=generator).sort(1).values
        places = places + k * torch.arange(each)
        block, column = torch.nonzero(left[chosen, None] >= places + k).T
        at = begin[chosen[block]] + places[block, column]
        inside = starts_within(head, data.x[at])
        out[k] = _cut(data, at[inside], k, block[inside])
    return out


def runs_of(data: Transitions, region: Region) -> tuple[Tensor, Tensor]:
    """Where runs of pairs that follow each other inside the region begin, and how many pairs they have."""
    inside = region.labels(data.deviation, data.dt) == 0
    linked = follows(data) & inside
    linked[1:] &= inside[:-1]
    starts = torch.nonzero(~linked).reshape(-1)
    sizes = torch.diff(starts, append=torch.tensor([len(data)]))
    good = inside[starts]
    return starts[good], sizes[good]


def longest_horizon(data: Transitions, region: Region) -> int | None:
    """As many steps as there are 60 windows of, if that is clearly more than the usual lengths."""
    sizes = runs_of(data, region)[1]
    low, high = 0, _LONGEST
    while low < high:  # the number of windows falls with their length
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int((sizes // middle).sum()) >= _WINDOWS else (low, middle - 1)
    return low if low > _LONGER * max(HORIZONS) else None


def _cut(data: Chain, begins: Tensor, k: int, block: Tensor) -> Windows:
    rows = begins[:, None] + torch.arange(k)
    center = center_of(data.mu, data.dt[rows], uniform_dt=data.uniform_dt)
    moved = data.displacement[rows].sum(1)
    return Windows(data.x[begins], data.times(rows), center, moved, block, data.speeds(rows), data.means_before(begins))


def paths_of(
    head: Head,
    windows: Windows,
    region: Region,
    substeps: int,
    copies: int,
    generator: torch.Generator,
    memory: FittedMemory | None = None,
) -> tuple[Tensor, Tensor]:
    """Displacements (copies, n[, d]) of paths over the windows, and whether all their steps lie in the region."""
    n = len(windows.x)
    x, center = (part.repeat((copies, *[1] * (part.dim() - 1))) for part in (windows.x, windows.center))
    dt, speed = windows.dt.repeat(copies, 1), windows.speed.repeat(copies, 1)
    means = None if windows.means is None else windows.means.repeat(copies, 1)
    moved, kept = torch.zeros_like(x), torch.ones(len(x), dtype=torch.bool)
    steps = steps_of_paths(space_of(head), coefficients_of(head), x, dt, speed, substeps, generator, memory, means)
    for j, step in enumerate(steps):
        moved += step.dx
        kept &= region.labels(lengths_of(step.dx - center[:, j]), step.dt) == 0
    return moved.reshape(copies, n, *x.shape[1:]), kept.reshape(copies, n)


@dataclass
class PredictiveCheck(Check):
    """p_value: of all lengths beyond one step together and of the range; parts: of each length; ratio: spread of the
    paths (between their quartiles) over that of the data, ratio_std its standard error; windows: how many there are of
    each length; range: of the states over long stretches, where there are any."""

    p_value: float
    parts: dict[int, float]
    ratio: dict[int, float]
    ratio_std: dict[int, float]
    windows: dict[int, int]
    arrays: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    range: RangeCheck | None = None

    def metrics(self, name: str) -> dict[str, Any]:
        out = self.numbers(name, "p_value")
        tables: dict[str, dict[int, Any]] = {
            "p": self.parts, "spread": self.ratio, "spread_std": self.ratio_std, "windows": self.windows,
        }  # fmt: skip
        out |= {f"{name}_{what}_{k}": table[k] for k in self.parts for what, table in tables.items()}
        spread = {} if self.range is None else asdict(self.range)
        return out | {f"{name}_range_{field}": value for field, value in spread.items()}

    def alarms(self, name: str, rejected: bool) -> dict[str, str]:
        if not rejected:
            return {}
        return {
            name: f"the fit does not predict several steps ahead ({p_text(self.p_value)}): {self.sentence()}; find the "
            "cause before you use forecasts or values."
        }

    def lines(self, rejected: Collection[str]) -> list[str]:
        shown = ", ".join(f"{k} step{'s' * (k > 1)} {self.ratio[k]:.2f} +- {self.ratio_std[k]:.2f}" for k in self.parts)
        out = [f"Several steps ahead: {p_text(self.p_value)}; spread of the fit over that of the data: {shown}"]
        if self.range is not None:
            out.append(
                f"Range of the states over {self.range.steps} steps: {p_text(self.range.p_value)}; that of the fit "
                f"over that of the data {self.range.ratio:.2f} +- {self.range.ratio_std:.2f}"
            )
        return out

    def sentence(self) -> str:
        """What is predicted worst, in words."""
        k = min(self.parts, key=lambda k: (self.parts[k], -abs(math.log(max(self.ratio[k], 1e-9)))))
        if self.range is not None and self.range.p_value < self.parts[k]:
            steps, ratio = self.range.steps, self.range.ratio
            return f"over {steps} steps the states of the fit range over {ratio:.2f} times as much as the data's"
        return f"the {k}-step spread of the fit is {self.ratio[k]:.2f} times the data's"


def check_predictions(
    head: Head,
    transitions: Chain,
    region: Region,
    *,
    exact: bool,
    covariance: Tensor | None = None,
    seed: int = 0,
) -> PredictiveCheck | Skipped:
    """exact: coefficients vary along a step; covariance: of the parameters, for the range."""
    core = region.core()
    everything = through_everywhere(transitions)
    data = subsample(everything, 4 * _MOST * max(HORIZONS), seed, _BLOCK)
    generator = torch.Generator().manual_seed(seed)
    found = windows_of(head, data, core, HORIZONS, _MOST, generator)
    if (longest := longest_horizon(everything, core)) is not None:
        most = max(_WINDOWS, min(_MOST, _PATHS // longest))
        found |= windows_of(head, everything, core, (longest,), most, generator)
    components: dict[int, Tensor] = {}
    ratio: dict[int, float] = {}
    ratio_std: dict[int, float] = {}
    number: dict[int, int] = {}
    arrays: dict[str, np.ndarray] = {}
    for k, windows in found.items():
        if len(windows.x) < _FEWEST:
            continue
        windows, paths = _beside(head, windows, core, _SUBSTEPS if exact else 1, generator, data.memory)
        if len(windows.x) < _FEWEST:
            continue
        size, sizes = (windows.moved, paths) if head.dim == 1 else (windows.moved.norm(dim=1), paths.norm(dim=2))
        rank = _rank(wrapped(head, windows.x)[:, 0])
        number[k] = len(size)
        components[k] = _components(size, sizes, rank, windows.block, generator)
        ratio[k], ratio_std[k] = _ratio(size, sizes, windows.block)
        arrays |= {f"{name}_{k}": values for name, values in _figure(head, windows.x, size, sizes, rank).items()}
    if not components:
        return Skipped(f"there are fewer than {_FEWEST} windows of pairs inside the region; use more data")
    parts = {k: _combined([c], [number[k]]) for k, c in components.items()}
    # one step is what was fitted: it has a test of its own, and would make this one sleepy
    several = [k for k in components if k > 1 and k != longest] or list(components)
    together = [_combined([components[k] for k in several], [number[k] for k in several])]
    together += [parts[longest]] if longest in parts else []
    wide = None
    if region.whole and region.removed is None:
        wide = check_range(head, everything, exact=exact, covariance=covariance, generator=generator)
        together += [] if wide is None else [wide.p_value]
    arrays |= {"horizons": np.array(list(parts)), "levels": np.array(LEVELS), "p_value": np.array(of_several(together))}
    arrays["period"] = period_of(head)
    return PredictiveCheck(of_several(together), parts, ratio, ratio_std, number, arrays, wide)


def of_several(p: Sequence[float]) -> float:
    """The p-value of the smallest of several (Sidak)."""
    least = min(p)
    return float(-np.expm1(len(p) * np.log1p(-least))) if least < 1.0 else 1.0


def _combined(components: list[Tensor], number: list[int]) -> float:
    """The p-value of some lengths: of their spreads, and of all else, the smaller one paid for twice.

    components: (4, blocks) sums over the windows of one length; within a length they have variance one per window and
    no correlation.
    """
    rows = torch.stack(components)  # (lengths, 4, blocks)
    counts = torch.tensor(number, dtype=torch.float64)
    p = []
    for kinds in (_SPREAD, _OTHER):
        statistic = 0.0
        for kind in kinds:
            variance = rows[:, kind] @ rows[:, kind].T
            scale = variance.diagonal().clamp(min=1e-300).rsqrt()
            size = counts.sqrt()
            variance = variance * (scale * size).outer(scale * size)
            total = rows[:, kind].sum(1)
            statistic += float(total @ torch.linalg.solve(variance, total))
        p.append(chi_squared_sf(statistic, len(kinds) * len(rows)))
    return of_several(p)


def _beside(
    head: Head,
    windows: Windows,
    region: Region,
    substeps: int,
    generator: torch.Generator,
    memory: FittedMemory | None,
) -> tuple[Windows, Tensor]:
    """_COPIES paths beside every window; where tails were lost more are made, and windows without enough left out."""
    tries = 1 if region.whole and region.removed is None else 2
    paths, kept = paths_of(head, windows, region, substeps, tries * _COPIES, generator, memory)
    if tries == 1:
        return windows, paths
    first = kept.double().argsort(dim=0, descending=True, stable=True)[:_COPIES]
    enough = torch.nonzero(kept.sum(0) >= _COPIES).reshape(-1)
    index = first if paths.dim() == 2 else first.unsqueeze(-1).expand(-1, -1, paths.shape[2])
    return windows.of(enough), paths.gather(0, index)[:, enough]


def _rank(values: Tensor) -> Tensor:
    return (values.argsort().argsort().double() + 0.5) / len(values)


def _components(size: Tensor, paths: Tensor, rank: Tensor, block: Tensor, generator: torch.Generator) -> Tensor:
    """Location, spread, and spread that depends on the state, of the ranks: (4, blocks), summed over windows."""
    below = (paths < size).sum(0).double()
    u = (below + torch.rand(len(size), generator=generator, dtype=torch.float64)) / (len(paths) + 1)
    phi = legendre(u, 2)
    waves = [math.sqrt(2.0) * turn(2 * math.pi * rank) for turn in (torch.cos, torch.sin)]
    rows = torch.stack([phi[0], phi[1], phi[1] * waves[0], phi[1] * waves[1]])
    return torch.zeros((len(rows), _MOST), dtype=torch.float64).index_add_(1, block, rows)


def _spread(values: Tensor) -> Tensor:
    """Between the quartiles, along the last axis."""
    low, high = torch.quantile(values, torch.tensor([0.25, 0.75], dtype=torch.float64), dim=-1)
    return high - low


def _ratio(size: Tensor, paths: Tensor, block: Tensor) -> tuple[float, float]:
    """Of the spreads, with a standard error that leaves out a twentieth of the time after the other.

    So what lasts longer than a window is part of the error, other than by the scatter of the paths alone.
    """
    group = block * _GROUPS // (int(block.max()) + 1)
    groups = [g for g in range(_GROUPS) if bool((group == g).any())]

    def log_ratio(chosen: Tensor) -> float:
        return math.log(
            max(float(_spread(paths[:, chosen]).mean()), 1e-300) / max(float(_spread(size[chosen])), 1e-300)
        )

    ratio = math.exp(log_ratio(torch.ones_like(group, dtype=torch.bool)))
    if len(groups) < 2:
        return ratio, math.inf
    without = torch.tensor([log_ratio(group != g) for g in groups], dtype=torch.float64)
    return ratio, ratio * float(without.std(correction=0)) * math.sqrt(len(groups) - 1)


def _figure(head: Head, x: Tensor, size: Tensor, paths: Tensor, rank: Tensor) -> dict[str, np.ndarray]:
    """Quantiles of the data, of the paths and their scatter; the same of the spread in bins of x."""
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    theirs = torch.quantile(paths, levels, dim=1)
    bins = max(1, min(_STATES, len(size) // 40))
    which = (rank * bins).long().clamp(max=bins - 1)
    folded = wrapped(head, x)[:, 0] + head.bounds[0][0]
    spreads = [(_spread(size[which == j]), _spread(paths[:, which == j])) for j in range(bins)]
    return {
        "data": torch.quantile(size, levels).numpy(),
        "paths": theirs.mean(1).numpy(),
        "paths_std": theirs.std(1).numpy(),
        "x": np.array([float(folded[which == j].mean()) for j in range(bins)]),
        "spread_data": np.array([float(own) for own, _ in spreads]),
        "spread_paths": np.array([float(part.mean()) for _, part in spreads]),
        "spread_std": np.array([float(part.std()) for _, part in spreads]),
    }
