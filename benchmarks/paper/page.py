"""The results page: every number and figure on it comes from run directories, and one command writes it again."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.paper import parts, prices
from benchmarks.paper.claims import claims
from benchmarks.paper.collect import Runs, collect
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.tables import KEEP, markdown
from levytorch.errors import InputError
from levytorch.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("benchmarks.paper")
LARGEST = 100_000  # bytes of a committed picture
_HEAD = """# Results

Every number and figure on this page was written by

```bash
python -m benchmarks.paper page runs=<directory of the runs> out=docs
```

from run directories; nothing is typed in. How each experiment is run and what the paper leaves open:
{experiments}."""


def write_page(roots: Sequence[Path], out: Path) -> Path:
    """<out>/results.md and its pictures, <out>/figures/results_<name>.png, from all runs below these directories."""
    runs = collect(list(roots))
    guide = "[experiments.md](experiments.md)" if (out / "experiments.md").is_file() else "`conf/experiment/`"
    blocks = [_HEAD.format(experiments=guide)]
    stated = claims(runs)
    if len(stated):
        blocks += ["## The paper's statements and these runs", markdown(stated, keep=KEEP)]
    blocks += ["## How it was run", *parts.how(runs, roots)]
    present = [one for one in parts.EXPERIMENTS if len(runs.where(experiment=one.name))]
    names = [one.name for one in present]
    for one in present:
        blocks += [f"## {one.title}", *parts.experiment(one, runs.where(experiment=one.name), roots)]
        for name, entry in FIGURES.items():  # each once: at the last experiment that it needs
            needed = [known for known in names if known in entry.experiments]
            if needed and needed[-1] == one.name:
                blocks += _picture(name, runs, out)
    blocks += _prices(runs, out)
    blocks += ["## What falls short", *parts.shortfalls(runs)]
    write_text(out / "results.md", "\n\n".join(block.strip("\n") for block in blocks if block) + "\n")
    return out / "results.md"


def _prices(runs: Runs, out: Path) -> list[str]:
    found = prices.panels(runs)
    if not found:
        return []
    blocks = ["## Bitcoin (section 4.3, Figure 9)", parts.code("\n".join(prices.commands()))]
    for name in prices.CAPTIONS:
        blocks += _picture(name, runs, out)
    for panel in found:
        title = prices.EXPERIMENTS[panel.experiment].capitalize()
        blocks += [f"**{title}**", markdown(prices.rows(panel)), *prices.remarks(panel)]
    return [*blocks, prices.notes(found)]


def _picture(name: str, runs: Runs, out: Path) -> list[str]:
    """Draw and write a figure; returns what shows it, nothing when these runs are not enough for it."""
    entry = FIGURES[name]
    try:
        fig, _ = entry.of(runs)
    except InputError as error:
        log.warning(f"no figure {name}: {error}")
        return []
    target = out / "figures" / f"results_{name}.png"
    with replacing(target) as temporary:
        temporary.write_bytes(small_png(fig))
    caption = f"Figure {entry.number} of the paper. {entry.caption}"
    return [f"![{entry.caption}](figures/{target.name})", f"*{caption}*"]


def small_png(fig: Figure) -> bytes:
    """The figure as a PNG of at most `LARGEST` bytes: a palette first, then fewer colours, then fewer pixels."""
    from PIL import Image

    content = b""
    for dpi, colors in ((115, 256), (115, 96), (100, 96), (85, 64), (70, 48)):
        raw, packed = io.BytesIO(), io.BytesIO()
        fig.savefig(raw, dpi=dpi, format="png")
        image = Image.open(raw).convert("RGB")
        image = image.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        image.save(packed, format="png", optimize=True)
        content = packed.getvalue()
        if len(content) <= LARGEST:
            break
    return content
