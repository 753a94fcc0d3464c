"""Recovery: the coefficients a fit has found, with their uncertainty; what is saved, loaded, evaluated and forecast."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from levytorch import files
from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.clock import Modulation
from levytorch.coefficients.head import KNOWABLE, NO_JUMPS
from levytorch.coefficients.layout import ISOTROPIC
from levytorch.convert import (
    choice,
    number_within,
    path_of,
    positive_number,
    real_array,
    real_number,
    real_tensor,
    seed_of,
    shown,
    switch,
    whole_number,
)
from levytorch.data.frames import frame_of
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, printable, reason
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.laws import Law, check_law
from levytorch.plots import plotted
from levytorch.simulation import simulate
from levytorch.training.blocks import Blocks
from levytorch.training.fit_report import Estimate, Reported, coefficient_rows, head_in_words
from levytorch.training.inputs import FittedMemory, fitted_memory, modulation_of
from levytorch.training.memory import simulate_with_memory
from levytorch.training.noise import observed as with_errors
from levytorch.training.resampling import FEW, REPLICAS, Replicas, bootstrap, robust_covariances
from levytorch.training.stored import stored_covariance, stored_head, stored_metrics, stored_theta
from levytorch.untrusted import load_tensors

if TYPE_CHECKING:
    from levytorch.data import Trajectories, Transitions
    from levytorch.data.lattice import Lattice

FORMAT = 1
_OWN = "own"  # the key under which a file names a head that it does not describe
KINDS = ("fisher", "robust", "bootstrap")
LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # of a forecast
ArrayLike = float | list[float] | np.ndarray | Tensor


@dataclass
class Recovery(Reported):
    """The recovered coefficients b(x), D_o(x), D_f(x) and alpha, in the units of the data. `recover` returns it.

    Ask it for values (`found.b(x)`), errors (`found.std(x)`, `found.conf_int(x)`), a table (`found.summary()`), a
    figure (`found.plot()`), forecasts, and simulated paths. `converged`, `log_likelihood`, `nobs`, `aic` and `bic`
    describe the fit.

    Args:
        head: the module that gives the coefficients.
        tcf: the tail correction factor; 0 without one.
        log_likelihood: of all pairs.
        converged: whether the likelihood reached its maximum.
        covariance: of the parameters (P, P); None if the engine gives none.
        metrics: plain numbers and strings about the fit.
        history: one row per step of the fit.
        shift: (P,) how far the corrected or simulated law moved the parameters from the frozen law's maximum.
        blocks: the data of the fit, for errors that are computed from them; not saved.
        own_law: a law of your own that was fitted; not saved.
        replicas: bootstrap replicas that were computed.

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> found = recover(simulate(Dynamics.named("constant"), 500, 40, 1 / 40), alpha=0.3, n_basis=1, law="frozen")
        >>> found.converged, abs(float(found.b(0.0)) - 5.0) < 3 * float(found.std(0.0)[0])
        (True, True)
    """

    head: Head
    tcf: float = 0.0
    log_likelihood: float = float("nan")
    converged: bool = True
    covariance: Tensor | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    shift: Tensor | None = field(default=None, repr=False)
    blocks: Blocks | None = field(default=None, repr=False, compare=False)
    own_law: Law | None = field(default=None, repr=False, compare=False)
    replicas: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # computed once

    # -- coefficients -------------------------------------------------------------------------------------------------
    def coefficients(self, x: ArrayLike) -> Coefficients:
        """All four at x; alpha expanded to x's shape. For dim > 1 x and b are [..., d], a matrix D_o is [..., d, d],
        and the others are [...].
        """
        states = _states(x)
        flat = self.head.states(states.reshape(-1) if self.dim == 1 else states)
        shape = states.shape if self.dim == 1 else states.shape[:-1]
        with torch.no_grad():
            c = self.head(flat)
        b = c.b.expand(flat.shape).reshape(states.shape).clone()
        D_o = c.D_o.expand(flat.shape[0], *c.D_o.shape[1:]).reshape((*shape, *c.D_o.shape[1:])).clone()
        D_f, alpha = (v.expand(flat.shape[0]).reshape(shape).clone() for v in c[2:])
        if self.head.without_jumps:  # the law of a step is given a number that is not zero
            D_f = torch.zeros_like(D_f)
        return Coefficients(b, D_o, torch.where(D_f <= NO_JUMPS, 0.0, D_f), alpha, c.tempering)

    def b(self, x: ArrayLike) -> Tensor:
        """The drift at x."""
        return self.coefficients(x).b

    def D_o(self, x: ArrayLike) -> Tensor:
        """The ordinary diffusion at x; [..., d, d] if it is a matrix."""
        return self.coefficients(x).D_o

    def D_f(self, x: ArrayLike) -> Tensor:
        """The fractional diffusion at x."""
        return self.coefficients(x).D_f

    def alpha_at(self, x: ArrayLike) -> Tensor:
        """alpha at x, also if it is one number."""
        return self.coefficients(x).alpha

    @property
    def alpha(self) -> float | Callable[[ArrayLike], Tensor]:
        """A number, or a function of x when alpha was learned as one."""
        if self.head.alpha_spec.mode == "function":
            return self.alpha_at
        return float(self.alpha_at(self.origin))

    @property
    def tempering(self) -> float:
        """A rate per unit of x: jumps larger than its inverse are exponentially rare. 0: they are not truncated."""
        return float(self.coefficients(self.head.grid(1)).tempering)

    @property
    def law(self) -> str:
        """The law of the fit: "frozen", "corrected", "exact", "simulated", or the name of your own."""
        return self.metrics.get("law", "frozen")

    @property
    def modulation(self) -> Modulation | None:
        """m(c), which multiplies D_o and D_f if the fit had a covariate; b, D_o, D_f are those at m = 1, its mean."""
        return modulation_of(self)

    @property
    def memory(self) -> FittedMemory | None:
        """The memory of the sizes of past steps, if the fit had one: half-lives and f(m) with their errors."""
        return fitted_memory(self) if "memory" in self.metrics else None

    @property
    def observation_noise(self) -> float:
        """The standard deviation of the errors of observations, in the units of x; 0 if there are none."""
        return float(self.metrics.get("observation_noise", {}).get("value", 0.0))

    @property
    def observation_noise_std(self) -> float:
        """Standard error of the observation noise: 0 if it was given, one-sided if it is estimated as zero."""
        return float(self.metrics.get("observation_noise", {}).get("std", 0.0))

    def without_noise(self) -> Recovery:
        """The law of the states alone: this recovery as if it had been fitted to them."""
        metrics = {name: value for name, value in self.metrics.items() if name != "observation_noise"}
        return replace(self, metrics=metrics, replicas={})

    # -- geometry and parameters --------------------------------------------------------------------------------------
    @property
    def support(self) -> tuple[float, float] | None:
        """The range of the states that were observed; None in more than one dimension."""
        return (self.metrics["x_min"], self.metrics["x_max"]) if "x_min" in self.metrics else None

    @property
    def states(self) -> Tensor:
        """Some of the observed states, (n,) or (n, d), for averages; for an old file a grid over the whole range."""
        if "states" in self.metrics:
            return torch.tensor(self.metrics["states"], dtype=torch.float64)
        return self.head.grid(64 if self.dim == 1 else 400)

    @property
    def theta(self) -> Tensor:
        """All parameters as one vector (P,)."""
        return self.head.flat()

    def jacobian(self, x: ArrayLike) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d(b, D_o, D_f, alpha)(x) / d theta in physical units, each (n, P); for dim > 1 that of b is (n, d, P), of a
        matrix D_o (n, d, d, P).
        """
        states = _states(x)
        b, D_o, D_f, alpha = self.head.jacobian(self.head.states(states.reshape(-1) if self.dim == 1 else states))
        return b.detach(), D_o.detach(), D_f.detach(), alpha.detach()

    # -- uncertainty --------------------------------------------------------------------------------------------------
    def std(
        self, x: ArrayLike, kind: str = "fisher", data: Transitions | Lattice | None = None, progress: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pointwise standard errors of b, D_o, D_f at x. They include an estimate of the harmonics that a Fourier
        series lacks.

        Args:
            kind: "fisher", from the information (with the TCF a sandwich), valid if the law is right; "robust", a
                sandwich from blocks of trajectories with the variance of smoothing, at least as large as "fisher",
                also valid if the law is wrong or steps depend on each other; "bootstrap", from refits to resampled
                blocks, for any head.
            data: those of the fit, if the recovery no longer has them (after loading).
            progress: whether a bar is drawn while a bootstrap runs.
        """
        if choice("kind", kind, KINDS) == "bootstrap":
            b, D_o, D_f, _ = self.bootstrap(data=data, progress=progress).std(x)
        else:
            used = robust_covariances(self, data) if kind == "robust" else [self.covariance]
            b, D_o, D_f = (torch.stack(v).amax(0) for v in zip(*(self._stds(x, one)[:3] for one in used)))
        stds = [b, D_o, D_f]
        for name, found in self.metrics.get("at_zero", {}).items():
            row = 1 + KNOWABLE.index(name)
            stds[row] = torch.hypot(stds[row], torch.full_like(stds[row], found["std"]))
        for name, found in self.metrics.get("near_zero", {}).items():
            row = 1 + KNOWABLE.index(name)
            stds[row] = stds[row].clamp(min=found["std"])
        for i, missing in enumerate(self.metrics.get("left_out_of_series", ())[:3]):
            if missing:
                constant = cast(LinearHead, self.head).starts[i]  # whose column is the slope in the predictor
                slope = self.jacobian(x)[i][..., constant].reshape(stds[i].shape)
                stds[i] = torch.hypot(stds[i], missing * slope)
        b, D_o, D_f = stds
        return b, D_o, D_f

    def bootstrap(
        self, n: int | None = None, seed: Any = 0, data: Transitions | Lattice | None = None, progress: bool = False
    ) -> Replicas:
        """Recoveries of n resamplings of the blocks of the data: for V, or anything else that is computed from one.

        n: 200 by default, 40 for fits without a covariance, whose refits take seconds. data: see `std`. progress:
        whether a bar is drawn.
        """
        default = FEW if self.covariance is None else REPLICAS
        n = default if n is None else whole_number("n", n, 2, 1 << 20)
        seed = seed_of(seed)
        if data is not None:
            return bootstrap(self, n, seed, data, progress)
        if (n, seed) not in self.replicas:
            self.replicas[n, seed] = bootstrap(self, n, seed, None, progress)
        return self.replicas[n, seed]

    @property
    def alpha_std(self) -> float | Callable[[ArrayLike], Tensor]:
        """Standard error of alpha: 0 when it was given, a function of x when alpha is one, infinite without jumps."""
        if self.metrics.get("at_zero", {}).get("D_f", {}).get("alpha_learned"):
            return math.inf  # without jumps the data says nothing about it
        if self.metrics.get("alpha_at_bound") is not None:
            return math.inf  # the end of its range, where it is held
        if not self.head.learns_alpha:
            return 0.0
        if self.head.alpha_spec.mode == "function":
            return lambda x: self._stds(x, self.covariance)[3]
        return float(self._stds(self.origin, self.covariance)[3])

    @property
    def tempering_std(self) -> float:
        """Standard error of the tempering: 0 when it was given; without meaning at the boundary 0 (see metrics)."""
        if not self.head.tempering_spec.learned:
            return 0.0
        if self.covariance is None:
            raise InputError(
                "the recovery must have a covariance for the standard error of tempering, found none; fit "
                "with engine fisher or evidence."
            )
        slope = self.head.tempering_slope()
        return float((slope @ self.covariance @ slope).clamp(min=0).sqrt())

    def _stds(self, x: ArrayLike, covariance: Tensor | None) -> tuple[Tensor, ...]:
        if covariance is None:
            raise InputError(
                "the recovery must have a covariance for standard errors, found none; fit with engine fisher or "
                "evidence, or use kind bootstrap."
            )
        shape = _states(x).shape if self.dim == 1 else _states(x).shape[:-1]
        return tuple(
            ((J @ covariance) * J).sum(-1).clamp(min=0).sqrt().reshape((*shape, *J.shape[1:-1]))
            for J in self.jacobian(x)
        )

    def with_boundary(self) -> Recovery:
        """This recovery with one more parameter for each coefficient that has vanished, or is near zero, so that V.std
        includes its possible size; itself if none has. For `jacobian` and `covariance` only.
        """
        found = _at_or_near_zero(self.metrics)
        if not found or self.covariance is None:
            return self
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return _AtBoundary(**kept | {"covariance": _extended(self.covariance, list(found.values()))})

    def conf_int(self, x: ArrayLike, level: float = 0.95, kind: str = "fisher") -> Intervals:
        """Pointwise confidence intervals of b, D_o and D_f at x; those of D_o and D_f do not go below zero.

        Args:
            x: states.
            level: the probability of an interval.
            kind: which standard errors, see `std`.

        Returns:
            A named tuple (b, D_o, D_f), each [..., 2]: lower and upper end.

        Example:
            >>> from levytorch import Dynamics, recover, simulate
            >>> found = recover(simulate(Dynamics.named("constant"), 500, 40, 1 / 40), alpha=0.3, n_basis=1)
            >>> low, high = found.conf_int(0.0).b
            >>> bool(low < 5.0 < high)
            True
        """
        z = float(ndtri(0.5 + 0.5 * number_within("level", level, "(0, 1)", "pass a number such as 0.95")))
        c, stds = self.coefficients(x), self.std(x, kind)
        ends = [torch.stack([v - z * std, v + z * std], dim=-1) for v, std in zip((c.b, c.D_o, c.D_f), stds)]
        least = torch.zeros((), dtype=torch.float64)
        if self.head.noise is not ISOTROPIC:  # covariances may be negative
            least = torch.full((self.dim, self.dim), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)[..., None]
        return Intervals(ends[0], torch.maximum(ends[1], least), ends[2].clamp(min=0.0))

    # -- as a whole ---------------------------------------------------------------------------------------------------
    @property
    def n_parameters(self) -> float:
        """How many parameters the data determine; fewer than the head has if they are smoothed."""
        return float(self.metrics.get("parameters", self.theta.numel()))

    def model_in_words(self) -> str:
        return head_in_words(self.head)

    def coefficient_estimates(self, level: float, truth: Any) -> list[Estimate]:
        return self.averages(self.states, level, truth)

    def averages(self, x: Tensor, level: float = 0.95, truth: Any = None) -> list[Estimate]:
        """Means of b, D_o and D_f over states, with the pointwise standard errors there; truth: to be compared with."""
        stds = self.std(x) if self.covariance is not None else None
        true = None if truth is None else (truth.b(x), truth.D_o(x), truth.D_f(x))
        found = self.b(x), self.D_o(x), self.D_f(x)
        return coefficient_rows(self.head, found, stds, true, level=level, vanished=self.metrics.get("at_zero", ()))

    def to_frame(self, grid: Any = None, kind: str = "polars", level: float = 0.95) -> Any:
        """Coefficients with errors and intervals at the states of `grid`, as a frame of polars or pandas, or a dict.

        grid: states, or how many of them between the ends of what was observed; None: 101. In d dimensions [n, d].
        """
        return coefficient_frame(self, grid, kind, level)

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): every coefficient with its band; options: truth, states, axes, units (figures.coefficients)."""
        return plotted("recovery", self, **options)

    # -- elsewhere ----------------------------------------------------------------------------------------------------
    def dynamics(self) -> Dynamics:
        """The recovered system, ready for simulation or policy evaluation."""
        near = None if self.head.repeats else self.head.bounds if self.dim > 1 else self.head.window
        domain = {"period": self.period, "dim": self.dim, "origin": self.origin, "window": near}
        return Dynamics(self.b, self.D_o, self.D_f, self.alpha, **domain, tempering=self.tempering)

    def simulate(
        self, n_trajectories: int, n_steps: int, dt: float | None = None, *, observed: bool = True, **options: Any
    ) -> Trajectories:
        """Paths of the recovered system; options: those of `levytorch.simulate` (x0, substeps, seed).

        For a fit with memory dt is the fitted one, and the options are x0, seed and m0 (`training.memory`). For a fit
        with observation noise the paths have errors like the data; observed=False gives the states themselves.
        """
        if self.memory is not None:
            return simulate_with_memory(self, n_trajectories, n_steps, dt, **options)
        if dt is None:
            raise InputError("dt must be given, found None; pass the time between two points of a path.")
        paths = simulate(self.dynamics(), n_trajectories, n_steps, dt, **options)
        noise = self.observation_noise if switch("observed", observed) else 0.0
        return with_errors(paths, noise, paths.seed or 0) if noise else paths

    def forecast(self, x0: ArrayLike, horizon: float, **options: Any) -> Forecast:
        """Quantiles of the state from x0 on, until `horizon`; options: n_steps, levels, n_paths, substeps, seed.

        For a fit with observation noise these are quantiles of the observations; observed=False: of the state.
        `levytorch.figures.forecasts.fan` draws it.
        """
        memory = self.memory
        noise = self.observation_noise if switch("observed", options.pop("observed", True)) else 0.0
        if memory is None:
            return forecast(self.dynamics(), x0, horizon, noise=noise, **options)
        steps = max(1, round(positive_number("horizon", horizon, "pass a length of time") / memory.rule.dt))
        m0 = options.pop("m0", None)

        def paths(n: int, n_steps: int, dt: float, x0: Any, seed: int) -> Trajectories:
            return simulate_with_memory(self, n, n_steps, dt, x0=x0, m0=m0, seed=seed)

        return forecast(self.dynamics(), x0, steps * memory.rule.dt, **{**options, "n_steps": steps}, paths=paths)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write plain tensors and numbers; the file is complete or absent.

        A name that ends in .safetensors gives a file for exchange: safetensors with JSON, for other programs too.
        For a head of your own the file has the parameters and the name; pass such a head to `load`.
        """
        target = path_of(path)
        files.save_tensors(self.content(), target)
        return target

    def content(self) -> dict[str, Any]:
        """All that is written, as plain tensors and numbers."""
        return {
            "format": FORMAT,
            "head": {_OWN: type(self.head).__name__} if type(self.head).config is Head.config else self.head.config(),
            "theta": self.theta,
            "tcf": self.tcf,
            "log_likelihood": self.log_likelihood,
            "converged": self.converged,
            "covariance": self.covariance,
            "metrics": self.metrics,
            "history": self.history,
            "shift": self.shift,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], head: Head | None = None, law: Law | None = None) -> Recovery:
        """Read what `save` wrote; nothing in the file is executed.

        head, law: objects like your own head or law that was fitted; leave them out for those of levytorch.
        """
        file = path_of(path)
        if file.is_dir():
            file = file / "recovery.pt"
        if not file.is_file():
            raise InputError(f"a saved recovery must exist, found nothing at {file}; give the path of a recovery.pt.")
        try:
            content = load_tensors(file)
        except Exception as error:
            raise InputError(
                f"{file} must be a recovery written by Recovery.save, found a file that does not load safely "
                f"({reason(error)}); save it again."
            ) from error
        kind = content.get("format") if isinstance(content, dict) else None
        if not isinstance(kind, int) or kind != FORMAT:
            raise InputError(f"{file} must be a recovery of format {FORMAT}, found another; save it again.")
        described = content.get("head")
        own = described.get(_OWN) if isinstance(described, dict) else None
        if (own is None) != (head is None):
            found = f"none for {shown(own)}" if head is None else "one beside its description in the file"
            raise InputError(
                f"the head must be given for a fit with one of your own, and only then, found {found}; use "
                f"Recovery.load(path{', head=...' * (head is None)})."
            )
        try:
            recovery = cls.from_content(content, head)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise InputError(
                f"{file} must hold a complete recovery, found one that is not ({reason(error)}); save it again."
            ) from error
        if law is not None and check_law(law).name != recovery.law:
            raise InputError(f"law must be the one that was fitted, {recovery.law}, found {law.name}; pass that one.")
        recovery.own_law = law
        return recovery

    @classmethod
    def from_content(cls, content: dict[str, Any], head: Head | None = None) -> Recovery:
        """The inverse of `content`; inconsistent content is refused."""
        theta = stored_theta(content["theta"])
        head = stored_head(content["head"], theta.numel()) if head is None else head
        if theta.shape != head.flat().shape:
            raise InputError("theta must be one finite number per parameter of the head, found others; fit again.")
        covariance = stored_covariance(content["covariance"], theta.numel())
        shift = content.get("shift")
        if shift is not None:
            shift = stored_theta(shift)
            if shift.shape != theta.shape:
                raise InputError("shift must have one number per parameter, found others; fit again.")
        head.set_flat(theta)
        metrics, history = stored_metrics(content["metrics"]), [dict(entry) for entry in content["history"]]
        for key in ("at_zero", "near_zero"):
            if any(len(one["moves"]) != theta.numel() for one in metrics.get(key, {}).values()):
                raise InputError(f"{key} must have one number per parameter of the head, found others; fit again.")
        return cls(
            head,
            tcf=real_number("tcf", content["tcf"]),
            log_likelihood=float(content["log_likelihood"]),
            converged=bool(content["converged"]),
            covariance=covariance,
            metrics=metrics,
            history=history,
            shift=shift,
        )

    def __repr__(self) -> str:
        c = self.coefficients(self.states)
        shown = [_in_words(v.mean(0).tolist()) for v in c]
        mean = ", ".join(f"{name} {value}" for name, value in zip(c._fields, shown))
        mean += f", tempering {self.tempering:.4g}" if self.head.tempered else ""
        why = f": {self.metrics['not_converged']}" if "not_converged" in self.metrics else ""
        seed = f", seed {self.metrics['seed']}" if "seed" in self.metrics else ""
        where = " at the observed states" if "states" in self.metrics else ""
        return printable(f"Recovery({mean}{where}; TCF {self.tcf:.4g}{seed}, converged {self.converged}{why})")


class Intervals(NamedTuple):
    """Lower and upper ends, [..., 2] each."""

    b: Tensor
    D_o: Tensor
    D_f: Tensor


def coefficient_frame(recovery: Recovery, grid: Any, kind: str, level: float) -> Any:
    """Behind `Recovery.to_frame`."""
    if grid is None or isinstance(grid, int):
        n = 101 if grid is None else whole_number("grid", grid, 2)
        x = recovery.head.grid(n)
        if recovery.dim == 1 and recovery.support is not None and recovery.period is None:
            x = torch.linspace(*recovery.support, n, dtype=torch.float64)
    else:
        x = _states(grid).reshape(-1) if recovery.dim == 1 else _states(grid).reshape(-1, recovery.dim)
    columns: dict[str, Any] = {"x": x} if recovery.dim == 1 else {f"x{k + 1}": x[:, k] for k in range(recovery.dim)}
    errors = recovery.std(x) if recovery.covariance is not None else None
    ends = recovery.conf_int(x, level) if errors is not None else None
    for i, name in enumerate(("b", "D_o", "D_f")):
        values = getattr(recovery, name)(x)
        for _, place in recovery.head.layout.numbers(name):
            pick: Any = (slice(None), *place)
            label = name + "".join(str(k + 1) for k in place)
            columns[label] = values[pick]
            if errors is not None and ends is not None:
                columns[f"{label}_std"] = errors[i][pick]
                columns[f"{label}_low"], columns[f"{label}_high"] = ends[i][pick].unbind(-1)
    columns["alpha"] = recovery.alpha_at(x)
    return frame_of({name: column.detach().numpy() for name, column in columns.items()}, kind)


@dataclass(frozen=True)
class Forecast:
    """A fan of quantiles: times (T,) from 0 to the horizon, levels (L,), quantiles (T, L) of x, one more axis for the
    coordinates in more than one dimension. What the coefficients' own errors add is not in it."""

    times: np.ndarray
    levels: np.ndarray
    quantiles: np.ndarray
    n_paths: int
    seed: int = 0

    def __repr__(self) -> str:
        return (
            f"Forecast(to {self.times[-1]:g} in {len(self.times) - 1} steps, {len(self.levels)} levels, "
            f"{self.n_paths} paths, seed {self.seed})"
        )


def forecast(
    dynamics: Dynamics,
    x0: Any,
    horizon: float,
    *,
    n_steps: int = 50,
    levels: Sequence[float] = LEVELS,
    n_paths: int = 10_000,
    substeps: int = 10,
    seed: Any = 0,
    paths: Callable[..., Trajectories] | None = None,
    noise: float = 0.0,
) -> Forecast:
    """Quantiles of n_paths paths from x0 (a number; d of them in d dimensions), at n_steps times up to the horizon.

    noise: of observations, whose quantiles are then given behind the state x0.
    """
    steps, number = whole_number("n_steps", n_steps, 1), whole_number("n_paths", n_paths, 100)
    until = positive_number("horizon", horizon, "pass a length of time")
    chosen = real_array("levels", levels)
    if chosen.ndim != 1 or not chosen.size or not bool(((chosen > 0) & (chosen < 1)).all()):
        raise InputError(f"levels must be numbers in (0, 1), found {levels!r}; pass (0.05, 0.5, 0.95).")
    start = real_array("x0", x0)
    if start.shape not in ((), (dynamics.dim,)) or (dynamics.dim > 1 and start.ndim == 0):
        raise InputError(
            f"x0 must be one state of {dynamics.dim} coordinate{'s' * (dynamics.dim > 1)}, found shape {start.shape}; "
            "make one forecast per state."
        )
    begin = float(start.reshape(())) if dynamics.dim == 1 else start
    seed = seed_of(seed)
    if paths is None:
        made = simulate(dynamics, number, steps, until / steps, substeps=substeps, x0=begin, seed=seed)
    else:
        made = paths(number, steps, until / steps, begin, seed)
    x = made.to_array()
    if noise:
        x = np.concatenate([x[:, :1], with_errors(made, noise, seed).to_array()[:, 1:]], axis=1)
    quantiles = np.moveaxis(np.quantile(x, chosen, axis=0), 0, 1)
    return Forecast(np.linspace(0.0, until, steps + 1), chosen, quantiles, number, seed)


def law_of(recovery: Recovery) -> Law:
    """For `log_prob(recovery.head, x, dx, dt)` and the masses beyond. For corrected and simulated coefficients use the
    exact law; the frozen law would be biased. It stands in for a simulated fit only where there is no exact law.

    An ExactLaw chooses its grid for the head and the dt it is asked for, and keeps its tables until they change.
    """
    if recovery.own_law is not None:
        return recovery.own_law
    if recovery.law in ("exact", "corrected") or recovery.metrics.get("law/judged_by") == "exact":
        return ExactLaw()
    if recovery.law in ("frozen", "simulated"):
        return FrozenLaw(steady_method("auto", recovery.head), recovery.dim)
    raise InputError(
        f"the law of the recovery must be given, found {recovery.law!r}, which is not one of levytorch's; use "
        "Recovery.load(path, law=...)."
    )


class _AtBoundary(Recovery):
    """A recovery whose vanished coefficients are parameters: see `Recovery.with_boundary`."""

    def jacobian(self, x: ArrayLike) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = list(super().jacobian(x))
        for name in _at_or_near_zero(self.metrics):
            rows = [torch.cat([J, J.new_zeros((*J.shape[:-1], 1))], dim=-1) for J in rows]
            rows[1 + KNOWABLE.index(name)][..., -1] = 1.0
        b, D_o, D_f, alpha = rows
        return b, D_o, D_f, alpha


def _at_or_near_zero(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Coefficients that have vanished, and those near zero whose error the parameters do not make, by name."""
    near = {k: v | {"std": v["missing"]} for k, v in metrics.get("near_zero", {}).items() if v.get("missing", 0.0) > 0}
    return metrics.get("at_zero", {}) | near


def _extended(covariance: Tensor, found: list[dict[str, Any]]) -> Tensor:
    """The covariance with a row and a column for each vanished coefficient, which moves with the other parameters."""
    P, k = covariance.shape[0], len(found)
    out = covariance.new_zeros((P + k, P + k))
    out[:P, :P] = covariance
    for i, one in enumerate(found, P):
        if math.isfinite(one["std"]):
            out[i, i] = one["std"] ** 2
            out[i, :P] = out[:P, i] = one["std"] * torch.tensor(one["moves"], dtype=covariance.dtype)
    return out


def _in_words(value: Any) -> str:
    """A number, a vector or a matrix."""
    return f"({', '.join(map(_in_words, value))})" if isinstance(value, list) else f"{value:.4g}"


def _states(x: ArrayLike) -> Tensor:
    return real_tensor("x", x, "pass states as a number, an array or a tensor").detach()
