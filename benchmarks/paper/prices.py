"""Section 4.3, Figure 9: value functions of Bitcoin prices as train.py left them, and what to make of the numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.collect import Array, Record, Runs
from levytorch.convert import shown
from levytorch.data.numpy_files import members_of
from levytorch.data.places import data_file
from levytorch.errors import InputError
from levytorch.figures.base import new_axes
from levytorch.figures.values import Band, value_bands
from levytorch.untrusted import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPERIMENTS = {"btc_first6000": "first 6000 transitions", "btc_random60000": "random 60,000 transitions"}
ARMS = {"tcf": "with TCF", "none": "without TCF", "conditional": "conditional likelihood"}
CAPTIONS = {
    "btc": "Full-batch fits: orange 5000 empirical values, black their reference, green the observed prices.",
    "btc_adam": "The paper's own bands: random starts of Algorithm B.1, mean ± one standard deviation.",
}
# relative L2 error, its standard deviation over 8 tests, coverage (all in %), as printed in the paper
PAPER = {
    ("btc_first6000", "tcf"): (11.86, 8.46, 99.68),
    ("btc_first6000", "none"): (12.04, 11.83, 65.91),
    ("btc_random60000", "tcf"): (3.76, 0.92, 61.42),
    ("btc_random60000", "none"): (4.48, 1.83, 21.80),
}
SHOWN = 5000  # the paper's number of orange dots
_AT_BOUND = 2e-3  # of a learned alpha from the end of its range: nothing but the bound holds it there
CURVES = ("x", "V", "reference", "reference_exact", "crl", "trivial")
_NOTES = """- *relative L2 error*: of V against the paper's reference, a Fourier fit to all empirical values, over
  all prices of the file; *±*: its standard deviation over the refits of the block bootstrap, or over the random starts.
- *exact*: the same against sums whose discount is integrated exactly. The paper's sum with dt = 1/20 h exceeds the
  integral V by beta dt / 2 = 0.75 % for any prices.
- *coverage*: share of the empirical values within V ± one standard deviation. Each value is the sum along one path.
  The values scatter by {scatter:.2f} % around their own reference. A correct band of V need not cover them, and a
  wide band covers everything.
- *alpha*: learned within `coefficients.alpha_bounds` (0.03 to 0.98 by default). An alpha at a bound is no estimate: the
  likelihood still increases there, and beyond 0.98 jumps and the Brownian part are hardly separable.
- The series is not the paper's ([btc.md](btc.md)): another source, 801,600 rows without gaps against 634,551."""


def number(run: Record, key: str) -> float:
    """A number that the comparison with the file's values has left in metrics.json, by its dotted key."""
    value = lookup(run.metrics, f"empirical.{key}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(run, "metrics.json", f"a number empirical.{key}", shown(value))
    return float(value)


def optional(run: Record, key: str) -> float | None:
    return None if lookup(run.metrics, f"empirical.{key}") is None else number(run, key)


@dataclass(frozen=True)
class Panel:
    """One experiment: its runs, and what V is compared with, from the first of them (all share the file of prices)."""

    experiment: str
    runs: Runs

    def group(self, literal: bool, tail: str, n_basis: int | None = None) -> Runs:
        """Full-batch fits, or random starts of Algorithm B.1; with the largest number of functions unless given."""
        wanted = self.runs.unique("n_basis")[-1] if n_basis is None else n_basis
        return self.runs.where(literal=literal, tail=tail, n_basis=wanted)

    @property
    def first(self) -> Record:
        return self.runs.records[0]

    @cached_property
    def curves(self) -> dict[str, Array]:
        """Finite curves on a grid that rises, which all runs share."""
        for run in self.runs:
            found = run.table("value.csv", CURVES)
            finite = all(np.isfinite(found[name]).all() for name in CURVES)
            if len(found["x"]) < 2 or not finite or (np.diff(found["x"]) <= 0).any():
                raise _refusal(run, "value.csv", "finite curves on rising x", "others")
        self.runs.stack("V")
        return self.first.values

    @cached_property
    def samples(self) -> tuple[Array, Array]:
        """Prices and their empirical values; the sizes that the file declares are compared with what is there."""
        members = members_of(data_file(self.first.path / "empirical.npz"), whole=True)
        arrays = {name: members[name].load() for name in ("x", "V") if name in members}
        x, V = (arrays.get(name, np.empty(0)) for name in ("x", "V"))
        plain = x.dtype.kind == V.dtype.kind == "f" and x.ndim == 1 and x.shape == V.shape and len(x) > 0
        if not plain or not (np.isfinite(x).all() and np.isfinite(V).all()):
            raise _refusal(self.first, "empirical.npz", "one finite V per x", f"shapes {x.shape} and {V.shape}")
        return x.astype(np.float64), V.astype(np.float64)

    @property
    def seen(self) -> tuple[float, float]:
        ends = lookup(self.first.metrics, "empirical.seen")
        good = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
        if not good or not all(map(math.isfinite, ends)):
            raise _refusal(self.first, "metrics.json", "two prices empirical.seen", shown(ends))
        return float(ends[0]), float(ends[1])

    def coverage(self, center: Array, width: Array) -> float:
        """Fraction of the stored empirical values within the band."""
        x, V = self.samples
        at = [np.interp(x, self.curves["x"], curve) for curve in (center, width)]
        return float(np.mean(np.abs(V - at[0]) <= at[1]))

    def scatter(self) -> float:
        """Relative size of the empirical values' distance from their reference."""
        x, V = self.samples
        reference = np.interp(x, self.curves["x"], self.curves["reference"])
        return float(np.linalg.norm(V - reference) / np.linalg.norm(reference))


def panels(runs: Runs) -> list[Panel]:
    """A panel per experiment of which there are runs that were compared with the values of their file."""
    compared = tuple(run for run in runs if "empirical" in run.metrics and (run.path / "empirical.npz").is_file())
    found = [Panel(name, Runs(compared).where(experiment=name)) for name in EXPERIMENTS]
    for run in (run for panel in found for run in panel.runs):
        if not isinstance(run.metrics.get("tail_method"), str):
            raise _refusal(run, "metrics.json", "tail_method", shown(run.metrics.get("tail_method")))
    return [panel for panel in found if panel.runs.unique("n_basis")]


def _refusal(run: Record, file: str, wanted: str, found: str) -> InputError:
    return InputError(f"{run.path / file} must have {wanted}, found {found}; run the experiment again.")


def full_batch_bands(panel: Panel) -> list[Band]:
    """With and without TCF and conditional: V +- the standard deviation of the bootstrap, else of the Fisher matrix."""
    kinds = (("bootstrap_sd", "bootstrap", "block bootstrap"), ("std", "std", "from the Fisher matrix"))
    bands = []
    for tail, label in ARMS.items():
        for run in panel.group(False, tail).records[:1]:
            for column, key, note in kinds:
                if f"V_{column}" in run.values:
                    covered = number(run, f"coverage_{key}")
                    note = f"± sd, {note}; covers {covered:.1%}"
                    bands.append(Band(label, run.values["V"], run.values[f"V_{column}"], note))
                    break
    return bands


def adam_bands(panel: Panel) -> list[Band]:
    """The paper's: mean +- standard deviation over random starts of Algorithm B.1."""
    bands = []
    for tail in ("tcf", "none"):
        runs = panel.group(True, tail)
        if len(runs) > 1:
            mean, sd = mean_and_sd(runs)
            note = f"{len(runs)} random starts, mean ± sd; covers {panel.coverage(mean, sd):.1%}"
            bands.append(Band(ARMS[tail], mean, sd, note))
    return bands


def mean_and_sd(runs: Runs) -> tuple[Array, Array]:
    """Of the value functions of random starts, at every price."""
    _, curves, _ = runs.stack("V")
    return curves.mean(0), curves.std(0, ddof=1)


def full_batch(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Figure 9 with the bands of full-batch fits."""
    return _draw(runs, full_batch_bands, "run the experiments first")


def random_starts(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Figure 9 with the bands of random starts of Algorithm B.1."""
    return _draw(runs, adam_bands, "add runs with paper=prices seed='range(8)'")


def _draw(runs: Runs, bands: Any, remedy: str) -> tuple[Figure, list[Axes]]:
    """A column per experiment, V above, differences from the reference below."""
    drawn = [(panel, own) for panel in panels(runs) if panel.curves and (own := bands(panel))]
    if not drawn:
        raise InputError(f"Figure 9 needs runs on prices that have these bands, found none; {remedy}.")
    fig, axes = new_axes(2, len(drawn), width=6.2, height=3.1)
    for column, (panel, own) in enumerate(drawn):
        x, V = panel.samples
        baselines = {"r / beta": panel.curves["trivial"]}
        if panel.experiment == "btc_first6000":
            baselines["CRL (model-free)"] = panel.curves["crl"]
        value_bands(
            panel.curves["x"],
            own,
            reference=panel.curves["reference"],
            reference_label="reference",
            baselines=baselines,
            samples=(x[:SHOWN], V[:SHOWN]),
            support=panel.seen,
            axes=[axes[0, column], axes[1, column]],
        )
        title = EXPERIMENTS[panel.experiment]
        axes[0, column].text(0.98, 0.05, title, transform=axes[0, column].transAxes, ha="right")
        axes[1, column].set_xlabel("price (USD)")
    return fig, list(axes.ravel())


def rows(panel: Panel) -> list[dict[str, str]]:
    """The table of one experiment, a row per estimate."""
    out = []
    for tail, label in ARMS.items():
        out += [_row(label, run, _paper(panel, tail)) for run in panel.group(False, tail).records[:1]]
    if panel.runs.unique("n_basis")[-1] > 1:
        constants = panel.group(False, "none", 1).records[:1]
        out += [_row("constants (K = 1), without TCF", run, "") for run in constants]
    out += [_adam_row(panel, tail, runs) for tail in ("tcf", "none") if len(runs := panel.group(True, tail)) > 1]
    for name, label in (("crl", "CRL (model-free)"), ("trivial", "r / beta")):
        errors = [number(panel.first, f"baselines.{name}.relative_l2{kind}") for kind in ("", "_exact")]
        out.append({"estimate": label, "relative L2 error": _percent(errors[0]), "exact": _percent(errors[1])})
    keys = ("estimate", "relative L2 error", "exact", "coverage, sd", "coverage, bootstrap", "alpha", "TCF", "paper")
    return [{key: row.get(key, "") for key in keys} for row in out]


def merged(old: Sequence[dict[str, str]], new: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of a page that is there, with new ones in the place of those of the same estimate, however many starts."""
    made = {_kind(row): row for row in new}
    known = {_kind(row) for row in old}
    return [made.get(_kind(row), row) for row in old] + [row for row in new if _kind(row) not in known]


def _kind(row: dict[str, str]) -> str:
    return re.sub(r"\d+ random| \(not converged\)", "", row["estimate"])


def _paper(panel: Panel, tail: str) -> str:
    found = PAPER.get((panel.experiment, tail))
    return "" if found is None else f"{found[0]} ± {found[1]} %, covers {found[2]:.2f} %"


def _row(label: str, run: Record, paper: str) -> dict[str, str]:
    spread = optional(run, "bootstrap.relative_l2_sd")
    return {
        "estimate": label if run.metrics.get("converged") else f"{label} (not converged)",
        "relative L2 error": _percent(number(run, "relative_l2"))
        + ("" if spread is None else f" ± {100 * spread:.2g}"),
        "exact": _percent(number(run, "relative_l2_exact")),
        "coverage, sd": _percent(optional(run, "coverage_std")),
        "coverage, bootstrap": _percent(optional(run, "coverage_bootstrap")),
        "alpha": _alpha(Runs((run,))),
        "TCF": f"{run.number('tcf'):.5f}" if run.tail == "tcf" else "",
        "paper": paper,
    }


def _adam_row(panel: Panel, tail: str, runs: Runs) -> dict[str, str]:
    def shown_mean(key: str) -> str:
        errors = np.array([number(run, key) for run in runs])
        return f"{100 * errors.mean():.2f} ± {100 * errors.std(ddof=1):.2f} %"

    return {
        "estimate": f"Algorithm B.1 (Adam), {len(runs)} random starts, {ARMS[tail]}",
        "relative L2 error": shown_mean("relative_l2"),
        "exact": shown_mean("relative_l2_exact"),
        "coverage, sd": _percent(panel.coverage(*mean_and_sd(runs))),
        "alpha": _alpha(runs),
        "TCF": f"{np.mean([run.number('tcf') for run in runs]):.4f}" if tail == "tcf" else "",
        "paper": _paper(panel, tail),
    }


def _alpha(runs: Runs) -> str:
    """The mean of the learned alpha, and how many runs have it at an end of its range, where it means little."""
    values = [run.number("alpha") for run in runs]
    stuck = sum(_at_bound(run) is not None for run in runs)
    told = "" if not stuck else " (at its bound)" if len(values) == 1 else f" ({stuck} of {len(values)} at a bound)"
    return f"{np.mean(values):.3f}{told}"


def _at_bound(run: Record) -> float | None:
    """The end of coefficients.alpha_bounds that the learned alpha of a run has come to."""
    ends = run.setting("coefficients.alpha_bounds")
    ends = ends if isinstance(ends, list) and all(isinstance(end, int | float) for end in ends) else [0.03, 0.98]
    return next((end for end in ends if abs(run.number("alpha") - end) < _AT_BOUND), None)


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if value < 10 else f"{100 * value:.1e} %"


def remarks(panel: Panel) -> list[str]:
    """What the numbers of one experiment say, made from the numbers."""
    out = []
    best = {tail: runs.records[0] for tail in ARMS if len(runs := panel.group(False, tail))}
    trivial, trivial_exact = (number(panel.first, f"baselines.trivial.relative_l2{kind}") for kind in ("", "_exact"))
    if best:
        low, low_exact = (min(number(run, f"relative_l2{kind}") for run in best.values()) for kind in ("", "_exact"))
        verdict = "does as well or better" if low >= trivial or low_exact >= trivial_exact else "does worse"
        out.append(
            f"r / beta, which ignores the dynamics, {verdict}: {trivial:.2%} ({trivial_exact:.2%} exact) "
            f"against {low:.2%} ({low_exact:.2%}) for the best fit. Within 1 / beta = 3.3 hours the price hardly moves "
            "against the period of the reward."
        )
    if "tcf" in best and "none" in best:
        change = number(best["tcf"], "relative_l2") - number(best["none"], "relative_l2")
        word = "lowers" if change < 0 else "raises"
        tcf = best["tcf"].number("tcf")
        out.append(f"The TCF is {tcf:.5f}; it {word} the error by {abs(change) * 100:.2f} percentage points.")
    vanished = [ARMS[tail] for tail, run in best.items() if "D_o" in (run.metrics.get("vanishing") or ())]
    if vanished:
        out.append(
            f"D_o is zero ({', '.join(vanished)}): a pure jump law describes these prices as well as one with a "
            "Gaussian part."
        )
    return out


def commands() -> list[str]:
    """What the runs are made by."""
    lines = []
    for name in EXPERIMENTS:
        line = f"python train.py -m experiment={name} data.path=btc_3min.parquet"
        lines += [line, f"{line} paper=prices seed='range(8)' tail=tcf,none coefficients.n_basis=11"]
    return lines


def notes(found: Sequence[Panel]) -> str:
    """How the columns of the tables are to be read."""
    return _NOTES.format(scatter=100 * max(panel.scatter() for panel in found))
