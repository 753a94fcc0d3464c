"""report.html: one file that loads nothing, in which text from outside stays text, and that a browser shows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from levytorch.diagnostics.verdicts import Verdict
from levytorch.figures import new_axes
from levytorch.figures.base import svg_parts
from levytorch.runs import page
from levytorch.runs.report import Outcome
from levytorch.training.fit_report import Estimate, FitReport

HOSTILE = "</pre><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Tags (each closed in its turn), attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(file: Path) -> Reader:
    reader = Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


REPORT = FitReport(
    *("fourier", "frozen", HOSTILE, 3, True, 10, -10.0, 3.0, 26.0, 27.0, "none", 0.0, 0),
    estimates=(Estimate("b", 1.25, 0.1, error=0.02), Estimate(HOSTILE, 2.0), Estimate("alpha", 0.3, note="given")),
    notes=(f"a note {HOSTILE}",),
)
METRICS = {"opening": f"fitting 10 pairs of {HOSTILE}", "seconds": 0.1}
VERDICTS = [
    Verdict("Fit", "bad", f"Does not fit {HOSTILE}", "p < 1e-12"),
    Verdict("Warning", "look", f"A doubt {HOSTILE}"),
    Verdict("Jumps", "ok", "The data needs jumps.", "AIC +7"),
]


def picture() -> list[bytes]:
    fig, axes = new_axes(1, 1, margins={})
    axes[0, 0].plot([0, 1], [0, 1])
    return svg_parts(fig)


@pytest.fixture
def written(tmp_path) -> Path:
    directory = tmp_path / "a <b> & run"
    directory.mkdir()
    shown = {"pictures": {"coefficients": picture()}, "verdicts": VERDICTS}
    outcome = Outcome(None, None, REPORT, METRICS, directory, **shown)  # type: ignore[arg-type]
    return page.write_run_page(outcome, ["data=file", f"data.path={HOSTILE}", "resume=x"])


def test_text_from_outside_stays_text(written):
    reader = read(written)
    assert {tag for tag, _ in reader.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "div", "table", "tr", "th"),
        *("td", "caption", "figure", "img", "figcaption", "pre", "details", "summary", "b", "span"),
    }
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert reader.text.count("<script>") == 7  # opening, row, engine, note, alarm, doubt, command: each as text
    assert "p < 1e-12" in reader.text


def test_the_page_loads_nothing(written):
    reader = read(written)
    sources = [
        value or "" for _, attributes in reader.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/svg+xml;base64,")
    text = written.read_text()
    assert not re.search(r"url\(|@import|https?://", text)
    assert 'content="width=device-width' in text  # a phone shows it at its own width
    assert "default-src 'none'" in text


def test_the_commands_can_be_pasted(written):
    commands = re.search(r"<pre>(.*?)</pre>", written.read_text(), re.S)[1]  # type: ignore[index]
    repeat, after = unescape(commands).splitlines()
    assert shlex.split(repeat) == ["python", "train.py", "data=file", f"data.path={HOSTILE}"]
    assert shlex.split(after)[2] == f"run={written.parent}"


def test_an_evaluation_of_runs_with_odd_names(tmp_path):
    group = {
        "runs": 2,
        "relative_l2_mean": 0.1,
        "relative_l2_sd": None,
        "relative_l2_of_mean": float("nan"),
        "coverage": 0.9,
    }
    metrics = {
        "groups": {HOSTILE: group},
        "baselines": {"trivial": None},
        "runs": [{"path": HOSTILE, "group": HOSTILE, "relative_l2": None, "converged": True}],
    }
    file = page.write_evaluation_page(
        tmp_path, {"reward": {"name": HOSTILE}, "beta": 0.1}, page.Shown(tables=[HOSTILE], metrics=metrics), {}
    )
    reader = read(file)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert "90.00%" in reader.text


def test_nothing_to_say_is_said(tmp_path):
    fine = [Verdict("Convergence", "ok", "The fit converged.")]
    outcome = Outcome(None, None, REPORT, METRICS, tmp_path, verdicts=fine)  # type: ignore[arg-type]
    text = page.write_run_page(outcome, []).read_text()
    assert '<li class="ok">' in text
    assert '<li class="look">' not in text
    assert '<li class="bad">' not in text
    assert "<figure>" not in text


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_a_browser_shows_it(written, tmp_path):
    """Headless Chromium: no script has run, the picture is there, and nothing is wider than a phone."""
    probe = tmp_path / "page.html"
    shutil.copy(written, probe)
    shot = tmp_path / "shot.png"
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,2000"]
    done = subprocess.run(
        [BROWSER, *flags, f"--screenshot={shot}", "--dump-dom", probe.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "<title>levytorch run" in done.stdout
    assert "taken</title>" not in done.stdout
    from PIL import Image

    with Image.open(shot) as image:
        assert image.size[0] == 390
        assert len(set(image.convert("L").getdata())) > 10


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_a_wide_table_does_not_widen_the_page_of_a_phone(tmp_path):
    """A copy of the page says its own width; the page itself runs no script."""
    table = page.html_table([f"column_{k}" for k in range(9)], [["1.2345678"] * 9])
    page._write(tmp_path, "wide", table)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)
    ask = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    (tmp_path / "ask.html").write_text(text.replace("</body>", ask), encoding="utf-8")
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=600,2000"]
    done = subprocess.run(
        [BROWSER, *flags, "--dump-dom", (tmp_path / "ask.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    wide, window = map(int, re.search(r"<title>(\d+) of (\d+)</title>", done.stdout).groups())  # type: ignore[union-attr]
    assert wide <= window <= 640


SHOW = """
import sys
from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication
app, view = QApplication(sys.argv), QWebEngineView()
view.resize(390, 900)
ask = ("JSON.stringify([document.title, document.documentElement.scrollWidth, window.innerWidth,"
       "[...document.images].map(i => i.naturalWidth > 0)])")
def tell(answer):
    print(answer, flush=True)
    app.quit()
view.loadFinished.connect(lambda ok: QTimer.singleShot(300, lambda: view.page().runJavaScript(ask, tell)))
view.load(QUrl(sys.argv[1]))
view.show()
QTimer.singleShot(60_000, app.quit)
app.exec()
"""


@pytest.mark.skipif(importlib.util.find_spec("PyQt6") is None, reason="needs PyQt6-WebEngine, which is Chromium")
def test_the_engine_of_chromium_shows_it(written, tmp_path):
    """The same with what a package registry has of Chromium: asked from within, at the width of a phone."""
    probe = tmp_path / "page.html"
    shutil.copy(written, probe)
    quiet = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, probe.as_uri()],
        env={**os.environ, **quiet}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    title, wide, window, pictures = json.loads(done.stdout.splitlines()[-1])
    assert title.startswith("levytorch run")
    assert wide <= window == 390
    assert pictures == [True]


def test_escapes_and_numbers_of_the_parts():
    assert page.code("<&>") == "<pre>&lt;&amp;&gt;</pre>"
    assert page.verdict_list([]) == ""


def test_every_check_has_the_colour_of_its_verdict(written):
    classes = re.findall(r'<li class="([a-z]+)">', written.read_text())
    assert classes == ["bad", "look", "ok"]
    odd = page.verdict_list([Verdict("Jumps", "-", "Not checked.")])
    assert '<li class="none">' in odd
    assert "<details>" not in odd  # there are no numbers to unfold


def test_table_of_laws():
    """Every law with its numbers; none where it was not made; text from outside stays text."""
    law = {"model": "NIG <b>", "log_likelihood": 0.04, "std": 0.01, "difference": -1e-3, "difference_std": float("nan")}
    law |= {"aic": -3894.5, "parameters": 3.0}
    metrics = {"laws": [law], "laws_held_out": True, "laws_pairs": 8000, "laws_sentence": "NIG is preferred."}
    told = "".join(page._laws(metrics))
    for part in ("held-out log p per pair", "8,000 pairs", "NIG &lt;b&gt;", "-3894.5", "NIG is preferred."):
        assert part in told
    assert page._laws({}) == []
