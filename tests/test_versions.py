"""The lower bounds of pyproject.toml are versions that were tried: those of constraints-lowest.txt."""

import re
import tomllib
from pathlib import Path

import pytest

import levytorch

ROOT = Path(__file__).parent.parent
NOT_TRIED = {"ruff", "mypy", "pre-commit", "sphinx", "myst-nb", "furo", "latex2mathml"}  # tools, which tests do not use


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


def test_the_version_and_the_dependencies_are_stated_once_more_where_others_read_them():
    """The package, the citation, the changelog and the conda recipe agree with pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    assert levytorch.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    recipe = (ROOT / "conda" / "meta.yaml").read_text()
    assert f'set version = "{version}"' in recipe
    latest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest is not None
    assert latest[1] == version
    assert f"date-released: {latest[2]}" in (ROOT / "CITATION.cff").read_text()
    other_names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    for line in project["dependencies"]:
        name, bound = line.split(">=")
        assert f"- {other_names.get(name, name)} >={bound}\n" in recipe
