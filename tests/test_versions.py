"""The lower bounds of pyproject.toml are versions that were tried: those of constraints-lowest.txt."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_TRIED = {"ruff", "mypy", "pre-commit"}  # tools, which the tests do not use


def bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    stated = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    pairs = {tuple(line.split(">=")) for line in stated if not line.startswith("levytorch")}
    return sorted(pair for pair in pairs if pair[0] not in NOT_TRIED)


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def numbers(version):
    return [int(part) for part in version.split(".")]


@pytest.mark.parametrize(("name", "bound"), bounds())
def test_bounds_are_versions_that_were_tried(name, bound):
    lowest = numbers(pins("constraints-lowest.txt")[name])
    stated = numbers(bound)
    assert lowest[: len(stated)] == stated
    assert not any(lowest[len(stated) :])
    assert numbers(pins("constraints.txt")[name]) >= stated
