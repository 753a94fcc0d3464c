"""What a training run writes beside its recovery: numbers, curves and figures, in one dimension and in more."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from levytorch.coefficients.layout import in_one_form
from levytorch.data import SourceData
from levytorch.data.lattice import Lattice
from levytorch.diagnostics import Diagnosis
from levytorch.diagnostics.verdicts import Verdict, warning_verdicts
from levytorch.errors import LevytorchWarning
from levytorch.figures import AxisNames, base, planes
from levytorch.figures import coefficients as plots
from levytorch.figures.coefficients import selection
from levytorch.figures.diagnostics import drawings
from levytorch.files import write_csv, write_json
from levytorch.runs.reading import Columns
from levytorch.runs.tensorboard import COEFFICIENTS, FORMATS, add_image, log_results
from levytorch.runs.words import for_command_line
from levytorch.training.fit_report import FitReport
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings

_POINTS = 4096  # of a cell in d > 1 dimensions
_STATES = 20_000  # observed states that averages are taken over
Drawings = dict[str, Callable[[], Any]]  # name of a figure -> what draws it


@dataclass
class Outcome:
    """What a finished run has: the recovery, its source, its numbers and where they are."""

    recovery: Any  # a Recovery, or one with actions
    source: SourceData
    report: FitReport
    metrics: dict[str, Any]  # the fields of metrics.json
    directory: Path
    loggers: list[Any] = field(default_factory=list)
    formats: tuple[str, ...] = FORMATS
    diagnosis: Diagnosis | None = None
    settings: FitSettings | None = None  # of the fit
    verdicts: list[Verdict] = field(default_factory=list)
    units: AxisNames = field(default_factory=AxisNames)
    pictures: dict[str, list[bytes]] = field(default_factory=dict)  # name of a figure -> SVG images of its panels

    def publish(self, name: str, draw: Callable[[], Any]) -> None:
        """A figure into figures/, TensorBoard and the page, drawn once; not at all when nobody wants it."""
        if not (self.formats or self.loggers):
            return
        began = time.perf_counter()
        fig = draw()
        drawn = base.draw(fig)
        self.pictures[name] = base.svg_parts(fig)
        base.write(drawn, fig, self.directory / "figures" / name, self.formats)
        tag = COEFFICIENTS if name == "coefficients" else f"report/{name}"
        add_image(self.loggers, tag, drawn, int(self.recovery.metrics["steps"]))
        self.took("figures", time.perf_counter() - began)

    def note(self, doubts: Iterable[str]) -> None:
        """Add what a part of the run has warned of to the verdicts and to metrics.json, each sentence once."""
        known = self.metrics.setdefault("warnings", [])
        new = [doubt for doubt in dict.fromkeys(map(for_command_line, doubts)) if doubt not in known]
        known += new
        self.verdicts += warning_verdicts(new)
        self.metrics["verdicts"] = [one.plain() for one in self.verdicts]

    def took(self, part: str, seconds: float) -> None:
        """Add to what metrics.json says about the time of a run."""
        parts = self.metrics.setdefault("seconds_of", {})
        parts[part] = parts.get(part, 0.0) + seconds

    def mean_error(self) -> float | None:
        """Of b, D_o and D_f where the truth is known: what a sweep would minimise."""
        errors = [self.metrics[k] for k in ("error_b", "error_D_o", "error_D_f") if k in self.metrics]
        return sum(errors) / len(errors) if errors else None


@contextmanager
def noted_doubts() -> Iterator[list[str]]:
    """What levytorch warns of in the block, each sentence once; the list is complete when the block has ended."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LevytorchWarning)
        yield found
    found += dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, LevytorchWarning))


def units_of(data: Mapping[str, Any]) -> AxisNames:
    """Names for the axes where the data has some: the columns of a file, and its unit of time."""
    if "path" not in data:
        return AxisNames()
    columns = data.get("value")
    state = ", ".join(map(str, columns)) if isinstance(columns, (list, tuple)) else str(columns or "")
    return AxisNames(f"log {state}".strip() if data.get("log") else state, str(data.get("time_unit") or ""))


def summary(recovery: Recovery, truth: Any) -> dict[str, Any]:
    """Means over the cell (of b per component), their standard errors, and relative L2 errors when truth is known.

    On a line over the range of the data.
    """
    x = recovery.head.grid(_POINTS) if recovery.dim > 1 else _states_of_curves(recovery)
    out: dict[str, Any] = {}
    for one in recovery.averages(x, truth=truth):
        found = {"mean_": one.mean, "mean_std_": one.std}
        out |= {prefix + one.name: value for prefix, value in found.items() if value is not None}
        if one.error is not None:
            out |= {f"error_{one.name}": one.error} | ({"error_b": one.error} if one.name.startswith("b_") else {})
    return out


def _states_of_curves(recovery: Recovery) -> torch.Tensor:
    ends = recovery.support if recovery.period is None else None
    ends = ends or plots.x_range(recovery)
    return torch.linspace(*ends, 1025, dtype=torch.float64)[:-1]


def states_of(data: Any) -> torch.Tensor:
    """Observed states, evenly spaced in the data and limited in number."""
    if isinstance(data, Lattice):
        bins = data.counts_of_states()
        generator = torch.Generator().manual_seed(0)
        return bins.x[torch.multinomial(bins.pairs, _STATES, replacement=True, generator=generator)]
    return data.x[:: max(1, len(data) // _STATES)]


def write_fit(outcome: Outcome) -> None:
    """What the fit alone tells: curves.csv, history.csv and their figures."""
    recovery, directory = outcome.recovery, outcome.directory
    figures = _write_curves(outcome)
    if recovery.history:
        keys = dict.fromkeys(key for entry in recovery.history for key in entry)  # some not at every step
        columns = {k: [entry.get(k, math.nan) for entry in recovery.history] for k in keys}
        write_csv(directory / "history.csv", columns)
    if len(recovery.history) > 1:
        figures["history"] = lambda: plots.history(recovery.history, changed=_change_of_law(recovery))[0]
    if "selection" in recovery.metrics:
        figures["selection"] = lambda: selection(recovery.metrics["selection"])[0]
    paths = outcome.source.trajectories
    if paths is not None and paths.dim <= 2 and paths.stored is None:
        figures["trajectories"] = lambda: paths.plot(units=outcome.units)[0]
    for name, draw in figures.items():
        outcome.publish(name, draw)


def _change_of_law(recovery: Recovery) -> float | None:
    """The last step under the frozen law, where the exact one followed it."""
    own = int(recovery.metrics.get("steps_of", {}).get("exact", 0))
    if recovery.law != "exact" or not 0 < own < len(recovery.history):
        return None
    return recovery.history[-own - 1]["step"]


def write_checks(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """What is known when the checks are: metrics.json, their figures, and the loggers' tables."""
    write_json(outcome.directory / "metrics.json", outcome.metrics)
    if outcome.diagnosis is not None:
        for name, draw in drawings(outcome.diagnosis, outcome.units).items():
            outcome.publish(name, draw)
    log_results(outcome.loggers, config, outcome.metrics)


def _write_curves(outcome: Outcome) -> Drawings:
    """curves.csv, and what draws it (there is no figure of three dimensions)."""
    recovery, truth, directory = outcome.recovery, outcome.source.dynamics, outcome.directory
    states, units = states_of(outcome.source.transitions), outcome.units
    if recovery.dim == 1:
        curves = plots.coefficient_curves(recovery, truth, states=states)
        write_csv(directory / "curves.csv", curves)
        return {"coefficients": lambda: plots.coefficients(curves, units=units)[0]}
    if recovery.dim == 2:
        fields = planes.coefficient_fields(recovery, truth)
        write_csv(directory / "curves.csv", planes.field_columns(fields))
        dots = planes.sample_states(states, recovery)
        return {"coefficients": lambda: planes.fields(fields, dots=dots, units=units)[0]}
    x = recovery.head.grid(_POINTS)
    columns: Columns = {f"x_{i + 1}": x[:, i].numpy() for i in range(recovery.dim)}
    for label, system in (("", recovery), ("_truth", truth)):
        if system is None:
            continue
        for name in ("b", "D_o", "D_f"):
            values = getattr(system, name)(x)
            if name == "D_o":
                values = in_one_form(values, recovery.D_o(x))[0]
            for own, place in recovery.head.layout.numbers(name) if values.dim() > 1 else [(name, ())]:
                columns[f"{own}{label}"] = values[(slice(None), *place)].numpy()
    write_csv(directory / "curves.csv", columns)
    return {}


def value_grid(V: Any, side: int) -> torch.Tensor:
    """States of the cell (the window, where V has one), (401,), or of the plane, (side, side, 2)."""
    if V.dim > 1:
        return V.space.grid(side, 0.0)
    low, high = V.window or V.space.ends
    return torch.linspace(low, high, 401, dtype=torch.float64)


def write_value(stem: Path, V: Any, beside: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> Columns:
    """<stem>.pt and, on a grid, <stem>.csv: V, its standard errors, and other functions by name; returns the table."""
    x = value_grid(V, 96)
    columns = {"x": x} if x.ndim == 1 else {"u": x[..., 0], "v": x[..., 1]}
    columns["V"] = V(x)
    if V.covariance_factor is not None:
        columns["V_std"] = V.std(x)
    columns |= {name: function(x) for name, function in beside.items()}
    curves = {name: column.reshape(-1).numpy() for name, column in columns.items()}
    V.save(stem.with_name(f"{stem.name}.pt"))
    write_csv(stem.with_name(f"{stem.name}.csv"), curves)
    return curves
