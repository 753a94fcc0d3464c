"""Entry points that are started inside a directory from someone else read and run nothing that was planted there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PLANTED_CODE = "import os\nos.mkdir('executed')\n"
PLANTED = {
    ".numba_config.yaml": "cache_dir: kept\ndeveloper_mode: 1\n",
    "matplotlibrc": "backend: module://planted\nfont.size: 3\n",
    ".env": "PYTHONINSPECT=1\n",
    "conf/train.yaml": "alpha: 0.1\n",
    "conf/evaluate.yaml": "beta: 0.1\n",
    "hydra_plugins/planted.py": PLANTED_CODE,
    "planted-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n",
    "planted-1.0.dist-info/entry_points.txt": "[numba_extensions]\ninit = planted:run\n[fsspec.specs]\nx = planted:X\n",
    **dict.fromkeys(
        ("sitecustomize.py", "usercustomize.py", "planted.py", "numba.py", "polars.py", "lightning.py"), PLANTED_CODE
    ),
}
LIBRARY = """
from levytorch import Recovery
from levytorch.figures.base import new_axes
found = Recovery.load(".")
assert len(found.simulate(3, 4, 0.1)) == 3
new_axes(1, 1)
"""
TRAIN = ["data.n_trajectories=20", "data.n_steps=10", "coefficients.n_basis=3", "alpha=0.3", "hydra.run.dir=new"]
EVALUATE = ["run=.", "beta=1", "reward=cosine_power", "hydra.run.dir=new"]
ENTRY_POINTS = {
    "library": [LIBRARY],
    "python -m levytorch": ["-m", "levytorch"],
    "python -m levytorch.train": ["-m", "levytorch.train", *TRAIN],
    "train.py": [str(ROOT / "train.py"), *TRAIN],
    "train.py resume": [str(ROOT / "train.py"), "resume=."],
    "python -m levytorch.evaluate": ["-m", "levytorch.evaluate", *EVALUATE],
    "evaluate.py": [str(ROOT / "evaluate.py"), *EVALUATE],
    "python -m levytorch.command check": ["-m", "levytorch.command", "check", "track.csv"],
}
SLOW = ("train.py", "train.py resume", "evaluate.py", "python -m levytorch.train", "python -m levytorch.command check")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ENTRY_POINTS])
def test_nothing_that_lies_in_the_current_directory_is_read(name, honest, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(honest, run)
    for file, content in PLANTED.items():
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(content)
    steps = np.random.default_rng(0).standard_t(3, 1000)
    (run / "track.csv").write_text("time,x\n" + "".join(f"{k},{x}\n" for k, x in enumerate(steps.cumsum())))
    arguments = ENTRY_POINTS[name]
    if name == "library":  # a script elsewhere, started inside the directory
        (tmp_path / "script.py").write_text(arguments[0])
        arguments = [str(tmp_path / "script.py")]
    if name == "train.py resume":
        (run / "run.json").write_text('{"overrides": ["data.n_trajectories=20", "data.n_steps=10"], "defaults": 2}')
        shutil.rmtree(run / "checkpoints")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "PYTHON"))}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests/security/watch"), str(ROOT)])}
    environment |= {"WATCHED": str(run), "WATCH_LOG": str(tmp_path / "opened")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=run, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    opened = set((tmp_path / "opened").read_text().splitlines()) if (tmp_path / "opened").exists() else set()
    if name != "python -m levytorch":
        assert opened  # the watch works: every other entry point reads or writes something there
    assert not opened & set(PLANTED)
    assert not (run / "executed").exists()
    assert not (run / "kept").exists()


@pytest.mark.long
def test_numba_is_imported_in_one_place():
    """Where its settings in the current directory are ignored."""
    importing = set()
    for file in (ROOT / "levytorch").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(n.partition(".")[0] == "numba" for n in names):
                importing.add(file.name)
    assert importing == {"compiled.py"}
