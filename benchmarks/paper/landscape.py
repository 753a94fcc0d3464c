"""Figures 2 and 3: the objective in (D_o, D_f) under several TCFs, and how coefficients and TCF find each other.

The law of one step with constant coefficients knows dx alone, so that counts in bins of dx stand for the pairs; with
bins of 1/100 of the Gaussian's width the objective is exact to about 1e-6 per pair, and 1e4 bins replace 1e6 pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.collect import Array, Record, Runs
from levytorch.data import Transitions, make_pools
from levytorch.dynamics import SYSTEMS, Dynamics
from levytorch.errors import InputError
from levytorch.figures.base import COLORS, panels
from levytorch.law import log_density, tail_probability
from levytorch.likelihood.tail import tail_correction_factor
from levytorch.runs.reading import SIMULATED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 100_000  # trajectories: their data is simulated once more, which takes seconds up to here
MULTIPLES = (0.0, 0.5, 1.0, 1.5)  # of the TCF the run converged to
REACH = (0.2, 0.45)  # how far the axes go from the truth, as shares of D_o and of D_f
_FLOW = r"TCF $\leftarrow$ 0; then, until nothing moves:" + "\n" + (
    r"$\theta \leftarrow$ minimiser at this TCF" + "\n"
    r"$R_\theta \leftarrow P_\theta(|\Delta x - \mu| > \mathrm{CT})$" + "\n"
    r"TCF $\leftarrow (R_\theta - R_{sample}) / (1 - R_{sample})$"
)  # fmt: skip
_WIDTHS = 100  # bins per standard deviation of the Gaussian part
_NUMBERS = (
    *("n_trajectories", "n_steps", "dt", "substeps", "x0", "seed"),
    *("burn_in", "chains", "proposal_scale", "reach", "thinning"),
)
_CENSOR = ("TRT", "CT", "drop_tail", "seed")


def metropolis_run(runs: Runs) -> Record:
    """The run with the TCF on Metropolis data that has the most trajectories, up to `MOST`; its lowest seed."""
    chosen = runs.need("the TCF's landscape", censoring="metropolis", tail="tcf", dynamics="constant")
    plain = chosen.where(reach=None) if len(chosen.where(reach=None)) else chosen
    small = [run for run in plain if run.setting("data.n_trajectories") <= MOST] or list(plain)
    return max(small, key=lambda run: (run.setting("data.n_trajectories"), -run.setting("seed", 0)))


def landscape(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Contours of the normalised negative log-likelihood; white x: truth, red dot: minimiser of that TCF."""
    pairs, truth = pairs_of(metropolis_run(runs))
    fixed = pairs.fixed_point(truth)
    D_o, D_f, main, tail = surfaces(pairs, truth)
    values = [multiple * fixed for multiple in MULTIPLES]
    fig, axes = panels(None, len(values), width=2.8, height=3.1)
    for ax, TCF in zip(axes, values):
        height = -((1 - TCF) * main + TCF * tail)
        low, high = height.min(), height.max()
        share = (height - low) / (high - low)
        levels = np.linspace(0, 1, 21) ** 2  # denser near the minimum
        shown = ax.contourf(D_o, D_f, share.T, levels=levels, cmap="viridis_r")
        ax.contour(D_o, D_f, share.T, levels=levels[1::2], colors="white", linewidths=0.3, alpha=0.6)
        ax.plot(*truth, "x", color="white", markersize=9, markeredgewidth=2, label="truth")
        dot = {"color": "red", "markersize": 6, "markeredgecolor": "white", "label": "minimiser"}
        ax.plot(*pairs.minimiser(TCF, truth), "o", **dot)
        name = " (fixed point)" if TCF == fixed else ""
        ax.set_title(f"TCF = {TCF:.3g}{name}", fontsize="medium")
        ax.set_xlabel("$D_o$")
        ax.set_xlim(float(D_o[0]), float(D_o[-1]))
        ax.set_ylim(float(D_f[0]), float(D_f[-1]))
    axes[0].set_ylabel("$D_f$")
    axes[0].legend(fontsize="small", loc="upper right", facecolor="#333333", labelcolor="white", framealpha=0.7)
    bar = fig.colorbar(shown, ax=axes, ticks=[0, 0.25, 0.5, 0.75, 1.0], aspect=30, pad=0.01)
    bar.set_label("normalised negative log-likelihood", fontsize="small")
    return fig, axes


def surfaces(pairs: BinnedPairs, truth: tuple[float, float], n: int = 49) -> tuple[Array, Array, Array, Array]:
    """Axes D_o (n,), D_f (n,) around the truth and both pools' mean log p on their grid (n, n)."""
    D_o, D_f = (
        value * torch.linspace(1 - share, 1 + share, n, dtype=torch.float64) for value, share in zip(truth, REACH)
    )
    rows = [pairs.means(one.expand(n), D_f) for one in D_o]
    main, tail = (torch.stack([row[i] for row in rows]).numpy() for i in (0, 1))
    return D_o.numpy(), D_f.numpy(), main, tail


def adaptive(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Left and right: staircases of (TCF, D_f) and (TCF, D_o) between theta(TCF) and TCF(theta); middle: the rounds."""
    pairs, truth = pairs_of(metropolis_run(runs))
    TCFs, thetas = pairs.iterate(truth)
    grid = np.linspace(0.0, 1.4 * max(TCFs[-1], 1e-6), 25)
    path = np.array([pairs.minimiser(float(TCF), truth) for TCF in grid])
    asked = np.array([pairs.next_TCF(*theta) for theta in path])
    fig, axes = panels(None, 3, width=3.7, height=3.3)
    for ax, column, name in ((axes[0], 1, "D_f"), (axes[2], 0, "D_o")):
        color = COLORS[name]
        ax.plot(grid, path[:, column], color=color, linewidth=1.8, label=rf"$\theta$(TCF): ${name}$ fitted at this TCF")
        ax.plot(asked, path[:, column], color="black", linewidth=1.2, label=r"TCF($\theta$): what the fit asks for")
        ax.axhline(truth[column], color="black", linewidth=0.8, linestyle="--", label="truth")
        # corners: up to the fit at this TCF, then across to the TCF that this fit asks for
        x, y = np.repeat(TCFs, 2)[1:], np.repeat(thetas[:, column], 2)[:-1]
        ax.plot(x, y, color="#D55E00", linewidth=1.0, marker=".", markersize=4, label="rounds")
        ax.set_xlabel("TCF")
        ax.locator_params(axis="x", nbins=5)
        ax.set_title(f"${name}$", fontsize="medium")
        values = np.concatenate([path[:, column], [truth[column]]])
        room = 0.3 * float(np.ptp(values))
        ax.set_ylim(float(values.min()) - room / 3, float(values.max()) + 1.6 * room)
        ax.set_xlim(-0.03 * grid[-1], grid[-1])
        ax.legend(frameon=False, fontsize="x-small", loc="upper left")
    _rounds(axes[1], TCFs, thetas, truth)
    return fig, axes


def _rounds(ax: Axes, TCFs: Array, thetas: Array, truth: tuple[float, float]) -> None:
    """The diagram's content: the loop in words, and what comes of it round by round."""
    rounds = np.arange(len(TCFs))
    for column, name in ((1, "D_f"), (0, "D_o")):
        error = 100 * (thetas[:, column] / truth[column] - 1)
        ax.plot(rounds, error, "o-", color=COLORS[name], markersize=3.5, label=f"${name}$")
    ax.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xlabel("round")
    ax.set_title("error after every round (%)", fontsize="medium")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    ax.text(0.97, 0.30, _FLOW, transform=ax.transAxes, ha="right", va="center", fontsize="small", linespacing=1.6)
    ax.legend(frameon=False, fontsize="small", ncols=2)


# -- pairs counted in bins --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BinnedPairs:
    """Mean dx of every bin, and the shares of the main and of the tail pool in it; b and alpha are held fixed."""

    dx: Tensor
    main: Tensor
    tail: Tensor
    R_sample: float
    mu: float
    CT: float
    dt: float
    b: float
    alpha: float

    def means(self, D_o: Tensor, D_f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean log p of both pools at every (D_o, D_f), each of the arguments' shape."""
        log_p = log_density(
            self.dx, self.b, D_o.unsqueeze(-1), D_f.unsqueeze(-1), self.alpha, self.dt, method="table"
        )  # (..., bins)
        return log_p @ self.main, log_p @ self.tail

    def objective(self, D_o: Tensor, D_f: Tensor, TCF: float) -> Tensor:
        """Negative log-likelihood per pair, (1 - TCF) times the main pool's plus TCF times the tail pool's."""
        main, tail = self.means(D_o, D_f)
        return -((1 - TCF) * main + TCF * tail)

    def minimiser(self, TCF: float, start: tuple[float, float]) -> tuple[float, float]:
        """(D_o, D_f) at which the objective of this TCF is smallest."""
        from scipy.optimize import minimize

        def value_and_gradient(u: Array) -> tuple[float, Array]:
            theta = torch.tensor(u, dtype=torch.float64, requires_grad=True)
            D = theta.exp()
            value = self.objective(D[0], D[1], TCF)
            (gradient,) = torch.autograd.grad(value, theta)
            return float(value.detach()), gradient.numpy()

        found = minimize(
            value_and_gradient, np.log(start), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 200}
        )
        D_o, D_f = np.exp(found.x)
        return float(D_o), float(D_f)

    def next_TCF(self, D_o: float, D_f: float) -> float:
        """Algorithm E.6: the TCF that these coefficients ask for."""
        R_theta = float(tail_probability(self.CT, self.mu, self.b, D_o, D_f, self.alpha, self.dt))
        return tail_correction_factor(R_theta, self.R_sample)

    def iterate(self, start: tuple[float, float], most: int = 12, tolerance: float = 1e-6) -> tuple[Array, Array]:
        """TCF (rounds,) and (D_o, D_f) (rounds, 2) of every round, from TCF = 0 until it moves by less than this."""
        TCFs, thetas = [0.0], [self.minimiser(0.0, start)]
        for _ in range(most):
            TCFs.append(self.next_TCF(*thetas[-1]))
            thetas.append(self.minimiser(TCFs[-1], thetas[-1]))
            if abs(TCFs[-1] - TCFs[-2]) < tolerance:
                break
        return np.array(TCFs), np.array(thetas)

    def fixed_point(self, start: tuple[float, float]) -> float:
        """The TCF that its own minimiser asks for."""
        return float(self.iterate(start, 200, 1e-9)[0][-1])


def binned_pairs(
    transitions: Transitions, *, b: float, D_o: float, alpha: float, CT: float, TRT: float | None
) -> BinnedPairs:
    """Count the pairs of both pools; D_o sets the width of the bins."""
    if transitions.dim != 1 or not transitions.uniform_dt:
        raise InputError("pairs are counted in bins for one dimension and one dt only; draw this for such a run.")
    pools = make_pools(transitions, CT, TRT)
    dt, mu = float(pools.main.dt[0]), float(pools.mu)
    dx = pools.main.dx.numpy()
    width = np.sqrt(2 * D_o * dt) / _WIDTHS
    kinds, where = np.unique(np.floor((dx - mu) / width).astype(np.int64), return_inverse=True)
    main = np.bincount(where, minlength=len(kinds)).astype(float)
    centers = np.bincount(where, weights=dx, minlength=len(kinds)) / main
    tail = np.bincount(where[pools.tail.numpy()], minlength=len(kinds)).astype(float)
    counts = [torch.from_numpy(v) for v in (centers, main / main.sum(), tail / max(1.0, tail.sum()))]
    return BinnedPairs(*counts, pools.R_sample, mu, float(pools.CT), dt, b, alpha)


@functools.lru_cache(maxsize=1)  # Figures 2 and 3 are made of the same data
def pairs_of(run: Record) -> tuple[BinnedPairs, tuple[float, float]]:
    """The run's data, counted, and the true (D_o, D_f)."""
    dynamics = true_dynamics(run)
    x = torch.zeros(1, dtype=torch.float64)
    b, D_o, D_f = (float(f(x)) for f in (dynamics.b, dynamics.D_o, dynamics.D_f))
    CT = run.number("CT") if run.metrics.get("CT") is not None else 8.0
    alpha = float(run.setting("dynamics.alpha", 0.3))
    pairs = binned_pairs(transitions_of(run), b=b, D_o=D_o, alpha=alpha, CT=CT, TRT=run.metrics.get("TRT"))
    return pairs, (D_o, D_f)


def true_dynamics(run: Record) -> Dynamics:
    """The system the run's data came from: one of the paper's, by its name."""
    name, alpha = run.setting("dynamics.name"), run.setting("dynamics.alpha", 0.3)
    if run.setting("data._target_", SIMULATED[0]) not in SIMULATED or name not in SYSTEMS or not _is_number(alpha):
        raise InputError(
            f"the data of {run.path} must have been simulated from one of {', '.join(SYSTEMS)}, but is not; "
            "give another run."
        )
    return Dynamics.named(name, alpha=float(alpha))


def transitions_of(run: Record) -> Transitions:
    """The run's transitions simulated once more, censored as it says; only levytorch's own simulator is ever called."""
    from benchmarks.paper.metropolis import MetropolisData
    from levytorch.simulation import Simulated

    options = _numbers(run, "data", _NUMBERS)
    source = MetropolisData if run.setting("data.sampler") == "metropolis" else Simulated
    if isinstance(run.setting("data.censor"), Mapping):
        options["censor"] = _numbers(run, "data.censor", _CENSOR)
    return source(true_dynamics(run), **options)().transitions


def _numbers(run: Record, group: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings of a group that are given, which must be numbers."""
    found = {name: value for name in names if (value := run.setting(f"{group}.{name}")) is not None}
    for name, value in found.items():
        if not _is_number(value):
            raise InputError(f"{group}.{name} of {run.path} must be a number, but is {value!r}; give another run.")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
