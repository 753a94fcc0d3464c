"""The README's code runs as printed, and its commands name things that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_python_blocks_of_the_readme(number, tmp_path):
    code = blocks(README, "python")[number]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands() -> list[str]:
    lines = "".join(blocks(README, "bash")).replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("python train.py")]


@pytest.mark.parametrize("command", [c for c in commands() if "resume=" not in c and " -m " not in c])
def test_train_commands_compose(command, tmp_path):
    """Every override of the README names a key and an option that exist."""
    arguments = command.split()[2:]
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *arguments, "--cfg", "job", "--resolve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "seed: 0" in done.stdout


def test_links_of_the_readme_and_the_docs_lead_somewhere():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_lazy_imports():
    """`import levytorch` does not import Lightning, matplotlib, polars or numba."""
    code = (
        "import sys, levytorch; print([m for m in ('lightning', 'matplotlib', 'polars', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_doctests():
    code = (
        "import doctest, torch, importlib\n"
        "from levytorch import *\n"
        "bad = 0\n"
        "for name in ('law.autograd', 'law.tails', 'law.step', 'training.api'):\n"
        "    module = importlib.import_module('levytorch.' + name)\n"
        "    result = doctest.testmod(module, extraglobs={'torch': torch})\n"
        "    assert result.attempted\n"
        "    bad += result.failed\n"
        "raise SystemExit(bad)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
