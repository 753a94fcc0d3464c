"""Writes reference/generated/options.md: every setting of train.py and evaluate.py, from the files of conf/.

The meaning of a setting is the comment behind it. A setting without one takes the comment of the same name in another
option of its group; where there is none the build stops.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
# groups whose files only choose options of other groups
_CHOICES = ("experiment", "arm", "paper", "debug")
_SKIPPED = ("defaults", "hydra", "_target_", "name")


def entries(text: str) -> list[tuple[str, str, str]]:
    """(dotted key, default, comment) of every setting of a YAML file that holds one setting per line."""
    found: list[list[str]] = []
    above: list[tuple[int, str]] = []
    skipped = -1
    for line in text.splitlines():
        match = re.match(r"^( *)([\w.]+):(?: +((?:[^#]|(?<! )#)*?))?(?:\s+#\s*(.*))?$", line)
        if match is None:
            if found and (more := re.match(r"^ {8,}#\s*(.*)$", line)):
                found[-1][2] += f" {more[1]}"  # a comment goes on in the next line
            continue
        indent = len(match[1])
        if -1 < skipped < indent:
            continue
        skipped = -1
        while above and above[-1][0] >= indent:
            above.pop()
        key = ".".join([*(name for _, name in above), match[2]])
        if key in _SKIPPED:
            skipped = indent
            continue
        value, comment = (match[3] or "").strip(), (match[4] or "").strip()
        if not value:
            above.append((indent, match[2]))
        elif match[2] not in _SKIPPED or comment:
            found.append([key, value, comment])
    return [(key, value, comment) for key, value, comment in found]


def heading(text: str) -> str:
    """The comment at the top of an option's file."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("#") and "@package" not in line]
    return " ".join(lines)


def cell(text: str) -> str:
    """Text within a table of Markdown."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", text)


def table(rows: list[tuple[str, str, str]]) -> list[str]:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for key, value, meaning in rows:
        code = value.replace("|", "\\|")
        lines.append(f"| `{key}` | `{code}` | {cell(meaning)} |")
    return [*lines, ""]


def explained(rows: list[tuple[str, str, str]], others: dict[str, str], place: str) -> list[tuple[str, str, str]]:
    out = []
    for key, value, comment in rows:
        if key.endswith(".kind"):  # how hydra builds a policy; it is not changed
            continue
        if comment == "the same" and out:
            comment = out[-1][2]
        meaning = comment or others.get(key, "") or others.get(key.rpartition(".")[2], "")
        if not meaning:
            raise ExtensionError(f"{place}: the setting {key} has no comment that says what it means")
        out.append((key, value, meaning))
    return out


def meanings(files: list[Path]) -> dict[str, str]:
    known: dict[str, str] = {}
    for file in files:
        for key, _, comment in entries(file.read_text("utf-8")):
            if comment and len(comment) > len(known.get(key, "")):
                known[key] = comment
    return known


def page() -> str:
    lines = ["# Settings of the command line", ""]
    lines += [
        "This page is made from the files of `conf/`. `group=option` chooses a file, `key=value` sets a value, and",
        "`python train.py --cfg job` shows all settings as they are after your changes. A value `null` means that the",
        "setting is left open. `${name}` is the value of another setting.",
        "",
    ]
    for name in ("train", "evaluate"):
        text = (CONF / f"{name}.yaml").read_text("utf-8")
        lines += [f"## {name}.py", ""]
        lines += table(explained(entries(text), {}, f"conf/{name}.yaml"))
    for group in sorted(path for path in CONF.iterdir() if path.is_dir()):
        files = sorted(group.glob("*.yaml"))
        known = meanings(files)
        lines += [f"## {group.name}", ""]
        if group.name in _CHOICES:
            lines += ["| option | what it does |", "|---|---|"]
            lines += [f"| `{group.name}={file.stem}` | {cell(heading(file.read_text('utf-8')))} |" for file in files]
            lines += [""]
            continue
        for file in files:
            text = file.read_text("utf-8")
            about = heading(text) or "The settings are those of the other options."
            lines += [f"### {group.name}={file.stem}", "", cell(about), ""]
            rows = explained(entries(text), known, f"conf/{group.name}/{file.name}")
            lines += table(rows) if rows else []
    return "\n".join(lines) + "\n"


def write(app) -> None:
    target = Path(app.srcdir) / "reference" / "generated" / "options.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = page()
    if not target.exists() or target.read_text("utf-8") != text:
        target.write_text(text, "utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
