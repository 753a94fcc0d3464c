"""Coefficients out of transitions: `python train.py` (see conf/train.yaml and README).

`python train.py resume=<run directory>` goes on in that directory with the settings the run was started with.
"""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from levytorch import interrupts, ranks
from levytorch.atomic import unwritable
from levytorch.data.memory import is_shortage
from levytorch.errors import ConfigError, LevytorchError, LevytorchWarning
from levytorch.runs import claim as place
from levytorch.runs import foreign, resume

log = logging.getLogger("levytorch.train")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def build_source(config: DictConfig, directory: Path) -> Any:
    """The source of the data, built from its `_target_` by hydra: settings of one's own command line."""
    try:
        source = hydra.utils.instantiate(config.data, _convert_="all", **cache_of(config.data, directory))
    except InstantiationException as error:
        if isinstance(error.__cause__, LevytorchError):
            raise error.__cause__ from None
        told = " ".join(str(error).split())
        raise ConfigError(
            f"data must be a source that can be built, found one that cannot ({told}); check its keys."
        ) from error
    return source


def cache_of(data: Any, directory: Path) -> dict[str, str]:
    """Pairs that do not fit into memory lie in the run directory, where a resumed run finds them."""
    return {"on_disk": str(directory / "cache")} if data.get("on_disk") is True else {}


def prepare(config: DictConfig, directory: Path, *, again: bool = False) -> tuple[dict[str, Any], Any]:
    """The plain settings and the source of the data; everything that can be refused is, before any data is made.

    again: the settings come out of a run directory, which may be someone else's.
    """
    from levytorch.policy.rewards import check_reward
    from levytorch.runs.config import check_config
    from levytorch.runs.empirical import options_of

    settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    if again:
        foreign.check_settings(settings, directory)  # before anything that it names is looked at
    if "rates" in config or "group_by" in config:
        raise ConfigError(f"experiment={config.experiment} is for evaluate.py, but this is train.py; use the other.")
    check_config(settings)
    options_of(settings)
    if settings["beta"] is not None:
        check_reward(settings["reward"], settings["beta"])
    data = settings["data"]
    if data.get("_target_") == "levytorch.data.sources.FromFile" and OmegaConf.is_interpolation(config, "alpha"):
        raise ConfigError("alpha must be given for data from a file, found none; add alpha=learn or alpha=<number>.")
    source = foreign.build({**data, **cache_of(data, directory)}) if again else build_source(config, directory)
    if not callable(source):
        raise ConfigError(f"data must be a callable source, found {source!r:.60}; choose one with data=<name>.")
    return settings, source


def check_value(config: dict[str, Any], data: Any) -> None:
    """Refuse, before the fit, what the value function at its end could not be computed from."""
    if config["beta"] is None:
        return
    if config["empirical"] is not None:
        from levytorch.runs.empirical import check_series

        check_series(data, config)
    elif data.transitions.dim == 2:
        from levytorch.policy.plane_rewards import check_plane_reward

        check_plane_reward(config["reward"])
    elif data.transitions.dim == 1:
        from levytorch.policy.rewards import check_logged_reward

        check_logged_reward(config["reward"], data.transitions)


def add_value(outcome: Any, config: dict[str, Any]) -> None:
    """The value function of the recovered dynamics, when a reward can be made from what is known."""
    if config["beta"] is None:
        return
    if config["empirical"] is not None:
        from levytorch.runs.empirical import add_empirical_value

        add_empirical_value(outcome, config)
        return
    from levytorch.policy.rewards import RewardContext, build_reward
    from levytorch.policy.solver import solve_value

    recovery, truth = outcome.recovery, outcome.source.dynamics
    if truth is None and config["reward"]["name"] == "manufactured":
        log.info(
            "no value function: a manufactured reward needs a known system; choose one with reward=... (docs/policy.md)"
        )
        return
    if recovery.dim > 1:
        add_plane_value(outcome, config)
        return
    context = RewardContext(recovery.period, recovery.origin, config["beta"], truth, outcome.source.transitions)
    reward = build_reward(config["reward"], context)
    value = solve_value(recovery, reward, config["beta"])
    reference = None if truth is None else solve_value(truth, reward, config["beta"])
    write_value(outcome, value, reference)


def add_plane_value(outcome: Any, config: dict[str, Any]) -> None:
    """The same in the plane; in three dimensions there is no solver."""
    if outcome.recovery.dim > 2:
        log.info("no value function: solve_value works in one and two dimensions")
        return
    from levytorch.policy.plane_rewards import build_plane_reward
    from levytorch.policy.solver import solve_value
    from levytorch.runs import plane_report

    recovery, truth, beta = outcome.recovery, outcome.source.dynamics, config["beta"]
    reward = build_plane_reward(config["reward"], recovery, truth, beta)
    reference = None if truth is None else solve_value(truth, reward, beta)
    plane_report.write_value(outcome, solve_value(recovery, reward, beta), reference)


def write_value(outcome: Any, value: Any, reference: Any) -> None:
    """value.pt, the curve beside the others, the figure, the error."""
    import numpy as np
    import torch

    from levytorch.figures.coefficients import observed_parts
    from levytorch.figures.values import Band, value_bands
    from levytorch.tables import write_csv, write_json

    directory = outcome.directory
    x = torch.linspace(value.origin, value.origin + value.period, 401, dtype=torch.float64)
    curves = {"x": x.numpy(), "V": value(x).numpy()}
    if value.covariance_factor is not None:
        curves["V_std"] = value.std(x).numpy()
    if reference is not None:
        curves["V_truth"] = reference(x).numpy()
        difference = curves["V"] - curves["V_truth"]
        outcome.metrics["error_V"] = float(np.sqrt(np.mean(difference**2) / np.mean(curves["V_truth"] ** 2)))
    value.save(directory / "value.pt")
    write_csv(directory / "value.csv", curves)
    write_json(directory / "metrics.json", outcome.metrics)
    width = 1.96 * curves["V_std"] if "V_std" in curves else None
    band = Band("recovered", curves["V"], width, "95 % band")
    truth = {"reference": curves.get("V_truth"), "reference_label": "truth"}
    observed = observed_parts(outcome.recovery.support, value.origin, value.period)
    outcome.publish("value", lambda: value_bands(curves["x"], [band], observed=observed, **truth)[0])


def start_processes(config: DictConfig) -> bool:
    """What several processes on one fit need before anything is computed; returns whether this one writes."""
    from hydra.core.hydra_config import HydraConfig

    several = ranks.processes(config.trainer)
    if not several:
        return True
    here = HydraConfig.get()
    if here.mode.name == "MULTIRUN":
        raise ConfigError(
            f"a sweep runs one process per job, found trainer.devices={config.trainer.devices} and "
            f"trainer.num_nodes={config.trainer.num_nodes}; leave them out, or start the runs one by one."
        )
    if ranks.started_from_outside() and not any(o.startswith("hydra.run.dir=") for o in here.overrides.hydra):
        raise ConfigError(
            "processes that torchrun or srun starts need one run directory, found none given; add "
            "hydra.run.dir=outputs/<name>."
        )
    ranks.share_processors(config.trainer.devices)
    first = ranks.is_first()
    if not first:
        warnings.simplefilter("ignore", LevytorchWarning)
        if not ranks.started_from_outside():
            ranks.follow_parent()
    return first


@hydra.main(config_path="conf", config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    from hydra.core.hydra_config import HydraConfig

    directory = Path(HydraConfig.get().runtime.output_dir)
    multirun = HydraConfig.get().mode.name == "MULTIRUN"
    try:
        with interrupts.interruptible(), place.claimed(directory):
            if config.resume is None:
                place.check_unused(directory)
            return train(config, directory, multirun=multirun)
    except LevytorchError as error:
        if multirun:
            raise
        # not to the log file, which is another run's
        sys.exit(f"{type(error).__name__}: {error}")


def train(config: DictConfig, directory: Path, *, multirun: bool = False) -> float | None:
    """The run, in a directory that is this process's own."""
    from hydra.core.hydra_config import HydraConfig

    from levytorch.runs import run as runs

    again = config.resume is not None
    logging.raiseExceptions = False  # a log file on a full disk must not bury the error itself in tracebacks
    first = True
    try:
        settings, source = prepare(config, directory, again=again)
        first = start_processes(config)
        checkpoint = resume.checkpoint(directory) if again else None
        if first:
            resume.write_record(directory, config, HydraConfig.get().overrides.task, again=again)
        data = source()
        check_value(settings, data)
        outcome = runs.run(settings, data, directory, checkpoint=checkpoint)
        if outcome is None:
            return None
        add_value(outcome, settings)
    except interrupts.Interrupted as stop:
        if first:
            log.warning(f"stopped by {stop.name}; go on with: python train.py resume={directory}")
        raise
    except (LevytorchError, OSError, OmegaConfBaseException) as error:
        if isinstance(error, ranks.SharedError) and not first:
            return None  # the first process has the same error and says so
        if isinstance(error, OSError) and error.errno in FULL:
            error = unwritable(error.filename or directory, error)
        log.error(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        if multirun:
            raise
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        log.error("memory must hold the data, found none left; use data.on_disk=true (docs/scaling.md) or fewer pairs.")
        sys.exit(2)
    log.info(runs.table(outcome.metrics))
    if "error_V" in outcome.metrics:
        log.info(f"value function: relative L2 error {outcome.metrics['error_V']:.2%}")
    log.info(f"run directory: {directory}")
    errors = [outcome.metrics[k] for k in ("error_b", "error_D_o", "error_D_f") if k in outcome.metrics]
    return sum(errors) / len(errors) if errors else None


if __name__ == "__main__":
    try:
        sys.argv[1:] = ranks.quiet_arguments(resume.expand(sys.argv[1:]))
    except LevytorchError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    main()
