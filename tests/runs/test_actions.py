"""Data with actions through train.py and evaluate.py: files, policies, resuming, refusals, hostile files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from levytorch import ContinuousRecovery, ControlledDynamics, ControlledRecovery, Recovery, simulate
from levytorch.errors import ConfigError, InputError
from levytorch.policy.named import build_policy, check_policies
from levytorch.runs import actions, training
from levytorch.runs.evaluate import run_evaluation
from levytorch.runs.reading import load_recovery, read_run

ROOT = Path(__file__).parents[2]
SMALL = ("data.n_trajectories=60", "data.substeps=1", "coefficients.n_basis=1", "law=frozen", "trainer.progress=false")
QUIET = ("diagnostics=none", "logger=none", "callbacks.figures.files=[]")
REWARD = ("reward=cosine_power", "reward.power=1", "reward.cost=0.1", "beta=1")


def configured(*overrides: str):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", list(overrides))


def settings(*overrides: str) -> dict:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("evaluate", list(overrides)), resolve=True)  # type: ignore[return-value]


def trained(place: Path, *overrides: str):
    """A run in process; its configuration is kept as train.py keeps it."""
    config = configured(*overrides)
    outcome = training.train(config, place)
    (place / ".hydra").mkdir(exist_ok=True)
    (place / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config))
    return outcome


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "pushes"
    trained(place, "experiment=actions", *SMALL, "diagnostics=none")
    return place


# -- train.py ---------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_run_with_actions_leaves_everything(run):
    names = "recovery.pt metrics.json curves.csv policies.csv policy_values.csv report.html values/policy0.pt"
    figures = "figures/coefficients.png figures/value.png figures/policy_improved.png"
    each = [f"actions/{i}/{name}" for i in range(3) for name in ("recovery.pt", "done.json", "checkpoints/last.ckpt")]
    for name in (*names.split(), *figures.split(), *each):
        assert (run / name).is_file(), name
    found = ControlledRecovery.load(run)
    assert found.actions == (-1, 0, 1)
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["by_action"]) == {"-1", "0", "1"}
    assert {row["policy"] for row in metrics["values"]["policies"]} == {"behaviour", "uniform", "improved"}
    assert metrics["values"]["improved"]["improved"]["gain_std"] > 0
    assert len(metrics["values"]["differences"]) == 3
    assert sum(row["pairs"] for row in metrics["by_action"].values()) == 60 * 40


def test_a_run_finds_what_recover_finds(run):
    from levytorch import recover

    data = simulate(ControlledDynamics.named("pushes"), "uniform", 60, 40, 0.025, substeps=1, seed=0).transitions()
    direct, found = recover(data, alpha=0.6, n_basis=1, law="frozen"), ControlledRecovery.load(run)
    for action in found.actions:
        for name in ("b", "D_o", "D_f"):
            one, other = (float(getattr(r, name)(1.0, action)) for r in (direct, found))
            assert one == pytest.approx(other, rel=1e-6)
    assert torch.allclose(direct.covariance, found.covariance, rtol=1e-4, atol=1e-8)


@pytest.mark.long
def test_an_interrupted_run_goes_on_to_the_same_numbers(run, tmp_path):
    """Killed after the first action: that one is taken as it is, the others are fitted."""
    place = tmp_path / "killed"
    shutil.copytree(run, place)
    for name in ("recovery.pt", "metrics.json", "actions/1/done.json", "actions/1/recovery.pt"):
        (place / name).unlink()
    shutil.rmtree(place / "actions" / "2")
    before = (place / "actions" / "0" / "recovery.pt").stat().st_mtime_ns
    trained(place, "experiment=actions", *SMALL, *QUIET, f"resume={place}")
    assert (place / "actions" / "0" / "recovery.pt").stat().st_mtime_ns == before
    one, other = ControlledRecovery.load(run), ControlledRecovery.load(place)
    assert torch.equal(torch.cat([r.theta for r in one.recoveries]), torch.cat([r.theta for r in other.recoveries]))
    assert torch.equal(one.counts, other.counts)
    first, second = (json.loads((p / "metrics.json").read_text())["values"]["policies"] for p in (run, place))
    assert first == second


@pytest.mark.slow
def test_killed_in_the_middle_of_an_action(tmp_path):
    """kill -9 while the second action is fitted by adam; resume= gives the numbers of a run that was never stopped."""
    adam = ["engine=adam", "engine.max_steps=1500", "engine.window=400", "callbacks.checkpoints.every=100"]
    command = [sys.executable, str(ROOT / "train.py"), "experiment=actions", *SMALL, *QUIET, *adam]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, f"hydra.run.dir={whole}"], check=True, capture_output=True, cwd=ROOT)
    with subprocess.Popen(
        [*command, f"hydra.run.dir={killed}"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 300
        while not (killed / "actions" / "1" / "checkpoints" / "last.ckpt").exists():
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert (killed / "actions" / "0" / "done.json").is_file()
    assert not (killed / "recovery.pt").exists()
    again = [sys.executable, str(ROOT / "train.py"), f"resume={killed}"]
    done = subprocess.run(again, check=True, capture_output=True, cwd=ROOT, text=True)
    assert "action -1: done before" in done.stdout
    one, other = ControlledRecovery.load(whole), ControlledRecovery.load(killed)
    assert torch.equal(torch.cat([r.theta for r in one.recoveries]), torch.cat([r.theta for r in other.recoveries]))


def test_other_data_is_not_gone_on_with(run, tmp_path):
    place = tmp_path / "other"
    shutil.copytree(run, place)
    with pytest.raises(ConfigError, match="the data has changed"):
        trained(place, "experiment=actions", *SMALL, *QUIET, "data.n_trajectories=50", f"resume={place}")


def test_a_file_with_an_action_column(tmp_path):
    paths = simulate(ControlledDynamics.named("pushes"), "uniform", 40, 40, 0.025, substeps=1, seed=1)
    table = tmp_path / "logs.csv"
    paths.to_file(table)
    frame = pl.read_csv(table)
    names = {-1: "left", 0: "rest", 1: "right"}
    frame = frame.with_columns(push=pl.col("action").replace_strict(names, return_dtype=pl.String)).drop("action")
    reward = np.cos(frame["x"].to_numpy()) - 0.1 * (frame["push"].to_numpy() != "rest")
    frame.with_columns(r=reward).write_csv(table)
    more = ("data=file", f"data.path={table}", "data.action=push", "data.value=x", "data.reward=r", "alpha=0.6")
    cell = ("coefficients.period=6.283185307179586", "reward=regressed", "beta=1", "tail=none")
    small = ("coefficients.n_basis=1", "law=frozen", "trainer.progress=false")
    outcome = trained(tmp_path / "run", *more, *cell, *small, *QUIET, "shared=[D_o,D_f]")
    assert outcome.recovery.actions == ("left", "rest", "right")
    assert outcome.metrics["shared/freedom"] == 4
    assert outcome.metrics["values"]["policies"][0]["policy"] == "behaviour"
    # null ignores the actions
    alike = trained(tmp_path / "alike", *more, *cell[:1], *cell[2:], *small, *QUIET, "actions=null", "beta=null")
    assert isinstance(alike.recovery, Recovery)


@pytest.mark.slow
def test_a_scale_of_actions_on_a_line(tmp_path):
    place = tmp_path / "thrust"
    line = ("dynamics=thrust", "data=actions", "state=line", "tail=none", "coefficients.n_basis=4", "engine=fisher")
    small = ("data.n_trajectories=40", "data.substeps=2", "trainer.progress=false", "alpha=0.75", *REWARD)
    outcome = trained(place, *line, *small, "n_action=2", *QUIET, "policy=[behaviour,fixed]", "policy.fixed.action=0.5")
    assert isinstance(ContinuousRecovery.load(place), ContinuousRecovery)
    assert {row["policy"] for row in outcome.metrics["values"]["policies"]} == {"behaviour", "fixed"}
    run_evaluation(
        settings(
            f"run={place}", f"out={tmp_path / 'out'}", *REWARD, "policy=uniform", "tensorboard=false", "n_modes=32"
        )
    )
    assert (tmp_path / "out" / "figures" / "value.png").is_file()
    chosen = ("policy=improved", "policy.improved.actions=[-1.5,0,1.5]", "window=[-1,1]")
    out = run_evaluation(
        settings(f"run={place}", f"out={tmp_path / 'best'}", *REWARD, *chosen, "tensorboard=false", "n_modes=32")
    )
    assert json.loads((out / "metrics.json").read_text())["improved"]["improved"]["iterations"] > 1


# -- evaluate.py ------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_several_policies_in_one_table_and_one_figure(run, tmp_path):
    table = tmp_path / "policy.csv"
    table.write_text("x,action\n0.5,-1\n2.5,0\n5,1\n")
    chosen = ("policy=[behaviour,fixed,mixed,tabulated,improved]", "policy.fixed.action=1")
    more = ("policy.mixed.probabilities={-1:0.2,1:0.8}", f"policy.tabulated.path={table}")
    out = run_evaluation(settings(f"run={run}", f"out={tmp_path / 'out'}", *REWARD, *chosen, *more))
    rows = json.loads((out / "metrics.json").read_text())
    assert len(rows["policies"]) == 5
    assert len(rows["differences"]) == 10
    means = {row["policy"]: row["mean V"] for row in rows["policies"]}
    for row in rows["differences"]:
        assert row["difference"] == pytest.approx(means[row["first"]] - means[row["second"]], abs=1e-12)
        assert row["std"] > 0
    assert all("relative_l2" in row for row in rows["policies"])  # the system is an example by name
    columns = pl.read_csv(out / "policy_values.csv").columns
    assert {"x", "fixed", "fixed_std", "fixed_truth", "fixed_pairs"} <= set(columns)
    assert (out / "figures" / "policy_tabulated.png").is_file()
    assert len(list((out / "values").glob("policy*.pt"))) == 5


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (("policy=fixed",), "fixed.action must be given"),
        (("policy=fixed", "policy.fixed.action=7"), "found 7"),
        (("policy=mixed", "policy.mixed.probabilities=[0.5,0.6,0.1]"), "sum to one"),
        (("policy=mixed", "policy.mixed.probabilities={9:1.0}"), "found 9"),
        (("policy=callable", "policy.callable.path=no.such.thing"), "must be importable"),
        (("policy=improved", "policy.improved.temperature=-1"), "must not be negative"),
        (("policy=improved", "policy.improved.actions=[0,1]"), "must be left out where actions are labels"),
        (("policy=uniform", "policy.uniform.kind=other"), "must be one of"),
        (("policy=uniform", "+policy.uniform.colour=red"), "colour"),
        (("policy=uniform", "reward.cost={5:1.0}"), "must name actions of the data"),
        (("policy=uniform", "reward=manufactured"), "data with actions"),
        (("policy=uniform", "window=[0,1]"), "window must be left out beside a period"),
        (("policy=tabulated", "policy.tabulated.path=nowhere.csv"), "cannot be read"),
    ],
)
def test_refused_evaluations_write_nothing(run, tmp_path, overrides, word):
    out = tmp_path / "out"
    given = REWARD if "reward=manufactured" not in overrides else ("beta=1",)
    with pytest.raises((ConfigError, InputError), match=word):
        run_evaluation(settings(f"run={run}", f"out={out}", *given, *overrides, "tensorboard=false"))
    assert not out.exists()


def test_policies_are_for_runs_with_actions(run, tmp_path):
    with pytest.raises(ConfigError, match="policy must be left out of runs without actions"):
        run_evaluation(settings(f"run={run / 'actions' / '0'}", *REWARD, "policy=uniform", f"out={tmp_path / 'out'}"))
    both = f"run=[{run},{run / 'actions' / '0'}]"
    with pytest.raises(ConfigError, match="must name one run to compare policies on"):
        run_evaluation(settings(both, *REWARD, "policy=uniform", f"out={tmp_path / 'out'}"))


def test_a_table_of_probabilities(tmp_path, run):
    (tmp_path / "p.csv").write_text("x,-1,1\n0,0.25,0.75\n3,0.75,0.25\n")
    config = check_policies({"mine": {"kind": "tabulated", "path": str(tmp_path / "p.csv"), "x": None}})
    found = load_recovery(run / "recovery.pt")
    pi = found.policy(build_policy("mine", config["mine"], found, torch.cos, 1.0))
    assert pi(torch.tensor([0.0, 1.5, 3.0])).tolist() == [[0.25, 0, 0.75], [0.5, 0, 0.5], [0.75, 0, 0.25]]


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (("shared=[alpha]",), "shared must list"),
        (("actions=yes",), "actions"),
        (("n_action=1",), "n_action"),
        (("trainer.devices=2",), "one process"),
        (("data.policy=[0.5,0.6,0.1]",), "sum to one"),
        (("data.policy=7",), "found 7"),
        (("dynamics=variable", "alpha=0.3"), "policy must be left out"),
        (("alpha=function",), "one number for all actions"),
    ],
)
def test_refused_runs(tmp_path, overrides, word):
    place = tmp_path / "run"
    with pytest.raises((ConfigError, InputError), match=word):
        trained(place, "experiment=actions", *SMALL, *QUIET, *overrides)
    assert not (place / "recovery.pt").exists()


def test_a_system_with_actions_needs_a_policy():
    with pytest.raises(InputError, match="found none; use data=actions"):
        training.prepare_run(configured("dynamics=pushes", "data=unbiased"), Path())


def test_policies_of_a_resumed_run_import_nothing(run, tmp_path):
    place = tmp_path / "theirs"
    shutil.copytree(run, place)
    with pytest.raises(ConfigError, match="must not import a reward or a policy"):
        trained(
            place,
            "experiment=actions",
            *SMALL,
            *QUIET,
            "policy=callable",
            "policy.callable.path=os.getcwd",
            f"resume={place}",
        )


@pytest.mark.parametrize("part", ["format", "actions", "counts", "covariance", "recoveries", "metrics"])
def test_recoveries_that_do_not_go_together_are_refused(run, tmp_path, part):
    content = torch.load(run / "recovery.pt", weights_only=True)
    content[part] = {"counts": torch.ones(2, 64), "covariance": torch.ones(2, 2)}.get(part, "nonsense")
    torch.save(content, tmp_path / "recovery.pt")
    with pytest.raises(InputError, match="save it again"):
        _ = read_run(tmp_path).recovery


def test_a_new_run_does_not_write_over_actions(run, tmp_path):
    from levytorch.runs.directory import check_unused

    place = tmp_path / "half"
    (place / "actions" / "0").mkdir(parents=True)
    shutil.copytree(run / "actions" / "0" / "checkpoints", place / "actions" / "0" / "checkpoints")
    with pytest.raises(ConfigError, match="directory without results"):
        check_unused(place)


def test_the_closed_loop_is_the_truth_of_pairs_alike():
    source = training.prepare_run(configured("data=actions", *SMALL, "actions=null", "beta=null"), Path()).source()
    loop = actions.alike(source).dynamics
    assert float(loop.b(1.0)) == pytest.approx(float(ControlledDynamics.named("pushes").under("uniform").b(1.0)))


@pytest.mark.slow
def test_a_run_with_tempered_jumps(tmp_path):
    """The tempering of all actions in metrics and files, and that of the true system when policies are evaluated."""
    place = tmp_path / "tempered"
    outcome = trained(
        place,
        "experiment=actions",
        "tempering=learn",
        "dynamics.tempering=1.5",
        *SMALL,
        *QUIET,
        "data.n_trajectories=300",
    )
    found = ControlledRecovery.load(place)
    metrics = json.loads((place / "metrics.json").read_text())
    assert metrics["tempering"] == outcome.recovery.tempering == found.tempering
    assert metrics["tempering_std"] == pytest.approx(found.tempering_std)
    assert metrics["tempering_told_from_zero"]
    assert read_run(place).truth().tempering == 1.5
    run_evaluation(settings(f"run={place}", *REWARD, "policy=[behaviour,uniform]", f"out={tmp_path / 'out'}"))
    rows = json.loads((tmp_path / "out" / "metrics.json").read_text())["policies"]
    assert all(row["std"] > 0 for row in rows)
