"""Links of a page to folders of the repository, which the site does not have, are shown as their text."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]


def without_folders(app, docname, source):
    page = DOCS / f"{docname}.md"

    def shown(match: re.Match) -> str:
        return match[1] if (page.parent / match[2]).is_dir() else match[0]

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\.?/[^)#\s]*)\)", shown, source[0])


def setup(app):
    app.connect("source-read", without_folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
