"""Every block of code and every command of the README and of docs/ is run; a new one that no rule covers fails.

Python blocks of a page run in one process, in their order, in a directory with sample files of the names that the pages
use. Commands run in their order in such a directory, with nothing changed but overrides that are appended (SMALL).
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import levytorch
from levytorch.diagnostics import verdicts
from tests.processes import run

ROOT = Path(__file__).parents[1]
# the site build (.ci/docs) executes the tutorials and the gallery, whose cells are not among these blocks
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
# whose blocks are executed with little data; with -m slow those of all pages are executed as they stand
FIRST_PAGES = [pytest.param(PAGES[0]), pytest.param(ROOT / "docs" / "quickstart.md", marks=pytest.mark.long)]
RUN = "outputs/2026-01-31/12-00-00-000000"  # a name that the pages use

# how a command is run: (what it looks like, what is appended); the first that fits decides
_FEW = ["engine.max_steps=3", "engine.window=2"]  # of Algorithm B.1
_B1 = [*_FEW, "tail.start=1"]
_ONE = ["data.n_trajectories=200", "seed=0"]
SMALL = [
    (r"^python train.py .*data=(file|lattice)", ["engine.max_steps=3"]),
    (r"^python train.py .*resume=", []),
    (r"^python train.py --", []),
    (r"^python train.py -m experiment=.*paper=literal", [*_ONE, "arm=tcf", *_B1]),
    (r"^python train.py -m experiment=censored", [*_ONE, "arm=tcf"]),
    (r"^python train.py -m experiment=unbiased", _ONE),
    (r"^python train.py -m experiment=learning_history", [*_ONE, *_B1]),
    (r"^python train.py -m experiment=btc_first.*paper=prices", ["data.first=900", "seed=0,1", *_FEW]),
    (r"^python train.py -m experiment=btc_random.*paper=prices", ["data.sample=900", "seed=0,1", *_FEW]),
    (
        r"^python train.py -m experiment=btc_first",
        ["data.first=900", "coefficients.n_basis=3", "empirical.bootstrap.replicas=2"],
    ),
    (
        r"^python train.py -m experiment=btc_random",
        ["data.sample=900", "coefficients.n_basis=3", "empirical.bootstrap.replicas=2"],
    ),
    (r"^python train.py .*paper[_=]literal", ["debug=default", "engine.window=2", "tail.start=1"]),
    (r"^python train.py", ["debug=default"]),
    (r"^python evaluate.py experiment=value_error", ["size=200"]),
    (r"^python -m benchmarks.paper rates", ["trials=20"]),
    (r"^python evaluate.py$", [f"run={RUN}"]),
    (r"^python evaluate.py", []),
    (r"^python -m benchmarks.paper", []),
    (r"^python -m levytorch$", []),
]
# what the reader is to put in
MEANT = {
    "<directory of the runs>": "multirun",
    "<its directory>": RUN,
    "<run directory>": RUN,
    "resume=<directory>": f"resume={RUN}",
}
# what a command takes for granted: (what it looks like, what must exist, how it is made)
_PRICES = "data=file data.path=btc_3min.parquet data.time=timestamp data.value=open data.time_in=s data.time_unit=h "
_PRICES += "alpha=0.6 tail=none coefficients.period=256000 coefficients.n_basis=1 engine.max_steps=5"
_CENSORED = "-m experiment=censored_variable data.n_trajectories=200 seed=0,1 arm=tcf,censored"
NEEDED = [
    (RUN.rsplit("/", 1)[0], RUN, f"debug=default hydra.run.dir={RUN}"),
    (r"experiment=value_error", "multirun/censored_variable", _CENSORED),
    (r"benchmarks.paper page", "multirun", _CENSORED),
    (r"run=multirun", "multirun", "-m seed=0,1 debug=default"),
    (r"outputs/btc", "outputs/btc", f"{_PRICES} hydra.run.dir=outputs/btc/0"),
]
# commands that are not run here, and why that is safe
ELSEWHERE = [
    (r"^python -m venv .*pytest", ".ci/run executes exactly this line"),
    (r"^python -m venv .*train.py$", "its last part is run below, the installation is that of the line before"),
    (
        r"^python (benchmarks/|-m benchmarks\.(?!paper))",
        "measurements of minutes; their functions are tested in the packages they measure",
    ),
    (r"^tensorboard --logdir", "test_tensorboard_serves_a_run"),
    (r"^(LEVYTORCH_FAULTS=\d+ )?python -m pytest", "this suite"),
    (r"^python -m tests.data.limited", "tests/data/test_on_disk.py"),
    (r"torchrun|^srun", "tests/training/test_ddp.py starts processes as these do"),
    (r"submitit", "test_submitit_runs_a_sweep"),
]


def text_of(page: Path) -> str:
    """A page without the directives of the site, such as the tables of contents."""
    return re.sub(r"^```\{.*?^```\n", "", page.read_text("utf-8"), flags=re.M | re.S)


README = text_of(PAGES[0])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def commands(text: str) -> list[str]:
    """Lines of bash blocks, indented lines and code within lines that start a program, each once, in this order.

    Continuations are joined and comments removed.
    """
    fenced = "".join(blocks(text, "bash"))
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    indented = re.findall(r"^    (?:python|tensorboard) (?:.*\\\n)*.*$", rest, re.M)
    within = re.findall(r"`((?:python|tensorboard) [^`\n]*)`", rest)
    lines = "\n".join([fenced, *indented, *within]).replace("\\\n", " ").splitlines()
    found = [" ".join(line.split(" #")[0].split()) for line in lines if line.strip() and not line.startswith("#")]
    return list(dict.fromkeys(found))


def own_commands() -> dict[Path, list[str]]:
    """The commands of every page that no page before it shows, in their order."""
    seen: set[str] = set()
    found = {}
    for page in PAGES:
        found[page] = [command for command in commands(text_of(page)) if command not in seen]
        seen.update(found[page])
    return found


def rule(command: str) -> list[str] | None:
    """What is appended to a command, or None for one that is run elsewhere; a command without a rule is an error."""
    for pattern, _ in ELSEWHERE:
        if re.search(pattern, command):
            return None
    for pattern, appended in SMALL:
        if re.search(pattern, command):
            return appended
    raise AssertionError(f"no rule says how to run {command!r}: add one to tests/test_docs.py")


def samples(folder: Path, rows: int = 8000) -> None:
    """Files of the names and columns that the pages use, with invented numbers, and conf/ as in the repository."""
    (folder / "conf").symlink_to(ROOT / "conf")
    rng = np.random.default_rng(0)
    steps = rng.standard_t(4, rows)
    hours = np.arange(rows)
    price = 40000 * np.exp(0.9 * np.sin(2 * np.pi * hours / rows) + np.cumsum(2e-4 * steps))
    (folder / "prices.csv").write_text(
        "time,close\n"
        + "".join(f"{np.datetime64('2024-01-01T00:00') + 60 * int(h)},{p:.2f}\n" for h, p in zip(hours, price))
    )
    (folder / "eurusd_m5.csv").write_text(
        "Time,Open,Close\n"
        + "".join(
            f"{np.datetime64('2024-01-01T00:00') + 5 * int(h)},{p:.5f},{p:.5f}\n" for h, p in zip(hours, price / 4e4)
        )
    )
    import polars as pl

    pl.DataFrame({"timestamp": 180 * hours, "open": price}).write_parquet(folder / "btc_3min.parquet")
    jumps = np.cumsum(0.5 * rng.standard_t(2, rows))
    pl.DataFrame({"x": jumps, "dt": np.full(rows, 0.025)}).write_parquet(folder / "large.parquet")
    np.save(folder / "large.npy", jumps)
    (folder / "my_package.py").write_text(MY_PACKAGE)
    from levytorch import Transitions

    dx = rng.normal(size=(2, rows // 2)) + rng.standard_cauchy((2, rows // 2))
    monday, tuesday = (Transitions(rng.uniform(0, 6, rows // 2), steps, 0.025) for steps in dx)
    first = monday.lattice(CT=8.0, TRT=20.0)
    first.save(folder / "monday.npz")
    tuesday.lattice(like=first).save(folder / "tuesday.npz")
    track = [50.0]
    for _ in range(rows // 3):
        jump = 3.0 * rng.standard_cauchy() if rng.random() < 0.03 else 0.0
        track.append(track[-1] - 0.02 * (track[-1] - 50.0) + rng.standard_normal() + np.clip(jump, -60.0, 60.0))
    (folder / "track.csv").write_text("time,x\n" + "".join(f"{k / 4:.2f},{x:.4f}\n" for k, x in enumerate(track)))
    pushes, x = rng.choice(["left", "right"], rows), [0.0]
    for push in pushes:
        x.append(0.98 * x[-1] + (0.05 if push == "right" else -0.05) + 0.1 * rng.standard_t(3))
    lines = (f"{k / 40},{at:.5f},{push},{-at * at:.5f}\n" for k, (at, push) in enumerate(zip(x, pushes)))
    (folder / "logs.csv").write_text("t,x,push,r\n" + "".join(lines))
    walk = np.cumsum(rng.standard_t(2, (600, 2)) * 100, axis=0)
    (folder / "buffalo.csv").write_text(
        "id,t,x,y\n" + "".join(f"{k // 300},{3600 * (k % 300)},{u:.1f},{v:.1f}\n" for k, (u, v) in enumerate(walk))
    )


# a package of the reader's, as pages call it
MY_PACKAGE = """
import lightning as L
import torch
from levytorch.coefficients import Coefficients, Head
from levytorch.training.engines.lbfgs import LBFGSEngine

class MyCallback(L.Callback):
    def __init__(self, option):
        self.option = option

class MyHead(Head):
    def __init__(self, width, alpha=0.3):
        super().__init__()
        self.amplitudes = torch.nn.Parameter(torch.ones(width, dtype=torch.float64))
        self.register_buffer("alpha", torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x):
        b = (self.amplitudes * torch.cos(x[..., None])).sum(-1)
        return Coefficients(b, 4 + 0 * x, 3 + 0 * x, self.alpha)

class MyEngine(LBFGSEngine):
    name = "mine"
"""


def execute(arguments: list, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# before the blocks of a page: bundled series are cut short, and fits take few functions and the frozen law
LITTLE = """
import levytorch
from levytorch import datasets

whole = levytorch.recover
levytorch.recover = lambda *data, **options: whole(*data, **{"law": "frozen", "n_basis": 4} | options)
datasets.Dataset.transitions = lambda self: self.trajectories.transitions()[:600]
"""


@pytest.mark.parametrize("page", FIRST_PAGES, ids=lambda page: page.name)
def test_python_blocks_of_the_first_pages(page, tmp_path):
    """As a reader would run them, but with little data."""
    samples(tmp_path, rows=600)
    found = blocks(text_of(page), "python")
    assert found
    execute([sys.executable, "-c", "\n".join([LITTLE, *found])], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(text_of(p), "python")], ids=lambda page: page.name)
def test_python_blocks(page, tmp_path):
    samples(tmp_path)
    execute([sys.executable, "-c", "\n".join(blocks(text_of(page), "python"))], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_python_that_imports_what_exists(page):
    """Every block compiles, and every name that it takes from levytorch is there."""
    for block in blocks(text_of(page), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "levytorch":
                module = importlib.import_module(node.module)
                for name in node.names:
                    there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert there, f"{page.name}: {node.module} has no {name.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_has_a_rule_and_every_block_a_language(page):
    text = text_of(page)
    for command in commands(text):
        rule(command)
    assert set(re.findall(r"^```(\w*)\n.*?^```$", text, flags=re.M | re.S)) <= {"python", "bash", "yaml", "text"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, found in own_commands().items() if found], ids=lambda page: page.name)
def test_commands_run(page, tmp_path):
    samples(tmp_path)
    for command in own_commands()[page]:
        appended = rule(command)
        if appended is None:
            continue
        for written, meant in MEANT.items():
            command = command.replace(written, meant)
        for pattern, made, before in NEEDED:
            if re.search(pattern, " ".join([command, *appended])) and not (tmp_path / made).exists():
                execute([sys.executable, ROOT / "train.py", *before.split()], tmp_path)
        _, *arguments = shlex.split(command)
        if arguments[0] != "-m":
            arguments[0] = ROOT / arguments[0]
        execute([sys.executable, *arguments, *appended], tmp_path)


@pytest.mark.slow
def test_submitit_runs_a_sweep(tmp_path):
    """The line for a cluster with the launcher's local twin: the same pickles and processes, without SLURM."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs hydra-submitit-launcher")
    (line,) = (c for page in PAGES for c in commands(text_of(page)) if "submitit_slurm" in c)
    kept = [a for a in shlex.split(line)[2:] if not a.startswith(("hydra.launcher.partition", "hydra.launcher.setup"))]
    local = [a.replace("submitit_slurm", "submitit_local") for a in kept]
    execute([sys.executable, ROOT / "train.py", *local, "data.n_trajectories=200", "seed=0,1", "arm=tcf"], tmp_path)
    assert len(list(tmp_path.glob("multirun/censored_variable/*/tcf/n200/seed*/recovery.pt"))) == 2
    assert len(list(tmp_path.glob("multirun/censored_variable/*/figures/*.png"))) >= 1


@pytest.mark.slow
def test_tensorboard_serves_a_run(tmp_path):
    """`tensorboard --logdir outputs`: every family of docs/outputs.md is there."""
    execute([sys.executable, ROOT / "train.py", "debug=default"], tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "outputs", "--port", str(port)],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(plugin: str) -> dict[str, dict]:
        address = f"http://127.0.0.1:{port}/data/plugin/{plugin}/tags"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return json.load(answer)

    try:
        deadline, scalars, images = time.monotonic() + 120, {}, {}
        while not (scalars and images):
            assert server.poll() is None
            assert time.monotonic() < deadline, "the server has no scalars or no images"
            time.sleep(0.5)
            with contextlib.suppress(OSError):
                scalars, images = ask("scalars"), ask("images")
    finally:
        server.terminate()
        server.wait(30)
    families = {tag.split("/")[0] for tags in scalars.values() for tag in tags}
    assert {"train", "tail", "mean", "final", "time"} <= families
    assert any("coefficients" in tag for tags in images.values() for tag in tags)


def test_the_set_up_line_is_what_the_ci_runs():
    """.ci/run takes the test command of the README from below its mark; the set-up lines differ in the extra only."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert "<!-- test -->" in ci
    first, test = (c for c in commands(README) if c.startswith("python -m venv"))
    assert re.search(rf"<!-- test -->\n```bash\n{re.escape(test)}\n```", README)
    assert test.replace('".[test]"', ".").split(" && ")[:2] == first.split(" && ")[:2]
    assert first.endswith(".venv/bin/python train.py")


@pytest.mark.parametrize(
    "command", [c for c in commands(README) if rule(c) and " -m " not in c and "evaluate" not in c]
)
def test_train_commands_compose(command, tmp_path):
    """Every override of the README, and what is appended, names a key and an option that exist."""
    from tests.inputs.configs import composed

    overrides = [a for a in shlex.split(command)[2:] if not a.startswith("resume=")]
    assert composed("train", *overrides, *(rule(command) or [])).seed == 0


def test_links_of_the_readme_and_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if {"generated", "_build"} & set(page.parts):
            continue
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text_of(page)):
            found = (page.parent / target).exists() or "generated/" in target  # which the site build writes
            assert found, f"{page.name} links to {target}, which does not exist"


def test_lazy_imports():
    """`import levytorch` does not import Lightning, matplotlib, polars or numba."""
    code = (
        "import sys, levytorch; print([m for m in ('lightning', 'matplotlib', 'polars', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _reference() -> list[str]:
    """The names on the pages under docs/reference, without the package."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    return [name.removeprefix("levytorch.") for name in re.findall(r"^\.\. auto\w+:: (\S+)$", pages, re.M)]


REFERENCE = _reference()
SKIPPED = "# doctest: +SKIP"  # an example that needs a file or a cluster of the reader


def of_the_reference(name: str) -> object:
    place, _, short = name.rpartition(".")
    return getattr(importlib.import_module(f"levytorch.{place}" if place else "levytorch"), short)


def test_the_page_on_alarms_has_every_alarm():
    raised = {alarm for group in verdicts._TESTS.values() for alarm in group}
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference" / "alarms.md").read_text("utf-8"), re.M)
    assert raised | {*verdicts._SEVERE, *verdicts._SAME} <= set(listed)


def test_the_reference_has_every_public_name():
    assert set(levytorch.__all__) - {"__version__"} <= set(REFERENCE)


@pytest.mark.parametrize("name", REFERENCE)
def test_public_names_say_what_they_take_what_they_return_and_how_they_are_used(name):
    """Args (of data classes also Attributes) names every parameter, functions have Returns, and all have an Example."""
    found = of_the_reference(name)
    text = inspect.getdoc(found)
    assert text is not None
    if name.startswith("errors."):
        return
    assert "\nExample:\n    >>> " in text
    if inspect.isclass(found) and issubclass(found, Exception):
        return
    entries = re.findall(r"^    ([\w, ]+): ", text, re.M)
    named = {one.strip() for entry in entries for one in entry.split(",")}
    parameters = inspect.signature(found).parameters
    if not name.startswith("Lattice") and parameters:  # which its own methods make
        expected = {one for one in parameters if not one.startswith("_")}
        assert expected <= named, f"{sorted(expected - named)} of {name} are not explained"
    if not inspect.isclass(found):
        assert "\nReturns:\n    " in text


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in REFERENCE if not name.startswith("errors.")])
def test_examples_of_public_names(name, capsys):
    """The examples give what they show."""
    found = of_the_reference(name)
    module = sys.modules[found.__module__]
    (example,) = doctest.DocTestFinder(recurse=False).find(found, name, module, {**vars(module), "torch": torch})
    runner = doctest.DocTestRunner()
    with warnings.catch_warnings():
        assert not runner.run(example).failed, capsys.readouterr().out
    assert runner.tries or SKIPPED in (inspect.getdoc(found) or "")


@pytest.mark.parametrize("name", ["law.autograd", "law.tails", "law.step", "training.api"])
def test_doctests(name, capsys):
    module = importlib.import_module(f"levytorch.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted
    assert not result.failed, capsys.readouterr().out


def test_help_fits_a_screen_and_names_every_group(tmp_path):
    status, shown = run("train.py", "--help", cwd=tmp_path)
    assert status == 0
    lines = shown.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 84
    rows = {name: line for line in lines if line.startswith("  ") for name in re.split(r"[ ,]+", line[2:15].strip())}
    for group in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        assert group.name in rows, f"--help does not name the group {group.name}: add it to conf/train.yaml"
        if group.name not in ("experiment", "arm", "paper"):
            for option in group.glob("*.yaml"):
                assert option.stem in rows[group.name].split(), f"--help does not name {group.name}={option.stem}"
