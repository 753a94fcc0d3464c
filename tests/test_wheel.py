"""The package as pip installs it: a wheel without the repository, and what the repository must hold for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".git", "outputs", "multirun", "build", "dist", "__pycache__", "*.egg-info", ".venv", ".*_cache", "_build"
)


def run(*arguments: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 or not check, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done


def test_the_build_copies_the_configuration_and_the_docs(tmp_path):
    """The repository has no symbolic links, which clones on Windows cannot have; the build copies the files."""
    assert not any(path.is_symlink() for path in (ROOT / "levytorch").rglob("*"))
    source = tmp_path / "source"
    for folder in ("conf", "docs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=LEFT_OUT)
    (source / "levytorch").mkdir()
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "levytorch/__init__.py"):
        shutil.copy(ROOT / file, source / file)
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path / "built", cwd=source)
    for folder, kind in (("conf", "*.yaml"), ("docs", "*.md")):
        for file in (source / folder).rglob(kind):
            assert (tmp_path / "built" / "levytorch" / file.relative_to(source)).read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_a_wheel_in_a_fresh_environment(tmp_path):
    """Library, configuration and commands without a clone; the dependencies are those of this environment."""
    source, work = tmp_path / "source", tmp_path / "work"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT, symlinks=True)
    work.mkdir()
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
        cwd=work,
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for folder, kind in (("conf", "**/*.yaml"), ("docs", "**/*.md")):
        assert {f"levytorch/{file.relative_to(ROOT)}" for file in (ROOT / folder).glob(kind)} <= packed
    shutil.rmtree(source)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=work)
    site = Path(
        run(
            tmp_path / "venv/bin/python", "-c", "import site; print(site.getsitepackages()[0])", cwd=work
        ).stdout.strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # after the wheel's own place
    python, train = tmp_path / "venv/bin/python", tmp_path / "venv/bin/levytorch-train"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=work)

    said = run(python, "-m", "levytorch", cwd=work).stdout
    assert str(site) in said.splitlines()[0]
    assert str(site / "levytorch" / "docs") in said
    assert "Groups" in run(train, "--help", cwd=work).stdout
    small = ["debug=default", "data.n_trajectories=100", "coefficients.n_basis=3", "diagnostics=none", "logger=none"]
    run(train, *small, "hydra.run.dir=one", cwd=work)
    run(python, "-m", "levytorch.train", *small, "seed=1", "hydra.run.dir=two", cwd=work)
    run(tmp_path / "venv/bin/levytorch-evaluate", "run=[one,two]", "out=both", "tensorboard=false", cwd=work)
    for name in ("one", "two", "both"):
        assert (work / name / "report.html").is_file()
    assert "levytorch-train" in (work / "one" / "report.html").read_text()
    code = "from levytorch import Recovery; print(float(Recovery.load('one').D_o(0.0)) > 0)"
    assert run(python, "-c", code, cwd=work).stdout.strip() == "True"
