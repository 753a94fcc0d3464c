"""Callbacks, loggers, Trainer flags, heads and engines of one's own, named on the command line."""

import csv
import json
import shutil
from pathlib import Path

import lightning as L
import pytest
from hydra import compose, initialize_config_dir
from lightning.pytorch.loggers import CSVLogger

from levytorch.errors import ConfigError
from levytorch.runs import allow_list, resume
from levytorch.runs.settings import prepare_run
from levytorch.runs.tensorboard import CoefficientFigures, TensorBoard
from levytorch.runs.training import train
from levytorch.training.callbacks import Checkpoints
from tests.runs.parts import Announced, Narrow, Noted, Steps

ROOT = Path(__file__).parents[2]
SMALL = [
    "data.n_trajectories=60",
    "coefficients.n_basis=3",
    "data.censor.CT=2",
    "law=frozen",
    "trainer.progress=false",
    "beta=null",
]
BARE = ["diagnostics=none", "callbacks.figures.files=[]"]
STEPS = "+callbacks.steps._target_=tests.runs.parts.Steps"
CSV = ["+logger.csv._target_=lightning.pytorch.loggers.CSVLogger", "+logger.csv.save_dir=${directory}"]


def composed(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", [*SMALL, *BARE, *overrides])


def test_the_usual_parts(tmp_path):
    prepared = prepare_run(composed("callbacks.checkpoints.every=7"), tmp_path)
    checkpoints, figures = prepared.callbacks
    assert isinstance(checkpoints, Checkpoints)
    assert (checkpoints.directory, checkpoints.every) == (tmp_path / "checkpoints", 7)
    assert isinstance(figures, CoefficientFigures)
    assert figures.files == ()
    (logger,) = prepared.loggers
    assert isinstance(logger, TensorBoard)
    assert Path(logger.log_dir) == tmp_path / "tensorboard"
    assert prepared.trainer == {}
    assert list(tmp_path.iterdir()) == []  # nothing has been written


def test_early_stopping_is_a_group(tmp_path):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        wanted = ["engine=adamw", "coefficients=mlp", "callbacks=early_stopping", "batch.validation=0.2", *BARE]
        prepared = prepare_run(compose("train", wanted), tmp_path)
    kinds = [type(callback).__name__ for callback in prepared.callbacks]
    assert sorted(kinds) == ["Checkpoints", "CoefficientFigures", "EarlyStopping"]
    assert prepared.trainer == {"val_check_interval": 100}


@pytest.mark.parametrize(
    ("override", "count"), [("logger=none", 0), ("logger.tensorboard=false", 0), ("logger.tensorboard=true", 1)]
)
def test_no_logger_and_the_switch_of_older_runs(override, count, tmp_path):
    assert len(prepare_run(composed(override), tmp_path).loggers) == count


def test_a_callback_a_logger_and_a_flag(tmp_path):
    chosen = [STEPS, f"+callbacks.steps.file={tmp_path / 'steps'}", "logger=none", *CSV, "+logger.csv.name=csv"]
    outcome = train(composed(*chosen, "+trainer.max_time={hours: 1}", "+trainer.precision=64-true"), tmp_path / "run")
    assert len((tmp_path / "steps").read_text()) == outcome.metrics["steps"] + 1  # the first one prepares the fit
    (table,) = (tmp_path / "run" / "csv").rglob("metrics.csv")
    columns = set(next(csv.reader(table.open())))
    assert {"train/nll", "tail/TCF", "final/error_D_f"} <= columns
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert any(isinstance(logger, CSVLogger) for logger in outcome.loggers)


def test_a_head(tmp_path):
    own = ["coefficients._target_=tests.runs.parts.Narrow", "+coefficients.pairs=2", "coefficients.period=3.0"]
    outcome = train(composed(*own, "logger=none"), tmp_path / "run")
    assert isinstance(outcome.recovery.head, Narrow)
    assert (outcome.recovery.period, len(outcome.recovery.theta)) == (3.0, 15)
    assert outcome.metrics["converged"]


def test_a_trainer(tmp_path, monkeypatch):
    own = ["+trainer._target_=tests.runs.parts.Announced", "+trainer.said=here", "+trainer.max_time={hours: 1}"]
    prepared = prepare_run(composed(*own), tmp_path)
    assert prepared.trainer_class is Announced
    assert prepared.trainer == {"said": "here", "max_time": {"hours": 1}}
    made = []
    monkeypatch.setattr(Announced, "fit", lambda self, *a, **k: (made.append(self.said), L.Trainer.fit(self, *a, **k)))
    assert train(composed(*own, "logger=none"), tmp_path / "run").metrics["converged"]
    assert made == ["here"]
    with pytest.raises(ConfigError, match="_target_ of a resumed run must be one of"):
        prepare_run(composed(*own), tmp_path, resumed=True)
    named = {"trainer": "tests.runs.parts.Announced"}
    with pytest.raises(ConfigError, match=r"trainer\.said of a resumed run"):
        prepare_run(composed(*own), tmp_path, resumed=True, own_targets=named)
    again = prepare_run(composed(own[0]), tmp_path, resumed=True, own_targets=named)
    assert again.trainer_class is Announced


def test_an_engine(tmp_path):
    own = ["engine=lbfgs", "engine._target_=tests.runs.parts.Noted", "+engine.least=3", "engine.max_steps=2"]
    outcome = train(composed(*own, "logger=none"), tmp_path / "run")
    assert outcome.metrics["engine"] == "noted"
    assert outcome.metrics["steps"] == Noted.steps == 2
    with pytest.raises(ConfigError, match="found 'lest'; use least"):
        prepare_run(composed(*own[:2], "+engine.lest=3"), tmp_path)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["+trainer.colour=1"], "settings of trainer must be among .*, found 'colour'"),
        (["+trainer.acelerator=cpu"], "use accelerator"),
        (["+trainer.max_steps=3"], r"engine\.max_steps"),
        (["+trainer.logger=false"], "the group logger"),
        (["+callbacks.figures.evry=3"], "found 'evry'; use every"),
        (["+callbacks.checkpoints.directory=/somewhere"], "found 'directory'"),
        (["+logger.tensorboard.directory=/somewhere"], "found 'directory'"),
        (["callbacks.checkpoints.every=0"], r"callbacks\.checkpoints\.every must be a positive integer"),
        (["+callbacks.mine=3"], r"callbacks\.mine must be a group whose _target_ names a class"),
        (["+callbacks.mine._target_=tests.runs.parts.Plain"], "must be a Lightning Callback"),
        (["+logger.mine._target_=tests.runs.parts.Steps", "+logger.mine.file=x"], "must be a Lightning Logger"),
        (["+callbacks.mine._target_=tests.runs.parts.Nothing"], r"callbacks\.mine must name a class and its arguments"),
        ([STEPS, "+callbacks.steps.colour=red"], r"callbacks\.steps must name a class and its arguments"),
        (["coefficients._target_=tests.runs.parts.Plain"], "derive it from Head"),
        (["coefficients._target_=tests.runs.parts"], "must name a Head, found <module"),
        (["engine._target_=tests.runs.parts.Plain"], "derive it from Engine"),
        (["engine._target_=builtins.dict"], "derive it from Engine"),
        (["engine._target_=builtins.max"], "derive it from Engine"),
        (["+trainer._target_=tests.runs.parts.Plain"], "derive it from Trainer"),
        (["+trainer._target_=tests.runs.parts.Announced", "+trainer.sad=1"], "use said"),
        (["coefficients._target_=tests.runs.nowhere.Head"], "must be importable"),
    ],
)
def test_what_cannot_be_built_is_refused_before_any_work(overrides, match, tmp_path):
    with pytest.raises(ConfigError, match=match) as error:
        prepare_run(composed(*overrides), tmp_path)
    assert "\n" not in str(error.value)


def test_what_lightning_refuses_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer must hold settings that Lightning accepts.*abacus"):
        prepare_run(composed("+trainer.accelerator=abacus"), tmp_path)
    with pytest.raises(ConfigError, match=r"trainer must hold settings that Lightning accepts.*gradient_clip_val"):
        train(composed("+trainer.gradient_clip_val=1.0", "engine=adam", "logger=none"), tmp_path / "run")


def run_directory(path, *overrides):
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"overrides": list(overrides)}))
    return path


def test_a_resumed_run_builds_no_part_of_someone_elses(tmp_path):
    file = f"+callbacks.steps.file={tmp_path / 'steps'}"
    with pytest.raises(ConfigError, match="_target_ of a resumed run must be one of"):
        prepare_run(composed(STEPS, file), tmp_path, resumed=True)
    with pytest.raises(ConfigError, match=r"trainer\.profiler of a resumed run"):
        prepare_run(composed("+trainer.profiler=advanced"), tmp_path, resumed=True)
    with pytest.raises(ConfigError, match="_target_ of a resumed run must be one of"):
        prepare_run(composed("+trainer.profiler={_target_: tests.runs.parts.Plain}"), tmp_path, resumed=True)
    usual = prepare_run(composed("+trainer.max_time={hours: 1}"), tmp_path, resumed=True)
    assert [type(part) for part in (*usual.callbacks, *usual.loggers)] == [Checkpoints, CoefficientFigures, TensorBoard]
    assert usual.trainer == {"max_time": {"hours": 1}}


@pytest.mark.parametrize("group", ["engine", "coefficients"])
def test_a_listed_name_in_the_wrong_place_is_not_even_built(group, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Checkpoints, "__init__", lambda self, **options: made.append(options))
    elsewhere = [f"{group}._target_=levytorch.training.callbacks.Checkpoints", f"+{group}.directory={tmp_path}/x"]
    with pytest.raises(ConfigError, match="derive it from"):
        prepare_run(composed(*elsewhere), tmp_path, resumed=True)
    assert not made


@pytest.mark.long
def test_one_s_own_parts_are_repeated_to_go_on(tmp_path):
    """What stands on the user's own command line is theirs; what is only in the directory is not."""
    file, sign = f"+callbacks.steps.file={tmp_path / 'steps'}", "+callbacks.steps.sign=x"
    run = run_directory(tmp_path / "run", "seed=1", STEPS, file)
    with pytest.raises(ConfigError, match="_target_ names something else"):
        resume.expand([f"resume={run}"])
    with pytest.raises(ConfigError, match="an argument of what your command line builds"):
        resume.expand([f"resume={run}", STEPS])
    line = resume.expand([f"resume={run}", STEPS, file])
    assert line[:3] == ["seed=1", STEPS, file]
    own = allow_list.own_targets(line)
    assert own == {"callbacks.steps": "tests.runs.parts.Steps"}
    made = prepare_run(composed(STEPS, file, sign), tmp_path, resumed=True, own_targets=own).callbacks[-1]
    assert isinstance(made, Steps)
    for elsewhere in ("+data.steps={_target_: tests.runs.parts.Steps}", "data._target_=tests.runs.parts.Steps"):
        with pytest.raises(ConfigError, match="_target_ of a resumed run must be one of"):
            prepare_run(composed(elsewhere), tmp_path, resumed=True, own_targets=own)
    shutil.rmtree(run)
    run = run_directory(tmp_path / "run", "++callbacks={steps: {file: /somewhere}}")
    with pytest.raises(ConfigError, match="an argument of what your command line builds"):
        resume.expand([f"resume={run}", STEPS])
