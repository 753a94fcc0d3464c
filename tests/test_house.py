"""The house: rooms in one direction, no cycle of imports, hidden in functions or not, and one dialect of refusals."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from traceback import walk_stack
from types import FrameType

import pytest
import torch

from levytorch import Dynamics, Trajectories, recover, simulate, solve_value

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "levytorch"
# a room imports only rooms above it; single files at the top of the package are needed by all
ROOMS = (
    *("errors", "parent", "working_directory", "startup", "plots", "archives", "exchange", "convert", "files"),
    *("untrusted", "interrupts", "ranks", "spaces", "law", "pyro", "coefficients", "policies", "dynamics"),
    *("controlled", "data", "simulation", "datasets", "likelihood", "distributed", "training", "diagnostics"),
    *("policy", "figures", "runs", "train", "evaluate", "__main__", "command"),
)


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(file: Path) -> set[str]:
    """Modules of the package that a file imports anywhere, also inside functions; not those for type checkers only."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(file.read_text())]
    while todo:
        node = todo.pop()
        if type_checking(node):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
        todo += list(ast.iter_child_nodes(node))
    return {name for name in found if name.split(".")[0] == "levytorch" and name in MODULES}


GRAPH = {name: imports(file) - {name} for name, file in MODULES.items()}
# the one method that makes something of its object that is built upon it: Transitions.lattice()
GRAPH["levytorch.data.transitions"].discard("levytorch.data.lattice")


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", sorted(set(GRAPH) - {"levytorch"}))
def test_a_room_imports_only_rooms_above_it(name):
    assert room(name) in ROOMS
    below = [
        other for other in GRAPH[name] if other != "levytorch" and ROOMS.index(room(other)) > ROOMS.index(room(name))
    ]
    assert not below


def test_there_is_no_cycle():
    seen: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        seen[name] = 1
        stack.append(name)
        for other in sorted(GRAPH[name]):
            if seen.get(other) == 1:
                raise AssertionError(" -> ".join([*stack[stack.index(other) :], other]))
            if other not in seen:
                visit(other)
        stack.pop()
        seen[name] = 2

    for name in sorted(GRAPH):
        if name not in seen:
            visit(name)


def test_train_and_evaluate_are_thin():
    for script in ("train.py", "evaluate.py"):
        assert len((ROOT / script).read_text().splitlines()) <= 10
        script = f"levytorch/{script}"
        assert len((ROOT / script).read_text().splitlines()) <= 100


# files, some of compiled kernels; a change that needs more of them should say why. The exact law of a step brings its
# lattice, its tables and its scores; coefficients at their boundary and the driver of a fit are two files, what a law
# and a phase are, two more, spaces and jumps three, and every phase is one, what rounds share another; so are where a
# file of data is, what a caller may have for data, whether that is in degrees, which states a fit has seen, and
# the shape of states
MOST_CROSSED = {"frozen": 60, "auto": 78}


@pytest.mark.parametrize("law", ["frozen", pytest.param("auto", marks=pytest.mark.slow)])
def test_files_crossed_from_csv_to_value(tmp_path, law):
    """A reader who follows one transition opens these files: those whose functions run, imports and compilers aside."""
    simulate(Dynamics.named("variable"), 60, 40, 0.1, seed=0).to_file(tmp_path / "data.csv")
    crossed, files = set(), {str(file) for file in MODULES.values()}

    def watch(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in crossed and file.startswith(str(PACKAGE)):
            callers = [outer for outer, _ in walk_stack(frame)]
            importing = any(f.f_code.co_name == "<module>" and f.f_code.co_filename in files for f in callers)
            compiling = any("numba" in Path(f.f_code.co_filename).parts for f in callers)  # where none is kept yet
            if not importing and not compiling:
                crossed.add(file)

    sys.settrace(watch)  # which, unlike a profile, is not called for what is written in C
    try:
        transitions = Trajectories.from_file(tmp_path / "data.csv").transitions()
        recovery = recover(transitions, alpha=0.3, n_basis=5, law=law)
        solve_value(recovery, torch.cos, 1.0)(0.3)
    finally:
        sys.settrace(None)
    names = sorted(str(Path(file).relative_to(PACKAGE)) for file in crossed if not file.endswith("__init__.py"))
    assert 20 < len(names) <= MOST_CROSSED[law], names


# -- one dialect of messages -------------------------------------------------------------------------------------------

REFUSALS = {"InputError", "ConfigError"} | {
    node.name
    for file in MODULES.values()
    for node in ast.walk(ast.parse(file.read_text()))
    if isinstance(node, ast.ClassDef) and {"InputError", "ConfigError"} & {ast.unparse(base) for base in node.bases}
}
# what only passes on a sentence that was made elsewhere
PASSED_ON = {
    ("errors", "{prefix}{error}"),
    ("distributed.lattices", "{part.problem}"),
    ("data.numpy_files", "{self.path}: {error}"),
    ("data.numpy_files", "{self.path}: {disorder(point, times, self.offsets, self.ids)}"),
    ("policy.value", "{self._no_errors}"),
    ("policy.reward_functions", "{text if text.startswith(str(file)) else f'{file}: {text}'}"),
    ("runs.actions", "action {action}, of {len(pairs)} pairs: {error}"),
    ("runs.evaluation_settings", "{str(error).removesuffix('.')}, or use window=data, the range of the data."),
    ("training.by_action", "action {shown(action)}, of {len(pairs)} pairs: {error}"),
}


def sentence(node: ast.expr) -> str:
    """A literal text, with the expressions of an f-string in braces; another expression in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(sentence(part) for part in node.values)
    return f"{{{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}}}"


def said_by(calls: set[str]) -> set[tuple[str, str]]:
    """(module, text) of the first arguments of all calls of these names."""
    return {
        (name.removeprefix("levytorch."), sentence(node.args[0]))
        for name, file in MODULES.items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls and node.args
    }


def test_refusals_say_what_must_be_what_was_found_and_what_to_do():
    said = said_by(REFUSALS)
    assert len(said) > 500
    assert said >= PASSED_ON
    dialect = re.compile(r" must .*, found .*; .*\.$")
    assert [(where, text) for where, text in sorted(said - PASSED_ON) if not dialect.search(text)] == []


def test_warnings_say_what_to_do():
    said = {(where, text) for where, text in said_by({"warnings.warn", "_warn"}) if not text.endswith("}")}
    assert len(said) > 30
    assert [(where, text) for where, text in sorted(said) if not re.search(r"; .*\.$", text)] == []
