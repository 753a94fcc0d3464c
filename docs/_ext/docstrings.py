"""Docstrings are plain text with `code` in backticks; this turns them into what Sphinx reads.

Formulas such as |dx - mu| and D_o * 2 keep their bars and stars, an indented block is shown as it is, and an example
without a heading gets one.
"""

import re

_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Example|Examples|Yields|Note|Warning):\s*$")


def escaped(text: str) -> str:
    """Characters that mean something in reStructuredText are shown as they are, except within backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(\w)_(?=\W|$)", r"\1\\_", re.sub(r"([*|\\])", r"\\\1", part)) for part in parts[::2]]
    return "`".join(parts)


def process(app, what, name, obj, options, lines):
    done: list[str] = []
    section, literal, example = "", False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if match := _SECTION.match(line):
            section, literal, example = match[1], False, match[1].startswith("Example")
        elif line.strip() and indent == 0:
            literal = False
            if line.startswith(">>>") and not example:
                done += ["Example:", ""]
                example = True
            elif section and not line.startswith(">>>") and not example:
                section = ""
        elif line.strip() and not section and indent >= 4 and not literal and done and not done[-1].strip():
            while not done[-1].strip():
                done.pop()
            done += ["", "::", ""]
            literal = True
        if example and not section.startswith("Example") and line.strip():
            done.append("    " + line)
            continue
        done.append(line if literal or example or line.lstrip().startswith(">>>") else escaped(line))
    # napoleon takes what stands before a colon in the first line of an attribute for its type
    lines[:] = ["\\ ", *done] if what in ("attribute", "property", "data") else done


def setup(app):
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
