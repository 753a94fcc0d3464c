"""Run directories as a table; unfinished, damaged and hostile ones."""

import json
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import yaml

from benchmarks.paper.collect import collect
from benchmarks.paper.landscape import transitions_of
from levytorch.errors import InputError, LevytorchWarning
from levytorch.runs.reading import load_run


@pytest.fixture
def one(root, tmp_path):
    """A copy of one run that a test may damage, beside a whole one."""
    for name in ("good", "bad"):
        shutil.copytree(root / "censored_constant" / "tcf" / "n300" / "seed1", tmp_path / name)
    return tmp_path


@pytest.mark.long
def test_table_holds_what_configuration_and_metrics_say(root, runs):
    for row in runs.table.rows(named=True):
        path = Path(row["path"])
        metrics = json.loads((path / "metrics.json").read_text())
        config = yaml.safe_load((path / ".hydra" / "config.yaml").read_text())
        assert row["experiment"] == config["experiment"] == path.relative_to(root).parts[0].removesuffix("_literal")
        assert row["n_trajectories"] == config["data"]["n_trajectories"]
        assert row["seed"] == config["seed"] == int(path.name.removeprefix("seed"))
        assert row["alpha_true"] == config["dynamics"]["alpha"]
        assert row["error_D_f"] == metrics["error_D_f"]
        assert row["arm"] == {"censored": "none"}.get(config["arm"], config["arm"])
        assert row["literal"] == (config["engine"]["name"] == "adam")
    assert len(runs) == len(list(root.glob("**/metrics.json")))


def test_arms_and_choice(runs):
    assert runs.where(experiment="censored_variable", literal=False).unique("arm") == [
        "conditional", "none", "tcf", "unbiased",
    ]  # fmt: skip
    assert len(runs.where(experiment="censored_constant", arm=["tcf", "none"])) == 6
    assert set(runs.unique("censoring")) == {"none", "filter", "metropolis"}
    with pytest.raises(InputError, match="runs are chosen by"):
        runs.where(colour="red")


def test_a_glob_and_a_list_find_the_same_as_a_directory(root):
    whole = collect(root / "censored_constant")
    assert collect(str(root / "censored_constant" / "*" / "*" / "seed*")).table.equals(whole.table)
    parts = [root / "censored_constant" / "tcf", root / "censored_constant" / "censored"]
    assert collect(parts).table.equals(whole.table)


def test_nothing_found_and_nothing_finished(tmp_path):
    with pytest.raises(InputError, match="found none"):
        collect(tmp_path)
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / ".hydra" / "config.yaml").write_text("seed: 0\n")
    with pytest.warns(LevytorchWarning), pytest.raises(InputError, match="unfinished"):
        collect(tmp_path)


@pytest.mark.parametrize("name", ["recovery.pt", "metrics.json", "curves.csv"])
def test_unfinished_runs_are_left_out_and_named(one, name):
    (one / "bad" / name).unlink()
    with pytest.warns(LevytorchWarning, match=rf"1 of 2 .*bad is not finished \(no {name}\)"):
        found = collect(one)
    assert [record.path.name for record in found] == ["good"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.json", "{"),
        ("metrics.json", "[1, 2]"),
        (".hydra/config.yaml", "- a list"),
        (".hydra/config.yaml", "{"),
        (".hydra/config.yaml", "!!python/object/apply:os.mkdir [SENTINEL]"),
    ],
)
def test_damaged_and_hostile_files_are_left_out(one, name, text):
    sentinel = one / "executed"
    (one / "bad" / name).write_text(text.replace("SENTINEL", str(sentinel)))
    with pytest.warns(LevytorchWarning, match="bad"):
        found = collect(one)
    assert [record.path.name for record in found] == ["good"]
    assert not sentinel.exists()


class Evil:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (Path(self.place),)


def test_a_pickle_in_a_run_is_never_loaded(one):
    sentinel = one / "executed"
    (one / "bad" / "recovery.pt").write_bytes(pickle.dumps(Evil(str(sentinel))))
    assert len(collect(one)) == 2  # tables and figures read CSV and JSON only
    with pytest.raises(InputError):
        load_run(one / "bad")
    assert not sentinel.exists()


def test_values_of_the_wrong_kind_and_resolvers_come_out_empty(one, monkeypatch):
    monkeypatch.setenv("SECRET", "42")
    file = one / "bad" / ".hydra" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config |= {"seed": "${oc.env:SECRET}", "loop": "${loop}"}
    config["data"] |= {"n_trajectories": [1, 2], "dt": "${loop}", "reach": float("inf")}
    file.write_text(yaml.safe_dump(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = collect(one / "bad").table.row(0, named=True)
    assert (row["seed"], row["n_trajectories"], row["dt"]) == (None, None, None)
    assert row["reach"] == float("inf")  # not None: a chain without a limit is not one with the default limit


def test_data_of_a_run_is_made_again_exactly(root, runs):
    record = next(iter(runs.where(experiment="censored_constant", arm="tcf", seed=0)))
    again = transitions_of(record)
    assert len(again) == record.metrics["n_main"]
    assert float(again.mu) == record.metrics["mu"]
    assert float(again.x.min()) == record.metrics["x_min"]


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"_target_": "os.system"}},
        {"dynamics": {"name": "unknown"}},
        {"data": {"n_trajectories": "many"}},
        {"data": {"censor": {"CT": "rm -rf"}}},
    ],
)
def test_data_is_made_by_the_simulator_from_numbers_only(one, change):
    file = one / "bad" / ".hydra" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    for group, values in change.items():
        config[group] |= values
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="bad"):
        transitions_of(next(iter(collect(one / "bad"))))


def test_a_table_called_rates_is_no_study(root, one):
    """The report of a sweep leaves tables/rates.csv; a study of the error bound has rates.json beside it."""
    (one / "tables").mkdir()
    shutil.copy(root / "rate_study" / "rates.csv", one / "tables" / "rates.csv")
    assert collect(one).studies == ()
    shutil.copytree(root / "rate_study", one / "study")
    assert collect(one).studies == (one / "study",)
