"""The results page: every number and figure on it comes from run directories, and one command writes it again."""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.paper import parts
from benchmarks.paper.claims import claims
from benchmarks.paper.collect import Runs, collect
from benchmarks.paper.registry import FIGURES, SECTIONS
from benchmarks.paper.report import runs_of
from benchmarks.paper.show import KEEP, markdown
from levytorch.atomic import replacing
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

log = logging.getLogger("benchmarks.paper")
LARGEST = 100_000  # bytes of a committed picture
_HEAD = """# Results

Every number and figure on this page was written by

```bash
python -m benchmarks.paper page runs=<directory of the runs> out=docs
```

from run directories; nothing is typed in. How each experiment is run and what the paper leaves open:
{experiments}.
"""


class Page:
    """Collects the page's text; pictures go to <out>/figures/results_<name>.png."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.text: list[str] = []

    def add(self, *blocks: str) -> None:
        self.text += [block.strip("\n") for block in blocks if block]

    def figure(self, fig: Figure, name: str, alt: str) -> str:
        """Write the picture; returns the line that shows it."""
        target = self.out / "figures" / f"results_{name}.png"
        with replacing(target) as temporary:
            temporary.write_bytes(small_png(fig))
        return f"![{alt}](figures/{target.name})"

    def table(self, table: pl.DataFrame | Sequence[dict[str, Any]], **options: Any) -> str:
        """A table as Markdown: a data frame, or rows as dicts."""
        import polars as pl

        frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(list(table), infer_schema_length=None)
        return markdown(frame, **options)

    def code(self, command: str) -> str:
        return f"```bash\n{command.strip()}\n```"

    def write(self) -> Path:
        target = self.out / "results.md"
        with replacing(target) as temporary:
            temporary.write_text("\n\n".join(self.text) + "\n", encoding="utf-8")
        return target


def small_png(fig: Figure) -> bytes:
    """The figure as a PNG of at most `LARGEST` bytes: a palette first, then fewer colours, then fewer pixels."""
    from PIL import Image

    content = b""
    for dpi, colors in ((115, 256), (115, 96), (100, 96), (85, 64), (70, 48)):
        raw, packed = io.BytesIO(), io.BytesIO()
        fig.savefig(raw, dpi=dpi, format="png")
        image = (
            Image.open(raw).convert("RGB").quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        )
        image.save(packed, format="png", optimize=True)
        content = packed.getvalue()
        if len(content) <= LARGEST:
            break
    return content


def write_page(roots: Sequence[Path], out: Path) -> Path:
    """docs/results.md and its pictures from all runs below these directories."""
    runs = collect(list(roots))
    page = Page(out)
    guide = "[experiments.md](experiments.md)" if (out / "experiments.md").is_file() else "`conf/experiment/`"
    page.add(_HEAD.format(experiments=guide))
    stated = claims(runs)
    if len(stated):
        page.add("## The paper's statements and these runs", page.table(stated, keep=KEEP))
    page.add("## How it was run", *parts.how(runs, roots))
    shown: set[str] = set()
    for experiment in parts.EXPERIMENTS:
        own = runs.where(experiment=experiment.name)
        if len(own):
            page.add(f"## {experiment.title}", *parts.experiment(page, experiment, own, roots))
            page.add(*_figures(page, experiment.name, runs, shown))
    for title, text in sections(roots, page):
        page.add(f"## {title}", text)
    page.add("## What falls short", *parts.shortfalls(runs))
    return page.write()


def _figures(page: Page, experiment: str, runs: Runs, shown: set[str]) -> list[str]:
    """The figures of an experiment, each once on the page: at the last experiment that it needs."""
    blocks = []
    present = [name for name in (e.name for e in parts.EXPERIMENTS) if len(runs.where(experiment=name))]
    for name, entry in FIGURES.items():
        needed = [one for one in present if one in entry.experiments]
        if name in shown or not needed or needed[-1] != experiment:
            continue
        shown.add(name)
        try:
            fig, _ = entry.load()(runs_of(entry, runs))
        except InputError as error:
            log.warning(f"no figure {name}: {error}")
            continue
        blocks += [page.figure(fig, name, entry.caption), f"*Figure {entry.number} of the paper. {entry.caption}*"]
    return blocks


def sections(roots: Sequence[Path], page: Page) -> list[tuple[str, str]]:
    """The sections that have a module of their own and find their results below one of the roots."""
    found = []
    for section in SECTIONS.values():
        if importlib.util.find_spec(section.function.partition(":")[0]) is None:
            continue
        for root in roots:
            text = section.load()(root, page)
            if text:
                found.append((section.title, text))
                break
    return found
