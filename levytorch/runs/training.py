"""A configured training run: settings checked, data made, fitted, and everything written into the run directory.

train.py is a thin shell around `train`.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from levytorch import parent, ranks
from levytorch.coefficients import AlphaSpec, Head
from levytorch.coefficients.build import HEADS
from levytorch.convert import seed_of
from levytorch.data import SourceData
from levytorch.data.lattice import Lattice
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.compare import held_out
from levytorch.diagnostics.verdicts import Verdict, verdicts
from levytorch.errors import ConfigError, InputError, LevytorchWarning
from levytorch.files import write_json
from levytorch.ranks import check_processes
from levytorch.runs import actions, page, report, resume, terminal, value
from levytorch.runs.allow_list import own_targets
from levytorch.runs.directory import write_record
from levytorch.runs.report import Outcome, noted_doubts, units_of
from levytorch.runs.settings import Prepared, diagnostics_options, prepare_run
from levytorch.runs.tensorboard import CoefficientFigures, open_board
from levytorch.runs.words import for_command_line
from levytorch.training.engines import Engine
from levytorch.training.fit_report import FitReport
from levytorch.training.recovery import Recovery
from levytorch.training.trainer import train as fit_with_lightning

log = logging.getLogger("levytorch.train")


def train(config: Any, directory: Path) -> Outcome | None:
    """Data, fit, report and value function of a configuration, in a directory that is this process's own.

    config: a composed conf/train.yaml; with `resume` set the run in the directory is gone on with. Of several processes
    the first one writes; the others are done after the fit and return None.
    """
    resumed, started = config["resume"] is not None, HydraConfig.initialized()
    overrides = list(HydraConfig.get().overrides.task) if started else []
    if config["seed"] is None:  # a new one, which the record has, so that the run can be repeated and gone on with
        config["seed"] = seed_of(None)
        overrides = [*(one for one in overrides if not one.startswith("seed=")), f"seed={config['seed']}"]
    prepared = prepare_run(config, directory, resumed=resumed, own_targets=own_targets(overrides))
    first = start_processes(prepared.config["trainer"], prepared.fit.engine)
    checkpoint = resume.checkpoint(directory) if resumed else None
    if first and started:
        write_record(directory, config, resume.without_resume(overrides), new=not resumed)
    began = time.perf_counter()
    data = prepared.source()
    seconds = time.perf_counter() - began
    outcome: Outcome | None
    if actions.has_actions(prepared.config, data):
        outcome = actions.train_by_action(prepared, data, directory, resumed=resumed, fit_one=fit_and_report)
    else:
        data = actions.alike(data)
        value.check_value_data(prepared.config, data, prepared.fit.head)
        outcome = fit_and_report(prepared, data, directory, checkpoint=checkpoint)
        if outcome is None:
            return None
        began, drawn = time.perf_counter(), outcome.metrics["seconds_of"].get("figures", 0.0)
        value.add_value(outcome, prepared.config)
        drawn = outcome.metrics["seconds_of"].get("figures", 0.0) - drawn
        outcome.took("value", time.perf_counter() - began - drawn)
    outcome.took("data", seconds)
    write_json(directory / "metrics.json", outcome.metrics)
    page.write_run_page(outcome, overrides)
    return outcome


def fit_and_report(
    prepared: Prepared, data: SourceData, directory: Path, *, checkpoint: Path | None = None
) -> Outcome | None:
    """Fit and write recovery.pt, metrics.json, curves.csv, history.csv, figures/ and what the loggers keep."""
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    config, loggers, data = prepared.config, prepared.loggers, actions.alike(data)
    directory.mkdir(parents=True, exist_ok=True)
    for callback in prepared.callbacks:
        if isinstance(callback, CoefficientFigures):
            callback.truth = data.dynamics
    flags = {
        "logger": loggers or False,
        "default_root_dir": str(directory),
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in prepared.callbacks),
    }
    opening = terminal.opening(data.transitions, prepared.fit, config)
    if ranks.is_first():
        log.info(opening)
        open_board(loggers, config, resumed=checkpoint is not None)
    began = time.perf_counter()
    with noted_doubts() as doubts:
        warn_of_another_alpha(data.dynamics, prepared.fit.alpha)
        try:
            found = fit_with_lightning(
                data.transitions,
                prepared.fit,
                callbacks=prepared.callbacks,
                trainer=prepared.trainer | flags,
                trainer_class=prepared.trainer_class,
                resume=None if checkpoint is None else str(checkpoint),
            )
        except MisconfigurationException as error:  # of a flag, a callback or a logger of the user's own
            message = " ".join(str(error).split())
            raise ConfigError(
                f"trainer must hold settings that Lightning accepts, found others ({message}); change them."
            ) from error
        found.trainer.strategy.barrier()
        if not found.trainer.is_global_zero:
            return None
        recovery = found.recovery
        seconds = time.perf_counter() - began
        recovery.save(directory / "recovery.pt")  # whatever the checks run into, the fit is there
        said = FitReport.of(recovery, truth=data.dynamics)
        metrics = said.metrics() | report.summary(recovery, data.dynamics) | held_out_in_sweep(recovery, config)
        metrics |= {"seconds_fit": seconds, "seed": config["seed"], "head": head_name(recovery.head)}
        metrics |= {"seconds_of": {"fit": seconds}, "opening": opening, **(data.facts or {})}
        outcome = Outcome(
            *(recovery, data, said, metrics, directory, loggers, prepared.figure_formats), settings=prepared.fit
        )
        outcome.units = units_of(config["data"])
        check_and_draw(outcome, config)
    doubts = [for_command_line(doubt) for doubt in doubts]
    metrics["warnings"] = doubts
    if outcome.diagnosis is not None:
        metrics |= outcome.diagnosis.metrics() | {"diagnosis": outcome.diagnosis.text().splitlines()}
        metrics["alarms"] = {name: for_command_line(said) for name, said in metrics["alarms"].items()}
        outcome.diagnosis.alarms = metrics["alarms"]
    outcome.verdicts = [
        Verdict(**{key: for_command_line(text) for key, text in one.plain().items()})
        for one in verdicts(said, outcome.diagnosis, doubts)
    ]
    metrics["verdicts"] = [one.plain() for one in outcome.verdicts]
    report.write_checks(outcome, config)
    return outcome


def warn_of_another_alpha(truth: Any, alpha: AlphaSpec) -> None:
    """Data that was simulated with one alpha and is fitted with another: a misprint, or meant so."""
    known = getattr(truth, "alpha", None)
    if isinstance(known, int | float) and not alpha.learned and alpha.value != known:
        warnings.warn(
            f"the data was simulated with alpha = {known:g}, and alpha = {alpha.value:g} was given: coefficients will "
            f"be off; use dynamics.alpha={alpha.value:g} for data of that alpha.",
            LevytorchWarning,
            stacklevel=2,
        )


def head_name(head: Head) -> str:
    """The name of one of levytorch's heads, or the class of the user's own."""
    return next((name for name, kind in HEADS.items() if type(head) is kind), type(head).__name__)


def held_out_in_sweep(recovery: Recovery, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the page that compares the runs of a sweep needs; experiments of the paper have pages of their own."""
    swept = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    if not swept or config["experiment"] is not None:
        return {}
    try:
        return {"held_out": held_out(recovery)}
    except (InputError, ArithmeticError) as error:
        log.info(f"no held-out likelihood: {error}")
        return {}


def check_and_draw(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """The checks of the fit, and meanwhile its figures."""
    began, source, aside = time.perf_counter(), outcome.source, ThreadPoolExecutor(1)
    pairs = source.sample if isinstance(source.transitions, Lattice) else source.transitions
    checks = None
    if config["diagnostics"]["checks"]:
        if pairs is None:
            log.info("no checks: they need the pairs themselves, which a lattice does not hold")
        else:
            options = diagnostics_options(config["diagnostics"], truth_known=outcome.source.dynamics is not None)
            checks = aside.submit(diagnose, outcome.recovery, pairs, seed=config["seed"], **options)
    with aside:
        report.write_fit(outcome)
        if checks is not None:
            outcome.diagnosis = checks.result()
            drawing = outcome.metrics["seconds_of"].get("figures", 0.0)
            outcome.took("diagnostics", time.perf_counter() - began - drawing)


def start_processes(trainer: Mapping[str, Any], engine: Engine) -> bool:
    """What several processes on one fit need before anything is computed; returns whether this one writes."""
    if not ranks.processes(trainer):
        return True
    check_processes(trainer["devices"] * trainer["num_nodes"], engine.name, engine.full_batch)
    here = HydraConfig.get() if HydraConfig.initialized() else None
    if here is not None and here.mode.name == "MULTIRUN":
        raise ConfigError(
            f"a sweep must run one process per job, found trainer.devices={trainer['devices']} and "
            f"trainer.num_nodes={trainer['num_nodes']}; leave them out, or start the runs one by one."
        )
    placed = here is None or any(o.startswith("hydra.run.dir=") for o in here.overrides.hydra)
    if ranks.started_from_outside() and not placed:
        raise ConfigError(
            "hydra.run.dir must be given for processes that torchrun or srun starts, found none; add "
            "hydra.run.dir=outputs/<name>."
        )
    ranks.share_processors(trainer["devices"])
    first = ranks.is_first()
    if not first:
        warnings.simplefilter("ignore", LevytorchWarning)
    elif not ranks.started_from_outside():
        parent.announce()
    return first
