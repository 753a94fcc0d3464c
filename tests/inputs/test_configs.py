"""Every leaf of every configuration with every kind of wrong value, judged before any data is made."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from levytorch import ranks
from levytorch.errors import ConfigError, LevytorchError
from levytorch.runs import training
from levytorch.runs.evaluation_settings import check_settings
from levytorch.runs.settings import prepare_run
from levytorch.runs.value import add_value
from tests import sampling
from tests.inputs.configs import BAD, GROUPS, changed, composed, evaluate_cases, small, train_cases
from tests.inputs.judge import REFUSED, Defect, judge
from tests.processes import run

PARTS = ("batch", "callbacks.checkpoints", "callbacks.figures")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    steps = np.random.default_rng(0).standard_cauchy(400) / 100
    path = tmp_path_factory.mktemp("data") / "p.csv"
    lines = [f"{k},{x},{k}" for k, x in enumerate(np.cumsum(steps))]
    path.write_text("\n".join(["time,x,r", *lines]) + "\n")
    return path


def try_config(config, what):
    """Whether the configuration may run and its data can be made; refused in one sentence (ours or OmegaConf's) if not.

    Everything but the data itself is refused before any data is made.
    """
    try:
        answer = judge(lambda: prepare_run(config, Path()), what)
        return answer is not REFUSED and judge(answer.source, what) is not REFUSED
    except Defect as defect:
        if isinstance(defect.__cause__, OmegaConfBaseException):
            return False  # one line from train.py, see test_omegaconf_errors_are_one_line
        raise


@pytest.mark.slow
def test_every_leaf_of_train_with_every_value(file, record_property, tmp_path):
    accepted, defects, count = [], [], 0
    for what, config in train_cases(file):
        count += 1
        try:
            if try_config(config, what):
                accepted.append((what, config))
                if what.endswith("colour=red"):
                    raise Defect(f"{what}: a key that nothing reads was let through")
        except Defect as defect:
            defects.append(str(defect))
    assert not defects, "\n".join(defects)  # all of them: a run of this test takes minutes
    assert count > 2000
    record_property("inputs to train.py", count)
    # what was let through must run to its end, or be refused for what the data turned out to be
    alone = [case for case in accepted if not ranks.processes(case[1].trainer)]  # here nobody starts processes
    for k, (what, config) in enumerate(sampling.dice(0).sample(alone, 40)):
        try:
            prepared = prepare_run(config, tmp_path / str(k))
            outcome = training.fit_and_report(prepared, prepared.source(), tmp_path / str(k))
            add_value(outcome, prepared.config)
        except LevytorchError:
            continue
        except Exception as error:
            raise Defect(f"{what}: {type(error).__name__}: {error}") from error


def test_some_leaves_of_train(file, record_property):
    dice = sampling.dice(1)
    config = composed("train", *small())
    keys = "seed alpha init units batch.batch_size batch.validation beta data.n_trajectories data.dt data.censor.TRT"
    keys += " dynamics.alpha coefficients.n_basis coefficients.period engine.max_steps tail.CT tail.start reward.power"
    keys += " trainer.log_every callbacks.figures.every logger.tensorboard density.method"
    for key in keys.split():
        for value in dice.sample(BAD, 3):
            try_config(changed(config, key, value), f"{key}={value!r}")
    record_property("inputs to train.py", 3 * len(keys.split()))


@pytest.mark.parametrize("key", ["engin", "n_basis", *(f"{group}.colour" for group in [*GROUPS, *PARTS])])
def test_keys_that_nothing_reads_are_no_settings(key):
    """What `+key=value` adds: hydra lets it in, and a misspelt setting would do nothing."""
    config = changed(composed("train", *small()), key, 1)
    assert not try_config(config, key)


@pytest.mark.parametrize("key", ["bta", "alpha", "truth.colour", "data.colour", "reward.colour"])
def test_nor_are_they_for_evaluations(key):
    settings = OmegaConf.to_container(changed(composed("evaluate", "run=outputs/*"), key, 1), resolve=True)
    assert judge(lambda: check_settings(settings), key) is REFUSED


def test_thresholds_are_not_for_an_automatic_tail(file):
    """They would be ignored; those that data=file leaves open are none."""
    open_ = composed("train", "data=file", f"data.path={file}", "alpha=0.3", "reward=cosine_power", "tail=auto")
    assert try_config(open_, "tail=auto")
    assert not try_config(changed(open_, "tail.TRT", 20.0), "tail=auto tail.TRT=20")


def test_the_nearest_key_is_named():
    with pytest.raises(
        ConfigError, match=r"settings must be among actions, alpha, .*, found 'engin'; use engine, or remove it"
    ):
        prepare_run(changed(composed("train", *small()), "engin", "fisher"), Path())


@pytest.mark.slow
def test_every_leaf_of_evaluate_with_every_value(record_property):
    count = 0
    for what, config in evaluate_cases():
        count += 1
        settings = OmegaConf.to_container(config, resolve=True)
        judge(lambda s=settings: check_settings(s), what)
    assert count > 1000
    record_property("inputs to evaluate.py", count)


@pytest.mark.parametrize(
    "override",
    [
        "data=file",
        pytest.param("alpha=${nothing}", marks=pytest.mark.slow),
        pytest.param("data.n_steps=abc", marks=pytest.mark.slow),
        pytest.param("resume=nowhere", marks=pytest.mark.slow),
        pytest.param("colour=red", marks=pytest.mark.slow),
    ],
)
def test_omegaconf_errors_are_one_line(override, tmp_path):
    """A missing value, an interpolation into nothing, a wrong kind and a wrong directory: one line and an exit code."""
    status, said = run("train.py", override, "hydra.run.dir=run", cwd=tmp_path)
    assert status in (1, 2)
    assert "Traceback" not in said
