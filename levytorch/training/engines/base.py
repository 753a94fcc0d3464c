"""What an engine is, the engines by name, and `maximise`: all steps of a full-batch engine, for fits within a fit.

Also what a fit logs of every step: likelihood, TCF, mean coefficients, speed.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from levytorch.coefficients import FourierHead, Head, LinearHead
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.network import penalty_groups
from levytorch.convert import choice, known_keys, real_number, shown, switch, whole_number
from levytorch.data.batches import FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients

if TYPE_CHECKING:
    from levytorch.likelihood.objective import FullBatchObjective

ENGINES = {
    "adam": "levytorch.training.engines.adam:AdamEngine",
    "adamw": "levytorch.training.engines.adam:AdamWEngine",
    "lbfgs": "levytorch.training.engines.lbfgs:LBFGSEngine",
    "fisher": "levytorch.training.engines.fisher:FisherEngine",
}
MOST = 1 << 31
FEW = 5  # functions per coefficient (in d > 1 dimensions: per coordinate) that wiggle little without a penalty
SMOOTHING = ("evidence", "harmonics")  # penalties whose strengths the evidence of the data chooses
PASSES = 200  # strengths and coefficients settle together, in more passes than coefficients alone
# option -> (low, high, whether low itself is allowed); every other number is positive
RANGES = {
    "beta1": (0.0, 1.0, True),
    "beta2": (0.0, 1.0, True),
    "mixture": (0.0, math.nextafter(1.0, 2.0), True),
    "damping": (0.0, math.inf, True),
    "tolerance": (0.0, math.inf, True),
    "clip": (0.0, math.inf, True),
    "weight_decay": (0.0, math.inf, True),
}
ZERO_ALLOWED = ("patience",)  # of whole numbers


class Engine(ABC):
    """A strategy: which optimiser, what one step does, when it is done. Subclasses are dataclasses of plain options."""

    name: str
    full_batch: bool
    max_steps: int
    n_bins: int = 512  # of the states over which tail masses are averaged
    # of mini-batch engines: steps of the moving average that is returned, and its change that counts as converged
    window: int = 20_000
    tolerance: float = 0.0
    stop_early: bool = True
    batch_size: int = 100  # pairs of a mini-batch, unless another number is asked for
    patience: int = 0  # looks at held-out pairs without a better likelihood, after which a fit stops; 0: none
    look_every: int = 100  # steps between them
    last_layer: bool = False  # whether Fisher scoring fits the last layer of a network at the end

    @abstractmethod
    def optimizer(self, likelihood: Likelihood) -> Optimizer: ...

    @abstractmethod
    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: Any, step: int, seed: int = 0) -> float:
        """Advance by one step on a batch; returns the mean negative log-likelihood.

        optimizer: that of `optimizer()`, or Lightning's wrapper around it, which counts steps.
        """

    def converged(self, optimizer: Optimizer) -> bool:
        """Full-batch engines know; adam's convergence is the moving average's (a callback)."""
        return False

    def may_settle(self, steps: int) -> bool:
        """Whether a mini-batch engine may be taken for converged after so many steps."""
        return True

    def first_correction(self, start: int) -> int:
        """The first step of a mini-batch engine with a TCF, where `tail.start` is asked for."""
        return start

    def unfinished(self, optimizer: Optimizer) -> str:
        """Why it has not converged, as far as it knows."""
        return f"max_steps = {self.max_steps} were not enough"

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        """What was maximised, for a Fourier head: where its standard errors come from."""
        return likelihood.objective(batch)

    def accepts(self, head: Head) -> None:
        """Refuse a head the engine cannot work with."""
        return

    def config(self) -> dict[str, Any]:
        """Plain settings: `build_engine(engine.config())` is the same engine, if it is one of levytorch's own."""
        return {"name": self.name} | {option.name: getattr(self, option.name) for option in fields(self)}  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        """Every option as a plain number of its own kind, or a refusal."""
        for option in fields(self):  # type: ignore[arg-type]
            name, value = f"engine.{option.name}", getattr(self, option.name)
            if option.type == "int":
                value = whole_number(name, value, 0 if option.name in ZERO_ALLOWED else 1, MOST)
            elif option.type == "float":
                value = real_number(name, value)
                low, high, closed = RANGES.get(option.name, (0.0, math.inf, False))
                if not (low <= value < high and (closed or value > low)):
                    raise InputError(
                        f"{name} must lie in {'[' if closed else '('}{low:g}, {high:g}), found {value!r}; leave "
                        "it out for "
                        "the default."
                    )
            elif option.type == "bool":
                value = switch(name, value)
            setattr(self, option.name, value)


def check_engine(engine: Engine) -> None:
    """Refuse an engine of the user's own without the attributes of an engine."""
    for name, kind in (("name", str), ("full_batch", bool), ("max_steps", int)):
        if not isinstance(found := getattr(engine, name, None), kind):
            raise InputError(
                f"{name} of an engine must be a {kind.__name__}, found {shown(found)} in {type(engine).__name__}; set "
                "it in the class."
            )


def bare(optimizer: Optimizer) -> Optimizer:
    """The optimiser itself, without Lightning's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def chosen_engine(
    name: str, given: Mapping[str, Any], head: str | Head, n_basis: Any, units: Any = "data", has_scores: bool = True
) -> tuple[dict[str, Any], str]:
    """Settings of an engine with its name, and the reason for it.

    given: options of the engine; None stands for one that is left to "auto". head, n_basis: the name of a head, and
    what it was asked for; or a Head. has_scores: whether the law has them, for Fisher scoring.

    An unpenalised fit of many functions wiggles where there is little data, so that "auto" smooths those of a linear
    head as much as the evidence of the data says: Fourier series harmonic by harmonic.
    """
    options, waves = dict(given), head == "fourier" or isinstance(head, FourierHead)
    smoothing = "harmonics" if waves else "evidence"
    if name not in ("auto", "evidence"):
        return {"name": choice("engine", name, ("auto", *ENGINES)), **options}, "as requested"
    options = {key: value for key, value in options.items() if value is not None}
    if name == "evidence":
        return {"name": "fisher", "penalty": smoothing, "max_steps": PASSES, **options}, "as requested"
    if not (isinstance(head, LinearHead) or (isinstance(head, str) and head in LINEAR)):
        if not has_scores:
            return {"name": "lbfgs", **options}, "auto: a head that is not linear, and a law without scores"
        return _for_network(head, options, units)
    if not has_scores:
        return {"name": "lbfgs", **options}, "auto: a law without scores"
    K = head.n_basis if isinstance(head, LinearHead) else n_basis
    kind = "a Fourier head" if waves else "a spline head"
    if "penalty" in options:
        reason = f"auto: {kind}, with the penalty that was given"
    elif K != "auto" and (not isinstance(K, int) or K <= FEW):
        reason = f"auto: {kind} with at most {FEW} functions per coefficient, which needs no penalty"
    elif units == "none":
        reason = "auto: no penalty, because its strength is found in internal units and units=none turns these off"
    elif K == "auto" and not waves:
        reason = f"auto: {kind} with as many functions as cross-validation chooses, which needs no penalty"
    else:
        many = "as many functions as cross-validation chooses" if K == "auto" else f"{K} functions per coefficient"
        reason = f"auto: {kind} with {many}, with a roughness penalty chosen by the evidence"
        options["penalty"] = smoothing
    if "penalty" in options and isinstance(options["penalty"], str) and options["penalty"] in SMOOTHING:
        options.setdefault("max_steps", PASSES)
    return {"name": "fisher", **options}, reason


def engine_facts(engine: Engine, reason: str) -> dict[str, str]:
    """What metrics say of the engine; Fisher scoring with the penalty of the evidence goes by the name of that."""
    smoothed = engine.name == "fisher" and getattr(engine, "penalty", None) in SMOOTHING
    return {"engine": "evidence" if smoothed else engine.name, "engine_reason": reason}


def engine_class(name: str) -> type[Engine]:
    module, cls = ENGINES[name].split(":")
    return getattr(import_module(module), cls)


def engine_options(name: str) -> set[str]:
    return {f.name for f in fields(engine_class(name))}  # type: ignore[arg-type]


def _for_network(head: str | Head, options: dict[str, Any], units: Any) -> tuple[dict[str, Any], str]:
    """Fisher scoring along tangents; what has layers is smoothed by their weights, a few parameters are not."""
    layers = isinstance(head, str) or bool(penalty_groups(head))
    reason = "auto: a network, with a weight penalty chosen by the evidence"
    if "penalty" in options:
        reason = "auto: a head that is not linear, with the penalty that was given"
    elif not layers:
        reason = "auto: a head that is not linear and has no layers, which needs no penalty"
    elif units == "none":
        reason = "auto: no penalty, because its strength is found in internal units and units=none turns these off"
    else:
        options["penalty"] = "evidence"
    return {"name": "fisher", "max_steps": PASSES, **options}, reason


def build_engine(config: Mapping[str, Any]) -> Engine:
    """An engine from {"name": ..., options}; unknown options are refused with the choices."""
    settings = dict(config)
    name = settings.pop("name")
    choice("engine", name, tuple(ENGINES))
    known_keys(f"the options of the {name} engine", settings, engine_options(name))
    return engine_class(name)(**settings)


@dataclass
class Maximised:
    """How a maximisation went; nll: the mean negative log-likelihood at its last step."""

    optimizer: Optimizer
    converged: bool = False
    steps: int = 0
    nll: float = math.nan

    @property
    def R_theta(self) -> float | None:
        """Of the last evaluation, where the engine keeps one."""
        return getattr(getattr(self.optimizer, "accepted", None), "R_theta", None)


def maximise(engine: Engine, likelihood: Likelihood, batch: FullBatch) -> Maximised:
    """Steps of a full-batch engine, the TCF updated after each, until it has converged."""
    done = Maximised(engine.optimizer(likelihood))
    while done.steps < engine.max_steps and not done.converged:
        mixed = batch._replace(tcf=likelihood.correction.tcf)
        done.nll = engine.step(likelihood, done.optimizer, mixed, done.steps)
        done.steps += 1
        accepted = getattr(done.optimizer, "accepted", None)
        likelihood.correct(None if accepted is None else accepted.R_theta)
        done.converged = engine.converged(done.optimizer)
    return done


class Clock:
    """Milliseconds per step and pairs per second between two entries."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.then = step, time.perf_counter()

    def lap(self, step: int, pairs: float) -> dict[str, float]:
        now = time.perf_counter()
        steps, seconds = step - self.step, now - self.then
        self.step, self.then = step, now
        if steps <= 0:
            return {}
        return {"time/step_ms": 1e3 * seconds / steps, "time/samples_per_s": pairs * steps / seconds}


def entry(likelihood: Likelihood, optimizer: Optimizer | None, nll: float) -> dict[str, float]:
    """The state of a fit after a step."""
    # fisher knows the TCF of the parameters it has just accepted; the correction is updated after the step
    accepted = getattr(optimizer, "accepted", None)
    tcf = float(likelihood.correction.tcf if accepted is None else accepted.tcf)
    R_sample = 0.0 if likelihood.masses is None else likelihood.masses.R_sample
    values = {"train/nll": nll, "tail/TCF": tcf, "tail/R_sample": R_sample}
    if likelihood.tail.method == "tcf":
        values["tail/R_theta"] = tcf * (1 - R_sample) + R_sample
    return values | mean_coefficients(likelihood.head)
