"""The parts of the results page: how it was run, one part per experiment, what falls short."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper import tables
from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.figures import bound_figure
from benchmarks.paper.rates import CORRELATION
from benchmarks.paper.style import arm_label, picture
from benchmarks.paper.tables import FIT_BELOW, KEEP, markdown, percent, read_rates
from levytorch.errors import InputError
from levytorch.files import write_text
from levytorch.untrusted import read_json

REPLICAS = 12  # the paper's
SIGNIFICANT = 0.01  # a Kolmogorov-Smirnov p-value below this is named as a shortfall
COVERED = 0.9  # and so is a 95 % band that holds the truth less often than this
PAPER_ARMS = ("unbiased", "none", "tcf")
BOUND = "The error bound (section 4.2.2)"
_BOUND = """\
b = sin⁴ x, D_o = cos² x + |sin x|, D_f = sin 4x + 2, alpha = 0.3, beta = 0.1, V = cos³(2x). {trials:,} perturbed
problems for every eps from {low:g} to {high:g} are solved by collocation with {modes} modes. Nothing is fitted. The
slopes are those of log(mean error) over log(eps) at eps = {used}; for larger eps the error is no longer linear. C0 is
max |V^ − V|. C2 is the sum of the maxima of V^ − V and of its first two derivatives, the norm of Theorem 3.1 without
its Hölder part.

The perturbation *noise* is a Gaussian process of standard deviation eps, correlated over {share:g} of the period
(covariance exp(−d² / (2 l²)), l = {length:.3f}), so that its Hölder norms exist and C does not depend on the grid.
*gaussian* and *wedge* are bumps of height eps. *white* is independent at every collocation point, and its level
decreases with the number of points."""
PACKAGES = ("levytorch", "torch", "numpy", "scipy", "numba", "lightning", "hydra-core", "polars", "matplotlib")


class Experiment(NamedTuple):
    """A part of the page: the option of conf/experiment, its heading, what the paper does there."""

    name: str
    title: str
    text: str


EXPERIMENTS = (
    Experiment(
        "unbiased_constant",
        "Example 4.1: constants, unbiased data",
        "(b, D_o, D_f) = (5, 4, 3), K = 1, dt = 1/40, 41 points per trajectory, nothing removed, no tail correction.",
    ),
    Experiment(
        "unbiased_variable",
        "Example 4.2: variable coefficients, unbiased data",
        "K = 21, dt = 1/400, alpha = 0.3, nothing removed, no tail correction.",
    ),
    Experiment(
        "censored_variable",
        "Example 4.3: variable coefficients, filtered data, and their value functions (section 4.2.1)",
        "K = 21, dt = 1/40, alpha = 0.3. Steps of at least TRT = 20 are removed and half of those beyond CT = 8 "
        "dropped. At dt = 1/40 the bias of frozen coefficients does not decrease with the amount of data.",
    ),
    Experiment(
        "censored_constant",
        "Example 4.4: constants, filtered data",
        "(5, 4, 3), K = 1, dt = 1/40, alpha = 0.3, the same filter.",
    ),
    Experiment(
        "censored_mcmc",
        "Example 4.5: constants, Metropolis data",
        "(5, 4, 3), K = 1, dt = 1/40, alpha = 0.3; increments from a random-walk Metropolis chain in a "
        "limited range. Consecutive increments are dependent, so that the standard errors are too small.",
    ),
    Experiment(
        "learning_history",
        "The moving average (appendix E.2)",
        "Algorithm B.1 to the letter on the data of Example 4.5.",
    ),
)


def code(command: str) -> str:
    return f"```bash\n{command.strip()}\n```"


def machine() -> str:
    """Processor and cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
        processor = (names or [processor])[0]
    return f"{processor}, {cores} core{'' if cores == 1 else 's'}, {platform.system()}"


def versions() -> str:
    """Python and the packages that numbers depend on."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout that is not installed
            continue
    return ", ".join(found)


def how(
    runs: Runs, roots: Sequence[Path], earlier: Sequence[dict[str, str]] = (), machines: Sequence[str] = ()
) -> list[str]:
    """Machines, versions, time, seeds and settings.

    earlier: rows of a page that was there, of other experiments; machines: those that it names, with versions.
    """
    rows = []
    for experiment in EXPERIMENTS:
        for literal in (False, True):
            own = runs.where(experiment=experiment.name, literal=literal)
            if not len(own):
                continue
            record = own.records[0]
            timing = sweep_record(own, roots)
            rows.append(
                {
                    "experiment": experiment.name,
                    "engine": str(record.metrics.get("engine")),
                    "law": ", ".join(sorted({r.law for r in own})),
                    "runs": len(own),
                    "seeds": _range(own.unique("seed")),
                    "trajectories": _range(own.unique("n_trajectories")),
                    "arms": ", ".join(arm_label(arm) for arm in own.unique("arm")),
                    "fits, s": round(float(np.nansum([r.number("seconds_fit") for r in own])), 1),
                    "wall, s": timing.get("wall_seconds"),
                    "CPU, s": timing.get("cpu_seconds"),
                    "machine": machine().split(",")[0],
                }
            )
    shown = [dict(zip(rows[0], cells)) for cells in map(tables.cells, markdown(rows).splitlines()[2:])] if rows else []
    anew = {row["experiment"] for row in rows}
    if earlier and (not shown or set(earlier[0]) == set(shown[0])):
        shown += [row for row in earlier if row["experiment"] not in anew]
    order = [one.name for one in EXPERIMENTS]
    shown.sort(key=lambda row: order.index(row["experiment"]) if row["experiment"] in order else len(order))
    used = {row["machine"] for row in shown}
    used_here = [f"{machine()}. {versions()}."] if anew or not shown else []
    here = {one.split(",")[0] for one in used_here}
    used_here += [one for one in machines if one.split(",")[0] in used - here]
    return [
        *(f"Machine: {one}" for one in used_here),
        markdown(shown) if shown else "No runs of the paper's experiments.",
        "*fits* is the sum over runs of the time from the first pass to the last, with checks and standard errors. "
        "Wall and CPU times are those of whole sweeps, if they were recorded. Wall times depend on the machine's load.",
    ]


def experiment(one: Experiment, runs: Runs, roots: Sequence[Path], out: Path) -> list[str]:
    """What was done, the command, and the tables; the figures follow. Complete tables are in <out>/tables."""
    blocks = [f"{one.text} {fitted_by(runs)}"]
    command = sweep_record(runs, roots).get("command") or f"python train.py -m experiment={one.name}"
    blocks.append(code(str(command)))
    found = tables.all_tables(runs)
    if one.name == "learning_history":
        return blocks
    if "errors" in found:
        blocks += _table("Errors in %", "errors", one, markdown(_compact(found["errors"]), keep=KEEP), out)
    if "rates" in found:
        rows = found["rates"].filter((found["rates"]["arm"] != "none") & (found["rates"]["sizes"] >= 3))
        exact = runs.unique("n_basis") == [1]
        blocks += _rates(rows.rows(named=True), exact=exact)
    if "calibration" in found:
        rows = tables.calibrations(runs, tables.SIZELESS)
        if len(rows):
            _write("calibration", one, markdown(rows, keep=KEEP), out)
            blocks.append(f"[Calibration of the standard errors](tables/{one.name}_calibration.csv).")
    if one.name in ("censored_variable", "censored_constant") and "values" in found:
        blocks += _table(
            "Value functions, errors in %", "values", one, markdown(_compact_values(found["values"]), keep=KEEP), out
        )
    return blocks


def _table(title: str, kind: str, one: Experiment, complete: str, out: Path) -> list[str]:
    """A table of the page under its title, which links to the complete one where rows are left out."""
    _write(kind, one, complete, out)
    text = tables.largest(tables.default_reach(complete))
    link = f" ([all rows](tables/{one.name}_{kind}.csv))" if text != complete else ""
    return [f"{title}{link}:", text]


def _write(kind: str, one: Experiment, complete: str, out: Path) -> None:
    write_text(out / "tables" / f"{one.name}_{kind}.csv", tables.as_csv(complete))


def _rates(rows: Sequence[dict[str, Any]], *, exact: bool) -> list[str]:
    """Slopes of log(error) over log(size) per arm."""
    if not rows:
        return []
    promise = "Maximum likelihood promises -0.5." if exact else "The bias of frozen steps does not decrease."
    shown = [
        {
            "arm": arm_label(row["arm"]),
            "alpha": f"{row['alpha_true']:g}",
            "engine": "Algorithm B.1" if row["literal"] else "levytorch",
            "sizes": row["sizes"],
            "pooled": f"{row['slope_pooled']:.3f} ± {row['slope_pooled_std']:.3f}",
            **{name: f"{row[f'slope_{name}']:.2f}" for name in COEFFICIENTS},
        }
        for row in rows
    ]
    return [f"Rates. {promise}", markdown(shown, keep=("arm", "pooled", *COEFFICIENTS))]


def fitted_by(runs: Runs) -> str:
    """Law and engine of every figure of a section."""
    engines = {"Algorithm B.1" if run.literal else str(run.metrics.get("engine")) for run in runs}
    laws = ", ".join(sorted({run.law for run in runs}))
    return f"Law of a step: {laws}. Engine: {', '.join(sorted(engines, key=str.lower))}."


def sweep_record(runs: Runs, roots: Sequence[Path]) -> dict[str, Any]:
    """sweep.json of the folder these runs are in, between the root and the runs: wall and CPU time, command."""
    tops = {root.resolve() for root in roots}
    for folder in (runs.records[0].path.resolve(), *runs.records[0].path.resolve().parents):
        file = folder / "sweep.json"
        if file.is_file():
            try:
                content = read_json(file)
            except InputError:
                return {}
            # only what is what it should be: times that are numbers, a command that is text
            kinds: dict[str, Any] = {"wall_seconds": int | float, "cpu_seconds": int | float, "command": str}
            known = content if isinstance(content, dict) else {}
            found = {key: known[key] for key, kind in kinds.items() if isinstance(known.get(key), kind)}
            return {key: value if key == "command" else float(value) for key, value in found.items()}
        if folder in tops:
            break
    return {}


def shortfalls(runs: Runs, earlier: Sequence[str] = (), there: Sequence[str] = ()) -> list[str]:
    """What a reader should know before trusting the numbers above; computed, so that it cannot be forgotten.

    earlier: the same of experiments whose sections were kept; there: the experiments that the page has.
    """
    known = Runs(tuple(r for r in runs if r.experiment in {e.name for e in EXPERIMENTS}))
    items = list(earlier)
    absent = [e.name for e in EXPERIMENTS if not len(known.where(experiment=e.name)) and e.name not in there]
    if absent:
        items.append(f"No runs of {', '.join(absent)}.")
    items += _few_replicas(known)
    for key, own in tables.groups(known):
        stuck = sum(not r.metrics.get("converged", True) for r in own)
        if stuck:
            items.append(f"{_where(key)}: {stuck} of {len(own)} fits stopped before they had converged.")
    made = tables.all_tables(known)
    if "errors" in made:
        items += _biased(made["errors"].filter(made["errors"]["arm"] != "none"))
    if "calibration" in made:
        corrected = Runs(tuple(r for r in known if r.arm != "none" and r.experiment != "learning_history"))
        pooled = tables.calibrations(corrected, tables.SIZELESS)
        for key, _ in tables.groups(corrected, tables.SIZELESS):
            rows = [row for row in pooled.rows(named=True) if all(row[k] == v for k, v in key.items())]
            items += _uncalibrated(key, rows)
    return ["\n".join(f"- {item}" for item in items)] if items else ["Nothing that these checks look for."]


def _biased(errors: Any) -> list[str]:
    """Per arm: the largest size at which D_f is off on average by more than 1 % and more than three standard errors."""
    off: dict[str, tuple[int, float]] = {}
    for row in errors.rows(named=True):
        spread, where = row["D_f_bias_std"], _where(row | {"n_trajectories": None})
        if spread and abs(row["D_f_bias"]) > max(3 * spread, 0.01):
            off[where] = max(off.get(where, (0, 0.0)), (row["n_trajectories"], row["D_f_bias"]))
    return [f"{where}: bias of D_f {percent(bias, signed=True)} ({n:,})." for where, (n, bias) in off.items()]


def _few_replicas(runs: Runs) -> list[str]:
    """Per experiment and way of fitting: groups with fewer replicas than the paper's."""
    items = []
    for key, own in tables.groups(runs, ("experiment", "literal")):
        counts = [len(group) for _, group in tables.groups(own)]
        few = [n for n in counts if n < REPLICAS]
        if few and key["experiment"] != "learning_history":
            engine = ", Algorithm B.1" if key["literal"] else ""
            found = f"{min(few)}" if min(few) == max(few) else f"{min(few)} to {max(few)}"
            items.append(
                f"{key['experiment']}{engine}: {found} replica{'' if found == '1' else 's'} in {len(few)} of "
                f"{len(counts)} groups, where the paper has {REPLICAS}."
            )
        absent = [arm for arm in PAPER_ARMS if arm not in own.unique("arm")]
        if key["literal"] and absent and key["experiment"] != "learning_history":
            arms = ", ".join(arm_label(arm) for arm in absent if len(runs.where(experiment=key["experiment"], arm=arm)))
            items.append(f"{key['experiment']}, Algorithm B.1: no runs of these arms: {arms}.")
    return items


def _uncalibrated(key: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Sentences for standard errors that do not say what happens."""
    items = []
    wrong = [row for row in rows if row["ks_p"] is not None and row["ks_p"] < SIGNIFICANT]
    if wrong:
        shown = [f"{r['coefficient']} (mean {r['z_mean']:.2f}, sd {r['z_sd']:.2f})" for r in wrong]
        items.append(f"{_where(key)}: standardised errors are not N(0, 1): {', '.join(shown)}.")
    low = [row for row in rows if row["ks_p"] is None and row["coverage"] < COVERED]
    if low:
        shown = [f"{r['coefficient']} {percent(r['coverage'])}" for r in low]
        items.append(f"{_where(key)}: coverage of the 95 % bands: {', '.join(shown)}.")
    return items


def _compact(table: Any) -> list[dict[str, Any]]:
    """One cell per coefficient instead of four, in %."""
    rows = []
    for row in table.rows(named=True):
        out = {key: row[key] for key in ("alpha_true", "literal", "reach", "arm", "n_trajectories", "replicas")}
        for name in COEFFICIENTS:
            out[name] = f"{_plain(row[f'{name}_median'])} ({_plain(row[f'{name}_worst'])})"
        spread = "" if row["D_f_bias_std"] is None else f" ± {_plain(row['D_f_bias_std'])}"
        out["bias of D_f"] = f"{_plain(row['D_f_bias'], signed=True)}{spread}"
        out["outliers"] = "/".join(str(row[f"{name}_outliers"]) for name in COEFFICIENTS)
        rows.append(out)
    return rows


def _compact_values(table: Any) -> list[dict[str, Any]]:
    rows = []
    for row in table.rows(named=True):
        out = {key: row[key] for key in ("literal", "arm", "n_trajectories", "replicas")}
        out |= {"V": f"{_plain(row['V_median'])} ({_plain(row['V_worst'])})", "outliers": row["V_outliers"]}
        out["V - mean V"] = f"{_plain(row['V_shape_median'])} ({_plain(row['V_shape_worst'])})"
        compared = row["compared"] is not None
        out["better than without"] = f"{row['better_than_none']} of {row['compared']}" if compared else "–"
        rows.append(out)
    return rows


def _plain(share: float, *, signed: bool = False) -> str:
    """A share in % without the sign, for tables whose title has it."""
    return percent(share, signed=signed).removesuffix(" %")


def _where(key: dict[str, Any]) -> str:
    engine = ", Algorithm B.1" if key.get("literal") else ""
    reach = f", reach {key['reach']:g}" if key.get("reach") else ""
    alpha = "" if key.get("alpha_true") is None else f", alpha {key['alpha_true']:g}"
    size = f", {key['n_trajectories']:,} trajectories" if key.get("n_trajectories") else ""
    return f"{key['experiment']}{alpha}, {arm_label(key['arm'])}{engine}{reach}{size}"


def _range(values: list[Any]) -> str:
    if len(values) > 3 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} … {values[-1]}"
    return ", ".join(f"{v:,}" for v in values)


def bound(runs: Runs, out: Path) -> list[str]:
    """The error of V against that of the coefficients, in both norms."""
    if not runs.studies:
        return []
    study = runs.studies[-1]
    facts = read_json(study / "rates.json")
    curves = read_rates(study)
    shown = []
    for kind in dict.fromkeys(curve.perturbation for curve in curves):
        own = {curve.norm: curve for curve in curves if curve.perturbation == kind}
        row: dict[str, Any] = {"perturbation": kind}
        for norm, curve in own.items():
            row[f"slope, {norm}"] = f"{curve.slope:.4f}"
            row[f"C = error / eps, {norm}"] = f"{curve.mean[0] / curve.eps[0]:.3g}"
        shown.append(row)
    eps, first = curves[0].eps, next(iter(facts.values()))
    used = ", ".join(f"{e:g}" for e in eps[eps <= FIT_BELOW * (1 + 1e-9)])
    text = _BOUND.format(
        trials=first["n_trials"], low=eps.min(), high=eps.max(), modes=first["n_modes"], used=used,
        share=CORRELATION, length=2 * math.pi * CORRELATION,
    )  # fmt: skip
    fig, _ = bound_figure(runs)
    caption = "Error of V against the size of the perturbation, in C0 (left) and C2 (right); mean and 5–95 %."
    command = code("python -m benchmarks.paper rates")
    shown_figure = picture(fig, "bound", caption, out, "Figure 8 of the paper, right. ")
    return [text, command, markdown(shown), *shown_figure]
