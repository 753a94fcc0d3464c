"""The results page, the report after a sweep, and the command line, from the same tiny runs."""

import json
import re
import shutil

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from benchmarks.paper import page as pages
from benchmarks.paper import parts, style
from benchmarks.paper.__main__ import main, parse
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.report import Report
from levytorch.errors import ConfigError, InputError
from levytorch.figures import new_axes


@pytest.fixture(scope="module")
def docs(root, price_runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    pages.write_page([root, price_runs], out)
    return out


@pytest.mark.long
def test_page_shows_every_figure_once_and_small(docs):
    text = (docs / "results.md").read_text()
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert sorted(shown) == sorted(f"figures/results_{name}.png" for name in (*FIGURES, "bound", "contraction"))
    for name in shown:
        assert (docs / name).stat().st_size <= style.LARGEST
        with Image.open(docs / name) as image:
            assert image.width >= 600


def test_page_has_its_parts_and_no_empty_number(docs):
    text = (docs / "results.md").read_text()
    headings = re.findall(r"^## (.*)$", text, flags=re.M)
    assert headings[:2] == ["The paper's statements and these runs", "How it was run"]
    assert headings[-2:] == ["Bitcoin (section 4.3, Figure 9)", "What falls short"]
    assert sum(heading.startswith("Example 4.") for heading in headings) == 5
    assert re.search(r"^\| r / beta \| \d+\.\d\d % \|", text, flags=re.M)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)
    assert re.search(r"Machine: .*\d+ cores?, ", text)
    assert "Python 3." in text
    assert "python train.py -m experiment=censored_variable" in text
    assert "censored_variable, Algorithm B.1: no runs of these arms: unbiased data, without TCF." in text
    assert "3 replicas in" in text  # fewer than the paper's twelve: said by the page itself
    assert "an outlier is a replica" in text


def test_page_comes_out_the_same_again(root, docs, tmp_path):
    """Fewer runs, the same numbers for them: a section depends on its own runs only."""
    pages.write_page([root / "censored_constant"], tmp_path)
    part = (tmp_path / "results.md").read_text()
    table = re.search(r"## Example 4.4.*?(\| arm .*?)\n\n", part, flags=re.S)[1]
    assert table in (docs / "results.md").read_text()


def test_sections_without_runs_stay_and_say_so(root, docs, tmp_path):
    """A page made again from the runs of one experiment: its section is new, the others are those of before."""
    shutil.copytree(docs, tmp_path / "docs")
    here, page = parts.machine().split(",")[0], tmp_path / "docs" / "results.md"
    before = page.read_text().replace(f"| {here} |", "| Abacus |").replace(f"Machine: {here},", "Machine: Abacus,")
    page.write_text(before)
    pages.write_page([root / "censored_constant"], tmp_path / "docs")
    after = (tmp_path / "docs" / "results.md").read_text()

    def section(text, title):
        return re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, flags=re.M | re.S)[0]

    for title in ("Example 4.1", "Example 4.3", "Example 4.4", "Bitcoin", "The error bound"):
        assert section(after, title) == section(before, title), title
    made = [line for line in section(after, "How it was run").splitlines() if line.startswith("| ")][1:]
    assert {line.split(" | ")[0].strip("| "): line.rsplit("|", 2)[1].strip() for line in made} == {
        **dict.fromkeys([one.name for one in parts.EXPERIMENTS], "Abacus"), "censored_constant": here,
    }  # fmt: skip
    named = [line for line in section(after, "How it was run").splitlines() if line.startswith("Machine: ")]
    assert [line.split(",")[0] for line in named] == [f"Machine: {here}", "Machine: Abacus"]
    statements = [section(text, "The paper's statements") for text in (before, after)]
    assert sorted(statements[0].splitlines()) == sorted(statements[1].splitlines())
    short = [sorted(section(text, "What falls short").splitlines()) for text in (before, after)]
    assert short[0] == short[1]


def test_every_fit_says_its_law_and_engine(docs):
    text = (docs / "results.md").read_text()
    head = next(line for line in text.splitlines() if line.startswith("| where |"))
    assert head == "| where | engine | law | paper | measured | holds |"
    for title in ("4.1", "4.2", "4.3", "4.4", "4.5"):
        part = re.search(rf"^## Example {title}.*?(?=^## )", text, flags=re.M | re.S)[0]
        assert "Law of a step: frozen. Engine: " in part
    assert "| experiment | engine | law |" in text


def test_pictures_are_made_smaller_until_they_fit(monkeypatch):
    fig, axes = new_axes(1, 1)
    axes[0, 0].imshow(np.random.default_rng(0).random((60, 60)), cmap="viridis")
    large = len(style.small_png(fig))
    monkeypatch.setattr(style, "LARGEST", large - 1)
    assert len(style.small_png(fig)) < large


def test_report_after_a_sweep(root, tmp_path, capsys):
    shutil.copytree(root / "censored_constant", tmp_path / "sweep")
    Report().on_multirun_end(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path / "sweep")}}}))
    printed = capsys.readouterr().out
    assert "the TCF corrects D_f" in printed
    assert "wall_seconds" in json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert {file.name for file in (tmp_path / "sweep" / "figures").iterdir()} == {
        "censored_constant.png", "censored_constant.pdf",
    }  # fmt: skip
    names = {file.stem for file in (tmp_path / "sweep" / "tables").glob("*.csv")}
    assert names == {"paper", "errors", "calibration", "values"}


def test_report_on_a_sweep_without_results_does_not_fail_it(tmp_path, caplog):
    Report().on_multirun_end(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}}))
    assert "no report" in caplog.text


def test_command_line(root, tmp_path, capsys):
    main(["figure=censored_constant", f"runs={root / 'censored_constant'}", f"out={tmp_path}"])
    assert (tmp_path / "censored_constant.pdf").is_file()
    main(["tables", f"runs={root / 'censored_constant'},{root / 'unbiased_constant'}", f"out={tmp_path / 'tables'}"])
    assert (tmp_path / "tables" / "rates.csv").is_file()
    assert "slope pooled" in capsys.readouterr().out
    main(["help"])
    assert "docs/results.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["figure=comparison"], "needs runs"),
        (["colour=red", "runs=x"], "found 'colour'"),
        (["draw", "runs=x"], "the command must be one of"),
        (["figure", "runs=x"], "needs figure"),
    ],
)
def test_command_line_refuses(arguments, match):
    with pytest.raises(ConfigError, match=match):
        parse(arguments)


def test_command_line_checks_the_figure_before_it_reads_runs(tmp_path):
    with pytest.raises(ConfigError, match="figure must be one of"):
        main(["figure=none", f"runs={tmp_path}"])
    with pytest.raises(InputError, match="found none"):
        main(["page", f"runs={tmp_path}", f"out={tmp_path / 'docs'}"])
    assert not (tmp_path / "docs").exists()
