"""check(): are my jumps real? Five laws of a step are compared on held-out pairs; a card shows the answer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.convert import Array, path_of, seed_of
from levytorch.data.describe import remarks
from levytorch.data.given import pairs_of_data
from levytorch.data.transitions import Transitions
from levytorch.diagnostics.compare import Comparison
from levytorch.diagnostics.laws import table_of_laws
from levytorch.diagnostics.sample import Region
from levytorch.diagnostics.step_size import Skipped
from levytorch.errors import InputError, LevytorchWarning
from levytorch.plots import plotted
from levytorch.training.api import recover
from levytorch.training.fit_report import WIDTH, wrapped
from levytorch.training.recovery import Recovery

_CLEAR = 3.0  # standard errors of a difference of log-likelihoods
# in AIC: by how much a law with jumps must be better than the Gaussian law, and than Student's t and NIG
_NEEDED, _BETTER = 10.0, 2.0
_ALIKE = 0.01  # relative difference of dt within which steps have one length
_CLUSTERED = 5.0  # standard errors of the correlation of sizes of successive steps
_STRONG = 0.05  # and its least size
YES, NO, OTHER = "yes", "no", "unclear"


@dataclass(frozen=True)
class JumpCard:
    """The answer, with its numbers; `print` shows it as text, `plot` draws it, `save` writes a PNG file.

    answer: "yes", "no", or "unclear" where the tails are heavy, but another law describes them as well as jumps do.
    sentence: the answer in words. laws: the comparison. alpha, D_o, D_f: of the stable law with constants.
    clustering: correlation of the sizes of successive steps, and how many standard errors that is.
    """

    answer: str
    sentence: str
    laws: Comparison
    found: Recovery
    n_pairs: int
    dt: float
    clustering: tuple[float, float]
    remarks: tuple[str, ...]
    seed: int
    steps: Array = field(repr=False)

    def __str__(self) -> str:
        lines = [" Are my jumps real? ".center(WIDTH, "="), *wrapped(self.sentence, WIDTH), "-" * WIDTH]
        held = "held-out" if self.laws.held_out else "in-sample"
        lines.append(f"{'law of a step':<16}{f'{held} log p per pair':>26}{'difference':>24}{'AIC':>14}")
        for number, row in enumerate(self.laws.rows):
            apart = f"{row.difference:.2g} ({row.difference_std:.1g})" if number else "best"
            value = f"{row.log_likelihood:.5g} ({row.std:.1g})"
            lines.append(f"{row.model:<16}{value:>26}{apart:>24}{row.aic:>14.1f}")
        lines += ["-" * WIDTH, *wrapped(self._fit(), WIDTH)]
        for remark in self.remarks:
            lines += wrapped(f"Note: {remark}", WIDTH, "      ")
        lines += [f"{self.n_pairs:,} pairs, dt = {self.dt:g}, seed {self.seed}", "=" * WIDTH]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _fit(self) -> str:
        report = {row.name: row for row in self.found.report.estimates}
        said = [f"{n} = {report[n].mean:.3g}" + _error(report[n].std) for n in ("alpha", "b", "D_o", "D_f")]
        return f"Stable law with constant coefficients: {', '.join(said)}."

    def plot(self, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): the card as a figure."""
        return plotted("card", self, **options)

    def save(self, path: str | Path) -> Path:
        """Write the card as a PNG file."""
        from matplotlib.figure import Figure

        from levytorch.files import replacing

        target = path_of(path)
        if target.suffix.lower() != ".png":
            raise InputError(f"path must end with .png for a card, found {target.name!r}; rename it.")
        fig, _ = self.plot()
        assert isinstance(fig, Figure)
        with replacing(target) as temporary:
            fig.savefig(temporary, format="png")
        return target


def check(data: Any, *, period: Any = None, seed: Any = 0, **options: Any) -> JumpCard:
    """Are the jumps in the data real? Compare five laws of a step on pairs that were held out of the fit.

    The laws are Gaussian, stable, tempered stable, Student's t and normal inverse Gaussian, all with constant
    coefficients. If the drift or the noise depends strongly on the state, use `recover` and `diagnose` instead.

    Args:
        data: whatever `recover` takes, in one dimension: a frame, an array, trajectories or transitions.
        period: the period of the states, if they are angles; None for a number on a line.
        seed: of the choice of pairs, if there are many.
        options: those of `Trajectories.from_frame` or `.from_arrays`, such as id, time, value and dt.

    Returns:
        A card with `.answer` ("yes", "no" or "unclear") and `.sentence`. Print it, plot it, or save it as an image.

    Example:
        >>> from levytorch import Dynamics, simulate
        >>> check(simulate(Dynamics(0.0, 0.5, 1.0, 0.6), 40, 50, 0.1, seed=1)).answer
        'yes'
    """
    seed = seed_of(seed)
    pairs, rest = pairs_of_data(data, options)
    if rest:
        raise InputError(
            f"options must be those of from_frame or from_arrays, found {', '.join(rest)}; remove {next(iter(rest))}."
        )
    if not isinstance(pairs, Transitions):
        raise InputError("data must hold the pairs themselves, found a lattice; pass trajectories, or a frame.")
    if pairs.dim != 1:
        raise InputError(f"data must have one coordinate, found {pairs.dim}; choose one with value='...'.")
    pairs = _of_one_length(pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(pairs, alpha="learn", n_basis=1, period=period, law="frozen", actions=None)
        laws = table_of_laws(found.head, pairs, Region.of(found), seed=seed)
    if isinstance(laws, Skipped):
        raise InputError(f"data must be enough to compare laws, found too little: {laws.reason}; pass longer series.")
    clustering = _clustering(pairs)
    answer, sentence = _answer(laws, clustering)
    notes = tuple(remarks(pairs))
    deviation = np.sort(pairs.deviation[:: max(1, len(pairs) // 200_000)].numpy())
    return JumpCard(answer, sentence, laws, found, len(pairs), pairs.median_dt, clustering, notes, seed, deviation)


def _of_one_length(pairs: Transitions) -> Transitions:
    """The pairs of the usual dt, where most have it; Student's t and NIG know steps of one length only."""
    if pairs.uniform_dt:
        return pairs
    usual = pairs.median_dt
    alike = (pairs.dt - usual).abs() <= _ALIKE * usual
    return pairs[alike]._with_dt(usual) if float(alike.double().mean()) >= 0.5 else pairs


def _clustering(pairs: Transitions) -> tuple[float, float]:
    """Correlation of ranks of |dx - mu| of successive pairs of a trajectory, and its z-score."""
    size, path = pairs.deviation, pairs.trajectory
    rank = torch.argsort(torch.argsort(size)).double()
    follows = path[1:] == path[:-1]
    a, b = rank[:-1][follows], rank[1:][follows]
    if len(a) < 20 or float(a.std()) == 0:
        return 0.0, 0.0
    r = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
    return r, r * len(a) ** 0.5


def decided(aic: Mapping[str, float]) -> tuple[str, str, str | None]:
    """The answer by AIC, the law with jumps that is best, and the rival that describes the steps as well, or None.

    benchmarks/jumps.py measures how often it is wrong.
    """
    jumps = min(("stable", "tempered"), key=lambda name: aic[name])
    if aic["Gaussian"] - aic[jumps] <= _NEEDED:
        return NO, jumps, None
    rival = min((name for name in ("Student t", "NIG") if name in aic), key=lambda name: aic[name], default=None)
    if rival is not None and aic[rival] - aic[jumps] < _BETTER:
        return OTHER, jumps, rival
    return YES, jumps, None


def _answer(laws: Comparison, clustering: tuple[float, float]) -> tuple[str, str]:
    rows = {row.model: row for row in laws.rows}
    answer, best, rival = decided({name: row.aic for name, row in rows.items()})
    if answer == NO:
        return NO, "No: Gaussian steps describe the data as well as steps with jumps. Do not interpret D_f."
    clustered = clustering[0] > _STRONG and clustering[1] > _CLUSTERED
    caution = (
        f" But large steps come in clusters (correlation {clustering[0]:.2f} of their sizes): a noise that changes "
        "with time or state also makes heavy tails; let the coefficients depend on it."
        if clustered
        else ""
    )
    if rival is not None:
        how = "better than" if rows[rival].aic < rows[best].aic - _BETTER else "as well as"
        return OTHER, (
            f"Unclear: steps have heavy tails, but the {rival} law describes them {how} jumps with constant "
            f"coefficients do. More observations, or shorter steps, can distinguish them.{caution}"
        )
    stable = rows["stable"]
    ends = best == "tempered" and -stable.difference > _CLEAR * stable.difference_std
    kind = (
        "truncated jumps (tempered law)" if ends else "jumps (stable law; the data do not show that they are truncated)"
    )
    return YES, f"Yes: {kind} describe the steps better than a Gaussian law.{caution}"


def _error(std: float | None) -> str:
    return "" if std is None or not np.isfinite(std) else f" +- {std:.2g}"
