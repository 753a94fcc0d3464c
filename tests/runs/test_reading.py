from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from levytorch import Dynamics, recover, simulate
from levytorch.errors import InputError, LevytorchWarning
from levytorch.runs.reading import MARKER, find_runs, load_run, load_runs

SIMULATED = "data:\n  _target_: levytorch.simulation.source.Simulated\ndynamics:\n  name: constant\n  alpha: 0.4\n"


@pytest.fixture(scope="module")
def recovery():
    return recover(simulate(Dynamics.named("constant"), 100, 40, 1 / 40, seed=0).transitions(), alpha=0.3, n_basis=1)


def make_run(path: Path, recovery, config: str | None = SIMULATED) -> Path:
    recovery.save(path / "recovery.pt")
    if config is not None:
        (path / ".hydra").mkdir()
        (path / ".hydra" / "config.yaml").write_text(config)
    return path


def test_paths_globs_and_lists(tmp_path, recovery) -> None:
    runs = [make_run(tmp_path / "day" / name, recovery) for name in ("a", "b", "c")]
    (tmp_path / "day" / "x-evaluation").mkdir()
    (tmp_path / "day" / "x-evaluation" / MARKER).touch()
    (tmp_path / "day" / "y-evaluations").mkdir()
    assert find_runs(str(runs[1])) == [runs[1]]
    assert find_runs(str(tmp_path / "day" / "*")) == runs
    assert find_runs([str(runs[2]), str(tmp_path / "day" / "[ab]"), str(runs[2])]) == [runs[2], *runs[:2]]
    assert find_runs(str(tmp_path / "**")) == runs
    assert [run.path for run in load_runs(str(tmp_path / "day" / "?"))] == runs


@pytest.mark.parametrize("pattern", ["nothing", "nothing*", []])
def test_patterns_that_match_nothing(tmp_path, pattern) -> None:
    with pytest.raises(InputError, match="run"):
        find_runs(str(tmp_path / pattern) if pattern else pattern)


def test_truth_and_labels(tmp_path, recovery) -> None:
    run = load_run(make_run(tmp_path / "a", recovery))
    truth = run.truth()
    assert truth is not None
    assert truth.alpha == 0.4
    assert run.tail_label == "without TCF"
    assert run.setting("dynamics.name") == "constant"
    assert run.setting("dynamics.size", "none") == "none"


@pytest.mark.parametrize(
    "config",
    [
        None,
        "dynamics:\n  name: os.system\n",
        "dynamics:\n  name: [constant]\n",
        "dynamics:\n  _target_: os.system\n",
        "data:\n  _target_: levytorch.data.sources.FromFile\ndynamics:\n  name: variable\n",
        "dynamics:\n  name: constant\n  alpha: ${oc.env:HOME}\n",
    ],
)
def test_truth_is_unknown_unless_it_is_one_of_ours(tmp_path, recovery, config) -> None:
    assert load_run(make_run(tmp_path / "a", recovery, config)).truth() is None


@pytest.mark.parametrize("config", ["", "a: [", "- 1\n- 2\n", "a: !!python/object/apply:os.system [touch hacked]\n"])
def test_configurations_that_are_not_plain(tmp_path, recovery, config, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="config"):
        load_run(make_run(tmp_path / "a", recovery, config))
    assert not (tmp_path / "hacked").exists()


class _Bomb:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('hacked').touch()",))


def test_incomplete_and_foreign_directories(tmp_path, recovery, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty, unfinished, evaluation, broken, bomb, odd = (tmp_path / name for name in "abcdef")
    for path in (empty, unfinished / ".hydra", evaluation, broken, bomb, odd):
        path.mkdir(parents=True)
    (evaluation / MARKER).touch()
    (broken / "recovery.pt").write_bytes(b"no torch file")
    (bomb / "recovery.pt").write_bytes(pickle.dumps(_Bomb()))
    torch.save({"format": 1, "theta": torch.zeros(3)}, odd / "recovery.pt")
    for path, message in (
        (empty, "not a run directory"),
        (unfinished, "not finished"),
        (evaluation, "output of an evaluation"),
        (broken, "must be a recovery"),
        (bomb, "must be a recovery"),
        (odd, "must be a recovery|must hold"),
    ):
        with pytest.raises(InputError, match=message):
            load_run(path)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"metrics": [1]},
        {"tcf": "high"},
        {"covariance": torch.eye(2)},
        {"covariance": "none"},
        {"theta": "none"},
        {"head": {"name": "fourier", "n_basis": 10**9}},
    ],
)
def test_recoveries_that_load_but_are_not_ours(tmp_path, recovery, content) -> None:
    file = make_run(tmp_path / "a", recovery) / "recovery.pt"
    torch.save({**torch.load(file, weights_only=True), **content}, file)
    with pytest.raises(InputError) as caught:
        load_run(tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_runs_of_different_cells_are_not_mixed(tmp_path, recovery) -> None:
    data = simulate(Dynamics.named("constant"), 100, 40, 1 / 40, seed=1).transitions()
    make_run(tmp_path / "a", recovery)
    make_run(tmp_path / "b", recover(data, alpha=0.3, n_basis=1, period=5.0))
    with pytest.raises(InputError, match="one period and origin") as caught:
        load_runs(str(tmp_path / "*"))
    assert f"name the runs that belong together, such as run=[{tmp_path / 'a'}]" in str(caught.value)


def test_a_glob_skips_what_is_no_finished_run(tmp_path, recovery) -> None:
    run = make_run(tmp_path / "a", recovery)
    (tmp_path / "b" / ".hydra").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    with pytest.warns(LevytorchWarning) as told:
        runs = load_runs(str(tmp_path / "*"))
    assert [one.path for one in runs] == [run]
    assert len(told) == 1
    assert "b: the run is not finished" in str(told[0].message)
    assert "c: it is not a run directory" in str(told[0].message)
    for named in (str(tmp_path / "b"), [str(run), str(tmp_path / "b")]):  # named, not met
        with pytest.raises(InputError, match="not finished"):
            load_runs(named)
    with pytest.raises(InputError, match=r"found none .*not finished.*resume="):
        load_runs(str(tmp_path / "[bc]"))


def test_many_skipped_directories_are_one_short_line(tmp_path, recovery) -> None:
    make_run(tmp_path / "run", recovery)
    for number in range(30):
        (tmp_path / f"{number:02d}").mkdir()
    with pytest.warns(LevytorchWarning, match="02 and 27 more: it is not a run directory"):
        find_runs(str(tmp_path / "*"))
