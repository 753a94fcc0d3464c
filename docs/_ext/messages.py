"""Writes reference/generated/messages.md: every error and warning of the package, collected from its sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "levytorch"
_ERRORS = ("InputError", "ConfigError", "NumericalError", "OutputError", "LevytorchError")
_TITLES = {
    "coefficients": "Heads",
    "data": "Data",
    "diagnostics": "Checks",
    "distributed": "Clusters",
    "figures": "Figures",
    "law": "Law of a step",
    "likelihood": "Likelihood and tails",
    "policy": "Values and policies",
    "runs": "Runs and settings",
    "simulation": "Simulation",
    "spaces": "State spaces",
    "training": "Fits",
}


def template(node: ast.expr) -> str:
    """The text of a message; what is filled in is shown as an ellipsis. Empty where it is not written in place."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return ""


def messages(file: Path) -> Iterator[tuple[str, str]]:
    """(class, text) of everything that a file raises or warns of."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        second = getattr(node.args[1], "id", "") if len(node.args) > 1 else ""
        kind = name if name in _ERRORS else second if name == "warn" and second == "LevytorchWarning" else ""
        text = " ".join(template(node.args[0]).split())
        if kind and len(text) > 25:
            yield kind, text


def collected() -> dict[str, list[tuple[str, str]]]:
    """The messages of every part of the package, each once."""
    found: dict[str, dict[tuple[str, str], None]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        part = file.relative_to(PACKAGE).parts[0]
        title = _TITLES.get(part, "Everything else")
        found.setdefault(title, {}).update(dict.fromkeys(messages(file)))
    return {title: list(rows) for title, rows in found.items() if rows}


def cell(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|<>*_`[]$#{}" else letter for letter in text)


def rows(found: list[tuple[str, str]], warnings: bool) -> list[str]:
    """A table: what must be and what was found, and what to do."""
    lines = []
    for kind, text in sorted(found, key=lambda one: one[1].lower()):
        if (kind == "LevytorchWarning") == warnings:
            what, _, remedy = text.rpartition("; ")
            if sum(word.strip(".,:").isalpha() for word in (what or remedy).split()) < 3:
                continue  # its text is put together elsewhere
            lines.append(f"| {cell(what or remedy)} | {cell(remedy[:1].upper() + remedy[1:]) if what else ''} |")
    return lines


def page() -> str:
    lines = [
        "# Messages",
        "",
        "Every error and every warning of levytorch has one form: what must be, what was found, and what to do.",
        "This page lists them as they stand in the sources; … stands for what is filled in. The alarms of the checks",
        "have [a page of their own](../alarms.md).",
        "",
    ]
    for warnings, title in ((True, "Warnings"), (False, "Errors")):
        lines += [f"## {title}", ""]
        for part, found in sorted(collected().items()):
            if table := rows(found, warnings):
                lines += [f"### {title}: {part}", "", "| message | what to do |", "|---|---|", *table, ""]
    return "\n".join(lines) + "\n"


def write(app) -> None:
    target = Path(app.srcdir) / "reference" / "generated" / "messages.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = page()
    if not target.exists() or target.read_text("utf-8") != text:
        target.write_text(text, "utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
