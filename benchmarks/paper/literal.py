"""Algorithm B.1 on unbiased data, in which the paper saw outliers: Examples 4.2 and 4.3, nothing removed, no TCF.

    python -m benchmarks.paper literal [replicas=12] [trajectories=...] [steps=40000]

Twelve independent replicas (data, start and draws) of both examples at the paper's sizes, each with two densities: an
accurate one (the table: relative 1e-9 in all tails) and the paper's windowed quadrature (Algorithms E.1 - E.3). Steps,
draws and starts are those of `paper=literal`; the gradient is Algorithm E.4's formula instead of autograd, and
Lightning is left out, which makes a replica several times as fast. Rows are appended to
benchmarks/results/literal_unbiased.csv as they come; those that are there are not made again.

Within |y| <= 10 both densities are the same to 6e-9 in log p (`levytorch.law.windowed`), so that the windowed one is
evaluated where Algorithm E.3 rescales (|y| > 10), and the table elsewhere.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch import Dynamics, simulate, solve_value
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.coefficients.init import randomise
from levytorch.data import Transitions
from levytorch.data.batches import AHEAD, Drawer
from levytorch.data.pools import make_pools
from levytorch.law import score, windowed
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.policy.metrics import relative_error
from levytorch.policy.rewards import CosinePower, Manufactured
from levytorch.training.engines.adam import AdamEngine

RESULTS = Path(__file__).parents[1] / "results" / "literal_unbiased.csv"
ALPHA, N_BASIS, BATCH, BETA = 0.3, 21, 100, 0.1
DENSITIES = ("accurate", "windowed")
FAR = windowed.Y_MAX  # where Algorithm E.3 rescales
KEY = ("example", "density", "trajectories", "steps", "seed")
NUMBERS = ("b", "D_o", "D_f", "V", "V_shape", "far", "flagged", "seconds")
_GRID = 512


class Example(NamedTuple):
    """The step and the number of trajectories that the paper shows single replicas of."""

    dt: float
    trajectories: int


EXAMPLES = {"4.2": Example(1 / 400, 100_000), "4.3": Example(1 / 40, 400_000)}


class Scores:
    """d log p / d (b, D_o, D_f) of a batch, (3, n), by either density; counts what the windowed one was asked for."""

    def __init__(self, density: str, dt: float) -> None:
        self.density, self.dt = density, dt
        self.far = self.flagged = 0

    def __call__(self, dx: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor) -> Tensor:
        found = score(dx, b, D_o, D_f, ALPHA, self.dt, method="table")
        rows = torch.stack([found.b, found.D_o, found.D_f])
        if self.density == "accurate":
            return rows
        y = dx - b * self.dt
        far = torch.nonzero(y.abs() > FAR)[:, 0]
        if len(far):
            _, d_y, d_A, d_B, good = windowed.evaluate(y[far], D_o[far] * self.dt, D_f[far] * self.dt, ALPHA)
            assert d_y is not None
            assert d_A is not None
            assert d_B is not None
            rows[:, far] = self.dt * torch.stack([-d_y, d_A, d_B])
            self.far += len(far)
            self.flagged += int((~good).sum())
        return rows


def adam(pairs: Transitions, density: str, seed: int, steps: int) -> tuple[FourierHead, Scores]:
    """A head at the moving average over the second half of the steps, as Algorithm B.1 returns it."""
    pools = make_pools(pairs, None, None)
    head = FourierHead(N_BASIS, positivity_link="clamp", alpha=AlphaSpec("fixed", ALPHA))
    randomise(head, torch.Generator().manual_seed(seed))
    engine = AdamEngine(max_steps=steps, window=steps // 2)
    optimizer = engine.optimizer(Likelihood(head, FrozenLaw("table")))
    drawer, scores = Drawer(pools, BATCH, "bernoulli", seed), Scores(density, float(pairs.dt[0]))
    theta, total = head.theta, torch.zeros_like(head.theta.detach())
    floors = [link.floor for link in head.links]
    with torch.no_grad():
        for step in range(steps):
            if step % AHEAD == 0:  # the functions at all states that the next steps draw, at once
                drawn = [drawer.draw(step + k, 0.0) for k in range(AHEAD)]
                design = head.basis.rows(torch.cat([batch.x for batch in drawn])).reshape(N_BASIS, AHEAD, BATCH)
            k = step % AHEAD
            phi = design[:, k]
            b, D_o, D_f = theta.reshape(3, N_BASIS) @ phi
            s = scores(drawn[k].dx, b, D_o.clamp(min=floors[1]), D_f.clamp(min=floors[2]))  # gradient straight through
            theta.grad = -(s @ phi.T).reshape(-1) / BATCH
            optimizer.step()
            if step >= steps - engine.window:
                total += theta
        head.set_flat(total / engine.window)
    return head, scores


def judged(head: FourierHead) -> dict[str, float]:
    """Relative L2 errors of b, D_o, D_f over the cell, of V (beta = 0.1, V = cos^3(2x)) and of V without its mean."""
    truth = Dynamics.named("variable", alpha=ALPHA)
    x = 2 * math.pi * (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
    with torch.no_grad():
        found = head(x)
    out = {name: relative_error(getattr(found, name), getattr(truth, name)(x)) for name in ("b", "D_o", "D_f")}

    def of(name: str):
        return lambda at: getattr(head(at), name).detach()

    recovered = Dynamics(of("b"), of("D_o"), of("D_f"), ALPHA)
    V, true = solve_value(recovered, Manufactured(CosinePower(), truth, BETA), BETA)(x), CosinePower()(x)
    return out | {"V": relative_error(V, true), "V_shape": relative_error(V - V.mean(), true - true.mean())}


def replicas(name: str, seed: int, trajectories: int, steps: int, wanted: list[str]) -> Iterator[dict[str, object]]:
    """A row per density, of the same data, start and draws."""
    truth = Dynamics.named("variable", alpha=ALPHA)
    pairs = simulate(truth, trajectories, 40, EXAMPLES[name].dt, seed=seed).transitions()
    for density in wanted:
        began = time.perf_counter()
        head, scores = adam(pairs, density, seed, steps)
        seconds = time.perf_counter() - began
        counts = {"far": scores.far, "flagged": scores.flagged, "seconds": round(seconds, 1)}
        yield dict(zip(KEY, (name, density, trajectories, steps, seed))) | judged(head) | counts


def study(n: int = 12, trajectories: int | None = None, steps: int = 40_000, out: Path = RESULTS) -> Path:
    """Whatever is missing of n replicas of both examples and densities, one after the other."""
    done = {tuple(row[key] for key in KEY) for row in read_study(out)} if out.exists() else set()
    for seed in range(n):
        for name, example in EXAMPLES.items():
            size = trajectories or example.trajectories
            open_ = [one for one in DENSITIES if (name, one, str(size), str(steps), str(seed)) not in done]
            for row in replicas(name, seed, size, steps, open_) if open_ else ():
                fresh = not out.exists()
                with out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, (*KEY, *NUMBERS), lineterminator="\n")
                    if fresh:
                        writer.writeheader()
                    writer.writerow(row)
                print(row, flush=True)
    return out


def read_study(path: Path = RESULTS) -> list[dict[str, str]]:
    """The rows of a study, as texts."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
