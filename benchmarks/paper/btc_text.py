"""The Bitcoin part of the results page: what was run, the tables beside the paper's numbers, what to make of them."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.btc import adam_bands, figure, rows
from benchmarks.paper.btc_collect import ARMS, EXPERIMENTS, Panel

_NOTES = """- *relative L2 error*: of V against the paper's reference, a Fourier fit to all empirical values, over
  all prices of the file; *±*: its standard deviation over the refits of the block bootstrap, or over the random starts.
- *exact*: the same against sums whose discount is integrated exactly. The paper's sum with dt = 1/20 h exceeds the
  integral that V is by beta dt / 2 = 0.75 % whatever the prices do.
- *coverage*: share of the empirical values within V ± one standard deviation. They scatter by {scatter:.2f} % around
  their own reference, because each is the sum along one path; a band of what is known about V need not cover that,
  and a wide band covers everything."""


def section_text(found: list[Panel], page: Any) -> str:
    """Markdown below the heading."""
    blocks = [page.code(_commands())]
    blocks += [page.figure(figure(found)[0], "btc", "Figure 9: value functions of Bitcoin prices and their bands")]
    blocks += [
        "*Figure 9, full-batch fits: orange 5000 empirical values, black their reference, green the prices seen.*"
    ]
    if any(adam_bands(panel) for panel in found):
        picture = figure(found, adam_bands)[0]
        blocks += [page.figure(picture, "btc_adam", "Figure 9 with the bands of eight random starts of Algorithm B.1")]
        blocks += ["*The paper's own bands: random starts of Algorithm B.1, mean ± one standard deviation.*"]
    for panel in found:
        blocks += [f"**{EXPERIMENTS[panel.experiment].capitalize()}**", page.table(rows(panel)), *remarks(panel)]
    blocks.append(_NOTES.format(scatter=100 * max(_scatter(panel) for panel in found)))
    return "\n\n".join(blocks)


def remarks(panel: Panel) -> list[str]:
    """What the numbers of one experiment say, made from the numbers."""
    out = []
    trivial = panel.baselines["trivial"]
    own = {tail: panel.group(False, tail, panel.n_basis)[:1] for tail in ARMS}
    best = {tail: runs[0].metrics["empirical"] for tail, runs in own.items() if runs}
    if best:
        low = min(numbers["relative_l2"] for numbers in best.values())
        low_exact = min(numbers["relative_l2_exact"] for numbers in best.values())
        worse = low >= trivial["relative_l2"] or low_exact >= trivial["relative_l2_exact"]
        verdict = "does as well or better" if worse else "does worse"
        out.append(
            f"r / beta, which knows nothing of the dynamics, {verdict}: {trivial['relative_l2']:.2%} "
            f"({trivial['relative_l2_exact']:.2%} exact) beside {low:.2%} ({low_exact:.2%}) for the best fit. Within "
            "1 / beta = 3.3 hours the price hardly moves against the period of the reward."
        )
    corrected, plain = best.get("tcf"), best.get("none")
    if corrected and plain:
        change = corrected["relative_l2"] - plain["relative_l2"]
        tcf = own["tcf"][0].metrics["tcf"]
        word = "lowers" if change < 0 else "raises"
        out.append(f"The TCF is {tcf:.5f}; it {word} the error by {abs(change) * 100:.2f} percentage points.")
    vanished = [ARMS[tail] for tail, runs in own.items() if runs and _gone(runs[0])]
    if vanished:
        out.append(
            f"D_o is zero to all digits that matter ({', '.join(vanished)}): the likelihood has its maximum on that "
            "boundary, so a pure jump law describes these prices as well as one with a Gaussian part."
        )
    return out


def _gone(run: Any) -> bool:
    vanishing = run.metrics.get("vanishing")
    return isinstance(vanishing, list) and "D_o" in vanishing


def _scatter(panel: Panel) -> float:
    import numpy as np

    x, V = panel.samples
    reference = np.interp(x, panel.curves["x"], panel.curves["reference"])
    return float(np.sqrt(np.mean((V - reference) ** 2) / np.mean(reference**2)))


def _commands() -> str:
    lines = []
    for name in EXPERIMENTS:
        data = f"experiment={name} data.path=btc_3min.parquet"
        lines.append(f"python train.py -m {data}")
        lines.append(f"python -m benchmarks.paper.btc_replicas {data} out=multirun/{name}_adam/replicas")
    return "\n".join(lines)
