"""The one code path of `recover` and train.py: settings and transitions in, a trained module and a Recovery out."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import lightning as L
import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head, build_head, initial_guess
from levytorch.coefficients.basis import per_coordinate
from levytorch.coefficients.build import head_dim
from levytorch.coefficients.init import Guess, randomise
from levytorch.data import LevyDataModule, Transitions
from levytorch.data.quantiles import cut, order_statistics
from levytorch.errors import InputError, LevytorchError, LevytorchWarning
from levytorch.law import cutting_threshold
from levytorch.likelihood.tail import TailSettings
from levytorch.ranks import Ranks
from levytorch.training.callbacks import Convergence, MovingAverage, TailCorrection
from levytorch.training.module import LevyModule
from levytorch.training.quiet import quiet_lightning
from levytorch.training.recovery import Recovery
from levytorch.training.report import finish
from levytorch.training.settings import FitSettings

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}


_AGREES = 3.0  # standard deviations within which a count is what the core of the law says
_AGREES_WITH_A_GUESS = 2.0  # the same, where disagreement costs precision and agreement may cost the answer
PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")  # options that say which processes a fit has


@dataclass
class Fit:
    """A finished (or interrupted) fit and everything around it."""

    recovery: Recovery
    module: LevyModule
    data: LevyDataModule
    trainer: L.Trainer


def fit(
    transitions: Transitions,
    settings: FitSettings,
    *,
    callbacks: Sequence[L.Callback] = (),
    trainer: dict[str, Any] | None = None,
    resume: str | None = None,
    start: Tensor | None = None,
) -> Fit:
    """Train a module on transitions.

    callbacks, trainer: added by train.py (loggers, checkpoints, progress); resume: a checkpoint; start: first theta.
    """
    settings = check_data(transitions, settings)
    began = time.perf_counter()
    guess = initial_guess(
        transitions.dx, transitions.dt, _center(transitions), settings.alpha, uniform_dt=transitions.uniform_dt
    )
    guessed_CT = settings.tail.CT == "auto"
    tail = resolve_tail(transitions, settings, guess)
    settings = replace(settings, tail=tail)
    module = make_module(settings, guess)
    if start is not None:
        module.head.set_flat(start)
    data = make_data(transitions, settings, module, guess)
    lost = data.pools.main.dropped.get("beyond TRT", 0) - transitions.dropped.get("beyond TRT", 0)
    if lost and not tail.active:
        warnings.warn(
            f"{lost} pairs lie beyond tail.TRT = {tail.TRT:g} and are left out, which tail.method none does not "
            "correct: D_f comes out too small; remove TRT, or use tail.method conditional.",
            LevytorchWarning,
            stacklevel=2,
        )
    if data.pools.n_tail == data.pools.n_main:
        raise InputError(
            f"CT must leave pairs below it, found all {data.pools.n_main} within TRT beyond it; raise CT, shorten dt, "
            "or bring more data."
        )
    averaging = None if module.engine.full_batch else MovingAverage(module.engine.window)  # type: ignore[attr-defined]
    convergence = Convergence(
        averaging, getattr(module.engine, "tolerance", 0.0), getattr(module.engine, "stop_early", True)
    )
    correction = TailCorrection(tail.start)
    own: list[L.Callback] = [correction, *([averaging] if averaging else []), convergence]
    options = TRAINER | {
        "enable_progress_bar": settings.progress,
        "max_steps": module.engine.max_steps,
        "max_epochs": 1,  # the loader is as long as max_steps
    }
    if not settings.data.get("validation"):
        options["limit_val_batches"] = 0
    else:
        options["val_check_interval"] = 1 if module.engine.full_batch else min(1000, module.engine.max_steps)
    options |= trainer or {}
    with quiet_lightning():
        lightning = L.Trainer(**options, callbacks=[*own, *callbacks])
        try:
            # True also without a checkpoint of ours: on a cluster Lightning looks for one of its own
            lightning.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if resume is None or module.began or isinstance(error, LevytorchError):
                raise
            raise InputError(
                f"{resume} must be a checkpoint of a run with these settings, found another ({type(error).__name__}); "
                "resume without other settings, or remove the checkpoint to start over."
            ) from error
    head = final_head(module, averaging)
    recovery = finish(module, head, data.pools, convergence.converged, seconds=time.perf_counter() - began)
    result = Fit(recovery, module, data, lightning)
    ranks = Ranks.of(lightning)
    z = pairs_in_excess(settings, recovery)
    if not ranks.agree(z is not None and (abs(z) < _AGREES or guessed_CT)):
        return result
    assert z is not None
    other = reconsidered(tail, z, guessed_CT)
    processes = {key: options[key] for key in PROCESSES if key in options}
    again = fit(transitions, replace(settings, tail=other), trainer=processes, start=head.flat())
    again.recovery.history = recovery.history + again.recovery.history
    again.recovery.metrics["missing_between_CT_and_TRT_z"] = z
    return Fit(again.recovery, module, data, lightning)


def _center(transitions: Transitions) -> float | Tensor:
    """mu: a number, or a vector in d > 1 dimensions."""
    mu = torch.as_tensor(transitions.mu, dtype=torch.float64)
    return float(mu) if transitions.dim == 1 else mu


def check_data(transitions: Transitions, settings: FitSettings) -> FitSettings:
    """Refuse data the settings cannot be fitted to; the head's dimension is the data's where it was left open."""
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"transitions must be a Transitions, found {type(transitions).__name__}; use trajectories.transitions()."
        )
    wanted = head_dim(settings.head)
    if wanted is not None and wanted != transitions.dim:
        raise InputError(
            f"the head must have the dimension of the data, {transitions.dim}, found a head of dimension {wanted}; "
            "leave dim out, or give as many periods as the data has columns."
        )
    if transitions.dim > 1:
        if settings.density == "windowed":
            raise InputError(
                f"density windowed is one-dimensional, found data of dimension {transitions.dim}; use auto."
            )
        settings = replace(settings, head={**settings.head, "dim": transitions.dim})
    head = build_head(settings.head)
    n, P = len(transitions), head.flat().numel()
    if isinstance(head, FourierHead) and n < max(20, P):
        raise InputError(
            f"at least {max(20, P)} pairs are needed for {P} parameters, found {n}; use fewer basis functions."
        )
    if settings.head.get("periodic") is False:
        columns = transitions.x.reshape(n, -1).T
        origins, periods = (
            per_coordinate("origin", head.origin, head.dim),
            per_coordinate("period", head.period, head.dim),
        )
        for column, origin, period in zip(columns, origins, periods):
            low, high = float(column.min()), float(column.max())
            if low < origin or high > origin + period:
                raise InputError(
                    f"x must lie in the window [{origin:g}, {origin + period:g}] of a head without period, "
                    f"found [{low:g}, {high:g}]; widen origin and period."
                )
    return settings


def make_module(settings: FitSettings, guess: Guess) -> LevyModule:
    """The module at its start, in internal units."""
    units = guess.units
    head = dict(settings.head)
    head |= {
        "alpha_mode": settings.alpha.mode,
        "alpha": guess.alpha if settings.alpha.learned else settings.alpha.value,
    }
    if settings.units == "data":
        head |= {"length": units.length, "time": units.time}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        module = LevyModule(
            head, settings.engine, _plain(settings.tail), settings.density, settings.seed, settings.log_every
        )
    if settings.init == "random":
        randomise(module.head, torch.Generator().manual_seed(settings.seed))
    else:
        guess.apply(module.head)
    return module


def make_data(transitions: Transitions, settings: FitSettings, module: LevyModule, guess: Guess) -> LevyDataModule:
    """The data module with the pools of these tail settings."""
    tail = settings.tail
    options = {k: v for k, v in settings.data.items() if v is not None}
    assert not isinstance(tail.CT, str)
    CT = tail.CT if tail.active and not (tail.method == "conditional" and tail.region == "TRT") else None
    return LevyDataModule(
        transitions,
        CT=CT,
        TRT=tail.TRT,
        full_batch=module.engine.full_batch,
        seed=settings.seed,
        max_steps=module.engine.max_steps,
        alpha=guess.alpha,
        min_tail=tail.min_tail if tail.method == "tcf" else 1,  # strata must not have their CT moved
        **options,
    )


def resolve_tail(transitions: Transitions, settings: FitSettings, guess: Guess) -> TailSettings:
    """Numbers for CT = "auto" (Appendix A from a preliminary fit of constants) and for a conditional region."""
    tail = settings.tail
    if not tail.active:
        return tail
    if tail.CT == "auto":
        tail = replace(tail, CT=preliminary_CT(transitions, settings))
        if tail.method == "conditional" and tail.TRT is None:
            # whatever was cut was cut beyond the largest step that is left
            largest = max(float(transitions.deviation_of(rows).max()) for rows in transitions.blocks())
            tail = replace(tail, TRT=math.nextafter(largest, math.inf) * (1 + 1e-12))
        if tail.TRT is not None and isinstance(tail.CT, float) and tail.CT >= tail.TRT:
            tail = replace(tail, CT=0.5 * tail.TRT)
    if tail.method == "conditional" and (tail.region == "CT" or tail.TRT is None):
        # conditioning on |dx - mu| < CT: the pairs beyond are left out, CT plays TRT's part
        if tail.CT is None:
            raise InputError("tail.region CT needs a CT, found none; give CT or use region TRT.")
        tail = replace(tail, CT=None, TRT=tail.CT, region="TRT")  # type: ignore[arg-type]
    if tail.method == "conditional" and isinstance(tail.CT, (int, float)) and tail.TRT is not None:
        between = _count_between(transitions, tail.CT, tail.TRT)
        if between < tail.min_tail and tail.region != "TRT":
            warnings.warn(
                f"only {between} pairs lie between CT and TRT ({tail.min_tail} are wanted for their own stratum): the "
                "likelihood is conditioned on |dx - mu| < CT and leaves them out.",
                LevytorchWarning,
                stacklevel=3,
            )
            tail = replace(tail, CT=None, TRT=tail.CT, region="TRT")
    if tail.method == "conditional" and tail.CT is None:
        tail = replace(tail, region="TRT")
    return tail


def _count_between(transitions: Transitions, CT: float, TRT: float) -> int:
    total = 0
    for rows in transitions.blocks():
        deviation = transitions.deviation_of(rows)
        total += int(((deviation > CT) & (deviation < TRT)).sum())
    return total


def preliminary_CT(transitions: Transitions, settings: FitSettings) -> float:
    """Appendix A: the central `mass` of one step under constants fitted without correction, D_o included."""
    head = {"name": "fourier", "n_basis": 1, "period": settings.head["period"], "dim": transitions.dim}
    quick = replace(
        settings, head=head, engine={"name": "fisher"}, tail=TailSettings(), data={}, init="data", progress=False
    )
    found = fit(transitions, quick).recovery
    n, steps = len(transitions), transitions.dt
    dt = float(steps[0] if transitions.uniform_dt else order_statistics(cut(steps.numpy()), [(n - 1) // 2])[0])
    alpha = found.alpha
    assert isinstance(alpha, float)
    D_o, D_f = float(found.D_o(found.origin)), float(found.D_f(found.origin))
    return float(cutting_threshold(alpha, D_f, dt, settings.tail.mass, D_o=D_o, dim=transitions.dim))


def final_head(module: LevyModule, averaging: MovingAverage | None) -> Head:
    """The head a Recovery gets: the moving average for adam, the parameters themselves otherwise."""
    head = copy.deepcopy(module.head)
    if averaging is not None and averaging.steps:
        head.set_flat(averaging.average())
    return head


def reconsidered(tail: TailSettings, z: float, guessed_CT: bool) -> TailSettings:
    """What to condition on after the strata have been compared.

    Where the counts agree with a plain cut at TRT: on that, which uses them and is more precise. Where they do not, the
    strata are right if CT is where the losses begin; a guessed CT may lie far below, and only the core is left then.
    """
    agrees = abs(z) < (_AGREES_WITH_A_GUESS if guessed_CT else _AGREES)
    if guessed_CT:
        found = (
            f"no sign of lost steps within |dx - mu| < {tail.TRT:.4g} was found ({z:+.1f} standard deviations beyond "
            f"{tail.CT:.3g}), and none are assumed"
            if agrees
            else f"steps are lost somewhere beyond {tail.CT:.3g} ({z:+.1f} standard deviations), and all of those are "
            "left out"
        )
        warnings.warn(
            f"tail.CT must be known for a sharp answer, found auto: {found}; if steps were lost beyond some threshold, "
            "give it as tail.CT.",
            LevytorchWarning,
            stacklevel=3,
        )
    return replace(tail, region="TRT") if agrees else replace(tail, CT=None, TRT=tail.CT, region="TRT")  # type: ignore[arg-type]


def pairs_in_excess(settings: FitSettings, recovery: Recovery) -> float | None:
    """Pairs between CT and TRT beyond what the core says, in standard deviations; None unless the region is open."""
    tail = settings.tail
    if tail.method != "conditional" or tail.region != "auto" or tail.CT is None:
        return None
    z = recovery.metrics.get("missing_between_CT_and_TRT_z")
    return None if z is None else float(z)


def _plain(tail: TailSettings) -> dict[str, Any]:
    return asdict(tail)
