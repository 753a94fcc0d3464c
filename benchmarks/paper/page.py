"""The results page: every number and figure on it comes from run directories, and one command writes it again."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.paper import contraction, literal, parts, prices
from benchmarks.paper.claims import Claim, claims, section_order
from benchmarks.paper.collect import DEFINITION, Runs, collect
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.style import picture
from benchmarks.paper.tables import KEEP, cells, frame, markdown
from levytorch.errors import InputError
from levytorch.files import write_text

log = logging.getLogger("benchmarks.paper")
_HEAD = """# Results

This command writes every number and figure of this page from run directories and the tables of `benchmarks/results`:

```bash
python -m benchmarks.paper page runs=<directory of the runs> out=docs
```

If the page is made from a part of the runs, its other sections stay as they were. **Every fit on this page uses the
frozen law**, as in the paper, unless a column says otherwise. [The exact law](exact_law.md) shows what it changes.
{experiments} describes the runs and what the paper leaves open.

How to read the tables:

- **Errors** are relative L2 errors: median (worst) over the replicas. *bias of D_f* is that of the mean of D_f over the
  cell, ± its standard error. *outliers* counts replicas for b/D_o/D_f: {definition}.
- **Sizes.** Tables have the largest number of trajectories, the linked CSV files and the figures all numbers.
- **Rates** are slopes of log(root mean square error) over log(trajectories), pooled and for each coefficient.
- **Calibration of the standard errors** (CSV files, all sizes): *coverage* is the share of the cell on which the 95 %
  bands contain the truth. For constants *z* is (estimate − truth) / standard error; *ks p* compares it with N(0, 1).
  The small samples of a seed are part of its larger ones, so that p is a little too small.
- **Value functions** have beta = 0.1 and V = cos³(2x) for the true coefficients. *V - mean V* is the error without the
  mean of V. The mean multiplies errors of the coefficients by 1 / beta. The last column counts replicas with a better V
  than without the correction."""
STATEMENTS, RUNS, PRICES, SHORT = (
    "The paper's statements and these runs",
    "How it was run",
    "Bitcoin (section 4.3, Figure 9)",
    "What falls short",
)


def write_page(roots: Sequence[Path], out: Path, results: Path = literal.RESULTS.parent) -> Path:
    """<out>/results.md and its pictures, <out>/figures/results_<name>.png, from all runs below these directories.

    results: tables of the studies that are no runs (`literal`, `contraction`). What a page at <out> says of other
    experiments stays.
    """
    runs, kept = collect(list(roots)), Kept(out / "results.md")
    guide = "[Experiments](experiments.md)" if (out / "experiments.md").is_file() else "`conf/experiment/`"
    blocks = [_HEAD.format(experiments=guide, definition=DEFINITION)]
    fresh = [*literal.claims(results), *map(Claim._make, claims(runs).rows())]
    stated = sorted([*fresh, *kept.claims(STATEMENTS, fresh)], key=lambda claim: section_order(claim.where))
    if stated:
        blocks += [f"## {STATEMENTS}", markdown(frame(stated), keep=KEEP)]
    blocks += [f"## {RUNS}", *parts.how(runs, roots, kept.rows(RUNS), kept.machines(RUNS))]
    names = [one.name for one in parts.EXPERIMENTS if len(runs.where(experiment=one.name))]
    there = [one.name for one in parts.EXPERIMENTS if one.name in names or kept[one.title]]
    for one in parts.EXPERIMENTS:
        if one.name not in names:
            blocks += [f"## {one.title}", kept[one.title]] if kept[one.title] else []
            continue
        blocks += [f"## {one.title}", *parts.experiment(one, runs.where(experiment=one.name), roots, out)]
        for name, entry in FIGURES.items():  # each once: at the last experiment that it needs
            needed = [known for known in there if known in entry.experiments]
            if needed and needed[-1] == one.name:
                complete = set(needed) <= set(names)
                blocks += _picture(name, runs, out) if complete else kept.picture(one.title, name)
    studies = {
        literal.TITLE: literal.section(results),
        contraction.TITLE: contraction.section(results, out),
        parts.BOUND: parts.bound(runs, out),
    }
    for title, made in studies.items():
        body = made or ([kept[title]] if kept[title] else [])
        blocks += [f"## {title}", *body] if body else []
    blocks += _prices(runs, out, kept) or ([f"## {PRICES}", kept[PRICES]] if kept[PRICES] else [])
    blocks += [f"## {SHORT}", *parts.shortfalls(runs, kept.items(SHORT, names), there)]
    write_text(out / "results.md", "\n\n".join(block.strip("\n") for block in blocks if block) + "\n")
    return out / "results.md"


def _prices(runs: Runs, out: Path, kept: Kept) -> list[str]:
    """Rows, remarks and pictures of engines and files of which there are no runs stay as they were."""
    found = {panel.experiment: panel for panel in prices.panels(runs)}
    if not found:
        return []
    fitted = parts.fitted_by(Runs(tuple(run for panel in found.values() for run in panel.runs)))
    blocks, stayed = [], False
    for name in prices.CAPTIONS:
        blocks += _picture(name, runs, out) or kept.picture(PRICES, name)
    for experiment, words in prices.EXPERIMENTS.items():
        title = words.capitalize()
        panel, old = found.get(experiment), kept.rows(PRICES, title)
        remarks = [block for block in kept.part(PRICES, title) if not block.startswith("| ")]
        rows = prices.merged(old, [] if panel is None else prices.rows(panel))
        stayed |= len(rows) > (0 if panel is None else len(prices.rows(panel)))
        if rows:
            blocks += [f"**{title}**", markdown(rows), *((panel and prices.remarks(panel)) or remarks)]
    if stayed:
        fitted += " Rows of which there were no new runs are as they were."
    head = [f"## {PRICES}", fitted, parts.code("\n".join(prices.commands()))]
    return [*head, *blocks, prices.notes(list(found.values()))]


def _picture(name: str, runs: Runs, out: Path) -> list[str]:
    """Draw and write a figure; returns what shows it, nothing when these runs are not enough for it."""
    entry = FIGURES[name]
    try:
        fig, _ = entry.of(runs)
    except InputError as error:
        log.warning(f"no figure {name}: {error}")
        return []
    return picture(fig, name, entry.caption, out, f"Figure {entry.number} of the paper. ")


class Kept:
    """The sections of a page by their headings; nothing of a page that is not there."""

    def __init__(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        parts = re.split(r"^## (.*)$", text, flags=re.M)
        self.sections = {title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2])}

    def __getitem__(self, title: str) -> str:
        """The body of a section, empty where there is none."""
        return self.sections.get(title, "")

    def part(self, title: str, bold: str) -> list[str]:
        """The blocks of a section between a line in bold and the next one, or a list."""
        _, _, rest = self[title].partition(f"**{bold}**\n")
        part = re.split(r"^(?:\*\*|- )", rest, flags=re.M)[0]
        return [block.strip("\n") for block in part.split("\n\n") if block.strip()]

    def rows(self, title: str, bold: str | None = None) -> list[dict[str, str]]:
        """The first table of a section, or of a part of it."""
        blocks = self[title].split("\n\n") if bold is None else self.part(title, bold)
        lines = [line for line in blocks if line.startswith("| ")]
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
