"""How fast theta and TCF find each other (the paper leaves the convergence of its iteration open).

    python -m benchmarks.paper contraction                 benchmarks/results/contraction.csv, a row per setting

One round fits theta at a held TCF and takes the TCF that this theta asks for. Near the fixed point a round multiplies
the distance to it by

    kappa = grad R . J^-1 (s_tail - s_core),

R(theta) the tail mass of the law, J the information of the mixed likelihood (minus its second derivatives) and s_tail,
s_core the mean scores of the two parts (docs/method.md). `measured` runs the library's own objective, masses and TCF;
`derived` evaluates the formula by quadrature, from the density alone. The data is the law itself: nodes of a
quadrature, weighted by the probability around them, so that nothing is left to chance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.style import picture
from benchmarks.paper.tables import markdown
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.figures.base import COLORS, panels
from levytorch.files import write_csv
from levytorch.law import log_density, score, tail_probability
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.objective import Evaluation, FullBatchObjective, observed_slope
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import TailCorrection, TailMasses
from levytorch.untrusted import read_csv

RESULTS = Path(__file__).parents[1] / "results" / "contraction.csv"
TRUTH = (5.0, 4.0, 3.0)  # (b, D_o, D_f) of the paper's constant examples
_FAR = 1e25  # where the tail ends that nothing was removed of
_WIDTH = 1e-4  # relative, of the central differences of a score
_ROUNDS, _NEWTON = 400, 60
TITLE = "Convergence of the TCF"
_TEXT = """\
The paper leaves open whether its iteration of coefficients and TCF converges. One round fits theta at a fixed TCF and
then computes the TCF of that theta. Near the fixed point one round multiplies the distance by kappa = ∇R · J⁻¹
(s_tail − s_core), derived in [method.md](method.md#lost-tails). The iteration converges if kappa is below 1. If
nothing was removed beyond TRT, kappa is a squared correlation and always below 1. *Measured* is the ratio of the last
two changes of the TCF in the iteration, *derived* the formula. (b, D_o, D_f) = (5, 4, 3), and the law of a
step is frozen, which is exact for constants. Sums over data are replaced by integrals over the law, so that there is no
noise."""


@dataclass(frozen=True)
class Setting:
    """dropped: the share of the steps between CT and TRT that is lost; TRT = inf: nothing is removed beyond."""

    alpha: float = 0.3
    CT: float = 8.0
    dt: float = 1 / 40
    dropped: float = 0.5
    TRT: float = 20.0
    learned: bool = False  # alpha, too


@dataclass(frozen=True)
class Contraction:
    """kappa measured and derived, the tail mass R of the truth, the TCF at the fixed point, rounds to 1e-6 of it."""

    measured: float
    derived: float
    R: float
    tcf: float
    rounds: int
    D_f: float


def settings() -> list[Setting]:
    """The paper's setting, and one thing changed at a time."""
    base = Setting()
    out = [replace(base, alpha=alpha) for alpha in (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)]
    out += [replace(base, CT=CT) for CT in (1.0, 2.0, 4.0, 12.0)]
    out += [replace(base, dt=dt) for dt in (1 / 400, 1 / 10, 1 / 4)]
    out += [replace(base, dropped=share) for share in (0.0, 0.9)]
    out += [replace(base, TRT=TRT) for TRT in (100.0, np.inf)]
    return [*out, replace(base, learned=True), replace(base, learned=True, TRT=np.inf)]


@functools.cache
def nodes(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Distances y >= 0 from the center (n,), the probability around +y and -y together, and which lie beyond CT."""
    points, weights = np.polynomial.legendre.leggauss(12)
    width = np.sqrt(2 * TRUTH[1] * setting.dt)
    inner = np.linspace(0, np.arcsinh(setting.CT / (0.3 * width)), 25)
    outer = np.linspace(np.log(setting.CT), np.log(min(setting.TRT, _FAR)), 13 if setting.TRT < 1e3 else 61)
    y, dy = [], []
    for edges, back, slope in ((inner, np.sinh, np.cosh), (outer, np.exp, np.exp)):
        scale = 0.3 * width if back is np.sinh else 1.0
        half = np.diff(edges)[:, None] / 2
        s = (edges[:-1, None] + half * (points + 1)).ravel()
        y.append(scale * back(s))
        dy.append((half * weights).ravel() * scale * slope(s))
    distance = torch.from_numpy(np.concatenate(y))
    p = log_density(distance, 0.0, *TRUTH[1:], setting.alpha, setting.dt, method="contour").exp()
    beyond = torch.arange(len(distance)) >= len(y[0])
    return distance, 2 * p * torch.from_numpy(np.concatenate(dy)), beyond


def objective_of(setting: Setting) -> FullBatchObjective:
    """The library's objective of the law itself, half of every weight at +y and half at -y."""
    y, weight, beyond = nodes(setting)
    keep = torch.where(beyond, (1 - setting.dropped) * weight, weight)
    mu, dt = TRUTH[0] * setting.dt, torch.tensor([setting.dt], dtype=torch.float64)

    def batch(chosen: Tensor) -> Batch:
        dx = torch.cat([mu + y[chosen], mu - y[chosen]])
        half = 0.5 * keep[chosen]
        return Batch(torch.zeros_like(dx), dx, dt.expand(len(dx)), torch.cat([half, half]))

    main, tail = batch(torch.ones_like(beyond)), batch(beyond)
    alpha = AlphaSpec("constant" if setting.learned else "fixed", setting.alpha)
    head = FourierHead(1, alpha=alpha)
    head.set_constants(*TRUTH)
    bins = StateBins(head, dt)
    law = FrozenLaw("contour")
    counts, tail_counts = (part.weight.sum().reshape(1) for part in (main, tail))
    threshold = torch.tensor([setting.CT], dtype=torch.float64)
    masses = TailMasses(
        bins, torch.tensor(mu, dtype=torch.float64), False, threshold, None, counts, tail_counts, law
    )  # fmt: skip
    full = FullBatch(main, tail, float(counts), float(tail_counts))
    return FullBatchObjective(head, law, bins, full, masses, method="tcf")


def fitted(objective: FullBatchObjective, tcf: float) -> Evaluation:
    """theta that maximises the likelihood mixed by this TCF, held: Newton's steps with observed second derivatives."""
    for _ in range(_NEWTON):
        found = objective.evaluate()
        objective.add_hessian(found)
        held = replace(found, tcf=tcf, tcf_gradient=None)
        g, J = objective.gradient(held), -observed_slope(objective, held)
        step = torch.linalg.solve(J, g)
        if float(g @ step) < 1e-24:
            break
        step = step * min(1.0, 0.5 / float(step.abs().max()))
        objective.head.set_flat(held.theta + step)
    return replace(found, tcf=tcf)


def measured(setting: Setting, until: float = 1e-11) -> tuple[float, list[float], FullBatchObjective]:
    """The ratio of the last two changes of the TCF that are not rounding, all TCFs, and the objective at the end."""
    objective = objective_of(setting)
    masses, correction = objective.masses, TailCorrection()
    assert masses is not None
    lost = setting.dropped > 0 or setting.TRT < np.inf
    values = [0.0 if lost else masses.R_theta(objective.head) / 2]
    ratio = np.nan
    for _ in range(_ROUNDS):
        fitted(objective, values[-1])
        correction.update(masses.R_theta(objective.head), masses.R_sample)
        values.append(correction.tcf)
        changes = np.diff(values[-3:])
        if len(changes) == 2 and abs(changes[1]) > 1e-8 * values[0 if not lost else -1]:
            ratio = float(changes[1] / changes[0])
        if abs(changes[-1]) < until:
            break
    return ratio, values, objective


def derived(setting: Setting, theta: tuple[float, float, float]) -> float:
    """kappa at (D_o, D_f, alpha), from the density and the tail mass alone (b decouples: its score is odd in y)."""
    y, weight, beyond = nodes(setting)
    free = 3 if setting.learned else 2
    at = torch.tensor(theta, dtype=torch.float64)

    def scores(D_o: Tensor, D_f: Tensor, alpha: Tensor) -> Tensor:
        s = score(y, 0.0, D_o, D_f, alpha, setting.dt, method="contour", wrt_alpha=True)
        assert s.alpha is not None
        return torch.stack([s.D_o, s.D_f, s.alpha])[:free]

    with torch.enable_grad():
        leaf = at.clone().requires_grad_()
        R = tail_probability(setting.CT, 0.0, 0.0, *leaf, setting.dt)
        grad_R = torch.autograd.grad(R, leaf)[0][:free]
    r = R.detach()
    mass = torch.where(beyond, weight[beyond].sum(), weight[~beyond].sum())
    share = torch.where(beyond, r, 1 - r) * weight / mass  # of the mixed law at its fixed point
    J = torch.empty((free, free), dtype=torch.float64)
    for i in range(free):
        move = torch.zeros(3, dtype=torch.float64)
        move[i] = _WIDTH * at[i]
        J[i] = -((scores(*(at + move)) - scores(*(at - move))) / (2 * move[i])) @ share
    s = scores(*at)
    tail, core = (s[:, part] @ weight[part] / weight[part].sum() for part in (beyond, ~beyond))
    return float(grad_R @ torch.linalg.solve(0.5 * (J + J.T), tail - core))


def contraction(setting: Setting, until: float = 1e-11) -> Contraction:
    """Both numbers of one setting; until: the change of the TCF at which the iteration ends."""
    ratio, values, objective = measured(setting, until)
    with torch.no_grad():
        c = objective.head(torch.zeros(1, dtype=torch.float64))
    end = values[-1]
    near = [k for k, v in enumerate(values) if abs(v - end) <= 1e-6 * max(end, values[0])]
    theta = (float(c.D_o), float(c.D_f), float(c.alpha))
    _, weight, beyond = nodes(replace(setting, TRT=np.inf))
    return Contraction(ratio, derived(setting, theta), float(weight[beyond].sum()), end, near[0], theta[1])


COLUMNS = ("alpha", "CT", "dt", "dropped", "TRT", "learned", "R", "TCF", "D_f", "rounds", "measured", "derived")


def study(out: Path = RESULTS) -> Path:
    """A row per setting."""
    rows = []
    for one in settings():
        found = contraction(one)
        numbers = (found.R, found.tcf, found.D_f, float(found.rounds), found.measured, found.derived)
        rows.append((one.alpha, one.CT, one.dt, one.dropped, one.TRT, float(one.learned), *numbers))
        print(", ".join(f"{name} {value:.6g}" for name, value in zip(COLUMNS, rows[-1])), flush=True)
    write_csv(out, dict(zip(COLUMNS, zip(*rows))))
    return out


def read_study(path: Path = RESULTS) -> Iterator[dict[str, float]]:
    """The rows of a study."""
    table = read_csv(path, COLUMNS)
    for k in range(len(table["alpha"])):
        yield {name: float(table[name][k]) for name in COLUMNS}


# -- on the page -----------------------------------------------------------------------------------------------------
def section(results: Path, out: Path) -> list[str]:
    """The blocks of the page; none where there is no table."""
    file = results / RESULTS.name
    if not file.is_file():
        return []
    rows, shown = list(read_study(file)), []
    for row in [one for one in rows if (one["CT"], one["dt"], one["dropped"], one["TRT"]) == (8.0, 1 / 40, 0.5, 20.0)]:
        cells = {"alpha": "learned" if row["learned"] else f"{row['alpha']:g}", "tail mass R": f"{row['R']:.3g}"}
        cells |= {"TCF": f"{row['TCF']:.3g}", "D_f": f"{row['D_f']:.4f}", "rounds to 1e-6": f"{row['rounds']:.0f}"}
        shown.append(cells | {"measured": f"{row['measured']:.6f}", "derived": f"{row['derived']:.6f}"})
    fig, _ = _figure(rows)
    caption = "Contraction of the TCF's iteration per round: dots measured, lines derived."
    return [
        _TEXT,
        "```bash\npython -m benchmarks.paper contraction\n```",
        "The table has the paper's setting: CT 8, TRT 20, dt = 1/40, half of the tail dropped. The figure and "
        "[contraction.csv](../benchmarks/results/contraction.csv) also have others.",
        markdown(shown),
        *picture(fig, "contraction", caption, out),
    ]


def _figure(rows: list[dict[str, float]]) -> Any:
    """kappa over alpha, CT, dt, and the share that was dropped, all else as in the paper's example."""
    base = {"alpha": 0.3, "CT": 8.0, "dt": 1 / 40, "dropped": 0.5, "TRT": 20.0, "learned": 0.0}
    names = {"alpha": r"$\alpha$", "CT": "CT", "dt": r"$\Delta t$", "dropped": "share of the tail dropped"}
    fig, axes = panels(None, 4, width=2.7, height=2.7)
    for ax, (name, label) in zip(axes, names.items()):
        others = {key: value for key, value in base.items() if key != name}
        own = [row for row in rows if all(math.isclose(row[key], value) for key, value in others.items())]
        own.sort(key=lambda row: row[name])
        x = [row[name] for row in own]
        ax.plot(x, [row["derived"] for row in own], color=COLORS["D_f"], linewidth=1.5, label="derived")
        ax.plot(x, [row["measured"] for row in own], "o", color="black", markersize=4, label="measured")
        if name in ("CT", "dt"):
            ax.set_xscale("log")
            ax.set_xticks(x, [f"{v:g}" if name == "CT" else f"1/{1 / v:.0f}" for v in x], minor=False)
            ax.minorticks_off()
        ax.set_xlabel(label)
        ax.set_ylim(0, 1)
        ax.grid(alpha=0.3, linewidth=0.5)
    axes[0].set_ylabel(r"contraction per round $\kappa$")
    axes[0].legend(frameon=False, fontsize="small")
    return fig, axes
