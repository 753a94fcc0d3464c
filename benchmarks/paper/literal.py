"""Algorithm B.1 on unbiased data, in which the paper saw outliers: Examples 4.2 and 4.3, nothing removed, no TCF.

    python -m benchmarks.paper literal [replicas=12] [trajectories=100000] [steps=40000]

Independent replicas (data, start and draws) of both examples, each with two densities: an accurate one (the table:
relative 1e-9 in all tails) and the paper's windowed quadrature (Algorithms E.1 - E.3). Starts, draws and steps are
those of `paper=literal`; the gradient is Algorithm E.4's formula instead of autograd, Lightning is left out, and all
replicas take their steps side by side, which is many times as fast. Rows go to
benchmarks/results/literal_unbiased.csv, those of one example and density when they are done; what is there is not made
again.

Up to |y| = 1e5 the scores of the two densities differ by less than 1e-7 (of about one), so that the windowed one is
evaluated beyond that, and the table elsewhere.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.claims import Claim
from benchmarks.paper.collect import COEFFICIENTS, outliers
from benchmarks.paper.tables import markdown, percent
from levytorch import Dynamics, simulate, solve_value
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.coefficients.init import randomise
from levytorch.data import Transitions, make_pools
from levytorch.data.drawing import AHEAD, Drawer
from levytorch.law import score, windowed
from levytorch.policy.reference import relative_error
from levytorch.policy.rewards import CosinePower, Manufactured
from levytorch.training.engines.adam import AdamEngine

RESULTS = Path(__file__).parents[1] / "results" / "literal_unbiased.csv"
ALPHA, N_BASIS, BATCH, BETA = 0.3, 21, 100, 0.1
DENSITIES = ("accurate", "windowed")
FAR = 1e5  # |y| beyond which the windowed density has its say
KEY = ("example", "density", "trajectories", "steps", "seed")
NUMBERS = ("b", "D_o", "D_f", "V", "V_shape", "far", "flagged", "seconds")
_GRID = 512
EXAMPLES = {"4.2": 1 / 400, "4.3": 1 / 40}  # dt
TITLE = "Algorithm B.1 on unbiased data (Examples 4.2 and 4.3)"
_TEXT = """\
The paper motivates its tail correction with outliers: with unbiased data and small alpha some of its replicas failed.
This study runs the paper's Algorithm B.1 with no tail removed and no TCF: Adam, batches of 100, a moving average over
the second half of the steps, random start, clamp. Law of a step: frozen. Errors and outliers (of b/D_o/D_f/V) are as
above.

Each replica is run with an accurate density (`method="table"`) and with a windowed one, on the same data, start and
draws. **The windowed density is not the literal one of the paper**: it is Algorithms E.1 to E.3 with their printing
errors corrected (`levytorch.law.windowed`), evaluated only where |y| > 1e5. Up to there both scores differ by less than
1e-7. The paper has 400,000 trajectories; *the table has the smaller number used here*. The study therefore does not
exclude that the literal algorithms, or larger samples, produce outliers."""


class Scores:
    """d log p / d (b, D_o, D_f) of batches (n, m): (n, 3, m), by either density; counts what the windowed one did."""

    def __init__(self, density: str, dt: float, far: float = FAR) -> None:
        self.density, self.dt, self.beyond = density, dt, far
        self.far = self.flagged = 0

    def __call__(self, dx: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor) -> Tensor:
        found = score(dx, b, D_o, D_f, ALPHA, self.dt, method="table")
        rows = torch.stack([found.b, found.D_o, found.D_f], dim=-2)
        if self.density == "accurate":
            return rows
        y = dx - b * self.dt
        far = y.abs() > self.beyond
        if bool(far.any()):
            _, d_y, d_A, d_B, good = windowed.evaluate(y[far], D_o[far] * self.dt, D_f[far] * self.dt, ALPHA)
            for row, slope in zip((0, 1, 2), (d_y, d_A, d_B)):
                assert slope is not None
                rows[..., row, :][far] = (-self.dt if row == 0 else self.dt) * slope
            self.far += len(good)
            self.flagged += int((~good).sum())
        return rows


class Draws(NamedTuple):
    """What the batches of one replica hold: states within the cell and displacements, (steps, batch) each."""

    x: Tensor
    dx: Tensor


def draws(pairs: Transitions, seed: int, steps: int) -> Draws:
    """The pairs that the library's drawer hands to Algorithm B.1, step by step, with nothing in a tail pool."""
    drawer = Drawer(make_pools(pairs, None, None), BATCH, "bernoulli", seed)
    x, dx = (torch.empty((steps, BATCH), dtype=torch.float64) for _ in range(2))
    for step in range(steps):
        batch = drawer.draw(step, 0.0)
        x[step], dx[step] = torch.remainder(batch.x, 2 * math.pi), batch.dx
    return Draws(x, dx)


def adam(data: Sequence[Draws], seeds: Sequence[int], density: str, dt: float) -> tuple[list[FourierHead], Scores]:
    """A head per replica at the moving average over the second half of its steps, as Algorithm B.1 returns it.

    Adam is the same for every component, so that the thetas of all replicas are one parameter, (replicas, 3 K).
    """
    heads = []
    for seed in seeds:
        heads.append(FourierHead(N_BASIS, positivity_link="clamp", alpha=AlphaSpec("fixed", ALPHA)))
        randomise(heads[-1], torch.Generator().manual_seed(seed))
    steps, n = data[0].x.shape[0], len(heads)
    engine = AdamEngine(max_steps=steps, window=steps // 2)
    theta = torch.nn.Parameter(torch.stack([head.flat() for head in heads]))
    optimizer = torch.optim.Adam([theta], lr=engine.lr, betas=(engine.beta1, engine.beta2), eps=engine.eps)
    scores, total = Scores(density, dt), torch.zeros((n, 3 * N_BASIS), dtype=torch.float64)
    _, floor_o, floor_f = (link.floor for link in heads[0].links)
    with torch.no_grad():
        for first in range(0, steps, AHEAD):  # the functions at all states that the next steps draw, at once
            x = torch.stack([one.x[first : first + AHEAD] for one in data], dim=1)  # (AHEAD, n, BATCH)
            dx = torch.stack([one.dx[first : first + AHEAD] for one in data], dim=1)
            design = heads[0].basis.rows(x.reshape(-1)).reshape(N_BASIS, *x.shape).permute(1, 2, 0, 3).contiguous()
            for k in range(len(x)):
                phi = design[k]  # (n, K, BATCH)
                b, D_o, D_f = (theta.reshape(n, 3, N_BASIS) @ phi).unbind(1)
                s = scores(dx[k], b, D_o.clamp(min=floor_o), D_f.clamp(min=floor_f))  # gradient straight through
                theta.grad = -(s @ phi.transpose(1, 2)).reshape(n, -1) / BATCH
                optimizer.step()
                if first + k >= steps - engine.window:
                    total += theta
    for head, mean in zip(heads, total / engine.window):
        head.set_flat(mean)
    return heads, scores


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


def study(n: int = 12, trajectories: int = 100_000, steps: int = 40_000, out: Path = RESULTS) -> Path:
    """Whatever is missing of n replicas of both examples and densities."""
    done = {tuple(row[key] for key in KEY) for row in read_study(out)} if out.exists() else set()
    truth = Dynamics.named("variable", alpha=ALPHA)
    for name, dt in EXAMPLES.items():
        data: dict[int, Draws] = {}
        for density in DENSITIES:
            key = (name, density, str(trajectories), str(steps))
            seeds = [seed for seed in range(n) if (*key, str(seed)) not in done]
            for seed in seeds:
                if seed not in data:
                    data[seed] = draws(simulate(truth, trajectories, 40, dt, seed=seed).transitions(), seed, steps)
            if not seeds:
                continue
            began = time.perf_counter()
            heads, scores = adam([data[seed] for seed in seeds], seeds, density, dt)
            counts = {"far": scores.far, "flagged": scores.flagged}
            counts = {key: value / len(seeds) for key, value in counts.items()}  # per replica
            counts["seconds"] = round((time.perf_counter() - began) / len(seeds), 2)
            _append(out, [dict(zip(KEY, (*key, seed))) | judged(head) | counts for seed, head in zip(seeds, heads)])
    return out


def _append(out: Path, rows: list[dict[str, object]]) -> None:
    fresh = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, (*KEY, *NUMBERS), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row, flush=True)


def read_study(path: Path = RESULTS) -> list[dict[str, str]]:
    """The rows of a study, as texts."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- on the page -----------------------------------------------------------------------------------------------------
def claims(results: Path) -> list[Claim]:
    """The paper's outliers, with its own algorithm."""
    file = results / RESULTS.name
    found = []
    for (example, density), rows in _groups(read_study(file) if file.is_file() else []):
        n, size = len(rows), int(rows[0]["trajectories"])
        how = (f"Algorithm B.1, {density} density", "frozen")
        far = _outliers(rows, *COEFFICIENTS)
        said = "unbiased data: some replicas are outliers"
        found.append(Claim(example, *how, said, f"{far} of {n} at {size:,} trajectories", far > 0))
        if example == "4.3":
            far = _outliers(rows, "V")
            said = "3 of 12 value functions from unbiased data are outliers (400,000 trajectories)"
            found.append(Claim("4.2.1", *how, said, f"{far} of {n} at {size:,}", far > 0))
    return found


def _groups(rows: list[dict[str, str]]) -> list[tuple[tuple[str, str], list[dict[str, str]]]]:
    keys = list(dict.fromkeys((row["example"], row["density"]) for row in rows))
    return [(key, [row for row in rows if (row["example"], row["density"]) == key]) for key in sorted(keys)]


def _values(rows: list[dict[str, str]], name: str) -> Any:
    return np.array([float(row[name]) for row in rows])


def _outliers(rows: list[dict[str, str]], *names: str) -> int:
    return int(np.any([outliers(_values(rows, name)) for name in names], axis=0).sum())


def section(results: Path) -> list[str]:
    """The blocks of the page; none where there is no table."""
    file = results / RESULTS.name
    if not file.is_file():
        return []
    rows, shown = read_study(file), []
    for (example, density), own in _groups(rows):
        row: dict[str, Any] = {"example": example, "density": density, "replicas": len(own)}
        row |= {"trajectories": int(own[0]["trajectories"]), "steps": int(own[0]["steps"])}
        for name in (*COEFFICIENTS, "V"):
            e = _values(own, name)
            row[name] = f"{percent(np.median(e))} ({percent(e.max())})"
        row["outliers"] = "/".join(str(_outliers(own, name)) for name in (*COEFFICIENTS, "V"))
        row["windowed, flagged"] = "–"
        if density == "windowed":
            row["windowed, flagged"] = f"{_values(own, 'far').sum():,.0f}, {_values(own, 'flagged').sum():,.0f}"
        shown.append(row | {"s per replica": f"{_values(own, 'seconds').mean():.0f}"})
    text = _TEXT
    return [text, "```bash\npython -m benchmarks.paper literal\n```", markdown(shown), _closeness(rows)]


def _closeness(rows: list[dict[str, str]]) -> str:
    """How far apart the two densities leave the same replica."""
    by = {key: {row["seed"]: row for row in own} for key, own in _groups(rows)}
    parts = []
    for example in dict.fromkeys(key[0] for key in by):
        one, other = by.get((example, "accurate"), {}), by.get((example, "windowed"), {})
        both = [seed for seed in one if seed in other]
        if both:
            apart = max(abs(float(one[s][name]) - float(other[s][name])) for s in both for name in COEFFICIENTS)
            parts.append(f"{apart:.0e} ({example})")
    if not parts:
        return ""
    told = ", ".join(parts)
    return f"The same replica's errors of b, D_o and D_f differ between the two densities by at most {told}."
