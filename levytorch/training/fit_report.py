"""FitReport: what a fit has found, typed: behind `summary()`, the terminal, report.html and metrics.json."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import groupby
from typing import Any, Self

import torch
from scipy.special import ndtri
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.layout import in_one_form
from levytorch.convert import number_within
from levytorch.errors import plain_sentence, printable

WIDTH = 80
MEANS = "Means over the observed states, with pointwise standard errors"
LOCATION = (
    "2 alpha <= 1 without tempering: steps have no mean. b is then a location (where their center moves), not a mean. "
    'With tempering="learn" jumps are truncated and b is a mean'
)
LAWS = {
    "frozen": "coefficients frozen over a step",
    "exact": "exact",
    "corrected": "frozen, corrected for its bias",
    "simulated": "simulated within a step",
}


@dataclass(frozen=True)
class Estimate:
    """One row of the table: a mean over the observed states, its pointwise standard error there, and the interval.

    note: why there is no error, such as "given". error: the relative L2 distance to the truth, where that is known.
    action: the one that was held, in data with actions.
    """

    name: str
    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    error: float | None = None
    action: str = ""


@dataclass(frozen=True)
class FitReport:
    """The report of a fit: `str()` is a table of 80 columns, notebooks show it as HTML, `plain()` gives
    numbers and text, `metrics()` the fields of metrics.json.

    parameters: of the head, fewer than it has where they are smoothed. notes: what has to be known to read the numbers;
    doubts: what may be wrong with them. pairs: of every action. details: all other numbers about the fit, by name.
    """

    model: str
    law: str
    engine: str
    steps: int
    converged: bool
    nobs: int
    log_likelihood: float
    parameters: float
    aic: float
    bic: float
    tail: str
    tcf: float | None
    seed: int | None
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    level: float = 0.95
    not_converged: str = ""
    pairs: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, found: Reported, level: float = 0.95, truth: Any = None) -> Self:
        """Of a recovery, with actions or without; truth: the system that the data was simulated from."""
        level = number_within("level", level, "(0, 1)", "pass a number such as 0.95")
        details = dict(found.fit_facts())
        return cls(
            model=found.model_in_words(),
            law=str(details.get("law", "frozen")),
            engine=str(details.get("engine", "unknown")),
            steps=int(details.get("steps", 0)),
            converged=found.converged,
            nobs=found.nobs,
            log_likelihood=found.log_likelihood,
            parameters=found.n_parameters,
            aic=found.aic,
            bic=found.bic,
            tail=str(details.get("tail_method", "none")),
            tcf=None if isinstance(details.get("tcf"), list) else float(details.get("tcf") or 0.0),
            seed=details.get("seed"),
            estimates=(*found.coefficient_estimates(level, truth), *_of_jumps(found, details, level)),
            notes=tuple(_notes(found, details)),
            doubts=tuple(_doubts(found, details)),
            level=level,
            not_converged=str(details.get("not_converged", "")),
            pairs=found.pairs_of_actions(),
            details=details,
        )

    # -- as numbers ---------------------------------------------------------------------------------------------------
    def plain(self) -> dict[str, Any]:
        """The table as numbers and text."""
        return {name: value for name, value in asdict(self).items() if name != "details"}

    def metrics(self) -> dict[str, Any]:
        """The fields of metrics.json: the details, and the means of the table."""
        rows: dict[str, dict[str, Any]] = {}
        for one in self.estimates:
            if one.name not in ("alpha", "tempering", "obs. noise"):
                rows.setdefault(one.action, {})[one.name] = {
                    key: value for key in ("mean", "std", "error") if (value := getattr(one, key)) is not None
                }
        if not self.pairs:
            return {**self.details, "observed": rows.get("", {})}
        return {
            **self.details,
            "by_action": {
                action: _joined(own) | ({"pairs": n} if (n := self.pairs[action]) else {})
                for action, own in rows.items()
            },
        }

    # -- as text ------------------------------------------------------------------------------------------------------
    def facts(self) -> list[tuple[str, str]]:
        """Names and values of the head of the table, without the estimates."""
        parameters = "Parameters" if float(self.parameters).is_integer() else "Eff. parameters"
        return [
            ("Model", self.model),
            ("Pairs", f"{self.nobs:,}"),
            ("Likelihood", LAWS.get(self.law, self.law)),
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
        known = ["error (L2)"] if any(one.error is not None for one in self.estimates) else []
        return ["", "estimate", "std. error", f"[{tail:.3g}", f"{1 - tail:.3g}]", *known]

    def groups(self) -> list[tuple[str, list[list[str]]]]:
        """The estimates as text, action by action; without actions one group of no name."""
        known, found = "error (L2)" in self.columns(), []
        for action, own in groupby(self.estimates, key=lambda one: one.action):
            count = f" ({n:,} pairs)" if (n := self.pairs.get(action, 0)) else ""
            title = f"action {action}{count}" if action else "all actions" if self.pairs else ""
            found.append((title, [self._row(one, known) for one in own]))
        return found

    def _row(self, one: Estimate, known: bool) -> list[str]:
        return [
            one.name,
            _number(one.mean, ".4g"),
            one.note or _number(one.std, ".3g", brackets=not self.converged),
            _number(one.low, ".4g"),
            _number(one.high, ".4g"),
            *(["-" if one.error is None else f"{one.error:.2%}"] * known),
        ]

    def text(self, doubts: bool = True, words: Callable[[str], str] = str) -> str:
        """The table; doubts: without them where the checks of a run say the same; words: what is made of a note."""
        facts = self.facts()
        lines = [" levytorch fit ".center(WIDTH, "=")]
        pairs = [
            (left, printable(value), right, number) for (left, value), (right, number) in zip(facts[::2], facts[1::2])
        ]
        # a long value takes the columns that the numbers leave
        most = WIDTH - 31 - max(len(number) for *_, number in pairs)
        room = max(34, min(most, 1 + max(len(value) for _, value, *_ in pairs)))
        for left, value, right, number in pairs:
            lines.append(f"{left:<15}{value[: room - 1]:<{room}}{right:<16}{number[: 49 - room]:>{49 - room}}")
        first, *heads = self.columns()
        wide = (WIDTH - 12) // len(heads)
        lines += ["-" * WIDTH, MEANS, f"{first:<12}" + "".join(f"{head:>{wide}}" for head in heads)]
        for title, rows in self.groups():
            lines += [f"-- {printable(title)[: WIDTH - 3]}"] if title else []
            lines += [
                f"{printable(name)[:11]:<12}" + "".join(f"{cell[: wide - 1]:>{wide}}" for cell in cells)
                for name, *cells in rows
            ]
        lines.append("=" * WIDTH)
        for place, note in enumerate((*self.notes, *(self.doubts if doubts else ())), 1):
            lines += wrapped(f"[{place}] {words(note)}", WIDTH, "    ")
        return printable("\n".join(lines))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def html(self) -> str:
        """Two tables: the facts, and the estimates."""
        facts = self.facts()
        head = "".join(
            f"<tr><th>{escape(left)}</th><td>{escape(value)}</td><th>{escape(right)}</th><td>{escape(number)}</td></tr>"
            for (left, value), (right, number) in zip(facts[::2], facts[1::2])
        )
        columns, body = self.columns(), ""
        for title, rows in self.groups():
            body += f'<tr><th colspan="{len(columns)}">{escape(title)}</th></tr>' if title else ""
            body += table_rows(rows)
        return (
            f'<table class="facts">{head}</table>'
            f"<table><caption>{MEANS}</caption>{table_rows([columns], 'th')}{body}</table>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: two tables and the notes."""
        said = "".join(f"<li>{escape(note)}</li>" for note in (*self.notes, *self.doubts))
        return self.html() + (f"<ol>{said}</ol>" if said else "")


class Reported:
    """What every recovery reports: criteria, a report, a summary."""

    head: Head
    log_likelihood: Any
    converged: Any
    covariance: Tensor | None
    metrics: dict[str, Any]

    # -- what the head knows ------------------------------------------------------------------------------------------
    @property
    def tempered(self) -> bool:
        """Whether jumps have an end: a tempering was given, or learned."""
        return self.head.tempered

    @property
    def dim(self) -> int:
        return self.head.dim

    @property
    def period(self) -> Any:
        """A number; one per coordinate when dim > 1; None on a line."""
        return self.head.period

    @property
    def origin(self) -> Any:
        return self.head.origin

    @property
    def window(self) -> Any:
        """On a line (low, high) of the states that were fitted, one such pair per coordinate when dim > 1."""
        return self.head.window

    # -- the fit ------------------------------------------------------------------------------------------------------

    def model_in_words(self) -> str:
        """The head in words: its kind, its size and its state space."""
        raise NotImplementedError

    def coefficient_estimates(self, level: float, truth: Any) -> list[Estimate]:
        """Of b, D_o and D_f, for every action where there are some."""
        raise NotImplementedError

    def fit_facts(self) -> Mapping[str, Any]:
        """The metrics of the fit, with alpha and tempering."""
        return self.metrics | jump_metrics(self)

    def pairs_of_actions(self) -> dict[str, int]:
        """Pairs of every action, 0 where actions are numbers on a scale; empty without actions."""
        return {}

    @property
    def nobs(self) -> int:
        """Pairs that were fitted."""
        return int(self.metrics.get("n_main", 0))

    @property
    def n_parameters(self) -> float:
        """Number of parameters; if they are smoothed, how many the data determine."""
        raise NotImplementedError

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 k - 2 log L; smaller is better among fits to the same pairs."""
        return float(2.0 * self.n_parameters - 2.0 * self.log_likelihood)

    @property
    def bic(self) -> float:
        """Schwarz's criterion, k log n - 2 log L."""
        return float(self.n_parameters * math.log(max(1, self.nobs)) - 2.0 * self.log_likelihood)

    @property
    def report(self) -> FitReport:
        """What the fit has found, typed; `summary()` prints it."""
        return FitReport.of(self)

    def summary(self, level: float = 0.95) -> FitReport:
        """A table of the fit: `print(found.summary())`, or the last line of a notebook's cell."""
        return FitReport.of(self, level)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


# -- averages ----------------------------------------------------------------------------------------------------------
def coefficient_rows(
    head: Any,
    found: Sequence[Tensor],
    stds: Sequence[Tensor] | None,
    truth: Sequence[Any] | None = None,
    *,
    level: float = 0.95,
    weight: Tensor | None = None,
    action: str = "",
    vanished: Collection[str] = (),
) -> list[Estimate]:
    """Averages of b, D_o and D_f at n states, whose numbers the head names; the error is that of all components.

    truth: b, D_o and D_f of the true system at the states. weight: (n,) of the states; None: all alike. vanished:
    coefficients that the head knows as zero because the fit has found that, not the caller.
    """
    z, rows = float(ndtri(0.5 + 0.5 * level)), []
    share = None if weight is None else weight / weight.sum()
    for i, name in enumerate(("b", "D_o", "D_f")):
        given, error = name in getattr(head, "known", ()) and name not in vanished, None
        if truth is not None:
            values, true = found[i], torch.as_tensor(truth[i], dtype=torch.float64)
            if name == "D_o":
                values, true = in_one_form(values, true)
            error = _distance(values, true.expand_as(values), share)
        for label, place in head.layout.numbers(name):
            at = (slice(None), *place)
            mean, std, low, high = _mean(found[i][at], share), None, None, None
            if stds is not None and not given:
                std = _mean(stds[i][at], share)
                low, high = mean - z * std, mean + z * std
                if name != "b" and len(set(place)) < 2:  # covariances may be negative
                    low = max(low, 0.0)
            rows.append(Estimate(label, mean, std, low, high, "given" if given else "", error, action))
    return rows


def _mean(values: Tensor, share: Tensor | None) -> float:
    return float(values.mean() if share is None else (share * values).sum())


def _distance(values: Tensor, truth: Tensor, share: Tensor | None) -> float:
    """Relative, in L2; infinite beside a truth that vanishes."""
    root = 1.0 if share is None else share.sqrt().reshape(-1, *[1] * (values.dim() - 1))
    size = float((root * truth).norm())
    return math.inf if size == 0 else float((root * (values - truth)).norm()) / size


def jump_metrics(found: Any) -> dict[str, float]:
    """alpha and the tempering with their standard errors, where they are numbers and errors mean something."""
    out: dict[str, float] = {}
    errors = found.covariance is not None
    if not callable(found.alpha):
        out["alpha"] = float(found.alpha)
        out |= {"alpha_std": float(found.alpha_std)} if errors else {}
    if found.tempered:
        out["tempering"] = found.tempering
        message = errors and found.metrics.get("tempering_told_from_zero", True)
        out |= {"tempering_std": found.tempering_std} if message else {}
    return out


def _of_jumps(found: Any, details: Mapping[str, Any], level: float) -> list[Estimate]:
    """The rows of alpha and of the tempering."""
    rows, z = [], float(ndtri(0.5 + 0.5 * level))
    learned = {"alpha": found.head.learns_alpha, "tempering": found.head.tempering_spec.learned}
    for name, most in (("alpha", 1.0), ("tempering", math.inf)):
        mean, std = details.get(name), details.get(f"{name}_std")
        if mean is None:
            continue
        if not learned[name]:
            rows.append(Estimate(name, mean, note="given"))
        elif name == "tempering" and not details.get("tempering_told_from_zero", True):
            upper = float(details["tempering_upper"])
            rows.append(Estimate(name, mean, None, 0.0, upper, "not above 0"))
        elif std is None or not math.isfinite(std):
            rows.append(Estimate(name, mean, note="" if std is None else "undetermined"))
        else:
            rows.append(Estimate(name, mean, std, max(0.0, mean - z * std), min(most, mean + z * std)))
    if (noise := details.get("observation_noise")) is not None:
        mean, std, name = float(noise["value"]), float(noise["std"]), "obs. noise"
        if not noise["learned"]:
            rows.append(Estimate(name, mean, note="given"))
        elif mean == 0.0:
            rows.append(Estimate(name, mean, None, 0.0, float(noise["upper"]), "not above 0"))
        else:
            rows.append(Estimate(name, mean, std, max(0.0, mean - z * std), mean + z * std))
    return rows


def _joined(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Components of b as lists."""
    parts = {key: row for key, row in rows.items() if key.startswith("b_")}
    if not parts:
        return dict(rows)
    first = next(iter(parts.values()))
    joined = {key: first[key] if key == "error" else [row[key] for row in parts.values()] for key in first}
    return {"b": joined} | {key: row for key, row in rows.items() if key not in parts}


def head_in_words(head: Any) -> str:
    """Its kind, its size, and where states live."""
    states = head.of_states[0] if head.clock_row is not None else head
    name = (
        type(states).__name__.removesuffix("Head").removeprefix("Periodic").lower()
    )  # on a circle splines are periodic
    where = "line" if head.period is None else "circle" if head.dim == 1 else "torus"
    functions = getattr(head, "n_basis", None)
    size = "" if functions is None else f", {functions} functions" if functions != 1 else ", constants"
    return f"{name}{size} on a {where}" if head.dim == 1 else f"{name}{size}, d = {head.dim}"


# -- sentences ---------------------------------------------------------------------------------------------------------
def law_sentence(details: Mapping[str, Any]) -> str:
    """Which law of a step the fit ended under, and why."""
    law, reason = str(details["law"]), str(details.get("law_reason", ""))
    words = LAWS.get(law, law)
    if refused := re.match(r"the exact law must (.+?), found ", reason):
        return f"Likelihood: {words}. The exact likelihood was skipped: it must {refused[1]}."
    short = plain_sentence(re.sub(r"^available[;,]? *(and )?", "", reason)).rstrip(".") if reason else ""
    return f"Likelihood: {words} ({short[:1].lower()}{short[1:]})." if short else f"Likelihood: {words}."


def _notes(found: Any, details: Mapping[str, Any]) -> list[str]:
    """What has to be known to read the numbers of a fit."""
    out = [law_sentence(details)] if "law_reason" in details else []
    if not found.converged:
        why = f": {details['not_converged']}" if "not_converged" in details else ""
        out.append(f"The fit did not converge{why}. Errors in brackets belong to a point that is not the maximum.")
        if "remedy" in details:
            out[-1] += f" {plain_sentence(details['remedy'])}"
    alpha = details.get("alpha")
    if alpha is not None and alpha <= 0.5 and not found.tempered:
        out.append(f"{LOCATION}.")
    if details.get("drift") == "mean":
        out.append("b is the mean of a step over dt, by least squares; D_o and D_f are those about the location.")
    if (memory := getattr(found, "memory", None)) is not None:
        out.append(f"D_o and D_f are multiplied by f(m), m the mean size of past steps: {memory}.")
    if getattr(found, "observation_noise", 0.0):
        out.append("b, D_o and D_f are those of the states; observations also have Gaussian errors.")
    if not details.get("tempering_told_from_zero", True):
        bound = float(details["tempering_upper"])
        most = f"tempering is at most {bound:.3g} (95 %)" if bound < math.inf else "it does not bound the tempering"
        out.append(f"The data does not show that jumps are truncated: {most}.")
    if "shared/chi2" in details:
        more = [name for name, key in (("tempering", "tempering_z"), ("memory", "memory")) if key in details]
        names = ["alpha", *more, *details["shared"]]
        out.append(
            f"All actions share {', '.join(names)}: chi squared {details['shared/chi2']:.1f} with "
            f"{details['shared/freedom']} degrees of freedom."
        )
    left_out = {reason: count for reason, count in (details.get("left_out") or {}).items() if count}
    if left_out:
        out.append("Pairs left out: " + ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) + ".")
    return out


def _doubts(found: Any, details: Mapping[str, Any]) -> list[str]:
    """What may be wrong with the numbers; the run itself warns of it, too."""
    out = [f"{name} is zero within its error: the data does not need it." for name in details.get("vanishing", ())]
    if details.get("alpha_at_bound") is not None:
        out.append("alpha is at the end of its range and has no standard error.")
    if found.covariance is None:
        out.append("There are no standard errors: this head or engine gives none; use found.bootstrap().")
    return out


# -- text --------------------------------------------------------------------------------------------------------------
def _number(value: float | None, form: str, brackets: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "-" if value is None or math.isnan(value) else str(value)
    return f"({value:{form}})" if brackets else format(value, form)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` letters; further ones begin with the indent."""
    import textwrap

    return textwrap.wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def table_rows(rows: Iterable[Sequence[str]], tag: str = "td") -> str:
    """Rows of an HTML table, with every text escaped."""
    return "\n".join(f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in row)}</tr>" for row in rows)
