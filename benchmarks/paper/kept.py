"""What a results page that is there says of experiments whose runs are not at hand: kept as it is."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from benchmarks.paper.claim import Claim


class Kept:
    """The sections of a page by their headings; nothing of a page that is not there."""

    def __init__(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        parts = re.split(r"^## (.*)$", text, flags=re.M)
        self.sections = {title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2])}

    def __getitem__(self, title: str) -> str:
        """The body of a section, empty where there is none."""
        return self.sections.get(title, "")

    def rows(self, title: str) -> list[dict[str, str]]:
        """The first table of a section."""
        lines = [line for line in self[title].split("\n\n") if line.startswith("| ")]
        if not lines:
            return []
        head, _, *body = lines[0].splitlines()
        names = cells(head)
        return [dict(zip(names, cells(line))) for line in body if len(cells(line)) == len(names)]

    def machines(self, title: str) -> list[str]:
        """The machines, with their versions, that a section names."""
        return re.findall(r"^Machine: (.*)$", self[title], flags=re.M)

    def picture(self, title: str, name: str) -> list[str]:
        """What shows a picture in a section, and its caption."""
        return re.findall(rf"^!\[[^\n]*results_{name}\.png\)\n\n\*[^\n]*\*$", self[title], flags=re.M)

    def claims(self, title: str, made: Collection[Claim]) -> list[Claim]:
        """Statements of the page that were not made anew."""
        anew = {(one.where, one.engine, one.paper) for one in made}
        old = [row for row in self.rows(title) if set(row) == set(Claim._fields)]
        found = [Claim(**{**row, "holds": row["holds"] == "yes"}) for row in old]  # type: ignore[arg-type]
        return [one for one in found if (one.where, one.engine, one.paper) not in anew]

    def items(self, title: str, anew: Collection[str]) -> list[str]:
        """Entries of a list that begin with the name of an experiment which is not among these."""
        found = re.findall(r"^- (.*)$", self[title], flags=re.M)
        return [item for item in found if re.split(r"[,:]", item)[0] not in anew and not item.startswith("No runs of")]


def cells(line: str) -> list[str]:
    """Of one line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def table(rows: list[dict[str, str]]) -> str:
    """Texts as a Markdown table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)])
