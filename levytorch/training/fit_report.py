"""FitReport: what a fit has found, typed, as text of 80 columns and as HTML: `print(found.summary())`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from scipy.special import ndtri
from torch import Tensor

from levytorch.errors import printable

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

WIDTH = 80
LOCATION = (
    "2 alpha <= 1 without tempering: steps have no mean, and b is a location (where their center goes), not a mean; "
    'tempering="learn" gives jumps an end and b its meaning'
)
LAW_WORDS = {
    "frozen": "coefficients frozen over a step",
    "exact": "exact, coefficients followed",
    "corrected": "frozen, freed of its bias",
    "simulated": "simulated paths within a step",
}


@dataclass(frozen=True)
class Estimate:
    """One row of the table: the mean over the observed states, its pointwise standard error there, and the interval.

    note: why there is no error, such as "given".
    """

    name: str
    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class FitReport:
    """Everything that the table says; `plain()` gives it as numbers and text, `str()` as a table, notebooks as HTML.

    parameters: of the head, fewer than it has where they are smoothed. notes: what has to be known to read the numbers.
    """

    model: str
    law: str
    law_reason: str
    engine: str
    steps: int
    converged: bool
    nobs: int
    log_likelihood: float
    parameters: float
    aic: float
    bic: float
    tail: str
    tcf: float
    seed: int | None
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()
    level: float = 0.95

    @classmethod
    def of(cls, recovery: Recovery, level: float = 0.95) -> FitReport:
        """Of a recovery."""
        metrics = recovery.metrics
        return cls(
            model=_model(recovery),
            law=recovery.law,
            law_reason=str(metrics.get("law_reason", "")),
            engine=str(metrics.get("engine", "unknown")),
            steps=int(metrics.get("steps", 0)),
            converged=recovery.converged,
            nobs=recovery.nobs,
            log_likelihood=recovery.log_likelihood,
            parameters=recovery.n_parameters,
            aic=recovery.aic,
            bic=recovery.bic,
            tail=str(metrics.get("tail_method", "none")),
            tcf=recovery.tcf,
            seed=metrics.get("seed"),
            estimates=tuple(estimates(recovery, level)),
            notes=tuple(notes(recovery)),
            level=level,
        )

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """Names and values of the head of the table, without the estimates."""
        parameters = "Parameters" if float(self.parameters).is_integer() else "Eff. parameters"
        return [
            ("Model", self.model),
            ("Pairs", f"{self.nobs:,}"),
            ("Likelihood", LAW_WORDS.get(self.law, self.law)),
            ("Log-likelihood", _number(self.log_likelihood, ",.2f")),
            ("Engine", f"{self.engine}, {self.steps} steps"),
            (parameters, f"{self.parameters:.4g}"),
            ("Converged", "yes" if self.converged else "NO"),
            ("AIC", _number(self.aic, ",.2f")),
            ("Tail treatment", self.tail),
            ("BIC", _number(self.bic, ",.2f")),
            ("Seed", "-" if self.seed is None else str(self.seed)),
            ("TCF", _number(self.tcf, ".4g")),
        ]

    def columns(self) -> list[str]:
        """Heads of the columns of the estimates."""
        tail = (1 - self.level) / 2
        return ["", "estimate", "std. error", f"[{tail:.3g}", f"{1 - tail:.3g}]"]

    def rows(self) -> list[list[str]]:
        """The estimates as text."""
        return [
            [
                one.name,
                _number(one.mean, ".4g"),
                one.note or _number(one.std, ".3g", brackets=not self.converged),
                _number(one.low, ".4g"),
                _number(one.high, ".4g"),
            ]
            for one in self.estimates
        ]

    def __str__(self) -> str:
        facts = self.facts()
        lines = [" levytorch fit ".center(WIDTH, "=")]
        for (left, value), (right, number) in zip(facts[::2], facts[1::2]):
            lines.append(f"{left:<15}{value[:32]:<33}{right:<17}{number[:15]:>15}")
        lines += ["-" * WIDTH, "Means over the observed states, with the pointwise standard errors there"]
        first, *heads = self.columns()
        lines.append(f"{first:<12}" + "".join(f"{head:>17}" for head in heads))
        lines += [f"{row[0][:11]:<12}" + "".join(f"{cell[:16]:>17}" for cell in row[1:]) for row in self.rows()]
        lines.append("=" * WIDTH)
        for place, note in enumerate(self.notes, 1):
            lines += wrapped(f"[{place}] {note}", WIDTH, "    ")
        return printable("\n".join(lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """For notebooks: two tables and the notes."""
        facts = self.facts()
        head = "".join(
            f"<tr><th>{escape(left)}</th><td>{escape(value)}</td><th>{escape(right)}</th><td>{escape(number)}</td></tr>"
            for (left, value), (right, number) in zip(facts[::2], facts[1::2])
        )
        cells = "".join(f"<th>{escape(name)}</th>" for name in self.columns())
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows())
        said = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return (
            f"<table><caption>levytorch fit</caption>{head}</table>"
            "<table><caption>Means over the observed states, with the pointwise standard errors there</caption>"
            f"<tr>{cells}</tr>{body}</table>" + (f"<ol>{said}</ol>" if said else "")
        )


def estimates(recovery: Any, level: float = 0.95) -> list[Estimate]:
    """Of every coefficient (and component of b), of alpha and of the tempering."""
    x, z = recovery.states, float(ndtri(0.5 + 0.5 * level))
    stds = recovery.std(x) if recovery.covariance is not None else (None, None, None)
    known = getattr(recovery.head, "known", ())
    out = []
    for name, std in zip(("b", "D_o", "D_f"), stds):
        found = getattr(recovery, name)(x)
        for label, place in recovery.head.layout.numbers(name):
            at = (slice(None), *place)
            values, errors = found[at], None if std is None else std[at]
            given = "given" if name in known else ""
            least = -math.inf if name == "b" or len(set(place)) > 1 else 0.0
            out.append(_estimate(label, values, None if given else errors, z, least, given))
    if not callable(recovery.alpha):
        error = recovery.alpha_std if recovery.covariance is not None or not recovery.head.learns_alpha else None
        given = "" if recovery.head.learns_alpha else "given"
        alpha = torch.tensor([recovery.alpha], dtype=torch.float64)
        out.append(_estimate("alpha", alpha, None if given else error, z, 0.0, given, most=1.0))
    if recovery.tempered:
        rate, learned = torch.tensor([recovery.tempering], dtype=torch.float64), recovery.head.tempering_spec.learned
        if learned and not recovery.metrics.get("tempering_told_from_zero", True):
            upper = float(recovery.metrics["tempering_upper"])
            out.append(Estimate("tempering", recovery.tempering, None, 0.0, upper, "not told from 0"))
        else:
            error = recovery.tempering_std if learned and recovery.covariance is not None else None
            out.append(_estimate("tempering", rate, error, z, 0.0, "" if learned else "given"))
    return out


def _estimate(
    name: str, values: Tensor, errors: Any, z: float, least: float, note: str = "", most: float = math.inf
) -> Estimate:
    mean = float(values.mean())
    if errors is None:
        return Estimate(name, mean, note=note)
    std = float(errors if isinstance(errors, float) else errors.mean())
    return Estimate(name, mean, std, max(least, mean - z * std), min(most, mean + z * std), note)


def notes(recovery: Any) -> list[str]:
    """What has to be known to read the numbers of a fit."""
    metrics, out = recovery.metrics, []
    if not recovery.converged:
        why = f": {metrics['not_converged']}" if "not_converged" in metrics else ""
        out.append(f"The fit has not converged{why}. Errors in brackets are those of a maximum that was not reached.")
    alpha = None if callable(recovery.alpha) else recovery.alpha
    if alpha is not None and alpha <= 0.5 and not recovery.tempered:
        out.append(f"{LOCATION}.")
    out += [f"{name} has vanished: the data does not need it." for name in metrics.get("vanishing", ())]
    if metrics.get("alpha_at_bound") is not None:
        out.append("alpha is at the end of its range, where it is held; it has no error.")
    if recovery.covariance is None:
        out.append("There are no standard errors: this head or engine gives none; found.bootstrap() does.")
    left_out = {reason: count for reason, count in (metrics.get("left_out") or {}).items() if count}
    if left_out:
        out.append("Pairs left out: " + ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) + ".")
    return out


def _model(recovery: Any) -> str:
    head = recovery.head
    name = type(head).__name__.removesuffix("Head").lower()
    where = "line" if recovery.period is None else "circle" if recovery.dim == 1 else "torus"
    functions = getattr(head, "n_basis", None)
    size = "" if functions is None else f", {functions} functions" if functions != 1 else ", constants"
    return f"{name}{size} on a {where}" if recovery.dim == 1 else f"{name}{size}, d = {recovery.dim}"


def _number(value: float | None, form: str, brackets: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "-" if value is None or math.isnan(value) else str(value)
    return f"({value:{form}})" if brackets else format(value, form)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` letters; further ones begin with the indent."""
    import textwrap

    return textwrap.wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False) or [""]
