"""Pages that are one file: text from outside is escaped, pictures are part of it, nothing is loaded or run."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0.2rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p.told { color: #555; margin: 0.2rem 0; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: 0.25rem 0.8rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #6A3D9A; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
tr + tr td { border-top: 1px solid #eee; }
pre { background: #f5f5f7; padding: 0.6rem 0.8rem; white-space: pre-wrap; border-radius: 6px; font-size: 0.85rem; }
ul.verdicts { list-style: none; padding: 0; } ul.verdicts li { margin: 0.4rem 0; padding: 0.5rem 0.8rem;
  border-left: 5px solid #E69F00; background: #fff8e8; } ul.verdicts li.well { border-color: #009E73;
  background: #eef8f4; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #555; font-size: 0.9rem; }
@media (max-width: 40rem) { figure.wide div { overflow-x: auto; } figure.wide img { max-width: none; width: 46rem; } }
"""
# no scripts, no other files, wherever a text may lead
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, *parts: str) -> str:
    """A complete document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f'<p class="told">{escape(text)}</p>'


def verdicts(items: Iterable[tuple[str, bool]]) -> str:
    """Sentences, each with whether all is well."""
    rows = [f'<li class="well">{escape(text)}</li>' if well else f"<li>{escape(text)}</li>" for text, well in items]
    return '<ul class="verdicts">\n' + "\n".join(rows) + "\n</ul>" if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{cells}</tr>\n{body}\n</table></div>'


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def picture(png: bytes, name: str, caption: str) -> str:
    content = base64.b64encode(png).decode("ascii")
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # where a PNG file has them
    wide = ' class="wide"' if width > 2 * height else ""
    return (
        f'<figure{wide}><div><img alt="{escape(name)}" src="data:image/png;base64,{content}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
